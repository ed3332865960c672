//! Knowledge about one program or subcommand. It must not depend on how arguments are read or
//! classified.

use super::kinds::{OperandSpec, OptionEffect, OptionSpec, ValueKind};

/// Program or subcommand in the knowledge base.
#[derive(Debug)]
pub(crate) struct CommandSpec {
    /// Sorted by name.
    pub options: &'static [(&'static str, OptionSpec)],
    pub operands: &'static [OperandSpec],
    /// Effects for all arguments; empty for a reader.
    pub does: &'static [OptionEffect],
    /// Options with which alone it only prints information about itself, whatever its effects.
    pub tells: &'static [&'static str],
    /// Options with which it only reads its operands, whatever its effects without them.
    pub reader_with: &'static [&'static str],
    /// Options whose value is the code that runs.
    pub code: &'static [&'static str],
    /// Options that replace the first operand.
    pub operand_options: &'static [&'static str],
    /// At least one of these must be present.
    pub requires: &'static [&'static str],
    /// Alternatively its only operand must be a name at which no file exists; the operand is a
    /// branch then.
    pub or_absent: bool,
    /// If its first operand is the path of a repository, it only reads from that one. It reaches no
    /// host, and `does` does not apply.
    pub from_path: bool,
    /// At least one of these must be present too.
    pub requires_too: &'static [&'static str],
    /// Settings that the run must neutralise for this to be harmless; names of `neutralise.toml`.
    pub sanitize_sets: &'static [&'static str],
    /// Options that need a setting neutralised although the program does not, with that setting:
    /// `-x:SETTING`.
    pub sanitize_options: &'static [&'static str],
    /// With one of these, `operands_then` applies instead.
    pub operands_with: &'static [&'static str],
    pub operands_then: &'static [OperandSpec],
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
}
