//! Kinds of effects, values and options. The build script shares them.

use serde::Deserialize;

/// Effect of an option, or of the program itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OptionEffect {
    #[serde(skip)]
    Inert,
    Writes,
    /// Changes the repository of the directory, and its work tree.
    Repository,
    Deletes,
    /// Runs or loads code that is not in the text.
    Executes,
    Connects,
    /// Reads data that is not classified: a file of names, a directory.
    Reads,
    /// Acts with privileges, or changes them.
    Privilege,
    /// Causes a program to run later.
    Persists,
    /// Changes the running system: processes, services, mounts, clocks.
    System,
}

/// Kind of a value or an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ValueKind {
    Text,
    /// Path whose metadata is read.
    Path,
    /// File whose content is read.
    Read,
    /// File or directory whose content is read, with all files below.
    Search,
    Archive,
    /// Path that is written or created.
    Write,
    Delete,
    /// Working directory for the rest of the command.
    Directory,
    /// A host, an address or a URL.
    Host,
    /// `host:path` is remote, any other value is a path that is read.
    RemoteRead,
    /// `host:path` is remote, any other value is a path that is written.
    RemoteWrite,
    /// The rest is a command that runs on this machine.
    Command,
    /// The rest is a command that runs in another system: a container, a host.
    Inside,
    /// Shell code in words.
    Code,
    Sed,
    Awk,
    #[serde(rename = "awkfile")]
    AwkFile,
    Jq,
    Rev,
    /// Files or commits of the repository: text that no program opens as a file.
    Pathspec,
    /// A branch or a tag that is created or changed.
    Branch,
    /// Destination file or directory for a repository or a part of it.
    Destination,
    /// Address of another repository.
    Address,
    /// Value for a name in git's configuration.
    Setting,
    /// Permissions of a file.
    Mode,
    Date,
    Variable,
    Assignment,
    Never,
    Ps,
    Reflog,
    #[serde(rename = "configkey")]
    ConfigKey,
    Version,
    Format,
    /// Digits, with a sign, a point or a unit.
    Number,
    /// `path:path` or `source=path,...`: a path of the host that is mounted in a container.
    Volume,
}

/// Values of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionArity {
    Flag,
    /// `-o VALUE`, `-oVALUE`, `--long VALUE`, `--long=VALUE`
    Value(ValueKind),
    /// `-oVALUE`, `--long=VALUE` or no value
    Optional(ValueKind),
    /// Two values (jq's `--arg`).
    Pair(ValueKind),
}

/// Option of a program or subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OptionSpec {
    pub effect: OptionEffect,
    pub arity: OptionArity,
}

/// Operand, or the last ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperandSpec {
    pub kind: ValueKind,
    pub optional: bool,
    pub many: bool,
}
