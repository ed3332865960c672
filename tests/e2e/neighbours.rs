//! What is beside a run: other commands of the same sandbox, other processes and files of
//! the same user. Judged from outside, each with the same attempt where nothing stands in
//! its way.

use std::fs;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{OFlags, open};
use stockade_testkit::{ProgramEnd, ProgramOutput, RunningProgram, TestCommand};

use crate::kept::{mark, running, wait_until};
use crate::life::marked;
use crate::sandbox::{create, done, exec};
use crate::world::{World, each_user};

const LEVELS: [&str; 2] = ["full", "restricted"];

/// The attempt in the sandbox of one level; `bare` is without one.
fn attempt(world: &World, level: &str, argv: &[&str]) -> TestCommand {
    if level == "bare" { world.bare(argv) } else { world.stockade(&["--level", level], argv) }
}

/// The attempt in the sandbox of each level, and last without one.
fn attempts<'w>(world: &'w World, argv: &'w [&'w str]) -> impl Iterator<Item = (&'static str, TestCommand)> + 'w {
    LEVELS.into_iter().chain(["bare"]).map(|level| (level, attempt(world, level, argv)))
}

#[track_caller]
fn ran(output: &ProgramOutput) {
    assert_eq!(output.ended, ProgramEnd::Code(0), "{}", output.combined_text());
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
        victim.wait_for_end().unwrap();
        let own = exec(world, &id, &format!("bash -c 'exec > >(exec cat); sleep 1 & {FORGING}'"));
        assert!(own.contains("forged"), "where it is the same command it can be done: {own}");
        done(world, &["destroy", &id]);
    });
}

/// A pipe of a process outside, which its user could open anew by its name in procfs.
#[test]
fn descriptors_of_processes_outside_are_out_of_reach() {
    const WAITING: &str = "exec > >(exec cat); echo \"ready $$.\"; sleep 4; echo over";
    const FORGING: &str = "for fd in /proc/$0/fd/[0-2]; do echo forged >>$fd; done; echo tried";
    each_user(|world| {
        for level in LEVELS.into_iter().chain(["bare"]) {
            let victim = RunningProgram::start(&world.account, &world.bare(&["bash", "-c", WAITING])).unwrap();
            wait_until("it does not run", || victim.stdout_so_far().contains('.'));
            let shown = victim.stdout_so_far();
            let pid = shown.split([' ', '.']).nth(1).unwrap();
            let argv = ["bash", "-c", FORGING, pid];
            let output = world.run(&attempt(world, level, &argv));
            assert!(output.stdout.contains("tried"), "{level}: {}", output.combined_text());
            wait_until("it does not end", || victim.stdout_so_far().contains("over"));
            assert_eq!(
                victim.stdout_so_far().contains("forged"),
                level == "bare",
                "{level}: {}",
                output.combined_text()
            );
            victim.wait_for_end().unwrap();
        }
    });
}

/// The limits of a process outside, and of the first one inside.
#[test]
fn limits_of_other_processes_are_out_of_reach() {
    const LOWERING: &str = "import resource, sys\n\
        for pid in (int(sys.argv[1]), 1):\n\
        \x20   try: resource.prlimit(pid, resource.RLIMIT_NOFILE, (9, 9)); print('lowered', pid)\n\
        \x20   except OSError: pass\n\
        \x20   if sys.argv[2] == 'bare': break\n\
        resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))\n\
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (99, 99)\n\
        print('own set')";
    each_user(|world| {
        let mark = mark(10);
        let other = RunningProgram::start(&world.account, &world.bare(&["sleep", &mark])).unwrap();
        wait_until("it does not run", || !marked(&mark).is_empty());
        let pid = marked(&mark)[0].to_string();
        let limits = || fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let before = limits();
        for level in LEVELS.into_iter().chain(["bare"]) {
            let argv = ["python3", "-c", LOWERING, &pid, level];
            let output = world.run(&attempt(world, level, &argv));
            assert!(output.stdout.contains("own set"), "{level} {}", output.combined_text());
            assert_eq!(output.stdout.contains("lowered"), level == "bare", "{level} {}", output.combined_text());
            assert_eq!(limits() == before, level != "bare", "{level}: {}", limits());
        }
        crate::kept::kill(pid.parse().unwrap());
        let _ = other.wait_for_end();
    });
}

/// No socket of another's gets a second name, or another one, in a directory that the run may
/// write: who looks for it there would find nothing, or the run.
#[test]
fn sockets_of_others_keep_their_names() {
    const MOVING: &str = "import ctypes, os, socket, sys\n\
        own = socket.socket(socket.AF_UNIX); own.bind('own')\n\
        try:\n\
        \x20   if sys.argv[1] == 'rename': os.rename('host.sock', 'moved')\n\
        \x20   if sys.argv[1] == 'link': os.link('host.sock', 'linked')\n\
        \x20   if sys.argv[1] == 'exchange': ctypes.CDLL(None).renameat2(-100, b'own', -100, b'host.sock', 2)\n\
        except OSError: pass\n\
        os.rename('own', 'mine'); os.link('mine', 'mine-too')\n\
        print('tried')";
    each_user(|world| {
        for how in ["rename", "link", "exchange"] {
            for (level, command) in attempts(world, &["python3", "-c", MOVING, how]) {
                let workspace = world.workspace();
                for entry in fs::read_dir(&workspace).unwrap() {
                    fs::remove_file(entry.unwrap().path()).unwrap();
                }
                let path = workspace.join("host.sock");
                let _listener = UnixListener::bind(&path).unwrap();
                chown(&path, Some(world.account.uid), Some(world.account.gid)).unwrap();
                let inode = fs::symlink_metadata(&path).unwrap().ino();
                let output = world.run(&command);
                assert!(output.stdout.contains("tried"), "{level} {how} {}", output.combined_text());
                let entries = fs::read_dir(&workspace).unwrap().map(Result::unwrap);
                let of_host = entries.filter(|entry| entry.ino() == inode).map(|entry| entry.file_name());
                let names: Vec<_> = of_host.collect();
                assert_eq!(
                    names == ["host.sock"],
                    level != "bare",
                    "{level} {how} {names:?} {}",
                    output.combined_text()
                );
            }
        }
    });
}

/// The path of a bind changes while the call is on its way, between a directory of the run's
/// own and a protected name.
#[test]
fn no_bind_is_redirected_from_private_temp_to_a_protected_name() {
    const BINDING: &str = "import ctypes, os, socket, sys, threading, time\n\
        end = time.time() + 2\n\
        workspace = os.getcwd(); os.chdir(sys.argv[1]); os.symlink(workspace, 't')\n\
        libc = ctypes.CDLL(None)\n\
        path = ctypes.create_string_buffer(b'\\x01\\x00t/.envrc\\0', 110)\n\
        def flip():\n\
        \x20   n = 0\n\
        \x20   while time.time() < end: n ^= 1; path[2] = (b'.', b't')[n]\n\
        threading.Thread(target=flip).start()\n\
        bound = 0\n\
        while time.time() < end:\n\
        \x20   s = socket.socket(socket.AF_UNIX); bound += libc.bind(s.fileno(), path, 110) == 0; s.close()\n\
        \x20   try: os.unlink('.envrc')\n\
        \x20   except OSError: pass\n\
        print('bound', bound > 0)";
    each_user(|world| {
        let temp = world.dir("out/temp");
        let script = world.file("ws/bind.py", BINDING);
        let run = format!("python3 {} \"${{1:-${{TMPDIR:-/tmp}}}}\"", script.display());
        for level in LEVELS.into_iter().chain(["bare"]) {
            let temp = if level == "bare" { temp.to_str().unwrap() } else { "" };
            let argv = ["sh", "-c", &run, "sh", temp];
            let output = world.run(&attempt(world, level, &argv));
            assert!(output.stdout.contains("bound True"), "{level} {}", output.combined_text());
            let made = fs::symlink_metadata(world.workspace().join(".envrc")).is_ok();
            assert_eq!(made, level == "bare", "{level} {}", output.combined_text());
            if level == "bare" {
                fs::remove_file(Path::new(temp).join("t")).unwrap();
            }
        }
    });
}

/// While one run puts a file in a guarded place, which it was granted, another gives a second
/// name to what stands there for a moment, and writes by it.
#[test]
fn no_other_run_has_a_name_of_an_object_that_gets_a_guarded_path() {
    const PUTTING: &str = "import os, time\n\
        end, done = time.time() + 4, 0\n\
        while time.time() < end:\n\
        \x20   with open('x', 'w') as file: file.write('mine')\n\
        \x20   try: os.rename('x', '.envrc')\n\
        \x20   except OSError: continue\n\
        \x20   done += 1\n\
        \x20   if os.stat('.envrc').st_nlink > 1: break\n\
        \x20   os.unlink('.envrc')\n\
        print('done', done > 0)";
    const NAMING: &str = "import os, time\n\
        end, seen, second = time.time() + 5, None, 0\n\
        while time.time() < end and not seen:\n\
        \x20   seen = next((name for name in os.listdir('.') if name.startswith('.stockade-install-')), None)\n\
        while time.time() < end and second < 100:\n\
        \x20   try: os.link(seen, f'second-{second}'); second += 1\n\
        \x20   except OSError: pass\n\
        time.sleep(1)\n\
        for name in os.listdir('.'):\n\
        \x20   if name.startswith('second-'):\n\
        \x20       try:\n\
        \x20           with open(name, 'a') as file: file.write('forged')\n\
        \x20       except OSError as error: print(error)\n\
        print('seen', seen is not None, second)";
    each_user(|world| {
        for level in LEVELS {
            let grant = format!("write {}", world.workspace().join(".envrc").display());
            let (put, name) = (world.file("ws/put.py", PUTTING), world.file("ws/name.py", NAMING));
            let python = |options: &[&str], script: &Path| {
                world.stockade(&[&["--level", level], options].concat(), &["python3", script.to_str().unwrap()])
            };
            let naming = RunningProgram::start(&world.account, &python(&[], &name)).unwrap();
            let output = world.run(&python(&["--grant", &grant], &put));
            let named = naming.wait_for_end().unwrap();
            assert!(output.stdout.contains("done True"), "{level} {}", output.combined_text());
            let guarded = fs::read_to_string(world.workspace().join(".envrc")).unwrap_or_default();
            assert!(
                !guarded.contains("forged"),
                "{level}: {guarded} {} {}",
                output.combined_text(),
                named.combined_text()
            );
            for entry in fs::read_dir(world.workspace()).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
        }
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
            let holding = RunningProgram::start(&world.account, &command).unwrap();
            wait_until("it does not run", || holding.stdout_so_far().contains("ready"));
            let opened = open(&file, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, rustix::fs::Mode::empty());
            assert_eq!(opened.is_ok(), level != "bare", "{level}: {opened:?} {}", holding.stdout_so_far());
            holding.wait_for_end().unwrap();
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
        os.setpriority(os.PRIO_PROCESS, child.pid, 19)\n\
        os.sched_setaffinity(child.pid, {0})\n\
        def of_thread(): os.sched_setaffinity(threading.get_native_id(), {0})\n\
        thread = threading.Thread(target=of_thread); thread.start(); thread.join()\n\
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == 19\n\
        child.kill()\n\
        for user in (os.getuid(), 0):\n\
        \x20   try: len(sys.argv) == 3 and os.setpriority(os.PRIO_USER, user, 15)\n\
        \x20   except OSError: pass\n\
        print('own set')";
    each_user(|world| {
        let mark = mark(9);
        let other = RunningProgram::start(&world.account, &world.bare(&["sleep", &mark])).unwrap();
        wait_until("it does not run", || !marked(&mark).is_empty());
        let pid = marked(&mark)[0].to_string();
        let nice = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap().to_owned()
        };
        let processors = || {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            status.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap().to_owned()
        };
        let (usual, before) = (nice(), processors());
        for (level, command) in attempts(world, &["python3", "-c", SETTING, &pid]) {
            // Without a sandbox that would be done to the whole machine.
            let command = if level == "bare" { command } else { command.args(["user"]) };
            let output = world.run(&command);
            assert!(output.stdout.contains("own set"), "{level} {}", output.combined_text());
            assert_eq!(nice() == usual, level != "bare", "{level}: {}", nice());
            // With one processor alone there is nothing to be seen.
            let is_seen = level == "bare" && std::thread::available_parallelism().unwrap().get() > 1;
            assert_eq!(processors() != before, is_seen, "{level}: {before} {}", processors());
        }
        crate::kept::kill(pid.parse().unwrap());
        let _ = other.wait_for_end();
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
                assert_eq!(set, version().trim() == "4711", "{}", output.combined_text());
            } else {
                assert!(
                    output.stdout.contains("set -25\n") && output.stdout.contains("flags -1\n"),
                    "{level} {}",
                    output.combined_text()
                );
                assert!(output.stdout.contains("read True"), "{level} {}", output.combined_text());
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
            assert!(output.stdout.contains("tried"), "{level} {}", output.combined_text());
            let changed = output.stdout.contains("done") || modified() != before || beside.join("made").exists();
            assert_eq!(changed, level == "bare", "{level} {}", output.combined_text());
        }
    });
}
