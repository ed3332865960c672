//! Effects that no sandbox contains or that cannot be undone: forced pushes, publications,
//! clusters, accounts, databases. Returns the effects of a program with its arguments, both for the
//! classifier, which sees a text, and for the permissions of an attempt, which see a program that
//! is about to start. The table is data in `knowledge/impacts.toml`.
//!
//! This crate does no I/O, parses no shell and knows no policy.

#![forbid(unsafe_code)]

mod call;
mod table;

use stockade_model::EffectUse;

pub use call::{ProgramCall, ProgramWord, UNKNOWN_BYTE, host_name, matches_word};
pub use table::{BY_BEGINNING, BY_NAME, code_impact, find_rows, has_word};

/// Effects that need no consent when a program starts: git's settings are classified by their
/// values when they are written.
const CLASSIFIED_ELSEWHERE: &[&str] = &["configures-program"];

/// Effect of a program that is about to start, which no sandbox contains or which cannot be undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalEffect {
    /// The effect with its program; `None` if the program's name is not one word.
    pub wanted: Option<EffectUse>,
    /// Sentence for a person.
    pub message: &'static str,
}

/// Returns whether a program of this name, without directories, may have such an effect. The cost
/// is one table lookup, because it runs for every started program.
pub fn may_have_effect(program: &[u8]) -> bool {
    table::program_uses(program).next().is_some()
}

/// Returns the effects of a program with these arguments, without its own name.
pub fn effects_of(program: &[u8], arguments: &[Vec<u8>]) -> Vec<ExternalEffect> {
    let words = arguments.iter().map(|text| ProgramWord::from_known(text));
    let (mut codes, _) = ProgramCall::new(program, words, None).find_effects();
    codes.retain(|code| !CLASSIFIED_ELSEWHERE.contains(code));
    codes.sort_unstable();
    codes.dedup();
    let of_code = |code| ExternalEffect { wanted: EffectUse::new(code, program), message: code_impact(code).1 };
    codes.into_iter().map(of_code).collect()
}

/// Returns the code of the effect of a variable with this value: its value names a host that
/// nobody listed.
pub fn variable_effect(name: &[u8], value: &[u8]) -> Option<&'static str> {
    let variables = table::variable_group(name)?;
    let mut parts = value.split(|b| b" ,|".contains(b));
    parts.any(|part| call::is_foreign(part, variables.hosts)).then_some(variables.code)
}
