//! The engine processes a request from its text to its outcome.
//!
//! `core` is a state machine without I/O; `driver` does the I/O around it. Its ports `Backend` and
//! `Approver` are in the crate `backend-api`.

#![forbid(unsafe_code)]

pub mod adapters;
mod approver_thread;
pub mod core;
mod driver;
mod environment_checks;
pub mod exit;
mod held_rules;
mod identity;
mod interrupts;
pub mod keys;
mod offers;
pub mod ports;

pub use driver::RequestEngine;
pub use environment_checks::repository_around;
pub use exit::exit_code;
pub use interrupts::{InterruptReceiver, InterruptSender, interrupt_channel};
