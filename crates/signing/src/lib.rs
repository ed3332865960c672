//! The ssh agent of a run. It answers the agent protocol (draft-miller-ssh-agent) in the
//! run's place of the person's agent: granted keys are listed, and sign for what was granted
//! alone, which is git's signatures or the authentication to one ssh server. Everything else is
//! refused here and never reaches the person's agent.
//!
//! Absent on purpose: sandboxes, policy, questions, the audit log. What happened is told to a
//! sink.
//!
//! | File | For |
//! |---|---|
//! | `wire` | strings and numbers as ssh writes them |
//! | `statement` | what is to be signed: a signature of git, an authentication |
//! | `host_key` | fingerprints of keys, and signatures of servers |
//! | `known_hosts` | which key is whose |
//! | `filter` | the decision behind each message, pure |
//! | `upstream` | the person's agent |
//! | `server` | the sockets and threads of the run's agent |
//! | `git_settings` | which key the person has named for signing |

#![forbid(unsafe_code)]

mod filter;
mod git_settings;
mod host_key;
mod known_hosts;
mod server;
mod statement;
mod upstream;
mod wire;

pub use filter::{Connection, Filter, Keys, Refused, Rules, Signed};
pub use git_settings::signing_key;
pub use host_key::{fingerprint, public_key_text};
pub use known_hosts::KnownHosts;
pub use server::{AgentHandle, AgentListener, SigningEvent};
pub use upstream::{AgentError, Identity, PersonsAgent};
