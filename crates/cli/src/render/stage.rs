//! Stages as text: one line for each stage, one for each change, and the lines that differ.

use std::fmt::Write as _;

use stockade_model::{RawText, StagedChanges, shell_quoted};
use stockade_stage::text::{ContentDiff, DiffHunk, DiffLineKind};
use stockade_stage::{
    ChangeKind, CommitResult, HeldChange, HoldReason, ObjectFacts, ObjectKind, RecoveryEnd, RecoveryResult,
    StageChange, StageConflict, StageListEntry,
};

use super::audit::format_utc;
use super::{SgrColor, TextLayout, count_noun, cut_text, escape_text, name_of, write_wrapped};

/// Characters of the command in a list.
const MAX_COMMAND_CHARS: usize = 60;
/// Changes left in a stage that are shown; the rest is counted.
const MAX_HELD_SHOWN: usize = 20;

/// Describes the staged changes in a few words.
pub fn describe_waiting(staged: &StagedChanges) -> String {
    format!("{} staged in {}", count_noun(staged.changes, "path"), staged.stage)
}

/// Formats one stage on one line.
pub fn format_line(listed: &StageListEntry) -> String {
    let Some(meta) = &listed.meta else { return format!("{}  damaged\n", listed.id) };
    let command = meta.command.to_escaped();
    let short = cut_text(&command, MAX_COMMAND_CHARS);
    let state = describe_state(listed);
    format!("{}  {}  {state}  {}  {short}\n", listed.id, format_utc(meta.created_ms), meta.workspace.to_escaped())
}

/// Describes the state of a stage in a word or two.
pub fn describe_state(listed: &StageListEntry) -> String {
    let ended = listed.meta.as_ref().and_then(|meta| meta.ended.as_deref());
    match (listed.busy, listed.cut_off, ended) {
        (true, ..) => "in use".to_owned(),
        (_, true, _) => "commit cut off".to_owned(),
        (.., Some(ended)) => RawText::from(ended).to_escaped(),
        (.., None) => "run cut off".to_owned(),
    }
}

fn format_path(path: &std::path::Path) -> String {
    if path.as_os_str().is_empty() { "the workspace itself".to_owned() } else { RawText::from(path).to_escaped() }
}

/// Formats one change on one line; reasons against its commit follow on lines of their own.
pub fn format_change(
    change: &StageChange,
    held: Option<&HeldChange>,
    conflict: Option<&StageConflict>,
    style: TextLayout,
) -> String {
    let mut notes = Vec::new();
    if let (Some(before), Some(after)) = (&change.present, &change.staged) {
        notes.extend(describe_differences(before, after, change.how));
    } else if let Some(facts) = change.staged.or(change.present).filter(|facts| facts.kind != ObjectKind::File) {
        notes.push(name_of(facts.kind));
    }
    if change.other_names {
        notes.push("its other hard links in the workspace keep their content".to_owned());
    }
    let notes = if notes.is_empty() { String::new() } else { format!("   ({})", notes.join(", ")) };
    let mut out = format!("{:<9} {}{notes}\n", name_of(change.how), format_path(&change.path));
    if let Some(held) = held {
        out += &format!("          {} {}\n", style.paint_text(SgrColor::Yellow, "waits:"), format_obstacle(&held.why));
    }
    if let Some(conflict) = conflict {
        let text = format!("{} in the workspace meanwhile", name_of(conflict.meanwhile));
        out += &format!("          {} {text}\n", style.paint_text(SgrColor::Red, "conflict:"));
    }
    out
}

fn describe_differences(before: &ObjectFacts, after: &ObjectFacts, how: ChangeKind) -> Vec<String> {
    let mut notes = Vec::new();
    if before.kind != after.kind {
        notes.push(format!("{} becomes {}", name_of(before.kind), name_of(after.kind)));
    } else if before.mode != after.mode && before.kind != ObjectKind::Link {
        notes.push(format!("mode {:o} becomes {:o}", before.mode, after.mode));
    }
    if how == ChangeKind::Metadata && before.modified != after.modified {
        notes.push("time".to_owned());
    }
    if how == ChangeKind::Metadata && notes.is_empty() {
        notes.push("attributes".to_owned());
    }
    notes
}

fn format_obstacle(why: &HoldReason) -> String {
    match why {
        HoldReason::Protected { unit, .. } => {
            format!("{}; --protected {}", obstacle_reason(why), shell_quoted(&format_path(unit)))
        }
        HoldReason::Special(_) => format!("not put into a workspace: {}", obstacle_reason(why)),
    }
}

/// Formats the lines that differ. patch(1) can read them if no text had to be escaped.
pub fn format_difference(path: &std::path::Path, difference: &ContentDiff, change: &StageChange) -> String {
    difference_between(path, difference, (change.present.is_some(), change.staged.is_some()))
}

/// Formats the difference between the former and the present content, as far as each exists.
pub fn difference_between(path: &std::path::Path, difference: &ContentDiff, (before, after): (bool, bool)) -> String {
    let name = format_path(path);
    let side = |there: bool, prefix: &str| if there { format!("{prefix}/{name}") } else { "/dev/null".to_owned() };
    let heads = format!("--- {}\n+++ {}\n", side(before, "a"), side(after, "b"));
    match difference {
        ContentDiff::Text(hunks) => heads + &hunks.iter().map(format_hunk).collect::<String>(),
        ContentDiff::Link { before, after } => {
            let line = |mark: &str, text: &Option<Vec<u8>>| {
                let text = text.as_ref().map(|text| RawText::from(&text[..]).to_escaped());
                text.map(|text| format!("{mark}-> {text}\n")).unwrap_or_default()
            };
            heads + &line("-", before) + &line("+", after)
        }
        ContentDiff::Binary => format!("{heads}  binary content, not text\n"),
        ContentDiff::Large => format!("{heads}  too large to be compared line by line\n"),
        ContentDiff::Nothing => String::new(),
    }
}

fn format_hunk(hunk: &DiffHunk) -> String {
    let mut out = format!("@@ -{},{} +{},{} @@\n", hunk.before.0, hunk.before.1, hunk.after.0, hunk.after.1);
    for line in &hunk.lines {
        let mark = match line.fate {
            DiffLineKind::Kept => ' ',
            DiffLineKind::Removed => '-',
            DiffLineKind::Added => '+',
        };
        // A tab only moves the text after it.
        let text: Vec<_> = line.text.split('\t').map(|part| RawText::from(part).to_escaped()).collect();
        let _ = writeln!(out, "{mark}{}", text.join("\t"));
        if !line.ends {
            out.push_str("\\ No newline at end of file\n");
        }
    }
    out
}

/// Formats the result of a commit.
pub fn format_commit(committed: &CommitResult, id: &str, style: TextLayout) -> String {
    let mut out = format!("{} committed\n", count_noun(committed.paths.len(), "path"));
    for held in committed.held.iter().take(MAX_HELD_SHOWN) {
        let (path, why) = (format_path(&held.path), obstacle_reason(&held.why));
        write_wrapped(&mut out, style, "• ", &format!("left in the stage: {path}   ({why})"));
    }
    if committed.held.len() > MAX_HELD_SHOWN {
        out += &format!("• and {} more\n", committed.held.len() - MAX_HELD_SHOWN);
    }
    let mut units: Vec<String> = Vec::new();
    for held in &committed.held {
        if let HoldReason::Protected { unit, .. } = &held.why {
            let unit = format!("--protected {}", shell_quoted(&format_path(unit)));
            if !units.contains(&unit) && units.len() < MAX_HELD_SHOWN {
                units.push(unit);
            }
        }
    }
    if !units.is_empty() {
        out +=
            &format!("{} stockade stage commit {id} {}\n", style.paint_text(SgrColor::Cyan, "hint:"), units.join(" "));
    }
    out
}

fn obstacle_reason(why: &HoldReason) -> String {
    match why {
        HoldReason::Protected { rule, .. } => escape_text(rule),
        HoldReason::Special(what) => (*what).to_owned(),
    }
}

/// Formats the result of recovering an interrupted commit.
pub fn format_recovery(recovered: &RecoveryResult) -> String {
    let id = &recovered.id;
    match &recovered.end {
        RecoveryEnd::Finished => format!("• a commit of {id} that was interrupted is finished\n"),
        RecoveryEnd::Undone(why) => format!("• a commit of {id} that was interrupted is undone: {why}\n"),
        RecoveryEnd::PutBack => {
            format!("• the changes of the run of {id} are in its stage; the workspace is as it was before it\n")
        }
        RecoveryEnd::Unbegun => {
            format!("• the temporary files of a commit of {id} are removed; it had changed nothing\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use stockade_stage::text::DiffLine;
    use stockade_stage::{FileTime, WorkspaceChange};

    use super::*;

    fn facts(kind: ObjectKind, mode: u32, seconds: i64) -> ObjectFacts {
        ObjectFacts { kind, mode, size: 1, modified: FileTime { seconds, nanoseconds: 0 } }
    }

    #[test]
    fn changes_and_their_conflicts() {
        let file = facts(ObjectKind::File, 0o644, 1);
        let list = [
            StageChange::for_show("new\u{1b}[2J", ChangeKind::Added, Some(file), None),
            StageChange::for_show("d", ChangeKind::Removed, None, Some(facts(ObjectKind::Directory, 0o755, 1))),
            StageChange::for_show("a", ChangeKind::Modified, Some(facts(ObjectKind::File, 0o600, 2)), Some(file)),
            StageChange::for_show("m", ChangeKind::Metadata, Some(facts(ObjectKind::File, 0o644, 2)), Some(file)),
            StageChange::for_show("r", ChangeKind::Replaced, Some(facts(ObjectKind::Link, 0o777, 2)), Some(file)),
            StageChange::for_show("", ChangeKind::Metadata, Some(file), Some(file)),
        ];
        let why = HoldReason::Protected { rule: "protected name: .git/hooks".into(), unit: ".git/hooks".into() };
        let held = HeldChange { path: "a".into(), how: ChangeKind::Modified, why };
        let conflict =
            StageConflict { path: "a".into(), how: ChangeKind::Modified, meanwhile: WorkspaceChange::Changed };
        let mut shown = String::new();
        for one in &list {
            let is_a = one.path == Path::new("a");
            shown += &format_change(one, is_a.then_some(&held), is_a.then_some(&conflict), TextLayout::PLAIN);
        }
        insta::assert_snapshot!(shown, @r"
        added     new\u{1b}[2J
        removed   d   (directory)
        modified  a   (mode 644 becomes 600)
                  waits: protected name: .git/hooks; --protected '.git/hooks'
                  conflict: changed in the workspace meanwhile
        metadata  m   (time)
        replaced  r   (file becomes link)
        metadata  the workspace itself   (attributes)
        ");
    }

    #[test]
    fn lines_that_differ_cannot_act_on_a_terminal() {
        let line = |fate, text: &str, ends| DiffLine { fate, text: text.to_owned(), ends };
        let hunks = vec![DiffHunk {
            before: (1, 2),
            after: (1, 2),
            lines: vec![
                line(DiffLineKind::Kept, "same\ttab", true),
                line(DiffLineKind::Removed, "old\u{1b}[31m", true),
                line(DiffLineKind::Added, "new\r", false),
            ],
        }];
        let file = facts(ObjectKind::File, 0o644, 1);
        let one = StageChange::for_show("f", ChangeKind::Added, Some(file), None);
        let link = ContentDiff::Link { before: None, after: Some(b"to\x1b".to_vec()) };
        let shown =
            format_difference(&one.path, &ContentDiff::Text(hunks), &one) + &format_difference(&one.path, &link, &one);
        insta::assert_snapshot!(shown, @r"
        --- /dev/null
        +++ b/f
        @@ -1,2 +1,2 @@
         same	tab
        -old\u{1b}[31m
        +new\r
        \ No newline at end of file
        --- /dev/null
        +++ b/f
        +-> to\u{1b}
        ");
    }

    #[test]
    fn a_commit_reports_omitted_changes_and_how_to_commit_them() {
        let held = |path: &str, unit: &str| HeldChange {
            path: path.into(),
            how: ChangeKind::Added,
            why: HoldReason::Protected { rule: format!("protected name: {unit}"), unit: unit.into() },
        };
        let special = HeldChange { path: "s".into(), how: ChangeKind::Added, why: HoldReason::Special("a device") };
        let one = CommitResult {
            paths: vec!["a".into(), "b".into()],
            held: vec![
                held(".git/config", ".git/config"),
                held(".vscode", ".vscode"),
                held(".vscode/x", ".vscode"),
                special,
            ],
            is_gone: false,
        };
        insta::assert_snapshot!(format_commit(&one, "stg_1", TextLayout::PLAIN), @r"
        2 paths committed
        • left in the stage: .git/config   (protected name: .git/config)
        • left in the stage: .vscode   (protected name: .vscode)
        • left in the stage: .vscode/x   (protected name: .vscode)
        • left in the stage: s   (a device)
        hint: stockade stage commit stg_1 --protected '.git/config' --protected '.vscode'
        ");
    }
}
