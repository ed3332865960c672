//! What was typed about detached runs. Types only, like `args`.

use clap::{Args, ValueEnum};
use rustix::process::Signal;

use crate::detach_keys::DetachKeys;

/// `stockade ps`.
#[derive(Args, Debug)]
pub struct PsArgs {
    /// Those that are over as well.
    #[arg(long)]
    pub all: bool,
    /// Answer as one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// `stockade logs`.
#[derive(Args, Debug)]
pub struct LogsArgs {
    /// Go on as it prints more, until it ends.
    #[arg(long, short)]
    pub follow: bool,
    /// Its id, or how that begins.
    pub id: String,
}

/// `stockade attach`.
#[derive(Args, Debug)]
#[command(
    after_help = "Ctrl-C leaves the run and lets it go on; Ctrl-D ends its input. Where the run has a\nterminal, all keys are its own but those of --detach-keys."
)]
pub struct AttachArgs {
    /// Only what it prints from now on.
    #[arg(long)]
    pub new: bool,
    /// The keys that leave a run with a terminal.
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    pub detach_keys: DetachKeys,
    /// Its id, or how that begins.
    pub id: String,
}

/// `stockade write`.
#[derive(Args, Debug)]
pub struct WriteArgs {
    /// End the run's input behind it.
    #[arg(long)]
    pub close: bool,
    /// Its id, or how that begins.
    pub id: String,
}

/// `stockade wait`.
#[derive(Args, Debug)]
pub struct WaitArgs {
    /// Its id, or how that begins.
    pub id: String,
}

/// `stockade kill`.
#[derive(Args, Debug)]
pub struct KillArgs {
    /// What the command gets first; what it leaves after its grace is killed.
    #[arg(long, value_enum, value_name = "SIGNAL", default_value = "term", ignore_case = true)]
    pub signal: SignalArg,
    /// Its id, or how that begins.
    pub id: String,
}

/// `--signal`: those that ask for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SignalArg {
    /// Terminate.
    #[value(alias = "SIGTERM")]
    Term,
    /// Interrupt, as Ctrl-C does.
    #[value(alias = "SIGINT")]
    Int,
    /// Hang up.
    #[value(alias = "SIGHUP")]
    Hup,
    /// Quit.
    #[value(alias = "SIGQUIT")]
    Quit,
    /// Kill at once.
    #[value(alias = "SIGKILL")]
    Kill,
}

impl SignalArg {
    /// The kernel's.
    pub fn number(self) -> Signal {
        match self {
            Self::Term => Signal::TERM,
            Self::Int => Signal::INT,
            Self::Hup => Signal::HUP,
            Self::Quit => Signal::QUIT,
            Self::Kill => Signal::KILL,
        }
    }
}
