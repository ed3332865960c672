//! Sandboxes that are each kept by a supervisor process. So they survive their creator and can be
//! found again.
//!
//! The supervisor is a program of the caller's choice that calls [`run_sandbox_supervisor`]. The
//! program is executed, so that it has none of its creator's memory. It listens in the sandbox's
//! directory, which is private. A command is an attempt in another process
//! ([`stockade_backend_api::remote`]).
//!
//! The sandbox ends with its supervisor, for any reason, because its init exits too.

mod client;
mod event_clients;
mod process;

pub(super) use client::SupervisorProgram;
pub use process::{SupervisorHooks, run_sandbox_supervisor};
