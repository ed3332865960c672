//! Sandboxes that are each kept by a supervisor process, the **keeper**. So they survive their
//! creator and can be found again.
//!
//! A keeper is a program of the caller's choice that calls [`run_sandbox_supervisor`]. The program is
//! executed, so that it has none of its creator's memory. It has a session of its own, so that no
//! terminal key reaches it. The keeper listens in the sandbox's directory, which is private.
//! Clients of the sandbox send it requests ([`wire`]). A command is an attempt in another process
//! ([`crate::remote`]).
//!
//! The sandbox ends with its keeper, for any reason, because its init exits too.

mod client;
mod event_clients;
mod process;
mod wire;

pub(super) use client::SupervisorProgram;
pub use process::{SupervisorHooks, run_sandbox_supervisor};
