//! Write counter of the init, for a small limit of the disk. It counts the bytes written by the
//! processes that the init has reaped. An ordinary user cannot read this counter of the init from
//! outside.
//!
//! The code runs between clone and exec: system calls, no allocation. It must not know limits.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::pread;

use super::message::LaunchMessage;

/// Buffer size for `/proc/self/io` (proc_pid_io(5)): seven numbers with their names.
const TEXT_BYTES: usize = 512;

/// The init's own counters. They include those of its children that have ended.
pub(super) struct OwnWrites(OwnedFd);

impl OwnWrites {
    /// Opens the counters. Returns `None` if they do not exist (no procfs, or a kernel that does
    /// not count).
    pub(super) fn open() -> Option<Self> {
        openat(CWD, c"/proc/self/io", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok().map(Self)
    }

    pub(super) fn as_raw(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Reports the current count to the caller. Other code notices if the caller is gone.
    pub(super) fn report_count(&self, control: BorrowedFd<'_>) {
        let mut text = [0; TEXT_BYTES];
        let length = pread(self.0.as_fd(), &mut text, 0).unwrap_or_default();
        if let Some(bytes) = text.get(..length).and_then(parse_written_bytes) {
            let _ = LaunchMessage::Written { bytes }.send(control, &[]);
        }
    }
}

/// Returns the bytes that will be written to a disk, less those removed before.
pub(super) fn parse_written_bytes(text: &[u8]) -> Option<u64> {
    let (written, cancelled) = stockade_limits::parse_written_bytes(std::str::from_utf8(text).ok()?)?;
    Some(written.saturating_sub(cancelled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_removed_in_time_are_not_written() {
        assert_eq!(parse_written_bytes(b"wchar: 9\nwrite_bytes: 8192\ncancelled_write_bytes: 4096\n"), Some(4096));
        assert_eq!(parse_written_bytes(b"write_bytes: 1\ncancelled_write_bytes: 4096\n"), Some(0));
        assert_eq!(parse_written_bytes(b"wchar: 9\n"), None);
        let own = OwnWrites::open().and_then(|own| std::fs::read(format!("/proc/self/fd/{}", own.as_raw())).ok());
        assert!(own.is_none_or(|text| parse_written_bytes(&text).is_some()));
    }
}
