//! Stages as text: one line for each stage, one for each change, and the lines that differ.

use std::fmt::Write as _;

use stockade_model::{RawText, Staged, shell_quoted};
use stockade_native::stage::text::{Difference, Fate, Hunk};
use stockade_native::stage::{
    Change, Committed, Conflict, End, Facts, Held, How, Kind, Listed, Meanwhile, Recovered, Why,
};

use super::audit::utc;
use super::{Color, Style, counted, wrap};

/// Characters of the command in a list.
const COMMAND_SHOWN: usize = 60;
/// Changes left in a stage that are shown; the rest is counted.
const HELD_SHOWN: usize = 20;

/// Describes the staged changes in a few words.
pub fn waiting(staged: &Staged) -> String {
    let count = usize::try_from(staged.changes).unwrap_or(usize::MAX);
    format!("{} staged in {}", counted(count, "path"), staged.stage)
}

/// Formats one stage on one line.
pub fn listed(listed: &Listed) -> String {
    let Some(meta) = &listed.meta else { return format!("{}  damaged\n", listed.id) };
    let command = meta.command.escaped();
    let mut short: String = command.chars().take(COMMAND_SHOWN).collect();
    if short.len() < command.len() {
        short.push('…');
    }
    let state = state(listed);
    format!("{}  {}  {state}  {}  {short}\n", listed.id, utc(meta.created_ms), meta.workspace.escaped())
}

/// Describes the state of a stage in a word or two.
pub fn state(listed: &Listed) -> String {
    let ended = listed.meta.as_ref().and_then(|meta| meta.ended.as_deref());
    match (listed.busy, listed.cut_off, ended) {
        (true, ..) => "in use".to_owned(),
        (_, true, _) => "commit cut off".to_owned(),
        (.., Some(ended)) => RawText::from(ended).escaped(),
        (.., None) => "run cut off".to_owned(),
    }
}

/// Names the kind of a change in a word.
pub fn how(how: How) -> &'static str {
    match how {
        How::Added => "added",
        How::Removed => "removed",
        How::Modified => "modified",
        How::Replaced => "replaced",
        How::Metadata => "metadata",
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Link => "link",
        Kind::Pipe => "pipe",
        Kind::Socket => "socket",
        Kind::Device => "device",
    }
}

fn shown(path: &std::path::Path) -> String {
    if path.as_os_str().is_empty() { "the workspace itself".to_owned() } else { RawText::from(path).escaped() }
}

/// Formats one change on one line; reasons against its commit follow on lines of their own.
pub fn change(change: &Change, held: Option<&Held>, conflict: Option<&Conflict>, style: Style) -> String {
    let mut notes = Vec::new();
    if let (Some(before), Some(after)) = (&change.present, &change.staged) {
        notes.extend(differences(before, after, change.how));
    } else if let Some(facts) = change.staged.or(change.present).filter(|facts| facts.kind != Kind::File) {
        notes.push(kind(facts.kind).to_owned());
    }
    if change.other_names {
        notes.push("its other names in the workspace keep what they show".to_owned());
    }
    let notes = if notes.is_empty() { String::new() } else { format!("   ({})", notes.join(", ")) };
    let mut out = format!("{:<9} {}{notes}\n", how(change.how), shown(&change.path));
    if let Some(held) = held {
        out += &format!("          {} {}\n", style.paint(Color::Yellow, "waits:"), why(&held.why));
    }
    if let Some(conflict) = conflict {
        let text = format!("{} in the workspace meanwhile", meanwhile(conflict.meanwhile));
        out += &format!("          {} {text}\n", style.paint(Color::Red, "conflict:"));
    }
    out
}

fn differences(before: &Facts, after: &Facts, how: How) -> Vec<String> {
    let mut notes = Vec::new();
    if before.kind != after.kind {
        notes.push(format!("{} becomes {}", kind(before.kind), kind(after.kind)));
    } else if before.mode != after.mode && before.kind != Kind::Link {
        notes.push(format!("mode {:o} becomes {:o}", before.mode, after.mode));
    }
    if how == How::Metadata && before.modified != after.modified {
        notes.push("time".to_owned());
    }
    if how == How::Metadata && notes.is_empty() {
        notes.push("attributes".to_owned());
    }
    notes
}

/// Names the change in the workspace in a word.
pub fn meanwhile(meanwhile: Meanwhile) -> &'static str {
    match meanwhile {
        Meanwhile::Created => "created",
        Meanwhile::Changed => "changed",
        Meanwhile::Removed => "removed",
    }
}

fn why(why: &Why) -> String {
    match why {
        Why::Protected { unit, .. } => format!("{}; --protected {}", reason(why), shell_quoted(&shown(unit))),
        Why::Special(_) => format!("not put into a workspace: {}", reason(why)),
    }
}

/// Formats the lines that differ. patch(1) can read them if no text had to be escaped.
pub fn difference(path: &std::path::Path, difference: &Difference, change: &Change) -> String {
    difference_between(path, difference, (change.present.is_some(), change.staged.is_some()))
}

/// Formats the difference between the former and the present content, as far as each exists.
pub fn difference_between(path: &std::path::Path, difference: &Difference, (before, after): (bool, bool)) -> String {
    let name = shown(path);
    let side = |there: bool, prefix: &str| if there { format!("{prefix}/{name}") } else { "/dev/null".to_owned() };
    let heads = format!("--- {}\n+++ {}\n", side(before, "a"), side(after, "b"));
    match difference {
        Difference::Text(hunks) => heads + &hunks.iter().map(hunk).collect::<String>(),
        Difference::Link { before, after } => {
            let line = |mark: &str, text: &Option<Vec<u8>>| {
                let text = text.as_ref().map(|text| RawText::from(&text[..]).escaped());
                text.map(|text| format!("{mark}-> {text}\n")).unwrap_or_default()
            };
            heads + &line("-", before) + &line("+", after)
        }
        Difference::Binary => format!("{heads}  bytes that are no text\n"),
        Difference::Large => format!("{heads}  too large to be compared line by line\n"),
        Difference::Nothing => String::new(),
    }
}

fn hunk(hunk: &Hunk) -> String {
    let mut out = format!("@@ -{},{} +{},{} @@\n", hunk.before.0, hunk.before.1, hunk.after.0, hunk.after.1);
    for line in &hunk.lines {
        let mark = match line.fate {
            Fate::Kept => ' ',
            Fate::Removed => '-',
            Fate::Added => '+',
        };
        // A tab only moves the text after it.
        let text: Vec<_> = line.text.split('\t').map(|part| RawText::from(part).escaped()).collect();
        let _ = writeln!(out, "{mark}{}", text.join("\t"));
        if !line.ends {
            out.push_str("\\ No newline at end of file\n");
        }
    }
    out
}

/// Formats the result of a commit.
pub fn committed(committed: &Committed, id: &str, style: Style) -> String {
    let mut out = format!("{} committed\n", counted(committed.paths.len(), "path"));
    for held in committed.held.iter().take(HELD_SHOWN) {
        wrap(&mut out, style, "• ", &format!("left in the stage: {}   ({})", shown(&held.path), reason(&held.why)));
    }
    if committed.held.len() > HELD_SHOWN {
        out += &format!("• and {} more\n", committed.held.len() - HELD_SHOWN);
    }
    let mut units: Vec<String> = Vec::new();
    for held in &committed.held {
        if let Why::Protected { unit, .. } = &held.why {
            let unit = format!("--protected {}", shell_quoted(&shown(unit)));
            if !units.contains(&unit) && units.len() < HELD_SHOWN {
                units.push(unit);
            }
        }
    }
    if !units.is_empty() {
        out += &format!("{} stockade stage commit {id} {}\n", style.paint(Color::Cyan, "hint:"), units.join(" "));
    }
    out
}

fn reason(why: &Why) -> String {
    match why {
        Why::Protected { rule, .. } => RawText::from(rule.as_str()).escaped(),
        Why::Special(what) => (*what).to_owned(),
    }
}

/// Formats the result of recovering an interrupted commit.
pub fn recovered(recovered: &Recovered) -> String {
    let id = &recovered.id;
    match &recovered.end {
        End::Finished => format!("• a commit of {id} that was cut off is finished\n"),
        End::Undone(why) => format!("• a commit of {id} that was cut off is undone: {why}\n"),
        End::PutBack => format!("• what the run of {id} made is in its stage; the workspace is as it was before it\n"),
        End::Unbegun => format!("• what a commit of {id} had made ready is removed; it had changed nothing\n"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use stockade_native::stage::Time;
    use stockade_native::stage::text::Line;

    use super::*;

    fn facts(kind: Kind, mode: u32, seconds: i64) -> Facts {
        Facts { kind, mode, size: 1, modified: Time { seconds, nanoseconds: 0 } }
    }

    #[test]
    fn changes_and_what_stands_against_them() {
        let file = facts(Kind::File, 0o644, 1);
        let list = [
            Change::for_show("new\u{1b}[2J", How::Added, Some(file), None),
            Change::for_show("d", How::Removed, None, Some(facts(Kind::Directory, 0o755, 1))),
            Change::for_show("a", How::Modified, Some(facts(Kind::File, 0o600, 2)), Some(file)),
            Change::for_show("m", How::Metadata, Some(facts(Kind::File, 0o644, 2)), Some(file)),
            Change::for_show("r", How::Replaced, Some(facts(Kind::Link, 0o777, 2)), Some(file)),
            Change::for_show("", How::Metadata, Some(file), Some(file)),
        ];
        let why = Why::Protected { rule: "protected name: .git/hooks".into(), unit: ".git/hooks".into() };
        let held = Held { path: "a".into(), how: How::Modified, why };
        let conflict = Conflict { path: "a".into(), how: How::Modified, meanwhile: Meanwhile::Changed };
        let mut shown = String::new();
        for one in &list {
            let is_a = one.path == Path::new("a");
            shown += &change(one, is_a.then_some(&held), is_a.then_some(&conflict), Style::PLAIN);
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
        let line = |fate, text: &str, ends| Line { fate, text: text.to_owned(), ends };
        let hunks = vec![Hunk {
            before: (1, 2),
            after: (1, 2),
            lines: vec![
                line(Fate::Kept, "same\ttab", true),
                line(Fate::Removed, "old\u{1b}[31m", true),
                line(Fate::Added, "new\r", false),
            ],
        }];
        let file = facts(Kind::File, 0o644, 1);
        let one = Change::for_show("f", How::Added, Some(file), None);
        let link = Difference::Link { before: None, after: Some(b"to\x1b".to_vec()) };
        let shown = difference(&one.path, &Difference::Text(hunks), &one) + &difference(&one.path, &link, &one);
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
    fn a_commit_says_what_it_left_and_how_it_would_go() {
        let held = |path: &str, unit: &str| Held {
            path: path.into(),
            how: How::Added,
            why: Why::Protected { rule: format!("protected name: {unit}"), unit: unit.into() },
        };
        let special = Held { path: "s".into(), how: How::Added, why: Why::Special("a device") };
        let one = Committed {
            paths: vec!["a".into(), "b".into()],
            held: vec![
                held(".git/config", ".git/config"),
                held(".vscode", ".vscode"),
                held(".vscode/x", ".vscode"),
                special,
            ],
            is_gone: false,
        };
        insta::assert_snapshot!(committed(&one, "stg_1", Style::PLAIN), @r"
        2 paths committed
        • left in the stage: .git/config   (protected name: .git/config)
        • left in the stage: .vscode   (protected name: .vscode)
        • left in the stage: .vscode/x   (protected name: .vscode)
        • left in the stage: s   (a device)
        hint: stockade stage commit stg_1 --protected '.git/config' --protected '.vscode'
        ");
    }
}
