//! When a child took which step: a page that a process and its children share, for
//! whoever asks where the time of a start goes. Off unless reserved. A mark is one
//! look at the clock and one store, so it may be made between clone and exec.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::time::{ClockId, clock_gettime};

use crate::Errno;

/// How many marks there are.
pub const SLOTS: usize = 512;

static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// Makes the page; children that are forked from now on share it. Once in a process;
/// again it does nothing.
///
/// # Errors
/// ENOMEM.
pub fn reserve() -> Result<(), Errno> {
    if !PAGE.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let size = SLOTS * size_of::<AtomicU64>();
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page =
        unsafe { mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED) }?;
    PAGE.store(page.cast(), Ordering::Release);
    Ok(())
}

/// Notes that now is the time of `slot`, where there is a page and such a slot.
pub fn set(slot: usize) {
    if let Some(mark) = page().and_then(|page| page.get(slot)) {
        mark.store(now(), Ordering::Release);
    }
}

/// When `slot` was noted, in nanoseconds as [`now`] counts them; the mark is taken
/// away, so that the next child's are its own.
pub fn take(slot: usize) -> Option<u64> {
    page()?.get(slot).map(|mark| mark.swap(0, Ordering::AcqRel)).filter(|at| *at != 0)
}

/// Nanoseconds of the clock that neither stands still nor is ever set
/// (CLOCK_MONOTONIC).
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn page() -> Option<&'static [AtomicU64; SLOTS]> {
    let page = PAGE.load(Ordering::Acquire).cast::<[AtomicU64; SLOTS]>();
    // SAFETY: null, or a mapping of this size that is never taken away; all its
    // bytes are zero or were stored by this type.
    unsafe { page.as_ref() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clone::fork_with;
    use crate::reap::wait_pidfd_end;
    use std::os::fd::AsFd;

    #[test]
    fn a_childs_marks_are_seen_once() {
        set(1);
        assert_eq!(take(1), None, "there is no page yet");
        reserve().unwrap();
        let before = now();
        let child = fork_with(0, 0, || {
            set(1);
            set(SLOTS);
            0
        })
        .unwrap();
        wait_pidfd_end(child.pidfd.as_fd()).unwrap();
        assert!(take(1).is_some_and(|at| (before..=now()).contains(&at)));
        assert_eq!((take(1), take(2), take(SLOTS)), (None, None, None));
    }
}
