//! Arguments of `stockade session`. Types only, like `args`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::args::{CommandArgs, RunOptions, parse_duration};

/// `stockade session`.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// Start a session and print its id.
    Start(SessionStartArgs),
    /// Run one command in a session; otherwise like `run`.
    #[command(
        override_usage = "stockade session exec [OPTIONS] ID -- CMD [ARG]...\n       stockade session exec [OPTIONS] ID -c SCRIPT"
    )]
    Exec(SessionExecArgs),
    /// End a session and its commands, and wait until all their processes are gone.
    End {
        /// Id or name of the session.
        id: String,
    },
    /// List the sessions, the newest first.
    List {
        /// Answer as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
}

/// `stockade session start`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub struct SessionStartArgs {
    /// The name, which is also the session of remembered answers [default: a new one].
    #[arg(long, value_name = "S")]
    pub name: Option<String>,
    /// End the session after this time without a command.
    #[arg(long, value_name = "T", value_parser = parse_duration, default_value = "30m")]
    pub idle_timeout: Duration,
    /// Options of its commands.
    #[command(flatten)]
    pub options: RunOptions,
}

/// `stockade session exec`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub struct SessionExecArgs {
    /// A grant to ask for, for this command: rules, the approval mode and a person decide on it;
    /// may be repeated.
    #[arg(long = "request", value_name = "G")]
    pub requests: Vec<OsString>,
    /// Write the outcome as one JSON object to FILE; without FILE, to standard output, including
    /// the command's own output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    #[allow(clippy::option_option, reason = "clap's form of an option with an optional value")]
    pub json: Option<Option<PathBuf>>,
    /// Id or name of the session.
    pub id: String,
    /// The command to run.
    #[command(flatten)]
    pub subject: CommandArgs,
}
