//! What no sandbox of the kind can be is refused in words that say so.

use stockade_backend_api::{GuestSystem, SandboxError, SandboxPlan};
use stockade_model::IsolationLevel;

use crate::Verdict;
use crate::bench::{Bench, inside};

super::cases! { "unsupported":
    a_level_beneath_full, a_profile_without_a_sandbox, a_system_that_is_not_there, a_runtime_that_is_not_there,
    a_workspace_that_is_not_there, a_path_hidden_from_one_command, nothing_is_left_of_a_refused_upload, secrets_are_refused_or_put_in,
}

/// That it is not made, and why in words that hold this.
#[track_caller]
fn refused(bench: &Bench, word: &str, change: impl FnOnce(&mut SandboxPlan)) {
    match bench.make(change) {
        Ok(_) => panic!("it was made"),
        Err(error) => assert!(error.to_string().contains(word), "{error}"),
    }
}

fn a_level_beneath_full(bench: &Bench) -> Verdict {
    match bench.make(|plan| plan.level = IsolationLevel::Restricted) {
        Ok(test_sandbox) => assert_eq!(test_sandbox.prints("echo on"), "on\n"),
        Err(error @ SandboxError::Unsupported { .. }) => return Err(crate::bench::Declared(error.to_string())),
        Err(error) => panic!("{error:?}"),
    }
    Ok(())
}

fn a_profile_without_a_sandbox(bench: &Bench) -> Verdict {
    refused(bench, "without a sandbox", |plan| plan.profile.sandboxed = false);
    Ok(())
}

fn a_system_that_is_not_there(bench: &Bench) -> Verdict {
    let digest = format!("sha256:{}", "0".repeat(64));
    refused(bench, &digest, |plan| plan.system = Some(GuestSystem::Image(digest.parse().unwrap())));
    Ok(())
}

fn a_runtime_that_is_not_there(bench: &Bench) -> Verdict {
    refused(bench, "runtime", |plan| plan.runtime = Some("no-such-runtime".parse().unwrap()));
    Ok(())
}

fn a_workspace_that_is_not_there(bench: &Bench) -> Verdict {
    refused(bench, "absent", |plan| plan.workspace = plan.workspace.join("absent"));
    Ok(())
}

/// A kind whose isolation cannot do that reports it.
fn a_path_hidden_from_one_command(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let mut plan = inside("head -c 1 /usr/lib/os-release >/dev/null 2>&1 && echo read; true");
    assert_eq!(test_sandbox.run_plan(&plan).ok(), "read\n");
    plan.profile.filesystem.hide.push("/usr/lib/os-release".into());
    match test_sandbox.try_begin(&plan, crate::bench::CAPTURE, false) {
        Ok(running) => assert_eq!(running.end().ok(), ""),
        Err(error) => assert!(error.what.contains("/usr/lib/os-release"), "{error:?}"),
    }
    Ok(())
}

fn nothing_is_left_of_a_refused_upload(bench: &Bench) -> Verdict {
    for _ in 0..3 {
        refused(bench, "absent", |plan| plan.home = plan.home.join("absent"));
    }
    assert_eq!(bench.test_sandbox().prints("echo on"), "on\n");
    Ok(())
}

fn secrets_are_refused_or_put_in(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let secret_grant = crate::bench::grant("secret token to host.test:443");
    assert!(!test_sandbox.sandbox().backend().supports_grant(&secret_grant, test_sandbox.plan.level));
    let mut plan = inside("true");
    plan.grants = vec![secret_grant];
    Err(crate::bench::Declared(test_sandbox.refuses(&plan).what))
}
