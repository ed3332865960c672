//! Times of the steps of a child, in a page that a process shares with its children, for measuring
//! a start. Disabled unless reserved. A mark is one read of the clock and one store, so it may be
//! made between clone and exec.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::time::{ClockId, clock_gettime};

use crate::Errno;

/// Number of marks.
pub const MARK_SLOTS: usize = 512;

static MARK_PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// Makes the page; children that are forked from now on share it. Does nothing if the page exists.
///
/// # Errors
/// ENOMEM.
pub fn reserve_page() -> Result<(), Errno> {
    if !MARK_PAGE.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let size = MARK_SLOTS * size_of::<AtomicU64>();
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page =
        unsafe { mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED) }?;
    MARK_PAGE.store(page.cast(), Ordering::Release);
    Ok(())
}

/// Records the present time in `slot`, if the page and the slot exist.
pub fn set_mark(slot: usize) {
    if let Some(mark) = mark_page().and_then(|page| page.get(slot)) {
        mark.store(monotonic_nanoseconds(), Ordering::Release);
    }
}

/// Returns the time in `slot`, in nanoseconds as returned by [`monotonic_nanoseconds`]. Clears the mark, so that the
/// next child starts without it.
pub fn take_mark(slot: usize) -> Option<u64> {
    mark_page()?.get(slot).map(|mark| mark.swap(0, Ordering::AcqRel)).filter(|at| *at != 0)
}

/// Returns the nanoseconds of the clock that never stops and is never set (CLOCK_MONOTONIC).
pub fn monotonic_nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn mark_page() -> Option<&'static [AtomicU64; MARK_SLOTS]> {
    let page = MARK_PAGE.load(Ordering::Acquire).cast::<[AtomicU64; MARK_SLOTS]>();
    // SAFETY: null, or a mapping of this size that is never taken away; all its bytes are zero or
    // were stored by this type.
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
        set_mark(1);
        assert_eq!(take_mark(1), None, "there is no page yet");
        reserve_page().unwrap();
        let before = monotonic_nanoseconds();
        let child = fork_with(0, 0, || {
            set_mark(1);
            set_mark(MARK_SLOTS);
            0
        })
        .unwrap();
        wait_pidfd_end(child.pidfd.as_fd()).unwrap();
        assert!(take_mark(1).is_some_and(|at| (before..=monotonic_nanoseconds()).contains(&at)));
        assert_eq!((take_mark(1), take_mark(2), take_mark(MARK_SLOTS)), (None, None, None));
    }
}
