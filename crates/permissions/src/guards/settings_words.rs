//! Repository settings that are harmless by themselves, and the forms of their values. They change
//! git's output, its parallelism and its storage, but neither the programs that it runs nor its
//! destinations. Pure data: the caller knows the earlier settings.

use std::collections::HashMap;
use std::sync::LazyLock;

use stockade_model::{NameList, table_rows};

/// Settings, by their section, and the forms that a value may have: a file may have tens of thousands
/// of settings. A section with `<name>` has subsections.
pub(super) struct SettingForms(HashMap<&'static str, Vec<(&'static str, &'static str)>>);

static HARMLESS: LazyLock<SettingForms> =
    LazyLock::new(|| SettingForms::new(include_str!("../../knowledge/git_settings.txt")));
/// Settings that protect the user's work, with the forms that do.
pub(super) static GUARDING: LazyLock<SettingForms> =
    LazyLock::new(|| SettingForms::new(include_str!("../../knowledge/git_guarding_settings.txt")));

impl SettingForms {
    fn new(text: &'static str) -> Self {
        let mut by_section: HashMap<&str, Vec<_>> = HashMap::new();
        for (name, forms) in table_rows(text).filter_map(|row| row.split_once(' ')) {
            if let Some((section, key)) = name.rsplit_once('.') {
                by_section.entry(section).or_default().push((key, forms));
            }
        }
        Self(by_section)
    }

    /// Returns the forms of a setting's values, in every row for it.
    pub(super) fn forms_of(&self, section: &str, key: &str) -> impl Iterator<Item = &'static str> {
        let rows = self.0.get(section).into_iter().flatten();
        rows.filter(move |(own, _)| *own == key || *own == "*").map(|(_, forms)| *forms)
    }

    /// Returns whether a value has one of the forms of the setting.
    pub(super) fn allows_value(&self, section: &str, key: &str, value: &[u8]) -> bool {
        self.forms_of(section, key).any(|forms| forms.split(' ').any(|form| has_form(form, value)))
    }
}

/// Longest part of a line that is shown.
const MAX_SHOWN_CHARACTERS: usize = 100;
/// Git commands that only show data, and their options that start and write nothing.
const SHOWING_COMMANDS: &[&str] =
    &["blame", "describe", "diff", "log", "ls-files", "rev-parse", "shortlog", "show", "status"];
const SHOWING_OPTIONS: NameList = NameList::new(include_str!("../../knowledge/git_showing_options.txt"));

/// Returns the part of a text that is shown, without control characters.
pub(super) fn shorten_text(text: &str) -> String {
    let mut shown: String = text.escape_debug().take(MAX_SHOWN_CHARACTERS).collect();
    if text.chars().count() > MAX_SHOWN_CHARACTERS {
        shown.push_str("...");
    }
    shown
}

/// Returns whether a setting without a subsection is harmless.
pub(super) fn is_harmless_alone(section: &str, key: &str, value: &[u8]) -> bool {
    HARMLESS.allows_value(section, key, value)
}

/// Returns whether a value has this form, as the list of harmless settings names it.
fn has_form(form: &str, value: &[u8]) -> bool {
    match form {
        "<any>" => true,
        "<bool>" => is_bool(value),
        "<switch>" => !value.is_empty() && is_bool(value),
        "<true>" => is_true(value),
        "<off>" => is_bool(value) && !is_true(value),
        "<word>" => is_word(value),
        "<words>" => value.split(|b| *b == b',').all(|word| is_word(without_minus(word.trim_ascii_start()))),
        "<order>" => without_minus(value).split(|b| *b == b':').all(is_word),
        "<nick>" => is_nick(value),
        "<parts>" => value.split(|b| *b == b'#').all(|part| !part.is_empty() && is_word(part)),
        "<prefix>" => is_branch(value.strip_suffix(b"/").unwrap_or(value)),
        "<reference>" => value.strip_prefix(b"refs/").is_some_and(is_branch),
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

/// Returns whether a setting with a subsection is harmless, by the list alone.
pub(super) fn is_harmless_named(section: &str, subsection: &[u8], key: &str, value: &[u8]) -> bool {
    let own = std::str::from_utf8(subsection).map(|subsection| format!("{section}.{subsection}"));
    HARMLESS.allows_value(&format!("{section}.<name>"), key, value)
        || own.is_ok_and(|section| HARMLESS.allows_value(&section, key, value))
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
