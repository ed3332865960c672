//! Repository settings that are harmless by themselves, and the forms of their values. They change
//! git's output, its parallelism and its storage, but neither the programs that it runs nor its
//! destinations. Pure data: the caller knows the earlier settings.

use std::collections::HashMap;
use std::sync::LazyLock;

use stockade_model::{NameList, table_rows};

/// Key of a setting, or `*`, and the harmless forms of its value.
type HarmlessSetting = (&'static str, &'static str);

/// Settings without a subsection, by their section: a file may have tens of thousands of settings.
static HARMLESS_SETTINGS: LazyLock<HashMap<&str, Vec<HarmlessSetting>>> = LazyLock::new(|| {
    let mut by_section: HashMap<&str, Vec<HarmlessSetting>> = HashMap::new();
    let rows = table_rows(include_str!("../../knowledge/git_settings.txt"));
    for (name, forms) in rows.filter_map(|row| row.split_once(' ')) {
        if let Some((section, key)) = name.split_once('.') {
            by_section.entry(section).or_default().push((key, forms));
        }
    }
    by_section
});

/// Git commands that only show data, and their options that start and write nothing.
const SHOWING_COMMANDS: &[&str] =
    &["blame", "describe", "diff", "log", "ls-files", "rev-parse", "shortlog", "show", "status"];
const SHOWING_OPTIONS: NameList = NameList::new(include_str!("../../knowledge/git_showing_options.txt"));

/// Returns whether a setting without a subsection is harmless.
pub(super) fn is_harmless_alone(section: &str, key: &str, value: &[u8]) -> bool {
    let mut known = HARMLESS_SETTINGS.get(section).into_iter().flatten();
    known.any(|(own, forms)| (*own == key || *own == "*") && forms.split(' ').any(|form| has_form(form, value)))
}

/// Returns whether a value has this form, as the list of harmless settings names it.
fn has_form(form: &str, value: &[u8]) -> bool {
    match form {
        "<any>" => true,
        "<bool>" => is_bool(value),
        "<switch>" => !value.is_empty() && is_bool(value),
        "<off>" => is_bool(value) && !is_true(value),
        "<word>" => is_word(value),
        "<words>" => value.split(|b| *b == b',').all(|word| is_word(without_minus(word.trim_ascii_start()))),
        "<order>" => without_minus(value).split(|b| *b == b':').all(is_word),
        "<branch>" => is_branch(value),
        "<path>" => is_relative_path(value),
        "<colour>" => is_colour(value),
        "<geometry>" => is_colour(&value.iter().copied().filter(|b| *b != b'+').collect::<Vec<_>>()),
        "<punctuation>" => matches!(value, [one] if one.is_ascii_punctuation()),
        "<showing-command>" => is_alias_that_shows(value),
        text => text.as_bytes() == value,
    }
}

/// Returns whether an alias is another name of a command that only shows data. A shell runs an
/// alias that begins with `!`, and options can name programs and files. The user may expect a
/// harmless alias of this name: for example, `git lg` must not check out files.
fn is_alias_that_shows(value: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(value) else { return false };
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    let Some(command) = words.next() else { return false };
    SHOWING_COMMANDS.contains(&command) && words.all(|word| SHOWING_OPTIONS.contains(word))
}

/// Returns whether a setting with a subsection and without an address is harmless.
pub(super) fn is_harmless_named(section: &str, subsection: &[u8], key: &str, value: &[u8]) -> bool {
    match (section, key) {
        ("color", _) => is_colour(value),
        // The authentication method that a server has asked for.
        ("lfs", "access") => matches!(value, b"basic" | b"private" | b"none"),
        ("lfs", "locksverify") => is_bool(value),
        ("maintenance", "enabled") => is_bool(value),
        ("maintenance", "schedule") => matches!(value, b"hourly" | b"daily" | b"weekly"),
        // Other values name a directory of hooks. No value may be an option to git.
        ("gitflow", _) => match subsection {
            b"branch" => is_branch(value),
            b"prefix" => is_branch(value.strip_suffix(b"/").unwrap_or(value)),
            _ => false,
        },
        _ => false,
    }
}

pub(super) fn is_bool(value: &[u8]) -> bool {
    let value = value.to_ascii_lowercase();
    is_true(&value) || matches!(&value[..], b"false" | b"no" | b"off" | b"0" | b"")
}

pub(super) fn is_true(value: &[u8]) -> bool {
    matches!(&value.to_ascii_lowercase()[..], b"true" | b"yes" | b"on" | b"1")
}

pub(super) fn is_word(value: &[u8]) -> bool {
    !value.starts_with(b"-") && value.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
}

/// Returns a word without the minus sign that inverts it.
fn without_minus(word: &[u8]) -> &[u8] {
    word.strip_prefix(b"-").unwrap_or(word)
}

fn is_colour(value: &[u8]) -> bool {
    value.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b' ' | b'#' | b'-'))
}

/// Returns whether a remote's name cannot be taken for an address or a path.
pub(super) fn is_nick(remote: &[u8]) -> bool {
    remote.first().is_some_and(u8::is_ascii_alphanumeric)
        && remote.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

pub(super) fn is_branch(branch: &[u8]) -> bool {
    let is_odd = |b: &u8| b.is_ascii_control() || b" ~^:?*[\\".contains(b);
    !branch.is_empty() && !branch.starts_with(b"-") && !branch.iter().any(is_odd) && are_names(branch)
}

/// Returns whether this is a path beneath the top, through no directory of git's.
pub(super) fn is_relative_path(path: &[u8]) -> bool {
    !path.starts_with(b"-") && !path.starts_with(b":") && are_names(path)
}

/// Returns whether every component is a name, and none is the name of a repository.
pub(super) fn are_names(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').all(|part| {
        let folded = super::fold_name(part);
        !matches!(part, b"" | b"." | b"..") && folded.as_ref() != b".git" && folded.as_ref() != b"git~1"
    })
}
