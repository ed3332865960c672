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

impl ProgramUse {
    const NONE: Self = Self {
        uses: &[],
        harmless: &[],
        except: &[],
        needs: &[],
        hosts: &[],
        value_is: &[],
        value_not: &[],
        says: &[],
        last: "",
        operands: 0,
        loopback: false,
        unless: &[],
        spoils: &[],
        code: "",
    };
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

/// Returns the uses of a program.
pub(crate) fn program_uses(program: &[u8]) -> impl Iterator<Item = &'static ProgramUse> {
    super::tables_of(&BY_NAME, &BY_BEGINNING, program).map(|at| &USES[at])
}

/// Returns the known options of a program.
pub(crate) fn program_options(program: &[u8]) -> &'static Options {
    let found = OPTIONS_BY_NAME.binary_search_by_key(&program, |(name, _)| name.as_bytes());
    found.map_or(&NO_OPTIONS, |at| &OPTIONS[OPTIONS_BY_NAME[at].1])
}

/// Returns the group of variables that contains this one.
pub(crate) fn variable_group(name: &[u8]) -> Option<&'static Variables> {
    VARIABLES.iter().find(|variables| variables.names.iter().any(|n| n.as_bytes() == name))
}

/// Returns the impact and the message of a code.
pub(crate) fn code_impact(code: &str) -> (Impact, &'static str) {
    let found = CODES.binary_search_by_key(&code, |(name, ..)| name);
    found.map_or((Impact::Outward, "An effect outside the sandbox."), |at| (CODES[at].1, CODES[at].2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_used_and_documented() {
        let in_code = ["cloud-metadata", "deletes-unknown", "unknown-action"];
        let used: Vec<&str> =
            USES.iter().map(|u| u.code).chain(VARIABLES.iter().map(|v| v.code)).chain(in_code).collect();
        for (code, impact, message) in &CODES {
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
