//! Arguments for detached runs. Types only, like `args`.

use clap::{Args, ValueEnum};
use rustix::process::Signal;

use crate::detach_keys::DetachKeys;

/// `stockade ps`.
#[derive(Args, Debug)]
pub struct PsArgs {
    /// Runs that have ended as well.
    #[arg(long)]
    pub all: bool,
    /// Answer as one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// `stockade logs`.
#[derive(Args, Debug)]
pub struct LogsArgs {
    /// Continue with new output until the run ends.
    #[arg(long, short)]
    pub follow: bool,
    /// Id of the run, or the beginning of it.
    pub id: String,
}

/// `stockade attach`.
#[derive(Args, Debug)]
#[command(
    after_help = "Ctrl-C detaches from the run, which continues; Ctrl-D ends its input. If the run has a\nterminal, it gets all keys except those of --detach-keys."
)]
pub struct AttachArgs {
    /// Only output from now on.
    #[arg(long)]
    pub new: bool,
    /// The keys that detach from a run with a terminal.
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    pub detach_keys: DetachKeys,
    /// Id of the run, or the beginning of it.
    pub id: String,
}

/// `stockade write`.
#[derive(Args, Debug)]
pub struct WriteArgs {
    /// Close the run's input afterwards.
    #[arg(long)]
    pub close: bool,
    /// Id of the run, or the beginning of it.
    pub id: String,
}

/// `stockade wait`.
#[derive(Args, Debug)]
pub struct WaitArgs {
    /// Id of the run, or the beginning of it.
    pub id: String,
}

/// `stockade kill`.
#[derive(Args, Debug)]
pub struct KillArgs {
    /// The first signal to the command; processes that remain after the grace period are killed.
    #[arg(long, value_enum, value_name = "SIGNAL", default_value = "term", ignore_case = true)]
    pub signal: SignalArg,
    /// Id of the run, or the beginning of it.
    pub id: String,
}

/// `--signal`: the signals that ask a process to end.
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
    /// Returns the signal of the kernel.
    pub fn to_signal(self) -> Signal {
        match self {
            Self::Term => Signal::TERM,
            Self::Int => Signal::INT,
            Self::Hup => Signal::HUP,
            Self::Quit => Signal::QUIT,
            Self::Kill => Signal::KILL,
        }
    }
}
