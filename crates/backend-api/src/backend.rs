//! Interface between the engine and the backend, which builds sandboxes.
//!
//! A backend gets a complete plan and adds nothing to it. It must not depend on rules, approvers or
//! the audit log. It builds the sandbox, holds and releases the command, and reports events.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};
use stockade_model::{
    AttemptPlan, ConnectionRecord, Denial, EnforcementReport, Grant, IsolationLevel, RawText, ReadAccess,
    ResourceUsage, StagedChanges,
};

/// Port for the code that builds sandboxes from plans.
pub trait Backend: Send + Sync {
    /// Returns the backend's name as plans and outcomes contain it: `native`, `host`.
    fn name(&self) -> &'static str;

    /// Returns whether the backend can give `grant` to an attempt at `level`. No question is put
    /// about a power that cannot be given.
    fn supports_grant(&self, grant: &Grant, level: IsolationLevel) -> bool;

    /// Returns whether some standard streams of a command can be a terminal while the others are
    /// not. If false, [`StdioMode::Terminal`] means all of them.
    fn mixes_streams(&self) -> bool {
        true
    }

    /// Builds the sandbox and stops just before the command's first instruction. Sends every later
    /// event to `events`; the end comes last and exactly once. With `hold`, calls that lack a power
    /// wait for an answer if the machine supports that; without `hold`, they are refused.
    ///
    /// # Errors
    /// [`StartError`] if any layer that the plan requires is unavailable. Nothing ran and nothing
    /// is left behind (L6).
    fn prepare_attempt(
        &self,
        plan: &AttemptPlan,
        io: &StdioMode,
        hold: bool,
        events: AttemptEventSender,
    ) -> Result<Box<dyn Attempt>, StartError>;
}

/// Sandbox with its command, held or running. The drop ends the whole process tree and waits until
/// it is gone.
pub trait Attempt: Send {
    /// Returns the protection that the kernel accepted.
    fn enforcement_report(&self) -> &EnforcementReport;

    /// Lets the command run. Called once, after the audit record is durable.
    ///
    /// # Errors
    /// [`StartError`] if the sandbox died while it was held.
    fn release_command(&mut self) -> Result<(), StartError>;

    /// Waits, after the release, until the command's program runs. Returns false if the program
    /// could not be executed; the reported end contains the reason. A backend that cannot detect
    /// this returns true at once.
    fn await_exec(&self) -> bool {
        true
    }

    /// Sends a signal to the command's process group; best effort.
    fn send_signal(&self, signal: i32);

    /// Kills every process of the attempt now. The end is still reported.
    fn kill_processes(&self);

    /// Freezes all processes of the attempt and reports this as [`AttemptEvent::Held`], to be
    /// answered like a held call. Used for a limit that only the engine observes: its clock.
    /// Returns false if the backend does not support this; nothing is reported then.
    fn stand_still(&self, _limit: &Denial) -> bool {
        false
    }

    /// Answers a call that was reported as [`AttemptEvent::Held`]: once for each call, unless it
    /// was withdrawn. Must not block. If the call is no longer held, the granted powers may be
    /// lost; a later call for the same powers gets its own answer. A backend that never holds calls
    /// ignores this.
    fn answer_call(&self, _hold: HoldId, _answer: HeldAnswer) {}
}

/// Identifier of a held call, unique in its attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HoldId(pub u64);

/// Answer to a held call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeldAnswer {
    /// Adds these powers to the attempt. If they cover the call, it is carried out on exactly the
    /// object that was reported.
    Granted(Vec<Grant>),
    /// Makes the call fail like any refused call.
    Refused,
}

/// Connection of the command's standard streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StdioMode {
    /// The caller's own streams.
    Inherit,
    /// The caller's streams, if at least one is a terminal made for the command. That terminal
    /// becomes the controlling terminal of the command's session.
    Terminal,
    /// Standard input is the caller's. Output is read to its end; up to this many bytes of each
    /// stream are kept, half from its head and half from its tail.
    Capture {
        /// Bytes kept of each stream.
        limit_bytes: u64,
    },
}

/// Event of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptEvent {
    /// An operation was refused.
    Denied(Denial),
    /// The attempt exceeded a limit and must be ended.
    Breached(Denial),
    /// A call lacks a power and waits for [`Attempt::answer_call`]. The rest of the attempt continues,
    /// unless the call is about a limit (`DeniedOperation::Limit`): then everything is frozen. If that is
    /// refused and the attempt must end, [`Breached`](Self::Breached) follows. Equal calls on the
    /// same object wait behind the first and are not reported. Sent only if [`Backend::prepare_attempt`]
    /// was called with `hold`.
    Held {
        /// Identifier of the call.
        id: HoldId,
        /// Subject of the call, in the form of a refusal.
        denial: Denial,
    },
    /// No process waits for this call any more: its processes are gone.
    Withdrawn(HoldId),
    /// A connection through the egress proxy was closed.
    Connection(Box<ConnectionRecord>),
    /// A key of the user's ssh agent signed.
    Signed {
        /// The grant that permitted the signature.
        grant: Grant,
        /// The signed object.
        object: RawText,
    },
    /// A program was executed in the sandbox.
    Executed {
        /// Process id as the host sees it.
        pid: u32,
        /// Resolved program.
        program: RawText,
    },
    /// This signal stopped the command, which has a terminal. The command stays stopped until it
    /// gets SIGCONT.
    Stopped(i32),
    /// The attempt ended. Its last event.
    Ended(AttemptEnd),
}

/// Sink for the events of an attempt; any thread may use it. If the last copy is dropped before an
/// end was sent, the attempt is reported as lost.
#[derive(Clone)]
pub struct AttemptEventSender(Arc<EventSenderState>);

struct EventSenderState {
    tell: Box<dyn Fn(AttemptEvent) + Send + Sync>,
    ended: AtomicBool,
}

impl AttemptEventSender {
    /// Creates a sink. `tell` must not block, because a held command waits meanwhile.
    pub fn new(tell: impl Fn(AttemptEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(EventSenderState { tell: Box::new(tell), ended: AtomicBool::new(false) }))
    }

    /// Sends one event. Events after the end are dropped.
    pub fn send_event(&self, event: AttemptEvent) {
        let last = matches!(event, AttemptEvent::Ended(_));
        let over = if last { self.0.ended.swap(true, Ordering::AcqRel) } else { self.0.ended.load(Ordering::Acquire) };
        if !over {
            (self.0.tell)(event);
        }
    }

    /// Returns a weak copy, which does not delay the report of a lost attempt.
    pub fn downgrade(&self) -> WeakEventSender {
        WeakEventSender(Arc::downgrade(&self.0))
    }
}

/// Weak copy of [`AttemptEventSender`], valid while another strong copy exists.
#[derive(Clone)]
pub struct WeakEventSender(Weak<EventSenderState>);

impl WeakEventSender {
    /// Sends one event, unless the attempt is over.
    pub fn send_event(&self, event: AttemptEvent) {
        if let Some(telling) = self.0.upgrade() {
            AttemptEventSender(telling).send_event(event);
        }
    }
}

impl Drop for EventSenderState {
    fn drop(&mut self) {
        if !*self.ended.get_mut() {
            let lost = CommandEnd::Lost("its supervisor ended without a report".to_owned());
            (self.tell)(AttemptEvent::Ended(AttemptEnd::from_command_end(lost)));
        }
    }
}

impl fmt::Debug for AttemptEventSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Events").finish_non_exhaustive()
    }
}

/// Result of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptEnd {
    /// End of the command.
    pub end: CommandEnd,
    /// Resources used.
    pub usage: ResourceUsage,
    /// Captured standard output, with [`StdioMode::Capture`].
    pub stdout: Option<RawText>,
    /// Captured standard error, with [`StdioMode::Capture`].
    pub stderr: Option<RawText>,
    /// True if the middle of an output was dropped.
    pub truncated: bool,
    /// Writes of the attempt in the workspace, if they are staged for a commit.
    pub staged: Option<StagedChanges>,
    /// Number of paths that the attempt may have changed and that undo can restore.
    pub kept_for_undo: u64,
    /// Files of the project that the attempt wrote and that run code later; bounded by the backend.
    #[serde(default)]
    pub project_files: Vec<RawText>,
    /// Files read by the attempt, if the plan enables the trace; bounded by the backend.
    pub reads: Vec<ReadAccess>,
    /// True if the attempt may have changed persistent state or got keys of the user. In that case
    /// no question offers to run it again (L4).
    pub acted: bool,
}

impl AttemptEnd {
    /// Creates a result that contains only the end of the command.
    pub fn from_command_end(end: CommandEnd) -> Self {
        Self { end, ..Self::default() }
    }
}

/// End of the command of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandEnd {
    /// The command exited with this status.
    Exited(i32),
    /// This signal killed the command.
    Signaled(i32),
    /// The program was not found; nothing ran.
    #[default]
    NotFound,
    /// The program could not be executed; nothing ran.
    NotExecutable(String),
    /// The sandbox was lost: its init or supervisor died. All its processes are gone; their effects
    /// are unknown.
    Lost(String),
}

/// Error if an attempt cannot start. The user sees the failure, then the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{what}")]
pub struct StartError {
    /// The failed operation, and the reason.
    pub what: String,
    /// The one remedy.
    pub hint: Option<String>,
}
