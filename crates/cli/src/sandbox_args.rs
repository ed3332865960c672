//! Arguments of `stockade sandbox`. Types only, like `args`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use stockade_model::{
    ApprovalMode, BackendChoice, GitRevision, ImageDigest, IsolationLevel, LimitKind, RepositoryUrl, RuntimeName,
    SandboxId,
};

use crate::args::{CommandArgs, LEVELS, approval_mode, named_values, parse_duration, parse_limit, parse_name};

/// `stockade sandbox`.
#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// Create a sandbox and print its id.
    Create(SandboxCreateArgs),
    /// Run one command in a sandbox.
    #[command(
        override_usage = "stockade sandbox exec [OPTIONS] ID -- CMD [ARG]...\n       stockade sandbox exec [OPTIONS] ID -c SCRIPT"
    )]
    Exec(SandboxExecArgs),
    /// List the sandboxes, the newest first.
    List {
        /// Ended sandboxes as well.
        #[arg(long)]
        all: bool,
        /// Only those with this label; may be repeated.
        #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
        labels: Vec<(String, String)>,
        /// Answer as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Show one sandbox.
    Show {
        /// Id of the sandbox.
        id: SandboxId,
        /// Answer as one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Copy a file or a directory into a sandbox or out of it.
    #[command(after_help = "In a sandbox a path is ID:PATH, beneath /workspace or /home/agent; one that is not \
                            absolute is in the workspace. `-` is a tar archive on standard input or output.\n\n\
                            Protected names, such as .git, are not copied to the host, and hidden files, such as \
                            credentials, are not copied into a sandbox. They are left out and reported (exit code 1) \
                            unless a grant names them.")]
    Copy {
        /// Source: PATH, ID:PATH or `-`.
        from: OsString,
        /// Destination: PATH, ID:PATH or `-`.
        to: OsString,
        /// Replace existing files.
        #[arg(long)]
        replace: bool,
        /// A grant for this copy: 'write PATH' for a protected name, 'read PATH' for a hidden file;
        /// may be repeated. In an archive PATH is the path inside.
        #[arg(long = "grant", value_name = "G")]
        grants: Vec<OsString>,
    },
    /// Extend the lifetime of a sandbox, counted from now.
    Extend {
        /// Id of the sandbox.
        id: SandboxId,
        /// Lifetime from now, e.g. `2h`.
        #[arg(value_name = "T", value_parser = parse_duration)]
        ttl: Duration,
    },
    /// Destroy a sandbox with all its files.
    Destroy {
        /// Id of the sandbox; may be repeated.
        #[arg(required = true)]
        ids: Vec<SandboxId>,
    },
    /// Run one command in a sandbox of its own, which is destroyed afterwards.
    #[command(
        override_usage = "stockade sandbox run [OPTIONS] -- CMD [ARG]...\n       stockade sandbox run [OPTIONS] -c SCRIPT"
    )]
    Run(SandboxRunArgs),
    /// Freeze every process of a sandbox.
    Pause {
        /// Id of the sandbox.
        id: SandboxId,
    },
    /// Resume a paused sandbox.
    Resume {
        /// Id of the sandbox.
        id: SandboxId,
    },
    /// Save the current files of a sandbox, for `create --from`.
    Snapshot {
        /// Id of the sandbox.
        id: SandboxId,
        /// The directory to create.
        directory: PathBuf,
    },
    /// Show the commands that were run in a sandbox: time, caller and outcome.
    Logs {
        /// Id of the sandbox.
        id: SandboxId,
        /// Continue with later commands until the sandbox ends.
        #[arg(long, short)]
        follow: bool,
        /// Answer as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Show the current resource usage of each sandbox; on a terminal, updated continuously.
    Top {
        /// Show it once.
        #[arg(long)]
        once: bool,
        /// Answer once, as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Run the supervisor of a sandbox; started when a sandbox is created.
    #[command(hide = true)]
    Keep,
}

/// Options of a new sandbox.
#[derive(Args, Debug)]
pub struct SandboxOptions {
    /// The profile of its commands: `workspace`, or one from the configuration.
    #[arg(long, value_name = "P")]
    pub profile: Option<String>,
    /// The backend that isolates it; `auto` takes the first available one.
    #[arg(long, value_name = "KIND", value_parser = parse_backend, default_value = "auto")]
    pub backend: BackendChoice,
    /// The runtime of the container engine, e.g. `runsc`, instead of the engine's default.
    #[arg(long, value_name = "NAME")]
    pub runtime: Option<RuntimeName>,
    /// The read-only root filesystem: an image of a container engine by its digest,
    /// `NAME@sha256:...`, or `sha256:...` for a local image.
    #[arg(long, value_name = "IMAGE", group = "system")]
    pub image: Option<ImageDigest>,
    /// The read-only root filesystem: a directory with a root tree.
    #[arg(long, value_name = "DIR", group = "system")]
    pub root: Option<PathBuf>,
    /// A limit of its commands that applies if it is lower than the profile's, e.g. memory=2GiB;
    /// may be repeated.
    #[arg(long = "limit", value_name = "NAME=AMOUNT", value_parser = parse_limit)]
    pub limits: Vec<(LimitKind, u64)>,
    /// The isolation level to require; `restricted` accepts a lower one.
    #[arg(long, value_name = "L", value_parser = named_values(LEVELS))]
    pub level: Option<IsolationLevel>,
    /// Start with a copy of this directory.
    #[arg(long, value_name = "DIR", group = "source")]
    pub copy: Option<PathBuf>,
    /// Start with this snapshot of a sandbox: its workspace and its home.
    #[arg(long, value_name = "DIR", group = "source")]
    pub from: Option<PathBuf>,
    /// Work in this directory itself.
    #[arg(long, value_name = "DIR", group = "source")]
    pub bind: Option<PathBuf>,
    /// Start with a clone of this repository, made inside.
    #[arg(long, value_name = "URL", group = "source")]
    pub repo: Option<RepositoryUrl>,
    /// The branch, tag or commit to clone.
    #[arg(long, value_name = "REV", requires = "repo")]
    pub rev: Option<GitRevision>,
    /// A label of the sandbox; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,
}

/// `stockade sandbox create`.
#[derive(Args, Debug)]
pub struct SandboxCreateArgs {
    /// Options of the sandbox.
    #[command(flatten)]
    pub kind: SandboxOptions,
    /// Destroy it this long after its creation, e.g. `8h`.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    pub ttl: Option<Duration>,
    /// Destroy it after this time without use.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    pub idle_timeout: Option<Duration>,
}

/// Options of one command in a sandbox.
#[derive(Args, Clone, Debug, Default)]
pub struct SandboxExecOptions {
    /// A grant to add without a question, e.g. 'connect pypi.org:443', or a group of hosts, e.g.
    /// @npm. It counts as your own yes; may be repeated.
    #[arg(long = "grant", value_name = "G")]
    pub grants: Vec<OsString>,
    /// A grant to ask for, e.g. 'connect pypi.org:443', or a group of hosts, e.g. @npm. Rules, the
    /// approval mode and a person decide on it, as for the request of a program; may be repeated.
    #[arg(long = "request", value_name = "G")]
    pub requests: Vec<OsString>,
    /// The approval mode, as for `run`.
    #[arg(long, value_name = "M", value_parser = approval_mode)]
    pub mode: Option<ApprovalMode>,
    /// End the command after this time, e.g. `90s`.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Give the command a terminal of its own, relayed to this one.
    #[arg(long, short)]
    pub tty: bool,
    /// Write the outcome as one JSON object to FILE; without FILE, to standard output, including
    /// the command's own output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    #[allow(clippy::option_option, reason = "clap's form of an option with an optional value")]
    pub json: Option<Option<PathBuf>>,
}

/// `stockade sandbox exec`.
#[derive(Args, Debug)]
pub struct SandboxExecArgs {
    /// Options of the command.
    #[command(flatten)]
    pub manner: SandboxExecOptions,
    /// Id of the sandbox.
    pub id: SandboxId,
    /// The command to run.
    #[command(flatten)]
    pub subject: CommandArgs,
}

/// `stockade sandbox run`.
#[derive(Args, Debug)]
pub struct SandboxRunArgs {
    /// Options of the sandbox.
    #[command(flatten)]
    pub kind: SandboxOptions,
    /// Write the command's changes in the repository to FILE, as `git diff` shows them.
    #[arg(long, value_name = "FILE", requires = "repo")]
    pub diff: Option<PathBuf>,
    /// Options of the command.
    #[command(flatten)]
    pub manner: SandboxExecOptions,
    /// The command to run.
    #[command(flatten)]
    pub subject: CommandArgs,
}

fn parse_backend(text: &str) -> Result<BackendChoice, String> {
    parse_name(text).ok_or_else(|| "one of `auto`, `native`, `docker`, `podman`".to_owned())
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "a label is KEY=VALUE".to_owned())
}
