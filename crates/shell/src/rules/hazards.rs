//! Uses of programs that are denied for every file. The table is data in `knowledge/hazards.toml`;
//! this module matches it.

use crate::invocation::Invocation;
use crate::judge::Judge;
use crate::knowledge::hazards;

/// Returns the message of a code.
fn message(code: &str) -> &'static str {
    match code {
        "destroys-disk" => "Overwrites or formats a disk.",
        "destroys-system" => "Removes a part of the system.",
        "weakens-protection" => "Turns a protection off.",
        "changes-kernel" => "Loads code into the kernel or changes it.",
        "persistence" => "Arranges for something to run later.",
        "privilege-escalation" => "Gains powers over the host.",
        "stops-machine" => "Stops the machine or everything on it.",
        "wipes-log" => "Removes traces of what happened.",
        "reverse-shell" => "Offers this machine, or a shell on it, to another host.",
        _ => "A use that is never harmless.",
    }
}

/// Returns whether a word matches a pattern of the table.
pub(super) fn matches(pattern: &str, word: &[u8]) -> bool {
    let pattern = pattern.as_bytes();
    // Most patterns fail here.
    if pattern.first() != word.first() && !matches!(pattern.first(), Some(b'*' | b'?')) {
        return false;
    }
    match pattern.iter().position(|b| *b == b'*') {
        None => pattern.len() == word.len() && same(pattern, word),
        Some(at) => {
            let rest = &pattern[at + 1..];
            word.len() >= at && same(&pattern[..at], &word[..at]) && tail_matches(rest, &word[at..])
        }
    }
}

/// Returns whether the bytes are equal; `?` in the pattern matches any byte.
fn same(pattern: &[u8], word: &[u8]) -> bool {
    pattern.iter().zip(word).all(|(p, w)| p == w || *p == b'?')
}

fn tail_matches(pattern: &[u8], word: &[u8]) -> bool {
    if pattern.is_empty() {
        return true;
    }
    let end = pattern.iter().position(|b| *b == b'*').unwrap_or(pattern.len());
    let (part, rest) = pattern.split_at(end);
    if rest.is_empty() {
        return word.ends_with(part);
    }
    word.windows(part.len()).enumerate().any(|(i, w)| w == part && tail_matches(&rest[1..], &word[i + part.len()..]))
}

/// Classifies a command by the table.
pub(crate) fn judge(judge: &mut Judge, invocation: &Invocation) {
    let has = |patterns: &[&str]| patterns.iter().any(|p| invocation.texts().iter().any(|w| matches(p, w)));
    for hazard in hazards::of(&invocation.name) {
        if hazard.needs.iter().all(|group| has(group)) && !has(hazard.unless) {
            judge.deny(hazard.code, message(hazard.code), invocation.span);
        }
    }
    // A crontab is installed from a file or from standard input.
    let told = ["-l", "-e", "-r", "-h", "-V", "--help", "--version"].iter().any(|option| invocation.has(option));
    if invocation.name == b"crontab" && !told {
        judge.deny("persistence", message("persistence"), invocation.span);
    }
}
