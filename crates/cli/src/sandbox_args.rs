//! What was typed behind `stockade sandbox`. Types only, like `args`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use stockade_model::{
    ApprovalMode, BackendChoice, ImageDigest, Limit, RepositoryUrl, Revision, RuntimeName, SandboxId,
};

use crate::args::{LevelArg, Subject, approval_mode, duration, limit};

/// `stockade sandbox`.
#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// Make a sandbox and print its id.
    Create(SandboxCreateArgs),
    /// Run one command in a sandbox.
    #[command(
        override_usage = "stockade sandbox exec [OPTIONS] ID -- CMD [ARG]...\n       stockade sandbox exec [OPTIONS] ID -c SCRIPT"
    )]
    Exec(SandboxExecArgs),
    /// List the sandboxes, the newest first.
    List {
        /// Those that are over as well.
        #[arg(long)]
        all: bool,
        /// Only those with this label; may be repeated.
        #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
        labels: Vec<(String, String)>,
        /// Answer as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Show one sandbox.
    Show {
        /// Its id.
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
        /// What: PATH, ID:PATH or `-`.
        from: OsString,
        /// Where: PATH, ID:PATH or `-`.
        to: OsString,
        /// Replace files that are there.
        #[arg(long)]
        replace: bool,
        /// One power for this copy: 'write PATH' of a protected name, 'read PATH' of a hidden
        /// file; may be repeated. In an archive PATH is the one inside.
        #[arg(long = "grant", value_name = "G")]
        grants: Vec<OsString>,
    },
    /// Let a sandbox live so long from now.
    Extend {
        /// Its id.
        id: SandboxId,
        /// How long, e.g. `2h`.
        #[arg(value_name = "T", value_parser = duration)]
        ttl: Duration,
    },
    /// Destroy a sandbox with all that it keeps.
    Destroy {
        /// Its id; may be repeated.
        #[arg(required = true)]
        ids: Vec<SandboxId>,
    },
    /// Run one command in a sandbox of its own, which is destroyed afterwards.
    #[command(
        override_usage = "stockade sandbox run [OPTIONS] -- CMD [ARG]...\n       stockade sandbox run [OPTIONS] -c SCRIPT"
    )]
    Run(SandboxRunArgs),
    /// Stop every process of a sandbox.
    Pause {
        /// Its id.
        id: SandboxId,
    },
    /// Let a sandbox that is paused go on.
    Resume {
        /// Its id.
        id: SandboxId,
    },
    /// Keep the files of a sandbox as they are now, for `create --from`.
    Snapshot {
        /// Its id.
        id: SandboxId,
        /// The directory to make.
        directory: PathBuf,
    },
    /// Show what was run in a sandbox: when, by whom, how it ended.
    Logs {
        /// Its id.
        id: SandboxId,
        /// Go on with what is run from now on, until the sandbox is over.
        #[arg(long, short)]
        follow: bool,
        /// Answer as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Show what each sandbox uses now, again and again on a terminal.
    Top {
        /// Show it once.
        #[arg(long)]
        once: bool,
        /// Answer once, as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// The process that keeps a sandbox; started by those that make one.
    #[command(hide = true)]
    Keep,
}

/// What a sandbox is to be.
#[derive(Args, Debug)]
pub struct Kind {
    /// The powers of its commands: `workspace`, or one from the configuration.
    #[arg(long, value_name = "P")]
    pub profile: Option<String>,
    /// What makes its walls; `auto` takes the first that serves.
    #[arg(long, value_name = "KIND", value_parser = backend, default_value = "auto")]
    pub backend: BackendChoice,
    /// The runtime of the container engine, e.g. `runsc`, where it is not its own choice.
    #[arg(long, value_name = "NAME")]
    pub runtime: Option<RuntimeName>,
    /// The read-only system inside: an image of a container engine by its content,
    /// `NAME@sha256:...` or `sha256:...` of one that is here.
    #[arg(long, value_name = "IMAGE", group = "system")]
    pub image: Option<ImageDigest>,
    /// The read-only system inside: a directory with a root tree.
    #[arg(long, value_name = "DIR", group = "system")]
    pub root: Option<PathBuf>,
    /// A limit of its commands that holds where it is lower than the profile's, e.g.
    /// memory=2GiB; may be repeated.
    #[arg(long = "limit", value_name = "NAME=AMOUNT", value_parser = limit)]
    pub limits: Vec<(Limit, u64)>,
    /// How strong its walls have to be: `restricted` where less is meant to do.
    #[arg(long, value_name = "L")]
    pub level: Option<LevelArg>,
    /// Begin with a copy of this directory.
    #[arg(long, value_name = "DIR", group = "source")]
    pub copy: Option<PathBuf>,
    /// Begin with this snapshot of a sandbox: its workspace and its home.
    #[arg(long, value_name = "DIR", group = "source")]
    pub from: Option<PathBuf>,
    /// Work in this directory itself.
    #[arg(long, value_name = "DIR", group = "source")]
    pub bind: Option<PathBuf>,
    /// Begin with a clone of this repository, made inside.
    #[arg(long, value_name = "URL", group = "source")]
    pub repo: Option<RepositoryUrl>,
    /// The branch, tag or commit of it.
    #[arg(long, value_name = "REV", requires = "repo")]
    pub rev: Option<Revision>,
    /// What it is known by; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
}

/// `stockade sandbox create`.
#[derive(Args, Debug)]
pub struct SandboxCreateArgs {
    /// What it is to be.
    #[command(flatten)]
    pub kind: Kind,
    /// Destroy it so long after it was made, e.g. `8h`.
    #[arg(long, value_name = "T", value_parser = duration)]
    pub ttl: Option<Duration>,
    /// Destroy it when it was not used for this long.
    #[arg(long, value_name = "T", value_parser = duration)]
    pub idle_timeout: Option<Duration>,
}

/// How one command is run in a sandbox.
#[derive(Args, Clone, Debug)]
pub struct Manner {
    /// One added power, e.g. 'connect pypi.org:443', or a group of hosts, e.g. @npm,
    /// without a question: it is your own yes; may be repeated.
    #[arg(long = "grant", value_name = "G")]
    pub grants: Vec<OsString>,
    /// A power to ask for, e.g. 'connect pypi.org:443', or a group of hosts, e.g. @npm:
    /// rules, the mode and a person decide on it, as for a program that is not the person;
    /// may be repeated.
    #[arg(long = "request", value_name = "G")]
    pub requests: Vec<OsString>,
    /// When to ask, as for `run`.
    #[arg(long, value_name = "M", value_parser = approval_mode)]
    pub mode: Option<ApprovalMode>,
    /// End the command after this long, e.g. `90s`.
    #[arg(long, value_name = "T", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Give the command a terminal of its own, relayed to this one.
    #[arg(long, short)]
    pub tty: bool,
    /// Write the outcome as one JSON object to FILE; without FILE to standard
    /// output, with the command's own output inside.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    #[allow(clippy::option_option, reason = "clap's form of an option with an optional value")]
    pub json: Option<Option<PathBuf>>,
}

/// `stockade sandbox exec`.
#[derive(Args, Debug)]
pub struct SandboxExecArgs {
    /// How.
    #[command(flatten)]
    pub manner: Manner,
    /// The sandbox's id.
    pub id: SandboxId,
    /// What to run.
    #[command(flatten)]
    pub subject: Subject,
}

/// `stockade sandbox run`.
#[derive(Args, Debug)]
pub struct SandboxRunArgs {
    /// What the sandbox is to be.
    #[command(flatten)]
    pub kind: Kind,
    /// Write to FILE what the command changed in the repository, as `git diff` says it.
    #[arg(long, value_name = "FILE", requires = "repo")]
    pub diff: Option<PathBuf>,
    /// How the command is run.
    #[command(flatten)]
    pub manner: Manner,
    /// What to run.
    #[command(flatten)]
    pub subject: Subject,
}

fn backend(text: &str) -> Result<BackendChoice, String> {
    let all = [BackendChoice::Auto, BackendChoice::Native, BackendChoice::Docker, BackendChoice::Podman];
    let found = all.into_iter().find(|choice| choice.as_str() == text);
    found.ok_or_else(|| "one of `auto`, `native`, `docker`, `podman`".to_owned())
}

fn label(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "a label is KEY=VALUE".to_owned())
}
