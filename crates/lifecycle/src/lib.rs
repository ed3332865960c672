//! Persistent sandboxes, from their creation to their removal. A request becomes a plan, the plan
//! becomes a sandbox of some kind, and a later process finds and removes abandoned ones.
//!
//! Not part of this crate: how isolation is set up ([`stockade_backend_api::SandboxProvider`]), which commands
//! may run (the engine), and questions.

#![forbid(unsafe_code)]

mod clone;
mod directories;
mod error;
mod excluded_files;
mod files;
mod operations;

pub use clone::{CloneCommands, clone_steps, diff_commands, head_command, repository_grants};
pub use error::LifecycleError;
pub use excluded_files::HiddenFiles;
pub use files::open_files;
pub use operations::{DestroyReason, Lifecycle, OpenSandbox, SandboxRequest, SweepResult};
