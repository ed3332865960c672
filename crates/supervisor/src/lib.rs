//! The process in front of a run, as far as all kinds of runs share it: how it starts, how clients
//! talk to it, and how it keeps prepared workers.
//!
//! This crate must not know rules, the audit log, the store, how a sandbox is built, or how text is
//! displayed.

#![forbid(unsafe_code)]

mod attached_clients;
mod attempt;
mod channel;
mod daemon;
mod listener;
mod message;
mod pool;
mod run_input;
mod standard_streams;
mod supervisor;

pub use attached_clients::{AttachedApprover, ClientRegistry, ClientSlot};
pub use attempt::serve_remote_attempt;
pub use channel::{Channel, MAX_MESSAGE_BYTES, REQUEST_TIMEOUT};
pub use daemon::{exec_supervisor, fork_supervisor, leave_creator};
pub use listener::{Listener, connect_in};
pub use message::{
    ClientMessage, ExecRequest, InputKind, InputPiece, InputResult, MAX_CLIENT_MESSAGE_BYTES, MAX_INPUT_BYTES,
    MAX_RUN_MESSAGE_BYTES, OutcomeDestination, Refusal, Reply, Request, RunMessage, StartReport, TerminalSize,
};
pub use pool::{PoolEvent, PoolLimits, WorkerNote, WorkerNotes, WorkerPool};
pub use run_input::RunInput;
pub use standard_streams::{open_dev_null, own_umask, release_streams, take_over_streams};
pub use supervisor::{EndSignal, Service, Supervisor};
