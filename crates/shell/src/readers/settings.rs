//! Repository settings that a command writes by name. Settings that change the output of git, or
//! how it stores data, count as an ordinary change of the repository.

use stockade_model::{Capability, RawText};

use crate::judge::Classifier;
use crate::knowledge::{CommandSpec, ValueKind};
use crate::options::ParsedArguments;
use crate::paths;

/// Names that start no program and lead to no other path, whatever their values. In lower case, as
/// git compares them. Source: git-config(1) of git 2.47.
const HARMLESS_SETTINGS: &[&str] = &[
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
const OTHER_WRITE_OPTIONS: &[&str] = &["--global", "--system", "--worktree", "--rename-section", "--remove-section"];

/// Classifies the write of `git config`, if it writes.
pub(super) fn classify_config_write(
    judge: &mut Classifier,
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
    if is_fine && !parsed.has_option(OTHER_WRITE_OPTIONS) {
        judge.record_ask("changes-repository", "Changes the repository or its work tree.", span);
    } else {
        judge.record_ask("unknown-operand", "An argument this program is not known to take.", span);
        match default_config_file(judge, parsed) {
            Some(file) => _ = judge.capabilities.insert(Capability::Write(RawText::from(file))),
            None => super::confined::record_outside_write(judge, span),
        }
    }
}

/// Returns the file that is written by default: that of the repository of the directory.
fn default_config_file(judge: &Classifier, parsed: &ParsedArguments) -> Option<Vec<u8>> {
    const OTHER_FILE_OPTIONS: &[&str] = &["--global", "--system", "-f", "--file", "--blob"];
    if parsed.has_option(OTHER_FILE_OPTIONS) {
        return None;
    }
    let name: &[u8] = if parsed.has_option(&["--worktree"]) { b".git/config.worktree" } else { b".git/config" };
    paths::make_absolute(name, judge.scope.cwd.as_deref())
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
    HARMLESS_SETTINGS.iter().any(|known| known.as_bytes() == key)
        || HARMLESS_SECTIONS.iter().any(|section| key.starts_with(section.as_bytes()))
}
