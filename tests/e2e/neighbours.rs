//! What is beside a run: other commands of the same sandbox, other processes and files of
//! the same user. Judged from outside, each with the same attempt where nothing stands in
//! its way.

use std::fs;

use rustix::fs::{OFlags, open};
use stockade_testkit::{Command, Ended, Output, Running};

use crate::kept::{mark, running, wait_until};
use crate::life::marked;
use crate::sandbox::{create, done, exec};
use crate::world::{World, each_user};

const LEVELS: [&str; 2] = ["full", "restricted"];

/// The attempt in the sandbox of each level, and last without one.
fn attempts<'w>(world: &'w World, argv: &'w [&'w str]) -> impl Iterator<Item = (&'static str, Command)> + 'w {
    let sandboxed = LEVELS.map(|level| (level, world.stockade(&["--level", level], argv)));
    sandboxed.into_iter().chain([("bare", world.bare(argv))])
}

#[track_caller]
fn ran(output: &Output) {
    assert_eq!(output.ended, Ended::Code(0), "{}", output.text());
}

/// One that waits, and another that writes to all descriptors that it finds.
#[test]
fn commands_of_one_sandbox_have_their_descriptors_for_themselves() {
    const FORGING: &str = "for fd in /proc/[0-9]*/fd/[0-2]; do echo forged >>$fd; done 2>/dev/null; true";
    // A pipe that its user has made, which others of that user could open.
    const WAITING: &str = "exec bash -c 'exec > >(exec cat); echo ready; sleep 4; echo own >>/proc/$$/fd/1; echo over'";
    each_user(|world| {
        let id = create(world, &[]);
        let victim = running(world, &id, WAITING);
        exec(world, &id, FORGING);
        wait_until("it does not end", || victim.stdout_so_far().contains("over"));
        let shown = victim.stdout_so_far();
        assert!(!shown.contains("forged"), "{shown}");
        assert!(shown.contains("own"), "what is its own it has: {shown}");
        victim.finish().unwrap();
        let own = exec(world, &id, &format!("bash -c 'exec > >(exec cat); sleep 1 & {FORGING}'"));
        assert!(own.contains("forged"), "where it is the same command it can be done: {own}");
        done(world, &["destroy", &id]);
    });
}

#[test]
fn no_lease_keeps_others_from_a_file() {
    const LEASING: &str = "import fcntl, os, sys, time\n\
        fd = os.open(sys.argv[1], os.O_RDONLY)\n\
        try: fcntl.fcntl(fd, 1024, fcntl.F_RDLCK)\n\
        except OSError as error: print(error)\n\
        print('ready', flush=True)\n\
        time.sleep(2)";
    each_user(|world| {
        let file = world.file("out/leased", "x");
        for (level, command) in attempts(world, &["python3", "-c", LEASING, file.to_str().unwrap()]) {
            let holding = Running::start(&world.account, &command).unwrap();
            wait_until("it does not run", || holding.stdout_so_far().contains("ready"));
            let opened = open(&file, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, rustix::fs::Mode::empty());
            assert_eq!(opened.is_ok(), level != "bare", "{level}: {opened:?} {}", holding.stdout_so_far());
            holding.finish().unwrap();
        }
    });
}

/// The nice value and the processors of a process outside; those of its own it may set.
#[test]
fn priorities_of_other_processes_are_out_of_reach() {
    const SETTING: &str = "import os, subprocess, sys, threading\n\
        other = int(sys.argv[1])\n\
        for attempt in (lambda p: os.setpriority(os.PRIO_PROCESS, p, 15),\n\
        \x20               lambda p: os.sched_setaffinity(p, {0})):\n\
        \x20   try: attempt(other)\n\
        \x20   except OSError: pass\n\
        child = subprocess.Popen(['sleep', '1'])\n\
        os.setpriority(os.PRIO_PROCESS, child.pid, 7)\n\
        os.sched_setaffinity(child.pid, {0})\n\
        def of_thread(): os.sched_setaffinity(threading.get_native_id(), {0})\n\
        thread = threading.Thread(target=of_thread); thread.start(); thread.join()\n\
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == 7\n\
        child.kill()\n\
        try: len(sys.argv) == 3 and os.setpriority(os.PRIO_USER, os.getuid(), 15)\n\
        except OSError: pass\n\
        print('own set')";
    each_user(|world| {
        let mark = mark(9);
        let other = Running::start(&world.account, &world.bare(&["sleep", &mark])).unwrap();
        wait_until("it does not run", || !marked(&mark).is_empty());
        let pid = marked(&mark)[0].to_string();
        let nice = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap().to_owned()
        };
        for (level, command) in attempts(world, &["python3", "-c", SETTING, &pid]) {
            // Without a sandbox that would be done to the whole machine.
            let command = if level == "bare" { command } else { command.args(["user"]) };
            let output = world.run(&command);
            assert!(output.stdout.contains("own set"), "{level} {}", output.text());
            assert_eq!(nice() == "0", level != "bare", "{level}: {}", nice());
        }
        crate::kept::kill(pid.parse().unwrap());
        let _ = other.finish();
    });
}

/// Whatever changes a file by an ioctl is refused; what only reads is not.
#[test]
fn ioctls_change_no_file() {
    const CHANGING: &str = "import array, fcntl, os, sys\n\
        fd = os.open(sys.argv[1], os.O_RDONLY)\n\
        def attempt(number, value):\n\
        \x20   buffer = array.array('q', [value])\n\
        \x20   try: fcntl.ioctl(fd, number, buffer, True); return buffer[0]\n\
        \x20   except OSError as error: return -error.errno\n\
        print('set', attempt(0x40087602, 4711))\n\
        print('flags', attempt(0x40086602, 0x10))\n\
        print('read', attempt(0x80086601, 0) >= 0 or attempt(0x80086601, 0) == -25)";
    each_user(|world| {
        let file = world.file("out/versioned", "x");
        let version = || {
            let script = "import array, fcntl, sys\n\
                buffer = array.array('q', [0])\n\
                try: fcntl.ioctl(open(sys.argv[1]), 0x80087601, buffer, True)\n\
                except OSError: pass\n\
                print(buffer[0])";
            world.run(&world.bare(&["python3", "-c", script, file.to_str().unwrap()])).stdout
        };
        for (level, command) in attempts(world, &["python3", "-c", CHANGING, file.to_str().unwrap()]) {
            let output = world.run(&command);
            ran(&output);
            if level == "bare" {
                // Not every filesystem has versions.
                let set = output.stdout.contains("set 4711");
                assert_eq!(set, version().trim() == "4711", "{}", output.text());
            } else {
                assert!(
                    output.stdout.contains("set -25\n") && output.stdout.contains("flags -1\n"),
                    "{level} {}",
                    output.text()
                );
                assert!(output.stdout.contains("read True"), "{level} {}", output.text());
                assert_ne!(version().trim(), "4711", "{level}");
            }
        }
    });
}

/// A directory whose name ends as the kernel writes that of a removed one.
#[test]
fn a_name_that_ends_like_a_removed_one_is_another_name() {
    const CHANGING: &str = "import os, sys\n\
        fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)\n\
        for attempt in (lambda: os.fchmod(fd, 0o750), lambda: os.chmod(fd, 0o750), lambda: os.utime(fd, (1, 1)),\n\
        \x20               lambda: os.open('.', os.O_TMPFILE | os.O_RDWR, dir_fd=fd),\n\
        \x20               lambda: os.open('made', os.O_CREAT | os.O_WRONLY, dir_fd=fd)):\n\
        \x20   try: attempt(); print('done')\n\
        \x20   except OSError: pass\n\
        print('tried')";
    each_user(|world| {
        let beside = world.dir("ws (deleted)");
        let modified = || fs::metadata(&beside).unwrap().modified().unwrap();
        let before = modified();
        for (level, command) in attempts(world, &["python3", "-c", CHANGING, beside.to_str().unwrap()]) {
            let output = world.run(&command);
            ran(&output);
            assert!(output.stdout.contains("tried"), "{level} {}", output.text());
            let changed = output.stdout.contains("done") || modified() != before || beside.join("made").exists();
            assert_eq!(changed, level == "bare", "{level} {}", output.text());
        }
    });
}
