//! Memory for data that a child made earlier is to find: a child is forked
//! while little is known, and what it shall do is worked out meanwhile, in
//! memory that both of them see at the same address.
//!
//! There is one arena in a process, never reused and never unmapped: whatever
//! was allocated in it by mistake stays valid.

use std::alloc::{GlobalAlloc, Layout, System};
use std::any::TypeId;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::Errno;

/// Address space only; a page costs memory when it is used.
const SIZE: usize = 16 << 20;

static START: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicBool = AtomicBool::new(false);
static OVERFLOWED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static FILLING: Cell<bool> = const { Cell::new(false) };
}

/// What the arena begins with.
struct Header {
    kind: TypeId,
    at: usize,
}

/// The right to fill the arena.
#[derive(Debug)]
pub struct Arena(());

impl Arena {
    /// Maps the arena. Children that are forked from now on share it.
    ///
    /// # Errors
    /// EBUSY where there is one already, ENOMEM.
    pub fn reserve() -> Result<Self, Errno> {
        if TAKEN.swap(true, Ordering::AcqRel) {
            return Err(Errno::BUSY);
        }
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), SIZE, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        USED.store(size_of::<Header>(), Ordering::Relaxed);
        START.store(start as usize, Ordering::Release);
        Ok(Self(()))
    }

    /// Runs `make` on this thread; what it allocates lies in the arena where
    /// [`Allocator`] is the program's.
    pub fn fill<T>(&self, make: impl FnOnce() -> T) -> T {
        struct Done;
        impl Drop for Done {
            fn drop(&mut self) {
                FILLING.set(false);
            }
        }
        let _done = Done;
        FILLING.set(true);
        make()
    }

    /// Lets children find `value`, which [`fill`](Self::fill) made whole. It
    /// stays for good. Not where it lies elsewhere: for want of room, or
    /// because the program has another allocator.
    ///
    /// # Errors
    /// Gives the value back then.
    pub fn publish<T: Sync + 'static>(self, value: Box<T>) -> Result<&'static T, Box<T>> {
        let at = &raw const *value as usize;
        if !is_within(at) || OVERFLOWED.load(Ordering::Acquire) {
            return Err(value);
        }
        let header = START.load(Ordering::Acquire) as *mut Header;
        // SAFETY: the arena begins with room for a header, aligned as a page;
        // `self` is the only right to write it, and is used up.
        unsafe { header.write(Header { kind: TypeId::of::<T>(), at }) };
        Ok(Box::leak(value))
    }
}

/// In a child: what its parent has published, if it is of this type. The word
/// that it is there must have come another way.
pub fn published<T: Sync + 'static>() -> Option<&'static T> {
    let start = START.load(Ordering::Acquire);
    if start == 0 {
        return None;
    }
    // SAFETY: mapped before the fork, and all zeroes or a header: an `at` of 0
    // means that nothing was published, and then `kind` is not looked at.
    let at = unsafe { (&raw const (*(start as *const Header)).at).read() };
    if at == 0 {
        return None;
    }
    // SAFETY: a header was written.
    let kind = unsafe { (&raw const (*(start as *const Header)).kind).read() };
    // SAFETY: the parent is the same program, so equal types have equal layouts;
    // the value was leaked, so it is never changed or freed; what it points to
    // is in the arena, at the same address here, or in the program itself.
    (kind == TypeId::of::<T>() && is_within(at)).then(|| unsafe { &*(at as *const T) })
}

fn is_within(address: usize) -> bool {
    let start = START.load(Ordering::Acquire);
    start != 0 && (start..start + SIZE).contains(&address)
}

/// The next free bytes; `None` where the arena is not being filled or is full.
fn take(layout: Layout) -> Option<*mut u8> {
    if !FILLING.get() {
        return None;
    }
    let start = START.load(Ordering::Acquire);
    let aligned = |used: usize| (start + used).next_multiple_of(layout.align()) - start;
    let end = |used: usize| aligned(used).checked_add(layout.size()).filter(|end| *end <= SIZE);
    match USED.fetch_update(Ordering::AcqRel, Ordering::Acquire, end) {
        Ok(used) => Some((start + aligned(used)) as *mut u8),
        Err(_) => {
            OVERFLOWED.store(true, Ordering::Release);
            None
        }
    }
}

/// The system's allocator, and the arena's while that is filled. A program
/// that wants to publish anything names it as its global allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

// SAFETY: memory is either the system's, freed and resized by the system, or
// the arena's: taken once, aligned and large enough as asked, never freed.
// Nothing here allocates or unwinds.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        take(layout).unwrap_or_else(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // The arena's memory is fresh from the kernel, hence zero.
        // SAFETY: the caller's promises are passed on.
        take(layout).unwrap_or_else(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if !is_within(memory as usize) {
            // SAFETY: not the arena's, so the system's.
            unsafe { System.dealloc(memory, layout) }
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !FILLING.get() && !is_within(memory as usize) {
            // SAFETY: the system's, and the caller's promises are passed on.
            return unsafe { System.realloc(memory, layout, new_size) };
        }
        // SAFETY: `new_size` is not zero and fits, as the caller promises.
        let new = unsafe { self.alloc(Layout::from_size_align_unchecked(new_size, layout.align())) };
        if !new.is_null() {
            // SAFETY: both are valid for the smaller size, and new memory does
            // not overlap the old; then the old is given up.
            unsafe {
                std::ptr::copy_nonoverlapping(memory, new, layout.size().min(new_size));
                self.dealloc(memory, layout);
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clone::fork_with;
    use crate::passing::{pair, receive, send};
    use crate::reap::{Ended, wait_pidfd_end};
    use std::os::fd::AsFd;

    #[global_allocator]
    static ALLOCATOR: Allocator = Allocator;

    #[test]
    fn a_child_finds_what_was_made_after_its_fork() {
        let arena = Arena::reserve().unwrap();
        assert!(Arena::reserve().is_err());
        assert!(published::<Vec<String>>().is_none());
        let (ours, theirs) = pair().unwrap();
        let child = fork_with(0, 0, || {
            let _ = receive(theirs.as_fd(), &mut [0], true);
            let words = published::<Vec<String>>().map(|v| v.iter().map(String::len).sum::<usize>());
            let other = published::<Vec<u32>>().is_some();
            if other { -1 } else { words.unwrap_or(0) as i32 }
        })
        .unwrap();
        let outside = vec![String::from("grown")];
        let words = arena.fill(|| {
            let mut words = outside;
            words[0].push_str(" inside");
            words.extend((0..7).map(|n| format!("word {n}")));
            Box::new(words)
        });
        let words = arena.publish(words).unwrap();
        assert!(is_within(words[0].as_ptr() as usize) && is_within(words[7].as_ptr() as usize));
        send(ours.as_fd(), b"!", &[]).unwrap();
        let total: usize = words.iter().map(String::len).sum();
        assert_eq!(wait_pidfd_end(child.pidfd.as_fd()).unwrap(), Some(Ended::Exited(total as i32)));
        assert!(!is_within(Box::new(1_u64).as_ref() as *const u64 as usize), "it still fills");
    }
}
