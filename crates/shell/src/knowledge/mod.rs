//! Knowledge base: the effects of programs, the options with further effects, and the kinds of
//! operands. The data is in `knowledge/*.toml`, one file for each family; the build script makes
//! code of it (`build/entries.rs`). A program or an option that is not listed is unknown.

#[cfg(test)]
#[path = "../../build/entries.rs"]
mod entries;
mod entry;
pub(crate) mod hazards;
mod kinds;
pub(crate) mod lists;

pub(crate) use self::entry::CommandSpec;
pub(crate) use self::kinds::{OptionArity, OptionEffect, OptionSpec, ValueKind};

/// Names of programs, sorted, each with the name in its table's header and with its entry.
mod commands {
    use super::CommandSpec;
    use super::kinds::{OperandSpec, OptionArity::*, OptionEffect::*, OptionSpec, ValueKind::*};

    include!(concat!(env!("OUT_DIR"), "/commands.rs"));
}

include!(concat!(env!("OUT_DIR"), "/sanitize_sets.rs"));

fn find_name(name: &str) -> Option<&'static (&'static str, &'static str, usize)> {
    commands::NAMES.binary_search_by_key(&name, |(known, ..)| known).ok().map(|at| &commands::NAMES[at])
}

/// Returns the entry of a program, or of a subcommand in the form `git log`.
pub(crate) fn find_command(name: &str) -> Option<&'static CommandSpec> {
    commands::SPECS.get(find_name(name)?.2)
}

/// Returns the name under which a program's subcommands are listed.
pub(crate) fn canonical_name(program: &str) -> Option<&'static str> {
    Some(find_name(program)?.1)
}

/// Set of `neutralise.toml`.
#[derive(Debug)]
pub(crate) struct SanitizeSet {
    pub remove: &'static [&'static str],
    /// `NAME=value`
    pub environment: &'static [&'static str],
    /// `key=value` of git's configuration.
    pub config: &'static [&'static str],
    pub repository: bool,
    pub rustup: bool,
    /// Nothing must be neutralised if the repository configures nothing.
    pub quiet: bool,
}

/// Returns the set of this name.
pub(crate) fn find_sanitize_set(name: &str) -> Option<&'static SanitizeSet> {
    SANITIZE_SETS.iter().find(|(known, _)| *known == name).map(|(_, set)| set)
}

#[cfg(test)]
mod tests;
