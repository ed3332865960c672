//! Held calls with the real rules, record and store: the fake sandbox plays
//! programs whose calls wait for an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stockade_audit::AuditLogWriter;
use stockade_backend_api::{
    Attempt, AttemptEnd, AttemptEvent, AttemptEventSender, Backend, CommandEnd, HeldAnswer, HoldId, StartError,
    StdioMode,
};
use stockade_engine::{exit_code, interrupt_channel};
use stockade_model::{
    ApprovalAnswer, ApprovalMode, ApprovalScope, AttemptPlan, Denial, DenialLayer, DenialResolution, DeniedOperation,
    EnforcementReport, FinalStatus, Grant, GranularMode, IsolationLevel, QuestionKind,
};

use crate::house::{Failing, Fake, House, Scripted};
use crate::{summarize, wait_until};

/// What the command does; its exit code.
type Program = dyn Fn(&Calls) -> i32 + Send + Sync;

/// A backend whose sandboxes hold calls.
struct Holder {
    program: Arc<Program>,
    alive: Arc<AtomicUsize>,
    released: Arc<Mutex<Vec<AttemptPlan>>>,
    /// Whether each attempt was told to hold.
    holding: Arc<Mutex<Vec<bool>>>,
}

impl Backend for Holder {
    fn name(&self) -> &'static str {
        "native"
    }

    fn supports_grant(&self, _: &Grant, _: IsolationLevel) -> bool {
        true
    }

    fn prepare_attempt(
        &self,
        plan: &AttemptPlan,
        _: &StdioMode,
        hold: bool,
        events: AttemptEventSender,
    ) -> Result<Box<dyn Attempt>, StartError> {
        self.alive.fetch_add(1, Ordering::SeqCst);
        self.holding.lock().unwrap().push(hold);
        let state = State { powers: plan.grants.clone(), answers: BTreeMap::new(), over: None };
        let calls = Calls {
            hold,
            events,
            next: Arc::new(AtomicU64::new(1)),
            shared: Arc::new((Mutex::new(state), Condvar::new())),
        };
        Ok(Box::new(Holding {
            plan: plan.clone(),
            program: Arc::clone(&self.program),
            calls,
            alive: Arc::clone(&self.alive),
            released: Arc::clone(&self.released),
            enforced: EnforcementReport { level: plan.level, layers: BTreeMap::new() },
            command: None,
        }))
    }
}

struct Holding {
    plan: AttemptPlan,
    program: Arc<Program>,
    calls: Calls,
    alive: Arc<AtomicUsize>,
    released: Arc<Mutex<Vec<AttemptPlan>>>,
    enforced: EnforcementReport,
    command: Option<JoinHandle<()>>,
}

impl Attempt for Holding {
    fn enforcement_report(&self) -> &EnforcementReport {
        &self.enforced
    }

    fn release_command(&mut self) -> Result<(), StartError> {
        self.released.lock().unwrap().push(self.plan.clone());
        let (program, calls) = (Arc::clone(&self.program), self.calls.clone());
        self.command = Some(std::thread::spawn(move || {
            let code = program(&calls);
            let signal = calls.shared.0.lock().unwrap().over;
            let end = signal.map_or(CommandEnd::Exited(code), CommandEnd::Signaled);
            calls.events.send_event(AttemptEvent::Ended(AttemptEnd::from_command_end(end)));
        }));
        Ok(())
    }

    fn send_signal(&self, _: i32) {}

    fn kill_processes(&self) {
        self.calls.end(9);
    }

    fn answer_call(&self, hold: HoldId, answer: HeldAnswer) {
        let (state, changed) = &*self.calls.shared;
        let mut state = state.lock().unwrap();
        if let HeldAnswer::Granted(grants) = &answer {
            state.powers.extend(grants.iter().cloned());
        }
        assert!(state.answers.insert(hold, answer).is_none(), "answered twice");
        changed.notify_all();
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.calls.end(9);
        if let Some(command) = self.command.take() {
            command.join().unwrap();
        }
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The system calls of the program.
#[derive(Clone)]
pub struct Calls {
    hold: bool,
    events: AttemptEventSender,
    next: Arc<AtomicU64>,
    shared: Arc<(Mutex<State>, Condvar)>,
}

struct State {
    powers: Vec<Grant>,
    answers: BTreeMap<HoldId, HeldAnswer>,
    /// The signal that ended everything.
    over: Option<i32>,
}

fn covers(powers: &[Grant], requested_grant: &Grant) -> bool {
    powers.iter().any(|power| match (power, requested_grant) {
        (Grant::Write(root), Grant::Write(path)) => path.starts_with(root),
        (Grant::Connect(hosts), Grant::Connect(requested_grant)) => hosts.admits_all(requested_grant),
        (power, requested_grant) => power == requested_grant,
    })
}

fn denial(grant: &Grant) -> Denial {
    Denial {
        operation: DeniedOperation::Create,
        object: grant.path().map_or_else(|| grant.to_string().into(), |path| path.into()),
        pid: Some(7),
        program: Some("/usr/bin/pip".into()),
        layer: DenialLayer::Broker,
        rule: "outside every writable root".to_owned(),
        grant: Some(grant.clone()),
        resolution: DenialResolution::Recorded,
        count: 1,
    }
}

impl Calls {
    fn end(&self, signal: i32) {
        self.shared.0.lock().unwrap().over.get_or_insert(signal);
        self.shared.1.notify_all();
    }

    /// Whether the call was let through.
    fn wants(&self, grant: &Grant) -> bool {
        self.wants_for(grant, Duration::from_secs(30)).expect("nobody answered a held call")
    }

    /// The same, by a process that dies after `timeout`: nothing then.
    fn wants_for(&self, grant: &Grant, timeout: Duration) -> Option<bool> {
        let (state, changed) = &*self.shared;
        if covers(&state.lock().unwrap().powers, grant) {
            return Some(true);
        }
        if !self.hold {
            self.events.send_event(AttemptEvent::Denied(denial(grant)));
            return Some(false);
        }
        let id = HoldId(self.next.fetch_add(1, Ordering::SeqCst));
        self.events.send_event(AttemptEvent::Held { id, denial: denial(grant) });
        let waits = |state: &mut State| state.over.is_none() && !state.answers.contains_key(&id);
        let (state, _) = changed.wait_timeout_while(state.lock().unwrap(), timeout, waits).unwrap();
        if state.over.is_some() {
            return Some(false);
        }
        let Some(answer) = state.answers.get(&id) else {
            drop(state);
            self.events.send_event(AttemptEvent::Withdrawn(id));
            return None;
        };
        Some(matches!(answer, HeldAnswer::Granted(_)) && covers(&state.powers, grant))
    }
}

/// A house whose sandboxes hold calls.
struct Hall {
    house: House,
    holding: Arc<Mutex<Vec<bool>>>,
}

impl Hall {
    fn new(scripted: Scripted, program: impl Fn(&Calls) -> i32 + Send + Sync + 'static) -> Self {
        Self::configured("", scripted, program)
    }

    fn configured(
        configuration: &str,
        scripted: Scripted,
        program: impl Fn(&Calls) -> i32 + Send + Sync + 'static,
    ) -> Self {
        let mut house = House::with_configuration(configuration, Fake::default(), scripted);
        let holding = Arc::default();
        house.durable = Arc::default();
        house.engine.backend = Arc::new(Holder {
            program: Arc::new(program),
            alive: house.alive.clone(),
            released: house.released.clone(),
            holding: Arc::clone(&holding),
        });
        Self { house, holding }
    }

    fn answering(answers: &[ApprovalAnswer], program: impl Fn(&Calls) -> i32 + Send + Sync + 'static) -> Self {
        Self::new(Scripted { answers: answers.iter().copied().collect(), ..Scripted::default() }, program)
    }
}

fn write(path: &str) -> Grant {
    Grant::Write(path.into())
}

fn one(calls: &Calls) -> i32 {
    i32::from(!calls.wants(&write("/srv/a")))
}

const ONCE: ApprovalAnswer = ApprovalAnswer::Approved(ApprovalScope::Once);
const NO: ApprovalAnswer = ApprovalAnswer::Denied(ApprovalScope::Once);

#[track_caller]
fn check(mode: ApprovalMode, answer: ApprovalAnswer, expected: &str, resolution: DenialResolution) {
    let hall = Hall::answering(&[answer], one);
    let outcome = hall.house.run(hall.house.request("ls", mode));
    assert_eq!(summarize(&hall.house, &outcome), expected, "{mode:?} {answer:?}: {:?}", outcome.error);
    assert_eq!(outcome.attempts.len(), 1);
    let attempt = &outcome.attempts[0];
    assert_eq!(attempt.denials.len(), 1);
    assert_eq!(attempt.denials[0].resolution, resolution, "{mode:?} {answer:?}");
    let granted = if resolution == DenialResolution::Granted { vec![write("/srv/a")] } else { Vec::new() };
    assert_eq!(attempt.grants, granted);
}

/// Modes x answers: nothing runs twice.
#[test]
fn may_it_go_on() {
    use ApprovalMode::{Granular, Never, OnFailure, OnRequest, Untrusted};
    use DenialResolution::{Granted, Recorded, Refused};
    let files = Granular(GranularMode { run: false, filesystem: true, network: false, other: false });
    for mode in [OnFailure, Untrusted, files] {
        check(mode, ONCE, "exited 0, ran 1, asked [hold]", Granted);
        check(mode, ApprovalAnswer::Approved(ApprovalScope::Always), "exited 0, ran 1, asked [hold]", Granted);
        check(mode, NO, "exited 1, ran 1, asked [hold]", Refused);
        check(mode, ApprovalAnswer::TimedOut, "exited 1, ran 1, asked [hold]", Refused);
        check(mode, ApprovalAnswer::Abort, "aborted 126, ran 1, asked [hold]", Refused);
    }
    let sockets = Granular(GranularMode { run: false, filesystem: false, network: false, other: true });
    for mode in [OnRequest, Never, sockets] {
        check(mode, ONCE, "exited 1, ran 1, asked []", Recorded);
    }
}

/// Asked about in every mode but `never`, and never remembered.
#[test]
fn an_effect_is_asked_about_where_a_run_may_be() {
    use ApprovalMode::{Granular, Never, OnFailure, OnRequest};
    let effect: Grant = "effect publishes by npm".parse().unwrap();
    let runs = |run| Granular(GranularMode { run, filesystem: false, network: false, other: false });
    for (mode, expected) in [
        (OnFailure, "exited 0, ran 1, asked [hold]"),
        (OnRequest, "exited 0, ran 1, asked [hold]"),
        (runs(true), "exited 0, ran 1, asked [hold]"),
        (runs(false), "exited 1, ran 1, asked []"),
        (Never, "exited 1, ran 1, asked []"),
    ] {
        let scripted =
            Scripted { answers: [ApprovalAnswer::Approved(ApprovalScope::Always)].into(), ..Scripted::default() };
        let requested_grant = effect.clone();
        let hall = Hall::new(scripted, move |calls| i32::from(!calls.wants(&requested_grant)));
        let outcome = hall.house.run(hall.house.request("ls", mode));
        assert_eq!(summarize(&hall.house, &outcome), expected, "{mode:?}");
        let scopes: Vec<Option<ApprovalScope>> = outcome.approvals.iter().map(|given| given.scope).collect();
        assert!(scopes.iter().all(|scope| *scope == Some(ApprovalScope::Once)), "{mode:?}: {scopes:?}");
    }
}

#[test]
fn calls_are_held_only_if_an_answer_is_possible() {
    let holding = |mode, absent| {
        let hall = Hall::new(Scripted { absent, ..Scripted::default() }, |_| 0);
        hall.house.run(hall.house.request("ls", mode));
        let holding = hall.holding.lock().unwrap();
        holding.clone()
    };
    assert_eq!(holding(ApprovalMode::OnFailure, false), [true]);
    assert_eq!(holding(ApprovalMode::OnFailure, true), [false]);
    // It asks about effects alone.
    assert_eq!(holding(ApprovalMode::OnRequest, false), [true]);
    assert_eq!(holding(ApprovalMode::OnRequest, true), [false]);
    assert_eq!(holding(ApprovalMode::Never, false), [false]);
}

/// Who may come is not waited for, and is asked once there.
#[test]
fn calls_are_reported_if_an_approver_may_come() {
    let here = Arc::new(AtomicBool::new(false));
    let comes = Arc::clone(&here);
    let scripted = Scripted { absent: true, comes: Some(here), answers: [ONCE].into(), ..Scripted::default() };
    let hall = Hall::new(scripted, move |calls| {
        let alone = calls.wants(&write("/srv/a"));
        comes.store(true, Ordering::SeqCst);
        i32::from(alone || !calls.wants(&write("/srv/b")))
    });
    let outcome = hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
    assert_eq!(summarize(&hall.house, &outcome), "exited 0, ran 1, asked [hold]");
    assert_eq!(outcome.attempts[0].grants, [write("/srv/b")]);
}

#[test]
fn everything_is_recorded_before_the_call_continues() {
    let hall = Hall::answering(&[ONCE], one);
    hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
    let events = hall.house.events();
    let order = ["starting", "started", "held", "asked", "answered", "granted", "exited", "finished"];
    assert_eq!(events[3..], order);
}

/// The same object again and again is one question; what was refused is not
/// asked about again, not even for a further attempt.
#[test]
fn one_object_is_one_question() {
    for grant in ["write /srv/a", "connect a.example:443", "effect overwrites-remote by git"] {
        let grant: Grant = grant.parse().unwrap();
        for (answer, code) in [(ONCE, 0), (NO, 3)] {
            let requested_grant = grant.clone();
            let hall = Hall::answering(&[answer, ONCE, ONCE], move |calls| {
                (0..3).filter(|_| !calls.wants(&requested_grant)).count() as i32
            });
            let outcome = hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
            let expected = format!("exited {code}, ran 1, asked [hold]");
            assert_eq!(summarize(&hall.house, &outcome), expected, "{grant}");
            assert_eq!(outcome.attempts[0].denials.len(), 1, "{grant}");
        }
    }
}

/// Thirty files of one directory, one after the other and all at once: at most
/// three questions, and none is lost.
#[test]
fn many_files_of_a_directory_are_offered_as_one() {
    for at_once in [false, true] {
        let place = Arc::new(Mutex::new(std::path::PathBuf::new()));
        let there = Arc::clone(&place);
        let hall = Hall::answering(&[ONCE; 3], move |calls| {
            let directory = there.lock().unwrap().clone();
            let file = |n: i32| Grant::Write(directory.join(n.to_string()));
            if !at_once {
                return (0..30).filter(|n| !calls.wants(&file(*n))).count() as i32;
            }
            let lost = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for n in 0..30 {
                    let (lost, file) = (&lost, file(n));
                    scope.spawn(move || lost.fetch_add(usize::from(!calls.wants(&file)), Ordering::SeqCst));
                }
            });
            lost.load(Ordering::SeqCst) as i32
        });
        let directory = hall.house.dir.path().join("home/cache");
        place.lock().unwrap().clone_from(&directory);
        let outcome = hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
        assert_eq!(summarize(&hall.house, &outcome), "exited 0, ran 1, asked [hold hold hold]", "at once: {at_once}");
        let asked = hall.house.asked.lock().unwrap();
        let QuestionKind::Hold { grants, directory: true, .. } = &asked[2].kind else { panic!("{:?}", asked[2].kind) };
        assert_eq!(*grants, [Grant::Write(directory.clone())]);
        assert_eq!(outcome.attempts[0].grants.last(), Some(&Grant::Write(directory)));
    }
}

/// What may not be offered: the home directory, around the workspace, around
/// credentials, Stockade's own, protected names.
#[test]
fn some_directories_are_never_offered() {
    let offered = |files: &dyn Fn(&Path) -> Vec<std::path::PathBuf>| {
        let place = Arc::new(Mutex::new(Vec::new()));
        let there = Arc::clone(&place);
        let hall = Hall::answering(&[ONCE; 4], move |calls| {
            let files: Vec<std::path::PathBuf> = there.lock().unwrap().clone();
            files.iter().filter(|path| !calls.wants(&Grant::Write(path.to_path_buf()))).count() as i32
        });
        *place.lock().unwrap() = files(hall.house.dir.path());
        hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
        let asked = hall.house.asked.lock().unwrap();
        asked.iter().any(|question| matches!(question.kind, QuestionKind::Hold { directory: true, .. }))
    };
    let files = |directory: &str| {
        let directory = directory.to_owned();
        move |root: &Path| (0..4).map(|n| root.join(&directory).join(n.to_string())).collect::<Vec<_>>()
    };
    assert!(offered(&files("home/cache")));
    assert!(!offered(&files("home")), "the home directory");
    assert!(!offered(&files("")), "around the workspace");
    assert!(!offered(&files("home/.config")), "around credentials and our own");
    assert!(!offered(&files("state")), "our own");
    assert!(!offered(&files("home/other/.git/hooks")), "a protected name");
    assert!(!offered(&|_| ["/1", "/2", "/3", "/4"].map(Into::into).to_vec()), "the root");
    assert!(!offered(&|root| (0..4).map(|n| root.join(format!("home/d{n}/f"))).collect()), "different directories");
}

/// Programs that want six files of one directory; the exit code is the number of refused files.
fn six(calls: &Calls) -> i32 {
    (0..6).filter(|n| !calls.wants(&write(&format!("/srv/d/{n}")))).count() as i32
}

/// The third question offers the directory, whatever was answered before. A yes to it gives no
/// power over what was refused.
#[test]
fn a_directory_is_offered_after_a_refusal_without_the_refused_path() {
    let hall = Hall::answering(&[ONCE, NO, ApprovalAnswer::Approved(ApprovalScope::Always)], |calls| {
        six(calls) + 10 * i32::from(calls.wants(&write("/srv/d/1")))
    });
    let outcome = hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
    assert_eq!(summarize(&hall.house, &outcome), "exited 1, ran 1, asked [hold hold hold]");
    let written = [0, 2, 3, 4, 5].map(|n| write(&format!("/srv/d/{n}")));
    assert_eq!(outcome.attempts[0].grants.iter().collect::<BTreeSet<_>>(), written.iter().collect());
    {
        let asked = hall.house.asked.lock().unwrap();
        let QuestionKind::Hold { grants, directory: true, .. } = &asked[2].kind else { panic!("{:?}", asked[2].kind) };
        assert_eq!((grants, &asked[2].scopes), (&vec![write("/srv/d")], &vec![ApprovalScope::Once]));
    }

    // What is remembered stands against the directory around it, in every later run.
    let hall = Hall::answering(&[ApprovalAnswer::Denied(ApprovalScope::Always), ONCE, NO, ONCE, ONCE, ONCE], six);
    for _ in 0..2 {
        hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
    }
    let asked = hall.house.asked.lock().unwrap();
    let offered = asked.iter().filter(|q| matches!(q.kind, QuestionKind::Hold { directory: true, .. }));
    assert_eq!((offered.count(), asked.len()), (1, 8));
}

#[test]
fn a_no_to_the_directory_is_a_no_for_all_whatever_was_answered_before() {
    for (answers, refused) in [([NO, NO, NO], 6), ([ONCE, NO, NO], 5), ([NO, ONCE, NO], 5), ([ONCE, ONCE, NO], 4)] {
        let hall = Hall::answering(&answers, six);
        let outcome = hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
        let expected = format!("exited {refused}, ran 1, asked [hold hold hold]");
        assert_eq!(summarize(&hall.house, &outcome), expected, "{answers:?}");
    }
}

#[test]
fn a_no_to_the_directory_is_one_for_its_files() {
    let hall = Hall::answering(&[ONCE, ONCE, ApprovalAnswer::Denied(ApprovalScope::Always), ONCE, ONCE], six);
    let outcome = hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
    assert_eq!(summarize(&hall.house, &outcome), "exited 4, ran 1, asked [hold hold hold]");
    // And in the next run for all of them: never is never.
    let outcome = hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
    assert_eq!(exit_code(&outcome), 6);
    assert_eq!(hall.house.asked(), "hold hold hold");
    assert!(outcome.approvals.iter().all(|approval| approval.by == "cache" && approval.answer == "denied"));
}

/// Hosts of one domain that somebody owns: from the third on the domain is
/// offered. Not one in which something was refused, and no public suffix.
#[test]
fn many_hosts_of_a_domain_are_offered_as_one() {
    let connect = |host: String| format!("connect {host}:443").parse::<Grant>().unwrap();
    let ask_with = |configuration: &str, answers: &[ApprovalAnswer], hosts: [&str; 5]| {
        let hosts = hosts.map(|host| connect(host.to_owned()));
        let scripted = Scripted { answers: answers.iter().copied().collect(), ..Scripted::default() };
        let program = move |calls: &Calls| hosts.iter().filter(|h| !calls.wants(h)).count() as i32;
        let hall = Hall::configured(configuration, scripted, program);
        let outcome = hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
        let offered = |kind: &QuestionKind| match kind {
            QuestionKind::Hold { grants, directory: true, .. } => Some(grants[0].to_string()),
            _ => None,
        };
        let asked = hall.house.asked.lock().unwrap();
        (exit_code(&outcome), asked.len(), asked.iter().find_map(|question| offered(&question.kind)))
    };
    let asked = |answers: &[ApprovalAnswer], hosts| ask_with("", answers, hosts);
    let siblings = ["a.example.com", "b.example.com", "c.example.com", "d.example.com", "e.example.com"];
    assert_eq!(asked(&[ONCE; 3], siblings), (0, 3, Some("connect *.example.com:443".to_owned())));
    assert_eq!(asked(&[ONCE, NO, ONCE, ONCE, ONCE], siblings), (1, 5, None));
    for keeps in ["deny", "ask"] {
        let config_text = format!("[profiles.workspace.egress]\n{keeps} = [\"evil.example.com\"]\n");
        assert_eq!(ask_with(&config_text, &[ONCE; 5], siblings), (0, 5, None), "{keeps}");
    }
    let strangers = ["a.github.io", "b.github.io", "c.github.io", "d.github.io", "e.github.io"];
    assert_eq!(asked(&[ONCE; 5], strangers), (0, 5, None));
    let separate_hosts = ["a.example.com", "b.example.com", "x.example.org", "y.example.org", "example.com"];
    assert_eq!(asked(&[ONCE; 5], separate_hosts), (0, 5, None));
}

/// Beside a host stands its group, with each of its hosts; a no to one of them takes it
/// back, and so does what a list keeps.
#[test]
fn a_group_is_offered_beside_its_host_and_given_as_its_list() {
    const GROUP: ApprovalAnswer = ApprovalAnswer::Group(ApprovalScope::Once);
    let met = |configuration: &str, answers: &[ApprovalAnswer], hosts: &[&str]| {
        let hosts: Vec<Grant> = hosts.iter().map(|host| format!("connect {host}").parse().unwrap()).collect();
        let scripted = Scripted { answers: answers.iter().copied().collect(), ..Scripted::default() };
        let program = move |calls: &Calls| hosts.iter().filter(|h| !calls.wants(h)).count() as i32;
        let hall = Hall::configured(configuration, scripted, program);
        let outcome = hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
        let asked = hall.house.asked.lock().unwrap();
        let names = asked.iter().map(|question| question.group.as_ref().map_or("-", |group| &group.name));
        let given: Vec<String> = outcome
            .approvals
            .iter()
            .filter(|a| a.answer == "approved")
            .flat_map(|a| &a.grants)
            .map(Grant::to_string)
            .collect();
        (exit_code(&outcome), names.collect::<Vec<_>>().join(" "), given.join(", "))
    };
    let npm = ["registry.npmjs.org:443", "registry.yarnpkg.com:443"];
    let all = "connect registry.npmjs.org:443, connect registry.yarnpkg.com:443";
    let summarize = |code: i32, names: &str, given: &str| (code, names.to_owned(), given.to_owned());
    // One answer for both, and nothing beyond the list.
    assert_eq!(met("", &[GROUP], &npm), summarize(0, "npm", all));
    assert_eq!(met("", &[ONCE, ONCE], &npm), summarize(0, "npm npm", all));
    // Its ports stand in the list as the group has them.
    let (code, names, given) = met("", &[GROUP], &["github.com:443", "api.github.com:443"]);
    assert_eq!((code, names.as_str()), (0, "github"));
    assert!(given.starts_with("connect github.com:22,443, "), "{given}");
    // A no to one of them, a list that keeps one of them, and a host of no group.
    assert_eq!(met("", &[NO, ONCE], &npm), summarize(1, "npm -", "connect registry.yarnpkg.com:443"));
    for keeps in ["deny", "ask"] {
        let config_text = format!("[profiles.workspace.egress]\n{keeps} = [\"registry.yarnpkg.com\"]\n");
        assert_eq!(
            met(&config_text, &[ONCE], &npm[..1]),
            summarize(0, "-", "connect registry.npmjs.org:443"),
            "{keeps}"
        );
    }
    // What was not offered cannot be chosen.
    assert_eq!(met("", &[GROUP], &["a.example.com:443"]), summarize(1, "-", ""));
    assert_eq!(met("", &[GROUP], &["registry.npmjs.org:80"]), summarize(1, "-", ""));
}

/// A 100 ms timer in the asker: exactly one question, and it leaves.
#[test]
fn a_dying_asker_takes_its_question_back() {
    let slow = Some(Duration::from_secs(20));
    let scripted = Scripted { slow, answers: [ONCE].into(), ..Scripted::default() };
    let hall =
        Hall::new(scripted, |calls| i32::from(calls.wants_for(&write("/srv/a"), Duration::from_millis(100)).is_some()));
    let begun = Instant::now();
    let outcome = hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(summarize(&hall.house, &outcome), "exited 0, ran 1, asked [hold]");
    assert_eq!(hall.house.withdrawals.load(Ordering::SeqCst), 1);
    assert!(outcome.attempts[0].grants.is_empty() && outcome.approvals.is_empty());
    assert_eq!(outcome.attempts[0].denials[0].resolution, DenialResolution::Recorded);
    assert_eq!(hall.house.events()[5..], ["held", "asked", "withdrawn", "exited", "finished"]);
}

/// While one question stands open another call is answered from the memory.
#[test]
fn one_question_delays_no_other_call() {
    let slow = Some(Duration::from_millis(600));
    let scripted = Scripted { slow, answers: [ONCE, ONCE].into(), ..Scripted::default() };
    let quick = Arc::new(Mutex::new(Duration::MAX));
    let noted = Arc::clone(&quick);
    let hall = Hall::new(scripted, move |calls| {
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| calls.wants(&write("/srv/a")));
            std::thread::sleep(Duration::from_millis(50));
            let begun = Instant::now();
            let remembered = calls.wants(&write("/srv/b"));
            *noted.lock().unwrap() = begun.elapsed();
            i32::from(!(slow.join().unwrap() && remembered))
        })
    });
    let request = hall.house.request("ls", ApprovalMode::OnFailure);
    remember(&hall.house, &write("/srv/b"), ApprovalScope::Times(3));
    let outcome = hall.house.run(request);
    assert_eq!(summarize(&hall.house, &outcome), "exited 0, ran 1, asked [hold]");
    assert!(*quick.lock().unwrap() < Duration::from_millis(300), "{:?}", quick.lock().unwrap());
    assert_eq!(outcome.approvals.iter().filter(|approval| approval.by == "cache").count(), 1);
}

/// Keeps a yes as an earlier request would have.
fn remember(house: &House, grant: &Grant, scope: ApprovalScope) {
    use stockade_engine::core::AnswerMemo;
    use stockade_engine::keys::{GrantContext, QuestionNamespace};
    use stockade_engine::ports::LookupScope;
    let request = house.request("ls", ApprovalMode::OnFailure);
    let context = GrantContext {
        workspace: request.workspace.clone(),
        directory: stockade_backend_api::identity::workspace_identity(request.workspace.as_path()),
        profile: request.profile.clone(),
        level: request.level,
        policy: house.engine.rule_engine.policy_digest(&request),
        user: house.engine.user.clone(),
    };
    let memo = AnswerMemo {
        key: context.approval_key(QuestionNamespace::Grant, grant),
        answer: ApprovalAnswer::Approved(scope),
        subject: grant.to_string(),
        grants: vec![grant.clone()],
        request: request.id.clone(),
        by: "terminal".to_owned(),
    };
    let scope = LookupScope { session: request.session.as_ref(), now_ms: house.engine.clock.wall_ms() };
    house.engine.memory.remember_answer(&memo, scope).unwrap();
}

#[test]
fn scopes_have_their_stated_reach() {
    // For the session: another command has it from the start.
    let hall = Hall::answering(&[ApprovalAnswer::Approved(ApprovalScope::Session)], one);
    hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
    let outcome = hall.house.run(hall.house.request("cat x", ApprovalMode::OnFailure));
    assert_eq!(summarize(&hall.house, &outcome), "exited 0, ran 2, asked [hold]");
    assert_eq!(outcome.attempts[0].grants, [write("/srv/a")]);

    // Twice: the second time it is held and answered at once, by nobody.
    let hall = Hall::answering(&[ApprovalAnswer::Approved(ApprovalScope::Times(2)), NO], one);
    let run = || exit_code(&hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure)));
    assert_eq!((run(), run(), run()), (0, 0, 1));
    assert_eq!(hall.house.asked(), "hold hold");

    // Never: at once, and without a further attempt.
    let hall = Hall::answering(&[ApprovalAnswer::Denied(ApprovalScope::Always), ONCE], one);
    let run = || exit_code(&hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure)));
    assert_eq!((run(), run()), (1, 1));
    assert_eq!(hall.house.asked(), "hold");
}

#[test]
fn remembered_answers_work_without_an_approver() {
    let hall = Hall::new(Scripted { absent: true, ..Scripted::default() }, one);
    let run = || exit_code(&hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure)));
    remember(&hall.house, &write("/srv/a"), ApprovalScope::Times(1));
    assert_eq!((run(), run()), (0, 1));
    assert_eq!(*hall.holding.lock().unwrap(), [true, false]);
}

/// Rules about files and hosts: a deny is final, an allow asks nobody, in any
/// mode.
#[test]
fn rules_answer_held_calls() {
    const RULES: &str = r#"
[[rules]]
files = ["/srv/allowed/**"]
effect = "allow"
justification = "a cache"

[[rules]]
hosts = ["pypi.org:443"]
effect = "allow"
justification = "packages"

[[rules]]
files = ["/srv/allowed/not/**", "/srv/denied/**"]
effect = "deny"
justification = "not there"

[[rules]]
files = ["/srv/partly/**"]
operations = ["create"]
effect = "allow"
justification = "creating alone is less than the power to write"
"#;
    let check = |mode, requested_grant: &str, expected: &str, by_rule: bool| {
        let grant: Grant = requested_grant.parse().unwrap();
        let scripted = Scripted { answers: [ONCE].into(), ..Scripted::default() };
        let hall = Hall::configured(RULES, scripted, move |calls| i32::from(!calls.wants(&grant)));
        let outcome = hall.house.run(hall.house.request("ls", mode));
        assert_eq!(summarize(&hall.house, &outcome), expected, "{mode:?} {requested_grant}");
        let found = outcome.approvals.first().is_some_and(|approval| approval.by.starts_with("rule "));
        assert_eq!(found, by_rule, "{:?}", outcome.approvals);
    };
    use ApprovalMode::{Never, OnFailure, OnRequest};
    for mode in [OnFailure, OnRequest, Never] {
        check(mode, "write /srv/allowed/a", "exited 0, ran 1, asked []", true);
        check(mode, "connect pypi.org:443", "exited 0, ran 1, asked []", true);
        check(mode, "write /srv/denied/a", "exited 1, ran 1, asked []", true);
        check(mode, "write /srv/allowed/not/a", "exited 1, ran 1, asked []", true);
    }
    check(OnFailure, "write /srv/partly/a", "exited 0, ran 1, asked [hold]", false);
    check(OnFailure, "write /srv/other/a", "exited 0, ran 1, asked [hold]", false);
    check(OnFailure, "connect pypi.org:80", "exited 0, ran 1, asked [hold]", false);
    check(Never, "write /srv/other/a", "exited 1, ran 1, asked []", false);
}

/// What rules refuse and ask about stands in the lists of every plan, against what
/// a profile allows and a request was granted.
#[test]
fn rules_about_hosts_are_in_the_plan() {
    const RULES: &str = r#"
[profiles.workspace.egress]
allow = ["@pypi", "**.example.com"]

[[rules]]
hosts = ["evil.example.com"]
effect = "deny"
justification = "never there"

[[rules]]
hosts = ["*.example.com:22"]
effect = "ask"
justification = "look first"
"#;
    let hall = Hall::configured(RULES, Scripted::default(), |calls| {
        for object in ["evil.example.com:443", "other.org:443"] {
            let refused = denial(&write("/x"));
            let (operation, object) = (DeniedOperation::Connect, object.into());
            calls.events.send_event(AttemptEvent::Denied(Denial { operation, object, grant: None, ..refused }));
        }
        0
    });
    let mut request = hall.house.request("ls", ApprovalMode::OnFailure);
    request.grants =
        ["evil.example.com", "a.example.com:22"].map(|host| format!("connect {host}").parse().unwrap()).into();
    let outcome = hall.house.run(request);
    // What was refused by a rule says so.
    let named = |denial: &Denial| denial.rule.contains("rule deny") && denial.rule.contains("never there");
    let named: Vec<bool> = outcome.attempts[0].denials.iter().map(named).collect();
    assert_eq!(named, [true, false], "{outcome:?}");
    let plans = hall.house.released.lock().unwrap();
    let says = |target: &str| {
        let found = plans[0].profile.egress.listed_with(&plans[0].grants, &target.parse().unwrap());
        format!("{found:?}").split('(').next().unwrap().to_owned()
    };
    for (target, expected) in [
        ("pypi.org:443", "Allowed"),
        ("x.y.example.com:80", "Allowed"),
        ("evil.example.com:443", "Denied"),
        ("a.example.com:22", "Granted"),
        ("b.example.com:22", "Not"),
        ("other.org:443", "Not"),
    ] {
        assert_eq!(says(target), expected, "{target}");
    }
}

/// A power given in place stands in every later attempt of the request.
#[test]
fn a_further_attempt_keeps_the_granted_powers() {
    let hall = Hall::answering(&[ONCE, ONCE], |calls| {
        let held = calls.wants(&write("/srv/a"));
        let hidden = Grant::Read("/srv/hidden".into());
        let seen = covers(&calls.shared.0.lock().unwrap().powers, &hidden);
        if !seen {
            // What cannot be held is refused and told.
            calls.events.send_event(AttemptEvent::Denied(denial(&hidden)));
        }
        i32::from(!(held && seen))
    });
    let outcome = hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
    assert_eq!(summarize(&hall.house, &outcome), "exited 0, ran 2, asked [hold escalate]");
    let mut grants = vec![Grant::Read("/srv/hidden".into()), write("/srv/a")];
    grants.sort();
    assert_eq!(outcome.attempts[1].grants, grants);
    let resolutions: Vec<_> = outcome.attempts[0].denials.iter().map(|denial| denial.resolution).collect();
    assert_eq!(resolutions, [DenialResolution::Granted, DenialResolution::Granted]);
}

#[test]
fn an_interrupt_is_immediate() {
    let scripted = Scripted { slow: Some(Duration::from_secs(20)), ..Scripted::default() };
    let hall = Hall::new(scripted, one);
    let (interrupter, interrupts) = interrupt_channel();
    let asked = hall.house.asked.clone();
    let person = std::thread::spawn(move || {
        wait_until(|| !asked.lock().unwrap().is_empty());
        assert!(interrupter.send_interrupt(2));
    });
    let begun = Instant::now();
    let request = hall.house.request("ls", ApprovalMode::OnFailure);
    let outcome = hall.house.engine.run_request(request, StdioMode::Inherit, interrupts);
    person.join().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));
    // The call failed, so that the command could clean up and end.
    assert_eq!((outcome.status, outcome.exit_code), (FinalStatus::Exited, Some(1)));
    assert_eq!(hall.house.withdrawals.load(Ordering::SeqCst), 1);
    assert_eq!(hall.house.alive.load(Ordering::SeqCst), 0);
}

/// What a person needs to answer is not the command's time.
#[test]
fn thinking_takes_none_of_the_time_of_a_command() {
    let scripted = Scripted { slow: Some(Duration::from_millis(1_500)), answers: [ONCE].into(), ..Scripted::default() };
    let hall = Hall::new(scripted, one);
    let mut request = hall.house.request("ls", ApprovalMode::OnFailure);
    request.timeout_ms = Some(1_000);
    let outcome = hall.house.run(request);
    assert_eq!(summarize(&hall.house, &outcome), "exited 0, ran 1, asked [hold]");
    assert!(outcome.approvals[0].waited_ms > 1_000, "{:?}", outcome.approvals);
}

/// Where nobody answers, the next question does not stop the clock.
#[test]
fn unanswered_questions_buy_no_time() {
    let scripted = Scripted { slow: Some(Duration::from_secs(60)), ..Scripted::default() };
    let mut hall = Hall::new(scripted, |calls| {
        (0..).find(|n| !calls.wants(&Grant::Socket(format!("/run/{n}").into())) && *n > 0).map_or(0, |_| one(calls))
    });
    hall.house.engine.question_timeout_ms = 50;
    let mut request = hall.house.request("ls", ApprovalMode::OnFailure);
    request.timeout_ms = Some(500);
    let outcome = hall.house.run(request);
    assert_eq!((outcome.status, exit_code(&outcome)), (FinalStatus::TimedOut, 124));
    assert_eq!(outcome.approvals.len(), 1, "{:?}", outcome.approvals);
    assert!(outcome.attempts[0].grants.is_empty());
}

/// An approver that does not answer is no, in place; one that does not leave is
/// passed over.
#[test]
fn silence_is_no_in_place() {
    for hangs in [false, true] {
        let slow = Some(Duration::from_secs(8));
        let scripted = Scripted { slow, hangs, answers: [ONCE].into(), ..Scripted::default() };
        let mut hall = Hall::new(scripted, one);
        hall.house.engine.question_timeout_ms = 50;
        let begun = Instant::now();
        let outcome = hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
        assert_eq!(summarize(&hall.house, &outcome), "exited 1, ran 1, asked [hold]");
        assert_eq!(outcome.attempts[0].denials[0].resolution, DenialResolution::Refused);
        assert_eq!((outcome.approvals[0].answer.as_str(), outcome.approvals[0].by.as_str()), ("timed-out", "nobody"));
        assert!(begun.elapsed() < Duration::from_secs(6));
    }
}

/// L6: where the yes cannot be written nothing is granted.
#[test]
fn a_record_that_fails_grants_nothing() {
    let mut ended = Vec::new();
    for batches in 3..12 {
        let passed = Arc::new(AtomicUsize::new(0));
        let noted = Arc::clone(&passed);
        let mut hall = Hall::answering(&[ONCE], move |calls| {
            noted.store(usize::from(calls.wants(&write("/srv/a"))), Ordering::SeqCst);
            0
        });
        let inner = AuditLogWriter::open(&hall.house.dir.path().join("state/other")).unwrap();
        let batches_left = AtomicUsize::new(batches);
        hall.house.engine.recorder = Arc::new(Failing { inner, batches_left, commits_fail: false });
        let outcome = hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
        let text = std::fs::read_to_string(hall.house.dir.path().join("state/other/audit.jsonl")).unwrap();
        let recorded = text.contains("\"granted\"") && text.contains("\"answered\"");
        let passed = passed.load(Ordering::SeqCst) == 1;
        assert!(!passed || recorded, "{batches}: granted and not recorded");
        assert_eq!(outcome.status == FinalStatus::Exited, outcome.error.is_none(), "{batches}");
        ended.push((outcome.status, passed));
    }
    assert!(ended.contains(&(FinalStatus::Error, false)) && ended.contains(&(FinalStatus::Exited, true)), "{ended:?}");
}

/// Askers that come and go, thousands of them: the questions are bounded.
#[test]
fn a_flood_of_askers_is_bounded() {
    let scripted = Scripted { slow: Some(Duration::from_secs(60)), ..Scripted::default() };
    let hall = Hall::new(scripted, |calls| {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || {
                    for n in 0..400 {
                        let socket = Grant::Socket(format!("/run/{thread}/{n}").into());
                        calls.wants_for(&socket, Duration::from_millis(1));
                    }
                });
            }
        });
        0
    });
    let outcome = hall.house.run(hall.house.request("ls", ApprovalMode::OnFailure));
    assert_eq!(outcome.status, FinalStatus::Exited);
    let events = hall.house.events();
    let asked = events.iter().filter(|kind| *kind == "asked").count();
    assert!(asked <= 1_000, "{asked} questions");
    assert!(events.iter().any(|kind| kind == "failed"), "that more were refused was not said");
    assert!(hall.house.asked.lock().unwrap().len() <= asked);
}
