//! Calls that wait for an answer.

use stockade_backend_api::{CommandEnd, HeldAnswer, HoldId};
use stockade_model::{DeniedOperation, IsolationLevel};

use crate::Verdict;
use crate::bench::{Bench, Declared, Heard, Place, grant, wait_until};

super::cases! { "holds":
    a_yes_lets_it_go_on, a_no_lets_it_fail, a_grant_is_for_its_command_alone, two_may_wait_at_once, equal_calls_share_a_question,
    the_other_sandboxes_continue, a_question_is_withdrawn_with_its_process, a_kill_ends_a_waiting_process, a_late_answer_is_nothing,
    an_answer_without_a_question_is_ignored, a_partial_yes_is_a_no, nothing_waits_without_an_order_to_hold, a_pause_keeps_the_question,
    questions_of_two_commands_are_their_own,
}

/// That calls can wait in it; where they cannot, nothing is ever asked.
#[track_caller]
pub fn demand(bench: &Bench, place: &Place) -> Result<(), Declared> {
    if bench.capabilities().holds {
        // Beneath level full the report says what there is.
        return if place.plan.level == IsolationLevel::Full { Ok(()) } else { place.require_exact() };
    }
    let going = place.try_begin(&crate::bench::inside("echo x > .bashrc; true"), crate::bench::CAPTURE, true);
    going.unwrap_or_else(|error| panic!("{error}")).end();
    Err(Declared("calls do not wait for an answer: the capabilities say so, and nobody is asked".to_owned()))
}

fn holding(bench: &Bench) -> Result<Place, Declared> {
    let place = bench.place();
    demand(bench, &place)?;
    Ok(place)
}

fn a_yes_lets_it_go_on(bench: &Bench) -> Verdict {
    let place = holding(bench)?;
    let mut going = place.start_held("echo given > .bashrc && cat .bashrc");
    let question = going.question();
    assert_eq!(question.denial.operation, DeniedOperation::Create);
    assert_eq!(question.denial.grant, Some(grant("write /workspace/.bashrc")));
    assert!(!place.work(".bashrc").exists());
    going.grant(&question);
    assert_eq!(going.end().ok(), "given\n");
    Ok(())
}

fn a_no_lets_it_fail(bench: &Bench) -> Verdict {
    let place = holding(bench)?;
    let mut going = place.start_held("echo x > .bashrc || echo refused");
    let question = going.question();
    going.answer(&question, HeldAnswer::Refused);
    assert_eq!(going.end().ok(), "refused\n");
    assert!(!place.work(".bashrc").exists());
    Ok(())
}

fn a_grant_is_for_its_command_alone(bench: &Bench) -> Verdict {
    let place = holding(bench)?;
    let mut going = place.start_held("echo x > .bashrc; echo y >> .bashrc");
    let question = going.question();
    going.grant(&question);
    going.end().ok();
    assert_eq!(place.read_text(".bashrc"), "x\ny\n");
    assert_eq!(place.run("echo z > .bashrc").denied().len(), 1);
    Ok(())
}

fn two_may_wait_at_once(bench: &Bench) -> Verdict {
    let place = holding(bench)?;
    let mut going = place.start_held("echo a > .bashrc & echo b > .profile & wait");
    let (one, two) = (going.question(), going.question());
    going.grant(&two);
    going.grant(&one);
    going.end().ok();
    assert_eq!((place.read_text(".bashrc"), place.read_text(".profile")), ("a\n".to_owned(), "b\n".to_owned()));
    Ok(())
}

fn equal_calls_share_a_question(bench: &Bench) -> Verdict {
    let place = holding(bench)?;
    let mut going = place.start_held("for i in 1 2 3; do (echo $i >> .bashrc) & done; wait");
    let question = going.question();
    going.grant(&question);
    // Who came while the first was answered may be asked about too.
    let ran = loop {
        match going.hear() {
            Heard::Held(question) => going.grant(&question),
            Heard::Withdrawn(_) => {}
            Heard::Ended(end) => break end,
        }
    };
    assert_eq!(ran.end, CommandEnd::Exited(0));
    assert_eq!(place.read_text(".bashrc").lines().count(), 3);
    Ok(())
}

fn the_other_sandboxes_continue(bench: &Bench) -> Verdict {
    let place = holding(bench)?;
    let mut going = place.start_held("(until [ -e go ]; do sleep 0.02; done; touch went) & echo x > .bashrc; wait");
    let question = going.question();
    place.prints("touch go");
    place.wait_for("went");
    going.grant(&question);
    going.end().ok();
    Ok(())
}

fn a_question_is_withdrawn_with_its_process(bench: &Bench) -> Verdict {
    let place = holding(bench)?;
    let script = "bash -c 'echo $$ > pid; echo x > .bashrc' & until [ -e go ]; do sleep 0.02; done; kill -KILL $(cat pid); wait; echo over";
    let mut going = place.start_held(script);
    let question = going.question();
    std::fs::write(place.work("go"), "").unwrap();
    assert!(matches!(going.hear(), Heard::Withdrawn(id) if id == question.id));
    going.grant(&question);
    assert_eq!(going.end().ok(), "over\n");
    assert!(!place.work(".bashrc").exists());
    Ok(())
}

fn a_kill_ends_a_waiting_process(bench: &Bench) -> Verdict {
    let place = holding(bench)?;
    let mut going = place.start_held("echo x > .bashrc");
    going.question();
    going.attempt.kill_processes();
    going.end().ended(CommandEnd::Signaled(9));
    assert!(!place.work(".bashrc").exists());
    Ok(())
}

fn a_late_answer_is_nothing(bench: &Bench) -> Verdict {
    let place = holding(bench)?;
    let mut going = place.start_held("echo x > .bashrc; true");
    let question = going.question();
    going.answer(&question, HeldAnswer::Refused);
    going.grant(&question);
    going.end().ok();
    assert!(!place.work(".bashrc").exists());
    Ok(())
}

fn an_answer_without_a_question_is_ignored(bench: &Bench) -> Verdict {
    let place = holding(bench)?;
    let mut going = place.start_held("echo x > .bashrc; true");
    let question = going.question();
    going.attempt.answer_call(HoldId(9999), HeldAnswer::Granted(vec![grant("write /workspace/.bashrc")]));
    going.answer(&question, HeldAnswer::Refused);
    going.end().ok();
    Ok(())
}

fn a_partial_yes_is_a_no(bench: &Bench) -> Verdict {
    let place = holding(bench)?;
    let mut going = place.start_held("echo x > .bashrc || echo refused");
    let question = going.question();
    going.answer(&question, HeldAnswer::Granted(vec![grant("write /workspace/.profile")]));
    assert_eq!(going.end().ok(), "refused\n");
    Ok(())
}

fn nothing_waits_without_an_order_to_hold(bench: &Bench) -> Verdict {
    let place = holding(bench)?;
    assert_eq!(place.run("echo x > .bashrc || echo refused").ok(), "refused\n");
    Ok(())
}

fn a_pause_keeps_the_question(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let place = holding(bench)?;
    let mut going = place.start_held("echo x > .bashrc; echo over");
    let question = going.question();
    // Who waits for an answer may not be one that can be stopped: then nothing is.
    if let Err(error) = place.sandbox().pause() {
        assert_eq!(place.prints("echo on"), "on\n");
        going.grant(&question);
        going.end().ok();
        return Err(Declared(error.to_string()));
    }
    going.grant(&question);
    place.sandbox().resume().unwrap();
    assert_eq!(going.end().ok(), "over\n");
    wait_until("it was carried out", || place.work(".bashrc").exists());
    Ok(())
}

fn questions_of_two_commands_are_their_own(bench: &Bench) -> Verdict {
    let place = holding(bench)?;
    let (mut one, mut two) =
        (place.start_held("echo one > .bashrc; true"), place.start_held("echo two > .bashrc; true"));
    let (of_one, of_two) = (one.question(), two.question());
    two.grant(&of_two);
    two.end().ok();
    assert_eq!(place.read_text(".bashrc"), "two\n");
    one.answer(&of_one, HeldAnswer::Refused);
    one.end().ok();
    assert_eq!(place.read_text(".bashrc"), "two\n");
    Ok(())
}
