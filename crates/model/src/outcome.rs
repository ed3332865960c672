//! The outcome of a request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text_form::display_as_serialised;
use crate::{
    Approval, Assessment, Denial, Digest, EnforcementReport, Grant, HostUse, RawText, ReadAccess, RequestId, SessionId,
    StageId,
};

/// Final status of a request or attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinalStatus {
    /// The command exited; `exit_code` is its own.
    Exited,
    /// The signal `signal` ended the command.
    Signaled,
    /// The time limit ended the command.
    TimedOut,
    /// Another limit ended the command.
    Limit,
    /// Policy or an approver refused the request; no command ran.
    Refused,
    /// A user ended the command.
    Aborted,
    /// Stockade failed; no command ran, or the command was stopped safely.
    Error,
}

/// Result of the rules for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyVerdict {
    /// The command may run, in its sandbox.
    Allow,
    /// An approver must agree first.
    Ask,
    /// The command may not run.
    #[default]
    Deny,
}

display_as_serialised!(FinalStatus, PolicyVerdict);

/// A verdict and its reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// The verdict.
    pub verdict: PolicyVerdict,
    /// The rule that decided, e.g. `mode on-failure: tier ask runs sandboxed`.
    pub rule: String,
    /// Reasons for the user, one line each.
    pub reasons: Vec<String>,
}

/// Resource usage of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourceUsage {
    /// Wall clock from start to end of the command, in milliseconds.
    pub wall_ms: u64,
    /// User and system time of the whole process tree, in milliseconds.
    pub cpu_ms: u64,
    /// Largest resident size of one process, in bytes (getrusage).
    pub memory_peak_bytes: u64,
    /// Peak memory of all processes together, in bytes, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_memory_peak_bytes: Option<u64>,
    /// Peak number of processes and threads, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes_peak: Option<u64>,
    /// Bytes written to disk, if they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_bytes: Option<u64>,
    /// How long the limit of processors throttled the attempt, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_ms: Option<u64>,
    /// How long some process of the attempt waited for memory, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_pressure_ms: Option<u64>,
}

/// Changes that wait in a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StagedChanges {
    /// The stage.
    pub stage: StageId,
    /// Number of paths that the stage would change.
    pub changes: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
pub(crate) fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// One execution of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttemptRecord {
    /// Name of the profile.
    pub profile: String,
    /// Grants in force.
    pub grants: Vec<Grant>,
    /// Name of the backend that made the sandbox.
    pub backend: String,
    /// The layers that were enforced; absent if the sandbox could not be built.
    pub enforced: Option<EnforcementReport>,
    /// The refused operations.
    pub denials: Vec<Denial>,
    /// Targets reached through the egress proxy, in the order of the first use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<HostUse>,
    /// Connections to targets beyond the first thousand.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub connections_left_out: u64,
    /// Resource usage.
    pub usage: ResourceUsage,
    /// Captured output; absent if the output was passed through to the caller's stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<RawText>,
    /// Captured error output; absent if the output was passed through to the caller's stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<RawText>,
    /// True if the middle of an output was dropped.
    pub truncated: bool,
    /// Changes of the workspace that are not yet committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged: Option<StagedChanges>,
    /// Number of paths of the workspace, possibly changed, that `stockade undo` can restore.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kept_for_undo: u64,
    /// Written files that run code when the project is built, tested, installed or started, e.g. a
    /// `Makefile`: at most 200.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub project_files: Vec<RawText>,
    /// Variables of the caller that programs named in the command read, but that did not pass into the
    /// sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_passed: Vec<String>,
    /// Files that a traced run read, the most used first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<ReadAccess>,
}

/// The outcome of a request, with all steps that led to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunOutcome {
    /// The request.
    pub id: RequestId,
    /// Session of the request.
    pub session: Option<SessionId>,
    /// Digest of the last plan; absent if there was none.
    pub digest: Option<Digest>,
    /// Final status.
    pub status: FinalStatus,
    /// The command's own exit code.
    pub exit_code: Option<i32>,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// The reason, if the status is `refused`, `aborted`, `limit` or `error`.
    pub error: Option<String>,
    /// Assessment of the command text.
    pub assessment: Assessment,
    /// Decision of the rules.
    pub decision: Decision,
    /// Each execution, first to last.
    pub attempts: Vec<AttemptRecord>,
    /// Each question and its answer.
    pub approvals: Vec<Approval>,
    /// Requested powers, and the result for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requested: Vec<RequestedGrant>,
}

/// A requested power, for example by `--request`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestedGrant {
    /// The power.
    pub grant: Grant,
    /// True if an attempt ran with the power.
    pub given: bool,
    /// The approver that agreed to it, as in `approvals`; `rules` if no question was needed. Absent if it
    /// was not given.
    pub agreed_by: Option<String>,
}
