//! The one event stream (L10). Everything that happens is one of these; the
//! audit log, telemetry, the terminal and the inbox read them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::outcome::is_zero;
use crate::{
    Answer, Assessment, ConnectionRecord, Decision, Denial, Digest, EnforcementReport, Grant, Level, Question, RawText,
    ReadAccess, Request, RequestId, Review, SessionId, StageId, Staged, Status, Usage,
};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// When, in milliseconds since the epoch (CLOCK_REALTIME).
    pub time_ms: u64,
    /// The request it belongs to.
    pub request: RequestId,
    /// Its session.
    pub session: Option<SessionId>,
    /// What.
    pub kind: EventKind,
}

/// The names of the types of events, as `type` has them.
pub const EVENT_TYPES: &[&str] = &[
    "requested",
    "assessed",
    "decided",
    "asked",
    "review-sent",
    "reviewed",
    "answered",
    "starting",
    "started",
    "executed",
    "connection",
    "signed",
    "denied",
    "held",
    "withdrawn",
    "granted",
    "exited",
    "traced",
    "attached",
    "typed",
    "left",
    "failed",
    "finished",
    "revoked",
    "committed",
    "discarded",
];

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "type", deny_unknown_fields)]
pub enum EventKind {
    /// Somebody asked for a run. Values of the environment are not recorded,
    /// only names: `request.environment` is emptied before it gets here.
    Requested {
        /// The request.
        request: Box<Request>,
        /// Names of the caller's variables.
        environment_names: Vec<String>,
    },
    /// Its text was read.
    Assessed {
        /// The result.
        assessment: Assessment,
    },
    /// The rules spoke.
    Decided {
        /// The result.
        decision: Decision,
    },
    /// A question was put.
    Asked {
        /// The question.
        question: Box<Question>,
    },
    /// A model is about to be asked about a question: what leaves the machine
    /// is on record before it does.
    ReviewSent {
        /// Digest of the question.
        digest: Digest,
        /// Name of the model.
        by: String,
        /// Where it is sent.
        endpoint: String,
        /// The body, byte for byte. The key is no part of it.
        request: RawText,
    },
    /// What came of that.
    Reviewed {
        /// Digest of the question.
        digest: Digest,
        /// The opinion, or why there is none.
        review: Review,
        /// What the endpoint sent, without secrets, cut where it is long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        response: Option<RawText>,
        /// How long it took, in milliseconds.
        took_ms: u64,
        /// Whether it came after the question was put: then it changed nothing.
        late: bool,
    },
    /// It was answered.
    Answered {
        /// The answer.
        answer: Answer,
        /// Who: `terminal`, `cache`, `caller: NAME`, `mode never`.
        by: String,
        /// Digest of the question answered.
        digest: Digest,
        /// How long it took, in milliseconds.
        waited_ms: u64,
        /// Warnings that came with a caller's own approval.
        warnings: Vec<String>,
    },
    /// An attempt is about to start. Durable before the command's first
    /// instruction.
    Starting {
        /// Counts from 1.
        attempt: u32,
        /// Digest of the plan.
        digest: Digest,
        /// Program and arguments.
        argv: Vec<RawText>,
        /// Where.
        cwd: RawText,
        /// Profile name.
        profile: String,
        /// Grants in force.
        grants: Vec<Grant>,
        /// Level asked for.
        level: Level,
        /// Backend.
        backend: String,
    },
    /// The sandbox stands and the command was released into it.
    Started {
        /// Which attempt.
        attempt: u32,
        /// What is enforced.
        enforced: EnforcementReport,
    },
    /// A program was executed inside.
    Executed {
        /// Process id as the host sees it.
        pid: u32,
        /// Resolved program.
        program: RawText,
    },
    /// A connection through the door is over.
    Connection {
        /// Which attempt; 0 where the command had ended, and what it left behind in a
        /// sandbox that lasts went on.
        attempt: u32,
        /// What there is to know of it.
        connection: Box<ConnectionRecord>,
    },
    /// A key of the person's ssh agent signed for the run.
    Signed {
        /// Which attempt.
        attempt: u32,
        /// The grant that let it pass: which key, for what.
        grant: Grant,
        /// What was signed: the digest of git's text, or the user at the server.
        object: RawText,
    },
    /// Something was refused.
    Denied {
        /// The refusal.
        denial: Denial,
    },
    /// A call lacks a power and waits for an answer. What becomes of it is a
    /// `granted`, a `denied` or a `withdrawn`, or the end of its attempt.
    Held {
        /// Unique in its attempt.
        hold: u64,
        /// The call, as a refusal would say it.
        denial: Denial,
    },
    /// Nobody waits for an answer any more.
    Withdrawn {
        /// Held calls whose processes are gone.
        holds: Vec<u64>,
        /// Digest of the question that was taken back with them, if one was:
        /// an answer to it counts for nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<Digest>,
        /// Why.
        why: String,
    },
    /// Powers were added, for the next attempt or in place.
    Granted {
        /// The powers.
        grants: Vec<Grant>,
        /// Held calls that go on with them; none where it is the next attempt
        /// that has them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        holds: Vec<u64>,
    },
    /// An attempt ended.
    Exited {
        /// Which attempt.
        attempt: u32,
        /// How.
        status: Status,
        /// Its exit code.
        exit_code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
        /// What it used.
        usage: Usage,
        /// What waits in a stage.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        staged: Option<Staged>,
        /// How many paths it may have changed that `stockade undo` can restore.
        #[serde(default, skip_serializing_if = "is_zero")]
        kept_for_undo: u64,
        /// How many files it wrote that run code when somebody builds, tests, installs or starts
        /// the project.
        #[serde(default, skip_serializing_if = "is_zero")]
        project_files: u64,
    },
    /// What a traced attempt read, in as many events as it takes.
    Traced {
        /// Which attempt.
        attempt: u32,
        /// What.
        reads: Vec<ReadAccess>,
    },
    /// Somebody was attached to a run that lives on.
    Attached {
        /// Process id of the client.
        client: u32,
        /// Whether questions can be put there.
        answers: bool,
    },
    /// What comes from there is about to reach the command without being judged.
    Typed {
        /// Process id of the client.
        client: u32,
        /// Whether it is keys that a person presses at the run's terminal; otherwise
        /// data.
        keys: bool,
    },
    /// Whoever was attached has gone. Absent where the run ended first.
    Left {
        /// Process id of the client.
        client: u32,
        /// How much of what came from there was not judged, in bytes.
        unjudged_bytes: u64,
    },
    /// Stockade could not do its part.
    Failed {
        /// Why.
        message: String,
    },
    /// The request is over.
    Finished {
        /// How.
        status: Status,
        /// What the caller's exit status will be.
        exit_code: i32,
    },
    /// A remembered answer was taken back.
    Revoked {
        /// Which.
        approval: String,
    },
    /// What was staged was put into its workspace. The request is the one whose
    /// run wrote it.
    Committed {
        /// The stage.
        stage: StageId,
        /// How many paths.
        changes: u64,
        /// Protected paths that were agreed to, relative to the workspace.
        agreed: Vec<RawText>,
        /// How many paths were left in the stage.
        held: u64,
    },
    /// What was staged was thrown away.
    Discarded {
        /// The stage.
        stage: StageId,
        /// How many paths; 0 where they could not be read.
        changes: u64,
    },
    /// What a run changed was restored. The request is the one whose run changed it.
    Undone {
        /// How many paths.
        restored: u64,
        /// How many were left as they are: changed after the run, or not restorable.
        left: u64,
    },
    /// What was kept of a run for undo was removed.
    Forgotten,
}
