//! The stage: what a run wrote in its workspace, kept beside it until somebody
//! has looked. Pure file work on the upper directory of an overlay: it must not
//! know how the overlay is mounted, who asks, or what a person is shown.
//!
//! - [`Stages`] is the place of all stages, [`Stage`] one of them;
//! - [`Stage::changes`] is what it would change, [`text::difference`] shows one;
//! - [`Stage::conflicts`] is what the workspace changed meanwhile, too;
//! - [`Stage::commit`], [`Stage::discard`] and [`recover_all`] end it.
//!
//! Everything is done beneath held directories, and no link is followed: both
//! trees may have been written by whoever the sandbox holds.

mod apply;
mod aside;
mod build;
mod change;
mod commit;
mod conflict;
mod depot;
mod error;
mod journal;
mod place;
mod plan;
mod precaution;
mod select;
pub mod text;
mod watch;

pub use aside::Aside;
pub use change::{Change, Changes, Facts, How};
pub use commit::{Committed, End, Recovered, Wanted, recover_all};
pub use conflict::{Conflict, Meanwhile, Witness};
pub use error::{CommitError, PathError, StageError};
pub use place::{Listed, NewStage, Stage, StageMeta, Stages};
pub use precaution::Precaution;
pub use select::{Held, Why};
pub use stockade_files::object::{Kind, Time};
pub use watch::{Point, Unwatched, Watch};
