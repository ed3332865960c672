//! Staged writes, and the undo of writes ([`undo`]).
//!
//! The stage: the writes of a run to its workspace, kept beside the workspace until a user reviews
//! them. Works only on files, in the upper directory of an overlay. Must not depend on how the
//! overlay is mounted, who the caller is, or how changes are displayed.
//!
//! - [`StageDirectory`] is the directory of all stages, [`OpenStage`] one of them;
//! - [`OpenStage::read_changes`] lists the changes, [`text::diff_change`] shows one of them;
//! - [`OpenStage::find_conflicts`] lists the paths that the workspace has changed meanwhile, too;
//! - [`OpenStage::commit_changes`], [`OpenStage::discard_changes`] and [`recover_all`] end a stage.
//!
//! All work is done beneath open directories, and no symbolic link is followed, because the
//! sandboxed process may have written both trees.

#![forbid(unsafe_code)]

mod apply;
mod backup_tree;
mod build;
mod change;
mod commit;
mod commit_area;
mod conflict;
mod digest;
mod error;
mod journal;
mod plan;
mod pre_write_hook;
mod select;
mod stage_directory;
mod state_files;
pub mod text;
pub mod undo;
mod watch;

pub use backup_tree::BackupTree;
pub use change::{ChangeKind, ObjectFacts, StageChange, StageChanges};
pub use commit::{CommitRequest, CommitResult, RecoveryEnd, RecoveryResult, recover_all};
pub use conflict::{BaselineRecorder, StageConflict, WorkspaceChange};
pub use error::{PathError, StageCommitError, StageError};
pub use pre_write_hook::PreWriteHook;
pub use select::{HeldChange, HoldReason};
pub use stage_directory::{NewStage, OpenStage, StageDirectory, StageListEntry, StageMeta};
pub use stockade_files::object::{FileTime, ObjectKind};
pub use watch::{CommitObserver, CommitPoint, SilentObserver};
