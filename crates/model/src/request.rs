//! What someone wants run.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ApprovalMode, Grant, Level, Limits, RawText, RequestId, SessionId};

/// The thing to run, byte for byte as it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// A program and its arguments; nothing is expanded.
    Argv(Vec<RawText>),
    /// A script for `bash -c`.
    Script(RawText),
}

/// Whether a caller insists on a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxPreference {
    /// As the profile says.
    #[default]
    Auto,
    /// Never without a sandbox, whatever the profile says.
    Require,
    /// Without a sandbox. Honoured only with the profile `host`, by the
    /// person's own hand (L1).
    Forbid,
}

/// A caller's own policy already agreed. It spares the question, never the
/// sandbox, and is recorded with its warnings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallerApproval {
    /// Who agreed, e.g. `claude-code permissions`.
    pub by: String,
    /// What the caller was warned of.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Names it.
    pub id: RequestId,
    /// The conversation it belongs to.
    pub session: Option<SessionId>,
    /// What to run.
    pub command: Command,
    /// Where: absolute, canonical.
    pub cwd: RawText,
    /// The root that profile `workspace` may write: absolute, canonical. Set by
    /// the session or the person, never taken from the request's cwd alone.
    pub workspace: RawText,
    /// The caller's environment; the profile decides what of it is passed.
    pub environment: BTreeMap<String, RawText>,
    /// Name of the profile asked for.
    pub profile: String,
    /// Grants asked for with the request.
    pub grants: Vec<Grant>,
    /// Those of `grants` that the person did not give: modes and rules decide on
    /// each, also where the request is the person's own command line (`--request`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requested: Vec<Grant>,
    /// Level asked for; a lower one is used only when named here (L6).
    pub level: Level,
    /// When to ask.
    pub approval_mode: ApprovalMode,
    /// Whether a sandbox is insisted on.
    pub sandbox: SandboxPreference,
    /// Wall-clock limit in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Limits that hold where they are lower than those of the profile. To raise
    /// one takes a grant.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// A caller's own consent.
    pub caller_approval: Option<CallerApproval>,
}
