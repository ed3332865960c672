//! Kernel interface of this project: the only crate with `unsafe`.
//!
//! Thin, one file per facility. Contains no policy: the caller decides which calls are refused,
//! which mounts are made, and which process has which rights. Functions that run in a child between
//! clone and exec take prepared data and make only system calls: no allocation, no locks.

pub mod actor;
pub mod bpf;
mod call;
pub mod calls;
pub mod caps;
pub mod clone;
pub mod descriptor_limit;
pub mod descriptors;
pub mod exec;
pub mod fd_passing;
pub mod fork_signals;
pub mod keyring;
pub mod landlock;
pub mod limits;
pub mod memory;
pub mod mount;
pub mod net;
pub mod notify;
pub mod pidfd;
pub mod ready;
pub mod reap;
pub mod resolve;
pub mod seccomp;
pub mod session;
pub mod shared_arena;
pub mod signals;
pub mod socket;
pub mod time_marks;

pub use rustix::io::Errno;
