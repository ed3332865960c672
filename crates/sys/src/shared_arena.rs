//! Shared memory for data that a child must find although it was forked earlier. The child is
//! forked while little is known. Meanwhile its parent prepares the child's task, in memory that
//! both processes see at the same address.
//!
//! A process has one arena, which is never reused and never unmapped, so any value allocated in it
//! by mistake stays valid.

use std::alloc::{GlobalAlloc, Layout, System};
use std::any::TypeId;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::Errno;

/// Size of the address space; a page costs memory only when it is used.
const ARENA_BYTES: usize = 16 << 20;

static ARENA_START: AtomicUsize = AtomicUsize::new(0);
static USED_BYTES: AtomicUsize = AtomicUsize::new(0);
static IS_RESERVED: AtomicBool = AtomicBool::new(false);
static HAS_OVERFLOWED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static IS_FILLING: Cell<bool> = const { Cell::new(false) };
}

/// First bytes of the arena.
struct ArenaHeader {
    kind: TypeId,
    at: usize,
}

/// Right to fill the arena.
#[derive(Debug)]
pub struct SharedArena(());

impl SharedArena {
    /// Maps the arena. Children that are forked from now on share it.
    ///
    /// # Errors
    /// EBUSY if there is one already, ENOMEM.
    pub fn reserve_arena() -> Result<Self, Errno> {
        if IS_RESERVED.swap(true, Ordering::AcqRel) {
            return Err(Errno::BUSY);
        }
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), ARENA_BYTES, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        USED_BYTES.store(size_of::<ArenaHeader>(), Ordering::Relaxed);
        ARENA_START.store(start as usize, Ordering::Release);
        Ok(Self(()))
    }

    /// Runs `make` on this thread. The allocations are in the arena if [`ArenaAllocator`] is the
    /// program's global allocator.
    pub fn fill_with<T>(&self, make: impl FnOnce() -> T) -> T {
        struct FillGuard;
        impl Drop for FillGuard {
            fn drop(&mut self) {
                IS_FILLING.set(false);
            }
        }
        let _done = FillGuard;
        IS_FILLING.set(true);
        make()
    }

    /// Lets children find `value`, which [`fill_with`](Self::fill_with) made whole. The value is never freed.
    /// Fails if the value is not in the arena, because the arena was full or the program has
    /// another allocator.
    ///
    /// # Errors
    /// Returns the value in that case.
    pub fn publish_value<T: Sync + 'static>(self, value: Box<T>) -> Result<&'static T, Box<T>> {
        let at = &raw const *value as usize;
        if !is_within(at) || HAS_OVERFLOWED.load(Ordering::Acquire) {
            return Err(value);
        }
        let header = ARENA_START.load(Ordering::Acquire) as *mut ArenaHeader;
        // SAFETY: the arena begins with room for a header, aligned as a page; `self` is the only
        // right to write it, and is used up.
        unsafe { header.write(ArenaHeader { kind: TypeId::of::<T>(), at }) };
        Ok(Box::leak(value))
    }
}

/// Returns in a child the value that its parent has published, if it is of this type. The parent
/// must signal the publication by other means.
pub fn published_value<T: Sync + 'static>() -> Option<&'static T> {
    let start = ARENA_START.load(Ordering::Acquire);
    if start == 0 {
        return None;
    }
    // SAFETY: mapped before the fork, and all zeroes or a header: an `at` of 0 means that nothing
    // was published, and then `kind` is not looked at.
    let at = unsafe { (&raw const (*(start as *const ArenaHeader)).at).read() };
    if at == 0 {
        return None;
    }
    // SAFETY: a header was written.
    let kind = unsafe { (&raw const (*(start as *const ArenaHeader)).kind).read() };
    // SAFETY: the parent is the same program, so equal types have equal layouts; the value was
    // leaked, so it is never changed or freed; the data that it points to is in the arena, at the
    // same address here, or in the program itself.
    (kind == TypeId::of::<T>() && is_within(at)).then(|| unsafe { &*(at as *const T) })
}

fn is_within(address: usize) -> bool {
    let start = ARENA_START.load(Ordering::Acquire);
    start != 0 && (start..start + ARENA_BYTES).contains(&address)
}

/// Takes the next free bytes; `None` if the arena is not being filled or is full.
fn take_bytes(layout: Layout) -> Option<*mut u8> {
    if !IS_FILLING.get() {
        return None;
    }
    let start = ARENA_START.load(Ordering::Acquire);
    let aligned = |used: usize| (start + used).next_multiple_of(layout.align()) - start;
    let end = |used: usize| aligned(used).checked_add(layout.size()).filter(|end| *end <= ARENA_BYTES);
    match USED_BYTES.fetch_update(Ordering::AcqRel, Ordering::Acquire, end) {
        Ok(used) => Some((start + aligned(used)) as *mut u8),
        Err(_) => {
            HAS_OVERFLOWED.store(true, Ordering::Release);
            None
        }
    }
}

/// Global allocator that uses the arena while it is filled, and the system's allocator otherwise. A
/// program that publishes values must name it as its global allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct ArenaAllocator;

// SAFETY: memory is either the system's, freed and resized by the system, or the arena's: taken
// once, aligned and large enough as asked, never freed. Nothing here allocates or unwinds.
unsafe impl GlobalAlloc for ArenaAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        take_bytes(layout).unwrap_or_else(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // The arena's memory is fresh from the kernel, hence zero.
        // SAFETY: the caller's promises are passed on.
        take_bytes(layout).unwrap_or_else(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if !is_within(memory as usize) {
            // SAFETY: not the arena's, so the system's.
            unsafe { System.dealloc(memory, layout) }
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !IS_FILLING.get() && !is_within(memory as usize) {
            // SAFETY: the system's, and the caller's promises are passed on.
            return unsafe { System.realloc(memory, layout, new_size) };
        }
        // SAFETY: `new_size` is not zero and fits, as the caller promises.
        let new = unsafe { self.alloc(Layout::from_size_align_unchecked(new_size, layout.align())) };
        if !new.is_null() {
            // SAFETY: both are valid for the smaller size, and new memory does not overlap the old;
            // then the old is given up.
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
    use crate::fd_passing::{receive_message, send_message, socket_pair};
    use crate::reap::{ProcessExit, wait_pidfd_end};
    use std::os::fd::AsFd;

    #[global_allocator]
    static ALLOCATOR: ArenaAllocator = ArenaAllocator;

    #[test]
    fn a_child_finds_objects_made_after_its_fork() {
        let arena = SharedArena::reserve_arena().unwrap();
        assert!(SharedArena::reserve_arena().is_err());
        assert!(published_value::<Vec<String>>().is_none());
        let (ours, theirs) = socket_pair().unwrap();
        let child = fork_with(0, 0, || {
            let _ = receive_message(theirs.as_fd(), &mut [0], true);
            let words = published_value::<Vec<String>>().map(|v| v.iter().map(String::len).sum::<usize>());
            let other = published_value::<Vec<u32>>().is_some();
            if other { -1 } else { words.unwrap_or(0) as i32 }
        })
        .unwrap();
        let outside = vec![String::from("grown")];
        let words = arena.fill_with(|| {
            let mut words = outside;
            words[0].push_str(" inside");
            words.extend((0..7).map(|n| format!("word {n}")));
            Box::new(words)
        });
        let words = arena.publish_value(words).unwrap();
        assert!(is_within(words[0].as_ptr() as usize) && is_within(words[7].as_ptr() as usize));
        send_message(ours.as_fd(), b"!", &[]).unwrap();
        let total: usize = words.iter().map(String::len).sum();
        assert_eq!(wait_pidfd_end(child.pidfd.as_fd()).unwrap(), Some(ProcessExit::Exited(total as i32)));
        assert!(!is_within(Box::new(1_u64).as_ref() as *const u64 as usize), "it still fills");
    }
}
