//! A sandbox that stands still.

use std::fs;

use crate::Verdict;
use crate::bench::{Bench, RunningCommand, TestSandbox, wait_until};

super::cases! { "pausing":
    nothing_progresses, it_continues_where_it_was_frozen, a_command_is_refused_meanwhile, pausing_twice_is_pausing_once,
    resuming_a_running_sandbox_does_nothing, a_paused_one_can_be_destroyed, another_command_continues, its_files_are_there, a_command_can_be_killed_meanwhile,
    its_usage_is_reported,
}

/// A sandbox in which something counts.
fn counting(bench: &Bench) -> (TestSandbox, RunningCommand) {
    let test_sandbox = bench.test_sandbox();
    let running = test_sandbox.start("while true; do echo >> /workspace/n; done");
    wait_until("it counts", || length(&test_sandbox) > 10);
    (test_sandbox, running)
}

fn length(test_sandbox: &TestSandbox) -> u64 {
    fs::metadata(test_sandbox.work("n")).map_or(0, |n| n.len())
}

fn nothing_progresses(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let (test_sandbox, _going) = counting(bench);
    test_sandbox.sandbox().pause().unwrap();
    let stood_at = length(&test_sandbox);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(length(&test_sandbox), stood_at);
    test_sandbox.sandbox().resume().unwrap();
    wait_until("it goes on", || length(&test_sandbox) > stood_at);
    Ok(())
}

fn it_continues_where_it_was_frozen(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let test_sandbox = bench.test_sandbox();
    let running = test_sandbox.start("touch ready; until [ -e go ]; do sleep 0.02; done; echo $((6 * 7))");
    test_sandbox.wait_for("ready");
    test_sandbox.sandbox().pause().unwrap();
    fs::write(test_sandbox.work("go"), "").unwrap();
    test_sandbox.sandbox().resume().unwrap();
    assert_eq!(running.end().ok(), "42\n");
    Ok(())
}

fn a_command_is_refused_meanwhile(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let test_sandbox = bench.test_sandbox();
    test_sandbox.sandbox().pause().unwrap();
    let read_text = test_sandbox.refuses(&crate::bench::inside("touch ran"));
    assert!(read_text.what.contains("is paused"), "{read_text:?}");
    test_sandbox.sandbox().resume().unwrap();
    assert_eq!(test_sandbox.prints("ls"), "");
    Ok(())
}

fn pausing_twice_is_pausing_once(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let test_sandbox = bench.test_sandbox();
    test_sandbox.sandbox().pause().unwrap();
    test_sandbox.sandbox().pause().unwrap();
    test_sandbox.sandbox().resume().unwrap();
    assert_eq!(test_sandbox.prints("echo on"), "on\n");
    Ok(())
}

fn resuming_a_running_sandbox_does_nothing(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let test_sandbox = bench.test_sandbox();
    test_sandbox.sandbox().resume().unwrap();
    assert_eq!(test_sandbox.prints("echo on"), "on\n");
    Ok(())
}

fn a_paused_one_can_be_destroyed(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let (test_sandbox, _going) = counting(bench);
    test_sandbox.sandbox().pause().unwrap();
    test_sandbox.sandbox().destroy().unwrap();
    let stood_at = length(&test_sandbox);
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(length(&test_sandbox), stood_at);
    Ok(())
}

fn another_command_continues(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let (one, other) = (bench.test_sandbox(), bench.test_sandbox());
    one.sandbox().pause().unwrap();
    assert_eq!(other.prints("echo on"), "on\n");
    one.sandbox().resume().unwrap();
    Ok(())
}

fn its_files_are_there(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("echo text > file");
    test_sandbox.sandbox().pause().unwrap();
    assert_eq!(test_sandbox.read_text("file"), "text\n");
    test_sandbox.sandbox().resume().unwrap();
    Ok(())
}

fn a_command_can_be_killed_meanwhile(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let test_sandbox = bench.test_sandbox();
    let running = test_sandbox.start("touch ready; sleep 1000");
    test_sandbox.wait_for("ready");
    test_sandbox.sandbox().pause().unwrap();
    running.attempt.kill_processes();
    test_sandbox.sandbox().resume().unwrap();
    running.end().ended(stockade_backend_api::CommandEnd::Signaled(9));
    Ok(())
}

fn its_usage_is_reported(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let (test_sandbox, _going) = counting(bench);
    test_sandbox.sandbox().pause().unwrap();
    let usage = test_sandbox.sandbox().read_usage().unwrap();
    assert!(usage.processes.is_none_or(|processes| processes >= 1), "{usage:?}");
    test_sandbox.sandbox().resume().unwrap();
    Ok(())
}
