//! The changes of a run as text.

use std::path::Path;

use stockade_model::RawText;
use stockade_stage::ObjectKind;
use stockade_stage::undo::{RestoreResult, UndoChange, UndoConflict, UndoEffect, UndoMeta};

use super::count_noun;

/// Formats a run on one line.
pub fn format_run(meta: &UndoMeta) -> String {
    format!("{}   {}   {}\n", meta.request.as_str(), meta.workspace.to_escaped(), meta.command.to_escaped())
}

/// Names the change of a path in a word.
pub fn effect_word(effect: UndoEffect) -> &'static str {
    match effect {
        UndoEffect::Created => "created",
        UndoEffect::Changed => "changed",
        UndoEffect::Deleted => "deleted",
        UndoEffect::Metadata => "mode",
    }
}

/// Formats each path on one line, ordered by path. Paths that were deleted with their directory are
/// counted there.
pub fn format_changes<'c>(all: &[UndoChange], conflict_of: &dyn Fn(&Path) -> Option<&'c UndoConflict>) -> String {
    let mut out = String::new();
    // Ordered by component, so that the content of a directory follows it.
    let mut all: Vec<&UndoChange> = all.iter().collect();
    all.sort_by(|one, other| one.path.cmp(&other.path));
    let mut rest = &all[..];
    while let Some((first, after)) = rest.split_first() {
        let is_in_directory = |other: &&&UndoChange| {
            first.kind == ObjectKind::Directory
                && first.effect == UndoEffect::Deleted
                && other.effect == UndoEffect::Deleted
                && other.path.starts_with(&first.path)
                && conflict_of(&other.path).is_none()
        };
        let count = after.iter().take_while(is_in_directory).count();
        let line = format_change(first, conflict_of(&first.path));
        out += &match count {
            0 => line,
            _ => format!("{}   with {} in it\n", line.trim_end(), count_noun(count, "path")),
        };
        rest = &after[count..];
    }
    out
}

/// Formats the change of a path on one line. A rename is a deletion and a creation.
pub fn format_change(change: &UndoChange, conflict: Option<&UndoConflict>) -> String {
    let slash = if change.kind == ObjectKind::Directory { "/" } else { "" };
    let modes = change.modes.map(|(before, now)| format!("   {before:04o} -> {now:04o}")).unwrap_or_default();
    let why = conflict.map(|why| format!("   ({why})")).unwrap_or_default();
    format!("  {:<8} {}{slash}{modes}{why}\n", effect_word(change.effect), format_path(&change.path))
}

/// Formats a path that would not be restored on one line.
pub fn format_conflict(path: &Path, why: &UndoConflict) -> String {
    format!("  {:<8} {}   ({why})\n", "conflict", format_path(path))
}

/// Formats the restored paths, and the conflicts.
pub fn format_restoration(done: &RestoreResult, id: &str) -> String {
    let mut out = String::new();
    for (path, why) in &done.comparison.conflicts {
        out += &format_conflict(path, why);
    }
    if done.is_done {
        let count = count_noun(done.restored, "path");
        out += &format!("restored {count} as before run {id}\n");
    }
    out
}

fn format_path(path: &Path) -> String {
    if path.as_os_str().is_empty() { ".".to_owned() } else { RawText::from(path).to_escaped() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(path: &str, effect: UndoEffect, kind: ObjectKind, modes: Option<(u32, u32)>) -> UndoChange {
        UndoChange { path: path.into(), effect, kind, modes }
    }

    #[test]
    fn entries_removed_with_their_directory_are_counted() {
        let deleted = |path, kind| made(path, UndoEffect::Deleted, kind, None);
        let all = [
            deleted("a", ObjectKind::Directory),
            deleted("a/b", ObjectKind::Directory),
            deleted("a/b/c", ObjectKind::File),
            deleted("a-b", ObjectKind::File),
            deleted("a/d", ObjectKind::File),
        ];
        let none = |_: &Path| None;
        assert_eq!(format_changes(&all, &none), "  deleted  a/   with 3 paths in it\n  deleted  a-b\n");
        let conflict = |path: &Path| (path == Path::new("a/b/c")).then_some(&UndoConflict::Changed);
        let shown = format_changes(&all, &conflict);
        assert!(shown.starts_with("  deleted  a/   with 1 path in it\n  deleted  a/b/c"), "{shown}");
    }

    #[test]
    fn a_line_reports_the_operation() {
        let line = format_change(&made("a\x1bb", UndoEffect::Created, ObjectKind::Directory, None), None);
        assert_eq!(line, format!("  created  {}/\n", RawText::from("a\x1bb").to_escaped()));
        let line = format_change(
            &made("x", UndoEffect::Metadata, ObjectKind::File, Some((0o644, 0o755))),
            Some(&UndoConflict::Changed),
        );
        assert_eq!(line, "  mode     x   0644 -> 0755   (it was changed after the run)\n");
    }
}
