//! The engine processes a request from its text to its outcome.
//!
//! `core` is a state machine without I/O; `driver` does the I/O around it. Its ports `Backend` and
//! `Approver` are in the crate `backend-api`.

#![forbid(unsafe_code)]

mod asker;
pub mod core;
mod driver;
pub mod exit;
mod held_rules;
mod identity;
mod interrupts;
pub mod keys;
mod offers;
pub mod real;
pub mod seams;
mod surroundings;

pub use driver::RequestEngine;
pub use exit::exit_code;
pub use interrupts::{InterruptReceiver, InterruptSender, interrupt_channel};
pub use surroundings::repository_around;
