//! The optional reviewer: asks a model, over HTTP, for its opinion on a question before the user is
//! asked. Off unless the user's own configuration names an endpoint.
//!
//! Each question is sent alone: the command, its working directory and the refusals, without
//! secrets and without a conversation. The answer can only raise caution. A request is limited,
//! budgeted and recorded in the audit log before it is sent.
//!
//! This crate must not know who answers the question, how an opinion is used, nor any policy.

#![forbid(unsafe_code)]

mod answer;
mod budget;
mod cut;
mod key;
mod prompt;
mod redact;
mod reviewer;
mod wire;

pub use key::{EndpointKey, KeyError, KeySource};
pub use redact::SecretRedactor;
pub use reviewer::{ModelReviewer, ReviewOptions};
pub use stockade_exchange::CertificateAuthorities;
pub use wire::ModelApi;
