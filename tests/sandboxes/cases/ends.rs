//! How a command ends, and who may end it.

use stockade_backend_api::CommandEnd;

use crate::Verdict;
use crate::bench::{Bench, Going, Place, inside, wait_until};
use crate::sleepers;

super::cases! { "ends":
    every_class_of_exit_code_is_reported, each_signal_is_reported_as_itself, a_shell_exits_with_128_plus_the_signal,
    a_signal_reaches_the_command, a_signal_reaches_its_group, captured_output_is_the_commands_own, a_signal_may_be_ignored,
    a_kill_takes_all_of_it, a_stopped_command_continues, a_core_is_dumped_nowhere, orphans_are_reaped,
    a_signal_after_the_end_is_nothing, dropping_an_attempt_ends_it, killing_one_leaves_the_other, usage_is_reported_at_the_end,
    an_unawaited_process_does_not_delay_the_end, a_kill_before_a_word_is_an_end,
}

fn every_class_of_exit_code_is_reported(bench: &Bench) -> Verdict {
    let place = bench.place();
    for code in [0, 1, 2, 42, 77, 124, 125, 126, 127, 128, 130, 255] {
        place.run(&format!("exit {code}")).ended(CommandEnd::Exited(code));
    }
    Ok(())
}

fn each_signal_is_reported_as_itself(bench: &Bench) -> Verdict {
    let place = bench.place();
    for signal in [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 31, 34, 64] {
        place.run(&format!("ulimit -c 0; kill -{signal} $$")).ended(CommandEnd::Signaled(signal));
    }
    Ok(())
}

fn a_shell_exits_with_128_plus_the_signal(bench: &Bench) -> Verdict {
    assert_eq!(bench.place().prints("bash -c 'kill -TERM $$' 2>/dev/null; echo $?"), "143\n");
    Ok(())
}

/// Begins a script and waits until it says in a file that it is ready.
#[track_caller]
fn ready(place: &Place, script: &str) -> Going {
    let going = place.start(script);
    place.wait_for("ready");
    going
}

fn a_signal_reaches_the_command(bench: &Bench) -> Verdict {
    let place = bench.place();
    let going = ready(&place, "touch ready; exec sleep 1000");
    going.attempt.send_signal(15);
    going.end().ended(CommandEnd::Signaled(15));
    Ok(())
}

fn a_signal_reaches_its_group(bench: &Bench) -> Verdict {
    let place = bench.place();
    let script = "trap : USR1; bash -c 'trap \"touch child; exit 0\" USR1; touch ready; while :; do sleep 0.02; done' & wait $!; wait; exit 6";
    let going = ready(&place, script);
    going.attempt.send_signal(10);
    going.end();
    place.wait_for("child");
    Ok(())
}

fn captured_output_is_the_commands_own(bench: &Bench) -> Verdict {
    let place = bench.place();
    let going = ready(&place, "trap 'echo caught; exit 9' TERM; touch ready; while :; do sleep 0.02; done");
    going.attempt.send_signal(15);
    let ran = going.end();
    ran.ended(CommandEnd::Exited(9));
    assert_eq!(ran.stdout(), "caught\n");
    Ok(())
}

fn a_signal_may_be_ignored(bench: &Bench) -> Verdict {
    let place = bench.place();
    let going = ready(&place, "trap '' TERM; touch ready; until [ -e go ]; do sleep 0.02; done; exit 4");
    going.attempt.send_signal(15);
    std::fs::write(place.work("go"), "").unwrap();
    going.end().ended(CommandEnd::Exited(4));
    Ok(())
}

fn a_kill_takes_all_of_it(bench: &Bench) -> Verdict {
    bench.require_ends_background()?;
    let place = bench.place();
    let mark = sleepers::mark(1);
    let going = ready(&place, &format!("sleep {mark} & (setsid sleep {mark} &) ; touch ready; sleep {mark}"));
    wait_until("all run", || place.sleeping(&mark) == 3);
    going.attempt.kill_processes();
    going.end().ended(CommandEnd::Signaled(9));
    wait_until("all are gone", || place.sleeping(&mark) == 0);
    Ok(())
}

fn a_stopped_command_continues(bench: &Bench) -> Verdict {
    let place = bench.place();
    let count = "touch ready; while [ ! -e over ]; do echo >> n; sleep 0.01; done; exit 3";
    let going = ready(&place, count);
    let length = || std::fs::metadata(place.work("n")).map_or(0, |n| n.len());
    going.attempt.send_signal(19);
    wait_until("it stands", || {
        let before = length();
        std::thread::sleep(std::time::Duration::from_millis(100));
        length() == before
    });
    let stood_at = length();
    going.attempt.send_signal(18);
    wait_until("it goes on", || length() > stood_at);
    std::fs::write(place.work("over"), "").unwrap();
    going.end().ended(CommandEnd::Exited(3));
    Ok(())
}

fn a_core_is_dumped_nowhere(bench: &Bench) -> Verdict {
    let place = bench.place();
    place.run("ulimit -c unlimited 2>/dev/null; kill -SEGV $$").ended(CommandEnd::Signaled(11));
    assert_eq!(place.prints("find . -name '*core*'; ulimit -Hc"), "0\n");
    Ok(())
}

fn orphans_are_reaped(bench: &Bench) -> Verdict {
    let place = bench.place();
    place.prints("for i in 1 2 3 4 5 6 7 8 9 10; do (setsid true &) ; done");
    let zombies = "ps -eo stat= | grep -c ^Z; true";
    wait_until("nobody is left unreaped", || place.prints(zombies) == "0\n");
    Ok(())
}

fn a_signal_after_the_end_is_nothing(bench: &Bench) -> Verdict {
    let place = bench.place();
    let mut going = place.start("exit 3");
    assert!(matches!(going.hear(), crate::bench::Heard::Ended(end) if end.end == CommandEnd::Exited(3)));
    going.attempt.send_signal(15);
    going.attempt.kill_processes();
    drop(going);
    assert_eq!(place.prints("echo on"), "on\n");
    Ok(())
}

fn dropping_an_attempt_ends_it(bench: &Bench) -> Verdict {
    let place = bench.place();
    let mark = sleepers::mark(2);
    let going = ready(&place, &format!("touch ready; exec sleep {mark}"));
    drop(going);
    wait_until("it is gone", || place.sleeping(&mark) == 0);
    assert_eq!(place.prints("echo on"), "on\n");
    Ok(())
}

fn killing_one_leaves_the_other(bench: &Bench) -> Verdict {
    let place = bench.place();
    let other = place.start("touch other; until [ -e go ]; do sleep 0.02; done; echo other");
    let going = ready(&place, "touch ready; exec sleep 1000");
    place.wait_for("other");
    going.attempt.kill_processes();
    going.end().ended(CommandEnd::Signaled(9));
    std::fs::write(place.work("go"), "").unwrap();
    assert_eq!(other.end().ok(), "other\n");
    Ok(())
}

fn usage_is_reported_at_the_end(bench: &Bench) -> Verdict {
    let burn = "python3 -c 'import time; e = time.process_time() + 0.4\nwhile time.process_time() < e: pass'";
    let ran = bench.place().run(burn);
    ran.ok();
    let usage = ran.end.usage;
    assert!(usage.cpu_ms >= 300 && usage.wall_ms >= 300 && usage.memory_peak_bytes > 1 << 20, "{usage:?}");
    Ok(())
}

fn an_unawaited_process_does_not_delay_the_end(bench: &Bench) -> Verdict {
    bench.require_keeps_background()?;
    let place = bench.place();
    place.run("sleep 1000 >/dev/null 2>&1 </dev/null & exit 2").ended(CommandEnd::Exited(2));
    Ok(())
}

fn a_kill_before_a_word_is_an_end(bench: &Bench) -> Verdict {
    let place = bench.place();
    let going = place.begin(&inside("sleep 1000"), crate::bench::CAPTURE);
    going.attempt.kill_processes();
    going.end().ended(CommandEnd::Signaled(9));
    assert_eq!(place.prints("echo on"), "on\n");
    Ok(())
}
