//! Clean-up without a PID namespace: kills the descendants of this process and empties the run's
//! private directory. It runs in the init after the command, under the init's filter: system calls
//! only, bounded buffers on the stack.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, chmodat, fstat, openat, unlinkat};
use rustix::process::{Pid, Signal, getpid, kill_process};
use stockade_sys::Errno;
use stockade_sys::reap::reap_any;

/// Time-out for killing descendants. After it, the rest is left running.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Deeper directories are left, because each level needs a stack frame.
const MAX_DEPTH: usize = 64;
/// Bytes for one batch of directory entries.
const LISTING_BATCH_BYTES: usize = 2048;

/// Kills every descendant of this process, which must be their subreaper. The children of a killed
/// child are reparented to this process and are killed next.
pub(super) fn end_descendants() {
    let give_up = Instant::now() + KILL_TIMEOUT;
    loop {
        match reap_any() {
            Ok(Some(_)) => continue,
            Ok(None) => {}
            Err(_) => return,
        }
        if Instant::now() > give_up {
            return;
        }
        kill_children();
        let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: 200_000 };
        let _ = rustix::thread::clock_nanosleep_relative(rustix::thread::ClockId::Monotonic, &pause);
    }
}

/// Sends SIGKILL to each process whose parent is this one.
fn kill_children() {
    let me = getpid();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(proc) = openat(CWD, c"/proc", flags, Mode::empty()) else { return };
    let mut buffer = [MaybeUninit::uninit(); LISTING_BATCH_BYTES];
    let mut entries = RawDir::new(&proc, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let Some(pid) = parse_number(entry.file_name().to_bytes()).and_then(Pid::from_raw) else { continue };
        if parent_of(proc.as_fd(), entry.file_name()) == Some(me) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Returns the parent of the process with this directory in `/proc`. The process name is in
/// parentheses before the number and may contain any byte, so the search starts at the end.
fn parent_of(proc: BorrowedFd<'_>, name: &CStr) -> Option<Pid> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let directory = openat(proc, name, flags, Mode::empty()).ok()?;
    let file = openat(&directory, c"stat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buffer = [0_u8; 256];
    let length = rustix::io::read(&file, &mut buffer).ok()?;
    let text = buffer.get(..length)?;
    let close = text.iter().rposition(|b| *b == b')')?;
    let mut words = text.get(close + 1..)?.split(|b| *b == b' ').filter(|w| !w.is_empty());
    words.nth(1).and_then(parse_number).and_then(Pid::from_raw)
}

fn parse_number(bytes: &[u8]) -> Option<i32> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// Removes the content of `directory`: by descriptor, without following links or crossing mounts.
/// Entries that are too deep stay.
pub(super) fn empty_directory(directory: BorrowedFd<'_>) {
    if let Ok(stat) = fstat(directory) {
        empty_level(directory, stat.st_dev, MAX_DEPTH);
    }
}

fn empty_level(directory: BorrowedFd<'_>, device: u64, depth: usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(listing) = openat(directory, c".", flags, Mode::empty()) else { return };
    let mut buffer = [MaybeUninit::uninit(); LISTING_BATCH_BYTES];
    let mut entries = RawDir::new(&listing, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match unlinkat(directory, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) if entry.file_type() == FileType::Directory => {}
            _ => continue,
        }
        if depth > 0
            && let Ok(inner) = open_own(directory, name)
            && fstat(&inner).is_ok_and(|s| s.st_dev == device)
        {
            empty_level(inner.as_fd(), device, depth - 1);
        }
        let _ = unlinkat(directory, name, AtFlags::REMOVEDIR);
    }
}

/// Opens a directory of the run's own, whatever its mode. No other process is alive that could
/// replace it by a link.
fn open_own(directory: BorrowedFd<'_>, name: &CStr) -> Result<rustix::fd::OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let _ = chmodat(directory, name, Mode::RWXU, AtFlags::empty());
    openat(directory, name, flags, Mode::empty())
}
