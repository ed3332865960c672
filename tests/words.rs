//! Identifiers of the product use the words of `docs/glossary.md`. Words that earlier names used in
//! another sense are listed here; an identifier that has one in its usual sense is listed in
//! `tests/words.txt`, with that sense.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{product_lines, root, sources};

/// Words that had a sense of their own here, and the words that replaced them.
const REPLACED: &str = "aside asked demand demands deed depot desk door doors edge front fronts grounds heard herald \
    honours holder judge judged judges keeper keepers lead leads led meant meaning nature neutralise nursery outfit \
    passage patience place places precaution rehearsal said seam seat site speakers standing terms told wall walls \
    who whom witness";

/// The words of an identifier, in lower case.
fn words_of(identifier: &str) -> Vec<String> {
    let (mut words, mut before) = (vec![String::new()], ' ');
    for character in identifier.chars() {
        if character == '_' || character.is_uppercase() && before.is_lowercase() {
            words.push(String::new());
        }
        before = character;
        words.last_mut().unwrap().extend(character.to_lowercase().filter(|character| *character != '_'));
    }
    words
}

/// The identifiers in a line of code, without those in comments and texts.
fn identifiers(line: &str) -> Vec<&str> {
    let code = line.split("//").next().unwrap_or(line);
    let outside_texts = code.split('"').step_by(2);
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    outside_texts.flat_map(|code| code.split(move |character| !is_part(character))).collect()
}

#[test]
fn identifiers_use_the_words_of_the_glossary() {
    let replaced: BTreeSet<&str> = REPLACED.split_whitespace().collect();
    let list = fs::read_to_string(root().join("tests/words.txt")).unwrap();
    let rows = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut reviewed: BTreeMap<&str, bool> = rows
        .flat_map(|row| row.split_once(": ").expect("a row: its sense, a colon, its identifiers").1.split(' '))
        .map(|name| (name, false))
        .collect();
    let mut faults = BTreeSet::new();
    let is_test =
        |file: &Path| file.to_string_lossy().contains("testkit") || file.to_string_lossy().ends_with("tests.rs");
    for file in sources().into_iter().filter(|file| !is_test(file)) {
        let text = fs::read_to_string(&file).unwrap();
        for name in product_lines(&text).into_iter().flat_map(identifiers) {
            let Some(word) = words_of(name).into_iter().find(|word| replaced.contains(word.as_str())) else { continue };
            match reviewed.get_mut(name) {
                Some(is_used) => *is_used = true,
                None => drop(faults.insert(format!("{}: `{name}` has the word `{word}`", file.display()))),
            }
        }
    }
    let unused = reviewed.iter().filter(|(_, is_used)| !**is_used);
    faults.extend(unused.map(|(name, _)| format!("tests/words.txt: `{name}` is no identifier any more")));
    assert!(faults.is_empty(), "{}", faults.into_iter().collect::<Vec<_>>().join("\n"));
}

#[test]
fn words_of_identifiers_are_found() {
    assert_eq!(words_of("PlaceOf_DOOR_wall"), ["place", "of", "door", "wall"]);
    let found = identifiers("let a = \"walls\"; // door");
    assert_eq!(found.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>(), ["let", "a"]);
}
