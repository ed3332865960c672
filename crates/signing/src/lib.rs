//! The ssh agent of a run. It answers the agent protocol (draft-miller-ssh-agent) in place of the
//! user's agent. It lists granted keys, and signs only granted data: git's signatures or the
//! authentication to one ssh server. It refuses everything else, which never reaches the user's
//! agent.
//!
//! Not part of this crate: sandboxes, policy, questions, the audit log. Events are passed to a
//! callback.
//!
//! | File | For |
//! |---|---|
//! | `wire` | strings and numbers in the format of ssh |
//! | `statement` | data to sign: a signature of git, an authentication |
//! | `host_key` | fingerprints of keys, and signatures of servers |
//! | `known_hosts` | keys of servers |
//! | `filter` | the decision on each message, pure |
//! | `upstream` | the user's agent |
//! | `server` | the sockets and threads of the run's agent |
//! | `git_settings` | the user's signing key in git's settings |

#![forbid(unsafe_code)]

mod filter;
mod git_settings;
mod host_key;
mod known_hosts;
mod server;
mod statement;
mod upstream;
mod wire;

pub use filter::{AgentConnection, AgentFilter, AgentKeys, AgentSignature, SigningRefusal, SigningRules};
pub use git_settings::signing_key;
pub use host_key::{compute_fingerprint, public_key_text};
pub use known_hosts::KnownHosts;
pub use server::{AgentHandle, AgentListener, SigningEvent};
pub use upstream::{AgentError, AgentIdentity, UserSshAgent};
