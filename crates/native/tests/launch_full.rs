//! Level full: what a command finds inside, and what it cannot do. The broker
//! of these tests lets everything continue, so only the floor decides.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use stockade_launch::{
    Blueprint, CommandStdio, LaunchError, LaunchOptions, NamedFile, NamingVariable, ProcessExit, launch_sandbox,
};
use stockade_model::IsolationLevel::Full;
use stockade_model::{LayerState, RawText};
use stockade_sys::landlock;
use support::{
    TIMEOUT, answer_all, in_each_role, pipe, plan, processes_with, run, script, try_run, try_run_with, workspace,
};

#[test]
fn a_command_runs_and_its_end_is_reported() {
    in_each_role("a_command_runs_and_its_end_is_reported", || {
        let ws = workspace();
        run(&plan(Full, ws.path(), &["true"])).ok();
        assert_eq!(run(&plan(Full, ws.path(), &["sh", "-c", "exit 42"])).exit.status, ProcessExit::Exited(42));
        assert_eq!(run(&plan(Full, ws.path(), &["sh", "-c", "kill -TERM $$"])).exit.status, ProcessExit::Signaled(15));
        let inside = ws.path().canonicalize().unwrap();
        let output = run(&script(Full, ws.path(), "echo out; echo err >&2; pwd"));
        assert_eq!((output.stderr.as_str(), output.exit.exec_errno), ("err\n", None));
        assert_eq!(output.ok(), format!("out\n{}\n", inside.display()));
    });
}

#[test]
fn a_program_that_cannot_be_executed_has_its_own_error() {
    in_each_role("a_program_that_cannot_be_executed_has_its_own_error", || {
        let ws = workspace();
        fs::write(ws.path().join("data"), "#!/bin/sh\n").unwrap();
        for (program, errno) in [
            ("no-such-program-anywhere", Errno::NOENT),
            ("/no/such/program", Errno::NOENT),
            ("./data", Errno::ACCESS),
            ("/usr", Errno::ACCESS),
        ] {
            assert_eq!(run(&plan(Full, ws.path(), &[program])).exit.exec_errno, Some(errno), "{program}");
        }
    });
}

#[test]
fn there_is_no_privilege() {
    in_each_role("there_is_no_privilege", || {
        let ws = workspace();
        let status = run(&script(Full, ws.path(), "cat /proc/self/status; id -u; id -G; ulimit -c")).ok();
        for line in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(status.contains(&format!("{line}:\t0000000000000000\n")), "{line} in {status}");
        }
        assert!(status.contains("NoNewPrivs:\t1\n") && status.contains("Seccomp:\t2\n"), "{status}");
        let user = rustix::process::geteuid().as_raw();
        let tail: Vec<&str> = status.lines().rev().take(3).collect();
        assert_eq!(tail[2], user.to_string(), "the number of the user stays");
        assert_eq!(tail[1].split(' ').next(), Some(rustix::process::getegid().as_raw().to_string().as_str()));
        assert_eq!(tail[0], "0", "no core dumps");
    });
}

#[test]
fn only_its_own_processes_are_there() {
    in_each_role("only_its_own_processes_are_there", || {
        let ws = workspace();
        let listed = run(&script(Full, ws.path(), "echo /proc/[0-9]*; cut -d' ' -f5-7 /proc/self/stat")).ok();
        let (processes, ids) = listed.split_once('\n').unwrap();
        assert!(processes.split(' ').count() <= 3, "{processes}");
        let ids: Vec<&str> = ids.split_whitespace().collect();
        assert_eq!((ids[0], ids[1], ids[2]), ("2", "2", "0"), "own group and session, no terminal");
        for target in ["/proc/1/mem", "/proc/1/environ", "/proc/1/root/etc/passwd", "/proc/1/fd/0"] {
            let ran = run(&script(Full, ws.path(), &format!("cat {target}")));
            assert_ne!(ran.exit.status, ProcessExit::Exited(0), "{target}");
        }
        assert_ne!(run(&script(Full, ws.path(), "kill -9 1; kill -0 1")).exit.status, ProcessExit::Signaled(9));
    });
}

#[test]
fn few_devices_are_there() {
    in_each_role("few_devices_are_there", || {
        let ws = workspace();
        let listed =
            run(&script(Full, ws.path(), "cd /dev && echo *; echo pts: pts/*; echo x > null; head -c4 zero")).ok();
        let mut lines = listed.lines();
        assert_eq!(
            lines.next(),
            Some("fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"),
            "{listed:?}"
        );
        assert_eq!(lines.next(), Some("pts: pts/ptmx"));
        assert!(listed.ends_with("\0\0\0\0"));
        let made = run(&script(
            Full,
            ws.path(),
            "mknod /tmp/sda b 8 0; mknod /dev/sda b 8 0; touch /dev/x; chmod 640 /dev/null",
        ));
        assert!(made.stderr.lines().count() == 4, "{made:?}");
        let opened = "python3 -c 'import pty; m, s = pty.openpty(); print(len(str(m)))' 2>/dev/null || echo 1";
        assert_eq!(run(&script(Full, ws.path(), opened)).ok(), "1\n");
    });
}

#[test]
fn the_hosts_files_cannot_be_changed() {
    in_each_role("the_hosts_files_cannot_be_changed", || {
        let ws = workspace();
        fs::write(ws.path().join("file"), "kept").unwrap();
        for attempt in [
            "echo x > /etc/hostname",
            "touch /usr/x",
            "mkdir /opt/x",
            "rm -f /etc/passwd && ! test -e /etc/passwd",
            "chmod 777 /etc",
            "echo 1 > /proc/sys/kernel/sysrq",
            "echo x > /sys/kernel/uevent_helper",
            // The broker alone writes in the workspace.
            "echo x > file",
            "echo x > new",
            "mkdir new",
            "rm file",
            "mv file other",
            "ln -s file link",
        ] {
            let ran = run(&script(Full, ws.path(), attempt));
            assert_ne!(ran.exit.status, ProcessExit::Exited(0), "{attempt}: {ran:?}");
        }
        assert_eq!(fs::read_to_string(ws.path().join("file")).unwrap(), "kept");
        assert_eq!(fs::read_dir(ws.path()).unwrap().count(), 1);
    });
}

#[test]
fn temporary_files_are_private() {
    in_each_role("temporary_files_are_private", || {
        let ws = workspace();
        // A workspace elsewhere leaves the private trees to the kernel.
        let elsewhere = Path::new("/usr");
        let mut outside = plan(Full, elsewhere, &[]);
        outside.profile.filesystem.write.clear();
        let mark = format!("mark-{}", std::process::id());
        let text = format!(
            "for d in /tmp /var/tmp /dev/shm /run; do
                 test -z \"$(ls $d | grep -v -e user -e lock)\" || ls $d; echo kept > $d/{mark} && cat $d/{mark} || echo no $d
             done; mkdir -p /tmp/a/b && mv /tmp/{mark} /tmp/a/b/c && rm -r /tmp/a && ls -ld /tmp | cut -c1-10"
        );
        outside.argv = ["/bin/sh", "-c", &text].map(RawText::from).to_vec();
        assert_eq!(run(&outside).ok(), "kept\nkept\nkept\nkept\ndrwxrwxrwt\n");
        for directory in ["/tmp", "/var/tmp", "/dev/shm", "/run"] {
            assert!(!Path::new(directory).join(&mark).exists());
        }
        // Only the way to the workspace is there.
        let listed = run(&script(Full, ws.path(), "ls /tmp; ls -d \"$PWD\"")).ok();
        let name = ws.path().file_name().unwrap().to_string_lossy();
        assert_eq!(listed, format!("{name}\n{}\n", ws.path().display()));
        // And around it the kernel leaves everything to the broker.
        let blueprint = Blueprint::prepare(&script(Full, ws.path(), "")).unwrap();
        let allows_writes =
            |p: &str| blueprint.private_trees().iter().find(|t| t.path == Path::new(p)).unwrap().kernel_allows;
        assert!(!allows_writes("/tmp") && allows_writes("/var/tmp") && allows_writes("/run"));
    });
}

#[test]
fn private_space_is_bounded() {
    in_each_role("private_space_is_bounded", || {
        let mut small = plan(Full, Path::new("/usr"), &["sh", "-c", "head -c 3000000 /dev/zero > /tmp/x"]);
        small.profile.filesystem.write.clear();
        run(&small).ok();
        small.profile.limits.temp_bytes = Some(1 << 20);
        assert_ne!(run(&small).exit.status, ProcessExit::Exited(0));
    });
}

#[test]
fn nothing_leaks_in() {
    in_each_role("nothing_leaks_in", || {
        let ws = workspace();
        let file = fs::File::open("/").unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        let ran =
            run(&script(Full, ws.path(), "exec 9<.; for n in /proc/self/fd/*; do echo ${n##*/}; done; umask; env"));
        let text = ran.ok();
        let (descriptors, rest) = text.split_once("00").unwrap();
        // 9 is its own; the shell's listing needs no descriptor of its own.
        assert!(descriptors.split_whitespace().all(|n| ["0", "1", "2", "3", "9"].contains(&n)), "{descriptors}");
        let variables: Vec<&str> = rest.lines().skip(1).filter_map(|l| l.split('=').next()).collect();
        assert!(
            variables.iter().all(|v| ["PATH", "HOME", "LC_ALL", "PWD", "OLDPWD", "_", "SHLVL"].contains(v)),
            "{variables:?}"
        );
    });
}

/// Files of a run's own stand where the host's do, also behind a link into what is
/// private inside; what is not there cannot be replaced.
#[test]
fn files_are_replaced_for_the_run_alone() {
    in_each_role("files_are_replaced_for_the_run_alone", || {
        let (ws, host) = (workspace(), workspace());
        let [file, link] = ["file", "link"].map(|name| host.path().join(name));
        fs::write(&file, "host").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let around = NamingVariable { name: "AROUND".to_owned(), before: "<", after: ">" };
        let variables = vec![NamingVariable::path_only("NAMED"), around];
        let named = NamedFile { name: "named", content: b"named".to_vec(), variables };
        let options = LaunchOptions {
            files: vec![(link.clone(), b"own".to_vec()), ("/etc/hostname".into(), b"elsewhere".to_vec())],
            environment: BTreeMap::from([("HOME".to_owned(), "/nowhere".into())]),
            named: vec![named],
            ..LaunchOptions::default()
        };
        let shown = format!(
            "cat {} /etc/hostname \"$NAMED\"; test \"$AROUND\" = \"<$NAMED>\" && echo $HOME; echo x 2>/dev/null >/etc/hostname || echo kept",
            file.display()
        );
        let ran = try_run_with(&script(Full, ws.path(), &shown), &options).unwrap();
        assert_eq!(ran.ok(), "ownelsewherenamed/nowhere\nkept\n");
        assert_eq!(fs::read_to_string(&file).unwrap(), "host");
        let plan = script(Full, ws.path(), "true");
        for missing in [host.path().join("none"), host.path().to_owned()] {
            let options = LaunchOptions { files: vec![(missing, Vec::new())], ..LaunchOptions::default() };
            assert!(try_run_with(&plan, &options).is_err());
        }
    });
}

#[test]
fn the_network_is_its_own() {
    in_each_role("the_network_is_its_own", || {
        let ws = workspace();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let dial = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
        assert_ne!(run(&plan(Full, ws.path(), &["bash", "-c", &dial])).exit.status, ProcessExit::Exited(0));
        let devices = run(&script(Full, ws.path(), "grep -c : /proc/net/dev; cat /proc/net/dev")).ok();
        assert!(devices.starts_with("1\n") && devices.contains("lo:"), "{devices}");
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok(), "the positive control");
    });
}

/// The init makes sockets inside as long as the command runs, on any address
/// and any port; a datagram for any server's port 53 arrives outside.
#[test]
fn the_caller_listens_at_a_free_address_inside() {
    in_each_role("the_caller_listens_at_a_free_address_inside", || {
        let ws = workspace();
        let dial = "
            read wait
            exec 3<>/dev/udp/8.8.8.8/53; printf question >&3
            exec 4<>/dev/tcp/93.184.215.14/443; cat <&4
            exec 5<>/dev/tcp/93.184.215.14/444 || echo nobody";
        let (mut stdout, stdout_inside) = pipe();
        let (stdin, word) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let stdio =
            CommandStdio { stdin: stdin.as_fd(), stdout: stdout_inside.as_fd(), stderr: rustix::stdio::stderr() };
        let mut launched =
            launch_sandbox(Blueprint::prepare(&plan(Full, ws.path(), &["bash", "-c", dial])).unwrap(), stdio).unwrap();
        drop((stdin, stdout_inside));
        let network = launched.take_network().unwrap();
        let answers = answer_all(&mut launched);
        launched.release_command().unwrap();
        for at in ["93.184.215.14:443", "[2001:db8::1]:443", "[::1]:80"] {
            let at = at.parse().unwrap();
            if network.has_ipv6() {
                assert!(network.sockets.open_listener(at).is_ok(), "{at}");
            }
        }
        let listener = network.sockets.open_listener("93.184.215.14:443".parse().unwrap()).unwrap();
        assert_eq!(network.sockets.open_listener("93.184.215.14:443".parse().unwrap()).unwrap_err(), Errno::ADDRINUSE);
        drop(word);
        let listener = std::net::TcpListener::from(listener);
        listener.set_nonblocking(false).unwrap();
        let (mut accepted, peer) = listener.accept().unwrap();
        assert_eq!((accepted.local_addr().unwrap().port(), peer.ip()), (443, accepted.local_addr().unwrap().ip()));
        std::io::Write::write_all(&mut accepted, b"hello\n").unwrap();
        drop(accepted);
        let mut stdout_text = String::new();
        std::io::Read::read_to_string(&mut stdout, &mut stdout_text).unwrap();
        assert_eq!(stdout_text, "hello\nnobody\n");
        let mut question = [0; 16];
        let length = rustix::io::read(&network.names, &mut question).unwrap();
        assert_eq!(&question[..length], b"question");
        assert_eq!(launched.wait_for_end(TIMEOUT).unwrap().unwrap().status, ProcessExit::Exited(0));
        drop(launched);
        assert!(network.sockets.open_listener("93.184.215.14:443".parse().unwrap()).is_err(), "it ended with the run");
        answers.join().unwrap();
    });
}

#[test]
fn namespaces_cannot_be_nested_and_kernel_interfaces_are_closed() {
    in_each_role("namespaces_cannot_be_nested_and_kernel_interfaces_are_closed", || {
        let ws = workspace();
        for attempt in ["unshare -U true", "unshare -n true", "mount -t tmpfs x /tmp", "chroot / true", "dmesg"] {
            let ran = run(&script(Full, ws.path(), attempt));
            assert_ne!(ran.exit.status, ProcessExit::Exited(0), "{attempt}: {ran:?}");
        }
        let masked =
            run(&script(Full, ws.path(), "cat /proc/kcore /proc/kallsyms | wc -c; ls -A /sys/firmware | wc -l")).ok();
        assert_eq!(masked, "0\n0\n");
    });
}

#[test]
fn nothing_outlives_the_run() {
    in_each_role("nothing_outlives_the_run", || {
        let ws = workspace();
        let mark = format!("7{:08}", std::process::id());
        let text = format!("(setsid sleep {mark} &) ; sleep {mark} & exit 3");
        assert_eq!(run(&script(Full, ws.path(), &text)).exit.status, ProcessExit::Exited(3));
        assert_eq!(processes_with(&mark), Vec::<std::path::PathBuf>::new());
    });
}

#[test]
fn it_can_be_signalled_and_killed() {
    in_each_role("it_can_be_signalled_and_killed", || {
        let ws = workspace();
        for (signal, expected) in [(Some(15), ProcessExit::Exited(7)), (None, ProcessExit::Signaled(9))] {
            let plan = script(Full, ws.path(), "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done");
            let (mut output, inside) = pipe();
            let null = fs::File::open("/dev/null").unwrap();
            let stdio = CommandStdio { stdin: null.as_fd(), stdout: inside.as_fd(), stderr: null.as_fd() };
            let mut launched = launch_sandbox(Blueprint::prepare(&plan).unwrap(), stdio).unwrap();
            drop(inside);
            let answers = answer_all(&mut launched);
            launched.release_command().unwrap();
            std::io::Read::read_exact(&mut output, &mut [0; 6]).unwrap();
            assert_eq!(launched.try_wait().unwrap(), None, "still running");
            match signal {
                Some(signal) => launched.signal_command(signal),
                None => launched.kill_sandbox(),
            }
            assert_eq!(launched.wait_for_end(TIMEOUT).unwrap().unwrap().status, expected);
            drop(launched);
            answers.join().unwrap();
        }
    });
}

#[test]
fn a_held_command_has_not_run_and_ends_when_dropped() {
    in_each_role("a_held_command_has_not_run_and_ends_when_dropped", || {
        let ws = workspace();
        let null = fs::File::open("/dev/null").unwrap();
        let stdio = CommandStdio { stdin: null.as_fd(), stdout: null.as_fd(), stderr: null.as_fd() };
        let launched = launch_sandbox(Blueprint::prepare(&plan(Full, ws.path(), &["true"])).unwrap(), stdio).unwrap();
        let init = launched.init_pid();
        assert!(Path::new(&format!("/proc/{init}")).exists());
        drop(launched);
        assert!(!Path::new(&format!("/proc/{init}")).exists());
    });
}

#[test]
fn hidden_files_are_unreadable_and_the_attempt_is_reported() {
    in_each_role("hidden_files_are_unreadable_and_the_attempt_is_reported", || {
        let ws = workspace();
        let at = |name: &str| ws.path().join(name);
        fs::create_dir_all(at("secrets/deep")).unwrap();
        fs::write(at("secrets/key"), "hunter2").unwrap();
        fs::write(at("secrets/shown"), "public").unwrap();
        fs::write(at("secrets/deep/more"), "hunter2").unwrap();
        fs::write(at("token"), "hunter2").unwrap();
        let text = "grep -r hunter2 . ; cat secrets/key secrets/deep/more token; ls secrets; cat secrets/shown";
        let mut plan = script(Full, ws.path(), text);
        plan.profile.filesystem.hide = ["secrets", "token"].map(|n| RawText::from(at(n))).to_vec();
        plan.profile.filesystem.reveal = vec![RawText::from(at("secrets/shown"))];
        let (mut output, inside) = pipe();
        let null = fs::File::open("/dev/null").unwrap();
        let stdio = CommandStdio { stdin: null.as_fd(), stdout: inside.as_fd(), stderr: null.as_fd() };
        let mut launched = launch_sandbox(Blueprint::prepare(&plan).unwrap(), stdio).unwrap();
        drop(inside);
        let reads = launched.take_hidden_reads().unwrap();
        let answers = answer_all(&mut launched);
        launched.release_command().unwrap();
        launched.wait_for_end(TIMEOUT).unwrap();
        answers.join().unwrap();
        let mut shown = String::new();
        std::io::Read::read_to_string(&mut output, &mut shown).unwrap();
        assert_eq!(shown, "deep\nkey\nshown\npublic");

        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut events = rustix::fs::inotify::Reader::new(&reads.inotify, &mut buffer);
        let mut seen = Vec::new();
        while let Ok(event) = events.next() {
            let path = &reads.paths[usize::try_from(event.wd()).unwrap() - 1];
            let name = event.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            seen.push(path.join(name));
        }
        // Of files in what the run may write the opening itself fails, and tells nothing.
        assert!(seen.contains(&at("secrets/")) && seen.contains(&at("secrets/deep")), "{seen:?}");
    });
}

#[test]
fn protected_names_are_read_only_mounts() {
    in_each_role("protected_names_are_read_only_mounts", || {
        let ws = workspace();
        fs::create_dir_all(ws.path().join(".git/hooks")).unwrap();
        fs::write(ws.path().join(".bashrc"), "").unwrap();
        std::os::unix::fs::symlink(".bashrc", ws.path().join(".profile")).unwrap();
        std::os::unix::fs::symlink("/etc", ws.path().join(".vscode")).unwrap();
        let mounts = "while read -r a b c d path flags rest; do case $path in $PWD*) echo \"${path#$PWD} ${flags%%,*}\";; esac; done < /proc/self/mountinfo";
        assert_eq!(run(&script(Full, ws.path(), mounts)).ok(), " rw\n/.bashrc ro\n/.git/hooks ro\n");
        let mut granted = script(Full, ws.path(), mounts);
        granted.profile.filesystem.write.push(ws.path().join(".git").into());
        assert_eq!(run(&granted).ok(), " rw\n/.bashrc ro\n/.git/hooks ro\n");
    });
}

#[test]
fn a_workspace_that_was_exchanged_is_refused_and_nothing_is_left() {
    in_each_role("a_workspace_that_was_exchanged_is_refused_and_nothing_is_left", || {
        let ws = workspace();
        let inner = ws.path().join("ws");
        for link in [false, true] {
            fs::create_dir(&inner).unwrap();
            let blueprint = Blueprint::prepare(&plan(Full, &inner, &["true"])).unwrap();
            fs::rename(&inner, ws.path().join(format!("old-{link}"))).unwrap();
            if link {
                std::os::unix::fs::symlink("/etc", &inner).unwrap();
            } else {
                fs::create_dir(&inner).unwrap();
            }
            let null = fs::File::open("/dev/null").unwrap();
            let stdio = CommandStdio { stdin: null.as_fd(), stdout: null.as_fd(), stderr: null.as_fd() };
            match launch_sandbox(blueprint, stdio) {
                Err(LaunchError::Step {
                    step: "attach", errno: Errno::STALE | Errno::LOOP | Errno::NOTDIR, ..
                }) => {}
                other => panic!("{other:?}"),
            }
            if !link {
                fs::remove_dir(&inner).unwrap();
            }
        }
        let child = rustix::process::waitpid(None, rustix::process::WaitOptions::NOHANG);
        assert_eq!(child.unwrap_err(), Errno::CHILD, "no child is left");
    });
}

#[test]
fn plans_that_cannot_be_made_real_are_refused() {
    in_each_role("plans_that_cannot_be_made_real_are_refused", || {
        let ws = workspace();
        let with = |change: &dyn Fn(&mut stockade_model::AttemptPlan)| {
            let mut plan = plan(Full, ws.path(), &["true"]);
            change(&mut plan);
            try_run(&plan).unwrap_err().to_string()
        };
        for message in [
            with(&|p| p.argv.clear()),
            with(&|p| p.argv[0] = RawText::from("a\0b")),
            with(&|p| p.profile.filesystem.write.push(RawText::from("/"))),
            with(&|p| p.profile.filesystem.write.push(RawText::from("/proc/sys"))),
            with(&|p| p.cwd = RawText::from("/no/such/place")),
            with(&|p| p.level = stockade_model::IsolationLevel::None),
        ] {
            assert!(!message.is_empty());
        }
    });
}

#[test]
fn limits_hold() {
    in_each_role("limits_hold", || {
        let ws = workspace();
        let mut limited = script(Full, ws.path(), "ulimit -n; ulimit -Hn");
        limited.profile.limits.open_files = Some(77);
        assert_eq!(run(&limited).ok(), "77\n77\n");
    });
}

#[test]
fn the_report_lists_enforced_layers() {
    in_each_role("the_report_lists_enforced_layers", || {
        let ws = workspace();
        let ran = run(&plan(Full, ws.path(), &["true"]));
        for layer in
            ["user-namespace", "pid-namespace", "network-namespace", "mounts", "landlock", "seccomp", "capabilities"]
        {
            let report = ran.report.layers.get(layer).unwrap_or_else(|| panic!("{layer} in {:?}", ran.report));
            // What an older kernel lacks (truncation before 6.2, ioctl before 6.10) is said.
            let lacks = layer == "landlock" && landlock::query_abi_version().unwrap() < 5;
            let expected = if lacks { LayerState::Partial } else { LayerState::Enforced };
            assert!(!report.detail.is_empty() && report.state == expected, "{layer}: {report:?}");
            assert_eq!(report.detail.contains("without: "), lacks, "{report:?}");
        }
        assert!(ran.report.layers["mounts"].detail.contains("writable"));
        assert!(ran.exit.usage.memory_peak_bytes > 0);
    });
}

/// The caller is killed while its command, with children in other sessions,
/// runs: the kernel tells the init, and nothing is left.
#[test]
fn killing_the_caller_leaves_no_process() {
    in_each_role("killing_the_caller_leaves_no_process", || {
        support::check_killed_caller(Full);
    });
}

#[test]
fn the_workspace_keeps_its_identity() {
    in_each_role("the_workspace_keeps_its_identity", || {
        let ws = workspace();
        let inode = run(&plan(Full, ws.path(), &["stat", "-c", "%i", "."])).ok();
        assert_eq!(inode.trim(), fs::metadata(ws.path()).unwrap().ino().to_string());
    });
}
