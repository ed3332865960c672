//! Arguments of `stockade policy`. Types only, like `args`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use stockade_model::{ApprovalMode, PolicyVerdict};
use stockade_policy::{ConfigLayer, ImportTool};

use crate::args::{CommandArgs, NamedValues, approval_mode, named_values, parse_duration, parse_name};

/// `stockade policy`.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Check the configuration in force, or files, without running anything.
    Check(PolicyCheckArgs),
    /// Show the decision and the result of every rule; without a subject, every setting and its
    /// origin.
    #[command(
        override_usage = "stockade policy explain [OPTIONS] [-- CMD [ARG]...]\n       stockade policy explain [OPTIONS] -c SCRIPT\n       stockade policy explain [OPTIONS] --call 'NAME {...}' | --file 'write PATH' | --host HOST[:PORT]"
    )]
    Explain(PolicyExplainArgs),
    /// Run files of examples against the configuration in force.
    Test(PolicyTestArgs),
    /// Format configuration files; comments stay.
    Fmt(PolicyFmtArgs),
    /// Print the decision matrix of a profile.
    Table(PolicyTableArgs),
    /// List the shipped groups of hosts, such as `@pypi`.
    Groups(PolicyGroupsArgs),
    /// Decide the requests of the audit log again, and show which decisions change.
    Replay(PolicyReplayArgs),
    /// Import the rules of another tool.
    Import(PolicyImportArgs),
    /// Suggest the smallest profile that would have allowed the grants of a session.
    Suggest(PolicySuggestArgs),
    /// Write the smallest rule for a command or a host, as an answer `always` would.
    #[command(
        override_usage = "stockade policy amend [OPTIONS] -- CMD [ARG]...\n       stockade policy amend [OPTIONS] -c SCRIPT\n       stockade policy amend [OPTIONS] --host HOST:PORT"
    )]
    Amend(PolicyAmendArgs),
}

/// `stockade policy check`.
#[derive(Args, Debug)]
pub struct PolicyCheckArgs {
    /// The workspace whose project file counts [default: the current directory].
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// The layer that each FILE belongs to.
    #[arg(long, value_name = "LAYER", default_value = "user", value_parser = named_values(LAYERS))]
    pub layer: ConfigLayer,
    /// Files to check by themselves, instead of the configuration in force.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// `stockade policy explain`.
#[derive(Args, Debug)]
pub struct PolicyExplainArgs {
    /// Answer as one JSON object.
    #[arg(long)]
    pub json: bool,
    /// The profile to decide with.
    #[arg(long, value_name = "P")]
    pub profile: Option<String>,
    /// The directory that may be written [default: the current one].
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// The approval mode, as for `run`.
    #[arg(long, value_name = "M", value_parser = approval_mode)]
    pub mode: Option<ApprovalMode>,
    /// The session.
    #[arg(long, value_name = "S")]
    pub session: Option<String>,
    /// The tool that the command comes through.
    #[arg(long, value_name = "NAME")]
    pub tool: Option<String>,
    /// A tool call: its name, and its arguments as JSON.
    #[arg(long, value_name = "CALL", group = "subject")]
    pub call: Option<String>,
    /// A file change, e.g. 'write ./src/a.rs'.
    #[arg(long, value_name = "CHANGE", group = "subject")]
    pub file: Option<String>,
    /// A connection, e.g. pypi.org:443.
    #[arg(long, value_name = "HOST", group = "subject")]
    pub host: Option<String>,
    /// A patch, each of whose files is decided on; `-` for standard input.
    #[arg(long, value_name = "FILE", group = "subject")]
    pub patch: Option<PathBuf>,
    /// The command.
    #[command(flatten)]
    pub subject: CommandArgs,
}

/// `stockade policy test`.
#[derive(Args, Debug)]
pub struct PolicyTestArgs {
    /// The workspace [default: the current directory].
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// Test this file in place of your own configuration.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Fail if fewer than this percentage of the rules is reached.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub coverage: Option<u8>,
    /// Files of examples.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// `stockade policy fmt`.
#[derive(Args, Debug)]
pub struct PolicyFmtArgs {
    /// Change nothing; fail if a file would change.
    #[arg(long)]
    pub check: bool,
    /// Files to format [default: your own configuration].
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// `stockade policy table`.
#[derive(Args, Debug)]
pub struct PolicyTableArgs {
    /// The profile [default: every one].
    #[arg(long, value_name = "P")]
    pub profile: Option<String>,
    /// The workspace whose project file counts [default: the current directory].
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
}

/// `stockade policy groups`.
#[derive(Args, Debug)]
pub struct PolicyGroupsArgs {
    /// Answer as one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// `stockade policy replay`.
#[derive(Args, Debug)]
pub struct PolicyReplayArgs {
    /// The file to try in place of your own configuration.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Only requests of this session.
    #[arg(long, value_name = "S")]
    pub session: Option<String>,
    /// Only requests not older than this, e.g. `2h`.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    pub since: Option<Duration>,
    /// Fail if a decision changes.
    #[arg(long)]
    pub fail_on_change: bool,
    /// Answer as one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// `stockade policy import`.
#[derive(Args, Debug)]
pub struct PolicyImportArgs {
    /// The tool that the rules come from.
    #[arg(long, value_name = "TOOL", value_parser = named_values(TOOLS))]
    pub from: ImportTool,
    /// Write the rules to this new file instead of standard output.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The tool's files. If the location of a copy does not show its layer, write `user=FILE`,
    /// `project=FILE`, `extension=FILE` or `admin=FILE`.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// `stockade policy suggest`.
#[derive(Args, Debug)]
pub struct PolicySuggestArgs {
    /// The session to learn from.
    #[arg(long, value_name = "S", required_unless_present = "request")]
    pub session: Option<String>,
    /// One request to learn from.
    #[arg(long, value_name = "ID")]
    pub request: Option<String>,
    /// The profile to add to.
    #[arg(long, value_name = "P", default_value = "workspace")]
    pub base: String,
    /// The name of the suggested profile.
    #[arg(long, value_name = "NAME", default_value = "learned")]
    pub name: String,
    /// The workspace it ran in [default: that of its requests].
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// Replace three or more files of a directory by the directory, and show what that would newly
    /// allow.
    #[arg(long)]
    pub generalise: bool,
}

/// `stockade policy amend`.
#[derive(Args, Debug)]
pub struct PolicyAmendArgs {
    /// The effect of the rule.
    #[arg(long, value_parser = parse_verdict, value_name = "EFFECT", default_value = "allow")]
    pub effect: PolicyVerdict,
    /// A grant that comes with an `allow`, e.g. 'connect pypi.org:443' or @npm; with `--host` a
    /// secret for one of these hosts, e.g. 'secret github to ghe.example.com:443'; may be repeated.
    #[arg(long = "grant", value_name = "G")]
    pub grants: Vec<OsString>,
    /// A host and port that the rule is for, instead of a command; may be repeated.
    #[arg(long = "host", value_name = "HOST:PORT", conflicts_with = "subject")]
    pub hosts: Vec<String>,
    /// Write the rule; without this option it is only shown.
    #[arg(long)]
    pub write: bool,
    /// The file to write to [default: your own configuration].
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The command.
    #[command(flatten)]
    pub subject: CommandArgs,
}

/// `--layer`.
const LAYERS: NamedValues<ConfigLayer> = &[
    ("managed", "The administrator's file", ConfigLayer::Managed),
    ("system", "The machine's file", ConfigLayer::System),
    ("user", "The user's file", ConfigLayer::User),
    ("project", "The workspace's file", ConfigLayer::Project),
    ("session", "A session's file", ConfigLayer::Session),
];

/// `--from`.
const TOOLS: NamedValues<ImportTool> = &[
    ("codex", "Codex: `.rules` files", ImportTool::Codex),
    ("claude", "Claude Code: `settings.json`", ImportTool::Claude),
    ("gemini", "Gemini CLI: `policies/*.toml` and `settings.json`", ImportTool::Gemini),
];

fn parse_verdict(text: &str) -> Result<PolicyVerdict, String> {
    parse_name(text).ok_or_else(|| "the effects are allow, ask and deny".to_owned())
}
