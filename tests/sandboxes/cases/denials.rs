//! What is told of a refusal.

use stockade_backend_api::SandboxEvent;
use stockade_model::{DenialLayer, DenialResolution};

use crate::Verdict;
use crate::bench::{Bench, event_timeout, grant, inside};

super::cases! { "denials":
    a_write_outside_is_reported, a_protected_name_is_reported, the_sufficient_grant_is_reported, the_process_is_reported, equal_refusals_are_reported_alike,
    refusals_of_descendants_are_reported, refusals_are_those_of_their_command, a_refused_program_is_reported, permitted_accesses_are_not_reported,
    nothing_is_written_where_it_was_refused, with_the_grant_it_works, a_grant_for_a_directory_excludes_protected_paths_in_it,
    a_grant_beyond_the_sandbox_is_refused, background_processes_refusals_are_reported_too, failed_reads_are_no_refusals,
}

fn a_write_outside_is_reported(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.require_exact()?;
    let ran = test_sandbox.run("echo x > /home/x; mkdir /var/d; true");
    let objects: Vec<String> = ran.denials.iter().map(|denial| denial.object.to_escaped().to_string()).collect();
    assert_eq!(objects, ["/home/x", "/var/d"], "{ran:?}");
    Ok(())
}

fn a_protected_name_is_reported(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.require_exact()?;
    let ran = test_sandbox.run("echo x > .bashrc; mkdir .hg; true");
    let expected =
        ["Create /workspace/.bashrc [write /workspace/.bashrc]", "Mkdir /workspace/.hg [write /workspace/.hg]"];
    assert_eq!(ran.denied(), expected);
    Ok(())
}

fn the_sufficient_grant_is_reported(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.require_exact()?;
    let ran = test_sandbox.run("mkdir .hg; true");
    assert_eq!(ran.denials[0].grant, Some(grant("write /workspace/.hg")));
    assert_eq!((ran.denials[0].layer, ran.denials[0].resolution), (DenialLayer::Broker, DenialResolution::Recorded));
    Ok(())
}

fn the_process_is_reported(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.require_exact()?;
    let ran = test_sandbox.run("python3 -c 'open(\".bashrc\", \"w\")'; true");
    let program = ran.denials[0].program.as_ref().map(|program| program.to_escaped().to_string()).unwrap_or_default();
    assert!(program.contains("python3") && ran.denials[0].pid.is_some_and(|pid| pid > 1), "{ran:?}");
    Ok(())
}

fn equal_refusals_are_reported_alike(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.require_exact()?;
    let ran = test_sandbox.run("for i in 1 2 3 4 5; do bash -c 'echo x > .bashrc'; done; true");
    let mut denied = ran.denied();
    denied.dedup();
    assert_eq!(denied, ["Create /workspace/.bashrc [write /workspace/.bashrc]"]);
    Ok(())
}

fn refusals_of_descendants_are_reported(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.require_exact()?;
    let ran = test_sandbox.run("bash -c '(setsid bash -c \"echo x > .envrc\"; true)'");
    assert_eq!(ran.denied(), ["Create /workspace/.envrc [write /workspace/.envrc]"]);
    Ok(())
}

fn refusals_are_those_of_their_command(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.require_exact()?;
    let (one, two) = (test_sandbox.start("echo x > .bashrc; true"), test_sandbox.start("echo x > .profile; true"));
    assert!(one.end().denied()[0].contains(".bashrc") && two.end().denied()[0].contains(".profile"));
    Ok(())
}

fn a_refused_program_is_reported(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.require_exact()?;
    let mut plan = inside("git --version; true");
    plan.profile.exec.deny = vec!["git".parse().unwrap()];
    let ran = test_sandbox.run_plan(&plan);
    assert!(!ran.stdout().contains("git version"), "{ran:?}");
    assert!(ran.denied().iter().any(|denied| denied.starts_with("Exec ") && denied.contains("git")), "{ran:?}");
    Ok(())
}

fn permitted_accesses_are_not_reported(bench: &Bench) -> Verdict {
    let ran = bench.test_sandbox().run(
        "touch a; mkdir b; mv a b; chmod 600 b/a; echo x > /tmp/t; echo x > ~/h; rm -r b; cat /etc/passwd >/dev/null",
    );
    ran.ok();
    assert_eq!(ran.denied(), [""; 0]);
    Ok(())
}

fn nothing_is_written_where_it_was_refused(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    std::fs::write(test_sandbox.work("Makefile"), "mine").unwrap();
    std::fs::create_dir(test_sandbox.work(".git")).unwrap();
    std::fs::write(test_sandbox.work(".git/config"), "mine").unwrap();
    let ran = test_sandbox.run(
        "echo x > .git/config; touch .git/hooks; mv .git g; rm -rf .git; mv .git/config c; ln -s x .gitmodules; true",
    );
    if test_sandbox.require_exact().is_ok() {
        assert_eq!(test_sandbox.read_text(".git/config"), "mine");
        assert!(!test_sandbox.work(".gitmodules").is_symlink() && !test_sandbox.work("g").exists(), "{ran:?}");
        return Ok(());
    }
    test_sandbox.require_exact()
}

fn with_the_grant_it_works(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.require_exact()?;
    let mut plan = inside("mkdir .git && touch .git/x");
    plan.grants = vec![grant("write /workspace/.git")];
    plan.profile.filesystem.write.push("/workspace/.git".into());
    assert_eq!(test_sandbox.run_plan(&plan).denied(), [""; 0]);
    assert!(test_sandbox.work(".git/x").exists());
    assert_eq!(test_sandbox.run("touch .git/y").denied().len(), 1);
    Ok(())
}

fn a_grant_for_a_directory_excludes_protected_paths_in_it(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.require_exact()?;
    let mut plan =
        inside("mkdir -p .git/hooks .git/info; touch .git/hooks/post-commit; touch .git/info/attributes; true");
    plan.grants = vec![grant("write /workspace/.git")];
    plan.profile.filesystem.write.push("/workspace/.git".into());
    let ran = test_sandbox.run_plan(&plan);
    assert_eq!(ran.denials.len(), 2, "{ran:?}");
    Ok(())
}

fn a_grant_beyond_the_sandbox_is_refused(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    for never in [
        "write /usr/x",
        "read /etc/shadow",
        "write /etc",
        "socket /run/docker.sock",
        "sign SHA256:n2Qkj1yQp3Q3nGkkNUnGhUBGTFkFrp1Bw0dmz6qYmNA for git",
    ] {
        assert!(!test_sandbox.sandbox().backend().supports_grant(&grant(never), test_sandbox.plan.level), "{never}");
        let mut plan = inside("true");
        plan.grants = vec![grant(never)];
        let read_text = test_sandbox.refuses(&plan).what;
        assert!(read_text.contains("cannot be given"), "{never}: {read_text}");
    }
    Ok(())
}

fn background_processes_refusals_are_reported_too(bench: &Bench) -> Verdict {
    bench.require_keeps_background()?;
    let test_sandbox = bench.test_sandbox();
    test_sandbox.require_exact()?;
    test_sandbox
        .prints("(setsid bash -c 'until [ -e go ]; do sleep 0.02; done; echo x > .bashrc' >/dev/null 2>&1 &); true");
    std::fs::write(test_sandbox.work("go"), "").unwrap();
    match test_sandbox.event_stream.recv_timeout(event_timeout()) {
        Ok(SandboxEvent::Denied { request, denial }) => {
            assert_eq!(request, inside("").request);
            assert_eq!(denial.object.to_escaped().to_string(), "/workspace/.bashrc");
        }
        other => panic!("{other:?}"),
    }
    Ok(())
}

fn failed_reads_are_no_refusals(bench: &Bench) -> Verdict {
    let ran = bench.test_sandbox().run("cat /no/such/file absent; ls /root; cd /absent; true");
    assert_eq!(ran.denied(), [""; 0]);
    Ok(())
}
