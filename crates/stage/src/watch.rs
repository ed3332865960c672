//! Progress reports of a commit, and points at which a test can interrupt it.

use stockade_sys::Errno;

/// Receiver of the progress of a commit.
pub trait CommitObserver {
    /// Reports that `_done` of `_total` steps are done.
    fn on_progress(&mut self, _done: usize, _total: usize) {}

    /// Reports a point at which no later step has begun. An error is handled as if the next system
    /// call had failed with it. Tests fill the disk or kill the process here.
    /// # Errors
    /// The error to simulate.
    fn on_point(&mut self, _point: CommitPoint) -> Result<(), Errno> {
        Ok(())
    }
}

/// A point in a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitPoint {
    /// The commit area was made.
    CommitArea,
    /// An object was prepared in it.
    Built,
    /// All objects are prepared and durable.
    Ready,
    /// The journal is written: the commit is decided.
    Decided,
    /// A step was carried out.
    Step,
    /// The old object was moved away and the new one is not yet in place, on a filesystem that
    /// cannot exchange names.
    Backup,
    /// A step was undone.
    Back,
    /// All steps are done and durable.
    Done,
    /// The commit area was removed.
    Emptied,
    /// The paths were recorded as settled.
    Settled,
}

/// Receiver that ignores all reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct SilentObserver;

impl CommitObserver for SilentObserver {}
