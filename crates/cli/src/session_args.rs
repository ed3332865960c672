//! What was typed behind `stockade session`. Types only, like `args`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::args::{Subject, Terms, duration};

/// `stockade session`.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// Begin a session and print its id.
    Start(SessionStartArgs),
    /// Run one command in a session; all else is as with `run`.
    #[command(
        override_usage = "stockade session exec [OPTIONS] ID -- CMD [ARG]...\n       stockade session exec [OPTIONS] ID -c SCRIPT"
    )]
    Exec(SessionExecArgs),
    /// End a session with whatever runs in it, and wait until nothing of it is left.
    End {
        /// Its id or name.
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
    /// What to call it: also the session whose answers count [default: a new one].
    #[arg(long, value_name = "S")]
    pub name: Option<String>,
    /// End it when nothing was run for this long.
    #[arg(long, value_name = "T", value_parser = duration, default_value = "30m")]
    pub idle_timeout: Duration,
    /// What its commands are run with.
    #[command(flatten)]
    pub terms: Terms,
}

/// `stockade session exec`.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub struct SessionExecArgs {
    /// A power to ask for, for this command: rules, the mode and a person decide on it;
    /// may be repeated.
    #[arg(long = "request", value_name = "G")]
    pub requests: Vec<OsString>,
    /// Write the outcome as one JSON object to FILE; without FILE to standard
    /// output, with the command's own output inside.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    #[allow(clippy::option_option, reason = "clap's form of an option with an optional value")]
    pub json: Option<Option<PathBuf>>,
    /// The session's id or name.
    pub id: String,
    /// What to run.
    #[command(flatten)]
    pub subject: Subject,
}
