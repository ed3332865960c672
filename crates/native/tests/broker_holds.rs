//! Held calls: every call beside the same call without a sandbox, with the
//! powers given before, asked for and given, refused, refused late, and with an
//! asker that is killed. Each case is a process of its own.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod broker_support;
mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use broker_support::cases::Case;
use broker_support::{Brokered, Lines, Question, React, Scene, Snapshot, no, run_holding, snapshot, yes};
use stockade_backend_api::HeldAnswer;
use stockade_model::{Denial, IsolationLevel, RawText};

const LEVELS: [IsolationLevel; 2] = [IsolationLevel::Full, IsolationLevel::Restricted];

/// Not a test: the side that makes the calls, in a process of its own.
#[test]
fn probe() {
    broker_support::probe();
}

/// What no answer changes, with the reason.
const STAYS: &[(&str, &str)] = &[
    ("unit-set-id", "no grant makes a set-user-ID file"),
    ("unit-set-id-new", "no grant makes a set-user-ID file"),
    ("unit-exchange", "what takes a guarded place is a copy: programs copy by themselves"),
    ("unit-second-name", "a guarded file has one name"),
    ("unit-new-name", "a guarded file has one name"),
    ("openat2", "its flags cannot be seen, so callers are told to fall back"),
];

fn stays(case: &Case) -> bool {
    STAYS.iter().any(|(name, _)| *name == case.name) || case.is_newer_than_kernel()
}

#[test]
fn an_approved_call_has_the_result_of_one_without_a_sandbox() {
    broker_support::in_each_role("an_approved_call_has_the_result_of_one_without_a_sandbox", || {
        for level in LEVELS {
            let outside = Scene::new("native");
            let native = outside.probe_natively_as("apart");
            let scene = Scene::new("asked");
            let ran = run_holding(&scene.plan_elsewhere(level, "apart"), yes());
            let lines = scene.lines_of(&ran);
            let mut failures = Vec::new();
            for case in Case::all().filter(|case| !stays(case)) {
                if let Err(why) = equal(case, (&outside, &native), (&scene, &lines), &ran) {
                    failures.push(format!("{}: {why}", case.name));
                }
            }
            assert!(failures.is_empty(), "{level}\n{}", failures.join("\n"));
            assert!(ran.questions.len() > 100, "{}", ran.questions.len());
        }
    });
}

/// Rows for what costs time: one or more of every operation.
const SHORT: &[&str] = &[
    "open-new",
    "open-truncate",
    "open-append",
    "open-exclusive-old",
    "open-read-create",
    "open-link",
    "open-at",
    "open-own-descriptor",
    "open-unnamed",
    "open-pipe",
    "mkdir",
    "mknod-pipe",
    "unlink",
    "rmdir",
    "rename",
    "rename-exchange",
    "rename-missing",
    "link",
    "symlink",
    "chmod",
    "fchmod",
    "chown-same",
    "truncate",
    "truncate-path",
    "bind",
    "times",
    "times-descriptor",
    "attribute",
    "out-create",
    "out-rename",
    "unit-write",
    "unit-rename",
    "unit-mkdir",
];

fn short() -> impl Iterator<Item = &'static Case> {
    Case::all().filter(|case| SHORT.contains(&case.name))
}

#[test]
fn a_refusal_changes_nothing_and_is_reported_once() {
    for level in LEVELS {
        refusing(level, Case::all().map(|c| c.name).collect(), no());
    }
}

#[test]
fn a_late_no_is_a_no() {
    for level in LEVELS {
        let late = Box::new(|question: &Question, answers: &stockade_native::broker::AnswerSender| {
            std::thread::sleep(Duration::from_millis(100));
            answers.answer_held_call(question.id, HeldAnswer::Refused);
        });
        refusing(level, SHORT.to_vec(), late);
    }
}

/// Every call that needs a yes fails with EACCES and leaves nothing; every other
/// one is as it is natively.
fn refusing(level: IsolationLevel, cases: Vec<&str>, react: React) {
    let part = format!("apart:{}", cases.join(","));
    let outside = Scene::with("native", cases.iter().copied());
    let native = outside.probe_natively_as(&part);
    let scene = Scene::with("refused", cases.iter().copied());
    let ran = run_holding(&scene.plan_elsewhere(level, &part), react);
    let lines = scene.lines_of(&ran);
    let fixture = Scene::fixture();
    let mut failures = Vec::new();
    for case in Case::all().filter(|case| cases.contains(&case.name)) {
        if let Err(why) = unchanged(case, &native, (&scene, &lines), &ran, &fixture) {
            failures.push(format!("{}: {why}", case.name));
        }
    }
    assert!(failures.is_empty(), "{level}\n{}", failures.join("\n"));
    assert_eq!(snapshot(&scene.outside()), snapshot(&Scene::with("untouched", cases.iter().copied()).outside()));
    assert_eq!(ran.withdrawn, []);
    let distinct: BTreeSet<_> = ran.questions.iter().map(|q| (&q.denial.object, &q.denial.grant)).collect();
    assert_eq!(distinct.len(), ran.questions.len(), "asked twice: {:#?}", ran.asked());
}

fn unchanged(
    case: &Case,
    native: &Lines,
    (scene, lines): (&Scene, &Lines),
    ran: &Brokered,
    fixture: &Snapshot,
) -> Result<(), String> {
    let line = lines.get(case.name).ok_or("it said nothing")?;
    let asked = ran.questions.iter().filter(|q| is_about(&q.denial, scene, case)).count();
    let recorded = ran.report.denials.iter().filter(|d| is_about(d, scene, case)).count();
    let state_after = snapshot(&scene.directory(case.name));
    // What the sandbox itself refuses is no question but stays a denial.
    match (asked, recorded) {
        (0, 0) if Some(line) != native.get(case.name) && !stays(case) => {
            Err(format!("`{line}`, natively {:?}", native.get(case.name)))
        }
        // A case may set its scene by a call that is refused, and die of it.
        (1.., _) | (_, 1..) if line != "ACCESS" && line != "died" => Err(format!("`{line}` although refused")),
        // The refusal must be found among what the broker counted.
        (1.., 0) => Err("asked and not counted".to_owned()),
        _ if state_after != *fixture => Err(format!("left {state_after:#?}")),
        _ => Ok(()),
    }
}

#[test]
fn an_asker_that_dies_takes_its_question_along() {
    for level in LEVELS {
        let part = format!("apart:{}", SHORT.join(","));
        let scene = Scene::with("killed", SHORT.iter().copied());
        let kill = Box::new(|question: &Question, _: &stockade_native::broker::AnswerSender| {
            let pid = i32::try_from(question.denial.pid.unwrap()).unwrap();
            rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL)
                .unwrap();
        });
        let ran = run_holding(&scene.plan_elsewhere(level, &part), kill);
        let lines = scene.lines_of(&ran);
        let fixture = Scene::fixture();
        for case in short() {
            let asked = ran.questions.iter().filter(|q| is_about(&q.denial, &scene, case)).count();
            assert!(asked <= 1, "{}: {:#?}", case.name, ran.asked());
            assert_eq!(lines[case.name] == "died", asked == 1, "{}", case.name);
            assert_eq!(snapshot(&scene.directory(case.name)), fixture, "{}", case.name);
        }
        assert!(ran.questions.len() > SHORT.len() / 2, "{:#?}", ran.asked());
        let asked: Vec<_> = ran.questions.iter().map(|q| q.id).collect();
        let mut withdrawn = ran.withdrawn;
        withdrawn.sort_unstable();
        assert_eq!(asked, withdrawn);
        assert_eq!(snapshot(&scene.outside()), snapshot(&Scene::with("untouched", SHORT.iter().copied()).outside()));
    }
}

#[test]
fn earlier_grants_are_not_asked_again() {
    for level in LEVELS {
        let part = format!("apart:{}", SHORT.join(","));
        let outside = Scene::with("native", SHORT.iter().copied());
        let native = outside.probe_natively_as(&part);
        let scene = Scene::with("granted", SHORT.iter().copied());
        let mut plan = scene.plan_elsewhere(level, &part);
        let units = [".git", ".git/hooks", ".git/config", "d/.hg"];
        for case in short() {
            let tree = scene.directory(case.name);
            plan.profile.filesystem.write.extend(units.iter().map(|unit| RawText::from(tree.join(unit))));
            plan.profile.filesystem.write.push(RawText::from(tree));
            plan.profile.filesystem.write.push(RawText::from(scene.outside().join(case.name)));
        }
        let ran = run_holding(&plan, no());
        let lines = scene.lines_of(&ran);
        for case in short() {
            equal(case, (&outside, &native), (&scene, &lines), &ran)
                .unwrap_or_else(|why| panic!("{}: {why}", case.name));
        }
        assert!(ran.questions.is_empty(), "{:#?}", ran.asked());
    }
}

fn is_about(denial: &Denial, scene: &Scene, case: &Case) -> bool {
    let object = denial.object.as_path();
    object.starts_with(scene.directory(case.name)) || object.starts_with(scene.outside().join(case.name))
}

fn about(ran: &Brokered, scene: &Scene, case: &Case) -> Vec<String> {
    let denied = ran.report.denials.iter().filter(|d| is_about(d, scene, case));
    denied.map(|d| format!("{:?} {}: {}", d.operation, d.object, d.rule)).collect()
}

fn equal(
    case: &Case,
    (outside, native): (&Scene, &Lines),
    (scene, lines): (&Scene, &Lines),
    ran: &Brokered,
) -> Result<(), String> {
    let line = lines.get(case.name).ok_or("it said nothing")?;
    let other = native.get(case.name).ok_or("it said nothing outside")?;
    let denied = about(ran, scene, case);
    if line != other {
        return Err(format!("inside `{line}`, outside `{other}` {denied:?}"));
    }
    for (here, there) in [
        (scene.directory(case.name), outside.directory(case.name)),
        (scene.outside().join(case.name), outside.outside().join(case.name)),
    ] {
        let (here, there) = (snapshot(&here), snapshot(&there));
        if here != there {
            return Err(format!("left\n  {here:#?}, outside\n  {there:#?}"));
        }
    }
    denied.is_empty().then_some(()).ok_or(format!("denied: {denied:?}"))
}
