//! What makes a sandbox real, seen from the engine.
//!
//! A backend is given a whole plan and adds nothing to it. It must not know
//! rules, approvers or the log: it builds, holds, releases, reports.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};
use stockade_model::{
    ConnectionRecord, Denial, EnforcementReport, Grant, Level, Plan, RawText, ReadAccess, Staged, Usage,
};

/// Builds sandboxes for plans.
pub trait Backend: Send + Sync {
    /// Its name, as it stands in plans and outcomes: `native`, `host`.
    fn name(&self) -> &'static str;

    /// Whether an attempt at `level` could really be given `grant`. A power
    /// that cannot be given is never asked about.
    fn honours(&self, grant: &Grant, level: Level) -> bool;

    /// Whether a command can have a terminal at some of its standard streams and not at
    /// the others. Where it cannot, [`Io::Terminal`] means all.
    fn mixes_streams(&self) -> bool {
        true
    }

    /// Builds the sandbox and stops just before the command's first
    /// instruction. Everything that happens later is sent to `events`, the
    /// end last and exactly once. With `hold`, calls that lack a power wait for
    /// an answer where the machine can make them; without, they are refused.
    ///
    /// # Errors
    /// When any layer that the plan asks for cannot be had: nothing ran and
    /// nothing is left behind (L6).
    fn prepare(&self, plan: &Plan, io: &Io, hold: bool, events: Events) -> Result<Box<dyn Attempt>, StartError>;
}

/// One sandbox, held before or running its command. Dropping it ends the whole
/// tree and waits for that.
pub trait Attempt: Send {
    /// What the kernel really took.
    fn enforced(&self) -> &EnforcementReport;

    /// Lets the command run. Called once, after the record is durable.
    ///
    /// # Errors
    /// When the sandbox died while it was held.
    fn release(&mut self) -> Result<(), StartError>;

    /// Waits, after the release, until the command's program runs. False where it
    /// could not be executed: the end that is told says why. A backend that cannot
    /// know says true at once.
    fn await_exec(&self) -> bool {
        true
    }

    /// Sends a signal to the command's process group; best effort.
    fn signal(&self, signal: i32);

    /// Ends every process of the attempt now. The end is still reported.
    fn kill(&self);

    /// Lets everything of the attempt stand still and tells it as
    /// [`AttemptEvent::Held`], to be answered like a held call: for a limit that
    /// only the engine sees passed, its clock. False where that cannot be had;
    /// nothing is told then.
    fn stand_still(&self, _limit: &Denial) -> bool {
        false
    }

    /// Answers a call that was told as [`AttemptEvent::Held`]: once for each,
    /// unless it was withdrawn. Must not block. The powers of an answer to a call
    /// that is no longer held may be lost with it; whoever waits for the same
    /// gets them again with an answer of its own. A backend that never holds has
    /// nothing to answer.
    fn answer(&self, _hold: HoldId, _answer: HeldAnswer) {}
}

/// A held call, unique in its attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HoldId(pub u64);

/// What becomes of a held call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeldAnswer {
    /// These powers are added to the attempt, and the call is carried out on
    /// the very object that was told, if they cover it.
    Granted(Vec<Grant>),
    /// It fails as a refusal does.
    Refused,
}

/// Where the command's standard streams go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Io {
    /// The caller's own streams.
    Inherit,
    /// The same, where one of them at least is a terminal made for the command: it
    /// becomes the controlling one of the command's session.
    Terminal,
    /// Standard input is the caller's; output is kept up to this many bytes a
    /// stream, half from its head and half from its tail, and drained to the
    /// end.
    Capture {
        /// Bytes kept of each stream.
        limit_bytes: u64,
    },
}

/// Something that happened in an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptEvent {
    /// Something was refused.
    Denied(Denial),
    /// It went beyond a limit and is to be ended.
    Breached(Denial),
    /// A call lacks a power and waits for [`Attempt::answer`]; nothing else of
    /// the attempt does, but where it is about a limit (`Operation::Limit`): then
    /// everything stands still. After a refusal of that, [`Breached`](Self::Breached)
    /// follows where the attempt has to end for it. Equal calls on the same object wait behind the first
    /// and are not told. Sent only where [`Backend::prepare`] was told to hold.
    Held {
        /// Which one.
        id: HoldId,
        /// What it is about, as a refusal would say it.
        denial: Denial,
    },
    /// Nobody waits behind this call any more: its processes are gone.
    Withdrawn(HoldId),
    /// A connection through the door is over.
    Connection(Box<ConnectionRecord>),
    /// A key of the person's ssh agent signed.
    Signed {
        /// The grant that let it pass.
        grant: Grant,
        /// What was signed.
        object: RawText,
    },
    /// A program was executed inside.
    Executed {
        /// Process id as the host sees it.
        pid: u32,
        /// Resolved program.
        program: RawText,
    },
    /// The command, which has a terminal, was stopped by this signal and stands still until
    /// it is sent SIGCONT.
    Stopped(i32),
    /// It is over. The last event of an attempt.
    Ended(AttemptEnd),
}

/// Where an attempt tells what happens, from any of its threads. An attempt
/// whose last copy is dropped without an end was lost, and is told so.
#[derive(Clone)]
pub struct Events(Arc<Telling>);

struct Telling {
    tell: Box<dyn Fn(AttemptEvent) + Send + Sync>,
    ended: AtomicBool,
}

impl Events {
    /// `tell` must not block: a held command waits meanwhile.
    pub fn new(tell: impl Fn(AttemptEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Telling { tell: Box::new(tell), ended: AtomicBool::new(false) }))
    }

    /// Tells one event. After the end nothing more is told.
    pub fn tell(&self, event: AttemptEvent) {
        let last = matches!(event, AttemptEvent::Ended(_));
        let over = if last { self.0.ended.swap(true, Ordering::AcqRel) } else { self.0.ended.load(Ordering::Acquire) };
        if !over {
            (self.0.tell)(event);
        }
    }
}

impl Events {
    /// For who must not keep it from being lost.
    pub fn downgrade(&self) -> WeakEvents {
        WeakEvents(Arc::downgrade(&self.0))
    }
}

/// [`Events`] as long as somebody else has them.
#[derive(Clone)]
pub struct WeakEvents(Weak<Telling>);

impl WeakEvents {
    /// Tells one event, unless the attempt is over.
    pub fn tell(&self, event: AttemptEvent) {
        if let Some(telling) = self.0.upgrade() {
            Events(telling).tell(event);
        }
    }
}

impl fmt::Debug for WeakEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WeakEvents").finish_non_exhaustive()
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        if !*self.ended.get_mut() {
            let lost = CommandEnd::Lost("its supervisor ended without a word".to_owned());
            (self.tell)(AttemptEvent::Ended(AttemptEnd::bare(lost)));
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Events").finish_non_exhaustive()
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptEnd {
    /// How the command ended.
    pub end: CommandEnd,
    /// What it used.
    pub usage: Usage,
    /// Captured output, with [`Io::Capture`].
    pub stdout: Option<RawText>,
    /// Captured errors, with [`Io::Capture`].
    pub stderr: Option<RawText>,
    /// True where the middle of an output was dropped.
    pub truncated: bool,
    /// What it wrote in the workspace, where that waits for a commit.
    pub staged: Option<Staged>,
    /// How many paths it may have changed that undo can restore.
    pub kept_for_undo: u64,
    /// Files of the project that run code later and that it wrote; bounded by the backend.
    #[serde(default)]
    pub project_files: Vec<RawText>,
    /// What it read, where the plan has that traced; bounded by the backend.
    pub reads: Vec<ReadAccess>,
    /// Whether it may have changed something that lasts, or was given keys of a person:
    /// then nobody is asked whether it shall run again (L4).
    pub acted: bool,
}

impl AttemptEnd {
    /// An end of which nothing else is known.
    pub fn bare(end: CommandEnd) -> Self {
        Self {
            end,
            usage: Usage::default(),
            stdout: None,
            stderr: None,
            truncated: false,
            staged: None,
            kept_for_undo: 0,
            project_files: Vec::new(),
            reads: Vec::new(),
            acted: false,
        }
    }
}

/// How the command of an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandEnd {
    /// By itself.
    Exited(i32),
    /// By a signal.
    Signaled(i32),
    /// The program was not found; nothing ran.
    NotFound,
    /// The program could not be executed; nothing ran.
    NotExecutable(String),
    /// The sandbox was lost: its init or supervisor died. Everything in it is
    /// gone; what it had done is unknown.
    Lost(String),
}

/// Why an attempt could not start. Shown to a person: what, then the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{what}")]
pub struct StartError {
    /// What could not be done, and why.
    pub what: String,
    /// The one thing to do about it.
    pub hint: Option<String>,
}
