//! Undo: records the original objects before a run changes them in its workspace, so that the
//! workspace can be restored.
//!
//! Each run has a directory here:
//!
//! ```text
//! ID/lock       lock file, held by the run and by the command that restores
//! ID/run        description of the run and its workspace
//! ID/journal    the original objects, one JSON object a line, append-only
//! ID/objects/N  the original content of a file (its pre-image)
//! ```
//!
//! - [`UndoRecorder`] must be called before every change;
//! - [`UndoStore`] is the directory of all runs, [`UndoRun`] is one of them;
//! - [`UndoRun::compare_paths`] lists the changes of the run, [`UndoRun::restore_paths`] reverts them.
//!
//! The journal is keyed by path, and the first line about a path is valid. A line is complete
//! before its call is carried out, so a killed process leaves no unrecorded change. A new object
//! needs no pre-image; only the topmost new name is recorded.
//!
//! The kernel's change time (`ctime`), which no program can set, and the content show whether a
//! path was changed after the run.
//!
//! Must not depend on how a call is trapped or decided, who the caller is, or how changes are
//! displayed.

mod compare;
mod content_copies;
mod end_record;
mod guard;
mod guarded;
mod held_name;
mod journal;
mod newer;
mod paths;
mod put_back;
mod recorder;
mod reopen;
mod restore;
mod store;
#[cfg(test)]
mod tests;

pub use compare::{UndoChange, UndoComparison, UndoConflict, UndoEffect};
pub use recorder::{UndoRecordError, UndoRecorder};
pub use restore::{RestoreCallback, RestoreResult};
pub use store::{NewUndoRun, UndoError, UndoMeta, UndoRun, UndoStore};
