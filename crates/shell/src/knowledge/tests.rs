//! Checks that the knowledge base is well formed, and that every example of every entry holds.

use std::collections::BTreeMap;

use super::*;
use crate::CommandContext;
use crate::knowledge::text::TableValue;
use stockade_model::{RawText, Tier};

fn context() -> CommandContext {
    CommandContext {
        cwd: RawText::from("/home/dev/proj"),
        home: RawText::from("/home/dev"),
        workspace: RawText::from("/home/dev/proj"),
        sanitized: true,
    }
}

fn all() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    FILES.iter().flat_map(|(family, text)| parse_tables(text).map(move |(name, body)| (*family, name, body)))
}

/// Returns the examples of a table.
fn lists(body: &'static str, list_key: &str) -> Vec<&'static str> {
    parse_pairs(body)
        .filter_map(|pair| match pair.unwrap() {
            (key, TableValue::List(list)) if key == list_key => Some(list),
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
        let entry = parse_table(body).unwrap_or_else(|fault| panic!("{family}: [{name}]: {fault}"));
        let keys: Vec<&str> = parse_pairs(body).map(|pair| pair.unwrap().0).collect();
        assert!(keys.contains(&"source"), "{name} has no source");
        assert!(keys.iter().skip(1).all(|key| *key != "same"), "{name}: `same` comes first");
        for set in entry.sanitize_sets.iter().chain(entry.sanitize_options.iter().map(|(_, set)| set)) {
            assert!(find_sanitize_set(set).is_some(), "{name}: {set}");
        }
        for option in
            entry.requires.iter().chain(&entry.operand_options).chain(&entry.operands_with).chain(&entry.reader_with)
        {
            assert!(entry.find_option(option).is_some(), "{name}: {option} is no option of it");
        }
    }
}

/// Checks that the small TOML parser agrees with the full one.
#[test]
fn the_files_are_toml() {
    for (family, text) in FILES.iter().chain(&[("neutralise", include_str!("../../knowledge/neutralise.toml"))]) {
        let whole: toml::Table = text.parse().unwrap_or_else(|error| panic!("{family}: {error}"));
        let ours: Vec<_> = parse_tables(text).collect();
        assert_eq!(ours.len(), whole.len(), "{family}");
        for (name, body) in ours {
            let table = whole[name].as_table().unwrap();
            let keys: Vec<_> =
                parse_pairs(body).collect::<Result<_, _>>().unwrap_or_else(|l| panic!("{family}: [{name}]: {l}"));
            assert_eq!(keys.len(), table.len(), "{family}: [{name}]");
            for (key, value) in keys {
                let real = match value {
                    TableValue::Text(text) => toml::Value::from(text),
                    TableValue::Flag(flag) => toml::Value::from(flag),
                    TableValue::List(list) => toml::Value::from(list),
                };
                assert_eq!(real, table[key], "{family}: [{name}] {key}");
            }
        }
    }
}

#[test]
fn every_entry_has_examples_that_hold() {
    let context = context();
    let mut faults = Vec::new();
    for (family, name, body) in all().filter(|(_, name, _)| !name.starts_with('@')) {
        let mut count = 0;
        for (key, tier) in [("allow", Tier::Allow), ("ask", Tier::Ask), ("deny", Tier::Deny)] {
            for example in lists(body, key) {
                count += 1;
                let assessment = crate::assess_script(example.as_bytes(), &context);
                if assessment.tier != tier {
                    let codes: Vec<_> = assessment.findings.iter().map(|f| f.code.as_str()).collect();
                    faults.push(format!("{family}: [{name}] {key} `{example}`: {:?} {codes:?}", assessment.tier));
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
fn the_base_has_its_declared_width() {
    let programs = SLOTS.iter().filter(|s| !s.name.contains(' ') && !s.name.starts_with('@')).count();
    assert!(programs >= 300, "{programs} programs");
    let git = SLOTS.iter().filter(|s| s.name.starts_with("git ")).count();
    assert!(git >= 100, "{git} subcommands of git");
}

#[test]
fn harm_wins_over_inert() {
    let entry = parse_table("writes = \"-o:\"\nflags = \"-o\"\n").unwrap();
    assert_eq!(entry.find_option("-o").unwrap().effect, OptionEffect::Writes);
    let entry = parse_table("executes = \"-o:\"\nwrites = \"-o\"\n").unwrap();
    assert_eq!(entry.find_option("-o").unwrap().effect, OptionEffect::Executes);
}

#[test]
fn meaningless_options_are_refused() {
    for body in
        ["flag = \"-x\"\n", "operands = \"thing\"\n", "valued = \"-x:thing\"\n", "does = \"harm\"\n", "any = \"x\"\n"]
    {
        assert!(parse_table(body).is_err(), "{body}");
    }
}

/// Returns the ways to add an option to the arguments of an allowed example. `words` are those of
/// the example; the first `fixed` name the program.
fn spellings(entry: &CommandSpec, name: &str, spec: OptionSpec, words: &[String], fixed: usize) -> Vec<Vec<String>> {
    let takes = !matches!(spec.arity, OptionArity::Flag);
    let value = "out.txt".to_owned();
    let mut forms: Vec<Vec<String>> = vec![vec![name.to_owned()]];
    if takes {
        forms.push(vec![name.to_owned(), value.clone()]);
        let joined = if name.starts_with("--") { format!("{name}={value}") } else { format!("{name}{value}") };
        forms.push(vec![joined]);
    }
    if name.len() == 2 && name.starts_with('-') {
        // After another letter, and before it.
        let letters = entry.options.iter().filter(|(n, s)| {
            n.len() == 2 && n.starts_with('-') && s.arity == OptionArity::Flag && s.effect == OptionEffect::Inert
        });
        for (other, _) in letters.take(2) {
            forms.push(vec![format!("{other}{}", &name[1..]), value.clone()]);
            forms.push(vec![format!("{other}{}{value}", &name[1..])]);
            forms.push(vec![format!("{name}{}", &other[1..]), value.clone()]);
        }
    }
    if let Some(long) = name.strip_prefix("--") {
        for length in (2..long.len()).filter(|l| long.is_char_boundary(*l)) {
            let short = &long[..length];
            // If this name is another option, it is not an abbreviation.
            if entry.find_option(&format!("--{short}")).is_none() {
                forms.push(vec![format!("--{short}")]);
                forms.push(vec![format!("--{short}={value}")]);
                forms.push(vec![format!("--{short}"), value.clone()]);
            }
        }
    }
    let mut out = Vec::new();
    for form in forms {
        let (program, rest) = words.split_at(fixed);
        // Before the operands, after them, before `--`. Words after a wrapper's command belong to
        // that command.
        out.push([program, &form[..], rest].concat());
        if !entry.is_wrapper() {
            out.push([program, rest, &form[..]].concat());
        }
        out.push([program, &form[..], &["--".to_owned()], rest].concat());
    }
    out
}

/// Checks every option that does more than read, in every spelling, with every allowed example.
/// None may be allowed.
#[test]
fn options_that_do_more_are_never_allowed_in_any_spelling() {
    let context = context();
    let mut count = 0;
    let mut faults = Vec::new();
    for (_, name, body) in all().filter(|(_, name, _)| !name.starts_with('@')) {
        let entry = parse_table(body).unwrap();
        let names = std::iter::once(name).chain(same(name, body));
        let Some(example) = lists(body, "allow").into_iter().find(|e| !e.contains(['|', '&', ';', '<', '$', '=']))
        else {
            continue;
        };
        let base: Vec<String> = example.split(' ').map(|w| w.replace('\'', "")).collect();
        for program in names.take(3) {
            let fixed = program.split(' ').count();
            let mut words: Vec<String> = program.split(' ').map(str::to_owned).collect();
            words.extend(base[fixed..].iter().cloned());
            for (option, spec) in entry.options.iter().filter(|(_, spec)| spec.effect != OptionEffect::Inert) {
                for argv in spellings(&entry, option, *spec, &words, fixed) {
                    count += 1;
                    let texts: Vec<RawText> = argv.iter().map(|w| RawText::from(w.as_str())).collect();
                    if crate::assess_argv(&texts, &context).tier == Tier::Allow {
                        faults.push(argv.join(" "));
                    }
                }
            }
        }
    }
    assert!(count > 10_000, "{count}");
    assert!(faults.is_empty(), "{} of {count}\n{}", faults.len(), faults.join("\n"));
}

/// Ways to make a harmless line harmful; `LINE` stands for the line. They add a command around it,
/// after it or before it, or use another program of that name.
const ABUSES: &[&str] = &[
    "LINE > out.txt",
    "LINE >> ~/.bashrc",
    "LINE | sh",
    "LINE | tee out.txt",
    "LINE; touch m",
    "LINE && ./m",
    "LINE & touch m",
    "LINE\ntouch m",
    "LINE \"$(touch m)\"",
    "LINE `touch m`",
    "LINE <(touch m)",
    "LINE < ~/.ssh/id_rsa",
    "LINE <<< \"$(touch m)\"",
    "LD_PRELOAD=./m.so LINE",
    "PATH=.:$PATH LINE",
    "BASH_ENV=./m LINE",
    "sudo LINE",
    "./LINE",
    "nohup LINE &",
    "$X LINE",
    "eval 'LINE'",
    "sh -c 'LINE'",
    "find . -exec LINE \\;",
    "echo a | xargs LINE",
    "trap 'LINE' EXIT",
    "f() { LINE; }; f",
];

/// Checks that no abuse of an allowed program is allowed.
#[test]
fn allowed_commands_are_not_allowed_when_abused() {
    let context = context();
    let (mut entries, mut count) = (0, 0);
    let mut faults = Vec::new();
    for (_, name, body) in all().filter(|(_, name, _)| !name.starts_with('@')) {
        let examples = lists(body, "allow");
        entries += usize::from(!examples.is_empty());
        for example in examples {
            for abuse in ABUSES {
                let script = abuse.replace("LINE", example);
                count += 1;
                if crate::assess_script(script.as_bytes(), &context).tier == Tier::Allow {
                    faults.push(format!("{name}: {script}"));
                }
            }
        }
    }
    assert!(entries > 150 && count > 9_000, "{entries} entries, {count} lines");
    assert!(faults.is_empty(), "{} of {count}\n{}", faults.len(), faults.join("\n"));
}

/// Checks that programs without an allowed use are not allowed in forms that are harmless for
/// others.
#[test]
fn programs_without_a_harmless_use_are_never_allowed() {
    let context = context();
    let mut faults = Vec::new();
    let mut count = 0;
    for (_, name, body) in all().filter(|(_, name, _)| !name.starts_with('@')) {
        let entry = parse_table(body).unwrap();
        if !lists(body, "allow").is_empty() {
            continue;
        }
        let plain = ["", " a.txt", " -- a.txt", " -c id", " -e id", " -x id", " -o out.txt a.txt", " --exec=id", " -"];
        let options = entry.options.iter().filter(|(_, spec)| spec.effect != OptionEffect::Inert);
        let options = options.flat_map(|(o, _)| [format!(" {o}"), format!(" {o} id"), format!(" {o}=id a.txt")]);
        let tails: Vec<String> = plain.iter().map(|tail| (*tail).to_owned()).chain(options).collect();
        for program in std::iter::once(name).chain(same(name, body)) {
            for tail in &tails {
                count += 1;
                let script = format!("{program}{tail}");
                if crate::assess_script(script.as_bytes(), &context).tier == Tier::Allow {
                    faults.push(script);
                }
            }
        }
    }
    assert!(count > 10_000, "{count}");
    assert!(faults.is_empty(), "{} of {count}\n{}", faults.len(), faults.join("\n"));
}

fn same(name: &str, body: &'static str) -> Vec<&'static str> {
    let text = parse_pairs(body).find_map(|pair| match pair.unwrap() {
        ("same", TableValue::Text(text)) => Some(text),
        _ => None,
    });
    let separator = if name.contains(' ') { ',' } else { ' ' };
    text.unwrap_or_default().split(separator).map(str::trim).filter(|n| !n.is_empty()).collect()
}
