//! Guarded names in all spellings, compared with the tails of paths. Pure: it knows no filesystem.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The guarded names, each of one or more components.
#[derive(Clone, Debug, Default)]
pub struct GuardedNames {
    /// Whole folded entries, first component first, by their folded last component.
    by_last: HashMap<Vec<u8>, Vec<Vec<Vec<u8>>>>,
    /// Every folded component of every entry.
    components: HashSet<Vec<u8>>,
}

impl GuardedNames {
    /// Returns the names of a list of entries.
    pub fn new(entries: &[String]) -> Self {
        let mut names = Self::default();
        for entry in entries {
            let parts: Vec<Vec<u8>> = entry
                .split('/')
                .filter(|part| !part.is_empty() && *part != ".")
                .map(|part| fold_name(part.as_bytes()).into_owned())
                .collect();
            if let Some(last) = parts.last().filter(|last| !last.is_empty()).cloned() {
                names.components.extend(parts.iter().cloned());
                names.by_last.entry(last).or_default().push(parts);
            }
        }
        names
    }

    /// Returns the entry that the tail of `path` spells, if there is one.
    pub fn find_match(&self, path: &[u8]) -> Option<String> {
        let last = fold_name(path.rsplit(|b| *b == b'/').next()?);
        let entries = self.by_last.get(last.as_ref())?;
        entries.iter().find(|entry| ends_with(path, entry)).map(|entry| format_entry(entry))
    }

    /// Returns whether a single name is a component of an entry.
    pub fn has_component(&self, name: &[u8]) -> bool {
        self.components.contains(fold_name(name).as_ref())
    }

    /// Returns the relative paths that would be guarded beneath a directory with the path `path`:
    /// `git` beneath `/home/dev/.config`.
    pub fn carried_by(&self, path: &[u8]) -> Vec<PathBuf> {
        let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
        if !self.has_component(name) {
            return Vec::new();
        }
        let entries = self.by_last.values().flatten();
        entries
            .flat_map(|entry| {
                (1..entry.len())
                    .filter(|at| ends_with(path, &entry[..*at]))
                    .map(|at| PathBuf::from(OsStr::from_bytes(&entry[at..].join(&b'/'))))
                    .collect::<Vec<_>>()
            })
            .collect()
    }
}

/// Returns whether the last components of `path` spell `entry`.
fn ends_with(path: &[u8], entry: &[Vec<u8>]) -> bool {
    let mut parts = path.rsplit(|b| *b == b'/');
    entry.iter().rev().all(|want| parts.next().is_some_and(|part| fold_name(part).as_ref() == want.as_slice()))
}

fn format_entry(entry: &[Vec<u8>]) -> String {
    String::from_utf8_lossy(&entry.join(&b'/')).into_owned()
}

/// Returns one form for all spellings that some filesystem takes for the same name. It covers ASCII
/// case, the two letters that fold into ASCII, characters that HFS+ ignores, and trailing dots and
/// spaces.
pub fn fold_name(name: &[u8]) -> Cow<'_, [u8]> {
    let plain = name.iter().all(|b| b.is_ascii() && !b.is_ascii_uppercase());
    if plain && !matches!(name.last(), Some(b'.' | b' ')) {
        return Cow::Borrowed(name);
    }
    let Ok(text) = std::str::from_utf8(name) else {
        return Cow::Owned(name.to_ascii_lowercase());
    };
    let folded: String = text.chars().filter(|c| !is_ignorable(*c)).map(fold_char).collect();
    Cow::Owned(folded.trim_end_matches(['.', ' ']).as_bytes().to_vec())
}

fn fold_char(c: char) -> char {
    match c {
        '\u{212a}' => 'k',
        '\u{017f}' => 's',
        _ => c.to_ascii_lowercase(),
    }
}

fn is_ignorable(c: char) -> bool {
    matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}')
}
