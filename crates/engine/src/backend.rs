//! What makes a sandbox real, seen from the engine.
//!
//! A backend is given a whole plan and adds nothing to it. It must not know
//! rules, approvers or the log: it builds, holds, releases, reports.

use std::sync::mpsc::Sender;

use stockade_model::{Denial, EnforcementReport, Grant, Level, Plan, RawText, Usage};

/// Builds sandboxes for plans.
pub trait Backend: Send + Sync {
    /// Its name, as it stands in plans and outcomes: `native`, `host`.
    fn name(&self) -> &'static str;

    /// Whether an attempt at `level` could really be given `grant`. A power
    /// that cannot be given is never asked about.
    fn honours(&self, grant: &Grant, level: Level) -> bool;

    /// Builds the sandbox and stops just before the command's first
    /// instruction. Everything that happens later is sent to `events`, the
    /// end last and exactly once.
    ///
    /// # Errors
    /// When any layer that the plan asks for cannot be had: nothing ran and
    /// nothing is left behind (L6).
    fn prepare(&self, plan: &Plan, io: &Io, events: Sender<AttemptEvent>) -> Result<Box<dyn Attempt>, StartError>;
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

    /// Sends a signal to the command's process group; best effort.
    fn signal(&self, signal: i32);

    /// Ends every process of the attempt now. The end is still reported.
    fn kill(&self);
}

/// Where the command's standard streams go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// The caller's own streams.
    Inherit,
    /// Standard input is the caller's; output is kept up to this many bytes a
    /// stream, half from its head and half from its tail, and drained to the
    /// end.
    Capture {
        /// Bytes kept of each stream.
        limit_bytes: u64,
    },
}

/// Something that happened in an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptEvent {
    /// Something was refused.
    Denied(Denial),
    /// A program was executed inside.
    Executed {
        /// Process id as the host sees it.
        pid: u32,
        /// Resolved program.
        program: RawText,
    },
    /// It is over. The last event of an attempt.
    Ended(AttemptEnd),
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

/// How the command of an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct StartError {
    /// What could not be done, and why.
    pub what: String,
    /// The one thing to do about it.
    pub hint: Option<String>,
}
