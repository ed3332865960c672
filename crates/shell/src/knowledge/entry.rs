//! Knowledge about one program or subcommand, and its form in the tables. It must not depend on how
//! arguments are read or classified.

use super::text::Value;

/// Effect of an option, or of the program itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
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
    AwkFile,
    Jq,
    Rev,
    /// Files or commits of the repository: text that no program opens as a file.
    Pathspec,
    /// A branch or a tag that is created or changed.
    Branch,
    /// Destination file or directory for a repository or a part of it.
    Place,
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
    ConfigKey,
    Version,
    Format,
    /// Digits, with a sign, a point or a unit.
    Number,
    /// `path:path` or `source=path,...`: a path of the host that is mounted in a container.
    Volume,
}

/// Names of the kinds in the files.
const KINDS: &[(&str, Kind)] = &[
    ("text", Kind::Text),
    ("path", Kind::Path),
    ("read", Kind::Read),
    ("search", Kind::Search),
    ("archive", Kind::Archive),
    ("write", Kind::Write),
    ("delete", Kind::Delete),
    ("directory", Kind::Directory),
    ("host", Kind::Host),
    ("remote-read", Kind::RemoteRead),
    ("remote-write", Kind::RemoteWrite),
    ("command", Kind::Command),
    ("inside", Kind::Inside),
    ("code", Kind::Code),
    ("sed", Kind::Sed),
    ("awk", Kind::Awk),
    ("awkfile", Kind::AwkFile),
    ("jq", Kind::Jq),
    ("rev", Kind::Rev),
    ("pathspec", Kind::Pathspec),
    ("branch", Kind::Branch),
    ("place", Kind::Place),
    ("address", Kind::Address),
    ("setting", Kind::Setting),
    ("mode", Kind::Mode),
    ("date", Kind::Date),
    ("variable", Kind::Variable),
    ("assignment", Kind::Assignment),
    ("never", Kind::Never),
    ("ps", Kind::Ps),
    ("reflog", Kind::Reflog),
    ("configkey", Kind::ConfigKey),
    ("version", Kind::Version),
    ("format", Kind::Format),
    ("number", Kind::Number),
    ("volume", Kind::Volume),
];

/// Names of the effects in `does`.
const EFFECTS: &[(&str, Effect)] = &[
    ("writes", Effect::Writes),
    ("repository", Effect::Repository),
    ("deletes", Effect::Deletes),
    ("executes", Effect::Executes),
    ("connects", Effect::Connects),
    ("reads", Effect::Reads),
    ("privilege", Effect::Privilege),
    ("persists", Effect::Persists),
    ("system", Effect::System),
];

/// Values of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arity {
    Flag,
    /// `-o VALUE`, `-oVALUE`, `--long VALUE`, `--long=VALUE`
    Value(Kind),
    /// `-oVALUE`, `--long=VALUE` or no value
    Optional(Kind),
    /// Two values (jq's `--arg`).
    Pair(Kind),
}

/// Option of a program or subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OptionSpec {
    pub effect: Effect,
    pub arity: Arity,
}

/// Operand, or the last ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operand {
    pub kind: Kind,
    pub optional: bool,
    pub many: bool,
}

/// Program or subcommand in the knowledge base.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// Sorted by name.
    pub options: Vec<(&'static str, OptionSpec)>,
    pub operands: Vec<Operand>,
    /// Effects for all arguments; empty for a reader.
    pub does: Vec<Effect>,
    /// Options with which alone it only prints information about itself, whatever its effects.
    pub tells: Vec<&'static str>,
    /// Options with which it only reads its operands, whatever its effects without them.
    pub reader_with: Vec<&'static str>,
    /// Options whose value is the code that runs.
    pub code: Vec<&'static str>,
    /// Options that replace the first operand.
    pub given_by: Vec<&'static str>,
    /// At least one of these must be present.
    pub requires: Vec<&'static str>,
    /// Alternatively its only operand must be a name at which no file exists; the operand is a
    /// branch then.
    pub or_absent: bool,
    /// If its first operand is the path of a repository, it only reads from that one. It reaches no
    /// host, and `does` does not apply.
    pub from_path: bool,
    /// At least one of these must be present too.
    pub requires_too: Vec<&'static str>,
    /// Settings that the run must neutralise for this to be harmless; names of `neutralise.toml`.
    pub neutralise: Vec<&'static str>,
    /// Options that need a setting neutralised although the program does not, with that setting.
    pub neutralise_with: Vec<(&'static str, &'static str)>,
    /// With one of these, `operands_then` applies instead.
    pub operands_with: Vec<&'static str>,
    pub operands_then: Vec<Operand>,
    /// `-5` is an option.
    pub numeric: bool,
    /// No option can do harm, so a leading wildcard is harmless.
    pub globs: bool,
    /// Every word is an operand.
    pub any: bool,
    /// Options end at the first operand.
    pub stops: bool,
    /// The first word may be a cluster without a dash (tar).
    pub bundled: bool,
    /// The first operand names another entry.
    pub subcommands: bool,
    /// `NAME=value` may precede the command.
    pub assignments: bool,
    /// An argument that begins with `@` names a file of further arguments.
    pub at_files: bool,
    /// Special code classifies the arguments (find, test).
    pub special: bool,
}

impl Entry {
    /// Returns the option of this name.
    pub(crate) fn option(&self, name: &str) -> Option<&OptionSpec> {
        self.options.binary_search_by_key(&name, |(n, _)| n).ok().map(|at| &self.options[at].1)
    }

    /// Returns the operand at this index.
    pub(crate) fn operand(&self, index: usize) -> Option<Operand> {
        self.operands.get(index).or(self.operands.last().filter(|last| last.many)).copied()
    }

    /// Returns whether it runs the command in its arguments.
    pub(crate) fn wraps(&self) -> bool {
        self.operands.last().is_some_and(|o| matches!(o.kind, Kind::Command | Kind::Inside | Kind::Code))
    }

    /// Reads one key; `None` if it is unknown.
    pub(super) fn take(&mut self, key: &str, value: &Value) -> Option<()> {
        match (key, value) {
            ("source" | "same" | "like", Value::Text(_)) | ("allow" | "ask" | "deny", Value::List(_)) => {}
            ("flags" | "valued" | "optional" | "pairs", Value::Text(text)) => self.add(text, Effect::Inert, key)?,
            ("reads", Value::Text(text)) => self.add(text, Effect::Reads, key)?,
            ("writes", Value::Text(text)) => self.add(text, Effect::Writes, key)?,
            ("changes", Value::Text(text)) => self.add(text, Effect::Repository, key)?,
            ("deletes", Value::Text(text)) => self.add(text, Effect::Deletes, key)?,
            ("connects", Value::Text(text)) => self.add(text, Effect::Connects, key)?,
            ("executes", Value::Text(text)) => self.add(text, Effect::Executes, key)?,
            ("elevates", Value::Text(text)) => self.add(text, Effect::Privilege, key)?,
            ("does", Value::Text(text)) => self.does = words(text).map(effect).collect::<Option<_>>()?,
            ("operands", Value::Text(text)) => self.operands = operands(text)?,
            ("operands_then", Value::Text(text)) => self.operands_then = operands(text)?,
            ("tells", Value::Text(text)) => {
                self.tells = words(text).collect();
                self.add(text, Effect::Inert, key)?;
            }
            ("reader_with", Value::Text(text)) => self.reader_with = words(text).collect(),
            ("code", Value::Text(text)) => self.code = words(text).collect(),
            ("given_by", Value::Text(text)) => self.given_by = words(text).collect(),
            ("requires", Value::Text(text)) => self.requires = words(text).collect(),
            ("requires_too", Value::Text(text)) => self.requires_too = words(text).collect(),
            ("neutralise", Value::Text(text)) => self.neutralise = words(text).collect(),
            ("neutralise_with", Value::Text(text)) => {
                self.neutralise_with = words(text).map(|w| w.split_once(':')).collect::<Option<_>>()?;
            }
            ("operands_with", Value::Text(text)) => self.operands_with = words(text).collect(),
            ("or_absent", Value::Flag(flag)) => self.or_absent = *flag,
            ("from_path", Value::Flag(flag)) => self.from_path = *flag,
            ("numeric", Value::Flag(flag)) => self.numeric = *flag,
            ("globs", Value::Flag(flag)) => self.globs = *flag,
            ("any", Value::Flag(flag)) => self.any = *flag,
            ("stops", Value::Flag(flag)) => self.stops = *flag,
            ("bundled", Value::Flag(flag)) => self.bundled = *flag,
            ("subcommands", Value::Flag(flag)) => self.subcommands = *flag,
            ("assignments", Value::Flag(flag)) => self.assignments = *flag,
            ("at_files", Value::Flag(flag)) => self.at_files = *flag,
            ("special", Value::Flag(flag)) => self.special = *flag,
            _ => return None,
        }
        Some(())
    }

    /// Adds options in their written form: `-x`, `-x:kind`, `-x?:kind`.
    fn add(&mut self, text: &'static str, effect: Effect, key: &str) -> Option<()> {
        for word in words(text) {
            let (name, arity) = match word.split_once(':') {
                None if key == "optional" => return None,
                None => (word, Arity::Flag),
                Some((name, kind)) => {
                    let kind = if kind.is_empty() { usual_kind(effect) } else { kind_named(kind)? };
                    match (name.strip_suffix('?'), key) {
                        (Some(name), _) => (name, Arity::Optional(kind)),
                        (None, "optional") => (name, Arity::Optional(kind)),
                        (None, "pairs") => (name, Arity::Pair(kind)),
                        (None, _) => (name, Arity::Value(kind)),
                    }
                }
            };
            self.options.push((name, OptionSpec { effect, arity }));
        }
        Some(())
    }

    /// Sorts the options; of two with one name, the more harmful one stays.
    pub(super) fn finish(&mut self) {
        self.options.sort_by_key(|(name, spec)| (*name, harm(spec.effect)));
        self.options.dedup_by_key(|(name, _)| *name);
        self.stops |= self.subcommands;
    }
}

/// Returns a rank; the greater harm sorts first.
fn harm(effect: Effect) -> u8 {
    match effect {
        Effect::Executes => 0,
        Effect::Privilege | Effect::Persists | Effect::System => 1,
        Effect::Deletes | Effect::Writes | Effect::Repository => 2,
        Effect::Connects => 3,
        Effect::Reads => 4,
        Effect::Inert => 5,
    }
}

/// Returns the default kind of such an option's value.
fn usual_kind(effect: Effect) -> Kind {
    match effect {
        Effect::Writes => Kind::Write,
        Effect::Deletes => Kind::Delete,
        Effect::Executes => Kind::Code,
        Effect::Connects => Kind::Host,
        Effect::Reads => Kind::Read,
        Effect::Inert | Effect::Repository | Effect::Privilege | Effect::Persists | Effect::System => Kind::Text,
    }
}

fn words(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split_ascii_whitespace()
}

fn effect(name: &str) -> Option<Effect> {
    EFFECTS.iter().find(|(n, _)| *n == name).map(|(_, effect)| *effect)
}

fn kind_named(name: &str) -> Option<Kind> {
    KINDS.iter().find(|(n, _)| *n == name).map(|(_, kind)| *kind)
}

fn operands(text: &'static str) -> Option<Vec<Operand>> {
    words(text)
        .map(|word| {
            let name = word.trim_end_matches(['*', '?']);
            let many = word.ends_with('*');
            Some(Operand { kind: kind_named(name)?, optional: many || word.ends_with('?'), many })
        })
        .collect()
}
