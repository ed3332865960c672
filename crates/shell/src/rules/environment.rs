//! Variables set for one command. A short list of them changes only the look of output; any other
//! may name a program, a library or a file.

use crate::classify::Classifier;
use crate::knowledge::lists;
use crate::words::ExpandedArgument;

/// Variables that are harmless with one of these values.
const HARMLESS_VALUES: &[(&str, &[&str])] = &[
    ("GIT_PAGER", &["cat", ""]),
    ("PAGER", &["cat", ""]),
    ("GIT_OPTIONAL_LOCKS", &["0"]),
    ("GIT_TERMINAL_PROMPT", &["0"]),
    ("GIT_CONFIG_NOSYSTEM", &["1", "true"]),
    ("GIT_NO_LAZY_FETCH", &["1"]),
    ("SYSTEMD_PAGER", &["cat", ""]),
    ("MANPAGER", &["cat"]),
];

/// Returns whether an assignment cannot change the code that runs.
pub(crate) fn is_harmless(name: &[u8], value: &ExpandedArgument) -> bool {
    let Ok(name) = std::str::from_utf8(name) else { return false };
    let Some(value) = value.literal_value() else { return false };
    if let Some((_, values)) = HARMLESS_VALUES.iter().find(|(n, _)| *n == name) {
        return values.iter().any(|v| v.as_bytes() == value);
    }
    // No program is known that uses a variable of one letter.
    let is_letter = name.len() == 1 && name.bytes().all(|b| b.is_ascii_uppercase());
    let plain = is_letter || lists::PLAIN_VARIABLES.contains(&name) || name.starts_with("LC_");
    let slash = name == "TZ" || name.ends_with("COLORS") || name == "RUST_LOG";
    plain
        && !value.starts_with(b"/")
        && !value.starts_with(b":")
        && !value.windows(2).any(|w| w == b"..")
        && value.iter().all(|b| b.is_ascii_alphanumeric() || b"_.@+-,=:;*'".contains(b) || (slash && *b == b'/'))
}

/// Records an assignment that may change the code that runs.
pub(crate) fn classify_assignment(
    classifier: &mut Classifier,
    name: &[u8],
    value: &ExpandedArgument,
    at: (usize, usize),
) {
    let injecting = lists::has_word(lists::INJECTING_VARIABLES, name);
    let message = if injecting {
        "Sets a variable that loads code into programs."
    } else {
        "Sets a variable that may change what runs."
    };
    classifier.record_ask("sets-environment", message, at);
    super::impact::classify_variable(classifier, name, value, at);
    // `GIT_SSH_COMMAND='...'`, `PAGER='...'`: the value is a command.
    if let Some(text) = value.literal_value().filter(|t| t.contains(&b' ')) {
        classifier.walk_script(&text, &crate::words::DataFlow::default(), at);
    }
}
