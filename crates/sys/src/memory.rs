//! Bounded reads of the memory of another process (process_vm_readv(2)).
//!
//! The result is a copy. The caller must not check the copy and then let the process continue with
//! its own data, because that is a race.

use std::ffi::CString;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::pread;

use crate::Errno;
use crate::call::raw_syscall;

/// Smallest page size of all architectures.
const MIN_PAGE_BYTES: u64 = 4096;
/// Enough for most paths in one read.
const FIRST_READ_BYTES: usize = 256;

/// Reads exactly `buffer.len()` bytes at `address` of thread `pid`.
///
/// # Errors
/// EFAULT if a part is not mapped, EPERM if the process may not be read, ESRCH if it is gone.
pub fn read_exact(pid: u32, address: u64, buffer: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < buffer.len() {
        let at = address.checked_add(done as u64).ok_or(Errno::FAULT)?;
        match read_some(pid, at, &mut buffer[done..])? {
            0 => return Err(Errno::FAULT),
            n => done += n,
        }
    }
    Ok(())
}

/// Reads a string that ends with NUL, of at most `max` bytes including the NUL. Also reads a string
/// that ends just before an unmapped page.
///
/// # Errors
/// ENAMETOOLONG without a NUL in `max` bytes, else as [`read_exact`].
pub fn read_c_string(pid: u32, address: u64, max: usize) -> Result<CString, Errno> {
    let mut text: Vec<u8> = Vec::with_capacity(FIRST_READ_BYTES);
    let mut chunk = FIRST_READ_BYTES;
    while text.len() < max {
        let at = address.checked_add(text.len() as u64).ok_or(Errno::FAULT)?;
        let to_page_end = (MIN_PAGE_BYTES - at % MIN_PAGE_BYTES) as usize;
        let start = text.len();
        text.resize(start + chunk.min(to_page_end).min(max - start), 0);
        let read = read_some(pid, at, &mut text[start..])?;
        if read == 0 {
            return Err(Errno::FAULT);
        }
        text.truncate(start + read);
        if let Some(end) = text[start..].iter().position(|b| *b == 0) {
            text.truncate(start + end);
            return CString::new(text).map_err(|_| Errno::INVAL);
        }
        chunk = MIN_PAGE_BYTES as usize;
    }
    Err(Errno::NAMETOOLONG)
}

/// Reads up to the end of `buffer`; less if a page is missing.
fn read_some(pid: u32, address: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    match read_by_call(pid, address, buffer) {
        // Filters of containers refuse the call, but not the file.
        Err(Errno::PERM | Errno::NOSYS) => read_by_file(pid, address, buffer),
        other => other,
    }
}

/// Reads from `/proc/PID/mem` (proc(5)). The kernel requires the same permission as for the call.
fn read_by_file(pid: u32, address: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let memory = openat(CWD, format!("/proc/{pid}/mem"), flags, Mode::empty()).map_err(|errno| match errno {
        Errno::ACCESS => Errno::PERM,
        Errno::NOENT => Errno::SRCH,
        other => other,
    })?;
    match pread(&memory, buffer, address) {
        Err(Errno::IO) => Err(Errno::FAULT),
        other => other,
    }
}

fn read_by_call(pid: u32, address: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: buffer.len() };
    // SAFETY: `local` describes `buffer`, which is borrowed mutably; the remote address is checked
    // by the kernel and never touched here.
    unsafe {
        raw_syscall(
            libc::SYS_process_vm_readv,
            [pid as usize, &raw const local as usize, 1, &raw const remote as usize, 1, 0],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(bytes: &[u8], max: usize) -> Result<CString, Errno> {
        read_c_string(std::process::id(), bytes.as_ptr() as u64, max)
    }

    #[test]
    fn both_ways_read_the_same() {
        let text = b"the same";
        for read in [read_by_call, read_by_file] {
            let mut buffer = [0; 8];
            assert_eq!(read(std::process::id(), text.as_ptr() as u64, &mut buffer), Ok(8));
            assert_eq!(&buffer, text);
            assert_eq!(read(std::process::id(), 8, &mut buffer), Err(Errno::FAULT));
        }
        assert_eq!(read_by_file(u32::MAX >> 2, 0, &mut [0]), Err(Errno::SRCH));
    }

    #[test]
    fn strings_end_at_the_first_nul_and_at_the_bound() {
        assert_eq!(own(b"abc\0def\0", 100).unwrap().as_bytes(), b"abc");
        assert_eq!(own(b"\0", 100).unwrap().as_bytes(), b"");
        let mut long = vec![b'x'; 9000];
        long.push(0);
        assert_eq!(own(&long, 10_000).unwrap().as_bytes().len(), 9000);
        assert_eq!(own(&long, 9001).unwrap().as_bytes().len(), 9000);
        assert_eq!(own(&long, 9000).unwrap_err(), Errno::NAMETOOLONG);
    }

    #[test]
    fn unmapped_memory_is_a_fault() {
        assert_eq!(read_c_string(std::process::id(), 16, 100).unwrap_err(), Errno::FAULT);
        assert_eq!(read_c_string(std::process::id(), u64::MAX, 100).unwrap_err(), Errno::FAULT);
        assert_eq!(read_exact(std::process::id(), 16, &mut [0; 8]).unwrap_err(), Errno::FAULT);
    }

    #[test]
    fn a_string_may_end_at_the_last_mapped_byte() {
        // SAFETY: a mapping of this test alone: two pages, the second one inaccessible, written
        // within the first, unmapped at the end.
        unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = libc::mmap(std::ptr::null_mut(), 8192, access, kind, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(base.byte_add(4096), 4096, libc::PROT_NONE), 0);
            let text = base.byte_add(4096 - 3).cast::<u8>();
            text.copy_from(c"ok".as_ptr().cast(), 3);
            let read = read_c_string(std::process::id(), text as u64, 4096);
            assert_eq!(read.unwrap().as_bytes(), b"ok");
            text.copy_from(b"bad".as_ptr(), 3);
            assert_eq!(read_c_string(std::process::id(), text as u64, 4096).unwrap_err(), Errno::FAULT);
            assert_eq!(libc::munmap(base, 8192), 0);
        }
    }
}
