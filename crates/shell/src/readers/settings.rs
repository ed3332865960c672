//! Repository settings that a command writes by name. Settings that change the output of git, or
//! how it stores data, count as an ordinary change of the repository.

use stockade_model::{Capability, RawText};

use crate::judge::Judge;
use crate::knowledge::{Entry, Kind};
use crate::options::Parsed;
use crate::paths;

/// Names that start no program and lead to no other path, whatever their values. In lower case, as
/// git compares them. Source: git-config(1) of git 2.47.
const HARMLESS: &[&str] = &[
    "branch.sort",
    "commit.verbose",
    "core.abbrev",
    "core.autocrlf",
    "core.eol",
    "core.filemode",
    "core.ignorecase",
    "core.longpaths",
    "core.precomposeunicode",
    "core.quotepath",
    "core.safecrlf",
    "core.symlinks",
    "core.whitespace",
    "diff.algorithm",
    "diff.colormoved",
    "diff.mnemonicprefix",
    "diff.noprefix",
    "diff.renamelimit",
    "diff.renames",
    "fetch.prune",
    "fetch.prunetags",
    "gc.auto",
    "init.defaultbranch",
    "log.abbrevcommit",
    "log.date",
    "log.decorate",
    "merge.conflictstyle",
    "merge.ff",
    "merge.renamelimit",
    "pull.ff",
    "pull.rebase",
    "push.autosetupremote",
    "push.default",
    "push.followtags",
    "rebase.autosquash",
    "rebase.autostash",
    "rebase.updaterefs",
    "rerere.autoupdate",
    "rerere.enabled",
    "status.branch",
    "status.short",
    "status.showuntrackedfiles",
    "tag.sort",
    "user.email",
    "user.name",
];

/// Sections with only such names.
const HARMLESS_SECTIONS: &[&str] = &["advice.", "color."];

/// Options to write another file, or more than one value.
const OTHER_USES: &[&str] = &["--global", "--system", "--worktree", "--rename-section", "--remove-section"];

/// Classifies the write of `git config`, if it writes.
pub(super) fn judge(judge: &mut Judge, entry: &Entry, parsed: &Parsed, at: (usize, usize)) {
    let takes_setting = entry.operands.iter().any(|operand| operand.kind == Kind::Setting);
    if !takes_setting || !(parsed.writes() || parsed.operands.len() > 1) {
        return;
    }
    let key = parsed.operands.first().and_then(|key| key.literal()).unwrap_or_default();
    let span = parsed.operands.get(1).map_or(at, |value| value.span);
    let value = parsed.operands.get(1).and_then(|value| value.literal());
    let is_fine = is_harmless(&key) || value.is_some_and(|value| is_harmless_as(&key, &value));
    if is_fine && !parsed.uses(OTHER_USES) {
        judge.ask("changes-repository", "Changes the repository or its work tree.", span);
    } else {
        judge.ask("unknown-operand", "An argument this program is not known to take.", span);
        match file(judge, parsed) {
            Some(file) => _ = judge.capabilities.insert(Capability::Write(RawText::from(file))),
            None => super::confined::record(judge, span),
        }
    }
}

/// Returns the file that is written by default: that of the repository of the directory.
fn file(judge: &Judge, parsed: &Parsed) -> Option<Vec<u8>> {
    const OTHERS: &[&str] = &["--global", "--system", "-f", "--file", "--blob"];
    if parsed.uses(OTHERS) {
        return None;
    }
    let name: &[u8] = if parsed.uses(&["--worktree"]) { b".git/config.worktree" } else { b".git/config" };
    paths::absolute(name, judge.scope.cwd.as_deref())
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
    HARMLESS.iter().any(|known| known.as_bytes() == key)
        || HARMLESS_SECTIONS.iter().any(|section| key.starts_with(section.as_bytes()))
}
