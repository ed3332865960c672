//! Imports against reference evaluators: for each realistic configuration and
//! each probe, what the other tool's documentation says and what ours decides
//! after the import. Ours may be stricter where the import says so, and never
//! milder unless it says that something was not carried.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

#[path = "import/attacks.rs"]
mod attacks;
#[path = "import/commands.rs"]
mod commands;
#[path = "import/files.rs"]
mod files;
#[path = "import/generate.rs"]
mod generate;
#[path = "import/ours.rs"]
mod ours;
#[path = "import/probes.rs"]
mod probes;
#[path = "import/reference_claude.rs"]
mod reference_claude;
#[path = "import/reference_codex.rs"]
mod reference_codex;
#[path = "import/reference_gemini.rs"]
mod reference_gemini;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ours::{ours, settings_of, source};
use probes::{Probe, probes};
use stockade_model::PolicyVerdict;
use stockade_policy::{ImportDeviation, ImportSource, ImportTool, SourceScope, import_policy};

/// What the other tool decides of a configuration; no rule means that it asks.
type Reference = fn(&str) -> Box<dyn Fn(&Probe) -> PolicyVerdict>;

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import").join(name)
}

fn configurations(name: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = fs::read_dir(directory(name))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap()))
        .collect();
    found.sort();
    found
}

/// Where ours is stricter by design, whatever was imported.
fn stricter_by_design(probe: &Probe) -> bool {
    match probe {
        // Not plain to every shell, or a program by its path, or behind another.
        Probe::Command(script) => {
            script.contains(['$', '`', '>', '<', '*', '(', '{', '\\', '#', '!', '='])
                // What goes on in the background is not covered by a rule.
                || script.contains(" & ")
                || script.starts_with(['/', '.'])
                || script.split_whitespace().next().is_some_and(|program| {
                    ["timeout", "nice", "nohup", "time", "stdbuf", "xargs", "sudo", "env", "bash", "sh"]
                        .contains(&program)
                })
        }
        _ => false,
    }
}

/// Where others compare text, we compare words: quotes are no difference.
fn same_words(probe: &Probe) -> Option<Probe> {
    let Probe::Command(script) = probe else { return None };
    let same = match script.as_ref() {
        "git \"status\"" => "git status",
        "g'i't push" => "git push",
        "git commit -m wip" => "git commit -m \"wip\"",
        _ => return None,
    };
    Some(Probe::Command(same.into()))
}

/// A `deny` that may be held by text that is not plain asks, and only a person
/// can answer.
fn asks_by_design(probe: &Probe, theirs: PolicyVerdict, own: PolicyVerdict) -> bool {
    let plain = |script: &str| !script.contains(['$', '`', '>', '<', '*', '(', '{', '\\', '#', '!', '=']);
    theirs == PolicyVerdict::Deny
        && own == PolicyVerdict::Ask
        && matches!(probe, Probe::Command(script) if !plain(script))
}

struct Tally {
    exact: usize,
    all: usize,
    report: String,
}

fn compare(tool: ImportTool, name: &str, reference: Reference) -> Tally {
    let mut tally = Tally { exact: 0, all: 0, report: String::new() };
    let found = configurations(name);
    assert!(found.len() >= 20, "{name}: {} configurations", found.len());
    for (file, text) in found {
        let source = source(tool, &file, &text);
        let imported = import_policy(tool, &[source]).unwrap_or_else(|error| panic!("{name}/{file}: {error}"));
        // What no rule speaks of is asked about, whatever mode is imported.
        let mut asking = imported.clone();
        asking.settings.retain(|key, value| key != "approval_mode" || value == "\"never\"");
        let settings = settings_of(&asking);
        let theirs_of = reference(&text);
        let has = |carried: ImportDeviation| imported.notes.iter().any(|note| note.carried == carried);
        let mut spoken = 0;
        for probe in probes(name) {
            let (theirs, own) = (theirs_of(&probe), ours(&settings, &probe));
            tally.all += 1;
            spoken += usize::from(theirs != PolicyVerdict::Ask);
            if theirs == own {
                tally.exact += 1;
                continue;
            }
            let is_explained = if same_words(&probe).is_some_and(|same| theirs_of(&same) == own) {
                true
            } else if own > theirs {
                stricter_by_design(&probe) || has(ImportDeviation::Stricter) || has(ImportDeviation::Left)
            } else {
                has(ImportDeviation::Weaker) || asks_by_design(&probe, theirs, own)
            };
            let line = format!("{name}/{file}: {probe:?}: theirs {theirs:?}, ours {own:?}\n");
            assert!(is_explained, "{line}{}", imported.to_toml());
            tally.report.push_str(&line);
        }
        let speaks = settings.rules().next().is_some_and(|rule| rule.label() != "");
        assert!(!speaks || spoken > 0, "{name}/{file}: no probe meets a rule of it");
    }
    tally
}

fn check(tool: ImportTool, name: &str, reference: Reference) {
    let tally = compare(tool, name, reference);
    let share = tally.exact * 1000 / tally.all;
    println!("{name}: {} of {} alike ({}.{} %)\n{}", tally.exact, tally.all, share / 10, share % 10, tally.report);
    assert!(share >= 970, "{name}: {} of {} alike\n{}", tally.exact, tally.all, tally.report);
}

#[test]
fn codex() {
    check(ImportTool::Codex, "codex", reference_codex::decide);
}

#[test]
fn claude() {
    check(ImportTool::Claude, "claude", reference_claude::decide);
}

#[test]
fn gemini() {
    check(ImportTool::Gemini, "gemini", reference_gemini::decide);
}

/// Everything that is said of one import, as a person reads it.
#[test]
fn texts_of_findings() {
    let mut text = String::new();
    for (tool, name) in [(ImportTool::Codex, "codex"), (ImportTool::Claude, "claude"), (ImportTool::Gemini, "gemini")] {
        for (file, text_of_file) in configurations(name) {
            let imported = import_policy(tool, &[source(tool, &format!("{name}/{file}"), &text_of_file)]).unwrap();
            for note in &imported.notes {
                text.push_str(&format!("{note}\n"));
            }
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn one_import_of_each() {
    let one = |tool, file: &str| {
        let text = fs::read_to_string(directory(file)).unwrap();
        import_policy(tool, &[source(tool, file, &text)]).unwrap().to_toml()
    };
    insta::assert_snapshot!("codex", one(ImportTool::Codex, "codex/03-git-careful.rules"));
    insta::assert_snapshot!("claude", one(ImportTool::Claude, "claude/11-sandbox.json"));
    insta::assert_snapshot!("gemini", one(ImportTool::Gemini, "gemini/02-git.toml"));
}

/// Wrong input: the place, what is wrong, and nothing imported.
#[test]
fn wrong_input_is_refused_at_its_line() {
    let cases: &[(ImportTool, &str, &str)] = &[
        (ImportTool::Codex, "prefix_rule(\n    pattern = [\"a\"\n", "x:3:1: expected `]`"),
        (ImportTool::Codex, "prefix_rule(pattern = [])", "x:1:23: a pattern is not empty"),
        (ImportTool::Codex, "\nprefix_rule(pattern = [\"a\"], decision = \"maybe\")", "x:2:41: `maybe`: a decision is"),
        (ImportTool::Codex, "prefix_rule(patern = [\"a\"])", "x:1:13: `prefix_rule` has no `patern`"),
        (ImportTool::Codex, "prefix_rule()", "x:1:1: `prefix_rule` needs `pattern`"),
        (ImportTool::Codex, "prefix_rule(pattern = [[]])", "x:1:24: alternatives are not empty"),
        (
            ImportTool::Codex,
            "prefix_rule(pattern = [\"a\"], justification = \" \")",
            "x:1:46: a justification is not empty",
        ),
        (ImportTool::Codex, "allow_rule()", "x:1:1: there is no function `allow_rule`"),
        (ImportTool::Codex, "def f():\n    pass", "x:1:1: `def` is not understood here"),
        (
            ImportTool::Codex,
            "network_rule(host=\"*\", protocol=\"http\", decision=\"allow\")",
            "x:1:19: `*`: a host is named in full",
        ),
        (
            ImportTool::Codex,
            "network_rule(host=\"http://a\", protocol=\"http\", decision=\"allow\")",
            "x:1:19: `http://a`: a host has no scheme",
        ),
        (
            ImportTool::Codex,
            "network_rule(host=\"a\", protocol=\"gopher\", decision=\"allow\")",
            "x:1:33: `gopher`: a protocol is",
        ),
        (
            ImportTool::Codex,
            "host_executable(name=\"git\", paths=[\"/usr/bin/gti\"])",
            "x:1:36: `/usr/bin/gti` does not end in `git`",
        ),
        (ImportTool::Codex, "host_executable(name=\"git\", paths=[\"~/git\"])", "x:1:36: `~/git` is not absolute"),
        (
            ImportTool::Codex,
            "prefix_rule(pattern=[\"a\", \"b\"], match=[\"a c\"])",
            "x:1:39: `a c`: this example fails, and the file is refused there",
        ),
        (ImportTool::Codex, "prefix_rule(pattern=[\"a\"], not_match=[\"a c\"])", "x:1:38: `a c`: this example fails"),
        (ImportTool::Codex, "host_executable(name=\"git\", paths=[\"bin/git\"])", "x:1:36: `bin/git` is not absolute"),
        (ImportTool::Claude, "", "x:1:1: the text ends too early"),
        (
            ImportTool::Claude,
            "{\n  \"permissions\": {\n    \"allow\": [\"Bash(\"]\n  }\n}",
            "x:3:15: `Bash(`: the parenthesis is not closed",
        ),
        (ImportTool::Claude, "{\"permissions\": {\"alow\": []}}", "x:1:18: `permissions` has no `alow`"),
        (ImportTool::Claude, "{\"permissions\": {\"allow\": [1]}}", "x:1:28: expected a rule, found a number"),
        (ImportTool::Claude, "{\"permissions\": {\"allow\": \"Bash\"}}", "x:1:27: expected a list, found a string"),
        (ImportTool::Claude, "{\"permissions\": {\"defaultMode\": \"yolo\"}}", "x:1:33: `yolo`: the modes are"),
        (ImportTool::Claude, "{\"permissions\": {\"deny\": [\"(x)\"]}}", "x:1:27: `(x)`: a rule is"),
        (
            ImportTool::Claude,
            "{\"sandbox\": {\"network\": {\"allowedDomains\": [1]}}}",
            "x:1:45: expected a string, found a number",
        ),
        (ImportTool::Claude, "{\"a\": 1,}", "x:1:8: trailing commas are not allowed"),
        (ImportTool::Claude, "[]", "x:1:1: settings are an object, not a list"),
        (ImportTool::Gemini, "[[rule]]\ntoolName = \"x\"\ndecision = \"allow\"\n", "x:1:1: a rule needs a `priority`"),
        (
            ImportTool::Gemini,
            "[[rule]]\ntoolName = \"x\"\ndecision = \"maybe\"\npriority = 1",
            "x:3:1: `maybe`: a decision is",
        ),
        (
            ImportTool::Gemini,
            "[[rule]]\ntoolName = \"x\"\ndecision = \"deny\"\npriority = 1000",
            "x:4:1: a priority is a whole number",
        ),
        (ImportTool::Gemini, "[[rule]]\ndecision = \"deny\"\npriority = 1", "x:1:1: a rule needs a `toolName`"),
        (
            ImportTool::Gemini,
            "[[rule]]\ntoolName = \"x\"\ncommandPrefix = \"ls\"\ndecision = \"deny\"\npriority = 1",
            "x:3:1: `commandPrefix` needs `toolName",
        ),
        (
            ImportTool::Gemini,
            "[[rule]]\ntoolName = \"run_shell_command\"\ncommandPrefix = \"a\"\ncommandRegex = \"b\"\ndecision = \"deny\"\npriority = 1",
            "x:4:1: `commandRegex` does not go with",
        ),
        (ImportTool::Gemini, "[[rule]\n", "x:1:8: "),
        (ImportTool::Gemini, "rule = 3", "x:1:1: `rule` is a list of tables"),
        (ImportTool::Gemini, "{ \"tools\": { \"allowed\": \"ls\" } }", "x:1:25: expected a list, found a string"),
        (ImportTool::Gemini, "{ \"mcpServers\": [] }", "x:1:17: expected an object, found a list"),
        (ImportTool::Gemini, "{ \"tools\": ", "x:1:12: the text ends too early"),
    ];
    let mut wrong = String::new();
    for (tool, text, expected) in cases {
        let sources = [source(*tool, "x", text)];
        match import_policy(*tool, &sources) {
            Ok(imported) => wrong.push_str(&format!("{text:?}: imported\n{}\n", imported.to_toml())),
            Err(error) if error.to_string().starts_with(expected) => {}
            Err(error) => wrong.push_str(&format!("{text:?}\n  {error}\n  expected {expected}\n")),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Found by fuzzing: a name that no pattern of ours may hold made a file that
/// could not be read.
#[test]
fn an_inexpressible_rule_is_left_out_and_reported() {
    let text = "{\n\"excludeTools\": [\"run\\u007fshell(rm)\", \"write_file\"]\n}\n";
    let source = source(ImportTool::Gemini, "settings.json", text);
    let imported = import_policy(ImportTool::Gemini, &[source]).unwrap();
    settings_of(&imported);
    // What it would refuse is asked about, with all of its kind.
    let first = &imported.rules[0];
    assert_eq!(
        (first.tool.as_slice(), first.effect),
        (&["*".to_owned()][..], PolicyVerdict::Ask),
        "{}",
        imported.to_toml()
    );
    let note = imported.notes.iter().find(|note| note.why.contains("control")).unwrap();
    assert_eq!(note.carried, ImportDeviation::Stricter, "{note}");
    assert_eq!((note.source.as_str(), note.position.line), ("settings.json", 2), "{note}");
    assert!(note.why.contains("control"), "{note}");
}

/// Rows of the table of attacks, each by the answer of the tool itself: an import
/// allows nothing that the tool does not allow, and what it refuses is refused or
/// asked about.
#[test]
fn an_import_never_allows_more_than_the_original() {
    let mut rows = BTreeMap::new();
    let (mut allowed, mut wrong) = (0, String::new());
    for case in attacks::cases() {
        let imported = import_policy(case.tool, &case.sources).unwrap_or_else(|error| panic!("{}: {error}", case.why));
        let settings = settings_of(&imported);
        for act in &case.acts {
            let own = ours(&settings, &act.probe);
            *rows.entry(format!("{:?}", case.tool)).or_insert(0) += 1;
            allowed += usize::from(own == PolicyVerdict::Allow);
            if own < act.theirs.min(PolicyVerdict::Ask) {
                wrong.push_str(&format!(
                    "{:?}: {}: `{}`: theirs {:?}, ours {own:?}\n",
                    case.tool, case.why, act.text, act.theirs
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(rows.len() == 3 && rows.values().all(|count| *count >= 15), "{rows:?}");
    // Control: the imports are no empty files.
    assert!(allowed >= 20, "{allowed} rows are allowed");
}

/// What a tool may not read, a command may not read either, or it is said that it may.
#[test]
fn unreadable_paths_are_hidden_or_reported() {
    for (refused, hidden, is_reported) in [
        ("Read(./secrets/**)", Some("./secrets"), false),
        ("Read(secrets/**)", Some("./secrets"), false),
        ("Read(secrets/)", Some("./secrets"), true),
        ("Read(./secrets/)", Some("./secrets"), false),
        ("Read(./.env)", Some("./.env"), false),
        ("Read(.env)", Some("./.env"), true),
        ("Read(~/private/**)", Some("~/private"), true),
        ("Read(~/private/**/**)", Some("~/private"), true),
        ("Read(//srv/x/**)", Some("/srv/x"), true),
        ("Read(**/.env)", Some("./.env"), true),
        ("Read(./.env.*)", None, true),
        ("Read(./a/*/b)", None, true),
        ("Read(./**)", None, true),
        ("Read(~/**)", None, true),
        ("Read(//**)", None, true),
    ] {
        let text = format!("{{\"permissions\": {{\"deny\": [\"{refused}\"]}}}}");
        let imported = import_policy(ImportTool::Claude, &[source(ImportTool::Claude, "s.json", &text)]).unwrap();
        let profile = imported.to_toml();
        let line = profile.lines().find(|line| line.starts_with("hide"));
        assert_eq!(line, hidden.map(|path| format!("hide = [\"{path}\"]")).as_deref(), "{refused}");
        let weaker = imported.notes.iter().any(|note| note.carried == ImportDeviation::Weaker);
        assert_eq!(weaker, is_reported, "{refused}: {:?}", imported.notes);
    }
}

/// Files whose tier decides which rule counts are not imported without it.
#[test]
fn files_of_unknown_tiers_are_refused() {
    let rule = "[[rule]]\ntoolName = \"x\"\ndecision = \"allow\"\npriority = 1\n";
    let file = |name: &str, text: &str, scope| ImportSource { name: name.to_owned(), text: text.to_owned(), scope };
    let read =
        |sources: &[ImportSource]| import_policy(ImportTool::Gemini, sources).map(|imported| imported.rules.len());
    assert_eq!(
        read(&[file("a/x.toml", rule, SourceScope::Unknown), file("a/y.toml", rule, SourceScope::Unknown)]).ok(),
        Some(2)
    );
    assert_eq!(
        read(&[file("a/x.toml", rule, SourceScope::User), file("b/y.toml", rule, SourceScope::Admin)]).ok(),
        Some(2)
    );
    for sources in [
        [file("a/x.toml", rule, SourceScope::Unknown), file("b/y.toml", rule, SourceScope::Unknown)],
        [file("a/x.toml", rule, SourceScope::Unknown), file("a/y.toml", rule, SourceScope::Admin)],
        [file("a/x.toml", rule, SourceScope::Unknown), file("a/settings.json", "{}", SourceScope::Unknown)],
    ] {
        let error = read(&sources).unwrap_err().to_string();
        assert!(error.contains("a/x.toml: the tier of this file is not known"), "{error}");
    }
}

mod random_rules {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        /// Random rules and random acts: what an import allows, the model of the
        /// tool's documentation allows.
        #[test]
        fn an_imported_allow_is_one_of_the_original(seed: u64) {
            let references: [(ImportTool, Reference); 3] = [
                (ImportTool::Codex, reference_codex::decide),
                (ImportTool::Claude, reference_claude::decide),
                (ImportTool::Gemini, reference_gemini::decide),
            ];
            let mut random = generate::Random::new(seed);
            for (tool, reference) in references {
                // One file: what several mean together is in the table of attacks.
                let Some(file) = generate::sources(tool, &mut random).pop() else { continue };
                let imported = import_policy(tool, std::slice::from_ref(&file)).unwrap();
                let settings = settings_of(&imported);
                let theirs = reference(&file.text);
                for _ in 0..20 {
                    let probe = generate::probe(tool, &mut random);
                    if ours(&settings, &probe) == PolicyVerdict::Allow {
                        prop_assert_eq!(theirs(&probe), PolicyVerdict::Allow, "{:?}\n{}\n{}", probe, file.text, imported.to_toml());
                    }
                }
            }
        }
    }
}

mod any_text {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever a file holds, it is imported into something readable or
        /// refused.
        #[test]
        fn is_answered(
            text in "[a-z_\\[\\](){}=\"',.:#\n\\\\*/ 0-9]{0,120}",
            middle in "[A-Za-z(){}*:./ $|&;\"'\\\\-]{0,40}",
        ) {
            for tool in [ImportTool::Codex, ImportTool::Claude, ImportTool::Gemini] {
                let _ = import_policy(tool, &[source(tool, "x", &text)]);
            }
            let quoted = serde_json::to_string(&middle).unwrap();
            let texts = [
                (ImportTool::Codex, format!("prefix_rule(pattern = [{quoted}, \"b\"], decision = \"forbidden\")")),
                (ImportTool::Claude, format!("{{\"permissions\": {{\"deny\": [{quoted}], \"allow\": [{}]}}}}", serde_json::to_string(&format!("Bash({middle})")).unwrap())),
                (ImportTool::Gemini, format!("[[rule]]\ntoolName = \"run_shell_command\"\ncommandRegex = {quoted}\ndecision = \"deny\"\npriority = 1")),
                (ImportTool::Gemini, format!("[[rule]]\ntoolName = \"run_shell_command\"\ncommandPrefix = {quoted}\ndecision = \"allow\"\npriority = 1")),
            ];
            for (tool, text) in texts {
                if let Ok(imported) = import_policy(tool, &[source(tool, "x", &text)]) {
                    let _ = settings_of(&imported);
                }
            }
        }
    }
}
