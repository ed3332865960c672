//! Uses of programs that are denied for every file. The table is data in `knowledge/hazards.toml`;
//! this module matches it.

use stockade_effects::matches_word;

use crate::classify::Classifier;
use crate::invocation::Invocation;
use crate::knowledge::hazards;

/// Returns whether a word matches one of the patterns.
pub(super) fn matches_any(patterns: &[&str], word: &[u8]) -> bool {
    patterns.iter().any(|pattern| matches_word(pattern, word))
}

/// Classifies a command by the table.
pub(crate) fn classify_hazards(classifier: &mut Classifier, invocation: &Invocation) {
    let has = |patterns: &[&str]| patterns.iter().any(|p| invocation.known_texts().iter().any(|w| matches_word(p, w)));
    for hazard in hazards::program_hazards(&invocation.name) {
        if hazard.needs.iter().all(|group| has(group)) && !has(hazard.unless) {
            classifier.record_denial(hazard.code, hazard.message, invocation.span);
        }
    }
    // A crontab is installed from a file or from standard input.
    let has_mode_option =
        ["-l", "-e", "-r", "-h", "-V", "--help", "--version"].iter().any(|option| invocation.has_argument(option));
    if invocation.name == b"crontab" && !has_mode_option {
        classifier.record_denial("persistence", "Schedules a program to run later.", invocation.span);
    }
}
