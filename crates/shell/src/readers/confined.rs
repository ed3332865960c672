//! Checks whether a writing command names a path outside the workspace. Every word that could be
//! such a path is reported, whatever its meaning for the program.

use crate::classify::Classifier;
use crate::knowledge::{CommandSpec, OptionEffect, ValueKind};
use crate::options::ParsedArguments;
use crate::paths::{self, PathLocation};
use crate::rules;
use crate::words::ExpandedArgument;

/// Reports the first word of a writing command that may name a path outside the workspace.
pub(super) fn check_confined(classifier: &mut Classifier, arguments: &[ExpandedArgument]) {
    let inside = classifier.scope.cwd.as_ref().is_some_and(|cwd| paths::is_inside(cwd, classifier.context));
    let beyond = arguments.iter().find(|argument| !inside || !is_inside_workspace(classifier, argument));
    if let Some(argument) = beyond {
        record_outside_write(classifier, argument.span);
    }
}

/// Reports a value that leads out of the workspace, for a command that changes a repository. Its
/// other words are text, or names within the repository.
pub(super) fn check_paths(classifier: &mut Classifier, entry: &CommandSpec, parsed: &ParsedArguments) {
    if !entry.does.contains(&OptionEffect::Repository) {
        return;
    }
    let values = parsed
        .values
        .iter()
        .filter(|value| matches!(value.kind, ValueKind::Destination | ValueKind::Read))
        .map(|value| &value.value);
    let kinds = (0..).map(|index| entry.operand_at(index).map(|operand| operand.kind));
    let operands = parsed.operands.iter().zip(kinds).filter(|(_, kind)| *kind == Some(ValueKind::Destination));
    let is_inside = |argument: &&ExpandedArgument| {
        let path =
            argument.literal_value().and_then(|text| paths::make_absolute(&text, classifier.scope.cwd.as_deref()));
        path.is_some_and(|path| {
            paths::locate_path(&path, classifier.context) == PathLocation::Workspace && !is_of_git(&path)
        })
    };
    let beyond = values.chain(operands.map(|(operand, _)| operand)).find(|argument| !is_inside(argument));
    if let Some(span) = beyond.map(|argument| argument.span) {
        record_outside_write(classifier, span);
    }
}

/// Records that a writing command may write outside the workspace.
pub(crate) fn record_outside_write(classifier: &mut Classifier, at: (usize, usize)) {
    classifier.record_ask(
        "beyond-workspace",
        "Names a path outside the workspace, or one that is not known before the run.",
        at,
    );
}

/// Returns whether the path is in git's own directory, where a file may be a program or a setting.
fn is_of_git(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').any(|name| name.eq_ignore_ascii_case(b".git"))
}

/// Returns whether a word cannot name a path outside the workspace.
fn is_inside_workspace(classifier: &Classifier, argument: &ExpandedArgument) -> bool {
    let Some(text) = argument.pattern_value() else { return false };
    let split = text.iter().position(|b| *b == b'=');
    let is_option = text.starts_with(b"-");
    let (name, value) = match split {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text.as_slice(), None),
    };
    // `-t/etc`, `-I../x`
    let name_stays = if is_option { !name.contains(&b'/') } else { leads_inside(classifier, &text) };
    name_stays && value.is_none_or(|value| leads_inside(classifier, value))
}

fn leads_inside(classifier: &Classifier, path: &[u8]) -> bool {
    let is_remote = path.contains(&b':');
    let is_home = path.starts_with(b"~");
    let resolved = paths::make_absolute(path, classifier.scope.cwd.as_deref());
    let lies_inside = |path: Vec<u8>| {
        paths::is_inside(&path, classifier.context) && !rules::write::is_target(classifier, &path) && !is_of_git(&path)
    };
    !is_remote && !is_home && (path.is_empty() || resolved.is_some_and(lies_inside))
}
