//! Command-line arguments. Types only: this module reads no file, path or variable.
//! [`crate::resolved_args`] resolves the arguments.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use serde::de::DeserializeOwned;
use stockade_model::{ApprovalMode, GranularMode, IsolationLevel, LimitKind, SandboxPreference};

use crate::detached_args::{AttachArgs, KillArgs, LogsArgs, PsArgs, WaitArgs, WriteArgs};
use crate::sandbox_args::SandboxCommand;
use crate::session_args::SessionCommand;

/// Run untrusted commands in a sandbox, with approval and an audit log.
#[derive(Debug, Parser)]
#[command(
    name = "stockade",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Exit codes: the command's own; 124 timed out; 125 Stockade could not do its part; \
                  126 refused; 127 program not found; 128+n ended by signal n."
)]
pub struct CommandLine {
    /// The subcommand.
    #[command(subcommand)]
    pub command: CliCommand,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Run one command in the sandbox.
    Run(RunArgs),
    /// List detached runs, the newest first.
    Ps(PsArgs),
    /// Show the output of a detached run.
    Logs(LogsArgs),
    /// Attach this terminal to a detached run: its output, its input, its questions.
    Attach(AttachArgs),
    /// Write standard input to the input of a detached run; commands for a shell are assessed.
    Write(WriteArgs),
    /// Wait for a detached run; the exit code is that of `run`.
    Wait(WaitArgs),
    /// End a detached run, and wait until all its processes are gone.
    Kill(KillArgs),
    /// Run commands one after the other, each in a fresh sandbox that was prepared ahead.
    #[command(subcommand)]
    Session(SessionCommand),
    /// Manage persistent sandboxes: create them, run commands in them, destroy them.
    #[command(subcommand)]
    Sandbox(Box<SandboxCommand>),
    /// Run a helper inside the container of a sandbox; for internal use.
    #[command(subcommand, hide = true)]
    Inside(InsideCommand),
    /// Assess a command without running it.
    Check(CheckArgs),
    /// Show the isolation that this machine can enforce, by testing it.
    Doctor(DoctorArgs),
    /// List, show and revoke remembered answers.
    #[command(subcommand)]
    Approvals(ApprovalsCommand),
    /// Read and verify the audit log.
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Show the network connections of runs.
    #[command(subcommand)]
    Net(NetCommand),
    /// Check, explain, test, import and change policy.
    #[command(subcommand)]
    Policy(crate::policy_args::PolicyCommand),
    /// Compare, commit and discard the staged changes of runs.
    #[command(subcommand)]
    Stage(StageCommand),
    /// Show the changes that a run made in its workspace, if it was run with undo.
    Changes(crate::undo_args::ChangesArgs),
    /// Undo the changes that a run made in its workspace, or forget its backups.
    Undo(crate::undo_args::UndoArgs),
    /// List and remove the caches of tools that runs have written.
    #[command(subcommand)]
    Cache(crate::cache_args::CacheCommand),
    /// Print completions for a shell.
    Completions(CompletionsArgs),
    /// Print a manual page, in roff.
    Man(ManArgs),
}

/// The command: either words or a script.
#[derive(Args, Debug, Default)]
#[group(id = "subject", multiple = false)]
pub struct CommandArgs {
    /// A script for `bash -c`, instead of CMD.
    #[arg(short = 'c', value_name = "SCRIPT")]
    pub script: Option<OsString>,
    /// Program and arguments, after `--`; nothing is expanded.
    #[arg(last = true, value_name = "CMD")]
    pub words: Vec<OsString>,
}

/// `stockade run`.
#[derive(Args, Debug, Default)]
#[command(args_override_self = true)]
#[command(override_usage = "stockade run [OPTIONS] -- CMD [ARG]...\n       stockade run [OPTIONS] -c SCRIPT")]
pub struct RunArgs {
    /// Options of the run.
    #[command(flatten)]
    pub options: RunOptions,
    /// The session whose remembered answers apply, e.g. `work`; also from STOCKADE_SESSION.
    #[arg(long, value_name = "S")]
    pub session: Option<String>,
    /// Print the run's id once the command has started, and let it continue without this terminal:
    /// see `stockade ps`, `logs`, `attach`, `wait` and `kill`.
    #[arg(long)]
    pub detach: bool,
    /// Keep the standard input of a detached run open, for `stockade attach` and `write`.
    #[arg(long, short, requires = "detach")]
    pub interactive: bool,
    /// Give the command a terminal of its own: for editors, shells with job control and other
    /// programs that need one. It is relayed to this terminal or, for a detached run, to each
    /// client that attaches.
    #[arg(long, short)]
    pub tty: bool,
    /// Show at the end how long each step took.
    #[arg(long, conflicts_with = "detach")]
    pub timings: bool,
    /// Write the outcome as one JSON object to FILE; without FILE, to standard output, including
    /// the command's own output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    #[allow(clippy::option_option, reason = "clap's form of an option with an optional value")]
    pub json: Option<Option<PathBuf>>,
    /// The command to run.
    #[command(flatten)]
    pub subject: CommandArgs,
}

/// Options of a run.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// The profile to run with: `read-only`, `strict`, `workspace`, or one from the configuration.
    #[arg(long, value_name = "P")]
    pub profile: Option<String>,
    /// A grant to add without a question, e.g. 'write ~/.cache/pip' or 'connect pypi.org:443'; a
    /// group of hosts, e.g. @npm (see `stockade policy groups`); or a key of your ssh agent,
    /// @git-signing or @ssh:HOST. It counts as your own yes; may be repeated. For a command that an
    /// agent chose see --request.
    #[arg(long = "grant", value_name = "G")]
    pub grants: Vec<OsString>,
    /// A grant to ask for, e.g. 'connect pypi.org:443', or a group of hosts, e.g. @npm. Rules, the
    /// approval mode and a person decide on it, as for the request of a program; may be repeated.
    #[arg(long = "request", value_name = "G")]
    pub requests: Vec<OsString>,
    /// A limit that applies if it is lower than the profile's, e.g. memory=2GiB, processes=100,
    /// cpus=1.5; may be repeated. To raise one: --grant 'memory 32GiB'.
    #[arg(long = "limit", value_name = "NAME=AMOUNT", value_parser = parse_limit)]
    pub limits: Vec<(LimitKind, u64)>,
    /// The directory that may be written [default: the current one].
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// The approval mode: untrusted, on-failure, on-request, never, or granular:CLASS,... with the
    /// classes run, filesystem, network, other.
    #[arg(long, value_name = "M", value_parser = approval_mode)]
    pub mode: Option<ApprovalMode>,
    /// The isolation level to require; the run is refused if it is not available.
    #[arg(long, value_name = "L", value_parser = named_values(LEVELS))]
    pub level: Option<IsolationLevel>,
    /// Keep writes in the workspace apart from it, to be reviewed, committed or discarded: see
    /// `stockade stage`.
    #[arg(long)]
    pub stage: bool,
    /// Back up each file of the workspace before the command changes it, so that `stockade undo`
    /// can restore it; a change that cannot be backed up is refused.
    #[arg(long)]
    pub undo: bool,
    /// Record the files that are read, for `stockade policy suggest`; every open is slower.
    #[arg(long)]
    pub trace: bool,
    /// The sandbox requirement. `forbid` runs without a sandbox: only with `--profile host`, which
    /// the configuration must permit and a person must confirm.
    #[arg(long, value_name = "PREF", value_parser = named_values(SANDBOX_PREFERENCES))]
    pub sandbox: Option<SandboxPreference>,
    /// End the command after this time, e.g. `90s`, `5m`, `1h30m`; time spent on questions does not
    /// count.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Time-out for the answer to a question; no answer means no.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    pub approval_timeout: Option<Duration>,
}

/// `stockade check`.
#[derive(Args, Debug, Default)]
#[command(
    override_usage = "stockade check [OPTIONS] -- CMD [ARG]...\n       stockade check [OPTIONS] -c SCRIPT\n       stockade check [OPTIONS] --jsonl"
)]
pub struct CheckArgs {
    /// Answer as one JSON object.
    #[arg(long, conflicts_with = "jsonl")]
    pub json: bool,
    /// Read one {"script": "...", "cwd": "..."} a line from standard input and answer with one line
    /// each, in order.
    #[arg(long, conflicts_with = "subject")]
    pub jsonl: bool,
    /// The profile to assess the command with.
    #[arg(long, value_name = "P")]
    pub profile: Option<String>,
    /// The directory that may be written [default: the current one].
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// The approval mode, as for `run`.
    #[arg(long, value_name = "M", value_parser = approval_mode)]
    pub mode: Option<ApprovalMode>,
    /// A grant that would be requested, as for `run`; may be repeated.
    #[arg(long = "request", value_name = "G")]
    pub requests: Vec<OsString>,
    /// The command to assess.
    #[command(flatten)]
    pub subject: CommandArgs,
}

/// `stockade doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Answer as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `stockade approvals`.
#[derive(Debug, Subcommand)]
pub enum ApprovalsCommand {
    /// List the answers in force, the newest first.
    List {
        /// Only answers of this session.
        #[arg(long, value_name = "S")]
        session: Option<String>,
        /// Answers that are no longer in force as well.
        #[arg(long)]
        all: bool,
        /// Answer as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Show one remembered answer.
    Show {
        /// Id of the answer, as `list` shows it.
        id: String,
        /// Answer as one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Forget one remembered answer; the next run asks again.
    Revoke {
        /// Id of the answer, as `list` shows it.
        id: String,
    },
}

/// `stockade audit`.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Show the audit log, oldest first.
    Show {
        /// Only the last N events.
        #[arg(long, value_name = "N")]
        last: Option<usize>,
        /// Answer as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Check that no part of the audit log was changed, removed or cut off.
    Verify {
        /// Answer as one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Show the events that match all the given conditions.
    Query(AuditQueryArgs),
}

/// `stockade audit query`.
#[derive(Args, Debug)]
pub struct AuditQueryArgs {
    /// Only events of this request.
    #[arg(long, value_name = "ID")]
    pub request: Option<String>,
    /// Only events of this session.
    #[arg(long, value_name = "S")]
    pub session: Option<String>,
    /// Only events of this type, e.g. `denied`, `answered`, `finished`.
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<String>,
    /// Only events that contain this text, letter for letter.
    #[arg(long, value_name = "TEXT")]
    pub text: Option<String>,
    /// Only events not older than this, e.g. `2h`.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    pub since: Option<Duration>,
    /// Answer as one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// `stockade net`.
#[derive(Debug, Subcommand)]
pub enum NetCommand {
    /// Show each connection, refusal and held call, oldest first.
    Log(NetArgs),
    /// Show each host with its connections and bytes, the busiest first.
    Top(NetArgs),
}

/// `stockade net log` and `top`.
#[derive(Args, Debug)]
pub struct NetArgs {
    /// Only events of this session.
    #[arg(long, value_name = "S")]
    pub session: Option<String>,
    /// Only events of this request.
    #[arg(long, value_name = "ID")]
    pub request: Option<String>,
    /// Only events not older than this, e.g. `2h`.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    pub since: Option<Duration>,
    /// Continue as the audit log grows, until interrupted. A connection is recorded once it has
    /// ended.
    #[arg(long)]
    pub follow: bool,
    /// Answer as JSON objects, one a line.
    #[arg(long)]
    pub json: bool,
}

/// `stockade stage`.
#[derive(Debug, Subcommand)]
pub enum StageCommand {
    /// List the stages, the newest first.
    List {
        /// Answer as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Show the changes that a stage would make in its workspace.
    Diff {
        /// The stage, and paths in it [default: the newest stage of this workspace, everything].
        #[arg(value_name = "ID|PATH")]
        target: Vec<OsString>,
        /// Only the paths, not the changed lines.
        #[arg(long)]
        summary: bool,
        /// Answer as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Apply the staged changes to their workspace.
    Commit {
        /// The stage, and paths in it [default: the only stage of this workspace, everything].
        #[arg(value_name = "ID|PATH")]
        target: Vec<OsString>,
        /// A protected path that may be committed, e.g. `.git/hooks`; may be repeated.
        #[arg(long = "protected", value_name = "PATH")]
        protected: Vec<OsString>,
        /// Answer as one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Remove staged changes.
    Discard {
        /// The stage, and paths in it [default: the only stage of this workspace, everything].
        #[arg(value_name = "ID|PATH")]
        target: Vec<OsString>,
        /// Every stage of this workspace.
        #[arg(long, conflicts_with = "target")]
        all: bool,
        /// Answer as one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Finish or undo commits that were interrupted.
    Recover {
        /// Answer as one JSON object a line.
        #[arg(long)]
        json: bool,
    },
}

/// `stockade completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// `stockade man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// The subcommand, e.g. `sandbox create` [default: the page of Stockade itself].
    #[arg(value_name = "COMMAND", conflicts_with = "directory")]
    pub command: Vec<String>,
    /// Write the pages of all subcommands into this directory, which is created if it is missing.
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

/// Values of an option: the name, the help text and the value of each.
pub type NamedValues<T> = &'static [(&'static str, &'static str, T)];

/// Returns the parser of an option with named values.
pub fn named_values<T: Clone + Send + Sync>(values: NamedValues<T>) -> impl TypedValueParser<Value = T> {
    let names = values.iter().map(|(name, help, _)| PossibleValue::new(*name).help(*help));
    let value = |typed: String| values.iter().find(|(name, ..)| *name == typed).map(|(.., value)| value.clone());
    PossibleValuesParser::new(names).try_map(move |typed| value(typed).ok_or("no such value"))
}

/// `--level`: the levels that a user may ask for by name.
pub const LEVELS: NamedValues<IsolationLevel> = &[
    ("full", "Namespaces, a root filesystem of its own, Landlock, seccomp", IsolationLevel::Full),
    ("restricted", "Landlock and seccomp only", IsolationLevel::Restricted),
];

/// `--sandbox`.
const SANDBOX_PREFERENCES: NamedValues<SandboxPreference> = &[
    ("auto", "As the profile specifies", SandboxPreference::Auto),
    ("require", "Never without a sandbox", SandboxPreference::Require),
    ("forbid", "Without a sandbox", SandboxPreference::Forbid),
];

pub(crate) fn approval_mode(text: &str) -> Result<ApprovalMode, String> {
    match text.strip_prefix("granular:") {
        Some(classes) => parse_granular_mode(classes).map(ApprovalMode::Granular),
        None => parse_name(text).ok_or_else(|| {
            "the modes are untrusted, on-failure, on-request, never and granular:CLASS[,CLASS]...".to_owned()
        }),
    }
}

/// Parses the serialised name of a value without fields.
pub(crate) fn parse_name<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_value(text.into()).ok()
}

fn parse_granular_mode(classes: &str) -> Result<GranularMode, String> {
    let mut mode = GranularMode::default();
    for class in classes.split(',').filter(|class| !class.is_empty()) {
        match class {
            "run" => mode.run = true,
            "filesystem" => mode.filesystem = true,
            "network" => mode.network = true,
            "other" => mode.other = true,
            _ => return Err("the classes are run, filesystem, network and other".to_owned()),
        }
    }
    Ok(mode)
}

/// Longest time that can be given: a year.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns the command that these words name, e.g. `stockade sandbox exec`.
pub fn command_path(typed: impl Iterator<Item = OsString>) -> String {
    let mut command = CommandLine::command();
    let mut path = command.get_name().to_owned();
    for word in typed {
        let Some(inner) = command.find_subcommand(&word).cloned() else { break };
        path = format!("{path} {}", inner.get_name());
        command = inner;
    }
    path
}

/// Parses `NAME=AMOUNT`.
pub(crate) fn parse_limit(text: &str) -> Result<(LimitKind, u64), String> {
    let (name, amount) = text.split_once('=').ok_or("expected NAME=AMOUNT, e.g. memory=2GiB")?;
    let limit = LimitKind::from_name(name)
        .ok_or_else(|| format!("the limits are {}", LimitKind::ALL.map(LimitKind::name).join(", ")))?;
    let amount = limit.parse_amount(amount)?;
    if limit == LimitKind::Memory && amount < MIN_MEMORY_BYTES {
        return Err(format!("a process needs at least memory={}", limit.format_amount(MIN_MEMORY_BYTES)));
    }
    Ok((limit, amount))
}

/// Least memory with which a small program starts.
const MIN_MEMORY_BYTES: u64 = 1 << 20;

/// Parses `500ms`, `90s`, `5m`, `1h30m`, `2d`; a bare number is seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    const DURATION_FORMAT: &str = "a time is written like 500ms, 90s, 5m, 1h30m or 2d; a bare number is seconds";
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let unit = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, tail) = tail.split_at(unit);
        let number: u64 = number.parse().map_err(|_| DURATION_FORMAT)?;
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "" if tail.is_empty() && total.is_zero() => 1_000,
            _ => return Err(DURATION_FORMAT.to_owned()),
        };
        let part = Duration::from_millis(number.checked_mul(unit_ms).ok_or(DURATION_FORMAT)?);
        total = total.checked_add(part).ok_or(DURATION_FORMAT)?;
        rest = tail;
    }
    match total {
        Duration::ZERO if text.is_empty() => Err(DURATION_FORMAT.to_owned()),
        Duration::ZERO => Err("the shortest time is 1ms".to_owned()),
        total if total > MAX_DURATION => Err("the longest time is 365d".to_owned()),
        total => Ok(total),
    }
}

/// `stockade inside`.
#[derive(clap::Subcommand, Debug)]
pub enum InsideCommand {
    /// Run as the first process of a container.
    Hold,
    /// Run as the launcher of one command.
    Serve,
    /// Report the isolation that is available in a container.
    Probe,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<CommandLine, clap::Error> {
        CommandLine::try_parse_from(std::iter::once("stockade").chain(line.split_whitespace()))
    }

    #[track_caller]
    fn run(line: &str) -> RunArgs {
        match parse(line).unwrap().command {
            CliCommand::Run(run) => run,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn refused(line: &str) {
        assert!(parse(line).is_err(), "{line}");
    }

    #[test]
    fn the_definition_is_consistent() {
        CommandLine::command().debug_assert();
    }

    /// Collects the help of a command and of its subcommands.
    fn help_of(command: &mut clap::Command, shown: &mut String) {
        let help = command.render_help().to_string();
        shown.push_str(&format!("--- {}\n{help}\n", command.get_name()));
        command.get_subcommands_mut().for_each(|sub| help_of(sub, shown));
    }

    #[test]
    fn help() {
        let mut command = CommandLine::command().term_width(100);
        command.build();
        let mut shown = String::new();
        help_of(&mut command, &mut shown);
        insta::assert_snapshot!("help", shown);
    }

    #[test]
    fn everything_after_the_dashes_belongs_to_the_command() {
        let run = run("run --profile read-only -- ls --profile x -- -c");
        assert_eq!(run.options.profile.as_deref(), Some("read-only"));
        assert_eq!(run.subject.words, ["ls", "--profile", "x", "--", "-c"]);
    }

    #[test]
    fn the_last_word_counts_and_grants_add_up() {
        let run = run("run --profile a --grant x --profile b --grant y --json --json=f -- true");
        assert_eq!(run.options.profile.as_deref(), Some("b"));
        assert_eq!(run.options.grants, ["x", "y"]);
        assert_eq!(run.json, Some(Some("f".into())));
        let run = self::run("run --request x --grant y --request z -- true");
        assert_eq!((run.options.requests, run.options.grants), (vec!["x".into(), "z".into()], vec!["y".into()]));
        let run = self::run("run --limit memory=2GiB --limit cpus=1.5 --limit memory=1GiB -- true");
        assert_eq!(
            run.options.limits,
            [(LimitKind::Memory, 2 << 30), (LimitKind::Cpus, 1500), (LimitKind::Memory, 1 << 30)]
        );
    }

    #[test]
    fn json_takes_a_file_only_with_an_equals_sign() {
        assert_eq!(run("run --json -- true").json, Some(None));
        assert_eq!(run("run --json=out -- true").json, Some(Some("out".into())));
        assert_eq!(run("run -- true --json").json, None);
    }

    #[test]
    fn unclear_input_is_refused() {
        for line in [
            "",
            "run ls",
            "run -c x -- ls",
            "run -c",
            "run --level none -- true",
            "run --mode sometimes -- true",
            "run --mode granular:everything -- true",
            "run --timeout 0 -- true",
            "run --timeout 5x -- true",
            "run --timeout 9999d -- true",
            "run --limit memory -- true",
            "run --limit memory=8GB -- true",
            "run --limit memory=100TiB -- true",
            "run --limit swap=1GiB -- true",
            "run --limit open_files=3 -- true",
            "run --no-sandbox -- true",
            "run --prof x -- true",
            "check --json --jsonl",
            "check --jsonl -- ls",
            "check --jsonl -c ls",
            "audit",
            "approvals show",
            "logs",
            "kill",
            "kill --signal STOP req_1",
            "wait",
            "session",
            "session exec -- true",
            "session exec one true",
            "session end",
        ] {
            refused(line);
        }
    }

    #[test]
    fn modes() {
        assert_eq!(run("run --mode never -- x").options.mode, Some(ApprovalMode::Never));
        let expected = GranularMode { filesystem: true, other: true, ..GranularMode::default() };
        assert_eq!(
            run("run --mode granular:filesystem,other -- x").options.mode,
            Some(ApprovalMode::Granular(expected))
        );
    }

    #[test]
    fn times() {
        for (text, ms) in [("500ms", 500), ("90s", 90_000), ("7", 7_000), ("1h30m", 5_400_000), ("2d", 172_800_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "0", "-1", "1.5s", "s", "5 m", "1h30", "99999999999999999999"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
