//! How a request ended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Approval, Assessment, Denial, Digest, EnforcementReport, Grant, HostUse, RawText, ReadAccess, RequestId, SessionId,
    StageId,
};

/// How it ended, without doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The command ended by itself; `exit_code` is its own.
    Exited,
    /// A signal ended it; `signal` says which.
    Signaled,
    /// Its time ran out.
    TimedOut,
    /// Another limit ended it.
    Limit,
    /// Policy or a person said no; nothing ran.
    Refused,
    /// A person ended it.
    Aborted,
    /// Stockade could not do its part; nothing ran, or it was stopped safely.
    Error,
}

/// What the rules say of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It may run, in its sandbox.
    Allow,
    /// Somebody must agree first.
    Ask,
    /// It may not run.
    Deny,
}

/// A verdict and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// The verdict.
    pub verdict: Verdict,
    /// The rule that decided, e.g. `mode on-failure: tier ask runs sandboxed`.
    pub rule: String,
    /// One line each, for a person.
    pub reasons: Vec<String>,
}

/// What an attempt used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// Wall clock from release to end, in milliseconds.
    pub wall_ms: u64,
    /// User and system time of the whole tree, in milliseconds.
    pub cpu_ms: u64,
    /// Largest resident size of one process, in bytes (getrusage).
    pub memory_peak_bytes: u64,
    /// Most memory of all processes together, in bytes, as far as it was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_memory_peak_bytes: Option<u64>,
    /// Most processes and threads at once, as far as they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes_peak: Option<u64>,
    /// Bytes written to disk, as far as they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_bytes: Option<u64>,
    /// How long it was kept from running by its limit of processors, in
    /// milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_ms: Option<u64>,
    /// How long some of it waited for memory, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_pressure_ms: Option<u64>,
}

/// What waits in a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Staged {
    /// Which stage.
    pub stage: StageId,
    /// How many paths it would change.
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
    /// What made the sandbox real.
    pub backend: String,
    /// What was enforced; absent where the sandbox could not be built.
    pub enforced: Option<EnforcementReport>,
    /// What was refused.
    pub denials: Vec<Denial>,
    /// What was reached through the door, in the order of the first use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<HostUse>,
    /// Connections to targets beyond the first thousand.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub connections_left_out: u64,
    /// What it used.
    pub usage: Usage,
    /// Captured output; absent where it went straight to the caller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<RawText>,
    /// Captured errors; absent where they went straight to the caller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<RawText>,
    /// True where the middle of an output was dropped.
    pub truncated: bool,
    /// What it wrote in the workspace and nobody has committed yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged: Option<Staged>,
    /// How many paths of the workspace it may have changed that `stockade undo` can
    /// restore.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kept_for_undo: u64,
    /// Files that it wrote and that run code when somebody builds, tests, installs or starts
    /// the project, e.g. a `Makefile`: at most 200.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub project_files: Vec<RawText>,
    /// Variables of the caller that did not pass into the sandbox and that programs which the
    /// command names read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_passed: Vec<String>,
    /// What a traced run read, the most used first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<ReadAccess>,
}

/// How a request ended, with the chain that led there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The request.
    pub id: RequestId,
    /// Its session.
    pub session: Option<SessionId>,
    /// Digest of the last plan; absent where there was none.
    pub digest: Option<Digest>,
    /// How it ended.
    pub status: Status,
    /// The command's own exit code.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why, where the status is `refused`, `aborted`, `limit` or `error`.
    pub error: Option<String>,
    /// What its text showed.
    pub assessment: Assessment,
    /// What the rules said.
    pub decision: Decision,
    /// Each execution, first to last.
    pub attempts: Vec<AttemptRecord>,
    /// Each question and its answer.
    pub approvals: Vec<Approval>,
    /// Powers that the request asked for, and the result for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requested: Vec<RequestedGrant>,
}

/// A power that a request asked for, as `--request` does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestedGrant {
    /// The power.
    pub grant: Grant,
    /// True where an attempt ran with it.
    pub given: bool,
    /// The approver that agreed to it, as in `approvals`; `rules` where no question was
    /// needed. Absent where it was not given.
    pub agreed_by: Option<String>,
}
