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

pub use approver::{Approver, HeldCalls, AbsentApprover, PendingQuestion};
pub use backend::{
    Attempt, AttemptEnd, AttemptEvent, Backend, CommandEnd, AttemptEventSender, HeldAnswer, HoldId, StdioMode, StartError, WeakEventSender,
};
pub use driver::RequestEngine;
pub use exit::exit_code;
pub use identity::{files_named, workspace_identity};
pub use interrupts::{InterruptSender, InterruptReceiver, interrupt_channel};
pub use reviewer::{ReviewReply, ReviewRequest, Reviewer};
pub use sandbox::{
    ProviderCapabilities, INSIDE_HOME, INSIDE_WORKSPACE, Sandbox, SandboxError, SandboxEvent, SandboxEventSender, SandboxPlan,
    SandboxUsage, SandboxProvider, GuestSystem, SandboxTree,
};
pub use surroundings::repository_around;
