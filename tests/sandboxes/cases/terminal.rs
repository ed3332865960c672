//! A command at a terminal.

use stockade_backend_api::{CommandEnd, StdioMode};
use stockade_model::LayerState;

use crate::Verdict;
use crate::bench::{Bench, Declared, RunningCommand, TestSandbox, inside};
use crate::streams::{Terminal, let_go};

super::cases! { "terminal":
    all_streams_are_one, it_has_the_size_it_is_given, a_new_size_is_felt, it_is_the_controlling_one, keys_are_read_line_by_line,
    keys_are_shown, an_interrupt_reaches_the_foreground_process, a_quit_ends_with_its_signal, an_end_of_input_is_felt,
    raw_keys_arrive_at_once, a_stopped_job_is_taken_up_again, a_hangup_reaches_the_command,
    a_program_may_ask_for_a_password,
}

/// Begins a script at a terminal.
#[track_caller]
fn start_at_terminal(test_sandbox: &TestSandbox, script: &str) -> (RunningCommand, Terminal) {
    let terminal = Terminal::new(24, 80);
    let running = test_sandbox.begin(&inside(script), StdioMode::Terminal);
    let_go();
    (running, terminal)
}

#[track_caller]
fn ends(running: RunningCommand, code: i32) {
    running.end().ended(CommandEnd::Exited(code));
}

/// That its terminals are all that a terminal is, or that the report says what is missing.
#[track_caller]
fn require_whole(test_sandbox: &TestSandbox) -> Result<(), Declared> {
    let (running, terminal) = start_at_terminal(test_sandbox, "echo here");
    terminal.shown.until("here");
    let ran = running.end();
    match ran.report.layers.get("terminal") {
        Some(layer) if layer.state != LayerState::Enforced => Err(Declared(layer.detail.clone())),
        Some(_) | None => Ok(()),
    }
}

fn all_streams_are_one(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let (running, terminal) = start_at_terminal(&test_sandbox, "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo one >&2");
    terminal.shown.until("one\r\n");
    ends(running, 0);
    Ok(())
}

fn it_has_the_size_it_is_given(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let terminal = Terminal::new(33, 111);
    let running = test_sandbox.begin(&inside("stty size"), StdioMode::Terminal);
    let_go();
    terminal.shown.until("33 111\r\n");
    ends(running, 0);
    Ok(())
}

fn a_new_size_is_felt(bench: &Bench) -> Verdict {
    let script = "trap 'stty size; exit 0' WINCH; echo ready; while true; do sleep 0.05; done";
    let test_sandbox = bench.test_sandbox();
    let (running, terminal) = start_at_terminal(&test_sandbox, script);
    terminal.shown.until("ready\r\n");
    terminal.resize(50, 132);
    terminal.shown.until("50 132\r\n");
    ends(running, 0);
    Ok(())
}

fn it_is_the_controlling_one(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    require_whole(&test_sandbox)?;
    let (running, terminal) =
        start_at_terminal(&test_sandbox, "echo by name > /dev/tty; ps -o tty= -p $$ 2>/dev/null; exit 5");
    terminal.shown.until("by name\r\n");
    ends(running, 5);
    Ok(())
}

fn keys_are_read_line_by_line(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    require_whole(&test_sandbox)?;
    let (running, mut terminal) = start_at_terminal(&test_sandbox, "echo ready; read x; echo \"heard $x\"");
    terminal.shown.until("ready");
    terminal.press("hellp\x7fo\r");
    terminal.shown.until("heard hello\r\n");
    ends(running, 0);
    Ok(())
}

fn keys_are_shown(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    // No loop of a shell: one whose program has just ended by itself takes no notice of an interrupt.
    let (running, mut terminal) = start_at_terminal(&test_sandbox, "echo ready; exec sleep 1000");
    terminal.shown.until("ready");
    terminal.press("typed");
    terminal.shown.until("typed");
    terminal.press("\x03");
    running.end().ended(CommandEnd::Signaled(2));
    Ok(())
}

fn an_interrupt_reaches_the_foreground_process(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let (running, mut terminal) =
        start_at_terminal(&test_sandbox, "trap 'echo caught; exit 7' INT; echo ready; while true; do sleep 0.05; done");
    terminal.shown.until("ready");
    terminal.press("\x03");
    terminal.shown.until("caught");
    ends(running, 7);
    Ok(())
}

/// A shell takes no notice of this signal.
const QUITS: &str = "ulimit -c 0; exec python3 -c 'import time; print(\"ready\", flush=True); time.sleep(1000)'";

fn a_quit_ends_with_its_signal(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let (running, mut terminal) = start_at_terminal(&test_sandbox, QUITS);
    terminal.shown.until("ready");
    terminal.press("\x1c");
    running.end().ended(CommandEnd::Signaled(3));
    Ok(())
}

fn an_end_of_input_is_felt(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    require_whole(&test_sandbox)?;
    let (running, mut terminal) = start_at_terminal(&test_sandbox, "echo ready; cat > kept; echo over $(cat kept)");
    terminal.shown.until("ready");
    terminal.press("line\r\x04");
    terminal.shown.until("over line\r\n");
    ends(running, 0);
    Ok(())
}

fn raw_keys_arrive_at_once(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let (running, mut terminal) =
        start_at_terminal(&test_sandbox, "stty raw -echo; echo ready; head -c 3 | od -An -tx1; stty sane");
    terminal.shown.until("ready");
    terminal.press("\x03a\x04");
    terminal.shown.until("03 61 04");
    ends(running, 0);
    Ok(())
}

fn a_stopped_job_is_taken_up_again(bench: &Bench) -> Verdict {
    let script = "set -m; (echo ready; read x; echo \"job $x\"); echo stopped $?; fg >/dev/null; echo over";
    let test_sandbox = bench.test_sandbox();
    require_whole(&test_sandbox)?;
    let (running, mut terminal) = start_at_terminal(&test_sandbox, script);
    terminal.shown.until("ready");
    terminal.press("\x1a");
    terminal.shown.until("stopped 148");
    terminal.press("goes on\r");
    terminal.shown.until("job goes on\r\n");
    terminal.shown.until("over");
    ends(running, 0);
    Ok(())
}

fn a_hangup_reaches_the_command(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let terminal = Terminal::unheard();
    let script = "trap 'touch told; exit 0' HUP; touch ready; while true; do sleep 0.05; done";
    let running = test_sandbox.begin(&inside(script), StdioMode::Terminal);
    let_go();
    test_sandbox.wait_for("ready");
    drop(terminal);
    running.end();
    assert!(test_sandbox.work("told").exists());
    Ok(())
}

fn a_program_may_ask_for_a_password(bench: &Bench) -> Verdict {
    let program = "python3 -c 'import getpass; print(len(getpass.getpass(\"password: \")))'";
    let test_sandbox = bench.test_sandbox();
    require_whole(&test_sandbox)?;
    let (running, mut terminal) = start_at_terminal(&test_sandbox, program);
    terminal.shown.until("password: ");
    terminal.press("secret\r");
    terminal.shown.until("6\r\n");
    assert!(!String::from_utf8_lossy(&terminal.shown.whole()).contains("secret"));
    ends(running, 0);
    Ok(())
}
