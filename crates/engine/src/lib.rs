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

pub use approver::{AbsentApprover, Approver, HeldCalls, PendingQuestion};
pub use backend::{
    Attempt, AttemptEnd, AttemptEvent, AttemptEventSender, Backend, CommandEnd, HeldAnswer, HoldId, StartError,
    StdioMode, WeakEventSender,
};
pub use driver::RequestEngine;
pub use exit::exit_code;
pub use identity::{files_named, workspace_identity};
pub use interrupts::{InterruptReceiver, InterruptSender, interrupt_channel};
pub use reviewer::{ReviewReply, ReviewRequest, Reviewer};
pub use sandbox::{
    GuestSystem, INSIDE_HOME, INSIDE_WORKSPACE, ProviderCapabilities, Sandbox, SandboxError, SandboxEvent,
    SandboxEventSender, SandboxPlan, SandboxProvider, SandboxTree, SandboxUsage,
};
pub use surroundings::repository_around;
