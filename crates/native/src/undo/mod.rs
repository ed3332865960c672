//! Undo: what a run changes in its workspace is kept first, so that the workspace can be
//! put back as it was before the run.
//!
//! Each run has a directory here:
//!
//! ```text
//! ID/lock       held by the run, and by the command that restores
//! ID/run        which run it is, and of which workspace
//! ID/journal    what was there before, one JSON object a line, only ever appended to
//! ID/objects/N  the content of a file as it was (its pre-image)
//! ```
//!
//! - [`Recorder`] is told of every change before it is made;
//! - [`UndoStore`] is the place of all runs, [`UndoRun`] is one of them;
//! - [`UndoRun::compare`] tells what the run changed, [`UndoRun::restore`] puts it back.
//!
//! The journal is keyed by path, and the first line about a path counts. A line is complete
//! before the call that it is about is carried out, so a process that is killed leaves
//! nothing unrecorded. What a run makes needs no pre-image; only the topmost new name is
//! recorded.
//!
//! Whether a path was changed after the run is told by the kernel's change time (`ctime`),
//! which no program can set, and by content.
//!
//! Must not know how a call is trapped or decided, who asks, or what a person is shown.

mod compare;
mod guard;
mod guarded;
mod journal;
mod keep;
mod newer;
mod put;
mod recorder;
mod reopen;
mod restore;
mod settle;
mod spot;
mod store;
#[cfg(test)]
mod tests;

pub use compare::{Comparison, Conflict, Effect, UndoChange};
pub use recorder::{Recorder, Unkept};
pub use restore::{Restored, Watched};
pub use store::{NewUndoRun, UndoError, UndoMeta, UndoRun, UndoStore};
