//! Rules about programs: every way to start one, in the whole tree of a run,
//! with each answer.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod broker_support;
mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::thread;
use std::time::Duration;

use broker_support::{Brokered, React, Scene, no, run_brokered, run_holding, yes};
use stockade_backend_api::HeldAnswer;
use stockade_launch::ProcessExit;
use stockade_model::{AttemptPlan, DeniedOperation, ExecRules, Grant, IsolationLevel, RawText};
use stockade_testkit::write_program;

const LEVELS: [IsolationLevel; 2] = [IsolationLevel::Full, IsolationLevel::Restricted];

/// How `tool` ends: no shell ends so by itself.
const RAN: i32 = 7;

/// A whole static program that exits with [`RAN`]: an ELF header, one segment,
/// `mov edi, 7; mov eax, 60; syscall`.
fn tool() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let code = [0xbf, RAN as u8, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05];
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let half = |file: &mut Vec<u8>, values: &[u16]| values.iter().for_each(|v| file.extend(v.to_le_bytes()));
    half(&mut file, &[2, 62, 1, 0]);
    [BASE + HEADERS, 64, 0].iter().for_each(|v| file.extend(v.to_le_bytes()));
    half(&mut file, &[0, 0, 64, 56, 1, 0, 0, 0]);
    half(&mut file, &[1, 0, 5, 0]);
    let whole = HEADERS + code.len() as u64;
    [0, BASE, BASE, whole, whole, 0x1000].iter().for_each(|v| file.extend(v.to_le_bytes()));
    file.extend(code);
    file
}

/// A workspace with the tool under some names, and scripts that it interprets.
fn scene() -> Scene {
    let scene = Scene::bare("execs");
    let workspace = scene.workspace();
    fs::create_dir(workspace.join("bin")).unwrap();
    write_program(&workspace.join("bin/tool"), &tool()).unwrap();
    symlink("bin/tool", workspace.join("tool")).unwrap();
    symlink("bin/tool", workspace.join("other-name")).unwrap();
    symlink("bin", workspace.join("alias")).unwrap();
    let shown = workspace.display();
    write_program(&workspace.join("script"), format!("#!{shown}/bin/tool -x\nnothing\n").as_bytes()).unwrap();
    write_program(&workspace.join("script-of-script"), format!("#! {shown}/script\n").as_bytes()).unwrap();
    write_program(&workspace.join("by-env"), b"#!/usr/bin/env tool\n").unwrap();
    scene
}

fn plan(level: IsolationLevel, scene: &Scene, script: &str, ask: &[&str], deny: &[&str]) -> AttemptPlan {
    let workspace = scene.workspace();
    let mut plan = support::plan(level, &workspace, &["/bin/sh", "-c", script]);
    let path = format!("{}/bin:/usr/local/bin:/usr/bin:/bin", workspace.display());
    plan.environment.insert("PATH".to_owned(), RawText::from(path.as_str()));
    let all = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
    plan.profile.exec = ExecRules { ask: all(ask), deny: all(deny) };
    plan
}

fn late(answer: fn(&Grant) -> HeldAnswer) -> React {
    Box::new(move |question, answers| {
        thread::sleep(Duration::from_millis(100));
        answers.answer_held_call(question.id, answer(question.denial.grant.as_ref().unwrap()));
    })
}

/// Every way to start the tool. The last word of a name is what it needs.
const FORMS: &[(&str, &str)] = &[
    ("path", "./bin/tool a"),
    ("link", "./other-name a"),
    ("search", "tool a"),
    ("nested shells", "sh -c 'sh -c \"tool a\"; exit $?'"),
    ("env", "env -i ./tool a"),
    ("interpreter", "./script a"),
    ("interpreter of an interpreter", "./script-of-script a"),
    ("interpreter that is searched", "./by-env"),
    ("vfork and exec: perl", r#"perl -e 'exit(system({"./tool"} "another", "a") >> 8)'"#),
    (
        "execveat: perl",
        r#"perl -e '$p="bin/tool"; $l=pack("p p Q","another","a",0); $e=pack("Q",0); syscall(322,-100,$p,$l,$e,0)'"#,
    ),
    (
        "fexecve: perl",
        r#"perl -e 'open(F,"<","bin/tool"); $p=""; $l=pack("p p Q","another","a",0); $e=pack("Q",0); syscall(322,fileno(F),$p,$l,$e,4096)'"#,
    ),
    (
        "a descriptor's name: perl",
        r#"perl -e '$^F=9; open(F,"<","bin/tool"); exec {"/proc/self/fd/".fileno(F)} "another", "a"'"#,
    ),
    ("no arguments at all: perl", r#"perl -e '$p="bin/tool"; $e=pack("Q",0); syscall(59,$p,0,$e)'"#),
];

fn forms() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let has_perl = Path::new("/usr/bin/perl").exists();
    FORMS.iter().filter(move |(name, _)| has_perl || !name.ends_with("perl"))
}

/// Runs every form with a rule about the tool; `runs` says whether it ran.
#[track_caller]
fn each(ask: &[&str], deny: &[&str], react: Option<fn() -> React>, check: impl Fn(&str, bool, &Brokered, &str)) {
    for level in LEVELS {
        for (name, form) in forms() {
            let scene = scene();
            let plan = plan(level, &scene, &format!("{form}; echo $?"), ask, deny);
            let ran = match react {
                Some(react) => run_holding(&plan, react()),
                None => run_brokered(&plan),
            };
            let tool = scene.workspace().join("bin/tool").display().to_string();
            let has_run = ran.stdout.trim() == RAN.to_string();
            println!("{level}, {name}: {} {} {:#?} {:#?}", ran.stdout, ran.stderr, ran.asked(), ran.denied());
            check(name, has_run, &ran, &tool);
        }
    }
}

fn question(tool: &str) -> Vec<String> {
    vec![format!("Exec {tool} [exec {tool}]")]
}

#[test]
fn without_a_rule_that_names_it_it_runs() {
    each(&["other"], &["toolbox", "/usr/bin/tool"], Some(no), |name, has_run, ran, _| {
        assert!(has_run && ran.questions.is_empty() && ran.report.denials.is_empty(), "{name}");
    });
}

#[test]
fn after_a_yes_it_runs() {
    each(&["tool"], &[], Some(yes), |name, has_run, ran, tool| {
        assert!(has_run, "{name}: {}", ran.stderr);
        assert_eq!(ran.asked(), question(tool), "{name}");
        assert!(ran.report.denials.is_empty(), "{name}");
        assert!(ran.programs.iter().any(|p| p == tool || p.contains("script")), "{name}: {:?}", ran.programs);
    });
}

#[test]
fn after_a_no_in_time_or_late_it_does_not() {
    let late_no = || late(|_| HeldAnswer::Refused);
    for react in [no as fn() -> React, late_no] {
        each(&["tool"], &[], Some(react), |name, has_run, ran, tool| {
            assert!(!has_run, "{name}");
            assert_eq!((ran.asked(), ran.denied()), (question(tool), question(tool)), "{name}");
            assert!(!ran.programs.iter().any(|p| p == tool), "{name}: {:?}", ran.programs);
        });
    }
}

#[test]
fn without_holding_it_is_refused_and_reported() {
    each(&["tool"], &[], None, |name, has_run, ran, tool| {
        assert!(!has_run, "{name}");
        assert_eq!(ran.denied(), question(tool), "{name}");
        assert_eq!(ran.report.denials[0].operation, DeniedOperation::Exec);
    });
}

#[test]
fn a_denied_access_is_no_question() {
    each(&["tool"], &["tool"], Some(yes), |name, has_run, ran, tool| {
        assert!(!has_run && ran.questions.is_empty(), "{name}: {:?}", ran.asked());
        assert_eq!(ran.denied(), [format!("Exec {tool} [-]")], "{name}");
        assert_eq!(ran.report.denials[0].rule, "program: tool");
    });
}

#[test]
fn a_grant_lifts_a_question_and_no_denial() {
    for level in LEVELS {
        for (ask, deny, expected) in [(&["tool"][..], &[][..], "7"), (&[], &["tool"], "126")] {
            let scene = scene();
            let mut plan = plan(level, &scene, "tool; echo $?", ask, deny);
            plan.grants = vec![Grant::Exec(scene.workspace().join("bin/tool"))];
            let ran = run_holding(&plan, no());
            assert_eq!(ran.stdout.trim(), expected, "{level} {}", ran.stderr);
            assert!(ran.questions.is_empty());
        }
    }
}

#[test]
fn the_command_itself_was_agreed_to() {
    for level in LEVELS {
        for argv in ["./bin/tool", "tool", "./script"] {
            let scene = scene();
            let mut plan = plan(level, &scene, "", &[], &["tool"]);
            plan.argv = vec![RawText::from(argv)];
            let path = format!("/nowhere:/usr/bin:{}/bin", scene.workspace().display());
            plan.environment.insert("PATH".to_owned(), RawText::from(path.as_str()));
            let ran = run_holding(&plan, no());
            assert_eq!(ran.ended, ProcessExit::Exited(RAN), "{level} {argv} {:?}", ran.denied());
        }
    }
}

#[test]
fn arguments_decide_and_every_rule_is_a_question_of_its_own() {
    let script = "for w in status push push commit 'push x'; do tool $w; echo $w $?; done; tool; tool x push; echo $?";
    for level in LEVELS {
        let scene = scene();
        let ran = run_holding(&plan(level, &scene, script, &["tool push", "tool commit"], &["tool push x"]), no());
        let expected = "status 7\npush 126\npush 126\ncommit 126\npush x 126\n7\n";
        assert_eq!(ran.stdout, expected, "{level} {}", ran.stderr);
        let rules: Vec<_> = ran.questions.iter().map(|q| q.denial.rule.as_str()).collect();
        assert_eq!(rules, ["program: tool push", "program: tool commit"]);
        let counted: Vec<_> = ran.report.denials.iter().map(|d| (d.rule.as_str(), d.count)).collect();
        assert_eq!(counted, [("program: tool push", 2), ("program: tool commit", 1), ("program: tool push x", 1)]);

        let long = format!("tool {0}; echo $?; tool push{0}; echo $?", "x".repeat(50_000));
        let ran = run_holding(&plan(level, &scene, &long, &["tool push"], &[]), no());
        assert_eq!(ran.stdout, "7\n7\n", "{level} {}", ran.stderr);
    }
}

#[test]
fn one_approval_is_enough_for_all_waiting_calls() {
    for level in LEVELS {
        let scene = scene();
        let script = "for i in 1 2 3; do (tool push; echo $?) & done; wait; tool commit; echo $?";
        let rules = ["tool push", "tool commit"];
        let ran = run_holding(
            &plan(level, &scene, script, &rules, &[]),
            late(|grant| HeldAnswer::Granted(vec![grant.clone()])),
        );
        assert_eq!(ran.stdout, "7\n7\n7\n7\n", "{level} {}", ran.stderr);
        assert_eq!(ran.questions.len(), 1, "{:?}", ran.asked());
    }
}

#[test]
fn a_dead_askers_question_is_withdrawn() {
    for level in LEVELS {
        let scene = scene();
        let script = "(exec tool) & sleep 0.3; kill -9 $!; wait $!; echo $?; sleep 1";
        let ran = run_holding(&plan(level, &scene, script, &["tool"], &[]), Box::new(|_, _| {}));
        assert_eq!((ran.stdout.as_str(), ran.log.join(" ").as_str()), ("137\n", "+1 -1"), "{level} {}", ran.stderr);
    }
}

#[test]
fn a_program_that_is_replaced_during_the_question_does_not_run() {
    for level in LEVELS {
        let scene = scene();
        let at = scene.workspace().join("bin");
        let react: React = Box::new(move |question, answers| {
            write_program(&at.join("new"), b"#!/bin/sh\nexit 7\n").unwrap();
            fs::rename(at.join("new"), at.join("tool")).unwrap();
            answers.answer_held_call(question.id, HeldAnswer::Granted(question.denial.grant.iter().cloned().collect()));
        });
        let ran = run_holding(&plan(level, &scene, "tool; echo $?", &["tool"], &[]), react);
        assert_eq!(ran.stdout, "126\n", "{level} {}", ran.stderr);
        assert_eq!(ran.report.denials[0].rule, "it changed while the question was open");
    }
}

#[test]
fn links_of_a_rule_are_followed() {
    for level in LEVELS {
        for (rule, expected) in [("alias/tool", "126"), ("other-name", "126"), ("alias/t*l", "126"), ("alias/x*", "7")]
        {
            let scene = scene();
            let rule = scene.workspace().join(rule).display().to_string();
            let ran = run_holding(&plan(level, &scene, "tool; echo $?", &[], &[&rule]), no());
            assert_eq!(ran.stdout.trim(), expected, "{level} {rule} {}", ran.stderr);
        }
    }
}

/// Its interpreter is not told, so it might be any.
#[test]
fn a_program_that_cannot_be_read_is_asked_about() {
    for level in LEVELS {
        for (react, expected) in [(yes as fn() -> React, "7"), (no, "126")] {
            let scene = scene();
            fs::set_permissions(scene.workspace().join("bin/tool"), Permissions::from_mode(0o111)).unwrap();
            let ran = run_holding(&plan(level, &scene, "tool; echo $?", &["other"], &[]), react());
            assert_eq!(ran.stdout.trim(), expected, "{level} {}", ran.stderr);
            assert_eq!(ran.questions.len(), 1);
            assert_eq!(ran.questions[0].denial.rule, "program: one that cannot be read");
        }
    }
}

#[test]
fn failures_are_the_same_with_and_without_rules() {
    let script = r#"nosuch; echo $?; ./bin; echo $?; ./text; echo $?; ./dangling; echo $?; perl -e 'syscall(59,8,0,0); print $!+0, " "; $p="bin/tool"; syscall(59,$p,8,0); print $!+0'"#;
    let outputs = |rules: &[&str]| {
        LEVELS.map(|level| {
            let scene = scene();
            fs::write(scene.workspace().join("text"), "").unwrap();
            write_program(&scene.workspace().join("dangling"), b"#!/no/such/interpreter\n").unwrap();
            let ran = run_holding(&plan(level, &scene, script, rules, &[]), no());
            assert!(ran.questions.is_empty() && ran.report.denials.is_empty(), "{:?}", ran.denied());
            ran.stdout
        })
    };
    let without = outputs(&[]);
    assert!(without[0].starts_with("127\n126\n126\n127\n14 14"), "{}", without[0]);
    assert_eq!(without, outputs(&["other", "tool b"]));
}
