//! What is remembered from one command to the next: what the shell keeps, and what
//! the script did so far. Holds no opinion on it.

use std::collections::{BTreeMap, BTreeSet};

use crate::words::Value;

/// What the shell carries from one command to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    /// `None` where it cannot be known.
    pub cwd: Option<Vec<u8>>,
    /// Times the directory was changed.
    pub moves: usize,
    pub variables: BTreeMap<Vec<u8>, Value>,
    pub functions: BTreeSet<Vec<u8>>,
}

/// What the whole script did so far, whatever the order of shells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Something was fetched and kept.
    pub fetched: bool,
    /// A secret was read.
    pub secret: bool,
    /// Something was sent to, or could be sent to, another host.
    pub sends: bool,
    /// A descriptor is connected to another host.
    pub socket: bool,
    /// A shell reads commands that are not in the text.
    pub shell_reads: bool,
    /// Another interpreter reads a program that is not in the text.
    pub interpreter_reads: bool,
    /// The name of a program is not in the text.
    pub dynamic_program: bool,
    /// Files that something was decoded into.
    pub decoded_files: Vec<Vec<u8>>,
    /// Files, and text of the script that was put into them.
    pub written_texts: Vec<(Vec<u8>, Vec<u8>)>,
    /// Paths at which nothing may be, so that what git is given is a branch.
    pub absent: Vec<Vec<u8>>,
}
