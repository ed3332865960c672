//! A request to run a command.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ApprovalMode, Grant, IsolationLevel, Limits, RawText, RequestId, SessionId};

/// The command to run, byte for byte as received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum RequestCommand {
    /// A program and its arguments; nothing is expanded.
    Argv(Vec<RawText>),
    /// A script for `bash -c`.
    Script(RawText),
}

/// Whether a caller requires a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxPreference {
    /// The profile decides.
    #[default]
    Auto,
    /// Never without a sandbox, whatever the profile sets.
    Require,
    /// Without a sandbox. Honoured only with the profile `host`, if the user gives it directly (L1).
    Forbid,
}

/// Approval by a caller's own policy. The approval replaces the question, never the sandbox, and is
/// recorded with its warnings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallerApproval {
    /// Source of the approval, e.g. `claude-code permissions`.
    pub by: String,
    /// Warnings that the caller received.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// Identifier of the request.
    pub id: RequestId,
    /// Session that the request belongs to.
    pub session: Option<SessionId>,
    /// The command to run.
    pub command: RequestCommand,
    /// Working directory: absolute, canonical.
    pub cwd: RawText,
    /// The root that profile `workspace` may write: absolute, canonical. The session or the user sets it;
    /// it is never taken from the request's cwd alone.
    pub workspace: RawText,
    /// The caller's environment; the profile decides which variables pass.
    pub environment: BTreeMap<String, RawText>,
    /// Name of the requested profile.
    pub profile: String,
    /// Grants that the request asks for.
    pub grants: Vec<Grant>,
    /// The subset of `grants` that the user did not give: modes and rules decide on each of them, even if
    /// the request is the user's own command line (`--request`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requested: Vec<Grant>,
    /// Requested level; a lower one is used only if named here (L6).
    pub level: IsolationLevel,
    /// When to ask for approval.
    pub approval_mode: ApprovalMode,
    /// Whether a sandbox is required.
    pub sandbox: SandboxPreference,
    /// Wall-clock limit in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Limits that apply if they are lower than those of the profile. To raise a limit takes a grant.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// A caller's own approval.
    pub caller_approval: Option<CallerApproval>,
}
