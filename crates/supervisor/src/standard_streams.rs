//! The streams and the file mode creation mask of a supervisor, which it gives up or takes over.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::umask;
use stockade_sys::descriptors::place_stdio;

/// Opens `/dev/null` for reading and writing.
///
/// # Errors
/// [`io::Error`] if no descriptors are left.
pub fn open_dev_null() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Replaces the standard streams by `/dev/null`, so that those of the creator are not kept open.
///
/// # Errors
/// [`io::Error`] if no descriptors are left.
pub fn release_streams() -> io::Result<()> {
    let null = open_dev_null()?;
    Ok(place_stdio([null.as_fd(); 3])?)
}

/// Continues with the standard streams and the file mode creation mask of a client.
///
/// # Errors
/// [`io::Error`] if no descriptors are left.
pub fn take_over_streams(streams: [OwnedFd; 3], mask: u32) -> io::Result<()> {
    place_stdio([streams[0].as_fd(), streams[1].as_fd(), streams[2].as_fd()])?;
    umask(Mode::from_raw_mode(mask));
    Ok(())
}

/// Returns the file mode creation mask of this process. Reads it from `/proc` instead of setting
/// it, because the process may have threads.
///
/// # Errors
/// [`io::Error`] if `/proc` cannot be read.
pub fn own_umask() -> io::Result<u32> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
