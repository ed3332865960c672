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
mod errors;
mod evidence;
mod host;
mod keeper;
mod locks;
mod own_trees;
mod remote;
mod sandbox;
mod session;
mod signing;
mod staging;
mod streams;
mod undoing;
mod way_out;

pub use backend::NativeBackend;
pub use broker::served_ports;
pub use host::{EnclosedBackend, HostBackend};
pub use remote::own_umask;
pub use sandbox::{NativeSandboxes, SupervisorHooks, keep_sandbox};
pub use session::{NativeSession, SessionError};
pub use signing::SigningUser;
/// Global allocator for a program with a [`NativeSession`] that prepares sandboxes in advance. The plan
/// of each is computed in memory that both processes share.
pub use stockade_sys::arena::ArenaAllocator;
pub use way_out::proxy_variables;
