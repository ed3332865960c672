//! Repository settings that a command writes by name. Settings that change the output of git, or
//! how it stores data, count as an ordinary change of the repository.

use stockade_model::{Capability, RawText};

use crate::classify::Classifier;
use crate::knowledge::{CommandSpec, ValueKind, lists};
use crate::options::ParsedArguments;
use crate::paths;

/// Classifies the write of `git config`, if it writes.
pub(super) fn classify_config_write(
    classifier: &mut Classifier,
    entry: &CommandSpec,
    parsed: &ParsedArguments,
    at: (usize, usize),
) {
    let takes_setting = entry.operands.iter().any(|operand| operand.kind == ValueKind::Setting);
    if !takes_setting || !(parsed.has_writing_option() || parsed.operands.len() > 1) {
        return;
    }
    let key = parsed.operands.first().and_then(|key| key.literal_value()).unwrap_or_default();
    let span = parsed.operands.get(1).map_or(at, |value| value.span);
    let value = parsed.operands.get(1).and_then(|value| value.literal_value());
    let is_fine = is_harmless(&key) || value.is_some_and(|value| is_harmless_as(&key, &value));
    if is_fine && !parsed.has_option(lists::OTHER_WRITE_OPTIONS) {
        classifier.record_ask("changes-repository", "Changes the repository or its work tree.", span);
    } else {
        classifier.record_ask("unknown-operand", "An unknown argument of this program.", span);
        match default_config_file(classifier, parsed) {
            Some(file) => _ = classifier.capabilities.insert(Capability::Write(RawText::from(file))),
            None => super::confined::record_outside_write(classifier, span),
        }
    }
}

/// Returns the file that is written by default: that of the repository of the directory.
fn default_config_file(classifier: &Classifier, parsed: &ParsedArguments) -> Option<Vec<u8>> {
    if parsed.has_option(lists::OTHER_FILE_OPTIONS) {
        return None;
    }
    let name: &[u8] = if parsed.has_option(&["--worktree"]) { b".git/config.worktree" } else { b".git/config" };
    paths::make_absolute(name, classifier.scope.cwd.as_deref())
}

/// Returns whether a key that may name a program has a harmless value: no program, or the default
/// one.
fn is_harmless_as(key: &[u8], value: &[u8]) -> bool {
    match key.to_ascii_lowercase().as_slice() {
        b"core.fsmonitor" => value == b"false",
        b"core.pager" => matches!(value, b"cat" | b"less"),
        _ => false,
    }
}

fn is_harmless(key: &[u8]) -> bool {
    let key = key.to_ascii_lowercase();
    lists::has_word(lists::HARMLESS_SETTINGS, &key)
        || lists::HARMLESS_SECTIONS.iter().any(|section| key.starts_with(section.as_bytes()))
}
