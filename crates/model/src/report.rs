//! The layers that are really enforced, not those that were configured (L6).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text_form::display_as_serialised;

/// Strength of the isolation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IsolationLevel {
    /// Namespaces, a private root, Landlock, seccomp.
    #[default]
    Full,
    /// Landlock and seccomp only: for containers and hosts without user namespaces.
    Restricted,
    /// No sandbox: profile `host`.
    None,
}

display_as_serialised!(IsolationLevel, LayerState);

/// State of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LayerState {
    /// The kernel accepted the layer, and it enforces everything that is promised.
    Enforced,
    /// The layer enforces less than on the best kernel; `detail` lists the missing parts.
    Partial,
    /// The layer does not exist.
    Absent,
}

/// One layer of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerReport {
    /// State of the layer.
    pub state: LayerState,
    /// The facts: ABI, counts, missing parts.
    pub detail: String,
}

/// The layers that were enforced for one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnforcementReport {
    /// The level reached.
    pub level: IsolationLevel,
    /// By layer name: `user-namespace`, `mounts`, `landlock`, `seccomp`, `broker` ...
    pub layers: BTreeMap<String, LayerReport>,
}
