//! Knowledge base: the effects of programs, the options with further effects, and the kinds of
//! operands. The data is in `knowledge/*.toml`, one file for each family, and is compiled in. A
//! table is parsed when its program is first needed. A program or an option that is not listed is
//! unknown.

mod entry;
pub(crate) mod hazards;
pub(crate) mod lists;
mod text;

use std::sync::OnceLock;

pub(crate) use self::entry::{CommandSpec, OptionArity, OptionEffect, OptionSpec, ValueKind};
use self::text::{TableValue, parse_pairs, parse_tables};

include!(concat!(env!("OUT_DIR"), "/index.rs"));

/// Name, with the position of its table.
struct TableSlot {
    name: &'static str,
    /// The name in the table's header.
    canonical: &'static str,
    file: &'static str,
    start: usize,
    end: usize,
    entry: OnceLock<Option<CommandSpec>>,
}

impl TableSlot {
    const fn new(name: &'static str, canonical: &'static str, file: &'static str, start: usize, end: usize) -> Self {
        Self { name, canonical, file, start, end, entry: OnceLock::new() }
    }

    fn table_text(&self) -> &'static str {
        self.file.get(self.start..self.end).unwrap_or_default()
    }
}

fn find_slot(name: &str) -> Option<&'static TableSlot> {
    SLOTS.binary_search_by_key(&name, |slot| slot.name).ok().map(|at| &SLOTS[at])
}

/// Returns the entry of a program, or of a subcommand in the form `git log`.
pub(crate) fn find_command(name: &str) -> Option<&'static CommandSpec> {
    let slot = find_slot(name).filter(|_| !name.starts_with('@'))?;
    // An unreadable table gives no entry; a test keeps the tables readable.
    slot.entry.get_or_init(|| parse_table(slot.table_text()).ok()).as_ref()
}

/// Returns the name under which a program's subcommands are listed.
pub(crate) fn canonical_name(program: &str) -> Option<&'static str> {
    Some(find_slot(program)?.canonical)
}

/// Set of `neutralise.toml`.
#[derive(Debug, Default)]
pub(crate) struct SanitizeSet {
    pub remove: Vec<&'static str>,
    /// `NAME=value`
    pub environment: Vec<&'static str>,
    /// `key=value` of git's configuration.
    pub config: Vec<&'static str>,
    pub repository: bool,
    pub rustup: bool,
    /// Nothing must be neutralised if the repository configures nothing.
    pub quiet: bool,
}

/// Returns the set of this name.
pub(crate) fn find_sanitize_set(name: &str) -> Option<SanitizeSet> {
    let text = include_str!("../../knowledge/neutralise.toml");
    let (_, body) = parse_tables(text).find(|(n, _)| *n == name)?;
    let mut set = SanitizeSet::default();
    for pair in parse_pairs(body) {
        match pair.ok()? {
            ("remove", TableValue::List(list)) => set.remove = list,
            ("environment", TableValue::List(list)) => set.environment = list,
            ("config", TableValue::List(list)) => set.config = list,
            ("repository", TableValue::Flag(flag)) => set.repository = flag,
            ("rustup", TableValue::Flag(flag)) => set.rustup = flag,
            ("quiet", TableValue::Flag(flag)) => set.quiet = flag,
            ("source", TableValue::Text(_)) => {}
            _ => return None,
        }
    }
    Some(set)
}

/// Parses a table; `Err` contains the unknown part.
fn parse_table(body: &'static str) -> Result<CommandSpec, &'static str> {
    let mut entry = CommandSpec::default();
    read_table(&mut entry, body, 0)?;
    entry.sort_options();
    Ok(entry)
}

fn read_table(entry: &mut CommandSpec, body: &'static str, depth: usize) -> Result<(), &'static str> {
    for pair in parse_pairs(body) {
        let (key, value) = pair?;
        if let ("like", TableValue::Text(groups)) = (key, &value) {
            for group in groups.split_ascii_whitespace() {
                let shared = find_slot(group).filter(|_| depth < 3).ok_or(group)?;
                read_table(entry, shared.table_text(), depth + 1)?;
            }
        }
        entry.read_key(key, &value).ok_or(key)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
