//! What a configuration file may hold, as types. The committed schema and
//! `docs/configuration.md` are made from them: every doc comment here is read
//! by users.
//!
//! Must not know layers: what a layer may not say is refused in `merge`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use stockade_model::{ApprovalMode, GranularMode, Limits, ProgramPattern, SandboxPreference, Verdict};

use crate::egress_file::EgressSection;
use crate::hosts::HostEntry;
use crate::notify::NotifySection;
use crate::pattern::{GrantEntry, PathFact, PathPattern, RuleName, TimeWindow, Word};
use crate::review::ReviewSection;
use crate::text::{
    Bytes, ConfigPath, DropPattern, MemoryBytes, Milliseconds, PassPattern, Processors, ProfileKey, ProfileName,
    ProtectedName, VariableName,
};

/// Stockade's configuration.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigFile {
    /// The profile of runs that name none. Default: `workspace`. A project may
    /// choose one with fewer powers only.
    pub profile: Option<ProfileName>,
    /// When to ask. Default: `on-failure`. A project may choose a stricter one
    /// only.
    pub approval_mode: Option<ModeName>,
    /// Details of approval modes.
    pub approval: ApprovalSection,
    /// How long a question waits before silence means no. Default: `120s`. A
    /// project may only shorten it.
    pub approval_timeout: Option<Milliseconds>,
    /// Whether a sandbox is insisted on. Default: `auto`. A project may set
    /// `require` only.
    pub sandbox: Option<SandboxPreference>,
    /// How strong the sandbox must be. Default: `full`. A project may only
    /// raise it.
    pub level: Option<LevelName>,
    /// Whether a person may be asked to run one command without a sandbox.
    /// Default: `false`. System and user configuration only.
    pub allow_host: Option<bool>,
    /// A model that gives an opinion on questions.
    pub review: Option<ReviewSection>,
    /// Who is told what becomes of sandboxes that last.
    pub notify: Option<NotifySection>,
    /// Profiles by name: new ones, or additions to `read-only` and `workspace`.
    pub profiles: BTreeMap<ProfileKey, ProfileSection>,
    /// How the rules of this file become one answer. Default: `deny-overrides`.
    pub combining: Combining,
    /// Rules. Deny outweighs ask, ask outweighs allow, whatever their order and
    /// file.
    pub rules: Vec<RuleSection>,
}

/// When to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ModeName {
    /// Ask before every run that is not known to be safe, or to change files of the
    /// workspace only.
    Untrusted,
    /// Run in the sandbox; ask when something was refused.
    OnFailure,
    /// Ask when the request itself asks for more than its profile gives.
    OnRequest,
    /// Never ask: what is not allowed is refused.
    Never,
    /// Per class of power, see `[approval.granular]`.
    Granular,
}

/// Details of approval modes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApprovalSection {
    /// For `approval_mode = "granular"`: what may be asked about. What is not
    /// named is refused without a question.
    pub granular: Option<GranularMode>,
}

/// How strong the sandbox must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LevelName {
    /// Namespaces, a root of its own, Landlock, seccomp.
    Full,
    /// Landlock and seccomp only: for containers and hosts without user
    /// namespaces.
    Restricted,
}

/// A profile, as additions to another.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProfileSection {
    /// The profile it adds to. Default: `workspace`. Not allowed on a profile
    /// that exists already, and never `host`.
    pub extends: Option<ProfileName>,
    /// Directories or files that may be written. Not in project configuration.
    pub write: Vec<ConfigPath>,
    /// Directories or files that cannot be read.
    pub hide: Vec<ConfigPath>,
    /// Paths that can be read although a hidden directory holds them, or that
    /// are no longer hidden. Not in project configuration.
    pub reveal: Vec<ConfigPath>,
    /// Names that cannot be written or created in any writable directory, added
    /// to the built-in ones.
    pub protect: Vec<ProtectedName>,
    /// Unix sockets of the host that may be connected to. Not in project
    /// configuration.
    pub sockets: Vec<ConfigPath>,
    /// Whether what is written in the workspace waits in a stage until somebody
    /// commits or discards it. A project may only say `true`.
    pub stage: Option<bool>,
    /// Whether what a run changes in the workspace is kept first, so that
    /// `stockade undo` can put it back. What cannot be kept is not changed. A project
    /// may only say `true`.
    pub undo: Option<bool>,
    /// Most bytes that are kept of one run for undo, e.g. `4GiB`. Default: `1GiB`. A
    /// project may only lower it.
    pub undo_bytes: Option<Bytes>,
    /// Whether the caches and package stores of tools are written in private layers
    /// of the workspace, which last between runs. Default: `true` in `workspace`. A
    /// project may only say `false`.
    pub caches: Option<bool>,
    /// Programs that are not simply run, in the whole tree of a run.
    pub exec: ExecSection,
    /// Variables.
    pub env: EnvSection,
    /// Limits. A project may only lower them.
    pub limits: LimitsSection,
    /// What may be reached, and how.
    pub egress: EgressSection,
}

/// Programs that are asked about or refused when a run starts them, at any depth;
/// the command itself is not, it was agreed to. An entry is
/// `PROGRAM [ARGUMENT...]`: `git push`, `/usr/bin/ssh`, `python* -m pip`. What
/// this can promise, and what not, stands in SECURITY.md.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExecSection {
    /// Programs that are asked about, unless `exec PATH` was granted. Where
    /// nobody can be asked they are refused.
    pub ask: Vec<ProgramPattern>,
    /// Programs that are refused, whatever was granted.
    pub deny: Vec<ProgramPattern>,
}

/// Variables. Within one file `drop` outweighs `pass`; a later file outweighs
/// an earlier one.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EnvSection {
    /// Variables of the caller that pass. A name written out passes although a
    /// pattern in `drop` of an earlier file covers it. Not in project
    /// configuration.
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
    pub wall: Option<Milliseconds>,
    /// Processor time of all processes together, e.g. `2h`.
    pub cpu_time: Option<Milliseconds>,
    /// Processors in use at once, e.g. `1.5`.
    pub cpus: Option<Processors>,
    /// Memory of all processes together, without swap, e.g. `16GiB`.
    pub memory: Option<MemoryBytes>,
    /// Processes and threads at once.
    #[schemars(range(min = 1))]
    pub processes: Option<u64>,
    /// Bytes written to disk, e.g. `50GiB`.
    pub disk: Option<Bytes>,
    /// Files, directories and links made, less those removed.
    #[schemars(range(min = 1))]
    pub inodes: Option<u64>,
    /// Bytes read, and bytes written, in a second, e.g. `200MiB`.
    pub io: Option<Bytes>,
    /// Open descriptors of one process.
    #[schemars(range(min = 16))]
    pub open_files: Option<u64>,
    /// Size of one file, e.g. `10GiB`.
    pub file_size: Option<Bytes>,
    /// Private temp, e.g. `2GiB`.
    pub temp: Option<Bytes>,
    /// What is kept of each output stream when output is captured, e.g. `1MiB`.
    pub output: Option<Bytes>,
}

impl LimitsSection {
    /// The limits it sets.
    pub fn limits(&self) -> Limits {
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

/// How the rules of one file become one answer. Files are always combined by
/// `deny-overrides`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Combining {
    /// The strictest of all rules that apply, whatever their order.
    #[default]
    DenyOverrides,
    /// The same answer; where several rules give it, the first of them is the
    /// one that is named and whose profile is used.
    OrderedDenyOverrides,
    /// The first rule that applies to a command, from the top. A later `deny`
    /// of this file does not count then; those of other files do.
    FirstApplicable,
}

/// A rule. It speaks of commands (`prefix`, `glob`, `options`, `facts`), of tool
/// calls (`tool`), of file changes (`files`) or of network access (`hosts`);
/// one that names none of them speaks of everything. What is given must all
/// hold.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleSection {
    /// A name for it, shown where it decides, e.g. `no-push`.
    pub name: Option<RuleName>,
    /// The program and the arguments it must start with, word for word, e.g.
    /// `["git", "push"]`. A list in place of a word means any of its words:
    /// `["npm", ["ci", "install"]]`.
    #[serde(default)]
    pub prefix: Vec<Word>,
    /// The whole command, words joined by blanks, `*` for anything; any of the
    /// list must match, e.g. `["git * main"]`. Words with blanks count as
    /// quoted with `'`.
    #[serde(default)]
    pub glob: Vec<String>,
    /// Options, in any order.
    #[serde(default)]
    pub options: OptionsSection,
    /// What the text of the command shows.
    #[serde(default)]
    pub facts: FactsSection,
    /// Names of tools, `*` for anything: of a tool call, or of the tool that a
    /// command came through.
    #[serde(default)]
    pub tool: Vec<String>,
    /// Arguments of a tool call by name (`a.b` for one within another), each
    /// with the texts it may be, `*` for anything.
    #[serde(default)]
    pub arguments: BTreeMap<String, Vec<String>>,
    /// Files that are changed or read other than by a command, e.g. by a patch.
    #[serde(default)]
    pub files: Vec<PathPattern>,
    /// What is done to the files. Default: anything but `read`.
    #[serde(default)]
    pub operations: Vec<FileOperation>,
    /// Hosts that are connected to, e.g. `["*.example.com:443", "@github"]`.
    #[serde(default)]
    pub hosts: Vec<HostEntry>,
    /// Where it runs: in one of these directories.
    #[serde(default)]
    pub cwd: Vec<PathPattern>,
    /// Who runs it: one of these users, by name.
    #[serde(default)]
    pub user: Vec<String>,
    /// For which session, `*` for anything.
    #[serde(default)]
    pub session: Vec<String>,
    /// When: in one of these times.
    #[serde(default)]
    pub time: Vec<TimeWindow>,
    /// What becomes of it: `allow` runs it without a question in its sandbox,
    /// `ask` asks, `deny` refuses. A project may use `ask` and `deny` only.
    pub effect: Verdict,
    /// Why; shown to the person and to the agent.
    pub justification: String,
    /// The profile to run with. A project may name one with fewer powers only.
    pub profile: Option<ProfileName>,
    /// Powers added where it is allowed or agreed to, e.g.
    /// `["connect github.com:443", "@npm"]`; `~/` and `./` may start a path, and a
    /// shipped group of hosts stands for each of them. Beside
    /// `hosts`: secrets for these, e.g. `["secret github to ghe.example.com:443"]`.
    /// Not in project configuration.
    #[serde(default)]
    pub grants: Vec<GrantEntry>,
    /// Who may agree where it asks. Default: `any`.
    pub approver: Option<ApproverName>,
    /// Limits that hold for it; those of the profile where they are lower.
    #[serde(default)]
    pub limits: LimitsSection,
    /// Who agreed to it and when, where an answer wrote it.
    pub provenance: Option<ProvenanceSection>,
    /// What the rule must match; checked whenever the file is read. Commands as
    /// one types them, `NAME {"argument": "..."}` for tool calls, `write ./path`
    /// for files, `host:port` for hosts. Facts, directory, user, session and
    /// time are taken to fit.
    #[serde(default, rename = "match")]
    pub matches: Vec<String>,
    /// What the rule must not match; checked whenever the file is read.
    #[serde(default)]
    pub not_match: Vec<String>,
}

/// Options of a command. `-rf` has `-r` and `-f`, `--force=x` has `--force`;
/// what stands after `--` is no option. Where it is uncertain whether an option
/// is there (`--forc`, `-xf`), the answer is the careful one.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OptionsSection {
    /// Each of these must be there; of a list in place of a word, any.
    pub present: Vec<Word>,
    /// None of these may be there.
    pub absent: Vec<Word>,
}

/// What the text of a command shows. `ask` and `deny` apply where one entry of
/// each list fits, `allow` only where everything of that kind is covered.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FactsSection {
    /// It reads these paths; `outside-workspace` for all beyond it.
    pub reads: Vec<PathFact>,
    /// It creates or changes these paths; `outside-workspace` for all beyond it.
    pub writes: Vec<PathFact>,
    /// It removes these paths; `outside-workspace` for all beyond it.
    pub deletes: Vec<PathFact>,
    /// It starts these programs, `*` for anything.
    pub executes: Vec<String>,
    /// It reaches these hosts; `*` also means a host that is not known.
    pub network: Vec<HostEntry>,
    /// Whether it reads what looks like a secret.
    pub secrets: Option<bool>,
    /// Whether it wants more privilege than the caller has.
    pub privilege: Option<bool>,
    /// Codes of findings, `*` for anything, e.g. `fetch-and-run`.
    pub findings: Vec<String>,
}

/// What is done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FileOperation {
    /// Its content is looked at.
    Read,
    /// It is there and changes.
    Write,
    /// It comes into being.
    Create,
    /// It is removed.
    Delete,
}

/// Who may agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ApproverName {
    /// Whoever is asked, and a caller that agreed already.
    #[default]
    Any,
    /// A person, whatever a caller agreed to.
    Person,
}

/// Where a rule came from that nobody wrote by hand.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProvenanceSection {
    /// Who agreed, or what it was imported from.
    pub by: String,
    /// When, e.g. `2026-11-20T10:00:00Z`.
    pub at: Option<String>,
    /// During which request.
    pub request: Option<String>,
}

impl ModeName {
    /// The mode; `None` for `granular` without classes.
    pub(crate) fn with(self, classes: Option<GranularMode>) -> Option<ApprovalMode> {
        match self {
            Self::Untrusted => Some(ApprovalMode::Untrusted),
            Self::OnFailure => Some(ApprovalMode::OnFailure),
            Self::OnRequest => Some(ApprovalMode::OnRequest),
            Self::Never => Some(ApprovalMode::Never),
            Self::Granular => classes.map(ApprovalMode::Granular),
        }
    }
}

impl EnvSection {
    /// The first name in `set` that is no variable's name.
    pub(crate) fn malformed_name(&self) -> Option<&str> {
        self.set.keys().map(String::as_str).find(|name| name.parse::<VariableName>().is_err())
    }
}
