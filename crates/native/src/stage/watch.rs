//! What a commit tells while it works, and where a test may break it off.

use stockade_sys::Errno;

/// Told by a commit as it goes on.
pub trait Watch {
    /// So many of so many steps are done.
    fn progress(&mut self, _done: usize, _total: usize) {}

    /// A point was reached at which nothing later has been done. An error is
    /// taken as if the next system call had failed with it: this is where tests
    /// fill the disk, and where they kill the process.
    ///
    /// # Errors
    /// Whatever shall have happened.
    fn reached(&mut self, _point: Point) -> Result<(), Errno> {
        Ok(())
    }
}

/// Somewhere in a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The depot was made.
    Depot,
    /// One object was made ready in it.
    Built,
    /// Everything is ready and durable.
    Ready,
    /// The journal is written: the commit is decided.
    Decided,
    /// A step was carried out.
    Step,
    /// The old object is out of the way and the new one not yet there, on a
    /// filesystem that cannot exchange names.
    Aside,
    /// A step was taken back.
    Back,
    /// All steps are done and durable.
    Done,
    /// The depot is gone.
    Emptied,
    /// The paths are noted as done with.
    Settled,
}

/// Nobody looks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watch for Unwatched {}
