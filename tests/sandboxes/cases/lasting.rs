//! A sandbox from its making to its end, whoever holds it.

use std::fs;

use stockade_backend_api::{CommandEnd, SandboxError, SandboxEvent, SandboxEventSender};
use stockade_model::SandboxId;

use crate::Verdict;
use crate::bench::{Bench, Declared, inside, wait_until};
use crate::sleepers;

super::cases! { "lasting":
    it_has_the_id_of_its_plan, its_report_lists_enforced_layers, its_end_is_whole, its_directories_stay, ending_twice_is_ending_once,
    nothing_starts_in_a_removed_sandbox, a_command_is_lost_with_it, it_ends_under_load, its_usage_grows, its_own_end_is_no_loss,
    one_of_the_same_directories_continues, clearing_nothing_is_nothing, clearing_twice_is_nothing, a_released_sandbox_is_found_again,
    background_processes_are_found_again, a_removed_sandbox_cannot_be_opened, a_snapshot_has_the_content_of_its_time, ten_after_each_other,
    one_is_made_beside_others,
}

fn it_has_the_id_of_its_plan(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    assert_eq!(test_sandbox.sandbox().id(), &test_sandbox.plan.id);
    Ok(())
}

fn its_report_lists_enforced_layers(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let of_all = test_sandbox.sandbox().enforcement_report();
    assert!(of_all.level == test_sandbox.plan.level && of_all.layers.contains_key("limits"), "{of_all:?}");
    let ran = test_sandbox.run("true");
    assert!(ran.report.layers.len() >= of_all.layers.len(), "{:?}", ran.report);
    assert!(ran.report.layers.values().all(|layer| !layer.detail.is_empty()), "{:?}", ran.report);
    Ok(())
}

fn its_end_is_whole(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let mark = sleepers::mark(1);
    let _going = test_sandbox.start(&format!("sleep {mark} & (setsid sleep {mark} &); sleep {mark}"));
    wait_until("all run", || test_sandbox.sleeping(&mark) == 3);
    test_sandbox.sandbox().destroy().unwrap();
    assert_eq!(test_sandbox.sleeping(&mark), 0);
    Ok(())
}

fn its_directories_stay(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("echo kept > file; echo kept > ~/file");
    test_sandbox.sandbox().destroy().unwrap();
    assert_eq!(test_sandbox.read_text("file"), "kept\n");
    assert!(test_sandbox.plan.home.join("file").exists());
    Ok(())
}

fn ending_twice_is_ending_once(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.sandbox().destroy().unwrap();
    test_sandbox.sandbox().destroy().unwrap();
    Ok(())
}

fn nothing_starts_in_a_removed_sandbox(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.sandbox().destroy().unwrap();
    let read_text = test_sandbox.refuses(&inside("touch ran"));
    assert!(read_text.what.contains("is gone"), "{read_text:?}");
    assert!(matches!(test_sandbox.sandbox().read_usage(), Err(SandboxError::Gone(_))));
    assert!(!test_sandbox.work("ran").exists());
    Ok(())
}

fn a_command_is_lost_with_it(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let running = test_sandbox.start("touch ready; sleep 1000");
    test_sandbox.wait_for("ready");
    test_sandbox.sandbox().destroy().unwrap();
    let end = running.end().end.end;
    assert!(matches!(end, CommandEnd::Lost(_) | CommandEnd::Signaled(9)), "{end:?}");
    Ok(())
}

fn it_ends_under_load(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let busy = "touch b.$0; while :; do echo x >> out.$0; mkdir -p d/$0; mv d/$0 d/m.$0; rm -rf d/m.$0; (true); done";
    let numbers: Vec<String> = (0..12).map(|number| number.to_string()).collect();
    let plans = numbers.iter().map(|number| crate::bench::command(&["bash", "-c", busy, number]));
    let running: Vec<_> = plans.map(|plan| test_sandbox.begin(&plan, crate::bench::CAPTURE)).collect();
    numbers.iter().for_each(|number| test_sandbox.wait_for(&format!("b.{number}")));
    test_sandbox.sandbox().destroy().unwrap();
    for running in running {
        let end = running.end().end.end;
        assert!(matches!(end, CommandEnd::Lost(_) | CommandEnd::Signaled(9)), "{end:?}");
    }
    Ok(())
}

fn its_usage_grows(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let before = test_sandbox.sandbox().read_usage().unwrap();
    test_sandbox.prints("python3 -c 'import time; e = time.process_time() + 0.5\nwhile time.process_time() < e: pass'");
    wait_until("its time is counted", || {
        let after = test_sandbox.sandbox().read_usage().unwrap();
        after.total.wall_ms > before.total.wall_ms
            && (after.memory_bytes.is_none() || after.total.cpu_ms >= before.total.cpu_ms + 400)
    });
    Ok(())
}

fn its_own_end_is_no_loss(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("true");
    test_sandbox.sandbox().destroy().unwrap();
    assert_eq!(test_sandbox.event_stream.try_iter().filter(|event| matches!(event, SandboxEvent::Lost(_))).count(), 0);
    Ok(())
}

fn one_of_the_same_directories_continues(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("echo kept > file; echo gone > /tmp/file");
    let plan = test_sandbox.plan.clone();
    test_sandbox.sandbox().destroy().unwrap();
    drop(test_sandbox);
    let test_sandbox = bench.make_of(plan).unwrap();
    assert_eq!(test_sandbox.prints("cat file; find /tmp -mindepth 1"), "kept\n");
    Ok(())
}

fn clearing_nothing_is_nothing(bench: &Bench) -> Verdict {
    bench.sandboxes.clear(&SandboxId::from_random([0; 16])).unwrap();
    Ok(())
}

fn clearing_twice_is_nothing(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let id = test_sandbox.plan.id.clone();
    drop(test_sandbox);
    bench.sandboxes.clear(&id).unwrap();
    bench.sandboxes.clear(&id).unwrap();
    Ok(())
}

/// That they go on without whoever made them, or that nobody finds one again.
#[track_caller]
fn require_adopts(bench: &Bench) -> Result<(), Declared> {
    if bench.capabilities().adopts {
        return Ok(());
    }
    let plan = bench.test_sandbox().leave();
    match bench.sandboxes.adopt_sandbox(&plan, SandboxEventSender::new(|_| {})) {
        Err(error @ SandboxError::Gone(_)) => Err(Declared(format!("it ends with whoever made it: {error}"))),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it was found again, though none goes on"),
    }
}

fn a_released_sandbox_is_found_again(bench: &Bench) -> Verdict {
    require_adopts(bench)?;
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("echo temp > /tmp/file");
    let found = bench.adopt(test_sandbox.leave()).unwrap();
    assert_eq!(found.prints("cat /tmp/file"), "temp\n");
    Ok(())
}

fn background_processes_are_found_again(bench: &Bench) -> Verdict {
    require_adopts(bench)?;
    bench.require_keeps_background()?;
    let test_sandbox = bench.test_sandbox();
    let mark = sleepers::mark(2);
    test_sandbox.prints(&format!("(setsid sleep {mark} >/dev/null 2>&1 </dev/null &); true"));
    wait_until("it runs", || test_sandbox.sleeping(&mark) == 1);
    let found = bench.adopt(test_sandbox.leave()).unwrap();
    assert_eq!(found.sleeping(&mark), 1);
    found.sandbox().destroy().unwrap();
    assert_eq!(found.sleeping(&mark), 0);
    Ok(())
}

fn a_removed_sandbox_cannot_be_opened(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let plan = test_sandbox.plan.clone();
    test_sandbox.sandbox().destroy().unwrap();
    assert!(matches!(bench.adopt(plan), Err(SandboxError::Gone(_))));
    Ok(())
}

fn a_snapshot_has_the_content_of_its_time(bench: &Bench) -> Verdict {
    let can = bench.capabilities().snapshots;
    let to = bench.directory("snapshot");
    bench.require_held_calls(can, "a snapshot", || bench.test_sandbox().sandbox().snapshot_files(&to))?;
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("mkdir d; echo work > d/file; ln -s file d/link; echo home > ~/file");
    test_sandbox.sandbox().snapshot_files(&to).unwrap();
    test_sandbox.prints("echo later > d/file");
    assert_eq!(fs::read_to_string(to.join("workspace/d/file")).unwrap(), "work\n");
    assert_eq!(fs::read_to_string(to.join("home/file")).unwrap(), "home\n");
    assert!(to.join("workspace/d/link").is_symlink());
    Ok(())
}

fn ten_after_each_other(bench: &Bench) -> Verdict {
    for _ in 0..10 {
        assert_eq!(bench.test_sandbox().prints("echo here"), "here\n");
    }
    Ok(())
}

fn one_is_made_beside_others(bench: &Bench) -> Verdict {
    let test_sandboxes: Vec<_> = (0..8).map(|_| bench.test_sandbox()).collect();
    for test_sandbox in &test_sandboxes {
        test_sandbox.prints("echo x > file");
    }
    test_sandboxes[3].sandbox().destroy().unwrap();
    for (number, test_sandbox) in test_sandboxes.iter().enumerate().filter(|(number, _)| *number != 3) {
        assert_eq!(test_sandbox.prints("cat file"), "x\n", "{number}");
    }
    Ok(())
}
