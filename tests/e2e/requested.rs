//! A caller that is not the person asks for a power with `--request`: rules, the mode
//! and a person decide on it, before anything runs. The control is `--grant`, which is
//! the person's own yes.

use std::fs;

use serde_json::{Value, json};
use stockade_testkit::ProgramEnd;

use crate::detached::{detach_program, stockade, waited};
use crate::terminal::Terminal;
use crate::world::{World, binary, each_user};

const MODES: [&str; 4] = ["untrusted", "on-failure", "on-request", "never"];

/// A file outside the workspace, and the power to write it.
fn target(world: &World) -> (String, String) {
    let file = world.outside().join("made").display().to_string();
    (format!("write {file}"), file)
}

fn made(file: &str) -> bool {
    let is_there = fs::symlink_metadata(file).is_ok();
    let _ = fs::remove_file(file);
    is_there
}

#[test]
fn without_a_person_a_requested_power_is_refused_and_nothing_runs() {
    each_user(|world| {
        let (power, file) = target(world);
        let inside = world.workspace().join("ran").display().to_string();
        for level in ["full", "restricted"] {
            for mode in MODES {
                let run = |option: &str| {
                    world.outcome(&["--mode", mode, "--level", level, option, &power], &["touch", &file, &inside])
                };
                let requested = run("--request");
                assert_eq!(requested["status"], "refused", "{level} {mode}: {requested}");
                assert_eq!(requested["attempts"], json!([]), "{level} {mode}");
                assert!(!made(&file) && !made(&inside), "{level} {mode}: it ran");
                let result = json!([{ "grant": power, "given": false, "agreed_by": null }]);
                assert_eq!(requested["requested"], result, "{level} {mode}");
                if mode == "untrusted" {
                    continue;
                }
                let granted = run("--grant");
                assert_eq!(granted["exit_code"], 0, "{level} {mode}: {granted}");
                assert!(made(&file) && made(&inside), "{level} {mode}: the control did not run");
                assert_eq!(granted["requested"], Value::Null);
            }
        }
        let refused = world.run(&world.stockade(&["--request", &power], &["touch", &inside]));
        assert_eq!(refused.ended, ProgramEnd::Code(126), "{}", refused.combined_text());
        assert!(refused.stderr.contains(&format!("it asks for `{power}`")), "{}", refused.stderr);
        // A power that the profile gives already needs nobody.
        let own = format!("write {}", world.workspace().join("x").display());
        world.passes(&["--request", &own], &["true"]);
    });
}

#[test]
fn a_person_is_asked_before_it_runs() {
    each_user(|world| {
        let (power, file) = target(world);
        let workspace = world.workspace().display().to_string();
        let report = world.home().join("outcome.json").display().to_string();
        for mode in ["untrusted", "on-failure", "on-request"] {
            for (key, is_yes) in [("o", true), ("n", false)] {
                let program = binary();
                let to = format!("--json={report}");
                let run = [&program, "run", "--workspace", &workspace, "--mode", mode, "--request", &power, &to];
                let command = world.bare(&[&run[..], &["--", "touch", &file]].concat());
                let mut terminal = Terminal::start(world, &command);
                if mode == "untrusted" {
                    terminal.expect("may this command run");
                    terminal.expect("allow?");
                    terminal.press("o");
                }
                terminal.expect("the request asks for more than its profile gives");
                terminal.expect(&power);
                terminal.expect("allow?");
                assert!(!made(&file), "{mode}: it ran before the answer");
                terminal.press(key);
                let (code, text) = terminal.finish();
                assert_eq!(code, if is_yes { 0 } else { 126 }, "{mode} {key}: {text}");
                assert_eq!(made(&file), is_yes, "{mode} {key}: {text}");
                let outcome: Value = serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
                let by = if is_yes { json!("terminal") } else { Value::Null };
                let result = json!([{ "grant": power, "given": is_yes, "agreed_by": by }]);
                assert_eq!(outcome["requested"], result, "{mode} {key}");
            }
        }
    });
}

#[test]
fn a_rule_grants_the_requested_powers() {
    each_user(|world| {
        let (power, file) = target(world);
        world.dir("home/.config");
        world.dir("home/.config/stockade");
        let rule = format!(
            "[[rules]]\nglob = [\"touch {file}\"]\neffect = \"allow\"\njustification = \"j\"\ngrants = [\"{power}\"]\n"
        );
        world.file("home/.config/stockade/config.toml", &rule);
        let actual = world.outcome(&["--request", &power], &["touch", &file]);
        assert_eq!(actual["exit_code"], 0, "{actual}");
        assert_eq!(actual["requested"], json!([{ "grant": power, "given": true, "agreed_by": "rules" }]));
        assert!(made(&file));
        // The rule is about that command alone.
        let other = world.outcome(&["--request", &power], &["cp", "/etc/hostname", &file]);
        assert_eq!((&other["status"], made(&file)), (&json!("refused"), false), "{other}");
    });
}

/// The same in each command that runs one: detached, in a session, in a sandbox that is
/// kept; and `check` says what would happen.
/// What is given, asked about and recorded is the list of hosts, never the group's name.
#[test]
fn a_group_of_hosts_is_its_list() {
    let hosts = ["connect pypi.org:443", "connect files.pythonhosted.org:443"];
    each_user(|world| {
        for (name, level) in [("@pypi", "full"), ("connect @python", "restricted")] {
            let run = |option: &str| world.outcome(&["--mode", "never", "--level", level, option, name], &["true"]);
            let granted = run("--grant");
            let actual = &granted["attempts"][0]["grants"];
            assert_eq!((&granted["exit_code"], actual), (&json!(0), &json!([hosts[1], hosts[0]])), "{name}");
            let refused = hosts.map(|host| json!({ "grant": host, "given": false, "agreed_by": null }));
            assert_eq!(run("--request")["requested"], json!(refused), "{name}");
        }
        let unknown = world.run(&world.stockade(&["--grant", "@pypy"], &["true"]));
        assert_eq!(unknown.ended, ProgramEnd::Code(125), "{}", unknown.combined_text());
        assert!(unknown.stderr.contains("did you mean `@pypi`?"), "{}", unknown.stderr);
    });
}

#[test]
fn every_way_to_run_a_command_takes_requests() {
    each_user(|world| {
        let (power, file) = target(world);
        let detached = world.run(&world.stockade(&["--detach", "--request", &power], &["touch", &file]));
        assert_eq!((detached.ended, made(&file)), (ProgramEnd::Code(126), false), "{}", detached.stderr);
        let id = detach_program(world, &["--grant", &power], &["touch", &file]);
        assert_eq!((waited(world, &id), made(&file)), (ProgramEnd::Code(0), true));
        let workspace = world.workspace().display().to_string();
        for (at_start, expected_code) in [("--request", 126), ("--grant", 0)] {
            let start = ["session", "start", "--mode", "never", "--workspace", &workspace, at_start, &power];
            let started = stockade(world, &start);
            let id = started.stdout.trim().to_owned();
            let exec = |options: &[&str]| {
                let output = stockade(world, &[&["session", "exec"], options, &[&id, "--", "touch", &file]].concat());
                (output.ended, made(&file))
            };
            assert_eq!(
                exec(&[]),
                (ProgramEnd::Code(expected_code), expected_code == 0),
                "{at_start}: {}",
                started.combined_text()
            );
            assert_eq!(exec(&["--request", "listen 80"]), (ProgramEnd::Code(126), false), "{at_start}");
            stockade(world, &["session", "end", &id]);
        }
        let id = stockade(world, &["sandbox", "create"]).stdout.trim().to_owned();
        for (option, expected_code) in [("--request", 126), ("--grant", 0)] {
            let exec = ["sandbox", "exec", "--mode", "never", option, "env GITHUB_TOKEN", &id, "--", "true"];
            let output = stockade(world, &exec);
            assert_eq!(output.ended, ProgramEnd::Code(expected_code), "{option}: {}", output.combined_text());
        }
        stockade(world, &["sandbox", "destroy", &id]);
        for (mode, decision) in [("never", "deny"), ("on-request", "ask")] {
            let check = ["check", "--json", "--mode", mode, "--request", &power, "--", "true"];
            let output = stockade(world, &check);
            let answer: Value = serde_json::from_str(&output.stdout).unwrap();
            assert_eq!(answer["decision"], decision, "{}", output.combined_text());
        }
    });
}
