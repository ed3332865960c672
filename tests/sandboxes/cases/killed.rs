//! The end of an engine that nobody wanted: killed with SIGKILL while fifty sandboxes
//! work.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::panic;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use stockade_backend_api::{CommandEnd, SandboxError, SandboxEvent, SandboxPlan};
use stockade_model::{BackgroundPolicy, SandboxId};

use crate::bench::{Bench, CAPTURE, Declared, RunningCommand, TestSandbox, event_timeout, inside, wait_until};
use crate::{Verdict, sleepers};

super::cases! { "killed": fifty_sandboxes_are_found_again_or_removed_at_an_early_moment, fifty_sandboxes_are_found_again_or_removed_while_all_work,
a_process_that_kills_the_init_is_reported, a_process_that_kills_its_launcher_is_reported, a_process_that_kills_all_is_reported,
a_process_that_stops_its_launcher_can_be_killed }

const FIFTY: usize = 50;
/// Made and found again at a time: most of it is waiting for the engine of containers.
const AT_ONCE: usize = 4;
/// Says what it has said so far, line by line, in its workspace. It starts no process
/// each time: fifty that did would have the machine to themselves.
const WORK: &str = "mkfifo /tmp/never && exec 3<>/tmp/never || exit; \
                    n=0; while :; do n=$((n + 1)); echo $n >> said; read -rt 0.3 -u 3; done";

/// The engine that will be killed: makes fifty, and tells before and after each.
fn fill(bench: &Bench) {
    let plans: Vec<SandboxPlan> = (0..FIFTY).map(|_| bench.plan()).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| fill_some(bench, &plans, &next));
        }
    });
}

fn fill_some(bench: &Bench, plans: &[SandboxPlan], next: &AtomicUsize) {
    let mut all = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let Some(plan) = plans.get(number) else { break };
        println!("begun {number} {}", plan.id);
        let test_sandbox = bench.make_of(plan.clone()).unwrap();
        let running = test_sandbox.start(WORK);
        // The file is there before what is written to it.
        wait_until("said", || fs::read(test_sandbox.work("said")).is_ok_and(|read_text| read_text.ends_with(b"\n")));
        println!("works {number} {}", plan.id);
        all.push((test_sandbox, running));
    }
    thread::sleep(Duration::from_secs(1000));
}

/// One that was begun.
struct Begun {
    number: usize,
    id: SandboxId,
    /// Whether it was said that it works.
    works: bool,
}

/// Kills an engine when so many of its sandboxes work, a little later, and gives the
/// sandboxes that it began.
fn killed_after(bench: &Bench, working: usize) -> Vec<Begun> {
    let mut engine = Command::new(std::env::current_exe().unwrap());
    engine.args(["--fill", bench.kind]).arg(bench.top()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut engine = engine.spawn().unwrap();
    let mut lines = BufReader::new(engine.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut event_stream: Vec<String> = Vec::new();
    while event_stream.iter().filter(|line| line.starts_with("works")).count() < working {
        event_stream.push(lines.next().expect("the engine goes on"));
    }
    // Another moment in each run.
    thread::sleep(Duration::from_millis(u64::from(engine.id() % 20)));
    engine.kill().unwrap();
    engine.wait().unwrap();
    event_stream.extend(lines);
    let begun = event_stream.iter().filter_map(|line| line.strip_prefix("begun ")).map(|which| {
        let (number, id) = which.split_once(' ').unwrap();
        let works = event_stream.contains(&format!("works {which}"));
        Begun { number: number.parse().unwrap(), id: id.parse().unwrap(), works }
    });
    begun.collect()
}

/// That each is there again where its kind goes on, and that it is gone otherwise.
fn check(bench: &Bench, working: usize) -> Verdict {
    let begun = killed_after(bench, working);
    assert!(begun.len() >= working);
    let next = AtomicUsize::new(0);
    let gone_error: Vec<Option<SandboxError>> = thread::scope(|scope| {
        let check = || scope.spawn(|| check_some(bench, &begun, &next));
        let checking: Vec<_> = (0..AT_ONCE).map(|_| check()).collect();
        checking.into_iter().map(|one| one.join().unwrap()).collect()
    });
    match gone_error.into_iter().flatten().next() {
        Some(error) if !bench.capabilities().adopts => {
            Err(Declared(format!("they end with whoever made them: {error}")))
        }
        _ => Ok(()),
    }
}

/// What the last said that is gone.
fn check_some(bench: &Bench, begun: &[Begun], next: &AtomicUsize) -> Option<SandboxError> {
    let mut gone_error = None;
    while let Some(Begun { number, id, works }) = begun.get(next.fetch_add(1, Ordering::Relaxed)) {
        match bench.adopt(bench.planned(*number, id.clone())) {
            Ok(test_sandbox) => whole(&test_sandbox, *works),
            Err(error @ SandboxError::Gone(_)) if !(*works && bench.capabilities().adopts) => gone_error = Some(error),
            Err(error) => panic!("{id}, which works: {works}: {error:?}"),
        }
        bench.sandboxes.clear(id).unwrap();
    }
    gone_error
}

/// Nothing of what it said is lost, and it can be used and ended.
fn whole(test_sandbox: &TestSandbox, works: bool) {
    if works {
        let read_text = test_sandbox.read_text("said");
        let numbers: Vec<usize> = read_text.lines().map(|line| line.parse().unwrap()).collect();
        assert!(!numbers.is_empty() && numbers.iter().enumerate().all(|(at, number)| *number == at + 1), "{read_text}");
        assert_eq!(test_sandbox.prints("echo found"), "found\n");
    }
    test_sandbox.sandbox().destroy().unwrap();
}

fn fifty_sandboxes_are_found_again_or_removed_at_an_early_moment(bench: &Bench) -> Verdict {
    check(bench, 1 + std::process::id() as usize % 20)
}

fn fifty_sandboxes_are_found_again_or_removed_while_all_work(bench: &Bench) -> Verdict {
    check(bench, FIFTY)
}

/// Whatever a command does to what serves it, its end is told, and with that nothing of
/// it goes on: its sandbox can be used, or is told as lost.
fn check_end_reported(bench: &Bench, attack: &str) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let sleep_command = format!("sleep {}", sleepers::mark(1));
    let end =
        attacked(&test_sandbox, &format!("(setsid {sleep_command} &); {attack}; echo $? > done; sleep 1; exit 7"))
            .end()
            .end
            .end;
    is_over(bench, &test_sandbox, &end, &sleep_command);
    Ok(())
}

/// Begins an attack once it is known that its command began: one that is faster than that
/// news ends the waiting for it instead.
fn attacked(test_sandbox: &TestSandbox, attack: &str) -> RunningCommand {
    let running = test_sandbox.start(&format!("until [ -e go ]; do sleep 0.1; done; {attack}"));
    fs::write(test_sandbox.work("go"), "").unwrap();
    running
}

/// The same of one that nobody but who kills it can bring to an end.
fn is_over_when_killed(bench: &Bench, attack: &str) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let sleep_command = format!("sleep {}", sleepers::mark(1));
    let running =
        attacked(&test_sandbox, &format!("(setsid {sleep_command} &); echo > there; {attack}; exec sleep 1000"));
    test_sandbox.wait_for("there");
    running.attempt.kill_processes();
    let end = running.let_go().end;
    is_over(bench, &test_sandbox, &end, &sleep_command);
    Ok(())
}

fn is_over(bench: &Bench, test_sandbox: &TestSandbox, end: &CommandEnd, sleep_command: &str) {
    let is_lost = matches!(end, CommandEnd::Lost(_));
    assert!(is_lost || matches!(end, CommandEnd::Exited(7) | CommandEnd::Signaled(9)), "{end:?}");
    match test_sandbox.try_begin(&inside("echo; cat /proc/[0-9]*/cmdline | tr '\\0' ' '"), CAPTURE, false) {
        Ok(listing) => {
            let listed = listing.end().ok();
            let may_be_left = test_sandbox.plan.background == BackgroundPolicy::Keep;
            assert!(
                listed.contains("cmdline") && (may_be_left || !listed.contains(sleep_command)),
                "{end:?}: {listed}"
            );
        }
        Err(_) => {
            assert!(is_lost, "{end:?}");
            assert!(
                matches!(test_sandbox.event_stream.recv_timeout(event_timeout()), Ok(SandboxEvent::Lost(_))),
                "{end:?}"
            );
            let adopted = bench.adopt(test_sandbox.plan.clone());
            assert!(matches!(adopted, Err(SandboxError::Gone(_))), "{end:?}: {:?}", adopted.err());
        }
    }
    test_sandbox.sandbox().destroy().unwrap();
}

fn a_process_that_kills_the_init_is_reported(bench: &Bench) -> Verdict {
    check_end_reported(bench, "kill -KILL 1")
}

fn a_process_that_kills_its_launcher_is_reported(bench: &Bench) -> Verdict {
    check_end_reported(bench, "kill -KILL $PPID")
}

fn a_process_that_kills_all_is_reported(bench: &Bench) -> Verdict {
    check_end_reported(bench, "kill -KILL -1")
}

fn a_process_that_stops_its_launcher_can_be_killed(bench: &Bench) -> Verdict {
    is_over_when_killed(bench, "kill -STOP $PPID")
}

/// Plays the engine of another process.
pub fn play(kind: &str, top: &Path) -> anyhow::Result<()> {
    // None of it goes on where one of its threads does not.
    panic::set_hook(Box::new(|info| {
        eprintln!("{info}");
        std::process::exit(1);
    }));
    let kind = crate::kinds::KINDS.iter().find(|known| known.name == kind);
    fill(&Bench::new(kind.ok_or_else(|| anyhow::anyhow!("no such kind"))?, top)?);
    Ok(())
}
