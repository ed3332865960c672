//! The subject of a rule: one command line, tool call, file change or connection, and its circumstances.
//!
//! Must not know rules. The caller provides all values: this crate reads no clock and does not look up the
//! user.

use std::path::Path;

use stockade_model::{Assessment, Host, SessionId};

use crate::file::FileOperation;
use crate::words::CommandWords;

/// Circumstances that the request itself does not contain. If a value is unknown, a rule with a condition
/// on it applies if it raises caution, and does not apply if it allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestContext {
    /// Name of the user that the command runs as.
    pub user: Option<String>,
    /// Name of the tool that the request came through; empty if there was none.
    pub tool: Option<String>,
    /// Current time, in milliseconds since the epoch.
    pub time_ms: Option<u64>,
    /// Whether changes of the workspace can be undone. `Some(true)`: this run saves them, whatever its
    /// profile sets. `Some(false)`: the profile decides. `None`: the sandbox cannot save changes.
    pub keeps_changes: Option<bool>,
}

/// An act other than a command, as a subject of rules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act<'a> {
    /// A call of a tool.
    Tool {
        /// Name of the tool, e.g. `mcp__github__create_issue`.
        name: &'a str,
        /// Arguments of the tool.
        arguments: &'a serde_json::Value,
    },
    /// A file that is read or changed other than by a command.
    File {
        /// Absolute path, without symbolic links in its existing part.
        path: &'a Path,
        /// Operation on the file.
        operation: FileOperation,
    },
    /// A connection.
    Network {
        /// Name or address.
        host: &'a Host,
        /// TCP or UDP port, if it is known.
        port: Option<u16>,
    },
}

/// Subject of a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RuleSubject<'a> {
    Command { words: &'a CommandWords, assessment: &'a Assessment },
    Act(Act<'a>),
}

/// A subject with its context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleInput<'a> {
    pub subject: RuleSubject<'a>,
    pub cwd: &'a Path,
    pub workspace: &'a Path,
    pub home: &'a Path,
    pub session: Option<&'a SessionId>,
    pub around: &'a RequestContext,
    /// True while examples are checked: conditions that an example does not mention are assumed to match.
    pub example: bool,
}

impl<'a> RuleInput<'a> {
    /// Returns the tool that the subject came through, or that it calls.
    pub(crate) fn tool_name(&self) -> &'a str {
        match self.subject {
            RuleSubject::Act(Act::Tool { name, .. }) => name,
            _ => self.around.tool.as_deref().unwrap_or_default(),
        }
    }
}
