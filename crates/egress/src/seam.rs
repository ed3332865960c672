//! What the door needs of a sandbox, and of whoever decides.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use stockade_model::{ConnectionRecord, Denial, RawText, Target};

/// The network namespace that the door stands in.
pub trait Namespace: Send + Sync {
    /// A TCP socket of the namespace that listens on this address, which need
    /// not be anybody's.
    ///
    /// # Errors
    /// EADDRINUSE where a program inside listens there; else what the kernel
    /// says.
    fn listen(&self, at: SocketAddr) -> io::Result<OwnedFd>;

    /// A TCP socket of the namespace, to connect to what listens inside.
    ///
    /// # Errors
    /// What the kernel says.
    fn socket(&self, like: SocketAddr) -> io::Result<OwnedFd>;
}

/// Whose connection it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// Process id as the host sees it, where known.
    pub pid: Option<u32>,
    /// The resolved executable of that process, where known.
    pub program: Option<RawText>,
}

/// What became of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It may be reached.
    Allowed {
        /// The rule or grant that says so.
        rule: String,
    },
    /// It may not.
    Refused {
        /// Why, in words of a policy.
        rule: String,
    },
}

/// Whoever decides what may be reached.
pub trait Judge: Send + Sync {
    /// Answers once, perhaps after a person's thought; at the end of the run
    /// `answer` may be dropped instead.
    fn judge(&self, target: &Target, who: &Who, answer: Box<dyn FnOnce(Judgement) + Send>);
}

/// What the door has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DoorEvent {
    /// A connection is over.
    Connection(Box<ConnectionRecord>),
    /// The door itself refused something.
    Denied(Box<Denial>),
}
