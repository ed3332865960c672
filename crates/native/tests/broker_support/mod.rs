//! A workspace with something in it, something outside it, and a program that
//! makes calls in both. Used by the tests of the broker.
#![allow(dead_code, clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

pub mod cases;

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use stockade_backend_api::{AttemptEvent, HeldAnswer, HoldId};
use stockade_launch::{Blueprint, CommandStdio, ProcessExit, launch_sandbox};
use stockade_model::{AttemptPlan, Denial, IsolationLevel, RawText};
use stockade_native::broker::{AnswerSender, Broker, BrokerReport};
use stockade_permissions::powers::AttemptPermissions;
use stockade_testkit::copy_program;

use crate::support::{self, TIMEOUT, pipe};
use cases::Case;

/// Where scenes are made: not under a directory that the sandbox replaces.
const BASE: &str = "/opt/stockade-broker-tests";
/// A run with many late answers.
const HOLDING_TIMEOUT: Duration = Duration::from_secs(300);
/// Tells the probe where the scene is, and which part to play.
pub const SCENE: &str = "STOCKADE_PROBE_SCENE";
pub const PART: &str = "STOCKADE_PROBE_PART";

/// What the probe said, by case.
pub type Lines = BTreeMap<String, String>;
/// A tree, by relative path.
pub type Snapshot = BTreeMap<PathBuf, String>;

/// Runs `body` as root and as an ordinary user.
pub fn in_each_role(test: &str, body: impl FnOnce()) {
    if rustix::process::geteuid().is_root() {
        fs::create_dir_all(BASE).unwrap();
        fs::set_permissions(BASE, Permissions::from_mode(0o1777)).unwrap();
    }
    support::in_each_role(test, body);
}

/// A workspace and what is outside it.
pub struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    /// With everything the cases need.
    pub fn new(name: &str) -> Self {
        Self::with(name, Case::all().map(|c| c.name).chain(["race"]))
    }

    /// With what some cases need.
    pub fn with<'c>(name: &str, cases: impl IntoIterator<Item = &'c str>) -> Self {
        let scene = Self::bare(name);
        for case in cases {
            furnish(&scene.directory(case), &scene.outside().join(case));
        }
        // The probe, where the sandbox can read it.
        copy_program(&std::env::current_exe().unwrap(), &scene.directory.path().join("probe")).unwrap();
        scene
    }

    /// With an empty workspace and nothing outside.
    pub fn bare(name: &str) -> Self {
        let base = if Path::new(BASE).is_dir() || rustix::process::geteuid().is_root() {
            fs::create_dir_all(BASE).unwrap();
            PathBuf::from(BASE)
        } else {
            PathBuf::from(std::env::var_os("HOME").unwrap())
        };
        let directory = tempfile::Builder::new().prefix(name).tempdir_in(base).unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        for part in ["ws", "out"] {
            fs::create_dir(directory.path().join(part)).unwrap();
        }
        Self { directory }
    }

    /// What a case finds in its directory.
    pub fn fixture() -> Snapshot {
        let scratch = tempfile::tempdir().unwrap();
        furnish(&scratch.path().join("w"), &scratch.path().join("o"));
        let closed = scratch.path().join("o/closed");
        fs::set_permissions(closed, Permissions::from_mode(0o755)).unwrap();
        snapshot(&scratch.path().join("w"))
    }

    pub fn workspace(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join("ws")
    }

    pub fn outside(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join("out")
    }

    pub fn directory(&self, case: &str) -> PathBuf {
        self.workspace().join(case)
    }

    /// `o/x` is outside, anything else in the workspace.
    pub fn expand(&self, case: &str, object: &str) -> PathBuf {
        match object.strip_prefix("o/") {
            Some("") => self.outside().join(case),
            Some(rest) => self.outside().join(case).join(rest),
            None => self.directory(case).join(object),
        }
    }

    pub fn probe_natively(&self) -> Lines {
        self.probe_natively_as("all")
    }

    pub fn probe_natively_as(&self, part: &str) -> Lines {
        let output = Command::new(self.directory.path().join("probe"))
            .args(["--exact", "probe", "--nocapture"])
            .env(SCENE, self.directory.path())
            .env(PART, part)
            .current_dir(self.workspace())
            .output()
            .unwrap();
        lines(&String::from_utf8_lossy(&output.stdout))
    }

    pub fn plan(&self, level: IsolationLevel, part: &str) -> AttemptPlan {
        let probe = self.directory.path().join("probe");
        let argv = [probe.to_str().unwrap(), "--exact", "probe", "--nocapture"];
        let mut plan = support::plan(level, &self.workspace(), &argv);
        plan.environment.insert(SCENE.to_owned(), RawText::from(self.directory.path()));
        plan.environment.insert(PART.to_owned(), RawText::from(part));
        plan
    }

    /// A plan whose workspace is elsewhere: nothing of the scene may be written
    /// unless somebody says yes.
    pub fn plan_elsewhere(&self, level: IsolationLevel, part: &str) -> AttemptPlan {
        let elsewhere = self.directory.path().join("elsewhere");
        fs::create_dir_all(&elsewhere).unwrap();
        let mut plan = self.plan(level, part);
        let elsewhere = RawText::from(elsewhere.canonicalize().unwrap());
        (plan.workspace, plan.cwd) = (elsewhere.clone(), elsewhere.clone());
        plan.profile.filesystem.write = vec![elsewhere];
        plan
    }

    pub fn lines_of(&self, ran: &Brokered) -> Lines {
        assert_eq!(ran.ended, ProcessExit::Exited(0), "{}\n{}", ran.stdout, ran.stderr);
        lines(&ran.stdout)
    }

    pub fn probe_inside(&self, level: IsolationLevel) -> (Lines, BrokerReport) {
        let ran = run_brokered(&self.plan(level, "all"));
        assert_eq!(ran.ended, ProcessExit::Exited(0), "{}\n{}", ran.stdout, ran.stderr);
        (lines(&ran.stdout), ran.report)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for case in Case::all().map(|c| c.name).chain(["race"]) {
            let _ = fs::set_permissions(self.outside().join(case).join("closed"), Permissions::from_mode(0o755));
        }
    }
}

fn lines(text: &str) -> Lines {
    let line = |l: &str| l.split_once("= ").map(|(a, b)| (a.trim_end().to_owned(), b.to_owned()));
    text.lines().filter_map(|l| line(l.strip_prefix("case ").or(l.strip_prefix("cost "))?)).collect()
}

/// What every case finds in its directory and outside.
fn furnish(inside: &Path, outside: &Path) {
    for directory in
        [&inside.join("d"), &inside.join("full/x"), &inside.join(".git/hooks"), &inside.join("conf/git"), outside]
    {
        fs::create_dir_all(directory).unwrap();
    }
    let write = |path: &Path, text: &str| {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
    };
    write(&inside.join("f"), "old content");
    write(&inside.join("g"), "other");
    write(&inside.join(".git/config"), "[core]\n");
    write(&inside.join(".git/hooks/kept"), "");
    write(&inside.join(".git/HEAD"), "ref: refs/heads/main\n");
    write(&inside.join("conf/git/config"), "");
    write(&inside.join("readonly"), "keep");
    fs::set_permissions(inside.join("readonly"), Permissions::from_mode(0o444)).unwrap();
    write(&outside.join("f"), "outside");
    fs::create_dir(outside.join("empty")).unwrap();
    fs::create_dir(outside.join("closed")).unwrap();
    write(&outside.join("closed/f"), "closed");
    fs::set_permissions(outside.join("closed/f"), Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(outside.join("closed"), Permissions::from_mode(0o555)).unwrap();
    symlink("f", inside.join("l")).unwrap();
    symlink("made", inside.join("dangling")).unwrap();
    symlink("d", inside.join("ld")).unwrap();
    symlink("loop", inside.join("loop")).unwrap();
    symlink(inside.join("d"), inside.join("absolute")).unwrap();
    symlink(outside.join("f"), inside.join("lo")).unwrap();
    symlink(outside, inside.join("lod")).unwrap();
    symlink(inside, outside.join("back")).unwrap();
}

/// Type, mode, links and content of everything beneath a directory.
pub fn snapshot(root: &Path) -> Snapshot {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(at) = todo.pop() {
        let meta = fs::symlink_metadata(&at).unwrap();
        let content = if meta.is_symlink() {
            // Where it leads differs from scene to scene.
            "link".to_owned()
        } else if meta.is_file() {
            format!("{:o} {} {:?}", meta.mode(), meta.nlink(), String::from_utf8_lossy(&fs::read(&at).unwrap()))
        } else {
            format!("{:o}", meta.mode())
        };
        found.insert(at.strip_prefix(root).unwrap().to_owned(), content);
        if meta.is_dir() {
            todo.extend(fs::read_dir(&at).unwrap().map(|e| e.unwrap().path()));
        }
    }
    found
}

/// A question that was put while a call was held.
#[derive(Clone, Debug)]
pub struct Question {
    pub id: HoldId,
    pub denial: Denial,
}

/// What a run does about its questions, on a thread of its own.
pub type React = Box<dyn FnMut(&Question, &AnswerSender) + Send>;

/// Says yes to exactly what is asked for.
pub fn yes() -> React {
    Box::new(|question, answers| {
        answers.answer_held_call(question.id, HeldAnswer::Granted(question.denial.grant.iter().cloned().collect()));
    })
}

/// Says no.
pub fn no() -> React {
    Box::new(|question, answers| answers.answer_held_call(question.id, HeldAnswer::Refused))
}

/// A run with the broker.
pub struct Brokered {
    pub ended: ProcessExit,
    pub stdout: String,
    pub stderr: String,
    pub report: BrokerReport,
    pub programs: Vec<String>,
    pub questions: Vec<Question>,
    pub withdrawn: Vec<HoldId>,
    /// Questions (`+`) and their withdrawals (`-`), in order.
    pub log: Vec<String>,
}

impl Brokered {
    /// The questions as text: operation, object, grant.
    pub fn asked(&self) -> Vec<String> {
        let grant = |d: &Denial| d.grant.as_ref().map_or("-".to_owned(), ToString::to_string);
        let shown = |q: &Question| format!("{:?} {} [{}]", q.denial.operation, q.denial.object, grant(&q.denial));
        self.questions.iter().map(shown).collect()
    }

    /// The denials as text: operation, object, grant.
    pub fn denied(&self) -> Vec<String> {
        let grant = |d: &Denial| d.grant.as_ref().map_or("-".to_owned(), ToString::to_string);
        self.report.denials.iter().map(|d| format!("{:?} {} [{}]", d.operation, d.object, grant(d))).collect()
    }
}

/// Runs a plan under the broker to its end.
#[track_caller]
pub fn run_brokered(plan: &AttemptPlan) -> Brokered {
    run(plan, None)
}

/// The same where calls are held.
#[track_caller]
pub fn run_holding(plan: &AttemptPlan, react: React) -> Brokered {
    run(plan, Some(react))
}

#[track_caller]
fn run(plan: &AttemptPlan, react: Option<React>) -> Brokered {
    let (stdout, stdout_inside) = pipe();
    let (stderr, stderr_inside) = pipe();
    let stdin = File::open("/dev/null").unwrap();
    let stdio = CommandStdio { stdin: stdin.as_fd(), stdout: stdout_inside.as_fd(), stderr: stderr_inside.as_fd() };
    let mut launched = launch_sandbox(Blueprint::prepare(plan).unwrap(), stdio).unwrap();
    drop((stdout_inside, stderr_inside));
    let readers = [stdout, stderr].map(|mut file| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    });
    let mut powers = AttemptPermissions::new(plan, launched.private_trees().iter().map(|t| &t.path));
    if plan.level == IsolationLevel::Full {
        powers.unattached.extend(launched.missing_paths());
    }
    let hold = react.is_some();
    assert!(launched.wait_killable() || !hold, "the kernel holds nothing for long");
    let (sender, events) = channel();
    let sink = move |event| drop(sender.send(event));
    let broker = Broker::start(launched.take_listener().unwrap(), powers, plan.level, hold, sink).unwrap();
    let answers = broker.answer_sender();
    let answering = thread::spawn(move || {
        let mut react = react.unwrap_or_else(no);
        let (mut programs, mut questions, mut withdrawn) = (Vec::new(), Vec::new(), Vec::new());
        let mut log = Vec::new();
        for event in events {
            match event {
                AttemptEvent::Executed { program, .. } => programs.push(program.to_escaped()),
                AttemptEvent::Denied(_) => {}
                AttemptEvent::Held { id, denial } => {
                    log.push(format!("+{}", id.0));
                    let question = Question { id, denial };
                    react(&question, &answers);
                    questions.push(question);
                }
                AttemptEvent::Withdrawn(id) => {
                    log.push(format!("-{}", id.0));
                    withdrawn.push(id);
                }
                other => panic!("no event of a broker: {other:?}"),
            }
        }
        (programs, questions, withdrawn, log)
    });
    launched.release_command().unwrap();
    let exit = launched.wait_for_end(HOLDING_TIMEOUT).unwrap().expect("it ends");
    let [stdout, stderr] = readers.map(|r| r.join().unwrap());
    let report = broker.stop(TIMEOUT).expect("the broker ends");
    let (programs, questions, withdrawn, log) = answering.join().unwrap();
    Brokered { ended: exit.status, stdout, stderr, report, programs, questions, withdrawn, log }
}

/// The side that makes the calls.
pub fn probe() {
    let Some(scene) = std::env::var_os(SCENE).map(PathBuf::from) else { return };
    match std::env::var(PART).as_deref() {
        Ok("all") => {
            for case in Case::all() {
                play(&scene, case);
                rustix::process::umask(rustix::fs::Mode::from_bits_retain(0o022));
            }
        }
        Ok("apart") => {
            for case in Case::all() {
                play_in_process(&scene, case.name);
            }
        }
        Ok(part) if part.starts_with("apart:") => {
            part["apart:".len()..].split(',').for_each(|name| play_in_process(&scene, name));
        }
        Ok(part) if part.starts_with("case:") => play(&scene, Case::all().find(|c| c.name == &part[5..]).unwrap()),
        Ok("threads") => cases::threads(&scene),
        Ok("race") => cases::race(&scene),
        Ok("cost") => cases::cost(&scene),
        _ => {}
    }
}

fn play(scene: &Path, case: &Case) {
    let workspace = scene.join("ws").canonicalize().unwrap().join(case.name);
    std::env::set_current_dir(&workspace).unwrap();
    let result = (case.call)(&scene.join("out").join(case.name));
    println!("\ncase {} = {}", case.name, result.unwrap_or_else(|errno| errno));
}

/// Makes the call of a case in a process of its own.
fn play_in_process(scene: &Path, name: &str) {
    let status = Command::new(scene.join("probe"))
        .args(["--exact", "probe", "--nocapture"])
        .env(PART, format!("case:{name}"))
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    if !status.success() {
        println!("\ncase {name} = died");
    }
}
