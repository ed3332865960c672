//! Where a command begins.

use std::fs;

use stockade_model::AttemptPlan;

use crate::Verdict;
use crate::bench::{Bench, TestSandbox, inside};

super::cases! { "places":
    it_begins_in_the_workspace, it_begins_in_a_directory_of_it, it_begins_at_home, it_begins_in_temp,
    one_that_is_absent_is_refused, a_file_is_no_working_directory, a_link_within_leads_there, a_link_out_leads_to_nothing_of_the_host,
    the_hosts_own_path_is_absent_inside,
}

fn at(directory: &str) -> AttemptPlan {
    AttemptPlan { cwd: directory.into(), ..inside("pwd -P") }
}

#[track_caller]
fn check(test_sandbox: &TestSandbox, directory: &str) {
    assert_eq!(test_sandbox.run_plan(&at(directory)).ok(), format!("{directory}\n"));
}

fn it_begins_in_the_workspace(bench: &Bench) -> Verdict {
    check(&bench.test_sandbox(), "/workspace");
    Ok(())
}

fn it_begins_in_a_directory_of_it(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("mkdir -p 'a b/c'");
    check(&test_sandbox, "/workspace/a b/c");
    Ok(())
}

fn it_begins_at_home(bench: &Bench) -> Verdict {
    check(&bench.test_sandbox(), "/home/agent");
    Ok(())
}

fn it_begins_in_temp(bench: &Bench) -> Verdict {
    check(&bench.test_sandbox(), "/tmp");
    Ok(())
}

/// That nothing runs, and that the directory is named.
#[track_caller]
fn refused(test_sandbox: &TestSandbox, directory: &str) {
    match test_sandbox.try_begin(&at(directory), crate::bench::CAPTURE, false) {
        Err(error) => assert!(error.what.contains("directory"), "{error:?}"),
        Ok(running) => {
            let ran = running.end();
            assert_eq!(ran.stdout(), "", "it ran");
            assert!(format!("{:?}{}", ran.end.end, ran.stderr()).contains("directory"), "{ran:?}");
        }
    }
    assert_eq!(test_sandbox.prints("echo on"), "on\n");
}

fn one_that_is_absent_is_refused(bench: &Bench) -> Verdict {
    refused(&bench.test_sandbox(), "/workspace/absent");
    Ok(())
}

fn a_file_is_no_working_directory(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    fs::write(test_sandbox.work("file"), "").unwrap();
    refused(&test_sandbox, "/workspace/file");
    Ok(())
}

fn a_link_within_leads_there(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("mkdir real; ln -s real link");
    assert_eq!(test_sandbox.run_plan(&at("/workspace/link")).ok(), "/workspace/real\n");
    Ok(())
}

fn a_link_out_leads_to_nothing_of_the_host(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let outside = bench.directory("outside");
    fs::write(outside.join("secret"), "").unwrap();
    std::os::unix::fs::symlink(&outside, test_sandbox.work("out")).unwrap();
    refused(&test_sandbox, "/workspace/out");
    Ok(())
}

fn the_hosts_own_path_is_absent_inside(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let path = test_sandbox.plan.workspace.to_str().unwrap().to_owned();
    refused(&test_sandbox, &path);
    Ok(())
}
