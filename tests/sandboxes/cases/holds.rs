//! Calls that wait for an answer.

use stockade_backend_api::{CommandEnd, HeldAnswer, HoldId};
use stockade_model::{DeniedOperation, IsolationLevel};

use crate::Verdict;
use crate::bench::{AttemptReport, Bench, Declared, TestSandbox, grant, wait_until};

super::cases! { "holds":
    a_yes_lets_it_go_on, a_no_lets_it_fail, a_grant_is_for_its_command_alone, two_may_wait_at_once, equal_calls_share_a_question,
    the_other_sandboxes_continue, a_question_is_withdrawn_with_its_process, a_kill_ends_a_waiting_process, a_late_answer_is_nothing,
    an_answer_without_a_question_is_ignored, a_partial_yes_is_a_no, nothing_waits_without_an_order_to_hold, a_pause_keeps_the_question,
    questions_of_two_commands_are_their_own,
}

/// That calls can wait in it; where they cannot, nothing is ever asked.
#[track_caller]
pub fn require_held_calls(bench: &Bench, test_sandbox: &TestSandbox) -> Result<(), Declared> {
    if bench.capabilities().holds {
        // Beneath level full the report says what there is.
        return if test_sandbox.plan.level == IsolationLevel::Full { Ok(()) } else { test_sandbox.require_exact() };
    }
    let running = test_sandbox.try_begin(&crate::bench::inside("echo x > .bashrc; true"), crate::bench::CAPTURE, true);
    running.unwrap_or_else(|error| panic!("{error}")).end();
    Err(Declared("calls do not wait for an answer: the capabilities say so, and nobody is asked".to_owned()))
}

fn holding(bench: &Bench) -> Result<TestSandbox, Declared> {
    let test_sandbox = bench.test_sandbox();
    require_held_calls(bench, &test_sandbox)?;
    Ok(test_sandbox)
}

fn a_yes_lets_it_go_on(bench: &Bench) -> Verdict {
    let test_sandbox = holding(bench)?;
    let mut running = test_sandbox.start_held("echo given > .bashrc && cat .bashrc");
    let question = running.question();
    assert_eq!(question.denial.operation, DeniedOperation::Create);
    assert_eq!(question.denial.grant, Some(grant("write /workspace/.bashrc")));
    assert!(!test_sandbox.work(".bashrc").exists());
    running.grant(&question);
    assert_eq!(running.end().ok(), "given\n");
    Ok(())
}

fn a_no_lets_it_fail(bench: &Bench) -> Verdict {
    let test_sandbox = holding(bench)?;
    let mut running = test_sandbox.start_held("echo x > .bashrc || echo refused");
    let question = running.question();
    running.answer(&question, HeldAnswer::Refused);
    assert_eq!(running.end().ok(), "refused\n");
    assert!(!test_sandbox.work(".bashrc").exists());
    Ok(())
}

fn a_grant_is_for_its_command_alone(bench: &Bench) -> Verdict {
    let test_sandbox = holding(bench)?;
    let mut running = test_sandbox.start_held("echo x > .bashrc; echo y >> .bashrc");
    let question = running.question();
    running.grant(&question);
    running.end().ok();
    assert_eq!(test_sandbox.read_text(".bashrc"), "x\ny\n");
    assert_eq!(test_sandbox.run("echo z > .bashrc").denied().len(), 1);
    Ok(())
}

fn two_may_wait_at_once(bench: &Bench) -> Verdict {
    let test_sandbox = holding(bench)?;
    let mut running = test_sandbox.start_held("echo a > .bashrc & echo b > .profile & wait");
    let (one, two) = (running.question(), running.question());
    running.grant(&two);
    running.grant(&one);
    running.end().ok();
    assert_eq!(
        (test_sandbox.read_text(".bashrc"), test_sandbox.read_text(".profile")),
        ("a\n".to_owned(), "b\n".to_owned())
    );
    Ok(())
}

fn equal_calls_share_a_question(bench: &Bench) -> Verdict {
    let test_sandbox = holding(bench)?;
    let mut running = test_sandbox.start_held("for i in 1 2 3; do (echo $i >> .bashrc) & done; wait");
    let question = running.question();
    running.grant(&question);
    // Who came while the first was answered may be asked about too.
    let ran = loop {
        match running.wait_for_report() {
            AttemptReport::Held(question) => running.grant(&question),
            AttemptReport::Withdrawn(_) => {}
            AttemptReport::Ended(end) => break end,
        }
    };
    assert_eq!(ran.end, CommandEnd::Exited(0));
    assert_eq!(test_sandbox.read_text(".bashrc").lines().count(), 3);
    Ok(())
}

fn the_other_sandboxes_continue(bench: &Bench) -> Verdict {
    let test_sandbox = holding(bench)?;
    let mut running =
        test_sandbox.start_held("(until [ -e go ]; do sleep 0.02; done; touch went) & echo x > .bashrc; wait");
    let question = running.question();
    test_sandbox.prints("touch go");
    test_sandbox.wait_for("went");
    running.grant(&question);
    running.end().ok();
    Ok(())
}

fn a_question_is_withdrawn_with_its_process(bench: &Bench) -> Verdict {
    let test_sandbox = holding(bench)?;
    let script = "bash -c 'echo $$ > pid; echo x > .bashrc' & until [ -e go ]; do sleep 0.02; done; kill -KILL $(cat pid); wait; echo over";
    let mut running = test_sandbox.start_held(script);
    let question = running.question();
    std::fs::write(test_sandbox.work("go"), "").unwrap();
    assert!(matches!(running.wait_for_report(), AttemptReport::Withdrawn(id) if id == question.id));
    running.grant(&question);
    assert_eq!(running.end().ok(), "over\n");
    assert!(!test_sandbox.work(".bashrc").exists());
    Ok(())
}

fn a_kill_ends_a_waiting_process(bench: &Bench) -> Verdict {
    let test_sandbox = holding(bench)?;
    let mut running = test_sandbox.start_held("echo x > .bashrc");
    running.question();
    running.attempt.kill_processes();
    running.end().ended(CommandEnd::Signaled(9));
    assert!(!test_sandbox.work(".bashrc").exists());
    Ok(())
}

fn a_late_answer_is_nothing(bench: &Bench) -> Verdict {
    let test_sandbox = holding(bench)?;
    let mut running = test_sandbox.start_held("echo x > .bashrc; true");
    let question = running.question();
    running.answer(&question, HeldAnswer::Refused);
    running.grant(&question);
    running.end().ok();
    assert!(!test_sandbox.work(".bashrc").exists());
    Ok(())
}

fn an_answer_without_a_question_is_ignored(bench: &Bench) -> Verdict {
    let test_sandbox = holding(bench)?;
    let mut running = test_sandbox.start_held("echo x > .bashrc; true");
    let question = running.question();
    running.attempt.answer_call(HoldId(9999), HeldAnswer::Granted(vec![grant("write /workspace/.bashrc")]));
    running.answer(&question, HeldAnswer::Refused);
    running.end().ok();
    Ok(())
}

fn a_partial_yes_is_a_no(bench: &Bench) -> Verdict {
    let test_sandbox = holding(bench)?;
    let mut running = test_sandbox.start_held("echo x > .bashrc || echo refused");
    let question = running.question();
    running.answer(&question, HeldAnswer::Granted(vec![grant("write /workspace/.profile")]));
    assert_eq!(running.end().ok(), "refused\n");
    Ok(())
}

fn nothing_waits_without_an_order_to_hold(bench: &Bench) -> Verdict {
    let test_sandbox = holding(bench)?;
    assert_eq!(test_sandbox.run("echo x > .bashrc || echo refused").ok(), "refused\n");
    Ok(())
}

fn a_pause_keeps_the_question(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let test_sandbox = holding(bench)?;
    let mut running = test_sandbox.start_held("echo x > .bashrc; echo over");
    let question = running.question();
    // Who waits for an answer may not be one that can be stopped: then nothing is.
    if let Err(error) = test_sandbox.sandbox().pause() {
        assert_eq!(test_sandbox.prints("echo on"), "on\n");
        running.grant(&question);
        running.end().ok();
        return Err(Declared(error.to_string()));
    }
    running.grant(&question);
    test_sandbox.sandbox().resume().unwrap();
    assert_eq!(running.end().ok(), "over\n");
    wait_until("it was carried out", || test_sandbox.work(".bashrc").exists());
    Ok(())
}

fn questions_of_two_commands_are_their_own(bench: &Bench) -> Verdict {
    let test_sandbox = holding(bench)?;
    let (mut one, mut two) =
        (test_sandbox.start_held("echo one > .bashrc; true"), test_sandbox.start_held("echo two > .bashrc; true"));
    let (of_one, of_two) = (one.question(), two.question());
    two.grant(&of_two);
    two.end().ok();
    assert_eq!(test_sandbox.read_text(".bashrc"), "two\n");
    one.answer(&of_one, HeldAnswer::Refused);
    one.end().ok();
    assert_eq!(test_sandbox.read_text(".bashrc"), "two\n");
    Ok(())
}
