//! Content of a configuration file, as types. The committed schema and `docs/configuration.md` are
//! generated from them: every doc comment here is read by users.
//!
//! Must not know layers: `merge` refuses keys that a layer must not set.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use stockade_model::{
    ApprovalMode, GranularMode, IsolationLevel, Limits, PolicyVerdict, ProgramPattern, SandboxPreference,
};

use crate::egress_file::EgressSection;
use crate::hosts::HostEntry;
use crate::notify::NotifySection;
use crate::pattern::{GrantEntry, PathFact, PathPattern, RuleName, TimeWindow, WordPattern};
use crate::review::ReviewSection;
use crate::text::{
    ConfigBytes, ConfigDuration, ConfigPath, DropPattern, MemoryBytes, PassPattern, ProcessorCount, ProfileKey,
    ProfileName, ProtectedName, VariableName,
};

/// Stockade's configuration.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigFile {
    /// The profile of runs that name none. Default: `workspace`. A project may only choose one with fewer
    /// powers.
    pub profile: Option<ProfileName>,
    /// When to ask for approval. Default: `on-failure`. A project may only choose a stricter mode.
    pub approval_mode: Option<ModeName>,
    /// Details of approval modes.
    pub approval: ApprovalSection,
    /// Time-out for a question; a missing answer counts as no. Default: `120s`. A project may only shorten
    /// it.
    pub approval_timeout: Option<ConfigDuration>,
    /// Whether a sandbox is required. Default: `auto`. A project may only set `require`.
    pub sandbox: Option<SandboxPreference>,
    /// Required strength of the sandbox. Default: `full`. A project may only raise it.
    pub level: Option<LevelName>,
    /// Whether a user may be asked to run one command without a sandbox. Default: `false`. System and user
    /// configuration only.
    pub allow_host: Option<bool>,
    /// A model that gives an opinion on questions.
    pub review: Option<ReviewSection>,
    /// Receivers of notices about persistent sandboxes.
    pub notify: Option<NotifySection>,
    /// Profiles by name: new ones, or additions to `read-only` and `workspace`.
    pub profiles: BTreeMap<ProfileKey, ProfileSection>,
    /// Algorithm that combines the rules of this file to one answer. Default: `deny-overrides`.
    pub combining: CombiningAlgorithm,
    /// Rules. Deny outweighs ask, ask outweighs allow, whatever their order and file.
    pub rules: Vec<RuleSection>,
}

/// When to ask for approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ModeName {
    /// Ask before every run, unless the run is known to be safe or changes files of the workspace only.
    Untrusted,
    /// Run in the sandbox; ask when an operation was refused.
    OnFailure,
    /// Ask when the request itself asks for more powers than its profile gives.
    OnRequest,
    /// Never ask: an operation that is not allowed is refused.
    Never,
    /// Ask per class of power, see `[approval.granular]`.
    Granular,
}

/// Details of approval modes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApprovalSection {
    /// For `approval_mode = "granular"`: the classes that may be asked about. A class that is not named is
    /// refused without a question.
    pub granular: Option<GranularMode>,
}

/// Required strength of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LevelName {
    /// Namespaces, a private root, Landlock, seccomp.
    Full,
    /// Landlock and seccomp only: for containers and hosts without user namespaces.
    Restricted,
}

/// A profile, as additions to another.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProfileSection {
    /// The profile that this one adds to. Default: `workspace`. Not allowed on a profile that already
    /// exists, and never `host`.
    pub extends: Option<ProfileName>,
    /// Directories or files that may be written. Not in project configuration.
    pub write: Vec<ConfigPath>,
    /// Directories or files that cannot be read.
    pub hide: Vec<ConfigPath>,
    /// Paths that can be read although a hidden directory contains them, or that are no longer hidden. Not
    /// in project configuration.
    pub reveal: Vec<ConfigPath>,
    /// Names that cannot be written or created in any writable directory, in addition to the built-in ones.
    pub protect: Vec<ProtectedName>,
    /// Unix sockets of the host that the run may connect to. Not in project configuration.
    pub sockets: Vec<ConfigPath>,
    /// Whether writes to the workspace wait in a stage until a user commits or discards them. A project may
    /// only set `true`.
    pub stage: Option<bool>,
    /// Whether data that a run changes in the workspace is saved first, so that `stockade undo` can restore
    /// it. Data that cannot be saved is not changed. A project may only set `true`.
    pub undo: Option<bool>,
    /// Most bytes of undo data for one run, e.g. `4GiB`. Default: `1GiB`. A project may only lower it.
    pub undo_bytes: Option<ConfigBytes>,
    /// Whether the caches and package stores of tools are written in private layers of the workspace, which
    /// persist between runs. Default: `true` in `workspace`. A project may only set `false`.
    pub caches: Option<bool>,
    /// Programs that need approval or are refused, in the whole process tree of a run.
    pub exec: ExecSection,
    /// Variables.
    pub env: EnvSection,
    /// Limits. A project may only lower them.
    pub limits: LimitsSection,
    /// Rules for connections through the egress proxy.
    pub egress: EgressSection,
}

/// Programs that are asked about or refused when a run starts them, at any depth. The command itself is
/// excluded, because it was already approved. An entry is `PROGRAM [ARGUMENT...]`: `git push`,
/// `/usr/bin/ssh`, `python* -m pip`. SECURITY.md describes the guarantees and their limits.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExecSection {
    /// Programs that are asked about, unless `exec PATH` was granted. They are refused if no approver can
    /// be asked.
    pub ask: Vec<ProgramPattern>,
    /// Programs that are refused, whatever was granted.
    pub deny: Vec<ProgramPattern>,
}

/// Variables. Within one file `drop` outweighs `pass`; a later file outweighs an earlier one.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EnvSection {
    /// Variables of the caller that pass. An exact name passes although a pattern in `drop` of an earlier
    /// file covers it. Not in project configuration.
    pub pass: Vec<PassPattern>,
    /// Variables that do not pass.
    pub drop: Vec<DropPattern>,
    /// Variables set to a value. Not in project configuration.
    pub set: BTreeMap<String, String>,
}

/// Limits of a run.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsSection {
    /// Wall clock, e.g. `10m`.
    pub wall: Option<ConfigDuration>,
    /// Processor time of all processes together, e.g. `2h`.
    pub cpu_time: Option<ConfigDuration>,
    /// Processors in use at one time, e.g. `1.5`.
    pub cpus: Option<ProcessorCount>,
    /// Memory of all processes together, without swap, e.g. `16GiB`.
    pub memory: Option<MemoryBytes>,
    /// Processes and threads at one time.
    #[schemars(range(min = 1))]
    pub processes: Option<u64>,
    /// Bytes written to disk, e.g. `50GiB`.
    pub disk: Option<ConfigBytes>,
    /// Files, directories and links created, less those removed.
    #[schemars(range(min = 1))]
    pub inodes: Option<u64>,
    /// Bytes read, and bytes written, per second, e.g. `200MiB`.
    pub io: Option<ConfigBytes>,
    /// Open descriptors of one process.
    #[schemars(range(min = 16))]
    pub open_files: Option<u64>,
    /// Size of one file, e.g. `10GiB`.
    pub file_size: Option<ConfigBytes>,
    /// Size of the private temporary directory, e.g. `2GiB`.
    pub temp: Option<ConfigBytes>,
    /// Size of the kept part of each output stream when output is captured, e.g. `1MiB`.
    pub output: Option<ConfigBytes>,
}

impl LimitsSection {
    /// Returns the limits of the section.
    pub fn to_limits(&self) -> Limits {
        Limits {
            wall_ms: self.wall.map(|v| v.0),
            cpu_time_ms: self.cpu_time.map(|v| v.0),
            cpus_milli: self.cpus.map(|v| v.0),
            memory_bytes: self.memory.map(|v| v.0),
            processes: self.processes,
            disk_bytes: self.disk.map(|v| v.0),
            inodes: self.inodes,
            io_bytes_per_s: self.io.map(|v| v.0),
            open_files: self.open_files,
            file_size_bytes: self.file_size.map(|v| v.0),
            temp_bytes: self.temp.map(|v| v.0),
            output_bytes: self.output.map(|v| v.0),
        }
    }
}

/// Algorithm that combines the rules of one file to one answer. Files are always combined by
/// `deny-overrides`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CombiningAlgorithm {
    /// The strictest of all rules that apply, whatever their order.
    #[default]
    DenyOverrides,
    /// The same answer; if several rules give it, the first of them is reported and its profile is used.
    OrderedDenyOverrides,
    /// The first rule that applies to a command, from the top. A later `deny` of this file has no effect
    /// then; those of other files have.
    FirstApplicable,
}

/// A rule. Its subject is commands (`prefix`, `glob`, `options`, `facts`), tool calls (`tool`), file
/// changes (`files`) or network access (`hosts`). A rule that names none of them is about everything. All
/// given conditions must hold.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleSection {
    /// Name of the rule, shown if the rule decides, e.g. `no-push`.
    pub name: Option<RuleName>,
    /// The program and the start of its arguments, word for word, e.g. `["git", "push"]`. A list instead of
    /// a word means any of its words: `["npm", ["ci", "install"]]`.
    #[serde(default)]
    pub prefix: Vec<WordPattern>,
    /// The whole command, words joined by blanks, `*` for any text; any entry of the list must match, e.g.
    /// `["git * main"]`. Words with blanks count as quoted with `'`.
    #[serde(default)]
    pub glob: Vec<String>,
    /// Options, in any order.
    #[serde(default)]
    pub options: OptionsSection,
    /// Facts that the text of the command shows.
    #[serde(default)]
    pub facts: FactsSection,
    /// Names of tools, `*` for any text: the tool of a tool call, or the tool that a command came through.
    #[serde(default)]
    pub tool: Vec<String>,
    /// Arguments of a tool call by name (`a.b` for a nested argument), each with its allowed texts, `*` for
    /// any text.
    #[serde(default)]
    pub arguments: BTreeMap<String, Vec<String>>,
    /// Files that are changed or read other than by a command, e.g. by a patch.
    #[serde(default)]
    pub files: Vec<PathPattern>,
    /// Operations on the files. Default: all but `read`.
    #[serde(default)]
    pub operations: Vec<FileOperation>,
    /// Hosts that are connected to, e.g. `["*.example.com:443", "@github"]`.
    #[serde(default)]
    pub hosts: Vec<HostEntry>,
    /// Working directory: one of these directories.
    #[serde(default)]
    pub cwd: Vec<PathPattern>,
    /// User of the run: one of these users, by name.
    #[serde(default)]
    pub user: Vec<String>,
    /// Session of the run, `*` for any text.
    #[serde(default)]
    pub session: Vec<String>,
    /// Time of the run: in one of these time windows.
    #[serde(default)]
    pub time: Vec<TimeWindow>,
    /// Effect of the rule: `allow` runs the command without a question in its sandbox, `ask` asks, `deny`
    /// refuses. A project may only use `ask` and `deny`.
    pub effect: PolicyVerdict,
    /// Reason for the rule; shown to the user and to the agent.
    pub justification: String,
    /// The profile to run with. A project may only name one with fewer powers.
    pub profile: Option<ProfileName>,
    /// Powers that are added if the command is allowed or approved, e.g.
    /// `["connect github.com:443", "@npm"]`. A path may start with `~/` or `./`, and a shipped group of
    /// hosts means each host of it. Beside `hosts`: secrets for these hosts, e.g.
    /// `["secret github to ghe.example.com:443"]`. Not in project configuration.
    #[serde(default)]
    pub grants: Vec<GrantEntry>,
    /// Approvers that may agree if the rule asks. Default: `any`.
    pub approver: Option<ApproverName>,
    /// Limits for the command, if they are lower than those of the profile.
    #[serde(default)]
    pub limits: LimitsSection,
    /// Source of the rule, if an answer wrote it: the approver and the time.
    pub provenance: Option<ProvenanceSection>,
    /// Examples that the rule must match; checked whenever the file is read. Commands as a user types them,
    /// `NAME {"argument": "..."}` for tool calls, `write ./path` for files, `host:port` for hosts. Facts,
    /// directory, user, session and time are assumed to match.
    #[serde(default, rename = "match")]
    pub matches: Vec<String>,
    /// Examples that the rule must not match; checked whenever the file is read.
    #[serde(default)]
    pub not_match: Vec<String>,
}

/// Options of a command. `-rf` has `-r` and `-f`, `--force=x` has `--force`; a word after `--` is not an
/// option. If it is uncertain whether an option is present (`--forc`, `-xf`), the answer is the cautious one.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OptionsSection {
    /// Each of these must be present; of a list instead of a word, any.
    pub present: Vec<WordPattern>,
    /// None of these may be present.
    pub absent: Vec<WordPattern>,
}

/// Facts that the text of a command shows. `ask` and `deny` apply if one entry of each list matches,
/// `allow` only if all facts of that kind are covered.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FactsSection {
    /// The command reads these paths; `outside-workspace` for all paths outside the workspace.
    pub reads: Vec<PathFact>,
    /// The command creates or changes these paths; `outside-workspace` for all paths outside the workspace.
    pub writes: Vec<PathFact>,
    /// The command removes these paths; `outside-workspace` for all paths outside the workspace.
    pub deletes: Vec<PathFact>,
    /// The command starts these programs, `*` for any text.
    pub executes: Vec<String>,
    /// The command connects to these hosts; `*` also means an unknown host.
    pub network: Vec<HostEntry>,
    /// Whether the command reads a path or value that looks like a secret.
    pub secrets: Option<bool>,
    /// Whether the command requests more privilege than the caller has.
    pub privilege: Option<bool>,
    /// Codes of findings, `*` for any text, e.g. `fetch-and-run`.
    pub findings: Vec<String>,
}

/// Operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FileOperation {
    /// The content of the file is read.
    Read,
    /// An existing file is changed.
    Write,
    /// The file is created.
    Create,
    /// The file is removed.
    Delete,
}

/// Approvers that may agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ApproverName {
    /// Any approver, and a caller that already agreed.
    #[default]
    Any,
    /// A user, whatever a caller agreed to.
    Person,
}

/// Source of a rule that was not written by hand.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProvenanceSection {
    /// The approver, or the source of an import.
    pub by: String,
    /// Time, e.g. `2026-11-20T10:00:00Z`.
    pub at: Option<String>,
    /// The request of the answer.
    pub request: Option<String>,
}

impl ModeName {
    /// Returns the mode; `None` for `granular` without classes.
    pub(crate) fn with_classes(self, classes: Option<GranularMode>) -> Option<ApprovalMode> {
        match self {
            Self::Untrusted => Some(ApprovalMode::Untrusted),
            Self::OnFailure => Some(ApprovalMode::OnFailure),
            Self::OnRequest => Some(ApprovalMode::OnRequest),
            Self::Never => Some(ApprovalMode::Never),
            Self::Granular => classes.map(ApprovalMode::Granular),
        }
    }
}

impl LevelName {
    pub(crate) fn to_level(self) -> IsolationLevel {
        match self {
            Self::Full => IsolationLevel::Full,
            Self::Restricted => IsolationLevel::Restricted,
        }
    }
}

impl RuleSection {
    /// Returns whether the rule has a condition on the words of a command.
    pub(crate) fn names_commands(&self) -> bool {
        let options = &self.options;
        !(self.prefix.is_empty() && self.glob.is_empty() && options.present.is_empty() && options.absent.is_empty())
    }
}

impl EnvSection {
    /// Returns the first name in `set` that is not a valid variable name.
    pub(crate) fn malformed_name(&self) -> Option<&str> {
        self.set.keys().map(String::as_str).find(|name| name.parse::<VariableName>().is_err())
    }
}
