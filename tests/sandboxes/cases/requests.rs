//! Commands on the whole way of a request, through the real engine: its rules, its
//! questions and its record.

use stockade_model::{ApprovalAnswer, ApprovalMode, ApprovalScope, FinalStatus, LimitKind};

use crate::Verdict;
use crate::approval_fixture::ApprovalFixture;
use crate::bench::{Bench, grant};

super::cases! { "requests":
    a_request_passes_all_steps, its_record_begins_before_it, its_own_exit_is_the_outcomes, a_rule_refuses_it, its_time_runs_out, a_limit_ends_it,
    no_question_in_mode_never, a_question_is_answered_in_place, a_no_is_a_refusal, an_interrupt_ends_it,
    a_grant_of_the_request_is_given, a_paused_sandbox_is_an_error, a_removed_sandbox_is_an_error, output_is_in_the_outcome,
    reached_hosts_are_in_the_outcome,
}

fn a_request_passes_all_steps(bench: &Bench) -> Verdict {
    let fixture = ApprovalFixture::of(bench, &[]);
    let test_sandbox = &fixture.test_sandbox;
    let outcome = fixture.run("echo through > file");
    assert_eq!((outcome.status, outcome.exit_code), (FinalStatus::Exited, Some(0)), "{outcome:?}");
    assert_eq!(test_sandbox.read_text("file"), "through\n");
    assert_eq!(outcome.attempts[0].backend, test_sandbox.sandbox().backend().name());
    Ok(())
}

fn its_record_begins_before_it(bench: &Bench) -> Verdict {
    let fixture = ApprovalFixture::of(bench, &[]);
    fixture.run("true");
    let events = fixture.events();
    let at = |name: &str| events.iter().position(|event| event == name).unwrap_or_else(|| panic!("{name}: {events:?}"));
    assert!(at("requested") < at("starting") && at("starting") < at("finished"));
    Ok(())
}

fn its_own_exit_is_the_outcomes(bench: &Bench) -> Verdict {
    let fixture = ApprovalFixture::of(bench, &[]);
    assert_eq!(fixture.run("exit 42").exit_code, Some(42));
    let killed = fixture.run("kill -KILL $$");
    assert_eq!((killed.status, killed.signal), (FinalStatus::Signaled, Some(9)));
    Ok(())
}

const RULE: &str = "[[rules]]\nprefix = [\"git\"]\neffect = \"deny\"\njustification = \"not here\"\n";

fn a_rule_refuses_it(bench: &Bench) -> Verdict {
    let fixture = ApprovalFixture::ruled(bench, RULE, &[]);
    let test_sandbox = &fixture.test_sandbox;
    let outcome = fixture.run("git --version > ran");
    assert_eq!(outcome.status, FinalStatus::Refused, "{outcome:?}");
    assert!(!test_sandbox.work("ran").exists());
    Ok(())
}

fn its_time_runs_out(bench: &Bench) -> Verdict {
    let fixture = ApprovalFixture::of(bench, &[]);
    let outcome = fixture.request("sleep 1000", |request| request.timeout_ms = Some(1500));
    assert_eq!(outcome.status, FinalStatus::TimedOut, "{outcome:?}");
    assert_eq!(fixture.test_sandbox.prints_with_all("echo on"), "on\n");
    Ok(())
}

fn a_limit_ends_it(bench: &Bench) -> Verdict {
    let fixture = ApprovalFixture::of(bench, &[]);
    let outcome = fixture.request("while :; do :; done", |request| request.limits.set_limit(LimitKind::CpuTime, 500));
    if outcome.status == FinalStatus::Error {
        let why = outcome.error.unwrap_or_default();
        assert!(why.contains("cpu_time"), "{why}");
        return Err(crate::bench::Declared(why));
    }
    assert!([FinalStatus::Limit, FinalStatus::Signaled].contains(&outcome.status), "{outcome:?}");
    Ok(())
}

fn no_question_in_mode_never(bench: &Bench) -> Verdict {
    let fixture = ApprovalFixture::of(bench, &[ApprovalAnswer::Approved(ApprovalScope::Once)]);
    let test_sandbox = &fixture.test_sandbox;
    let outcome = fixture.request("echo x > .bashrc; true", |request| request.approval_mode = ApprovalMode::Never);
    assert_eq!((outcome.status, fixture.question_count()), (FinalStatus::Exited, 0), "{outcome:?}");
    if test_sandbox.require_exact().is_ok() {
        assert_eq!(outcome.attempts[0].denials.len(), 1);
        assert!(!test_sandbox.work(".bashrc").exists());
    }
    Ok(())
}

fn a_question_is_answered_in_place(bench: &Bench) -> Verdict {
    let fixture = ApprovalFixture::of(bench, &[ApprovalAnswer::Approved(ApprovalScope::Once)]);
    let test_sandbox = &fixture.test_sandbox;
    super::holds::require_held_calls(bench, test_sandbox)?;
    let outcome = fixture.run("echo x > .bashrc && echo once >> count");
    assert_eq!(
        (outcome.status, outcome.exit_code, fixture.question_count()),
        (FinalStatus::Exited, Some(0), 1),
        "{outcome:?}"
    );
    assert_eq!(
        (test_sandbox.read_text(".bashrc"), test_sandbox.read_text("count"), outcome.attempts.len()),
        ("x\n".into(), "once\n".into(), 1)
    );
    Ok(())
}

fn a_no_is_a_refusal(bench: &Bench) -> Verdict {
    let fixture = ApprovalFixture::of(bench, &[ApprovalAnswer::Denied(ApprovalScope::Once)]);
    let test_sandbox = &fixture.test_sandbox;
    super::holds::require_held_calls(bench, test_sandbox)?;
    let outcome = fixture.run("echo x > .bashrc || exit 7");
    assert_eq!((outcome.exit_code, fixture.question_count()), (Some(7), 1), "{outcome:?}");
    assert!(!test_sandbox.work(".bashrc").exists());
    Ok(())
}

fn an_interrupt_ends_it(bench: &Bench) -> Verdict {
    let fixture = ApprovalFixture::of(bench, &[]);
    let test_sandbox = &fixture.test_sandbox;
    let ready = test_sandbox.work("ready");
    let begun = || crate::bench::wait_until("it runs", || ready.exists());
    let outcome = fixture.interrupted("touch ready; exec sleep 1000", 15, begun);
    assert!([FinalStatus::Signaled, FinalStatus::Aborted].contains(&outcome.status), "{outcome:?}");
    assert_eq!(fixture.test_sandbox.prints_with_all("echo on"), "on\n");
    Ok(())
}

fn a_grant_of_the_request_is_given(bench: &Bench) -> Verdict {
    let fixture = ApprovalFixture::of(bench, &[ApprovalAnswer::Approved(ApprovalScope::Once)]);
    let test_sandbox = &fixture.test_sandbox;
    test_sandbox.require_exact()?;
    let outcome = fixture.request("mkdir .git", |request| {
        request.approval_mode = ApprovalMode::OnRequest;
        request.grants = vec![grant("write /workspace/.git")];
    });
    assert_eq!((outcome.exit_code, outcome.attempts[0].grants.len()), (Some(0), 1), "{outcome:?}");
    Ok(())
}

fn a_paused_sandbox_is_an_error(bench: &Bench) -> Verdict {
    bench.require_pauses()?;
    let fixture = ApprovalFixture::of(bench, &[]);
    let test_sandbox = &fixture.test_sandbox;
    test_sandbox.sandbox().pause().unwrap();
    let outcome = fixture.run("touch ran");
    test_sandbox.sandbox().resume().unwrap();
    assert_eq!(outcome.status, FinalStatus::Error);
    assert!(outcome.error.as_ref().is_some_and(|why| why.contains("paused")) && !test_sandbox.work("ran").exists());
    Ok(())
}

fn a_removed_sandbox_is_an_error(bench: &Bench) -> Verdict {
    let fixture = ApprovalFixture::of(bench, &[]);
    let test_sandbox = &fixture.test_sandbox;
    test_sandbox.sandbox().destroy().unwrap();
    let outcome = fixture.run("true");
    assert!(
        outcome.status == FinalStatus::Error && outcome.error.as_ref().is_some_and(|why| why.contains("gone")),
        "{outcome:?}"
    );
    Ok(())
}

fn output_is_in_the_outcome(bench: &Bench) -> Verdict {
    let outcome = ApprovalFixture::of(bench, &[]).run("echo out; echo err >&2");
    let read_text = |text: &Option<stockade_model::RawText>| text.as_ref().map(|text| text.as_bytes().to_vec());
    let attempt = &outcome.attempts[0];
    assert_eq!(
        (read_text(&attempt.stdout), read_text(&attempt.stderr)),
        (Some(b"out\n".to_vec()), Some(b"err\n".to_vec()))
    );
    Ok(())
}

fn reached_hosts_are_in_the_outcome(bench: &Bench) -> Verdict {
    let (_server, target) = bench.outside()?;
    let (host, port) = target.split_once(':').unwrap();
    let rules = "[profiles.workspace.egress]\nspecial = [\"127.0.0.0/8\", \"::1\"]\n";
    let fixture = ApprovalFixture::ruled(bench, rules, &[ApprovalAnswer::Approved(ApprovalScope::Once)]);
    let test_sandbox = &fixture.test_sandbox;
    test_sandbox.require_proxy()?;
    let script = format!("python3 -c 'import socket; print(socket.create_connection((\"{host}\", {port})).recv(6))'");
    let outcome = fixture.request(&script, |request| {
        request.approval_mode = ApprovalMode::OnRequest;
        request.grants = vec![grant(&format!("connect {target}"))];
    });
    assert_eq!(outcome.exit_code, Some(0), "{outcome:?}");
    assert_eq!(outcome.attempts[0].connections[0].target.to_string(), target);
    Ok(())
}
