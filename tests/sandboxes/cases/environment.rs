//! The variables of a command.

use std::collections::BTreeMap;

use stockade_model::RawText;

use crate::Verdict;
use crate::bench::{Bench, TestSandbox, command, python};

super::cases! { "environment":
    the_plans_paths_exist, nothing_of_the_caller_is_there, values_arrive_as_they_are, values_need_not_be_text,
    a_large_value_arrives, it_may_be_nearly_empty, one_command_lacks_the_powers_of_another,
    it_is_not_seen_by_other_commands_users,
}

/// The variables that a command has with these.
#[track_caller]
fn shown(test_sandbox: &TestSandbox, variables: &[(&str, &[u8])]) -> String {
    let mut plan = command(&["/usr/bin/python3", "-c", "import os; print(sorted(os.environb.items()))"]);
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), RawText::from(value.to_vec())));
    plan.environment = variables.collect();
    test_sandbox.run_plan(&plan).ok()
}

fn the_plans_paths_exist(bench: &Bench) -> Verdict {
    let output = shown(&bench.test_sandbox(), &[("A", b"1"), ("HOME", b"/home/agent")]);
    assert!(output.contains("(b'A', b'1')") && output.contains("(b'HOME', b'/home/agent')"), "{output}");
    Ok(())
}

fn nothing_of_the_caller_is_there(bench: &Bench) -> Verdict {
    let own =
        std::env::vars().map(|(name, _)| name).filter(|name| !["HOME", "PATH", "LC_ALL"].contains(&name.as_str()));
    let output = bench.test_sandbox().prints("env");
    let leaked: Vec<String> =
        own.filter(|name| output.lines().any(|line| line.starts_with(&format!("{name}=")))).collect();
    assert!(leaked.iter().all(|name| ["PWD", "SHLVL", "_"].contains(&name.as_str())), "{leaked:?}");
    Ok(())
}

fn values_arrive_as_they_are(bench: &Bench) -> Verdict {
    let output = shown(&bench.test_sandbox(), &[("V", "a=b\n'\"$X ä".as_bytes()), ("EMPTY", b"")]);
    assert!(output.contains(r#"(b'V', b'a=b\n\'"$X \xc3\xa4')"#) && output.contains("(b'EMPTY', b'')"), "{output}");
    Ok(())
}

fn values_need_not_be_text(bench: &Bench) -> Verdict {
    assert!(shown(&bench.test_sandbox(), &[("V", b"\xff\x01")]).contains(r"(b'V', b'\xff\x01')"));
    Ok(())
}

fn a_large_value_arrives(bench: &Bench) -> Verdict {
    let mut plan = python("import os; print(len(os.environ['LARGE']))");
    plan.environment.insert("LARGE".to_owned(), "x".repeat(64 << 10).as_str().into());
    assert_eq!(bench.test_sandbox().run_plan(&plan).ok(), "65536\n");
    Ok(())
}

fn it_may_be_nearly_empty(bench: &Bench) -> Verdict {
    let mut plan = command(&["/usr/bin/env"]);
    plan.environment = BTreeMap::new();
    let output = bench.test_sandbox().run_plan(&plan).ok();
    // What leads to the door is the sandbox's to say, and by what its processes are known
    // where nothing else tells them from others.
    let is_of_sandbox = |line: &str| {
        line.to_ascii_lowercase().contains("proxy")
            || ["RES_OPTIONS=", "LOCALDOMAIN=", "STOCKADE_COMMAND="].iter().any(|of| line.starts_with(of))
    };
    assert!(output.lines().all(is_of_sandbox), "{output}");
    Ok(())
}

fn one_command_lacks_the_powers_of_another(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("export LEFT=1; echo export LEFT=1 > ~/.bashrc.x");
    assert_eq!(test_sandbox.prints("echo ${LEFT-none}"), "none\n");
    Ok(())
}

fn it_is_not_seen_by_other_commands_users(bench: &Bench) -> Verdict {
    let (one, other) = (bench.test_sandbox(), bench.test_sandbox());
    let mut plan = command(&["bash", "-c", "touch ready; until [ -e go ]; do sleep 0.02; done"]);
    plan.environment.insert("TOKEN".to_owned(), "one-of-ours".into());
    let running = one.begin(&plan, crate::bench::CAPTURE);
    one.wait_for("ready");
    assert_eq!(other.prints("cat /proc/[0-9]*/environ 2>/dev/null | grep -c one-of-ours; true"), "0\n");
    std::fs::write(one.work("go"), "").unwrap();
    running.end().ok();
    Ok(())
}
