//! A request's whole way with the real rules, record and store around the
//! engine. The backend and the person are fakes that do as the table says.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod held;
mod house;
mod review;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use house::{Behaviour, Failing, Fake, House, Scripted};
use stockade_audit::AuditLogWriter;
use stockade_backend_api::StdioMode;
use stockade_engine::{exit_code, interrupt_channel};
use stockade_model::{
    ApprovalAnswer, ApprovalMode, ApprovalScope, CallerApproval, DenialResolution, FinalStatus, Grant, GranularMode,
    RequestCommand, RunOutcome,
};

const YES: &[ApprovalAnswer] = &[ApprovalAnswer::Approved(ApprovalScope::Once)];
const NO: &[ApprovalAnswer] = &[ApprovalAnswer::Denied(ApprovalScope::Once)];
const SILENCE: &[ApprovalAnswer] = &[ApprovalAnswer::TimedOut];
const QUIT: &[ApprovalAnswer] = &[ApprovalAnswer::Abort];

const CLASSES: ApprovalMode =
    ApprovalMode::Granular(GranularMode { run: false, filesystem: true, network: false, other: false });

pub(crate) fn summarize(house: &House, outcome: &RunOutcome) -> String {
    let attempts = house.released.lock().unwrap().len();
    format!("{:?} {}, ran {attempts}, asked [{}]", outcome.status, exit_code(outcome), house.asked()).to_lowercase()
}

#[track_caller]
fn check(mode: ApprovalMode, script: &str, answers: &[ApprovalAnswer], expected: &str) {
    let house = House::new(Fake::default(), answers);
    let outcome = house.run(house.request(script, mode));
    assert_eq!(summarize(&house, &outcome), expected, "{mode:?} `{script}` {answers:?}: {:?}", outcome.error);
    let events = house.events();
    assert_eq!(events.first().map(String::as_str), Some("requested"));
    assert_eq!(events.last().map(String::as_str), Some("finished"));
}

/// Modes x tiers x answers, for the question about the run.
#[test]
fn may_it_run() {
    const ALLOW: &str = "ls";
    const ASK: &str = "rm all";
    const DENY: &str = "rm -rf /";
    use ApprovalMode::{Never, OnFailure, OnRequest, Untrusted};
    let ran = "exited 0, ran 1, asked []";
    let yes = "exited 0, ran 1, asked [run]";
    let no = "refused 126, ran 0, asked [run]";
    let quit = "aborted 126, ran 0, asked [run]";
    let refused = "refused 126, ran 0, asked []";
    for mode in [Untrusted, OnFailure, OnRequest, Never, CLASSES] {
        for answers in [YES, NO, SILENCE, QUIT] {
            check(mode, ALLOW, answers, ran);
        }
    }
    for mode in [OnFailure, OnRequest, Never, CLASSES] {
        check(mode, ASK, NO, ran);
    }
    for (mode, script) in [(Untrusted, ASK), (Untrusted, DENY), (OnFailure, DENY), (OnRequest, DENY)] {
        check(mode, script, YES, yes);
        check(mode, script, NO, no);
        check(mode, script, SILENCE, no);
        check(mode, script, QUIT, quit);
    }
    for mode in [Never, CLASSES] {
        check(mode, DENY, YES, refused);
    }
}

#[track_caller]
fn check_denial(
    mode: ApprovalMode,
    needs: &str,
    answers: &[ApprovalAnswer],
    expected: &str,
    resolution: DenialResolution,
) {
    let fake = Fake { needs: vec![needs.parse().unwrap()], ..Fake::default() };
    let house = House::new(fake, answers);
    let outcome = house.run(house.request("ls", mode));
    assert_eq!(summarize(&house, &outcome), expected, "{mode:?} {needs} {answers:?}");
    let denial = &outcome.attempts[0].denials[0];
    assert_eq!((denial.resolution, &denial.grant), (resolution, &Some(needs.parse().unwrap())));
}

/// Modes x answers, for what was refused during the run.
#[test]
fn may_it_have_the_refused_power() {
    use ApprovalMode::{Never, OnFailure, OnRequest, Untrusted};
    use DenialResolution::{Granted, Recorded, Refused};
    let stands = "exited 1, ran 1, asked []";
    for mode in [OnFailure, Untrusted, CLASSES] {
        check_denial(mode, "write /srv/a", YES, "exited 0, ran 2, asked [escalate]", Granted);
        check_denial(mode, "write /srv/a", NO, "exited 1, ran 1, asked [escalate]", Refused);
        check_denial(mode, "write /srv/a", SILENCE, "exited 1, ran 1, asked [escalate]", Refused);
        check_denial(mode, "write /srv/a", QUIT, "exited 1, ran 1, asked [escalate]", Refused);
    }
    check_denial(CLASSES, "socket /run/x", YES, stands, Recorded);
    check_denial(OnRequest, "write /srv/a", YES, stands, Recorded);
    check_denial(Never, "write /srv/a", YES, stands, Recorded);
    // What the backend cannot give is never asked about.
    check_denial(OnFailure, "connect pypi.org:443", YES, stands, Recorded);
}

#[test]
fn the_next_attempt_has_exactly_the_grant_more() {
    let fake = Fake { needs: vec!["write /srv/a".parse().unwrap()], ..Fake::default() };
    let house = House::new(fake, YES);
    let outcome = house.run(house.request("ls", ApprovalMode::OnFailure));
    let plans = house.released.lock().unwrap();
    assert_eq!(plans[1].grants, ["write /srv/a".parse::<Grant>().unwrap()]);
    assert_eq!((plans[1].attempt, plans[1].profile.sandboxed), (2, true));
    assert_eq!((&plans[0].argv, &plans[0].environment), (&plans[1].argv, &plans[1].environment));
    assert_eq!(plans[1].profile.filesystem.write.len(), plans[0].profile.filesystem.write.len() + 1);
    assert_eq!(outcome.digest, plans[1].compute_digest().ok());
    let events = house.events();
    let order = [
        "requested",
        "assessed",
        "decided",
        "starting",
        "started",
        "denied",
        "exited",
        "asked",
        "answered",
        "granted",
        "starting",
        "started",
        "exited",
        "finished",
    ];
    assert_eq!(events, order);
}

#[test]
fn a_hidden_file_is_asked_for_with_all_it_needs() {
    let fake = Fake { home_file: Some(".ssh/config"), ..Fake::default() };
    let house = House::new(fake, YES);
    let outcome = house.run(house.request("ls", ApprovalMode::OnFailure));
    assert_eq!(summarize(&house, &outcome), "exited 0, ran 2, asked [escalate]");
    let path = house.dir.path().join("home/.ssh/config");
    assert_eq!(outcome.attempts[1].grants, [Grant::Write(path.clone()), Grant::Read(path)]);
}

#[test]
fn a_session_grant_is_remembered_in_its_session_alone() {
    let fake = Fake { needs: vec!["write /srv/a".parse().unwrap()], ..Fake::default() };
    let house = House::new(fake, &[ApprovalAnswer::Approved(ApprovalScope::Session)]);
    assert_eq!(house.run(house.request("ls", ApprovalMode::OnFailure)).status, FinalStatus::Exited);

    // Another command of the session has it from the start, and it is on record.
    let outcome = house.run(house.request("cat x", ApprovalMode::OnFailure));
    assert_eq!(outcome.attempts.len(), 1);
    assert_eq!(outcome.attempts[0].grants, ["write /srv/a".parse::<Grant>().unwrap()]);
    assert_eq!((outcome.approvals.len(), outcome.approvals[0].by.as_str()), (1, "cache"));
    assert_eq!(house.asked(), "escalate");

    let other = stockade_model::RunRequest {
        session: Some("ses_2".parse().unwrap()),
        ..house.request("ls", ApprovalMode::OnFailure)
    };
    assert_eq!(exit_code(&house.run(other)), 1);
    assert_eq!(house.asked(), "escalate escalate");
}

#[test]
fn never_is_remembered_whatever_changes_around_it() {
    let fake = Fake { needs: vec!["write /srv/a".parse().unwrap()], ..Fake::default() };
    let house = House::new(
        fake,
        &[ApprovalAnswer::Denied(ApprovalScope::Always), ApprovalAnswer::Approved(ApprovalScope::Once)],
    );
    house.run(house.request("ls", ApprovalMode::OnFailure));
    let mut request = house.request("ls -l", ApprovalMode::OnFailure);
    request.environment.insert("LANG".to_owned(), "C".into());
    request.session = None;
    let outcome = house.run(request);
    assert_eq!(house.asked(), "escalate");
    assert_eq!(outcome.attempts[0].denials[0].resolution, DenialResolution::Refused);
    assert_eq!((outcome.approvals[0].answer.as_str(), outcome.approvals[0].by.as_str()), ("denied", "cache"));
}

#[test]
fn a_remembered_run_is_bound_to_the_shown_content() {
    let house = House::new(Fake::default(), &[ApprovalAnswer::Approved(ApprovalScope::Session)]);
    let run = |script: &str, change: &dyn Fn(&mut stockade_model::RunRequest)| {
        let mut request = house.request(script, ApprovalMode::Untrusted);
        change(&mut request);
        house.run(request).status
    };
    assert_eq!(run("rm all", &|_| {}), FinalStatus::Exited);
    assert_eq!(run("rm all", &|_| {}), FinalStatus::Exited);
    assert_eq!(house.asked(), "run");
    assert_eq!(run("rm all ", &|_| {}), FinalStatus::Refused);
    assert_eq!(run("rm all", &|r| r.session = None), FinalStatus::Refused);
    assert_eq!(run("rm all", &|r| drop(r.environment.insert("LANG".to_owned(), "C".into()))), FinalStatus::Refused);
    assert_eq!(run("rm all", &|r| r.profile = "read-only".to_owned()), FinalStatus::Refused);
    assert_eq!(run("rm all", &|r| r.grants.push("write /srv/b".parse().unwrap())), FinalStatus::Refused);
    assert_eq!(
        run("rm all", &|r| r.command = RequestCommand::Argv(vec!["rm".into(), "all".into()])),
        FinalStatus::Refused
    );
    assert_eq!(house.asked(), "run run run run run run run");
}

/// L1: an approval of a sandboxed run never lets the unsandboxed one pass.
#[test]
fn without_a_sandbox_is_asked_every_time() {
    let always = ApprovalAnswer::Approved(ApprovalScope::Always);
    let scripted = Scripted { answers: [always, always, ApprovalAnswer::TimedOut].into(), ..Scripted::default() };
    let mut house = House::with_configuration("allow_host = true\n", Fake::default(), scripted);
    struct Host(Fake);
    impl stockade_backend_api::Backend for Host {
        fn name(&self) -> &'static str {
            "host"
        }
        fn supports_grant(&self, _: &Grant, _: stockade_model::IsolationLevel) -> bool {
            false
        }
        fn prepare_attempt(
            &self,
            plan: &stockade_model::AttemptPlan,
            io: &StdioMode,
            hold: bool,
            events: stockade_backend_api::AttemptEventSender,
        ) -> Result<Box<dyn stockade_backend_api::Attempt>, stockade_backend_api::StartError> {
            self.0.prepare_attempt(plan, io, hold, events)
        }
    }
    let host = Fake { alive: house.alive.clone(), released: house.released.clone(), ..Fake::default() };
    house.engine.host = Some(Arc::new(Host(host)));
    let request = |profile: &str| stockade_model::RunRequest {
        profile: profile.to_owned(),
        caller_approval: (profile == "host").then(|| CallerApproval { by: "x".to_owned(), warnings: vec![] }),
        ..house.request("rm all", ApprovalMode::Untrusted)
    };
    assert_eq!(house.run(request("workspace")).status, FinalStatus::Exited);
    assert_eq!(house.run(request("host")).status, FinalStatus::Exited);
    assert_eq!(house.run(request("host")).status, FinalStatus::Refused);
    assert_eq!(house.run(request("workspace")).status, FinalStatus::Exited);
    assert_eq!(house.asked(), "run unsandboxed unsandboxed");
}

#[test]
fn a_callers_approval_spares_the_question_and_is_recorded() {
    let house = House::new(Fake::default(), &[]);
    let mut request = house.request("rm all", ApprovalMode::Untrusted);
    request.caller_approval =
        Some(CallerApproval { by: "agent\u{1b}[2J".to_owned(), warnings: vec!["big".to_owned()] });
    let outcome = house.run(request);
    assert_eq!(summarize(&house, &outcome), "exited 0, ran 1, asked []");
    assert_eq!(outcome.approvals[0].by, "caller: agent\\u{1b}[2J");
    let text = std::fs::read_to_string(house.dir.path().join("state/audit/audit.jsonl")).unwrap();
    assert!(text.lines().any(|line| line.contains("\"answered\"") && line.contains("\"big\"")));
}

/// What a rule wants of the run is what is planned, run and recorded (L5).
#[test]
fn a_rule_brings_a_profile_powers_and_limits() {
    const RULES: &str = r#"
[profiles.build]
write = ["~/.cache/build"]

[[rules]]
prefix = ["make", "all"]
effect = "allow"
profile = "build"
grants = ["write /srv/out"]
limits.wall = "3m"
limits.temp = "1MiB"
justification = "builds"

[[rules]]
prefix = ["make", "install"]
effect = "ask"
grants = ["write /srv/usr"]
approver = "person"
justification = "looked at"
"#;
    let house = |answers: &[ApprovalAnswer]| {
        let scripted = Scripted { answers: answers.iter().copied().collect(), ..Scripted::default() };
        House::with_configuration(RULES, Fake::default(), scripted)
    };
    let allowed = house(&[]);
    let outcome = allowed.run(allowed.request("make all", ApprovalMode::Untrusted));
    assert_eq!(summarize(&allowed, &outcome), "exited 0, ran 1, asked []");
    let plan = allowed.released.lock().unwrap()[0].clone();
    assert_eq!((plan.profile.name.as_str(), plan.grants.len()), ("build", 1));
    assert!(plan.profile.filesystem.write.contains(&"/srv/out".into()));
    assert!(plan.profile.filesystem.write.contains(&allowed.path("home/.cache/build")));
    assert_eq!((plan.profile.limits.wall_ms, plan.profile.limits.temp_bytes), (Some(180_000), Some(1 << 20)));
    assert_eq!(outcome.attempts[0].grants, plan.grants);
    // Part of a script that nobody allowed gets nothing of it.
    let other = house(YES);
    other.run(other.request("make all; ls", ApprovalMode::OnFailure));
    let plan = other.released.lock().unwrap()[0].clone();
    assert_eq!((plan.profile.name.as_str(), plan.grants.len()), ("workspace", 0));
    // What comes with a rule that asks is agreed to, by a person.
    let asked = house(&[ApprovalAnswer::Approved(ApprovalScope::Once); 2]);
    let mut request = asked.request("make install", ApprovalMode::Untrusted);
    request.caller_approval = Some(CallerApproval { by: "agent".to_owned(), warnings: vec![] });
    let outcome = asked.run(request);
    assert_eq!((outcome.status, asked.asked()), (FinalStatus::Exited, "run grants".to_owned()));
    assert_eq!(asked.released.lock().unwrap()[0].grants.len(), 1);
    let refused = house(&[ApprovalAnswer::Approved(ApprovalScope::Once), ApprovalAnswer::Denied(ApprovalScope::Once)]);
    assert_eq!(refused.run(refused.request("make install", ApprovalMode::Untrusted)).status, FinalStatus::Refused);
    assert!(refused.released.lock().unwrap().is_empty());
}

/// A limit that was passed ends the attempt, and is named; a yes raises it for
/// one more, and nothing else with it (L3).
#[test]
fn a_limit_that_is_passed_ends_the_run_and_can_be_raised() {
    let needs = || vec!["memory 8GiB".parse::<Grant>().unwrap()];
    let exceeds = || Fake { needs: needs(), behaviour: Behaviour::Exceeds, ..Fake::default() };
    let refused = House::new(exceeds(), &[ApprovalAnswer::Denied(ApprovalScope::Once)]);
    let outcome = refused.run(refused.request("make all", ApprovalMode::OnFailure));
    assert_eq!((outcome.status, outcome.signal, outcome.attempts.len()), (FinalStatus::Limit, Some(15), 1));
    assert_eq!(outcome.attempts[0].denials[0].resolution, DenialResolution::Refused);
    assert!(outcome.error.unwrap().starts_with("limit for memory 8GiB: "));
    let agreed = House::new(exceeds(), YES);
    let outcome = agreed.run(agreed.request("make all", ApprovalMode::OnFailure));
    assert_eq!((outcome.status, outcome.attempts.len()), (FinalStatus::Exited, 2));
    assert_eq!(outcome.attempts[1].grants, needs());
    let never = House::new(exceeds(), YES);
    let outcome = never.run(never.request("make all", ApprovalMode::Never));
    assert_eq!((outcome.status, outcome.attempts.len(), never.asked()), (FinalStatus::Limit, 1, String::new()));
}

#[test]
fn no_approver_is_a_refusal() {
    let scripted = || Scripted { absent: true, answers: YES.iter().copied().collect(), ..Scripted::default() };
    let house = House::with_configuration("", Fake::default(), scripted());
    let outcome = house.run(house.request("make", ApprovalMode::Untrusted));
    assert_eq!(summarize(&house, &outcome), "refused 126, ran 0, asked []");
    let fake = Fake { needs: vec!["write /srv/a".parse().unwrap()], ..Fake::default() };
    let house = House::with_configuration("", fake, scripted());
    let outcome = house.run(house.request("ls", ApprovalMode::OnFailure));
    assert_eq!(summarize(&house, &outcome), "exited 1, ran 1, asked []");
    assert!(outcome.approvals.is_empty());
}

#[test]
fn an_approver_that_hangs_is_passed_over() {
    let slow = Some(Duration::from_secs(6));
    let scripted = Scripted { slow, hangs: true, answers: YES.iter().copied().collect(), ..Scripted::default() };
    let mut house = House::with_configuration("", Fake::default(), scripted);
    house.engine.question_timeout_ms = 50;
    let begun = Instant::now();
    let outcome = house.run(house.request("make", ApprovalMode::Untrusted));
    assert_eq!(outcome.status, FinalStatus::Refused);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_record_that_fails_ends_everything() {
    for (batches, commits_fail) in (0..5).map(|n| (n, false)).chain([(100, true)]) {
        let mut house = House::new(Fake { behaviour: Behaviour::Waits, ..Fake::default() }, &[]);
        let inner = AuditLogWriter::open(&house.dir.path().join("state/other")).unwrap();
        let batches_left = AtomicUsize::new(batches);
        house.engine.recorder = Arc::new(Failing { inner, batches_left, commits_fail });
        house.durable = Arc::default();
        let (_interrupter, interrupts) = interrupt_channel();
        let outcome =
            house.engine.run_request(house.request("ls", ApprovalMode::OnFailure), StdioMode::Inherit, interrupts);
        assert_eq!((outcome.status, exit_code(&outcome)), (FinalStatus::Error, 125), "{batches}");
        assert!(outcome.error.unwrap().contains("audit log"), "{batches}");
        assert_eq!(house.alive.load(Ordering::SeqCst), 0, "{batches}");
        let started = house.released.lock().unwrap().len();
        assert!(started == 0 || batches > 3, "{batches}: ran without a record");
    }
}

#[test]
fn an_unbuildable_plan_is_not_run() {
    for (behaviour, code, word) in [
        (Behaviour::Fails, 125, "hint: see doctor"),
        (Behaviour::Weak, 125, "level full"),
        (Behaviour::NotFound, 127, "not found"),
    ] {
        let house = House::new(Fake { behaviour, ..Fake::default() }, &[]);
        let outcome = house.run(house.request("ls", ApprovalMode::OnFailure));
        assert_eq!((outcome.status, exit_code(&outcome)), (FinalStatus::Error, code), "{behaviour:?}");
        assert!(outcome.error.clone().unwrap().contains(word), "{:?}", outcome.error);
    }
}

#[test]
fn time_runs_out() {
    for (behaviour, signal) in [(Behaviour::Waits, 15), (Behaviour::Stubborn, 9)] {
        let house = House::new(Fake { behaviour, ..Fake::default() }, &[]);
        let mut request = house.request("ls", ApprovalMode::OnFailure);
        request.timeout_ms = Some(30);
        let outcome = house.run(request);
        assert_eq!((outcome.status, exit_code(&outcome), outcome.signal), (FinalStatus::TimedOut, 124, Some(signal)));
    }
}

#[track_caller]
pub(crate) fn wait_until(ready: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !ready() {
        assert!(Instant::now() < until, "it never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[track_caller]
fn check_interrupt(behaviour: Behaviour, signals: &[i32], expected: (FinalStatus, i32)) {
    let house = House::new(Fake { behaviour, ..Fake::default() }, &[]);
    let (interrupter, interrupts) = interrupt_channel();
    let released = house.released.clone();
    let signals = signals.to_vec();
    let person = std::thread::spawn(move || {
        wait_until(|| !released.lock().unwrap().is_empty());
        signals.iter().for_each(|signal| assert!(interrupter.send_interrupt(*signal)));
    });
    let outcome =
        house.engine.run_request(house.request("ls", ApprovalMode::OnFailure), StdioMode::Inherit, interrupts);
    person.join().unwrap();
    assert_eq!((outcome.status, exit_code(&outcome)), expected);
    assert_eq!(house.alive.load(Ordering::SeqCst), 0);
}

#[test]
fn interrupts_go_on_then_end_it() {
    check_interrupt(Behaviour::Waits, &[2], (FinalStatus::Signaled, 130));
    check_interrupt(Behaviour::Stubborn, &[2, 2], (FinalStatus::Aborted, 130));
    check_interrupt(Behaviour::Stubborn, &[15], (FinalStatus::Aborted, 143));
}

#[test]
fn an_interrupt_ends_a_question() {
    let scripted = Scripted { slow: Some(Duration::from_millis(300)), ..Scripted::default() };
    let house = House::with_configuration("", Fake::default(), scripted);
    let (interrupter, interrupts) = interrupt_channel();
    let asked = house.asked.clone();
    let person = std::thread::spawn(move || {
        wait_until(|| !asked.lock().unwrap().is_empty());
        assert!(interrupter.send_interrupt(2));
    });
    let outcome =
        house.engine.run_request(house.request("make", ApprovalMode::Untrusted), StdioMode::Inherit, interrupts);
    person.join().unwrap();
    assert_eq!((outcome.status, exit_code(&outcome)), (FinalStatus::Aborted, 130));
    assert_eq!(outcome.approvals[0].answer, "abort");
    assert!(house.released.lock().unwrap().is_empty());
}

#[test]
fn loops_end() {
    // Each attempt is refused something new.
    let grants: Vec<Grant> = (0..40).map(|n| Grant::Write(format!("/srv/{n}").into())).collect();
    let fake = Fake { needs: grants, ..Fake::default() };
    let house = House::new(fake, &[ApprovalAnswer::Approved(ApprovalScope::Once); 20]);
    let outcome = house.run(house.request("ls", ApprovalMode::OnFailure));
    assert_eq!(summarize(&house, &outcome), "exited 0, ran 5, asked [escalate escalate escalate escalate]");
    let first = house.asked.lock().unwrap()[0].clone();
    let stockade_model::QuestionKind::Escalate { grants, denials, repeats } = first.kind else { panic!() };
    assert_eq!((grants.len(), denials.len()), (12, 12));
    assert!(repeats.iter().any(|text| text.contains("28 more")), "{repeats:?}");
}

#[test]
fn the_engine_serves_requests_side_by_side() {
    let house = Arc::new(Mutex::new(House::new(Fake::default(), &[])));
    let engine = house.lock().unwrap().engine.clone();
    let request = house.lock().unwrap().request("ls", ApprovalMode::OnFailure);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (engine, request) = (engine.clone(), request.clone());
            std::thread::spawn(move || engine.run_request(request, StdioMode::Inherit, interrupt_channel().1).status)
        })
        .collect();
    assert!(threads.into_iter().all(|thread| thread.join().unwrap() == FinalStatus::Exited));
}
