//! Persistent sandboxes, from their creation to their removal. A request becomes a plan, the plan
//! becomes a sandbox of some kind, and a later process finds and removes abandoned ones.
//!
//! Not part of this crate: how isolation is set up ([`stockade_engine::Sandboxes`]), which commands
//! may run (the engine), and questions.

#![forbid(unsafe_code)]

mod clone;
mod error;
mod files;
mod keeping;
mod places;
mod withheld;

pub use clone::{Clone, diff, head, repository_grants, steps};
pub use error::LifecycleError;
pub use files::files;
pub use keeping::{Lifecycle, Opened, Swept, Wanted, Why};
pub use withheld::HiddenFiles;
