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

pub use account::{TestUser, UserAccount};
pub use engine::{ContainerEngine, EngineKind};
pub use extent::{few_or_all, plays_all};
pub use host::{HostState, kill_descendants, process_alive, processes_at, wait_for_descendants};
pub use image::{make_image, small_image};
pub use lab::{CaseNames, TestLab};
pub use listeners::{ClientCounter, TestListeners};
pub use program::{copy_program, write_program};
pub use run::{
    ProgramEnd, ProgramOutput, RunningProgram, SLOWNESS_VARIABLE, StdinSource, TestCommand, run_as, slowness_factor,
};
pub use snapshot::{SnapshotEntry, SnapshotEntryKind, TreeChange, TreeSnapshot};
