//! The kernel, as this project needs it: the only crate with `unsafe`.
//!
//! Thin, one file per facility. Nothing here decides anything: which calls are
//! refused, what is mounted where, who may do what is the caller's matter.
//! Functions that run in a child between clone and exec take prepared data and
//! make system calls, nothing else: no allocation, no locks.

pub mod actor;
pub mod arena;
pub mod bpf;
mod call;
pub mod calls;
pub mod caps;
pub mod clone;
pub mod descriptors;
pub mod exec;
pub mod fork_signals;
pub mod framed;
pub mod keyring;
pub mod landlock;
pub mod limits;
pub mod marks;
pub mod memory;
pub mod mount;
pub mod net;
pub mod notify;
pub mod passing;
pub mod pidfd;
pub mod ready;
pub mod reap;
pub mod resolve;
pub mod seccomp;
pub mod session;
pub mod signals;
pub mod socket;

pub use rustix::io::Errno;
