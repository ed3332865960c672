//! Every brokered call beside the same call without a sandbox: the same result,
//! the same errno, the same files with the same modes and content, or a refusal
//! that leaves no trace and says what it was.
//!
//! The calls are made by a copy of this very test program, inside and outside.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod broker_support;
mod support;

use broker_support::cases::{Case, Expected};
use broker_support::{Lines, Scene, Snapshot, run_brokered, snapshot};
use stockade_model::{Denial, IsolationLevel, RawText};

/// Not a test: the side that makes the calls, in a process of its own.
#[test]
fn probe() {
    broker_support::probe();
}

#[test]
fn every_call_as_root_and_as_a_user_at_level_full() {
    broker_support::in_each_role("every_call_as_root_and_as_a_user_at_level_full", || compare(IsolationLevel::Full));
}

#[test]
fn every_call_as_root_and_as_a_user_at_level_restricted() {
    broker_support::in_each_role("every_call_as_root_and_as_a_user_at_level_restricted", || {
        compare(IsolationLevel::Restricted);
    });
}

fn compare(level: IsolationLevel) {
    let outside = Scene::new("native");
    let native = outside.probe_natively();
    let scene = Scene::new("brokered");
    let (lines, report) = scene.probe_inside(level);
    let fixture = Scene::fixture();
    let mut failures = Vec::new();
    for case in Case::all() {
        if let Err(why) = check_case(case, (&outside, &native), (&scene, &lines), &report.denials, &fixture) {
            failures.push(format!("{}: {why}", case.name));
        }
    }
    assert!(failures.is_empty(), "{level}\n{}", failures.join("\n"));
    // What lies outside is as it was, whatever was tried.
    assert_eq!(snapshot(&scene.outside()), snapshot(&Scene::new("untouched").outside()));
}

fn check_case(
    case: &Case,
    (outside, native): (&Scene, &Lines),
    (scene, lines): (&Scene, &Lines),
    denials: &[Denial],
    fixture: &Snapshot,
) -> Result<(), String> {
    let line = lines.get(case.name).ok_or("it said nothing")?;
    let within = scene.directory(case.name);
    let about = |d: &&Denial| {
        d.object.as_path().starts_with(&within) || d.object.as_path().starts_with(scene.outside().join(case.name))
    };
    let case_denials: Vec<_> = denials.iter().filter(about).collect();
    match case.expected {
        // Nothing but that it was allowed, and so not told.
        Expected::Same if case.is_newer_than_kernel() => (line == "done" && case_denials.is_empty())
            .then_some(())
            .ok_or(format!("inside `{line}`, denied: {case_denials:?}")),
        Expected::Same => {
            let other = native.get(case.name).ok_or("it said nothing outside")?;
            if line != other {
                return Err(format!("inside `{line}`, outside `{other}`"));
            }
            let (here, there) = (snapshot(&within), snapshot(&outside.directory(case.name)));
            if here != there {
                return Err(format!("left\n  {here:#?}, outside\n  {there:#?}"));
            }
            case_denials.is_empty().then_some(()).ok_or(format!("denied: {case_denials:?}"))
        }
        Expected::Errno(errno) => {
            if line != errno {
                return Err(format!("`{line}`, expected {errno}"));
            }
            case_denials.is_empty().then_some(()).ok_or(format!("denied: {case_denials:?}"))
        }
        Expected::Refused(operation, object) => {
            if line != "ACCESS" {
                return Err(format!("not refused: `{line}`"));
            }
            if snapshot(&within) != *fixture {
                return Err("it left something".to_owned());
            }
            let object = scene.expand(case.name, object);
            let found =
                case_denials.iter().any(|d| d.operation == operation && d.object == RawText::from(object.as_path()));
            found.then_some(()).ok_or(format!("no denial of {operation:?} {}: {case_denials:?}", object.display()))
        }
    }
}

#[test]
fn a_thread_that_rewrites_the_path_gains_nothing() {
    for level in [IsolationLevel::Full, IsolationLevel::Restricted] {
        let scene = Scene::new("race");
        let ran = run_brokered(&scene.plan(level, "race"));
        assert!(ran.stdout.contains("opened"), "{} {}", ran.stdout, ran.stderr);
        assert_eq!(snapshot(&scene.outside()), snapshot(&Scene::new("untouched").outside()));
        assert!(!scene.directory("race").join(".git/hooks/pre-commit").exists());
        assert!(scene.directory("race").join("mine").exists());
    }
}

/// What a brokered call costs; told, not judged: other work on the machine
/// would make it fail. Run with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost() {
    let scene = Scene::new("cost");
    let native = scene.probe_natively_as("cost");
    for level in [IsolationLevel::Full, IsolationLevel::Restricted] {
        let ran = run_brokered(&scene.plan(level, "cost"));
        for line in ran.stdout.lines().filter_map(|l| l.strip_prefix("cost ")) {
            let (what, cost) = line.split_once(" = ").unwrap();
            println!("{level} {what}: {cost} ns, without {} ns", native[what]);
        }
    }
}
