//! How many descriptors this process may open. The door takes some for each
//! connection, undo one for each changed path, and what a shell gives a process
//! suffices for a few hundred; the command gets what this process had.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit before it was raised.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit of this process as far as it may, and tells what it is; none where there is
/// none.
pub(crate) fn raise() -> Option<u64> {
    let before = *BEFORE.get_or_init(|| getrlimit(Resource::Nofile));
    // It may always be raised so far; else fewer connections fit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before });
    getrlimit(Resource::Nofile).current
}

/// The limit that a command is to have, where this process has another.
pub(crate) fn before() -> Option<Rlimit> {
    BEFORE.get().copied()
}
