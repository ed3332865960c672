//! How a command ends, and who may end it.

use stockade_backend_api::CommandEnd;

use crate::Verdict;
use crate::bench::{Bench, RunningCommand, TestSandbox, inside, wait_until};
use crate::sleepers;

super::cases! { "ends":
    every_class_of_exit_code_is_reported, each_signal_is_reported_as_itself, a_shell_exits_with_128_plus_the_signal,
    a_signal_reaches_the_command, a_signal_reaches_its_group, captured_output_is_the_commands_own, a_signal_may_be_ignored,
    a_kill_takes_all_of_it, a_stopped_command_continues, a_core_is_dumped_nowhere, orphans_are_reaped,
    a_signal_after_the_end_is_nothing, dropping_an_attempt_ends_it, killing_one_leaves_the_other, usage_is_reported_at_the_end,
    an_unawaited_process_does_not_delay_the_end, a_kill_before_a_word_is_an_end,
}

fn every_class_of_exit_code_is_reported(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    for code in [0, 1, 2, 42, 77, 124, 125, 126, 127, 128, 130, 255] {
        test_sandbox.run(&format!("exit {code}")).ended(CommandEnd::Exited(code));
    }
    Ok(())
}

fn each_signal_is_reported_as_itself(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    for signal in [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 31, 34, 64] {
        test_sandbox.run(&format!("ulimit -c 0; kill -{signal} $$")).ended(CommandEnd::Signaled(signal));
    }
    Ok(())
}

fn a_shell_exits_with_128_plus_the_signal(bench: &Bench) -> Verdict {
    assert_eq!(bench.test_sandbox().prints("bash -c 'kill -TERM $$' 2>/dev/null; echo $?"), "143\n");
    Ok(())
}

/// Begins a script and waits until it says in a file that it is ready.
#[track_caller]
fn ready(test_sandbox: &TestSandbox, script: &str) -> RunningCommand {
    let running = test_sandbox.start(script);
    test_sandbox.wait_for("ready");
    running
}

fn a_signal_reaches_the_command(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let running = ready(&test_sandbox, "touch ready; exec sleep 1000");
    running.attempt.send_signal(15);
    running.end().ended(CommandEnd::Signaled(15));
    Ok(())
}

fn a_signal_reaches_its_group(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let script = "trap : USR1; bash -c 'trap \"touch child; exit 0\" USR1; touch ready; while :; do sleep 0.02; done' & wait $!; wait; exit 6";
    let running = ready(&test_sandbox, script);
    running.attempt.send_signal(10);
    running.end();
    test_sandbox.wait_for("child");
    Ok(())
}

fn captured_output_is_the_commands_own(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let running = ready(&test_sandbox, "trap 'echo caught; exit 9' TERM; touch ready; while :; do sleep 0.02; done");
    running.attempt.send_signal(15);
    let ran = running.end();
    ran.ended(CommandEnd::Exited(9));
    assert_eq!(ran.stdout(), "caught\n");
    Ok(())
}

fn a_signal_may_be_ignored(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let running = ready(&test_sandbox, "trap '' TERM; touch ready; until [ -e go ]; do sleep 0.02; done; exit 4");
    running.attempt.send_signal(15);
    std::fs::write(test_sandbox.work("go"), "").unwrap();
    running.end().ended(CommandEnd::Exited(4));
    Ok(())
}

fn a_kill_takes_all_of_it(bench: &Bench) -> Verdict {
    bench.require_ends_background()?;
    let test_sandbox = bench.test_sandbox();
    let mark = sleepers::mark(1);
    let running = ready(&test_sandbox, &format!("sleep {mark} & (setsid sleep {mark} &) ; touch ready; sleep {mark}"));
    wait_until("all run", || test_sandbox.sleeping(&mark) == 3);
    running.attempt.kill_processes();
    running.end().ended(CommandEnd::Signaled(9));
    wait_until("all are gone", || test_sandbox.sleeping(&mark) == 0);
    Ok(())
}

fn a_stopped_command_continues(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let count = "touch ready; while [ ! -e over ]; do echo >> n; sleep 0.01; done; exit 3";
    let running = ready(&test_sandbox, count);
    let length = || std::fs::metadata(test_sandbox.work("n")).map_or(0, |n| n.len());
    running.attempt.send_signal(19);
    wait_until("it stands", || {
        let before = length();
        std::thread::sleep(std::time::Duration::from_millis(100));
        length() == before
    });
    let stood_at = length();
    running.attempt.send_signal(18);
    wait_until("it goes on", || length() > stood_at);
    std::fs::write(test_sandbox.work("over"), "").unwrap();
    running.end().ended(CommandEnd::Exited(3));
    Ok(())
}

fn a_core_is_dumped_nowhere(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.run("ulimit -c unlimited 2>/dev/null; kill -SEGV $$").ended(CommandEnd::Signaled(11));
    assert_eq!(test_sandbox.prints("find . -name '*core*'; ulimit -Hc"), "0\n");
    Ok(())
}

fn orphans_are_reaped(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("for i in 1 2 3 4 5 6 7 8 9 10; do (setsid true &) ; done");
    let zombies = "ps -eo stat= | grep -c ^Z; true";
    wait_until("nobody is left unreaped", || test_sandbox.prints(zombies) == "0\n");
    Ok(())
}

fn a_signal_after_the_end_is_nothing(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let mut running = test_sandbox.start("exit 3");
    assert!(
        matches!(running.wait_for_report(), crate::bench::AttemptReport::Ended(end) if end.end == CommandEnd::Exited(3))
    );
    running.attempt.send_signal(15);
    running.attempt.kill_processes();
    drop(running);
    assert_eq!(test_sandbox.prints("echo on"), "on\n");
    Ok(())
}

fn dropping_an_attempt_ends_it(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let mark = sleepers::mark(2);
    let running = ready(&test_sandbox, &format!("touch ready; exec sleep {mark}"));
    drop(running);
    wait_until("it is gone", || test_sandbox.sleeping(&mark) == 0);
    assert_eq!(test_sandbox.prints("echo on"), "on\n");
    Ok(())
}

fn killing_one_leaves_the_other(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let other = test_sandbox.start("touch other; until [ -e go ]; do sleep 0.02; done; echo other");
    let running = ready(&test_sandbox, "touch ready; exec sleep 1000");
    test_sandbox.wait_for("other");
    running.attempt.kill_processes();
    running.end().ended(CommandEnd::Signaled(9));
    std::fs::write(test_sandbox.work("go"), "").unwrap();
    assert_eq!(other.end().ok(), "other\n");
    Ok(())
}

fn usage_is_reported_at_the_end(bench: &Bench) -> Verdict {
    let burn = "python3 -c 'import time; e = time.process_time() + 0.4\nwhile time.process_time() < e: pass'";
    let ran = bench.test_sandbox().run(burn);
    ran.ok();
    let usage = ran.end.usage;
    assert!(usage.cpu_ms >= 300 && usage.wall_ms >= 300 && usage.memory_peak_bytes > 1 << 20, "{usage:?}");
    Ok(())
}

fn an_unawaited_process_does_not_delay_the_end(bench: &Bench) -> Verdict {
    bench.require_keeps_background()?;
    let test_sandbox = bench.test_sandbox();
    test_sandbox.run("sleep 1000 >/dev/null 2>&1 </dev/null & exit 2").ended(CommandEnd::Exited(2));
    Ok(())
}

fn a_kill_before_a_word_is_an_end(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let running = test_sandbox.begin(&inside("sleep 1000"), crate::bench::CAPTURE);
    running.attempt.kill_processes();
    running.end().ended(CommandEnd::Signaled(9));
    assert_eq!(test_sandbox.prints("echo on"), "on\n");
    Ok(())
}
