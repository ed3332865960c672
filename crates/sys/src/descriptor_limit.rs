//! The descriptor limit of this process. The egress proxy needs some descriptors for each
//! connection, and undo needs one for each changed path. A shell's default limit suffices for a few
//! hundred. The command gets the limit that this process had at first.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit before it was raised.
static ORIGINAL_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit of this process as far as possible and returns it; `None` if there is no limit.
pub fn raise_limit() -> Option<u64> {
    let before = *ORIGINAL_LIMIT.get_or_init(|| getrlimit(Resource::Nofile));
    // A process may always raise it to the hard limit. On a failure fewer connections fit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before });
    getrlimit(Resource::Nofile).current
}

/// Returns the limit for a command, if this process has changed its own.
pub fn original_limit() -> Option<Rlimit> {
    ORIGINAL_LIMIT.get().copied()
}
