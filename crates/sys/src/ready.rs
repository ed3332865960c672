//! Waiting for descriptors until a deadline.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Errno;

/// Waits until one of `fds` is readable or is hung up. Returns false at the deadline.
///
/// # Errors
/// The errors of poll(2).
pub fn readable_before(fds: &[BorrowedFd<'_>], deadline: Instant) -> Result<bool, Errno> {
    let mut waited: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        let timeout =
            Timespec::try_from(deadline.saturating_duration_since(Instant::now())).map_err(|_| Errno::INVAL)?;
        match poll(&mut waited, Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
