//! Level restricted: Landlock and seccomp alone, on the host's own tree. The
//! broker of these tests lets everything continue, so only the floor decides.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use stockade_launch::{Blueprint, CommandStdio, ProcessExit, launch_sandbox};
use stockade_model::IsolationLevel::Restricted;
use stockade_model::RawText;
use stockade_sys::landlock;
use support::{TIMEOUT, answer_all, in_each_role, pipe, plan, processes_with, run, script, workspace};

#[test]
fn a_command_runs_and_its_end_is_reported() {
    in_each_role("a_command_runs_and_its_end_is_reported", || {
        let ws = workspace();
        run(&plan(Restricted, ws.path(), &["true"])).ok();
        assert_eq!(run(&plan(Restricted, ws.path(), &["sh", "-c", "exit 42"])).exit.status, ProcessExit::Exited(42));
        assert_eq!(
            run(&plan(Restricted, ws.path(), &["sh", "-c", "kill -9 $$"])).exit.status,
            ProcessExit::Signaled(9)
        );
        let missing = run(&plan(Restricted, ws.path(), &["no-such-program"]));
        assert_eq!(missing.exit.exec_errno, Some(Errno::NOENT));
        assert_eq!(run(&plan(Restricted, ws.path(), &["pwd"])).ok().trim(), ws.path().to_str().unwrap());
    });
}

#[test]
fn there_is_no_privilege() {
    in_each_role("there_is_no_privilege", || {
        let ws = workspace();
        let status = run(&script(Restricted, ws.path(), "cat /proc/self/status; cut -d' ' -f7 /proc/self/stat")).ok();
        for line in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert!(status.contains(&format!("{line}:\t0000000000000000\n")), "{line} in {status}");
        }
        if rustix::process::geteuid().is_root() {
            assert!(status.contains("CapBnd:\t0000000000000000\n") && status.contains("Groups:\t \n"), "{status}");
        }
        assert!(status.contains("NoNewPrivs:\t1\n") && status.contains("Seccomp:\t2\n"), "{status}");
        assert_eq!(status.lines().last(), Some("0"), "no terminal");
    });
}

#[test]
fn it_ends_before_its_caller_where_memory_runs_out() {
    in_each_role("it_ends_before_its_caller_where_memory_runs_out", || {
        let ws = workspace();
        let own: i32 = fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse().unwrap();
        let its = run(&plan(Restricted, ws.path(), &["cat", "/proc/self/oom_score_adj"])).ok();
        assert!(own < 200 && its.trim() == "200", "{own}, {its}");
    });
}

#[test]
fn nothing_can_be_changed_but_its_own() {
    in_each_role("nothing_can_be_changed_but_its_own", || {
        let ws = workspace();
        fs::write(ws.path().join("file"), "kept").unwrap();
        let outside = workspace();
        fs::write(outside.path().join("file"), "kept").unwrap();
        let other = outside.path().display();
        for attempt in [
            "echo x > file",
            "echo x > new",
            "mkdir new",
            "rm file",
            "mv file other",
            "ln -s file link",
            "ln file link",
            &format!("echo x > {other}/new"),
            &format!("rm {other}/file"),
            &format!("cp file {other}/new"),
            &format!("ln {other}/file $TMPDIR/link && echo x > $TMPDIR/link"),
            "echo x > /tmp/new-of-restricted",
            "echo x > /dev/shm/new-of-restricted",
            "mount -t tmpfs x /mnt",
            "unshare -U true",
            "python3 -c 'import socket; socket.socket()'",
            "bash -c 'exec 3<>/dev/tcp/127.0.0.1/1'",
        ] {
            // The internet families are the broker's to refuse; here it lets go on.
            if attempt.contains("socket") || attempt.contains("/dev/tcp") {
                continue;
            }
            let ran = run(&script(Restricted, ws.path(), attempt));
            assert_ne!(ran.exit.status, ProcessExit::Exited(0), "{attempt}: {ran:?}");
        }
        for directory in [ws.path(), outside.path()] {
            assert_eq!(fs::read_to_string(directory.join("file")).unwrap(), "kept");
            assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
        }
        run(&script(
            Restricted,
            ws.path(),
            "echo x > /dev/null; cat file > $TMPDIR/x; mv $TMPDIR/x $TMPDIR/y; rm $TMPDIR/y",
        ))
        .ok();
    });
}

#[test]
fn its_temporary_directory_is_removed_with_it() {
    in_each_role("its_temporary_directory_is_removed_with_it", || {
        let ws = workspace();
        let outside = workspace();
        fs::write(outside.path().join("file"), "kept").unwrap();
        let text = format!(
            "cd $TMPDIR; mkdir -p a/b/c; ln -s {} a/link; touch a/b/c/file; mkfifo a/fifo; mkdir locked; touch locked/x; chmod 0 locked; stat -c %a .; pwd",
            outside.path().display()
        );
        let output = run(&script(Restricted, ws.path(), &text)).ok();
        let (mode, path) = output.trim().split_once('\n').unwrap();
        assert_eq!(mode, "700");
        assert!(path.contains("/stockade-") && !Path::new(path).exists(), "{path}");
        assert_eq!(fs::read_to_string(outside.path().join("file")).unwrap(), "kept", "links are not followed");
    });
}

#[test]
fn nothing_outlives_the_run() {
    in_each_role("nothing_outlives_the_run", || {
        let ws = workspace();
        let mark = format!("5{:08}", std::process::id());
        let text =
            format!("(setsid sleep {mark} &); (setsid sh -c 'sleep {mark} & sleep {mark}' &); sleep {mark} & exit 3");
        assert_eq!(run(&script(Restricted, ws.path(), &text)).exit.status, ProcessExit::Exited(3));
        assert_eq!(processes_with(&mark), Vec::<PathBuf>::new());
    });
}

#[test]
fn killing_the_caller_leaves_no_process() {
    in_each_role("killing_the_caller_leaves_no_process", || support::check_killed_caller(Restricted));
}

#[test]
fn other_processes_cannot_be_signalled_or_looked_into() {
    in_each_role("other_processes_cannot_be_signalled_or_looked_into", || {
        let ws = workspace();
        let me = std::process::id();
        // Landlock confines signals from kernel 6.12 on; before, the report says that nothing does.
        let is_confined = landlock::query_abi_version().unwrap() >= 6;
        for (attempt, is_signal) in [
            (format!("kill -0 {me}"), true),
            (format!("kill -CONT {me}"), true),
            (format!("cat /proc/{me}/environ"), false),
            ("kill -0 $PPID".to_owned(), true),
        ] {
            let ran = run(&script(Restricted, ws.path(), &attempt));
            let is_refused = ran.exit.status != ProcessExit::Exited(0);
            assert_eq!(is_refused, is_confined || !is_signal, "{attempt}: {ran:?}");
            assert_eq!(ran.report.layers["landlock"].detail.contains("signals"), !is_confined, "{ran:?}");
        }
        assert_eq!(
            run(&script(Restricted, ws.path(), "sleep 9 & kill $!; wait $!; echo $?")).ok(),
            "143\n",
            "its own can be"
        );
    });
}

#[test]
fn hidden_files_are_unreadable_and_their_neighbours_readable() {
    in_each_role("hidden_files_are_unreadable_and_their_neighbours_readable", || {
        let ws = workspace();
        let at = |name: &str| ws.path().join(name);
        fs::create_dir_all(at("home/.ssh/deep")).unwrap();
        fs::write(at("home/.ssh/key"), "secret").unwrap();
        fs::write(at("home/.ssh/shown"), "public\n").unwrap();
        fs::write(at("home/.ssh/deep/more"), "secret").unwrap();
        fs::create_dir_all(at("home/.ssh/open/closed")).unwrap();
        fs::write(at("home/.ssh/open/known"), "known\n").unwrap();
        fs::write(at("home/.ssh/open/closed/key"), "secret").unwrap();
        fs::write(at("home/.token"), "secret").unwrap();
        fs::write(at("home/notes"), "notes\n").unwrap();
        let mut plan = script(
            Restricted,
            ws.path(),
            "cd home; cat .ssh/key .ssh/deep/more .ssh/open/closed/key .token; cat .ssh/shown .ssh/open/known notes; head -c6 /etc/passwd; read x < /proc/self/stat && echo",
        );
        plan.profile.filesystem.write.clear();
        plan.profile.filesystem.hide =
            ["home/.ssh", "home/.ssh/open/closed", "home/.token"].map(|n| RawText::from(at(n))).to_vec();
        plan.profile.filesystem.reveal = ["home/.ssh/shown", "home/.ssh/open"].map(|n| RawText::from(at(n))).to_vec();
        let ran = run(&plan);
        assert_eq!(ran.stdout, "public\nknown\nnotes\nroot:x\n", "{ran:?}");
        assert_eq!(ran.stderr.matches("Permission denied").count(), 4, "{ran:?}");
    });
}

#[test]
fn files_below_an_unlistable_directory_are_read_as_before() {
    in_each_role("files_below_an_unlistable_directory_are_read_as_before", || {
        let ws = workspace();
        let at = |name: &str| ws.path().join(name);
        fs::create_dir_all(at("passage/home")).unwrap();
        fs::write(at("passage/home/.token"), "secret").unwrap();
        fs::write(at("passage/home/notes"), "notes\n").unwrap();
        fs::set_permissions(at("passage"), fs::Permissions::from_mode(0o111)).unwrap();
        let mut plan = script(Restricted, ws.path(), "cat passage/home/.token; cat passage/home/notes");
        plan.profile.filesystem.write.clear();
        plan.profile.filesystem.hide = vec![RawText::from(at("passage/home/.token"))];
        let ran = run(&plan);
        fs::set_permissions(at("passage"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(ran.stdout, "notes\n", "{ran:?}");
        assert_eq!(ran.stderr.matches("Permission denied").count(), 1, "{ran:?}");
    });
}

#[test]
fn of_the_devices_the_usual_ones_are_there() {
    in_each_role("of_the_devices_the_usual_ones_are_there", || {
        let ws = workspace();
        // What the user may open outside. Looking does not: some of them act when they are opened.
        let others: Vec<PathBuf> = ["/dev/kmsg", "/dev/fuse", "/dev/kvm", "/dev/loop0", "/dev/zram0", "/dev/vda"]
            .map(PathBuf::from)
            .into_iter()
            .filter(|node| fs::File::open(node).is_ok())
            .collect();
        let opening = |node: &PathBuf| format!("if true < {}; then echo opened; fi; ", node.display());
        let usual = "head -c 1 /dev/zero | wc -c; head -c 1 /dev/urandom | wc -c; cat /dev/null; echo said > /dev/null";
        let text = others.iter().map(opening).collect::<String>() + usual;
        assert_eq!(run(&script(Restricted, ws.path(), &text)).stdout, "1\n1\n", "{others:?}");
    });
}

#[test]
fn it_can_be_killed() {
    in_each_role("it_can_be_killed", || {
        let ws = workspace();
        let mark = format!("4{:08}", std::process::id());
        let plan = script(Restricted, ws.path(), &format!("(setsid sleep {mark} &); echo ready; sleep {mark}"));
        for drop_only in [false, true] {
            let (mut output, inside) = pipe();
            let null = fs::File::open("/dev/null").unwrap();
            let stdio = CommandStdio { stdin: null.as_fd(), stdout: inside.as_fd(), stderr: null.as_fd() };
            let mut launched = launch_sandbox(Blueprint::prepare(&plan).unwrap(), stdio).unwrap();
            drop(inside);
            let answers = answer_all(&mut launched);
            launched.release_command().unwrap();
            std::io::Read::read_exact(&mut output, &mut [0; 6]).unwrap();
            if !drop_only {
                launched.kill_sandbox();
                assert_eq!(launched.wait_for_end(TIMEOUT).unwrap().unwrap().status, ProcessExit::Signaled(9));
            }
            drop(launched);
            answers.join().unwrap();
            assert_eq!(processes_with(&mark), Vec::<PathBuf>::new());
        }
    });
}
