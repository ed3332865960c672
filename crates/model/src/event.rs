//! The one event stream (L10). Every occurrence is one of these events. The audit log, telemetry, the
//! terminal and the inbox read them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::data::NameList;
use crate::outcome::is_zero;
use crate::{
    ApprovalAnswer, ApprovalQuestion, Assessment, ConnectionRecord, Decision, Denial, Digest, EnforcementReport,
    FinalStatus, Grant, IsolationLevel, RawText, ReadAccess, RequestId, ResourceUsage, ReviewResult, RunRequest,
    SessionId, StageId, StagedChanges,
};

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Time of the event, in milliseconds since the epoch (CLOCK_REALTIME).
    pub time_ms: u64,
    /// The request that the event belongs to.
    pub request: RequestId,
    /// Session of the request.
    pub session: Option<SessionId>,
    /// Type and content of the event.
    pub kind: EventKind,
}

/// Names of the event types, as in the field `type`.
pub const EVENT_TYPES: NameList = NameList::new(include_str!("../data/event_types.txt"));

/// Type and content of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "type", deny_unknown_fields)]
pub enum EventKind {
    /// A client requested a run. Values of the environment are not recorded, only names:
    /// `request.environment` is emptied before the event is made.
    Requested {
        /// The request.
        request: Box<RunRequest>,
        /// Names of the caller's variables.
        environment_names: Vec<String>,
    },
    /// The text of the request was assessed.
    Assessed {
        /// The assessment.
        assessment: Assessment,
    },
    /// The rules decided on the request.
    Decided {
        /// The decision.
        decision: Decision,
    },
    /// An approver was asked a question.
    Asked {
        /// The question.
        question: Box<ApprovalQuestion>,
    },
    /// A model is about to be asked to review a question. The event records the data that leaves the
    /// machine, before it is sent.
    ReviewSent {
        /// Digest of the question.
        digest: Digest,
        /// Name of the model.
        by: String,
        /// URL of the endpoint.
        endpoint: String,
        /// The body, byte for byte. The key is not part of it.
        request: RawText,
    },
    /// Result of the review.
    Reviewed {
        /// Digest of the question.
        digest: Digest,
        /// The opinion, or the reason why there is none.
        review: ReviewResult,
        /// Response of the endpoint, without secrets; truncated if it is long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        response: Option<RawText>,
        /// Duration of the review, in milliseconds.
        took_ms: u64,
        /// True if the review arrived after the question was asked: it then changed nothing.
        late: bool,
    },
    /// The question was answered.
    Answered {
        /// The answer.
        answer: ApprovalAnswer,
        /// Source of the answer: `terminal`, `cache`, `caller: NAME`, `mode never`.
        by: String,
        /// Digest of the answered question.
        digest: Digest,
        /// How long the answer took, in milliseconds.
        waited_ms: u64,
        /// Warnings that came with a caller's own approval.
        warnings: Vec<String>,
    },
    /// An attempt is about to start. The event is durable before the command's first instruction.
    Starting {
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Digest of the plan.
        digest: Digest,
        /// Program and arguments.
        argv: Vec<RawText>,
        /// Working directory.
        cwd: RawText,
        /// Profile name.
        profile: String,
        /// Grants in force.
        grants: Vec<Grant>,
        /// Requested level.
        level: IsolationLevel,
        /// Name of the backend.
        backend: String,
    },
    /// The sandbox exists and the command was started in it.
    Started {
        /// Number of the attempt.
        attempt: u32,
        /// The layers that are enforced.
        enforced: EnforcementReport,
    },
    /// A program was executed inside.
    Executed {
        /// Process id as the host sees it.
        pid: u32,
        /// Resolved program.
        program: RawText,
    },
    /// A connection through the egress proxy ended.
    Connection {
        /// Number of the attempt. 0 if the command had ended and its remaining processes continued in a
        /// persistent sandbox.
        attempt: u32,
        /// The record of the connection.
        connection: Box<ConnectionRecord>,
    },
    /// A key of the user's ssh agent signed for the run.
    Signed {
        /// Number of the attempt.
        attempt: u32,
        /// The grant that allowed the signature: the key and the purpose.
        grant: Grant,
        /// The signed object: the digest of git's text, or the user at the server.
        object: RawText,
    },
    /// An operation was refused.
    Denied {
        /// The denial.
        denial: Denial,
    },
    /// A held call lacks a power and waits for an answer. The hold ends with `granted`, `denied` or
    /// `withdrawn`, or with the end of its attempt.
    Held {
        /// Number of the hold, unique in its attempt.
        hold: u64,
        /// The held call, in the form of a denial.
        denial: Denial,
    },
    /// Held calls no longer wait for an answer.
    Withdrawn {
        /// Held calls whose processes have ended.
        holds: Vec<u64>,
        /// Digest of the question that was withdrawn with them, if there was one. An answer to it has no
        /// effect.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<Digest>,
        /// The reason.
        why: String,
    },
    /// Powers were added, for the next attempt or for the running one.
    Granted {
        /// The powers.
        grants: Vec<Grant>,
        /// Held calls that continue with these powers; none if the powers are for the next attempt.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        holds: Vec<u64>,
    },
    /// An attempt ended.
    Exited {
        /// Number of the attempt.
        attempt: u32,
        /// Status of the attempt.
        status: FinalStatus,
        /// Exit code of the command.
        exit_code: Option<i32>,
        /// The signal that ended the command.
        signal: Option<i32>,
        /// Resource usage.
        usage: ResourceUsage,
        /// Changes that wait in a stage.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        staged: Option<StagedChanges>,
        /// Number of paths, possibly changed, that `stockade undo` can restore.
        #[serde(default, skip_serializing_if = "is_zero")]
        kept_for_undo: u64,
        /// Number of written files that run code when the project is built, tested, installed or started.
        #[serde(default, skip_serializing_if = "is_zero")]
        project_files: u64,
    },
    /// Read accesses of a traced attempt. One attempt may need several events.
    Traced {
        /// Number of the attempt.
        attempt: u32,
        /// The read accesses.
        reads: Vec<ReadAccess>,
    },
    /// A client attached to a detached run.
    Attached {
        /// Process id of the client.
        client: u32,
        /// Whether the client can answer questions.
        answers: bool,
    },
    /// Input from the client is about to reach the command without an assessment.
    Typed {
        /// Process id of the client.
        client: u32,
        /// True for keys that a user presses at the run's terminal; false for other data.
        keys: bool,
    },
    /// The attached client has left. Absent if the run ended first.
    Left {
        /// Process id of the client.
        client: u32,
        /// Input from the client that was not assessed, in bytes.
        unjudged_bytes: u64,
    },
    /// Stockade failed.
    Failed {
        /// The reason.
        message: String,
    },
    /// The request ended.
    Finished {
        /// Status of the request.
        status: FinalStatus,
        /// Exit status for the caller.
        exit_code: i32,
    },
    /// A remembered answer was revoked.
    Revoked {
        /// The remembered answer.
        approval: String,
    },
    /// Staged changes were committed to their workspace. The request is the one whose run wrote them.
    Committed {
        /// The stage.
        stage: StageId,
        /// Number of committed paths.
        changes: u64,
        /// Protected paths that were approved, relative to the workspace.
        agreed: Vec<RawText>,
        /// Number of paths that were left in the stage.
        held: u64,
    },
    /// Staged changes were discarded.
    Discarded {
        /// The stage.
        stage: StageId,
        /// Number of paths; 0 if they could not be read.
        changes: u64,
    },
    /// Changes of a run were undone. The request is the one whose run made them.
    Undone {
        /// Number of restored paths.
        restored: u64,
        /// Number of paths that were left unchanged: changed after the run, or not restorable.
        left: u64,
    },
    /// The undo data of a run was removed.
    Forgotten,
}
