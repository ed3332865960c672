//! Knowledge about one program or subcommand, and its form in the tables. It must not depend on how
//! arguments are read or classified.

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error;

use super::text::TableValue;

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

/// Program or subcommand in the knowledge base.
#[derive(Debug, Default)]
pub(crate) struct CommandSpec {
    /// Sorted by name.
    pub options: Vec<(&'static str, OptionSpec)>,
    pub operands: Vec<OperandSpec>,
    /// Effects for all arguments; empty for a reader.
    pub does: Vec<OptionEffect>,
    /// Options with which alone it only prints information about itself, whatever its effects.
    pub tells: Vec<&'static str>,
    /// Options with which it only reads its operands, whatever its effects without them.
    pub reader_with: Vec<&'static str>,
    /// Options whose value is the code that runs.
    pub code: Vec<&'static str>,
    /// Options that replace the first operand.
    pub operand_options: Vec<&'static str>,
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
    pub sanitize_sets: Vec<&'static str>,
    /// Options that need a setting neutralised although the program does not, with that setting.
    pub sanitize_options: Vec<(&'static str, &'static str)>,
    /// With one of these, `operands_then` applies instead.
    pub operands_with: Vec<&'static str>,
    pub operands_then: Vec<OperandSpec>,
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

impl CommandSpec {
    /// Returns the option of this name.
    pub(crate) fn find_option(&self, name: &str) -> Option<&OptionSpec> {
        self.options.binary_search_by_key(&name, |(n, _)| n).ok().map(|at| &self.options[at].1)
    }

    /// Returns the operand at this index.
    pub(crate) fn operand_at(&self, index: usize) -> Option<OperandSpec> {
        self.operands.get(index).or(self.operands.last().filter(|last| last.many)).copied()
    }

    /// Returns whether it runs the command in its arguments.
    pub(crate) fn is_wrapper(&self) -> bool {
        self.operands.last().is_some_and(|o| matches!(o.kind, ValueKind::Command | ValueKind::Inside | ValueKind::Code))
    }

    /// Reads one key; `None` if it is unknown.
    pub(super) fn read_key(&mut self, key: &str, value: &TableValue) -> Option<()> {
        match (key, value) {
            ("source" | "same" | "like", TableValue::Text(_)) | ("allow" | "ask" | "deny", TableValue::List(_)) => {}
            ("flags" | "valued" | "optional" | "pairs", TableValue::Text(text)) => {
                self.add_options(text, OptionEffect::Inert, key)?
            }
            ("reads", TableValue::Text(text)) => self.add_options(text, OptionEffect::Reads, key)?,
            ("writes", TableValue::Text(text)) => self.add_options(text, OptionEffect::Writes, key)?,
            ("changes", TableValue::Text(text)) => self.add_options(text, OptionEffect::Repository, key)?,
            ("deletes", TableValue::Text(text)) => self.add_options(text, OptionEffect::Deletes, key)?,
            ("connects", TableValue::Text(text)) => self.add_options(text, OptionEffect::Connects, key)?,
            ("executes", TableValue::Text(text)) => self.add_options(text, OptionEffect::Executes, key)?,
            ("elevates", TableValue::Text(text)) => self.add_options(text, OptionEffect::Privilege, key)?,
            ("does", TableValue::Text(text)) => self.does = split_words(text).map(parse_name).collect::<Option<_>>()?,
            ("operands", TableValue::Text(text)) => self.operands = parse_operands(text)?,
            ("operands_then", TableValue::Text(text)) => self.operands_then = parse_operands(text)?,
            ("tells", TableValue::Text(text)) => {
                self.tells = split_words(text).collect();
                self.add_options(text, OptionEffect::Inert, key)?;
            }
            ("reader_with", TableValue::Text(text)) => self.reader_with = split_words(text).collect(),
            ("code", TableValue::Text(text)) => self.code = split_words(text).collect(),
            ("given_by", TableValue::Text(text)) => self.operand_options = split_words(text).collect(),
            ("requires", TableValue::Text(text)) => self.requires = split_words(text).collect(),
            ("requires_too", TableValue::Text(text)) => self.requires_too = split_words(text).collect(),
            ("neutralise", TableValue::Text(text)) => self.sanitize_sets = split_words(text).collect(),
            ("neutralise_with", TableValue::Text(text)) => {
                self.sanitize_options = split_words(text).map(|w| w.split_once(':')).collect::<Option<_>>()?;
            }
            ("operands_with", TableValue::Text(text)) => self.operands_with = split_words(text).collect(),
            ("or_absent", TableValue::Flag(flag)) => self.or_absent = *flag,
            ("from_path", TableValue::Flag(flag)) => self.from_path = *flag,
            ("numeric", TableValue::Flag(flag)) => self.numeric = *flag,
            ("globs", TableValue::Flag(flag)) => self.globs = *flag,
            ("any", TableValue::Flag(flag)) => self.any = *flag,
            ("stops", TableValue::Flag(flag)) => self.stops = *flag,
            ("bundled", TableValue::Flag(flag)) => self.bundled = *flag,
            ("subcommands", TableValue::Flag(flag)) => self.subcommands = *flag,
            ("assignments", TableValue::Flag(flag)) => self.assignments = *flag,
            ("at_files", TableValue::Flag(flag)) => self.at_files = *flag,
            ("special", TableValue::Flag(flag)) => self.special = *flag,
            _ => return None,
        }
        Some(())
    }

    /// Adds options in their written form: `-x`, `-x:kind`, `-x?:kind`.
    fn add_options(&mut self, text: &'static str, effect: OptionEffect, key: &str) -> Option<()> {
        for word in split_words(text) {
            let (name, arity) = match word.split_once(':') {
                None if key == "optional" => return None,
                None => (word, OptionArity::Flag),
                Some((name, kind)) => {
                    let kind = if kind.is_empty() { usual_kind(effect) } else { parse_name(kind)? };
                    match (name.strip_suffix('?'), key) {
                        (Some(name), _) => (name, OptionArity::Optional(kind)),
                        (None, "optional") => (name, OptionArity::Optional(kind)),
                        (None, "pairs") => (name, OptionArity::Pair(kind)),
                        (None, _) => (name, OptionArity::Value(kind)),
                    }
                }
            };
            self.options.push((name, OptionSpec { effect, arity }));
        }
        Some(())
    }

    /// Sorts the options; of two with one name, the more harmful one stays.
    pub(super) fn sort_options(&mut self) {
        self.options.sort_by_key(|(name, spec)| (*name, harm_rank(spec.effect)));
        self.options.dedup_by_key(|(name, _)| *name);
        self.stops |= self.subcommands;
    }
}

/// Returns a rank; the greater harm sorts first.
fn harm_rank(effect: OptionEffect) -> u8 {
    match effect {
        OptionEffect::Executes => 0,
        OptionEffect::Privilege | OptionEffect::Persists | OptionEffect::System => 1,
        OptionEffect::Deletes | OptionEffect::Writes | OptionEffect::Repository => 2,
        OptionEffect::Connects => 3,
        OptionEffect::Reads => 4,
        OptionEffect::Inert => 5,
    }
}

/// Returns the default kind of such an option's value.
fn usual_kind(effect: OptionEffect) -> ValueKind {
    match effect {
        OptionEffect::Writes => ValueKind::Write,
        OptionEffect::Deletes => ValueKind::Delete,
        OptionEffect::Executes => ValueKind::Code,
        OptionEffect::Connects => ValueKind::Host,
        OptionEffect::Reads => ValueKind::Read,
        OptionEffect::Inert
        | OptionEffect::Repository
        | OptionEffect::Privilege
        | OptionEffect::Persists
        | OptionEffect::System => ValueKind::Text,
    }
}

fn split_words(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split_ascii_whitespace()
}

/// Returns the effect or the kind of this name.
fn parse_name<T: Deserialize<'static>>(name: &'static str) -> Option<T> {
    T::deserialize(IntoDeserializer::<Error>::into_deserializer(name)).ok()
}

fn parse_operands(text: &'static str) -> Option<Vec<OperandSpec>> {
    split_words(text)
        .map(|word| {
            let name = word.trim_end_matches(['*', '?']);
            let many = word.ends_with('*');
            Some(OperandSpec { kind: parse_name(name)?, optional: many || word.ends_with('?'), many })
        })
        .collect()
}
