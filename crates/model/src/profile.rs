//! The powers of a run.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Egress, ExecRules, Limits, RawText};

/// Bytes that are kept of what a run changes, where undo is on and nothing else is said.
pub const DEFAULT_UNDO_BYTES: u64 = 1 << 30;

/// The powers of a run. What is not named is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name: `read-only`, `workspace`, `host` or one from configuration.
    pub name: String,
    /// False only for `host`.
    pub sandboxed: bool,
    /// Files.
    pub filesystem: Filesystem,
    /// Programs that are asked about or refused, in the whole tree of a run.
    /// Absent where there are none.
    #[serde(default, skip_serializing_if = "ExecRules::is_empty")]
    pub exec: ExecRules,
    /// Network.
    pub network: Network,
    /// What may be reached through the door. Absent where nothing is said.
    #[serde(default, skip_serializing_if = "Egress::is_empty")]
    pub egress: Egress,
    /// Variables.
    pub environment: Environment,
    /// Limits.
    pub limits: Limits,
}

/// What of the filesystem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Filesystem {
    /// Absolute directories or files that may be written, grants included,
    /// workspace substituted. Private temp is always there.
    pub write: Vec<RawText>,
    /// Absolute paths that are hidden: the tree or file is not readable, and
    /// nothing beneath it can be seen.
    pub hide: Vec<RawText>,
    /// Absolute paths that are readable although a hidden one holds them. Of
    /// both lists the nearest entry above a path decides; of equals, `hide`.
    pub reveal: Vec<RawText>,
    /// Protected names, see [`DEFAULT_PROTECTED_NAMES`](crate::DEFAULT_PROTECTED_NAMES).
    pub protect: Vec<String>,
    /// Absolute host unix sockets that may be connected to.
    pub sockets: Vec<RawText>,
    /// What is written in the workspace waits beside it until somebody commits
    /// or discards it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stage: bool,
    /// What a run changes in its workspace is kept first, in no more than so many bytes, so
    /// that it can be undone. What cannot be kept is not changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo_bytes: Option<u64>,
    /// What is read is recorded. Decides nothing; every open costs more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trace: bool,
    /// Caches and package stores of tools, which a run writes in a private layer of its
    /// workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<ToolCache>,
}

/// A directory of a tool's own that holds nothing but what can be had again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolCache {
    /// A name for it: letters, digits and `-`.
    pub tool: String,
    /// Where the host has it, absolute.
    pub directory: RawText,
    /// Names in it that a run may write, a directory with `/` at its end. All of it
    /// where nothing is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<String>,
    /// How the host's content is used.
    pub sharing: CacheSharing,
    /// Variables that move it. Where one of them is set nothing is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved_by: Vec<String>,
    /// Variables that lead the tool to a private directory, which `{}` stands for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
}

/// How a run uses what the host has in a [`ToolCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CacheSharing {
    /// It is read, beneath what the workspace's runs wrote, at level full.
    Merged,
    /// It is not used.
    Private,
}

/// What of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// A loopback of its own and nothing else.
    #[default]
    None,
    /// The host's network: profile `host` alone.
    Host,
}

/// What of the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// Names that pass; a trailing `*` matches any tail.
    pub pass: Vec<String>,
    /// Variables that never pass. Only a name written out in `pass` outweighs a pattern
    /// here, and nothing a name.
    pub drop: Vec<DroppedVariables>,
    /// Variables set to a value.
    pub set: BTreeMap<String, RawText>,
}

/// Variables that do not pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DroppedVariables {
    /// A name; each `*` stands for any text.
    pub pattern: String,
    /// True if a configuration file says so, not a shipped profile: the pattern then covers also
    /// variables that pass for what they say.
    pub is_own: bool,
}
