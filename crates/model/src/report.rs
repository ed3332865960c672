//! What was really enforced, layer by layer: not what was configured (L6).

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How strong the walls are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Namespaces, a root of our own, Landlock, seccomp.
    #[default]
    Full,
    /// Landlock and seccomp only: for containers and hosts without user namespaces.
    Restricted,
    /// No sandbox: profile `host`.
    None,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "full",
            Self::Restricted => "restricted",
            Self::None => "none",
        })
    }
}

/// The state of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LayerState {
    /// The kernel took it and it holds all that is promised.
    Enforced,
    /// It holds less than on the best kernel; `detail` says what is missing.
    Partial,
    /// Not there.
    Absent,
}

/// One layer of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerReport {
    /// Its state.
    pub state: LayerState,
    /// The facts: ABI, counts, what is missing.
    pub detail: String,
}

/// What was enforced for one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnforcementReport {
    /// The level reached.
    pub level: Level,
    /// By layer name: `user-namespace`, `mounts`, `landlock`, `seccomp`, `broker` ...
    pub layers: BTreeMap<String, LayerReport>,
}
