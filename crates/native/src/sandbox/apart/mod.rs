//! Sandboxes that are each kept by a process of its own, the **keeper**: so they go on
//! without whoever made them, and are found again.
//!
//! A keeper is a program of the caller's choice that calls [`keep_sandbox`]: started
//! anew, so that it has nothing of its maker's memory, and in a session of its own, so
//! that no key of a terminal reaches it. It listens in the sandbox's directory, which
//! is private. Whoever uses the sandbox says there what it wants ([`wire`]); a command
//! is an attempt that is in another process ([`crate::remote`]).
//!
//! Its end, however it comes, is the sandbox's: the init ends with it.

mod client;
mod process;
mod watchers;
mod wire;

pub(super) use client::Apart;
pub use process::{Keep, keep_sandbox};
