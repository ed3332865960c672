//! Table of uses whose effect needs consent: `knowledge/impacts.toml`, converted to code at build
//! time. That file documents the keys.

use stockade_model::Impact;

/// Use of programs.
#[derive(Debug)]
pub(crate) struct ProgramUse {
    pub uses: &'static [&'static [&'static [&'static str]]],
    pub harmless: &'static [&'static [&'static [&'static str]]],
    pub except: &'static [&'static [&'static [&'static str]]],
    pub needs: &'static [&'static [&'static str]],
    pub hosts: &'static [&'static str],
    pub value_is: &'static [&'static str],
    pub value_not: &'static [&'static str],
    pub says: &'static [&'static [&'static str]],
    pub last: &'static str,
    pub operands: usize,
    pub loopback: bool,
    pub unless: &'static [&'static str],
    pub spoils: &'static [&'static str],
    pub code: &'static str,
}

/// Options of programs that determine the role of other words.
#[derive(Debug, Default)]
pub(crate) struct Options {
    pub valued: &'static [&'static str],
    pub flags: &'static [&'static str],
    /// Most subcommands are effects.
    pub acts: bool,
}

/// Variables whose value names a host.
#[derive(Debug)]
pub(crate) struct Variables {
    pub names: &'static [&'static str],
    pub hosts: &'static [&'static str],
    pub code: &'static str,
}

// CODES, USES, BY_NAME, BY_BEGINNING, OPTIONS, OPTIONS_BY_NAME, VARIABLES; lists by name are
// sorted. No name is shorter than two letters.
include!(concat!(env!("OUT_DIR"), "/impacts.rs"));

static NO_OPTIONS: Options = Options { valued: &[], flags: &[], acts: false };

/// Returns the numbers of the tables for a program's name: exact names are sorted, prefixes are searched.
pub fn find_rows(
    names: &'static [(&'static str, usize)],
    beginnings: &'static [(&'static str, usize)],
    program: &[u8],
) -> impl Iterator<Item = usize> {
    let first = names.partition_point(|(name, _)| name.as_bytes() < program);
    let exact = names[first..].iter().take_while(move |(name, _)| name.as_bytes() == program);
    let begun = beginnings.iter().filter(move |(beginning, _)| program.starts_with(beginning.as_bytes()));
    exact.chain(begun).map(|(_, at)| *at)
}

/// Returns the uses of a program.
pub(crate) fn program_uses(program: &[u8]) -> impl Iterator<Item = &'static ProgramUse> {
    find_rows(BY_NAME, BY_BEGINNING, program).map(|at| &USES[at])
}

/// Returns the known options of a program.
pub(crate) fn program_options(program: &[u8]) -> &'static Options {
    let found = OPTIONS_BY_NAME.binary_search_by_key(&program, |(name, _)| name.as_bytes());
    found.map_or(&NO_OPTIONS, |at| &OPTIONS[OPTIONS_BY_NAME[at].1])
}

/// Returns the group of variables that contains this one.
pub(crate) fn variable_group(name: &[u8]) -> Option<&'static Variables> {
    VARIABLES.iter().find(|variables| has_word(variables.names, name))
}

/// Returns the impact and the message of a code.
pub fn code_impact(code: &str) -> (Impact, &'static str) {
    let found = CODES.binary_search_by_key(&code, |(name, ..)| name);
    found.map_or((Impact::Outward, "An effect outside the sandbox."), |at| (CODES[at].1, CODES[at].2))
}

/// Returns whether a word is in the list.
pub fn has_word(list: &[&str], word: &[u8]) -> bool {
    list.iter().any(|known| known.as_bytes() == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_used_and_documented() {
        let in_code = ["cloud-metadata", "deletes-unknown", "unknown-action"];
        let used: Vec<&str> =
            USES.iter().map(|u| u.code).chain(VARIABLES.iter().map(|v| v.code)).chain(in_code).collect();
        for (code, impact, message) in CODES {
            assert!(used.contains(code), "{code}");
            assert!(impact.needs_consent() && message.ends_with('.'), "{code}");
        }
        assert!(used.iter().all(|code| CODES.iter().any(|(known, ..)| known == code)));
    }

    #[test]
    fn operands_are_written_in_lower_case() {
        let groups = USES.iter().flat_map(|u| u.needs.iter().copied().chain([u.value_is, u.value_not, u.hosts]));
        for word in groups.flatten().filter(|word| !word.starts_with('-')) {
            assert_eq!(*word, word.to_ascii_lowercase());
        }
    }
}
