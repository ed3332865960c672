//! A command at a terminal.

use stockade_backend_api::{CommandEnd, StdioMode};
use stockade_model::LayerState;

use crate::Verdict;
use crate::bench::{Bench, Declared, Going, Place, inside};
use crate::streams::{Terminal, let_go};

super::cases! { "terminal":
    all_streams_are_one, it_has_the_size_it_is_given, a_new_size_is_felt, it_is_the_controlling_one, keys_are_read_line_by_line,
    keys_are_shown, an_interrupt_reaches_the_foreground_process, a_quit_ends_with_its_signal, an_end_of_input_is_felt,
    raw_keys_arrive_at_once, a_stopped_job_is_taken_up_again, a_hangup_reaches_the_command,
    a_program_may_ask_for_a_password,
}

/// Begins a script at a terminal.
#[track_caller]
fn seated(place: &Place, script: &str) -> (Going, Terminal) {
    let terminal = Terminal::new(24, 80);
    let going = place.begin(&inside(script), StdioMode::Terminal);
    let_go();
    (going, terminal)
}

#[track_caller]
fn ends(going: Going, code: i32) {
    going.end().ended(CommandEnd::Exited(code));
}

/// That its terminals are all that a terminal is, or that the report says what is missing.
#[track_caller]
fn require_whole(place: &Place) -> Result<(), Declared> {
    let (going, terminal) = seated(place, "echo here");
    terminal.shown.until("here");
    let ran = going.end();
    match ran.report.layers.get("terminal") {
        Some(layer) if layer.state != LayerState::Enforced => Err(Declared(layer.detail.clone())),
        Some(_) | None => Ok(()),
    }
}

fn all_streams_are_one(bench: &Bench) -> Verdict {
    let place = bench.place();
    let (going, terminal) = seated(&place, "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo one >&2");
    terminal.shown.until("one\r\n");
    ends(going, 0);
    Ok(())
}

fn it_has_the_size_it_is_given(bench: &Bench) -> Verdict {
    let place = bench.place();
    let terminal = Terminal::new(33, 111);
    let going = place.begin(&inside("stty size"), StdioMode::Terminal);
    let_go();
    terminal.shown.until("33 111\r\n");
    ends(going, 0);
    Ok(())
}

fn a_new_size_is_felt(bench: &Bench) -> Verdict {
    let script = "trap 'stty size; exit 0' WINCH; echo ready; while true; do sleep 0.05; done";
    let place = bench.place();
    let (going, terminal) = seated(&place, script);
    terminal.shown.until("ready\r\n");
    terminal.resize(50, 132);
    terminal.shown.until("50 132\r\n");
    ends(going, 0);
    Ok(())
}

fn it_is_the_controlling_one(bench: &Bench) -> Verdict {
    let place = bench.place();
    require_whole(&place)?;
    let (going, terminal) = seated(&place, "echo by name > /dev/tty; ps -o tty= -p $$ 2>/dev/null; exit 5");
    terminal.shown.until("by name\r\n");
    ends(going, 5);
    Ok(())
}

fn keys_are_read_line_by_line(bench: &Bench) -> Verdict {
    let place = bench.place();
    require_whole(&place)?;
    let (going, mut terminal) = seated(&place, "echo ready; read x; echo \"heard $x\"");
    terminal.shown.until("ready");
    terminal.press("hellp\x7fo\r");
    terminal.shown.until("heard hello\r\n");
    ends(going, 0);
    Ok(())
}

fn keys_are_shown(bench: &Bench) -> Verdict {
    let place = bench.place();
    // No loop of a shell: one whose program has just ended by itself takes no notice of an interrupt.
    let (going, mut terminal) = seated(&place, "echo ready; exec sleep 1000");
    terminal.shown.until("ready");
    terminal.press("typed");
    terminal.shown.until("typed");
    terminal.press("\x03");
    going.end().ended(CommandEnd::Signaled(2));
    Ok(())
}

fn an_interrupt_reaches_the_foreground_process(bench: &Bench) -> Verdict {
    let place = bench.place();
    let (going, mut terminal) =
        seated(&place, "trap 'echo caught; exit 7' INT; echo ready; while true; do sleep 0.05; done");
    terminal.shown.until("ready");
    terminal.press("\x03");
    terminal.shown.until("caught");
    ends(going, 7);
    Ok(())
}

/// A shell takes no notice of this signal.
const QUITS: &str = "ulimit -c 0; exec python3 -c 'import time; print(\"ready\", flush=True); time.sleep(1000)'";

fn a_quit_ends_with_its_signal(bench: &Bench) -> Verdict {
    let place = bench.place();
    let (going, mut terminal) = seated(&place, QUITS);
    terminal.shown.until("ready");
    terminal.press("\x1c");
    going.end().ended(CommandEnd::Signaled(3));
    Ok(())
}

fn an_end_of_input_is_felt(bench: &Bench) -> Verdict {
    let place = bench.place();
    require_whole(&place)?;
    let (going, mut terminal) = seated(&place, "echo ready; cat > kept; echo over $(cat kept)");
    terminal.shown.until("ready");
    terminal.press("line\r\x04");
    terminal.shown.until("over line\r\n");
    ends(going, 0);
    Ok(())
}

fn raw_keys_arrive_at_once(bench: &Bench) -> Verdict {
    let place = bench.place();
    let (going, mut terminal) = seated(&place, "stty raw -echo; echo ready; head -c 3 | od -An -tx1; stty sane");
    terminal.shown.until("ready");
    terminal.press("\x03a\x04");
    terminal.shown.until("03 61 04");
    ends(going, 0);
    Ok(())
}

fn a_stopped_job_is_taken_up_again(bench: &Bench) -> Verdict {
    let script = "set -m; (echo ready; read x; echo \"job $x\"); echo stopped $?; fg >/dev/null; echo over";
    let place = bench.place();
    require_whole(&place)?;
    let (going, mut terminal) = seated(&place, script);
    terminal.shown.until("ready");
    terminal.press("\x1a");
    terminal.shown.until("stopped 148");
    terminal.press("goes on\r");
    terminal.shown.until("job goes on\r\n");
    terminal.shown.until("over");
    ends(going, 0);
    Ok(())
}

fn a_hangup_reaches_the_command(bench: &Bench) -> Verdict {
    let place = bench.place();
    let terminal = Terminal::unheard();
    let script = "trap 'touch told; exit 0' HUP; touch ready; while true; do sleep 0.05; done";
    let going = place.begin(&inside(script), StdioMode::Terminal);
    let_go();
    place.wait_for("ready");
    drop(terminal);
    going.end();
    assert!(place.work("told").exists());
    Ok(())
}

fn a_program_may_ask_for_a_password(bench: &Bench) -> Verdict {
    let program = "python3 -c 'import getpass; print(len(getpass.getpass(\"password: \")))'";
    let place = bench.place();
    require_whole(&place)?;
    let (going, mut terminal) = seated(&place, program);
    terminal.shown.until("password: ");
    terminal.press("secret\r");
    terminal.shown.until("6\r\n");
    assert!(!String::from_utf8_lossy(&terminal.shown.whole()).contains("secret"));
    ends(going, 0);
    Ok(())
}
