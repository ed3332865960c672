//! What the commands of a sandbox may take, together and each.

use stockade_backend_api::CommandEnd;
use stockade_model::{AttemptPlan, LimitKind};

use crate::Verdict;
use crate::bench::{Bench, Declared, Ran, TestSandbox, inside};

super::cases! { "limits":
    processes_hold_for_all_together, a_fork_bomb_ends, memory_is_bounded, memory_of_one_command_is_bounded, processor_time_is_bounded,
    open_files_are_bounded, a_file_is_bounded, temp_has_its_declared_size, disk_is_bounded, files_are_counted,
    processors_are_bounded, limits_are_in_the_report, no_limit_can_be_raised_inside, a_sandbox_stopped_by_a_limit_continues,
    a_command_may_have_less_than_the_sandbox,
}

/// That a command met a limit: it was told as that, or the command failed of it.
#[track_caller]
fn met(ran: &Ran, limit: LimitKind) {
    let limit_denial = ran.denials.iter().any(|denial| denial.is_of_limit(limit));
    assert!(limit_denial || ran.end.end != CommandEnd::Exited(0), "a limit of {limit} was passed: {ran:?}");
}

fn processes_hold_for_all_together(bench: &Bench) -> Verdict {
    let test_sandbox = bench.limited(LimitKind::Processes, 30)?;
    let twelve = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 >/dev/null 2>&1 & done; touch n.$0; wait";
    let begin =
        |name: &str| test_sandbox.begin(&crate::bench::command(&["bash", "-c", twelve, name]), crate::bench::CAPTURE);
    let (one, two) = (begin("1"), begin("2"));
    test_sandbox.wait_for("n.1");
    test_sandbox.wait_for("n.2");
    // Where it is told by the limit itself, that ended them.
    let third =
        test_sandbox.try_begin(&crate::bench::command(&["bash", "-c", twelve, "3"]), crate::bench::CAPTURE, false);
    if let Ok(third) = third {
        third.attempt.send_signal(15);
        let ran = third.end();
        assert!(
            !ran.denials.is_empty() || ran.stderr().contains("fork") || ran.end.end != CommandEnd::Exited(0),
            "{ran:?}"
        );
    }
    [one, two].iter().for_each(|running| running.attempt.kill_processes());
    Ok(())
}

fn a_fork_bomb_ends(bench: &Bench) -> Verdict {
    let test_sandbox = bench.limited(LimitKind::Processes, 40)?;
    let running = test_sandbox.start("bomb() { touch begun; bomb | bomb & }; bomb; sleep 2; echo over");
    test_sandbox.wait_for("begun");
    std::thread::sleep(std::time::Duration::from_millis(500));
    running.attempt.kill_processes();
    running.end();
    drop(test_sandbox);
    assert_eq!(bench.test_sandbox().prints("echo the next"), "the next\n");
    Ok(())
}

/// Takes so many MiB, and says whether it could.
fn take(mib: u32) -> String {
    format!("python3 -c 'import time; x = bytearray({mib} << 20); time.sleep({mib} // 400 * 20)'")
}

#[track_caller]
fn takes_no_more(test_sandbox: &TestSandbox, plan: &AttemptPlan) {
    let mut running = test_sandbox.begin(plan, crate::bench::CAPTURE);
    // A kernel ends what takes too much; whoever only counts tells it, and the engine
    // ends the attempt.
    let limit_denial = running.limit();
    running.attempt.kill_processes();
    let ran = running.end();
    assert!(
        limit_denial.is_some_and(|denial| denial.is_of_limit(LimitKind::Memory))
            || ran.end.end != CommandEnd::Exited(0),
        "{ran:?}"
    );
}

fn memory_is_bounded(bench: &Bench) -> Verdict {
    let test_sandbox = bench.limited(LimitKind::Memory, 200 << 20)?;
    test_sandbox.prints("python3 -c 'x = bytearray(20 << 20)'");
    takes_no_more(&test_sandbox, &inside(&take(600)));
    Ok(())
}

fn memory_of_one_command_is_bounded(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let mut plan = inside(&take(600));
    plan.profile.limits.memory_bytes = Some(200 << 20);
    begins(&test_sandbox, &plan, LimitKind::Memory)?;
    takes_no_more(&test_sandbox, &plan);
    test_sandbox.prints(&take(300));
    Ok(())
}

/// That a command can have this limit of its own, or is refused it in clear words.
#[track_caller]
fn begins(test_sandbox: &TestSandbox, plan: &AttemptPlan, limit: LimitKind) -> Result<(), Declared> {
    let harmless = AttemptPlan { argv: inside("true").argv, ..plan.clone() };
    match test_sandbox.try_begin(&harmless, crate::bench::CAPTURE, false) {
        Ok(running) => {
            running.end().ok();
            Ok(())
        }
        Err(error) if error.what.contains(limit.name()) => Err(Declared(error.what)),
        Err(error) => panic!("a limit of {limit} is refused without a word of it: {error:?}"),
    }
}

fn processor_time_is_bounded(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let mut plan = inside("while :; do :; done & while :; do :; done");
    plan.profile.limits.cpu_time_ms = Some(500);
    begins(&test_sandbox, &plan, LimitKind::CpuTime)?;
    let mut running = test_sandbox.begin(&plan, crate::bench::CAPTURE);
    // Whoever only counts tells it, and the engine ends the attempt.
    let limit_denial = running.limit();
    running.attempt.kill_processes();
    let ran = running.end();
    assert!(limit_denial.is_none_or(|denial| denial.is_of_limit(LimitKind::CpuTime)), "{ran:?}");
    assert_ne!(ran.end.end, CommandEnd::Exited(0), "{ran:?}");
    Ok(())
}

fn open_files_are_bounded(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let mut plan = crate::bench::python("all = [open('/dev/null') for _ in range(200)]");
    test_sandbox.run_plan(&plan).ok();
    plan.profile.limits.open_files = Some(64);
    begins(&test_sandbox, &plan, LimitKind::OpenFiles)?;
    let ran = test_sandbox.run_plan(&plan);
    ran.ended(CommandEnd::Exited(1));
    assert!(ran.stderr().contains("Too many open files"), "{ran:?}");
    Ok(())
}

fn a_file_is_bounded(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let mut plan = inside("head -c 3000000 /dev/zero > large");
    plan.profile.limits.file_size_bytes = Some(1 << 20);
    begins(&test_sandbox, &plan, LimitKind::FileSize)?;
    met(&test_sandbox.run_plan(&plan), LimitKind::FileSize);
    assert_eq!(std::fs::metadata(test_sandbox.work("large")).unwrap().len(), 1 << 20);
    Ok(())
}

fn temp_has_its_declared_size(bench: &Bench) -> Verdict {
    let test_sandbox = bench.limited(LimitKind::Temp, 8 << 20)?;
    test_sandbox.prints("head -c 4000000 /dev/zero > /tmp/a");
    assert_ne!(test_sandbox.run("head -c 9000000 /dev/zero > /tmp/b").end.end, CommandEnd::Exited(0));
    Ok(())
}

/// Runs until it is told that a limit was passed, or its own failure says so.
#[track_caller]
fn is_stopped(test_sandbox: &TestSandbox, script: &str, limit: LimitKind) {
    let mut running = test_sandbox.start(script);
    let limit_denial = running.limit();
    running.attempt.kill_processes();
    let ran = running.end();
    assert!(
        limit_denial.is_some_and(|denial| denial.is_of_limit(limit)) || ran.end.end == CommandEnd::Exited(1),
        "{ran:?}"
    );
}

fn disk_is_bounded(bench: &Bench) -> Verdict {
    let test_sandbox = bench.limited(LimitKind::Disk, 16 << 20)?;
    let fill =
        "for i in $(seq 40); do head -c 1000000 /dev/urandom > f$i && sync f$i || exit 1; sleep 0.05; done; sleep 1000";
    is_stopped(&test_sandbox, fill, LimitKind::Disk);
    Ok(())
}

fn files_are_counted(bench: &Bench) -> Verdict {
    let test_sandbox = bench.limited(LimitKind::Inodes, 100)?;
    is_stopped(&test_sandbox, "for i in $(seq 20000); do : > f$i || exit 1; done; sleep 1000", LimitKind::Inodes);
    Ok(())
}

fn processors_are_bounded(bench: &Bench) -> Verdict {
    let test_sandbox = bench.limited(LimitKind::Cpus, 200)?;
    let burn = "import time; e = time.monotonic() + 1.5
while time.monotonic() < e: pass
print(time.process_time() < 0.9)";
    assert_eq!(test_sandbox.python(burn).ok(), "True\n");
    Ok(())
}

fn limits_are_in_the_report(bench: &Bench) -> Verdict {
    let test_sandbox = bench.limited(LimitKind::Processes, 77)?;
    let detail = &test_sandbox.sandbox().enforcement_report().layers["limits"].detail;
    assert!(detail.contains("processes 77"), "{detail}");
    Ok(())
}

fn no_limit_can_be_raised_inside(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let mut plan =
        inside("ulimit -n 4096 2>/dev/null && echo raised; ulimit -n; echo 999999 > /sys/fs/cgroup/pids.max; true");
    plan.profile.limits.open_files = Some(64);
    begins(&test_sandbox, &plan, LimitKind::OpenFiles)?;
    assert_eq!(test_sandbox.run_plan(&plan).ok(), "64\n");
    Ok(())
}

fn a_sandbox_stopped_by_a_limit_continues(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let mut plan = inside(&take(600));
    plan.profile.limits.memory_bytes = Some(100 << 20);
    begins(&test_sandbox, &plan, LimitKind::Memory)?;
    takes_no_more(&test_sandbox, &plan);
    assert_eq!(test_sandbox.prints("echo on"), "on\n");
    Ok(())
}

/// Forty processes at once, for longer than who watches looks away.
const FORKS: &str = "import os, time
all = []
try:
  for _ in range(40):
    child = os.fork()
    if not child: time.sleep(1000)
    all.append(child)
  time.sleep(1)
finally: [os.kill(child, 9) for child in all]";

fn a_command_may_have_less_than_the_sandbox(bench: &Bench) -> Verdict {
    let test_sandbox = bench.limited(LimitKind::Processes, 100)?;
    let mut plan = crate::bench::python(FORKS);
    test_sandbox.run_plan(&plan).ok();
    plan.profile.limits.processes = Some(20);
    begins(&test_sandbox, &plan, LimitKind::Processes)?;
    let ran = test_sandbox.run_plan(&plan);
    assert!(ran.stderr().contains("unavailable") || !ran.denials.is_empty(), "{ran:?}");
    Ok(())
}
