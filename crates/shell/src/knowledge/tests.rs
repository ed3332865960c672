//! Checks that the knowledge base is well formed, and that every example of every entry holds.

use std::path::Path;

use toml::Table;

use super::entries::{parse_entry, same_names};
use super::*;
use crate::CommandContext;
use stockade_model::{RawText, Tier};

fn context() -> CommandContext {
    CommandContext {
        cwd: RawText::from("/home/dev/proj"),
        home: RawText::from("/home/dev"),
        workspace: RawText::from("/home/dev/proj"),
        sanitized: true,
    }
}

/// Returns the tables of programs, with their families.
fn all() -> Vec<(String, String, Table)> {
    let mut all = Vec::new();
    for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("knowledge")).unwrap() {
        let path = file.unwrap().path();
        let family = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if !["hazards", "lists", "neutralise"].contains(&family.as_str()) {
            let tables: Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
            let tables = tables.into_iter().map(|(name, table)| (family.clone(), name, table.try_into().unwrap()));
            all.extend(tables);
        }
    }
    assert!(all.len() > 400, "{} tables", all.len());
    all
}

fn programs() -> impl Iterator<Item = (String, String, Table)> {
    all().into_iter().filter(|(_, name, _)| !name.starts_with('@'))
}

/// Returns the examples of a table.
fn lists<'t>(table: &'t Table, list_key: &str) -> Vec<&'t str> {
    let list = table.get(list_key).and_then(toml::Value::as_array).into_iter().flatten();
    list.map(|example| example.as_str().unwrap()).collect()
}

#[test]
fn every_table_is_readable_and_sourced() {
    for (_, name, table) in all() {
        assert!(table.contains_key("source"), "{name} has no source");
        if name.starts_with('@') {
            continue;
        }
        let entry = find_command(&name).unwrap_or_else(|| panic!("{name} is not found"));
        for other in same_names(&name, &table) {
            assert!(std::ptr::eq(find_command(other).unwrap(), entry), "{name}: {other}");
            assert_eq!(canonical_name(other), Some(canonical_name(&name).unwrap()), "{other}");
        }
        let of_options = entry.sanitize_options.iter().map(|option| option.split_once(':').unwrap().1);
        for set in entry.sanitize_sets.iter().copied().chain(of_options) {
            assert!(find_sanitize_set(set).is_some(), "{name}: {set}");
        }
        for option in
            entry.requires.iter().chain(entry.operand_options).chain(entry.operands_with).chain(entry.reader_with)
        {
            assert!(entry.find_option(option).is_some(), "{name}: {option} is no option of it");
        }
    }
}

#[test]
fn every_entry_has_examples_that_hold() {
    let context = context();
    let mut faults = Vec::new();
    for (family, name, body) in programs() {
        let mut count = 0;
        for (key, tier) in [("allow", Tier::Allow), ("ask", Tier::Ask), ("deny", Tier::Deny)] {
            for example in lists(&body, key) {
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
    let programs = commands::NAMES.iter().filter(|(name, ..)| !name.contains(' ')).count();
    assert!(programs >= 300, "{programs} programs");
    let git = commands::NAMES.iter().filter(|(name, ..)| name.starts_with("git ")).count();
    assert!(git >= 100, "{git} subcommands of git");
}

#[test]
fn harm_wins_over_inert() {
    let effect = |text: &str| {
        let entry = parse_entry(&text.parse().unwrap(), &|_| None).unwrap();
        assert_eq!(entry.options.0.len(), 1);
        entry.options.0[0].1.effect
    };
    assert_eq!(effect("writes = \"-o:\"\nflags = \"-o\"\n"), OptionEffect::Writes);
    assert_eq!(effect("executes = \"-o:\"\nwrites = \"-o\"\n"), OptionEffect::Executes);
}

#[test]
fn meaningless_options_are_refused() {
    for body in [
        "flag = \"-x\"\n",
        "operands = \"thing\"\n",
        "valued = \"-x:thing\"\n",
        "does = \"harm\"\n",
        "any = \"x\"\n",
        "flags = true\n",
        "like = \"@none\"\n",
        "optional = \"-x\"\n",
    ] {
        assert!(parse_entry(&body.parse().unwrap(), &|_| None).is_err(), "{body}");
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
    for (_, name, body) in programs() {
        let entry = find_command(&name).unwrap();
        let names = std::iter::once(name.as_str()).chain(same_names(&name, &body));
        let Some(example) = lists(&body, "allow").into_iter().find(|e| !e.contains(['|', '&', ';', '<', '$', '=']))
        else {
            continue;
        };
        let base: Vec<String> = example.split(' ').map(|w| w.replace('\'', "")).collect();
        for program in names.take(3) {
            let fixed = program.split(' ').count();
            let mut words: Vec<String> = program.split(' ').map(str::to_owned).collect();
            words.extend(base[fixed..].iter().cloned());
            for (option, spec) in entry.options.iter().filter(|(_, spec)| spec.effect != OptionEffect::Inert) {
                for argv in spellings(entry, option, *spec, &words, fixed) {
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
    for (_, name, body) in programs() {
        let examples = lists(&body, "allow");
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
    for (_, name, body) in programs() {
        let entry = find_command(&name).unwrap();
        if !lists(&body, "allow").is_empty() {
            continue;
        }
        let plain = ["", " a.txt", " -- a.txt", " -c id", " -e id", " -x id", " -o out.txt a.txt", " --exec=id", " -"];
        let options = entry.options.iter().filter(|(_, spec)| spec.effect != OptionEffect::Inert);
        let options = options.flat_map(|(o, _)| [format!(" {o}"), format!(" {o} id"), format!(" {o}=id a.txt")]);
        let tails: Vec<String> = plain.iter().map(|tail| (*tail).to_owned()).chain(options).collect();
        for program in std::iter::once(name.as_str()).chain(same_names(&name, &body)) {
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
