//! Programs whose arguments are an expression: find(1) and test(1).

use crate::classify::Classifier;
use crate::invocation::Invocation;
use crate::knowledge::lists;
use crate::paths::{self, PathLocation};
use crate::words::{DataFlow, ExpandedArgument};

use super::{ask_for_secret, classify_text, dynamic_text, report_secret_search};

/// Classifies find as a reader.
pub(super) fn classify_find(classifier: &mut Classifier, invocation: &Invocation) -> DataFlow {
    let mut arguments = invocation.arguments.iter().peekable();
    let mut in_expression = false;
    let mut starts = Vec::new();
    while let Some(argument) = arguments.next() {
        if argument.starts_unknown() || argument.literal_value().is_none() {
            classifier.record_ask(
                "dynamic-operand",
                "A part of the search is not known before the run.",
                argument.span,
            );
            continue;
        }
        let word = argument.display_bytes();
        if !in_expression && (matches!(word.as_slice(), b"-L" | b"-H" | b"-P") || word.starts_with(b"-O")) {
            continue;
        }
        in_expression |= word.starts_with(b"-") || word == b"(" || word == b"!";
        if !in_expression {
            classify_start(classifier, argument);
            starts.push(argument.clone());
        } else if lists::has_word(lists::FIND_VALUED, &word) || lists::has_word(lists::FIND_FILES, &word) {
            let Some(value) = arguments.next() else {
                classifier.record_ask("unknown-option", "An option without its value.", argument.span);
                continue;
            };
            classify_text(classifier, value);
            if lists::has_word(lists::FIND_FILES, &word) {
                ask_for_secret(classifier, value);
            } else {
                hunts_by_name(classifier, &starts, value);
            }
        } else if lists::has_word(lists::FIND_ACTIONS, &word) {
            classifier.record_ask(
                "executing-option",
                "A search that writes, removes or runs something.",
                argument.span,
            );
        } else if !lists::has_word(lists::FIND_FLAGS, &word) {
            classifier.record_ask("unknown-option", "An option that is not known to be harmless.", argument.span);
        }
    }
    if starts.is_empty() {
        classify_start(classifier, &ExpandedArgument::from_bytes(b".", invocation.span));
    }
    DataFlow::default()
}

fn classify_start(classifier: &mut Classifier, argument: &ExpandedArgument) {
    ask_for_secret(classifier, argument);
    // Listing system directories is harmless. For a home directory, its parents or `/proc`, the
    // person decides.
    let listed = classifier.absolute_path(argument).is_some_and(|path| {
        paths::locate_path(&path, classifier.context) != PathLocation::Ancestor
            && path != b"/home"
            && !path.starts_with(b"/proc")
    });
    if !listed {
        report_secret_search(classifier, argument);
    }
}

/// Reports a search outside the workspace for names of secrets.
fn hunts_by_name(classifier: &mut Classifier, starts: &[ExpandedArgument], name: &ExpandedArgument) {
    let outside = starts.iter().any(|start| {
        classifier
            .absolute_path(start)
            .is_none_or(|path| paths::locate_path(&path, classifier.context) != PathLocation::Workspace)
    });
    let path = [b"/", name.display_bytes().as_slice()].concat();
    if outside && paths::is_secret(&path, classifier.context) {
        classifier.record_ask("searches-secrets", "Searches for what looks like secrets.", name.span);
    }
}

/// Classifies `test`, `[` and `[[`. A test that evaluates its operand (`-v`, `-R`, and the numbers
/// in `[[`) runs substitutions even in quoted text.
pub(super) fn classify_test(classifier: &mut Classifier, invocation: &Invocation) -> DataFlow {
    let mut words: Vec<&ExpandedArgument> = invocation.arguments.iter().collect();
    let closing: Option<&[u8]> = match invocation.name.as_slice() {
        b"[" => Some(b"]"),
        b"[[" => Some(b"]]"),
        _ => None,
    };
    if let Some(closing) = closing
        && words.pop().is_none_or(|last| last.display_bytes() != closing)
    {
        classifier.record_ask("not-understood", "A test without its end.", invocation.span);
    }
    let mut previous_is_number = false;
    for (i, word) in words.iter().enumerate() {
        let shown = word.display_bytes();
        dynamic_text(classifier, word);
        if word.is_glob() && invocation.name != b"[[" {
            classifier.record_ask("wildcard", "A wildcard where one word is expected.", word.span);
        }
        if previous_is_number && !is_integer(&shown) {
            classifier.record_ask("evaluates-text", "A value that is evaluated as arithmetic.", word.span);
        }
        previous_is_number = lists::has_word(lists::NUMBER_TESTS, &shown);
        if previous_is_number
            && !i.checked_sub(1).and_then(|p| words.get(p)).is_some_and(|w| is_integer(&w.display_bytes()))
        {
            classifier.record_ask("evaluates-text", "A value that is evaluated as arithmetic.", word.span);
        }
        let known =
            [lists::FILE_TESTS, lists::STRING_TESTS, lists::COMPARISONS, lists::NUMBER_TESTS, lists::TEST_OPERATORS]
                .iter()
                .any(|list| lists::has_word(list, &shown));
        if shown.starts_with(b"-") && shown.len() > 1 && !known && !is_integer(&shown) {
            classifier.record_ask("unknown-option", "A test that is not known to be harmless.", word.span);
        }
        // A word beside such an operator is a path, any other is text.
        let beside = |at: Option<usize>| {
            at.and_then(|at| words.get(at)).map(|w| w.display_bytes()).is_some_and(|w| {
                let comparison = matches!(w.as_slice(), b"-nt" | b"-ot" | b"-ef");
                comparison || lists::has_word(lists::FILE_TESTS, &w)
            })
        };
        if !known && (beside(i.checked_sub(1)) || beside(Some(i + 1))) {
            ask_for_secret(classifier, word);
        }
    }
    DataFlow::default()
}

fn is_integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}
