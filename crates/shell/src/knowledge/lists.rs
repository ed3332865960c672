//! Lists of programs, options, variables, paths and marks. They are data in
//! `knowledge/lists.toml` and constants of this module.

include!(concat!(env!("OUT_DIR"), "/lists.rs"));

pub(crate) use stockade_effects::has_word;

/// Returns whether a part is in the text. Searches for the first byte and then compares the rest,
/// because the texts are long.
pub(crate) fn contains(text: &[u8], part: &str) -> bool {
    let part = part.as_bytes();
    let Some(first) = part.first() else { return true };
    let mut rest = text;
    while let Some(at) = rest.iter().position(|b| b == first) {
        if rest[at..].starts_with(part) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

/// Returns whether a part of the list is in the text.
pub(crate) fn contains_any(text: &[u8], parts: &[&str]) -> bool {
    parts.iter().any(|part| contains(text, part))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_constants_are_the_table() {
        let whole: toml::Table = include_str!("../../knowledge/lists.toml").parse().unwrap();
        let rows = |table: &str, key: &str| -> Vec<String> {
            let list = whole[table][key].as_array().unwrap();
            list.iter().map(|row| row.as_str().unwrap().to_owned()).collect()
        };
        let split = |row: &String| row.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let words = rows("words", "find_flags").iter().flat_map(split).collect::<Vec<_>>();
        assert_eq!(FIND_FLAGS, words);
        assert_eq!(NETWORK_MARKS, rows("texts", "network_marks"));
        let uses = rows("uses", "quiet_sections").iter().map(split).collect::<Vec<_>>();
        assert_eq!(QUIET_SECTIONS.iter().map(|(name, keys)| [&[*name], *keys].concat()).collect::<Vec<_>>(), uses);
    }

    #[test]
    fn no_word_is_there_twice() {
        let whole: toml::Table = include_str!("../../knowledge/lists.toml").parse().unwrap();
        for (name, list) in whole["words"].as_table().unwrap() {
            let mut seen = BTreeSet::new();
            for row in list.as_array().unwrap() {
                for word in row.as_str().unwrap().split(' ') {
                    assert!(seen.insert(word), "{name}: {word}");
                }
            }
        }
    }
}
