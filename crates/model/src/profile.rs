//! The powers of a run.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{EgressRules, ExecRules, Limits, RawText};

/// Default limit for the undo data of a run, in bytes, if undo is on.
pub const DEFAULT_UNDO_BYTES: u64 = 1 << 30;

/// The powers of a run. A power that is not named does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name of the profile: `read-only`, `workspace`, `host` or one from configuration.
    pub name: String,
    /// False only for `host`.
    pub sandboxed: bool,
    /// Powers over files.
    pub filesystem: FilesystemAccess,
    /// Programs that are asked about or refused, in the whole process tree of a run. Absent if there are
    /// none.
    #[serde(default, skip_serializing_if = "ExecRules::is_empty")]
    pub exec: ExecRules,
    /// Network.
    pub network: NetworkAccess,
    /// Rules of the egress proxy. Absent if there are none.
    #[serde(default, skip_serializing_if = "EgressRules::is_empty")]
    pub egress: EgressRules,
    /// Variables.
    pub environment: EnvironmentRules,
    /// Limits.
    pub limits: Limits,
}

/// Powers of a run over the filesystem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesystemAccess {
    /// Absolute directories or files that may be written, grants included, workspace substituted. A private
    /// temporary directory always exists.
    pub write: Vec<RawText>,
    /// Absolute paths that are hidden: the directory or file is not readable, and nothing beneath it is
    /// visible.
    pub hide: Vec<RawText>,
    /// Absolute paths that are readable although a hidden path contains them. The nearest entry of both
    /// lists above a path decides; of equal ones, `hide`.
    pub reveal: Vec<RawText>,
    /// Protected names, see [`DEFAULT_PROTECTED_NAMES`](crate::DEFAULT_PROTECTED_NAMES).
    pub protect: Vec<String>,
    /// Absolute host unix sockets that the run may connect to.
    pub sockets: Vec<RawText>,
    /// Writes to the workspace wait beside it in a stage until a user commits or discards them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stage: bool,
    /// Data that a run changes in its workspace is saved first, up to this number of bytes, so that the
    /// changes can be undone. Data that cannot be saved is not changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo_bytes: Option<u64>,
    /// Read accesses are recorded. The record decides nothing; it makes every open slower.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trace: bool,
    /// Caches and package stores of tools. A run writes them in a private layer of its workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<ToolCache>,
}

/// A directory of a tool that contains only reproducible data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolCache {
    /// Name for the cache: letters, digits and `-`.
    pub tool: String,
    /// Absolute path of the directory on the host.
    pub directory: RawText,
    /// Names in the directory that a run may write; a directory has `/` at its end. An empty list means the
    /// whole directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<String>,
    /// How a run uses the host's content.
    pub sharing: CacheSharing,
    /// Variables that move the directory. If one of them is set, the cache is ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved_by: Vec<String>,
    /// Variables that point the tool to a private directory, which `{}` stands for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
}

/// How a run uses the host's content of a [`ToolCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CacheSharing {
    /// The content is read, beneath the writes of the workspace's runs, at level full.
    Merged,
    /// The content is not used.
    Private,
}

/// Network of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkAccess {
    /// A private loopback and nothing else.
    #[default]
    None,
    /// The host's network: profile `host` alone.
    Host,
}

/// Environment of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentRules {
    /// Names that pass; a trailing `*` matches any suffix.
    pub pass: Vec<String>,
    /// Variables that never pass. An exact name in `pass` outweighs a pattern here, but nothing outweighs
    /// an exact name here.
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
    /// True if the entry is from a configuration file, not from a shipped profile. The pattern then also
    /// covers variables that pass because of their values.
    pub is_own: bool,
}
