//! A call that lacks a power waits for the answer, however late it comes, and
//! then goes on: the program never failed, and nothing ran twice.

use std::fs;
use std::path::Path;
use std::process::Command as Process;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Uid};
use serde_json::Value;
use stockade_testkit::{ProgramEnd, TestCommand};

use crate::terminal::Terminal;
use crate::toolchain::{toolchain, with_toolchain};
use crate::world::{World, binary, each_user};

/// How late the first answer comes.
const LATE: Duration = Duration::from_secs(30);
/// Longest a program may take after its last answer.
const TIMEOUT: Duration = Duration::from_secs(240);

/// What became of a program whose every question got a yes.
struct RunReport {
    code: i32,
    text: String,
    questions: usize,
    outcome: Value,
}

/// Runs `script` at a terminal and says yes to every question, to the first one
/// late.
fn agreed(world: &World, script: &str, prepare: impl Fn(TestCommand) -> TestCommand) -> RunReport {
    let workspace = world.workspace().display().to_string();
    let report = world.home().join("outcome.json").display().to_string();
    let program = binary();
    let json = format!("--json={report}");
    let argv = [program.as_str(), "run", "--workspace", &workspace, &json, "--", "sh", "-c", script];
    let command = prepare(world.bare(&argv));
    let behind = command.argv[0] != program.as_str();
    let start = if behind { Terminal::start_as_harness } else { Terminal::start };
    let mut terminal = start(world, &command);
    let mut questions = 0;
    while terminal.sees_before_its_end("allow?", TIMEOUT) {
        if questions == 0 {
            thread::sleep(LATE);
        }
        terminal.press("o");
        questions += 1;
        assert!(questions < 40, "it asks without end:\n{}", terminal.text);
    }
    let (code, text) = terminal.finish();
    let outcome = fs::read_to_string(&report).unwrap_or_else(|error| panic!("no outcome: {error}\n{text}"));
    let outcome = serde_json::from_str(&outcome).unwrap();
    RunReport { code, text, questions, outcome }
}

/// It ended well, in one attempt, was asked `1..=most` times, and `once` holds
/// one line: what every execution adds.
#[track_caller]
fn check(result: &RunReport, most: usize, once: &Path) {
    assert_eq!(result.code, 0, "{}", result.text);
    assert!((1..=most).contains(&result.questions), "{} questions:\n{}", result.questions, result.text);
    assert_eq!(result.outcome["attempts"].as_array().unwrap().len(), 1, "it ran again:\n{}", result.text);
    let waited = result.outcome["approvals"][0]["waited_ms"].as_u64().unwrap();
    assert!(waited >= LATE.as_millis() as u64, "the first answer came after {waited} ms");
    assert_eq!(
        fs::read_to_string(once).unwrap().lines().count(),
        1,
        "executed more or less than once:\n{}",
        result.text
    );
}

/// Everything beneath `path` belongs to the user of `world`.
fn give(world: &World, path: &Path) {
    let (user, group) = (Uid::from_raw(world.account.uid), Gid::from_raw(world.account.gid));
    rustix::fs::chown(path, Some(user), Some(group)).unwrap();
    for entry in path.read_dir().into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            give(world, &entry.path());
        } else {
            rustix::fs::chownat(
                rustix::fs::CWD,
                entry.path(),
                Some(user),
                Some(group),
                rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
            )
            .unwrap();
        }
    }
}

/// `pip install` of a package of many files, to a directory outside.
fn pip(user: stockade_testkit::TestUser) {
    let world = &World::new(user);
    world.dir("ws/pkg/things");
    world.file("ws/pkg/pyproject.toml", include_str!("programs/package.toml"));
    for n in 0..20 {
        world.file(&format!("ws/pkg/things/part{n}.py"), "x = 1\n");
    }
    world.file("ws/pkg/things/__init__.py", "");
    world.file("ws/pkg/backend.py", include_str!("programs/build_backend.py"));
    let made = world.run(&world.bare(&["/usr/bin/python3", "-m", "venv", "v"]));
    assert_eq!(made.ended, ProgramEnd::Code(0), "{}", made.combined_text());
    let script = "v/bin/pip install -q --no-index --no-build-isolation --no-cache-dir --target ~/lib ./pkg";
    let result = agreed(world, script, |command| command);
    check(&result, 4, &world.workspace().join("built"));
    for n in 0..20 {
        assert!(world.home().join(format!("lib/things/part{n}.py")).exists(), "part {n} was lost:\n{}", result.text);
    }
}

/// A setting that carries code, and a commit, which needs nobody.
fn git(user: stockade_testkit::TestUser) {
    let world = &World::new(user);
    let script = "git init -q repo && cd repo && git config user.name a && git config user.email a@b && \
                  echo x > file && git add file";
    let made = world.run(&world.bare(&["sh", "-c", script]));
    assert_eq!(made.ended, ProgramEnd::Code(0), "{}", made.combined_text());
    let edit = "GIT_EDITOR='sh -c \"echo edited >> ../edits; echo words > $1\" --' git commit -q";
    let result = agreed(world, &format!("cd repo && git config core.pager ./shown && {edit}"), |command| command);
    check(&result, 2, &world.workspace().join("edits"));
    let pager = world.run(&world.bare(&["git", "-C", "repo", "config", "core.pager"]));
    assert_eq!(pager.stdout, "./shown\n", "{}", result.text);
    let log = world.run(&world.bare(&["git", "-C", "repo", "log", "--format=%s"]));
    assert_eq!(log.stdout, "words\n", "{}", result.text);
}

/// `cargo run` of what needs a crate that the cache holds but has not
/// unpacked.
fn cargo(user: stockade_testkit::TestUser) {
    let world = &World::new(user);
    let toolchain = toolchain();
    world.dir("ws/app");
    world.dir("ws/app/src");
    world.file("ws/app/Cargo.toml", include_str!("programs/app.toml"));
    world.file("ws/app/src/main.rs", "fn main() { println!(\"{}\", itoa::Buffer::new().format(7)); }\n");
    world.file("ws/app/build.rs", include_str!("programs/app_build.rs"));
    // A cache of the user's own: the index and the packed crates, nothing more.
    let cache = world.dir("home/cache");
    for part in ["index", "cache"] {
        let from = Path::new(&toolchain.cargo_home).join("registry").join(part);
        let to = cache.join("registry");
        fs::create_dir_all(&to).unwrap();
        assert!(Process::new("cp").arg("-r").arg(from).arg(to).status().unwrap().success());
    }
    give(world, &cache);
    let prepare = |command| with_toolchain(command, &toolchain, world).env("CARGO_HOME", &cache);
    let result = agreed(world, "cd app && cargo run --offline -q", prepare);
    check(&result, 8, &world.workspace().join("built"));
    assert!(result.text.lines().any(|line| line.trim() == "7"), "{}", result.text);
}

/// `npm install`, whose cache and logs lie in the home directory, where nothing is a layer.
fn npm(user: stockade_testkit::TestUser) {
    let world = &World::new(user);
    world.dir("ws/dep");
    world.file("ws/dep/package.json", include_str!("programs/dependency.json"));
    world.dir("ws/app");
    world.file("ws/app/package.json", "{ \"name\": \"app\", \"version\": \"1.0.0\" }\n");
    let packed = world.run(&world.bare(&["sh", "-c", "cd dep && npm pack --silent --cache ../packing"]));
    assert_eq!(packed.ended, ProgramEnd::Code(0), "{}", packed.combined_text());
    let script = "cd app && npm install --offline --no-audit --no-fund --cache ~/packages ../dep/dep-1.0.0.tgz";
    let result = agreed(world, script, |command| command);
    check(&result, 8, &world.workspace().join("installed"));
    assert!(world.workspace().join("app/node_modules/dep/package.json").exists(), "{}", result.text);
}

#[test]
fn late_answers_do_no_harm() {
    let works: [fn(stockade_testkit::TestUser); 4] = [pip, git, cargo, npm];
    thread::scope(|scope| {
        for user in stockade_testkit::TestUser::available_users() {
            for work in works {
                scope.spawn(move || work(user));
            }
        }
    });
}

/// While one question stands, the others work on.
#[test]
fn a_question_blocks_no_other_process() {
    each_user(|world| {
        let script = "echo x > ~/asked & for n in $(seq 300); do echo $n > f$n; done; echo written; wait; cat ~/asked";
        let workspace = world.workspace().display().to_string();
        let program = binary();
        let command = world.bare(&[program.as_str(), "run", "--workspace", &workspace, "--", "sh", "-c", script]);
        let mut terminal = Terminal::start(world, &command);
        terminal.expect("allow?");
        let deadline = Instant::now() + Duration::from_secs(20);
        while fs::read_dir(world.workspace()).unwrap().count() < 300 {
            assert!(Instant::now() < deadline, "the others were held too:\n{}", terminal.text);
            thread::sleep(Duration::from_millis(10));
        }
        terminal.press("o");
        let (code, text) = terminal.finish();
        assert_eq!(code, 0, "{text}");
        assert_eq!(fs::read_to_string(world.home().join("asked")).unwrap(), "x\n");
    });
}

/// What a person needs to answer is not the command's time.
#[test]
fn thinking_takes_none_of_the_time_of_a_command() {
    each_user(|world| {
        let workspace = world.workspace().display().to_string();
        let program = binary();
        let script = "echo x > ~/asked";
        let argv = [program.as_str(), "run", "--workspace", &workspace, "--timeout", "3s", "--", "sh", "-c", script];
        let mut terminal = Terminal::start(world, &world.bare(&argv));
        terminal.expect("allow?");
        thread::sleep(Duration::from_secs(5));
        terminal.press("o");
        let (code, text) = terminal.finish();
        assert_eq!(code, 0, "{text}");
        assert_eq!(fs::read_to_string(world.home().join("asked")).unwrap(), "x\n");
    });
}

/// Each question is answered with yes once; gives what the terminal showed.
fn passes_with_few_questions(world: &World, command: &TestCommand) -> String {
    let mut terminal = Terminal::start(world, command);
    let mut questions = 0;
    while terminal.sees_before_its_end("allow?", TIMEOUT) {
        terminal.press("o");
        questions += 1;
    }
    let (code, text) = terminal.finish();
    assert_eq!(code, 0, "{text}");
    assert!((1..=3).contains(&questions), "{questions} questions:\n{text}");
    text
}

/// Thirty files in a directory are three questions at most, and none is lost.
#[test]
fn many_files_are_few_questions() {
    each_user(|world| {
        let out = world.outside();
        let script = format!("for n in $(seq 30); do echo $n > {}/f$n & done; wait", out.display());
        let workspace = world.workspace().display().to_string();
        let program = binary();
        let command = world.bare(&[program.as_str(), "run", "--workspace", &workspace, "--", "sh", "-c", &script]);
        let text = passes_with_few_questions(world, &command);
        for n in 1..=30 {
            assert_eq!(fs::read_to_string(out.join(format!("f{n}"))).ok(), Some(format!("{n}\n")), "{text}");
        }
    });
}

/// A push to a repository elsewhere asks for the whole of it once it asks again.
#[test]
fn a_repository_elsewhere_is_few_questions() {
    each_user(|world| {
        let before = "git init -q; git -c user.name=x -c user.email=x commit -q --allow-empty -m x; \
                      git init -q --bare ../out/o.git";
        world.dir("out");
        let ready = world.run(&world.bare(&["sh", "-ec", before]));
        assert_eq!(ready.ended, ProgramEnd::Code(0), "{}", ready.combined_text());
        let workspace = world.workspace().display().to_string();
        let program = binary();
        let push = ["git", "push", "-q", "../out/o.git", "HEAD:refs/heads/main"];
        let command = world.bare(&[&[program.as_str(), "run", "--workspace", &workspace, "--"], &push[..]].concat());
        passes_with_few_questions(world, &command);
    });
}
