//! The optional reviewer: asks a model, over HTTP, what it makes of a question
//! that a person is about to be asked. Off unless the person's own configuration
//! names an endpoint.
//!
//! Each question is asked alone: the command, where it would run and what was
//! refused, with secrets left out; no conversation. The answer can only raise
//! caution. What is sent is bounded, budgeted and on record before it leaves.
//!
//! It must not know who is asked afterwards, what an opinion leads to, nor any
//! policy.

#![forbid(unsafe_code)]

mod answer;
mod budget;
mod cut;
mod key;
mod prompt;
mod redact;
mod reviewer;
mod wire;

pub use key::{Key, KeyError, KeySource};
pub use redact::Redactor;
pub use reviewer::{ModelReviewer, Terms};
pub use stockade_exchange::Authorities;
pub use wire::Api;
