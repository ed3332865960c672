//! Sandboxes that last, from their first directory to their last: what is asked
//! for becomes a plan, the plan becomes a sandbox of some kind, and what is left of
//! it is found and removed by whoever comes next.
//!
//! Absent on purpose: how walls are made ([`stockade_engine::Sandboxes`]), what may
//! be run in them (the engine), who is asked.

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
