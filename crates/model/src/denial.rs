//! One denial during an attempt: a typed event from the layer that refused the operation (L2).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Grant, LimitKind, RawText};

/// The attempted operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DeniedOperation {
    /// Open for reading.
    Read,
    /// Open for writing, without creation.
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
    /// Send a secret, or its placeholder, to a host.
    Secret,
    /// Sign with a key of the user's ssh agent.
    Sign,
    /// Bind a socket.
    Bind,
    /// Create a socket of a refused family or type.
    Socket,
    /// Execute a program.
    Exec,
    /// Make a system call that no sandboxed program may make.
    SystemCall,
    /// Exceed a limit.
    Limit,
}

/// The layer that refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DenialLayer {
    /// The supervisor that handles seccomp notifications.
    Broker,
    /// The mounts: read-only, or hidden behind an empty mount.
    Mounts,
    /// Landlock.
    Landlock,
    /// The seccomp filter itself.
    Seccomp,
    /// The network namespace or the egress proxy.
    Network,
    /// The ssh agent of the run, which filters requests to the user's agent.
    Agent,
    /// A limit of memory, processes, time or space.
    Limits,
}

/// Resolution of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DenialResolution {
    /// The operation stays refused because of an approver or a rule.
    Refused,
    /// The grant was given to a later attempt, or to this attempt while the call was held.
    Granted,
    /// The operation was refused and recorded; no approver was asked.
    Recorded,
}

/// One denial. Equal denials of one attempt are counted, not repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Denial {
    /// The attempted operation.
    pub operation: DeniedOperation,
    /// The object of the operation: a resolved absolute path, `HOST:PORT`, a socket family or the name of a
    /// call.
    pub object: RawText,
    /// Process id as the host sees it, if known.
    pub pid: Option<u32>,
    /// The resolved executable of that process, if known.
    pub program: Option<RawText>,
    /// The layer that refused.
    pub layer: DenialLayer,
    /// The rule, in the words of a policy: `outside every writable root`.
    pub rule: String,
    /// The smallest grant that would have allowed the operation, if there is one.
    pub grant: Option<Grant>,
    /// Resolution of the denial.
    pub resolution: DenialResolution,
    /// Number of equal denials.
    pub count: u64,
}

impl Denial {
    /// Returns the denial of one operation of an unknown process.
    pub fn of_unknown_process(
        operation: DeniedOperation,
        object: RawText,
        layer: DenialLayer,
        rule: String,
        grant: Option<Grant>,
    ) -> Self {
        let resolution = DenialResolution::Recorded;
        Self { operation, object, pid: None, program: None, layer, rule, grant, resolution, count: 1 }
    }

    /// Returns the denial for a limit of `amount` that was exceeded, or nearly so. `value` is the amount
    /// that was reached. The grant is for twice as much, which is a sensible next try.
    pub fn of_limit(limit: LimitKind, amount: Option<u64>, value: &str) -> Self {
        let at_most = amount.map(|amount| format!("at most {}; ", limit.format_amount(amount))).unwrap_or_default();
        let grant = amount.map(|amount| Grant::Limit(limit, amount.saturating_mul(2)));
        let (object, rule) = (RawText::from(limit.name()), format!("{at_most}{value}"));
        Self::of_unknown_process(DeniedOperation::Limit, object, DenialLayer::Limits, rule, grant)
    }

    /// Returns whether the denial is about this limit.
    pub fn is_of_limit(&self, limit: LimitKind) -> bool {
        self.operation == DeniedOperation::Limit && self.object.as_bytes() == limit.name().as_bytes()
    }
}
