//! Uses of programs that are denied for every file. The table is data in `knowledge/hazards.toml`;
//! this module matches it.

use stockade_effects::matches_word;

use crate::classify::Classifier;
use crate::invocation::Invocation;
use crate::knowledge::hazards;

/// Returns the message of a code.
fn hazard_message(code: &str) -> &'static str {
    match code {
        "destroys-disk" => "Overwrites or formats a disk.",
        "destroys-system" => "Removes a part of the system.",
        "weakens-protection" => "Turns off a protection.",
        "changes-kernel" => "Loads code into the kernel or changes it.",
        "persistence" => "Schedules a program to run later.",
        "privilege-escalation" => "Gains privileges on the host.",
        "stops-machine" => "Stops the machine or everything on it.",
        "wipes-log" => "Removes traces in logs or histories.",
        "reverse-shell" => "Offers this machine, or a shell on it, to another host.",
        _ => "A use that is always harmful.",
    }
}

/// Returns whether a word matches one of the patterns.
pub(super) fn matches_any(patterns: &[&str], word: &[u8]) -> bool {
    patterns.iter().any(|pattern| matches_word(pattern, word))
}

/// Classifies a command by the table.
pub(crate) fn classify_hazards(classifier: &mut Classifier, invocation: &Invocation) {
    let has = |patterns: &[&str]| patterns.iter().any(|p| invocation.known_texts().iter().any(|w| matches_word(p, w)));
    for hazard in hazards::program_hazards(&invocation.name) {
        if hazard.needs.iter().all(|group| has(group)) && !has(hazard.unless) {
            classifier.record_denial(hazard.code, hazard_message(hazard.code), invocation.span);
        }
    }
    // A crontab is installed from a file or from standard input.
    let has_mode_option =
        ["-l", "-e", "-r", "-h", "-V", "--help", "--version"].iter().any(|option| invocation.has_argument(option));
    if invocation.name == b"crontab" && !has_mode_option {
        classifier.record_denial("persistence", hazard_message("persistence"), invocation.span);
    }
}
