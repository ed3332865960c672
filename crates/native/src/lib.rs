//! The Linux backend: builds the sandbox, supervises it, and carries out trapped system calls on
//! behalf of the command.

#![forbid(unsafe_code)]

pub mod broker;
pub mod caches;
pub mod doctor;

mod assembly;
mod attempt;
mod backend;
mod capture;
mod egress;
mod errors;
mod evidence;
mod host_backend;
mod locks;
mod own_trees;
mod run_monitor;
mod sandbox;
mod session;
mod signing;
mod staging;
mod streams;
mod undoing;

pub use backend::{NativeBackend, NativeOptions};
pub use broker::served_ports;
pub use egress::proxy_variables;
pub use host_backend::{HostBackend, prepare_enclosed_attempt};
pub use sandbox::{NativeSandboxes, SupervisorHooks, run_sandbox_supervisor};
pub use session::{NativeSession, SessionError};
pub use signing::SigningUser;
pub use stockade_supervisor::own_umask;
/// Global allocator for a program with a [`NativeSession`] that prepares sandboxes in advance. The plan
/// of each is computed in memory that both processes share.
pub use stockade_sys::shared_arena::ArenaAllocator;
