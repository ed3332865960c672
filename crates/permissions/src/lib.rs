//! The permissions of an attempt: decides which paths it may write, which programs it may run and
//! which targets it may reach, and finds the paths that lead to guarded names.
//!
//! Must not depend on how a call is trapped, how a sandbox is built, or who approves a grant.

#![forbid(unsafe_code)]

mod agents;
pub mod guards;
pub mod powers;
pub mod programs;
mod protected;
pub mod reachable_targets;

pub use agents::{AGENT_PATH, AgentSockets};
pub use protected::ProtectedNames;
