//! What a configuration file may hold, as types. The committed schema and
//! `docs/configuration.md` are made from them: every doc comment here is read
//! by users.
//!
//! Must not know layers: what a layer may not say is refused in `merge`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use stockade_model::{GranularMode, SandboxPreference, Verdict};

use crate::text::{
    Bytes, ConfigPath, DropPattern, Milliseconds, PassPattern, ProfileKey, ProfileName, ProtectedName, VariableName,
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
    /// Profiles by name: new ones, or additions to `read-only` and `workspace`.
    pub profiles: BTreeMap<ProfileKey, ProfileSection>,
    /// Rules about commands. Deny outweighs ask, ask outweighs allow, whatever
    /// their order and file.
    pub rules: Vec<RuleSection>,
}

/// When to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ModeName {
    /// Ask before every run that is not known to be safe.
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
    /// Variables.
    pub env: EnvSection,
    /// Limits. A project may only lower them.
    pub limits: LimitsSection,
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
    /// Open descriptors of one process.
    #[schemars(range(min = 16))]
    pub open_files: Option<u64>,
    /// Processes of the user, as RLIMIT_NPROC counts them.
    #[schemars(range(min = 1))]
    pub processes: Option<u64>,
    /// Private temp, e.g. `2GiB`.
    pub temp: Option<Bytes>,
    /// What is kept of each output stream when output is captured, e.g. `1MiB`.
    pub output: Option<Bytes>,
}

/// A rule about commands.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleSection {
    /// The program and the arguments it must start with, word for word, e.g.
    /// `["git", "push"]`.
    pub prefix: Vec<String>,
    /// What becomes of it: `allow` runs it without a question in its sandbox,
    /// `ask` asks, `deny` refuses. A project may use `ask` and `deny` only.
    pub effect: Verdict,
    /// Why; shown to the person and to the agent.
    pub justification: String,
    /// Commands that the rule must match; checked whenever the file is read.
    #[serde(default, rename = "match")]
    pub matches: Vec<String>,
    /// Commands that the rule must not match; checked whenever the file is read.
    #[serde(default)]
    pub not_match: Vec<String>,
}

impl EnvSection {
    /// The first name in `set` that is no variable's name.
    pub(crate) fn malformed_name(&self) -> Option<&str> {
        self.set.keys().map(String::as_str).find(|name| name.parse::<VariableName>().is_err())
    }
}
