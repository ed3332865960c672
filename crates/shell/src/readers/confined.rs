//! Does a command that writes name anything beyond the workspace? Whatever its words
//! mean to the program: each that could be a path there is told.

use crate::judge::Judge;
use crate::paths::{self, Place};
use crate::words::Argument;

/// Tells of the first word of a writing command that may lead beyond the workspace.
pub(super) fn check(judge: &mut Judge, arguments: &[Argument]) {
    let inside = judge.scope.cwd.as_ref().is_some_and(|cwd| is_inside(judge, cwd));
    let beyond = arguments.iter().find(|argument| !inside || !stays(judge, argument));
    if let Some(argument) = beyond {
        record(judge, argument.span);
    }
}

/// Records that a command which writes may do so beyond the workspace.
pub(crate) fn record(judge: &mut Judge, at: (usize, usize)) {
    judge.ask("beyond-workspace", "Names a place beyond the workspace, or one that is not in the text.", at);
}

fn is_inside(judge: &Judge, path: &[u8]) -> bool {
    matches!(paths::place(path, judge.context), Place::Workspace | Place::Temporary)
}

/// True if a word cannot name a place beyond the workspace.
fn stays(judge: &Judge, argument: &Argument) -> bool {
    let Some(text) = argument.pattern() else { return false };
    let split = text.iter().position(|b| *b == b'=');
    let is_option = text.starts_with(b"-");
    let (name, value) = match split {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text.as_slice(), None),
    };
    // `-t/etc`, `-I../x`
    let name_stays = if is_option { !name.contains(&b'/') } else { leads_inside(judge, &text) };
    name_stays && value.is_none_or(|value| leads_inside(judge, value))
}

fn leads_inside(judge: &Judge, path: &[u8]) -> bool {
    let is_remote = path.contains(&b':');
    let is_home = path.starts_with(b"~");
    let resolved = paths::absolute(path, judge.scope.cwd.as_deref());
    !is_remote && !is_home && (path.is_empty() || resolved.is_some_and(|path| is_inside(judge, &path)))
}
