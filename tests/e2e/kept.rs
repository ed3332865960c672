//! The process that keeps a sandbox that lasts: what commands leave behind goes on
//! there, whoever is killed takes only its own with it, and a keeper ends by itself.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use stockade_testkit::{ProgramEnd, ProgramOutput, RunningProgram};

use crate::life::{assert_none_left, marked};
use crate::sandbox::{create, done, exec, refused, sandbox_dir, stockade};
use crate::terminal::{Terminal, ends};
use crate::world::{PATH, World, binary, each_user};

/// Fifty sandboxes begin at once, beside other tests: a busy machine took over a minute.
const TIMEOUT: Duration = Duration::from_secs(180);

#[track_caller]
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(20));
    }
}

/// A number that nobody else sleeps for.
pub fn mark(number: u32) -> String {
    format!("7{number}{}.7", std::process::id())
}

/// The processes that keep a sandbox: each holds its directory.
pub fn supervisors(world: &World, id: &str) -> Vec<u32> {
    let directory = sandbox_dir(world, id);
    let holds = |pid: &u32| {
        let held = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        held.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|path| path == directory)
    };
    marked("sandbox\0keep\0").into_iter().filter(holds).collect()
}

#[track_caller]
pub fn supervisor(world: &World, id: &str) -> u32 {
    let supervisors = supervisors(world, id);
    let [supervisor] = supervisors[..] else { panic!("not one keeper of {id}: {supervisors:?}") };
    supervisor
}

/// Starts a command in a sandbox, and waits until it says that it is ready.
pub fn running(world: &World, id: &str, script: &str) -> RunningProgram {
    let command = world.bare(&[&binary(), "sandbox", "exec", "--mode", "never", id, "-c", script]);
    let running = RunningProgram::start(&world.account, &command).unwrap();
    wait_until("it does not run", || running.stdout_so_far().contains("ready"));
    running
}

pub fn kill(process: u32) {
    kill_process(Pid::from_raw(process.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

fn leave_behind(world: &World, id: &str, mark: &str) {
    exec(world, id, &format!("(setsid sleep {mark} >/dev/null 2>&1 &); true"));
}

#[test]
fn background_processes_continue_until_the_sandbox_ends() {
    each_user(|world| {
        let (id, mark) = (create(world, &[]), mark(1));
        leave_behind(world, &id, &mark);
        assert_eq!(marked(&mark).len(), 1);
        assert_eq!(exec(world, &id, "echo $(ps -e -o args= | grep -c '^[s]leep')"), "1\n");
        let first = supervisor(world, &id);
        assert_eq!((exec(world, &id, "echo again"), supervisor(world, &id)), ("again\n".to_owned(), first));
        done(world, &["destroy", &id]);
        assert_none_left(&mark);
        assert!(supervisors(world, &id).is_empty());
    });
}

#[test]
fn a_killed_client_takes_its_command_with_it_and_nothing_else() {
    each_user(|world| {
        let (id, stays, goes) = (create(world, &[]), mark(2), mark(3));
        leave_behind(world, &id, &stays);
        let client = running(world, &id, &format!("echo ready; sleep {goes}"));
        let supervisor_pid = supervisor(world, &id);
        client.send_signal(Signal::KILL).unwrap();
        client.wait_for_end().unwrap();
        assert_none_left(&goes);
        assert_eq!((marked(&stays).len(), supervisor(world, &id)), (1, supervisor_pid));
        assert_eq!(exec(world, &id, "echo on"), "on\n");
        done(world, &["destroy", &id]);
        assert_none_left(&stays);
    });
}

#[test]
fn a_killed_supervisor_ends_all_processes_and_the_next_command_reports_it() {
    each_user(|world| {
        let (id, mark) = (create(world, &[]), mark(4));
        exec(world, &id, "echo kept > file");
        leave_behind(world, &id, &mark);
        let client = running(world, &id, &format!("echo ready; sleep {mark}"));
        kill(supervisor(world, &id));
        let output: ProgramOutput = client.wait_for_end().unwrap();
        assert_eq!(output.ended, ProgramEnd::Code(125), "{}", output.combined_text());
        assert_none_left(&mark);
        wait_until("something of it runs", || supervisors(world, &id).is_empty());
        let next = stockade(world, &["exec", "--mode", "never", &id, "-c", "cat file"]);
        assert_eq!((next.ended, next.stdout.as_str()), (ProgramEnd::Code(0), "kept\n"), "{}", next.combined_text());
        assert!(next.stderr.contains("the sandbox was recreated"), "{}", next.stderr);
        let quiet = stockade(world, &["exec", "--mode", "never", &id, "--", "true"]);
        assert!(!quiet.stderr.contains("the sandbox was recreated"), "{}", quiet.stderr);
        done(world, &["destroy", &id]);
    });
}

#[test]
fn destroying_ends_the_commands_that_run() {
    each_user(|world| {
        let (id, mark) = (create(world, &[]), mark(5));
        let client = running(world, &id, &format!("echo ready; sleep {mark}"));
        done(world, &["destroy", &id]);
        let output = client.wait_for_end().unwrap();
        assert_ne!(output.ended, ProgramEnd::Code(0), "{}", output.combined_text());
        assert_none_left(&mark);
        assert!(!sandbox_dir(world, &id).exists() && supervisors(world, &id).is_empty());
        refused(world, &["exec", &id, "--", "true"], "is destroyed");
    });
}

#[test]
fn an_expired_sandbox_ends_without_a_client() {
    each_user(|world| {
        for limit in ["--ttl", "--idle-timeout"] {
            let (id, mark) = (create(world, &[limit, "2s"]), mark(6));
            leave_behind(world, &id, &mark);
            wait_until("it is still there", || !sandbox_dir(world, &id).exists() && supervisors(world, &id).is_empty());
            assert_none_left(&mark);
            assert_eq!(done(world, &["list"]), "");
        }
    });
}

#[test]
fn refusals_between_commands_are_recorded() {
    each_user(|world| {
        let id = create(world, &[]);
        let late =
            "(setsid bash -c 'until [ -e go ]; do sleep 0.05; done; touch .bashrc; touch gone' >/dev/null 2>&1 &)";
        exec(world, &id, late);
        exec(world, &id, "touch go; until [ -e gone ]; do sleep 0.05; done");
        let recorded = || {
            let output = world.run(&world.bare(&[&binary(), "audit", "query", "--json"]));
            output.stdout.lines().any(|line| line.contains("\"denied\"") && line.contains("/workspace/.bashrc"))
        };
        wait_until("it is not on record", recorded);
        done(world, &["destroy", &id]);
    });
}

#[test]
fn a_command_has_a_terminal_of_its_own() {
    each_user(|world| {
        let id = create(world, &[]);
        let script = "test -t 0 && echo is a terminal; stty size </dev/tty; read line; echo got $line; read line";
        let program = binary();
        let command = world.bare(&[&program, "sandbox", "exec", "--mode", "never", "--tty", &id, "-c", script]);
        let mut terminal = Terminal::start(world, &command);
        terminal.expect("is a terminal");
        terminal.expect("40 100");
        terminal.press("typed\r");
        terminal.expect("got typed");
        terminal.press("\u{3}");
        ends(terminal, 130);
        done(world, &["destroy", &id]);
    });
}

#[test]
fn one_is_paused_by_one_command_and_let_go_on_by_another() {
    each_user(|world| {
        let id = create(world, &[]);
        exec(world, &id, "(setsid bash -c 'while true; do echo >> n; sleep 0.01; done' >/dev/null 2>&1 &); true");
        let length = || fs::metadata(sandbox_dir(world, &id).join("workspace/n")).map_or(0, |n| n.len());
        wait_until("it does not count", || length() > 3);
        let paused = stockade(world, &["pause", &id]);
        if paused.stderr.contains("no control group is available here") {
            eprintln!("not run: this user can have no control group");
        } else {
            assert_eq!(paused.ended, ProgramEnd::Code(0), "{}", paused.combined_text());
            let stood_at = length();
            refused(world, &["exec", &id, "--", "true"], "is paused");
            refused(world, &["pause", &id], "is paused");
            assert!(done(world, &["top"]).contains("  paused  "));
            assert_eq!(length(), stood_at);
            done(world, &["resume", &id]);
            wait_until("it does not go on", || length() > stood_at);
        }
        refused(world, &["resume", &id], "is ready");
        done(world, &["destroy", &id]);
        refused(world, &["resume", &id], "is destroyed");
    });
}

#[test]
fn commands_are_followed_until_the_sandbox_ends() {
    each_user(|world| {
        let id = create(world, &[]);
        exec(world, &id, "echo before");
        let follow = world.bare(&[&binary(), "sandbox", "logs", "--follow", &id]);
        let following = RunningProgram::start(&world.account, &follow).unwrap();
        wait_until("it shows nothing", || following.stdout_so_far().contains("echo before"));
        exec(world, &id, "echo meanwhile");
        wait_until("it does not go on", || following.stdout_so_far().contains("echo meanwhile"));
        done(world, &["destroy", &id]);
        let output = following.wait_for_end().unwrap();
        assert_eq!(
            (output.ended, output.stdout.lines().count()),
            (ProgramEnd::Code(0), 2),
            "{}",
            output.combined_text()
        );
    });
}

#[test]
fn command_and_usage_are_shown_without_acting_on_the_terminal() {
    each_user(|world| {
        let id = create(world, &[]);
        let output = stockade(world, &["exec", "--mode", "never", &id, "-c", "printf '\u{1b}[2J' >&2; exit 7"]);
        assert_eq!(output.ended, ProgramEnd::Code(7), "{}", output.combined_text());
        assert!(!output.stderr.contains("used:"), "powers that every command has are no news: {}", output.stderr);
        let granted = stockade(world, &["exec", "--grant", "env LANG", "--mode", "never", &id, "--", "true"]);
        assert!(granted.stderr.contains("• granted: env LANG"), "{}", granted.stderr);
        leave_behind(world, &id, &mark(7));
        let logs = done(world, &["logs", &id]);
        let lines: Vec<&str> = logs.lines().collect();
        assert_eq!(lines.len(), 3, "{logs}");
        let user = format!("uid {}  exited 7  ", world.account.uid);
        assert!(lines[0].contains(&user) && lines[0].contains("printf '\\u{1b}[2J'"), "{logs}");
        assert!(lines[1].contains("exited 0") && lines[1].ends_with("  true"), "{logs}");
        let first: Value = serde_json::from_str(done(world, &["logs", "--json", &id]).lines().next().unwrap()).unwrap();
        assert_eq!((first["exit_code"].as_i64(), first["status"].as_str()), (Some(7), Some("exited")));
        let request = first["request"].as_str().unwrap();
        let audited =
            world.run(&world.bare(&[&binary(), "audit", "query", "--request", request, "--type", "finished"]));
        assert_eq!(audited.stdout.lines().count(), 1, "{}", audited.combined_text());
        let top: Value = serde_json::from_str(&done(world, &["top", "--json"])).unwrap();
        assert_eq!((top["id"].as_str(), top["state"].as_str()), (Some(id.as_str()), Some("ready")));
        assert_eq!(top["commands"].as_u64(), Some(3));
        let table = done(world, &["top"]);
        assert!(table.starts_with("ID ") && table.contains(&id) && !table.contains('\u{1b}'), "{table}");
        assert!(done(world, &["show", &id]).contains("commands   3\n"));
        done(world, &["destroy", &id]);
        // What is over is still told of.
        assert_eq!(done(world, &["logs", &id]).lines().count(), 3);
        assert!(done(world, &["show", &id]).contains("state      destroyed"));
    });
}

/// A repository with one file, where git's plain transport can fetch it.
fn served(world: &World) -> (RunningProgram, String) {
    let make = "set -e; export HOME=/nonexistent; git init -q -b main work; cd work; echo before > file; git add .; \
        git -c user.name=t -c user.email=t@t commit -qm first; cd ..; git clone -q --bare work served/demo.git; \
        git -C served/demo.git update-server-info";
    world.dir("out/served");
    let made =
        world.run(&stockade_testkit::TestCommand::new("sh", world.outside()).args(["-c", make]).env("PATH", PATH));
    assert_eq!(made.ended, ProgramEnd::Code(0), "{}", made.combined_text());
    // Another address of the machine than the sandbox's own.
    let port = TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap().port();
    let directory = world.outside().join("served");
    let serve = ["python3", "-m", "http.server", "--bind", "127.0.0.2", "--directory", directory.to_str().unwrap()];
    let server =
        RunningProgram::start(&world.account, &world.bare(&[&serve[..], &[&port.to_string()]].concat())).unwrap();
    wait_until("it does not serve", || TcpStream::connect(("127.0.0.2", port)).is_ok());
    (server, format!("http://127.0.0.2:{port}/demo.git"))
}

#[test]
fn changes_by_a_command_in_a_clone_are_brought_back() {
    each_user(|world| {
        let (server, url) = served(world);
        let to = world.workspace().join("changes.diff");
        let script = "echo after > file; git -c user.name=t -c user.email=t@t commit -qam second; echo n > new; exit 4";
        let run = ["run", "--mode", "never", "--repo", &url, "--diff", to.to_str().unwrap(), "-c", script];
        let output = stockade(world, &run);
        assert_eq!((output.ended, output.stdout.as_str()), (ProgramEnd::Code(4), ""), "{}", output.combined_text());
        let diff_text = fs::read_to_string(&to).unwrap();
        for line in ["-before", "+after", "+++ b/new", "+n"] {
            assert!(diff_text.lines().any(|diff_text| diff_text == line), "{line}:\n{diff_text}");
        }
        assert_eq!(done(world, &["list"]), "");
        server.send_signal(Signal::TERM).unwrap();
        server.wait_for_end().unwrap();
    });
}

#[test]
fn another_sandbox_can_start_from_a_snapshot() {
    each_user(|world| {
        let id = create(world, &[]);
        exec(world, &id, "echo first > file; mkdir d; ln -s ../file d/link; echo state > ~/state; chmod 700 file");
        let to = world.workspace().join("snapshot");
        done(world, &["snapshot", &id, to.to_str().unwrap()]);
        exec(world, &id, "echo second > file; rm ~/state");
        // Nothing stands still afterwards.
        assert!(done(world, &["list"]).contains("  ready  "));
        let next = create(world, &["--from", to.to_str().unwrap()]);
        assert_eq!(exec(world, &next, "cat file d/link ~/state; stat -c %a file"), "first\nfirst\nstate\n700\n");
        assert_eq!(exec(world, &id, "cat file"), "second\n");
        refused(world, &["snapshot", &id, to.to_str().unwrap()], "cannot make");
        assert_eq!(fs::read_to_string(to.join("workspace/file")).unwrap(), "first\n");
        let none = world.workspace();
        refused(world, &["create", "--from", none.to_str().unwrap()], "workspace");
        done(world, &["destroy", &id, &next]);
        assert_eq!(done(world, &["list"]), "");
    });
}
