//! Escape harness: a scratch environment that an attempt may damage, a runner with hard time-outs,
//! and checks from outside of the effects.
//!
//! The crate must not depend on Stockade: it links no other crate of the workspace, so that a
//! defect there cannot hide an escape. Code for a single attempt is with the attempts, in
//! `tests/escape`.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "starting programs without a sandbox is what controls are")]

mod account;
mod engine;
mod extent;
mod host;
mod image;
mod lab;
mod listeners;
mod program;
mod run;
mod snapshot;
pub mod suite;

pub use account::{UserAccount, TestUser};
pub use engine::{ContainerEngine, EngineKind};
pub use extent::{few_or_all, plays_all};
pub use host::{HostState, wait_for_descendants, kill_descendants, process_alive, processes_at};
pub use image::{make_image, small_image};
pub use lab::{TestLab, CaseNames};
pub use listeners::{ClientCounter, TestListeners};
pub use program::{copy_program, write_program};
pub use run::{TestCommand, ProgramEnd, ProgramOutput, RunningProgram, SLOWNESS_VARIABLE, StdinSource, run_as, slowness_factor};
pub use snapshot::{TreeChange, SnapshotEntry, SnapshotEntryKind, TreeSnapshot};
