//! Traits between the engine and its backends, approvers and reviewers, and the types that they
//! exchange.
//!
//! A crate that implements one of these traits needs neither the engine nor the policy, the
//! classifier, the audit log and the store.

#![forbid(unsafe_code)]

mod approver;
mod backend;
mod clock;
pub mod identity;
pub mod remote;
mod reviewer;
mod sandbox;
mod served_mounts;

pub use approver::{AbsentApprover, Approver, HeldCalls, PendingQuestion};
pub use backend::{
    Attempt, AttemptEnd, AttemptEvent, AttemptEventSender, Backend, CommandEnd, HeldAnswer, HoldId, StartError,
    StdioMode, WeakEventSender,
};
pub use clock::{Clock, SystemClock};
pub use reviewer::{ReviewReply, ReviewRequest, Reviewer};
pub use sandbox::{
    GuestSystem, INSIDE_HOME, INSIDE_WORKSPACE, ProviderCapabilities, Sandbox, SandboxError, SandboxEvent,
    SandboxEventSender, SandboxPlan, SandboxProvider, SandboxTree,
};
pub use served_mounts::ServedMounts;
