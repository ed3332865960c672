//! A sandbox that stands still.

use std::fs;

use crate::Verdict;
use crate::bench::{Bench, Going, Place, wait_until};

super::cases! { "pausing":
    nothing_progresses, it_continues_where_it_was_frozen, a_command_is_refused_meanwhile, pausing_twice_is_pausing_once,
    resuming_a_running_sandbox_does_nothing, a_paused_one_can_be_destroyed, another_command_continues, its_files_are_there, a_command_can_be_killed_meanwhile,
    its_usage_is_reported,
}

/// A sandbox in which something counts.
fn counting(bench: &Bench) -> (Place, Going) {
    let place = bench.place();
    let going = place.start("while true; do echo >> /workspace/n; done");
    wait_until("it counts", || length(&place) > 10);
    (place, going)
}

fn length(place: &Place) -> u64 {
    fs::metadata(place.work("n")).map_or(0, |n| n.len())
}

fn nothing_progresses(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let (place, _going) = counting(bench);
    place.sandbox().pause().unwrap();
    let stood_at = length(&place);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(length(&place), stood_at);
    place.sandbox().resume().unwrap();
    wait_until("it goes on", || length(&place) > stood_at);
    Ok(())
}

fn it_continues_where_it_was_frozen(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let place = bench.place();
    let going = place.start("touch ready; until [ -e go ]; do sleep 0.02; done; echo $((6 * 7))");
    place.wait_for("ready");
    place.sandbox().pause().unwrap();
    fs::write(place.work("go"), "").unwrap();
    place.sandbox().resume().unwrap();
    assert_eq!(going.end().ok(), "42\n");
    Ok(())
}

fn a_command_is_refused_meanwhile(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let place = bench.place();
    place.sandbox().pause().unwrap();
    let read_text = place.refuses(&crate::bench::inside("touch ran"));
    assert!(read_text.what.contains("is paused"), "{read_text:?}");
    place.sandbox().resume().unwrap();
    assert_eq!(place.prints("ls"), "");
    Ok(())
}

fn pausing_twice_is_pausing_once(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let place = bench.place();
    place.sandbox().pause().unwrap();
    place.sandbox().pause().unwrap();
    place.sandbox().resume().unwrap();
    assert_eq!(place.prints("echo on"), "on\n");
    Ok(())
}

fn resuming_a_running_sandbox_does_nothing(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let place = bench.place();
    place.sandbox().resume().unwrap();
    assert_eq!(place.prints("echo on"), "on\n");
    Ok(())
}

fn a_paused_one_can_be_destroyed(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let (place, _going) = counting(bench);
    place.sandbox().pause().unwrap();
    place.sandbox().destroy().unwrap();
    let stood_at = length(&place);
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(length(&place), stood_at);
    Ok(())
}

fn another_command_continues(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let (one, other) = (bench.place(), bench.place());
    one.sandbox().pause().unwrap();
    assert_eq!(other.prints("echo on"), "on\n");
    one.sandbox().resume().unwrap();
    Ok(())
}

fn its_files_are_there(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let place = bench.place();
    place.prints("echo text > file");
    place.sandbox().pause().unwrap();
    assert_eq!(place.read_text("file"), "text\n");
    place.sandbox().resume().unwrap();
    Ok(())
}

fn a_command_can_be_killed_meanwhile(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let place = bench.place();
    let going = place.start("touch ready; sleep 1000");
    place.wait_for("ready");
    place.sandbox().pause().unwrap();
    going.attempt.kill_processes();
    place.sandbox().resume().unwrap();
    going.end().ended(stockade_backend_api::CommandEnd::Signaled(9));
    Ok(())
}

fn its_usage_is_reported(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let (place, _going) = counting(bench);
    place.sandbox().pause().unwrap();
    let usage = place.sandbox().read_usage().unwrap();
    assert!(usage.processes.is_none_or(|processes| processes >= 1), "{usage:?}");
    place.sandbox().resume().unwrap();
    Ok(())
}
