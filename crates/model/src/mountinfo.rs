//! Parser for the mount table in the text of `mountinfo` (proc_pid_mountinfo(5)).

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Bytes of a usual mount table, as the size of the buffer.
const TYPICAL_TABLE_BYTES: usize = 16 << 10;
/// Most bytes of such a text that are read.
pub const MAX_TABLE_BYTES: u64 = 16 << 20;

/// The mount table of the reading process.
pub const OWN_MOUNTINFO: &str = "/proc/self/mountinfo";

/// Reads a mount table from its open file, up to [`MAX_TABLE_BYTES`].
///
/// # Errors
/// An error if the file cannot be read.
pub fn read_mountinfo(file: impl Read) -> io::Result<Vec<u8>> {
    // A file of procfs has no size, and a small buffer takes many reads.
    let mut text = Vec::with_capacity(TYPICAL_TABLE_BYTES);
    file.take(MAX_TABLE_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// Returns the mount points, with the types of their filesystems.
pub fn parse_mount_points(text: &[u8]) -> impl Iterator<Item = (PathBuf, &[u8])> {
    parse_mounts(text).map(|mount| (mount.point, mount.kind))
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfoEntry<'t> {
    /// Number of the mount.
    pub id: u64,
    /// Number of the parent mount, which need not be listed.
    pub parent: u64,
    /// Device number of the filesystem, as `major:minor`.
    pub device: &'t [u8],
    /// The directory or file of that filesystem that is mounted.
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// True if the mount is read-only by its own options.
    pub is_read_only: bool,
    /// Type of the filesystem.
    pub kind: &'t [u8],
    /// Options of the filesystem, in their written form.
    pub filesystem_options: &'t [u8],
}

/// Returns all mounts; a later one at the same point hides an earlier one.
pub fn parse_mounts(text: &[u8]) -> impl Iterator<Item = MountInfoEntry<'_>> {
    let path = |field: &[u8]| PathBuf::from(OsStr::from_bytes(&unescape_field(field)));
    text.split(|byte| *byte == b'\n').filter_map(move |line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let (id, parent) = (parse_number(fields.next()?)?, parse_number(fields.next()?)?);
        let (device, root, point, options) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        let (kind, filesystem_options) = (fields.next()?, fields.nth(1).unwrap_or_default());
        let is_read_only = options.split(|byte| *byte == b',').any(|option| option == b"ro");
        Some(MountInfoEntry {
            id,
            parent,
            device,
            root: path(root),
            point: path(point),
            is_read_only,
            kind,
            filesystem_options,
        })
    })
}

fn parse_number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Decodes escapes: `\040` and the like are bytes in octal.
pub fn unescape_field(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let octal = field.get(at + 1..at + 4).filter(|_| field[at] == b'\\');
        match octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(field[at]);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_and_types_are_read() {
        let text = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw\n\
            37 36 0:5 / /dev/pts rw - devpts devpts rw,gid=5\nnonsense\n";
        let found: Vec<_> = parse_mount_points(text).collect();
        assert_eq!(found, [("/mnt 2".into(), &b"ext3"[..]), ("/dev/pts".into(), &b"devpts"[..])]);
        let Some(first) = parse_mounts(text).next() else { panic!("no mount") };
        assert_eq!((first.device, first.root.to_str(), first.is_read_only), (&b"98:0"[..], Some("/mnt1"), false));
        assert!(parse_mounts(b"1 2 0:1 / /a ro,nosuid - tmpfs none rw\n").all(|mount| mount.is_read_only));
    }
}
