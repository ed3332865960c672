//! Copies of the content of files, with their holes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, copy_file_range, ftruncate, ioctl_ficlone, seek};
use stockade_sys::Errno;

/// Bytes copied at once.
const BLOCK_BYTES: usize = 1 << 20;

/// Copies the first `size` bytes of a file to an empty one, and keeps holes. Returns the number of
/// bytes that are not holes; `None` if these are more than `max_bytes`.
///
/// # Errors
/// As read(2) and write(2).
pub fn copy_content(from: &File, to: &File, size: u64, max_bytes: u64) -> Result<Option<u64>, Errno> {
    if ioctl_ficlone(to, from).is_ok() {
        return Ok((size <= max_bytes).then_some(size));
    }
    let (mut at, mut copied) = (0_u64, 0_u64);
    while at < size {
        let data = match seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            // Some filesystems do not support holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(errno),
        };
        let end = seek(from, SeekFrom::Hole(data)).unwrap_or(size).clamp(data + 1, size.max(data + 1));
        if copied + (end - data) > max_bytes {
            return Ok(None);
        }
        copy_range(from, to, data, end)?;
        copied += end - data;
        at = end;
    }
    ftruncate(to, size)?;
    Ok(Some(copied))
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> Result<(), Errno> {
    let (mut read_at, mut write_at) = (start, start);
    while read_at < end {
        let length = usize::try_from(end - read_at).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
        match copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), length) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                return copy_by_hand(from, to, read_at, end).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO));
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn copy_by_hand(from: &File, to: &File, mut at: u64, end: u64) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    while at < end {
        let chunk_bytes = usize::try_from(end - at).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
        let length = match from.read_at(&mut block[..chunk_bytes], at) {
            Ok(0) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        to.write_all_at(&block[..length], at)?;
        at += length as u64;
    }
    Ok(())
}
