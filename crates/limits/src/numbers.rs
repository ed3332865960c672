//! Numbers in files of the kernel. The functions for texts allocate nothing.

use std::fs;
use std::path::Path;

/// Returns the number after `key` in a text of lines `key number` or `key: number unit`.
pub(crate) fn find_number(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix([' ', ':']))?;
    value.split_whitespace().next()?.parse().ok()
}

/// Returns the bytes that a process has written to a disk, and those of them that were removed before
/// (proc_pid_io(5)).
pub fn parse_written_bytes(text: &str) -> Option<(u64, u64)> {
    Some((find_number(text, "write_bytes")?, find_number(text, "cancelled_write_bytes")?))
}

/// Reads a file that contains one number.
pub(crate) fn read_number(file: impl AsRef<Path>) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}
