//! The changes of a run as text.

use std::path::Path;

use stockade_model::RawText;
use stockade_native::stage::Kind;
use stockade_native::undo::{Conflict, Effect, Restored, UndoChange, UndoMeta};

use super::counted;

/// Formats a run on one line.
pub fn head(meta: &UndoMeta) -> String {
    format!("{}   {}   {}\n", meta.request.as_str(), meta.workspace.escaped(), meta.command.escaped())
}

/// Names the change of a path in a word.
pub fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::Created => "created",
        Effect::Changed => "changed",
        Effect::Deleted => "deleted",
        Effect::Metadata => "mode",
    }
}

/// Formats each path on one line, ordered by path. Paths that were deleted with their directory are
/// counted there.
pub fn changes<'c>(all: &[UndoChange], conflict_of: &dyn Fn(&Path) -> Option<&'c Conflict>) -> String {
    let mut out = String::new();
    // Ordered by component, so that the content of a directory follows it.
    let mut all: Vec<&UndoChange> = all.iter().collect();
    all.sort_by(|one, other| one.path.cmp(&other.path));
    let mut rest = &all[..];
    while let Some((first, after)) = rest.split_first() {
        let went_along = |other: &&&UndoChange| {
            first.kind == Kind::Directory
                && first.effect == Effect::Deleted
                && other.effect == Effect::Deleted
                && other.path.starts_with(&first.path)
                && conflict_of(&other.path).is_none()
        };
        let count = after.iter().take_while(went_along).count();
        let line = change(first, conflict_of(&first.path));
        out += &match count {
            0 => line,
            _ => format!("{}   with {} in it\n", line.trim_end(), counted(count, "path")),
        };
        rest = &after[count..];
    }
    out
}

/// Formats the change of a path on one line. A rename is a deletion and a creation.
pub fn change(change: &UndoChange, conflict: Option<&Conflict>) -> String {
    let slash = if change.kind == Kind::Directory { "/" } else { "" };
    let modes = change.modes.map(|(before, now)| format!("   {before:04o} -> {now:04o}")).unwrap_or_default();
    let why = conflict.map(|why| format!("   ({why})")).unwrap_or_default();
    format!("  {:<8} {}{slash}{modes}{why}\n", effect(change.effect), shown(&change.path))
}

/// Formats a path that would not be restored on one line.
pub fn conflict(path: &Path, why: &Conflict) -> String {
    format!("  {:<8} {}   ({why})\n", "conflict", shown(path))
}

/// Formats the restored paths, and the conflicts.
pub fn restored(done: &Restored, id: &str) -> String {
    let mut out = String::new();
    for (path, why) in &done.comparison.conflicts {
        out += &conflict(path, why);
    }
    if done.is_done {
        let count = counted(usize::try_from(done.restored).unwrap_or(usize::MAX), "path");
        out += &format!("restored {count} as before run {id}\n");
    }
    out
}

fn shown(path: &Path) -> String {
    if path.as_os_str().is_empty() { ".".to_owned() } else { RawText::from(path).escaped() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(path: &str, effect: Effect, kind: Kind, modes: Option<(u32, u32)>) -> UndoChange {
        UndoChange { path: path.into(), effect, kind, modes }
    }

    #[test]
    fn what_went_with_its_directory_is_counted() {
        let deleted = |path, kind| made(path, Effect::Deleted, kind, None);
        let all = [
            deleted("a", Kind::Directory),
            deleted("a/b", Kind::Directory),
            deleted("a/b/c", Kind::File),
            deleted("a-b", Kind::File),
            deleted("a/d", Kind::File),
        ];
        let none = |_: &Path| None;
        assert_eq!(changes(&all, &none), "  deleted  a/   with 3 paths in it\n  deleted  a-b\n");
        let conflict = |path: &Path| (path == Path::new("a/b/c")).then_some(&Conflict::Changed);
        let shown = changes(&all, &conflict);
        assert!(shown.starts_with("  deleted  a/   with 1 path in it\n  deleted  a/b/c"), "{shown}");
    }

    #[test]
    fn a_line_says_what_was_done() {
        let line = change(&made("a\x1bb", Effect::Created, Kind::Directory, None), None);
        assert_eq!(line, format!("  created  {}/\n", RawText::from("a\x1bb").escaped()));
        let line = change(&made("x", Effect::Metadata, Kind::File, Some((0o644, 0o755))), Some(&Conflict::Changed));
        assert_eq!(line, "  mode     x   0644 -> 0755   (it was changed after the run)\n");
    }
}
