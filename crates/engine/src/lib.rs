//! The engine processes a request from its text to its outcome.
//!
//! `core` is a state machine without I/O; `driver` does the I/O around it. `Backend` and `Approver`
//! are its ports.

#![forbid(unsafe_code)]

mod approver;
mod asker;
mod backend;
pub mod core;
mod driver;
pub mod exit;
mod held_rules;
mod identity;
mod interrupts;
pub mod keys;
pub mod mountinfo;
mod offers;
pub mod real;
pub mod remote;
mod reviewer;
mod sandbox;
pub mod seams;
mod surroundings;

pub use approver::{Approver, HeldCalls, Nobody, Waiting};
pub use backend::{
    Attempt, AttemptEnd, AttemptEvent, Backend, CommandEnd, Events, HeldAnswer, HoldId, Io, StartError, WeakEvents,
};
pub use driver::Engine;
pub use exit::exit_code;
pub use identity::{files_named, workspace_identity};
pub use interrupts::{Interrupter, Interrupts, interrupts};
pub use reviewer::{ReviewReply, ReviewRequest, Reviewer};
pub use sandbox::{
    Capabilities, INSIDE_HOME, INSIDE_WORKSPACE, Sandbox, SandboxError, SandboxEvent, SandboxEvents, SandboxPlan,
    SandboxUsage, Sandboxes, System, Tree,
};
pub use surroundings::repository_around;
