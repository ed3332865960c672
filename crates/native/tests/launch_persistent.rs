//! Walls that stand: what commands find within, what they have in common, and
//! what keeps them apart from the host, from other walls and from what made them.
//! The broker of these tests lets everything continue, so only the floor decides.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs;
use std::path::Path;

use stockade_launch::{LaunchError, LaunchOptions, PersistentNamespaces, ProcessExit, RootSpec};
use stockade_model::IsolationLevel::Full;
use stockade_model::{AttemptPlan, IsolationLevel, Profile, RawText};
use support::{Ran, complete, in_each_role, processes_with, script, wait_until, workspace};

/// Directories of a sandbox on the host.
struct TestSandbox {
    top: tempfile::TempDir,
    namespaces: PersistentNamespaces,
}

impl TestSandbox {
    fn new() -> Self {
        Self::of(&profile(), None)
    }

    fn of(profile: &Profile, system: Option<&Path>) -> Self {
        let top = workspace();
        for name in ["work", "home"] {
            fs::create_dir(top.path().join(name)).unwrap();
        }
        let (work, home) = (top.path().join("work"), top.path().join("home"));
        let namespaces = PersistentNamespaces::build(&RootSpec {
            system,
            trees: vec![(Path::new("/workspace"), &work), (Path::new("/home/agent"), &home)],
            profile,
            files: Vec::new(),
        })
        .unwrap();
        Self { top, namespaces }
    }

    #[track_caller]
    fn run(&self, text: &str) -> Ran {
        self.try_run(&inside(text)).unwrap()
    }

    fn try_run(&self, plan: &AttemptPlan) -> Result<Ran, LaunchError> {
        complete(|stdio| self.namespaces.begin_command(plan, &LaunchOptions::default(), stdio)?.finish_launch())
            .map(|(ran, _)| ran)
    }
}

fn profile() -> Profile {
    inside("").profile
}

/// A script in `/workspace`.
fn inside(text: &str) -> AttemptPlan {
    let mut plan = script(Full, Path::new("/"), text);
    plan.cwd = RawText::from("/workspace");
    plan.workspace = RawText::from("/workspace");
    plan.profile.filesystem.write = vec![RawText::from("/workspace"), RawText::from("/home/agent")];
    plan
}

#[test]
fn successive_commands_find_files_of_earlier_ones() {
    in_each_role("successive_commands_find_files_of_earlier_ones", || {
        let test_sandbox = TestSandbox::new();
        assert_eq!(test_sandbox.run("exit 42").exit.status, ProcessExit::Exited(42));
        assert_eq!(test_sandbox.run("kill -TERM $$").exit.status, ProcessExit::Signaled(15));
        assert_eq!(
            test_sandbox.run("pwd; echo kept > /tmp/a; ls -A /workspace /home/agent").ok().lines().next(),
            Some("/workspace")
        );
        assert_eq!(test_sandbox.run("cat /tmp/a").ok(), "kept\n");
        // A process that was left is seen, signalled and gone.
        test_sandbox.run("sleep 1000 >/dev/null 2>&1 & echo $! > /tmp/pid").ok();
        assert_eq!(test_sandbox.run("ps -o comm= -p $(cat /tmp/pid)").ok(), "sleep\n");
        test_sandbox.run("kill $(cat /tmp/pid)").ok();
        assert_ne!(test_sandbox.run("i=0; while kill -0 $(cat /tmp/pid) 2>/dev/null && [ $i -lt 1000 ]; do i=$((i+1)); done; kill -0 $(cat /tmp/pid) 2>/dev/null").exit.status, ProcessExit::Exited(0));
    });
}

#[test]
fn a_server_of_one_command_is_reached_by_the_next_and_by_no_other_sandbox() {
    in_each_role("a_server_of_one_command_is_reached_by_the_next_and_by_no_other_sandbox", || {
        let (one, other) = (TestSandbox::new(), TestSandbox::new());
        let serve = "import os,socket
s=socket.socket(); s.bind(('127.0.0.1',8080)); s.listen()
u=socket.socket(socket.AF_UNIX); u.bind(chr(0)+'meet'); u.listen()
if os.fork(): os._exit(0)
os.setsid(); n=os.open('/dev/null',2); [os.dup2(n,i) for i in (0,1,2)]
while True: s.accept()[0].sendall(b'hello')";
        let python = |test_sandbox: &TestSandbox, code: &str| {
            let mut plan = inside("");
            plan.argv = ["python3", "-c", code].map(RawText::from).to_vec();
            test_sandbox.try_run(&plan).unwrap()
        };
        python(&one, serve).ok();
        let ask = "import socket; s=socket.create_connection(('127.0.0.1',8080)); print(s.recv(9).decode())
socket.socket(socket.AF_UNIX).connect(chr(0)+'meet')";
        assert_eq!(python(&one, ask).ok(), "hello\n");
        assert_ne!(python(&other, ask).exit.status, ProcessExit::Exited(0));
        // The same ports and paths at once do not meet.
        python(&other, serve).ok();
        assert_eq!(python(&other, ask).ok(), "hello\n");
    });
}

#[test]
fn nothing_of_the_host_is_there_but_its_system() {
    in_each_role("nothing_of_the_host_is_there_but_its_system", || {
        let test_sandbox = TestSandbox::new();
        let all = test_sandbox.run("ls -A / /home /home/agent /var /run/user /sys; id -u; ls /root; true");
        let user = rustix::process::geteuid().as_raw().to_string();
        assert!(all.stdout.contains(&user) && !all.stdout.contains("boot"), "{}", all.stdout);
        assert_eq!(test_sandbox.run("ls -A /home").ok(), "agent\n");
        assert!(
            test_sandbox
                .run("ls -A /sys /workspace /home/agent /var/tmp")
                .ok()
                .lines()
                .all(|l| l.is_empty() || l.ends_with(':'))
        );
        // The directory beside the workspace, and the host's own temp.
        let beside = test_sandbox.top.path().join("beside");
        fs::write(&beside, "host").unwrap();
        let path = beside.display();
        assert_eq!(test_sandbox.run(&format!("cat {path} 2>/dev/null")).stdout, "");
        for target in ["/usr/x", "/etc/x", "/x", "/home/x", "/sys/x"] {
            assert_ne!(test_sandbox.run(&format!("echo > {target}")).exit.status, ProcessExit::Exited(0), "{target}");
        }
        // The floor alone: no write in the workspace that no broker makes.
        assert_ne!(test_sandbox.run("echo > /workspace/x").exit.status, ProcessExit::Exited(0));
    });
}

#[test]
fn no_command_reaches_the_creator_or_looks_into_another() {
    in_each_role("no_command_reaches_the_creator_or_looks_into_another", || {
        let test_sandbox = TestSandbox::new();
        test_sandbox.run("sleep 1000 >/dev/null 2>&1 & echo $! > /tmp/pid").ok();
        // Positive control: what another command runs is seen.
        assert!(test_sandbox.run("cat /proc/$(cat /tmp/pid)/cmdline").ok().starts_with("sleep"));
        for secret in ["/proc/$(cat /tmp/pid)/environ", "/proc/1/environ", "/proc/1/mem", "/proc/1/maps"] {
            assert_ne!(test_sandbox.run(&format!("head -c1 {secret}")).exit.status, ProcessExit::Exited(0), "{secret}");
        }
        for link in ["root", "cwd", "exe", "fd/0", "fd/1", "fd/2", "fd/3", "fd/4", "ns/mnt"] {
            assert_ne!(
                test_sandbox.run(&format!("ls -L /proc/1/{link}")).exit.status,
                ProcessExit::Exited(0),
                "{link}"
            );
        }
        // The init cannot be ended from inside, nor the caller be seen.
        test_sandbox.run("kill -9 1; kill -STOP 1; true").ok();
        let seen = test_sandbox.run("ls -d /proc/[0-9]* | wc -l").ok();
        assert!(seen.trim().parse::<u32>().unwrap() <= 6, "{seen}");
        test_sandbox.run("true").ok();
    });
}

#[test]
fn dropping_the_namespaces_ends_all_and_a_requested_part_must_exist() {
    in_each_role("dropping_the_namespaces_ends_all_and_a_requested_part_must_exist", || {
        let test_sandbox = TestSandbox::new();
        let mark = format!("7{:08}", std::process::id());
        test_sandbox.run(&format!("setsid sleep {mark} >/dev/null 2>&1 & sleep {mark} >/dev/null 2>&1 &")).ok();
        wait_until("both run", || processes_with(&format!("sleep\0{mark}")).len() == 2);
        let mut hides = inside("true");
        hides.profile.filesystem.hide = vec![RawText::from("/usr/bin/env")];
        let why = test_sandbox.try_run(&hides).unwrap_err().to_string();
        assert!(why.contains("without /usr/bin/env being hidden"), "{why}");
        let staged = test_sandbox.try_run(&{
            let mut plan = inside("true");
            plan.profile.filesystem.stage = true;
            plan
        });
        assert!(staged.unwrap_err().to_string().contains("staged"));
        assert!(test_sandbox.try_run(&AttemptPlan { level: IsolationLevel::Restricted, ..inside("true") }).is_err());
        drop(test_sandbox);
        assert!(processes_with(&format!("sleep\0{mark}")).is_empty());
    });
}

#[test]
fn paths_hidden_by_the_profile_are_hidden() {
    in_each_role("paths_hidden_by_the_profile_are_hidden", || {
        let mut profile = profile();
        let shown = TestSandbox::of(&profile, None);
        assert!(!shown.run("cat /etc/passwd").ok().is_empty());
        profile.filesystem.hide = vec![RawText::from("/etc/passwd"), RawText::from("/etc/ssl")];
        let hidden = TestSandbox::of(&profile, None);
        let mut plan = inside("cat /etc/passwd; find /etc/ssl -type f -size +0");
        plan.profile.filesystem.hide = profile.filesystem.hide.clone();
        assert_eq!(hidden.try_run(&plan).unwrap().stdout, "");
    });
}
