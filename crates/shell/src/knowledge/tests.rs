use std::collections::BTreeMap;

use super::*;
use crate::Context;
use crate::knowledge::text::Value;
use stockade_model::{RawText, Tier};

fn all() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    FILES.iter().flat_map(|(family, text)| tables(text).map(move |(name, body)| (*family, name, body)))
}

/// The tables with what lists of examples they hold.
fn lists(body: &'static str, wanted: &str) -> Vec<&'static str> {
    pairs(body)
        .filter_map(|pair| match pair.unwrap() {
            (key, Value::List(list)) if key == wanted => Some(list),
            _ => None,
        })
        .flatten()
        .collect()
}

#[test]
fn every_table_is_readable_and_sourced() {
    let mut seen = BTreeMap::new();
    for slot in &SLOTS {
        assert!(seen.insert(slot.name, slot.canonical).is_none(), "{} is there twice", slot.name);
    }
    for (family, name, body) in all() {
        let entry = build(body).unwrap_or_else(|fault| panic!("{family}: [{name}]: {fault}"));
        let keys: Vec<&str> = pairs(body).map(|pair| pair.unwrap().0).collect();
        assert!(keys.contains(&"source"), "{name} has no source");
        assert!(keys.iter().skip(1).all(|key| *key != "same"), "{name}: `same` comes first");
        for set in entry.neutralise.iter().chain(entry.neutralise_with.iter().map(|(_, set)| set)) {
            assert!(neutralising(set).is_some(), "{name}: {set}");
        }
        for option in entry.requires.iter().chain(&entry.given_by).chain(&entry.operands_with) {
            assert!(entry.option(option).is_some(), "{name}: {option} is no option of it");
        }
    }
}

/// The reading of the small part of TOML is that of the real reader.
#[test]
fn the_files_are_toml() {
    for (family, text) in FILES.iter().chain(&[("neutralise", include_str!("../../knowledge/neutralise.toml"))]) {
        let whole: toml::Table = text.parse().unwrap_or_else(|error| panic!("{family}: {error}"));
        let ours: Vec<_> = tables(text).collect();
        assert_eq!(ours.len(), whole.len(), "{family}");
        for (name, body) in ours {
            let table = whole[name].as_table().unwrap();
            let keys: Vec<_> =
                pairs(body).collect::<Result<_, _>>().unwrap_or_else(|l| panic!("{family}: [{name}]: {l}"));
            assert_eq!(keys.len(), table.len(), "{family}: [{name}]");
            for (key, value) in keys {
                let real = match value {
                    Value::Text(text) => toml::Value::from(text),
                    Value::Flag(flag) => toml::Value::from(flag),
                    Value::List(list) => toml::Value::from(list),
                };
                assert_eq!(real, table[key], "{family}: [{name}] {key}");
            }
        }
    }
}

#[test]
fn every_entry_has_examples_that_hold() {
    let context = Context {
        cwd: RawText::from("/home/dev/proj"),
        home: RawText::from("/home/dev"),
        workspace: RawText::from("/home/dev/proj"),
        neutralised: true,
    };
    let mut faults = Vec::new();
    for (family, name, body) in all().filter(|(_, name, _)| !name.starts_with('@')) {
        let mut count = 0;
        for (key, tier) in [("allow", Tier::Allow), ("ask", Tier::Ask), ("deny", Tier::Deny)] {
            for example in lists(body, key) {
                count += 1;
                let told = crate::assess_script(example.as_bytes(), &context);
                if told.tier != tier {
                    let codes: Vec<_> = told.findings.iter().map(|f| f.code.as_str()).collect();
                    faults.push(format!("{family}: [{name}] {key} `{example}`: {:?} {codes:?}", told.tier));
                }
            }
        }
        if count == 0 {
            faults.push(format!("{family}: [{name}] has no example"));
        }
    }
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_base_is_as_wide_as_told() {
    let programs = SLOTS.iter().filter(|s| !s.name.contains(' ') && !s.name.starts_with('@')).count();
    assert!(programs >= 300, "{programs} programs");
    let git = SLOTS.iter().filter(|s| s.name.starts_with("git ")).count();
    assert!(git >= 100, "{git} subcommands of git");
}

#[test]
fn harm_wins_over_inert() {
    let entry = build("writes = \"-o:\"\nflags = \"-o\"\n").unwrap();
    assert_eq!(entry.option("-o").unwrap().effect, Effect::Writes);
    let entry = build("executes = \"-o:\"\nwrites = \"-o\"\n").unwrap();
    assert_eq!(entry.option("-o").unwrap().effect, Effect::Executes);
}

#[test]
fn what_has_no_meaning_is_refused() {
    for body in
        ["flag = \"-x\"\n", "operands = \"thing\"\n", "valued = \"-x:thing\"\n", "does = \"harm\"\n", "any = \"x\"\n"]
    {
        assert!(build(body).is_err(), "{body}");
    }
}
