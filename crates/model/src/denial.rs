//! One refusal during an attempt: a typed event from the layer that refused (L2).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Grant, Limit, RawText};

/// What was attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Open for reading.
    Read,
    /// Open for writing, no creation.
    Write,
    /// Create a file.
    Create,
    /// Create a directory.
    Mkdir,
    /// Create a fifo, socket or device node.
    Mknod,
    /// Remove a file or directory.
    Remove,
    /// Rename.
    Rename,
    /// Make a hard link.
    Link,
    /// Make a symbolic link.
    Symlink,
    /// Change a file's length by name.
    Truncate,
    /// Change mode, owner, times, attributes or flags.
    Metadata,
    /// Connect a socket.
    Connect,
    /// Take a secret, or what stands for one, to a host.
    Secret,
    /// Have a key of the person's ssh agent sign.
    Sign,
    /// Bind a socket.
    Bind,
    /// Create a socket of a refused family or kind.
    Socket,
    /// Execute a program.
    Exec,
    /// A system call that no sandboxed program may make.
    SystemCall,
    /// A limit was reached.
    Limit,
}

/// Who refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// The supervisor that answers trapped system calls.
    Broker,
    /// The mounts: read-only, or hidden behind an empty one.
    Mounts,
    /// Landlock.
    Landlock,
    /// The seccomp filter itself.
    Seccomp,
    /// The network namespace or the door.
    Network,
    /// The ssh agent of the run, in front of the person's.
    Agent,
    /// A limit of memory, processes, time or space.
    Limits,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Resolution {
    /// It stays refused: somebody or a rule said no.
    Refused,
    /// A later attempt, or this one in place, was given the grant.
    Granted,
    /// It was refused and noted; nobody was asked.
    Recorded,
}

/// One refusal. Equal refusals of one attempt are counted, not repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Denial {
    /// What was attempted.
    pub operation: Operation,
    /// On what: a resolved absolute path, `HOST:PORT`, a family, a call's name.
    pub object: RawText,
    /// Process id as the host sees it, where known.
    pub pid: Option<u32>,
    /// The resolved executable of that process, where known.
    pub program: Option<RawText>,
    /// Who refused.
    pub layer: Layer,
    /// The rule, in words a policy could hold: `outside every writable root`.
    pub rule: String,
    /// The smallest grant that would have let it pass, if there is one.
    pub grant: Option<Grant>,
    /// What became of it.
    pub resolution: Resolution,
    /// How often.
    pub count: u64,
}

impl Denial {
    /// A limit of `amount` that was passed, or nearly so: `value` says by what. The
    /// grant is for twice as much, which is what one would try next.
    pub fn of_limit(limit: Limit, amount: Option<u64>, value: &str) -> Self {
        let at_most = amount.map(|amount| format!("at most {}; ", limit.text(amount))).unwrap_or_default();
        Self {
            operation: Operation::Limit,
            object: RawText::from(limit.name()),
            pid: None,
            program: None,
            layer: Layer::Limits,
            rule: format!("{at_most}{value}"),
            grant: amount.map(|amount| Grant::Limit(limit, amount.saturating_mul(2))),
            resolution: Resolution::Recorded,
            count: 1,
        }
    }

    /// Whether it is about this limit.
    pub fn is_of_limit(&self, limit: Limit) -> bool {
        self.operation == Operation::Limit && self.object.as_bytes() == limit.name().as_bytes()
    }
}
