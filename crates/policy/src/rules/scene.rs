//! What a rule is held against: one command line, tool call, file change or
//! connection, and what is known around it.
//!
//! Must not know rules. Everything here is given by the caller: this crate reads
//! no clock and asks nobody who the user is.

use std::path::Path;

use stockade_model::{Assessment, Host, SessionId};

use crate::file::FileOperation;
use crate::words::Words;

/// What is known around a request that the request does not say. Where
/// something is not known, a rule that asks for it is taken to apply if it
/// raises caution, and not to apply if it allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// Name of the user it runs as.
    pub user: Option<String>,
    /// Name of the tool that the request came through; none where it came
    /// through none.
    pub tool: Option<String>,
    /// Now, in milliseconds since the epoch.
    pub time_ms: Option<u64>,
    /// Whether this run keeps what it changes in the workspace, whatever its profile says, so
    /// that it can be taken back. None where such a sandbox keeps nothing.
    pub keeps_changes: Option<bool>,
}

/// Something other than a command that rules speak of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act<'a> {
    /// A call of a tool.
    Tool {
        /// Its name, e.g. `mcp__github__create_issue`.
        name: &'a str,
        /// Its arguments.
        arguments: &'a serde_json::Value,
    },
    /// A file that is read or changed other than by a command.
    File {
        /// Absolute, without links as far as it exists.
        path: &'a Path,
        /// What is done to it.
        operation: FileOperation,
    },
    /// A connection.
    Network {
        /// Name or address.
        host: &'a Host,
        /// TCP or UDP port, where it is known.
        port: Option<u16>,
    },
}

/// What a rule speaks of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'a> {
    Command { words: &'a Words, assessment: &'a Assessment },
    Act(Act<'a>),
}

/// A subject where it happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'a> {
    pub subject: Subject<'a>,
    pub cwd: &'a Path,
    pub workspace: &'a Path,
    pub home: &'a Path,
    pub session: Option<&'a SessionId>,
    pub around: &'a Circumstances,
    /// True where examples are checked: what they do not say is taken to fit.
    pub example: bool,
}

impl<'a> Scene<'a> {
    /// The tool it came through, or is a call of.
    pub(crate) fn tool(&self) -> &'a str {
        match self.subject {
            Subject::Act(Act::Tool { name, .. }) => name,
            _ => self.around.tool.as_deref().unwrap_or_default(),
        }
    }
}
