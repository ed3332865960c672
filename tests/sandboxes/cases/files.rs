//! What a command sees, and what of it is its own.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};

use rustix::fs::{Mode, OFlags, openat};
use stockade_backend_api::{CommandEnd, SandboxTree};

use crate::Verdict;
use crate::bench::{Bench, inside};

super::cases! { "files":
    the_workspace_is_the_hosts_directory, writes_by_the_host_are_seen, the_home_is_the_hosts_directory,
    temp_is_private_and_shared_by_its_commands, temp_is_not_the_hosts, temp_is_bounded, the_system_cannot_be_written,
    nothing_is_above_the_workspace, the_hosts_files_are_not_there, a_link_out_leads_nowhere, a_hard_link_out_cannot_be_made,
    programs_look_at_files, hidden_files_are_not_read, renames_are_whole, modes_and_times_are_kept, sparse_and_large_files_work, pipes_and_sockets_can_be_made,
    devices_cannot_be_made, there_are_few_devices, locks_hold_between_commands, memory_is_shared_through_a_file,
    a_file_without_a_name_can_be_made, names_need_not_be_text, long_names_and_deep_trees_work, attributes_of_users_are_kept_or_refused,
    a_change_is_noticed, kernel_settings_cannot_be_written, nothing_can_be_mounted, the_trees_are_reached_from_outside,
    an_open_file_that_was_removed_lives_on, shared_memory_is_there, git_works,
}

/// As those of the core utilities do, with calls that others do not make.
fn programs_look_at_files(bench: &Bench) -> Verdict {
    let ran = bench.test_sandbox().run("echo text > file; stat -c %s file && ls -d file");
    match ran.end.end {
        CommandEnd::Exited(0) => assert_eq!(ran.stdout(), "5\nfile\n"),
        _ => return Err(ran.declares("`ls`")),
    }
    Ok(())
}

/// Of every system, and open to all: a file, and a directory, whose names may be listed.
const OPEN: [&str; 2] = ["/usr/lib/os-release", "/etc/alternatives"];

fn hidden_files_are_not_read(bench: &Bench) -> Verdict {
    let look = format!("cat {}; echo; cat {}/README; true", OPEN[0], OPEN[1]);
    let (file, beneath) =
        bench.test_sandbox().prints(&look).split_once("\n\n").map(|(a, b)| (a.len(), b.len())).unwrap();
    assert!(file > 0 && beneath > 0);
    let hidden = || OPEN.into_iter().map(Into::into);
    let test_sandbox = bench.test_sandbox_with(|plan| plan.profile.filesystem.hide.extend(hidden()));
    let mut plan = inside(&look);
    plan.profile.filesystem.hide.extend(hidden());
    assert_eq!(test_sandbox.run_plan(&plan).ok(), "\n");
    Ok(())
}

fn the_workspace_is_the_hosts_directory(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("mkdir -p a/b; echo text > a/b/c; ln -s b a/link; chmod 700 a/b/c");
    assert_eq!(test_sandbox.read_text("a/link/c"), "text\n");
    assert_eq!(fs::metadata(test_sandbox.work("a/b/c")).unwrap().permissions().mode() & 0o777, 0o700);
    Ok(())
}

fn writes_by_the_host_are_seen(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    fs::write(test_sandbox.work("in"), "first").unwrap();
    assert_eq!(test_sandbox.prints("cat in"), "first");
    let running = test_sandbox.start("touch ready; until [ \"$(cat in)\" = second ]; do sleep 0.02; done; echo seen");
    test_sandbox.wait_for("ready");
    fs::write(test_sandbox.work("in"), "second").unwrap();
    assert_eq!(running.end().ok(), "seen\n");
    Ok(())
}

fn the_home_is_the_hosts_directory(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("mkdir -p ~/.cache/x; echo kept > ~/.cache/x/y");
    assert_eq!(fs::read_to_string(test_sandbox.plan.home.join(".cache/x/y")).unwrap(), "kept\n");
    Ok(())
}

fn temp_is_private_and_shared_by_its_commands(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    assert_eq!(test_sandbox.prints("find /tmp -printf '%m %P\n'; echo kept > /tmp/x"), "1777 \n");
    assert_eq!(test_sandbox.prints("cat /tmp/x"), "kept\n");
    Ok(())
}

fn temp_is_not_the_hosts(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let theirs = tempfile::Builder::new().prefix("of-the-host-").tempdir_in("/tmp").unwrap();
    let name = theirs.path().to_str().unwrap();
    assert_eq!(
        test_sandbox.prints(&format!("touch /tmp/of-a-sandbox; find {name} /var/tmp/systemd* 2>/dev/null; true")),
        ""
    );
    assert!(!fs::exists("/tmp/of-a-sandbox").unwrap());
    Ok(())
}

fn temp_is_bounded(bench: &Bench) -> Verdict {
    let ran = bench.test_sandbox().run("head -c 80000000 /dev/zero > /tmp/x");
    assert_ne!(ran.end.end, CommandEnd::Exited(0), "{ran:?}");
    Ok(())
}

fn the_system_cannot_be_written(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let read_text = test_sandbox.prints(
        "for d in / /usr /usr/bin /etc /var /root /home /lib /opt /boot; do touch $d/new && echo $d; done 2>/dev/null; \
         for f in /etc/passwd /bin/sh /etc/hosts; do echo x >> $f && echo $f; done 2>/dev/null; \
         rm -f /bin/sh /etc/hosts 2>/dev/null; mv /etc /x 2>/dev/null; find /bin/sh /etc/hosts",
    );
    assert_eq!(read_text, "/bin/sh\n/etc/hosts\n");
    Ok(())
}

fn nothing_is_above_the_workspace(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    fs::write(bench.directory("beside").join("secret"), "of the host").unwrap();
    assert_eq!(test_sandbox.prints("find ../beside ../work[0-9]* ../../case-* 2>/dev/null; cd ..; pwd -P"), "/\n");
    Ok(())
}

fn the_hosts_files_are_not_there(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let secret = bench.directory("outside").join("secret");
    fs::write(&secret, "of the host").unwrap();
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".to_owned());
    let script = format!(
        "cat {} 2>/dev/null; find {home} /root /home /run -mindepth 1 -maxdepth 1 -printf '%f\\n' 2>/dev/null; true",
        secret.display()
    );
    let read_text = test_sandbox.prints(&script);
    let unknown: Vec<&str> = read_text.lines().filter(|line| !["agent", "", "lock", "user"].contains(line)).collect();
    assert!(unknown.iter().all(|name| name.starts_with('.') && name.ends_with("env")), "{read_text}");
    Ok(())
}

fn a_link_out_leads_nowhere(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let outside = bench.directory("outside");
    fs::write(outside.join("canary"), "untouched").unwrap();
    symlink(&outside, test_sandbox.work("out")).unwrap();
    symlink(outside.join("canary"), test_sandbox.work("file")).unwrap();
    assert_eq!(test_sandbox.prints("cat out/canary file 2>/dev/null; echo x > file; echo x > out/new; true"), "");
    let outside_names: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!((outside_names.len(), fs::read_to_string(outside.join("canary")).unwrap().as_str()), (1, "untouched"));
    Ok(())
}

fn a_hard_link_out_cannot_be_made(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    assert_ne!(test_sandbox.run("ln /etc/passwd mine").end.end, CommandEnd::Exited(0));
    assert_eq!(test_sandbox.prints("touch a; ln a b; find a -printf '%n\\n'"), "2\n");
    Ok(())
}

fn renames_are_whole(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("echo new > t; echo old > f; mv t f; mkdir d; mv f d/g; mv d e; mkdir -p x/y; mv -T e x/y/z");
    assert_eq!(test_sandbox.read_text("x/y/z/g"), "new\n");
    assert_eq!(test_sandbox.prints("ls"), "x\n");
    Ok(())
}

fn modes_and_times_are_kept(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("touch -d '2001-02-03 04:05:06 UTC' old; chmod 2755 .; chmod 640 old");
    let found = fs::metadata(test_sandbox.work("old")).unwrap();
    assert_eq!((found.mtime(), found.mode() & 0o7777), (981_173_106, 0o640));
    Ok(())
}

fn sparse_and_large_files_work(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let program = "import os; f = open('sparse', 'wb'); f.seek(5 << 30); f.write(b'end'); f.close(); print(os.path.getsize('sparse'))";
    assert_eq!(test_sandbox.python(program).ok(), "5368709123\n");
    assert!(fs::metadata(test_sandbox.work("sparse")).unwrap().blocks() < 10_000);
    Ok(())
}

fn pipes_and_sockets_can_be_made(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let socket = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('sock'); s.listen()
c = socket.socket(socket.AF_UNIX); c.connect('sock'); c.send(b'x'); print(s.accept()[0].recv(1))";
    assert_eq!(test_sandbox.python(socket).ok(), "b'x'\n");
    let ran = test_sandbox.run("mkfifo pipe; (echo through > pipe &); cat pipe");
    assert_eq!(ran.ok(), "through\n");
    match fs::symlink_metadata(test_sandbox.work("pipe")) {
        Ok(found) => assert!(found.file_type().is_fifo()),
        Err(_) => return Err(ran.declares("pipes")),
    }
    Ok(())
}

fn devices_cannot_be_made(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    // A name of one may be there, with nothing behind it.
    let open = "for device in disk null /tmp/mem; do : < $device && touch made; done";
    test_sandbox.prints(&format!("mknod disk b 8 0; mknod null c 1 3; mknod /tmp/mem c 1 1; {open}; true"));
    assert!(!test_sandbox.work("made").exists() && !test_sandbox.work("disk").exists());
    Ok(())
}

fn there_are_few_devices(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let ran = test_sandbox.run(
        "find /dev -mindepth 1 -maxdepth 1 -printf '%f\\n'; head -c 4 /dev/zero | od -An -tx1; echo x > /dev/null; \
         head -c 2 /dev/urandom | wc -c",
    );
    let read_text = ran.ok();
    let known = [
        "console",
        "core",
        "fd",
        "full",
        "mqueue",
        "null",
        "ptmx",
        "pts",
        "random",
        "shm",
        "stderr",
        "stdin",
        "stdout",
        "tty",
        "urandom",
        "zero",
        " 00 00 00 00",
        "2",
        "net",
    ];
    let unknown: Vec<&str> = read_text.lines().filter(|line| !known.contains(line)).collect();
    match unknown.as_slice() {
        [] => Ok(()),
        [one] => Err(ran.declares(&format!("/dev/{one}"))),
        more => panic!("{more:?}"),
    }
}

fn locks_hold_between_commands(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let holder = test_sandbox.start("exec 9> lock; flock 9; touch held; until [ -e go ]; do sleep 0.02; done");
    test_sandbox.wait_for("held");
    assert_eq!(test_sandbox.prints("flock -n lock true || echo locked"), "locked\n");
    fs::write(test_sandbox.work("go"), "").unwrap();
    holder.end().ok();
    assert_eq!(test_sandbox.prints("flock -n lock echo free"), "free\n");
    Ok(())
}

fn memory_is_shared_through_a_file(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let writer = "import mmap, time, os
f = open('m', 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096); open('ready', 'w')
while m[0] != 1: time.sleep(0.01)
m[1] = 2; m.flush()";
    let running = test_sandbox.begin(&crate::bench::python(writer), crate::bench::CAPTURE);
    test_sandbox.wait_for("ready");
    let reader = "import mmap, time
f = open('m', 'r+b'); m = mmap.mmap(f.fileno(), 4096); m[0] = 1; m.flush()
while m[1] != 2: time.sleep(0.01)
print('met')";
    assert_eq!(test_sandbox.python(reader).ok(), "met\n");
    running.end().ok();
    Ok(())
}

fn a_file_without_a_name_can_be_made(bench: &Bench) -> Verdict {
    let program = "import tempfile; f = tempfile.TemporaryFile(dir='.'); f.write(b'abc'); f.seek(0); print(f.read())";
    let test_sandbox = bench.test_sandbox();
    assert_eq!(test_sandbox.python(program).ok(), "b'abc'\n");
    assert_eq!(fs::read_dir(&test_sandbox.plan.workspace).unwrap().count(), 0);
    Ok(())
}

fn names_need_not_be_text(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.python("open(b'\\xff\\n\\x01', 'w').write('odd'); open(' -x ', 'w')").ok();
    let names: Vec<Vec<u8>> = fs::read_dir(&test_sandbox.plan.workspace)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_encoded_bytes())
        .collect();
    assert!(names.contains(&b"\xff\n\x01".to_vec()) && names.contains(&b" -x ".to_vec()), "{names:?}");
    Ok(())
}

fn long_names_and_deep_trees_work(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let program = "import os
os.mkdir('n' * 255)
for _ in range(150): os.mkdir('deeper'); os.chdir('deeper')
open('end', 'w').write('reached'); print(len(os.getcwd()), open('end').read())";
    assert_eq!(test_sandbox.python(program).ok(), "1060 reached\n");
    assert_eq!(test_sandbox.prints("rm -r deeper; ls | wc -c"), "256\n");
    Ok(())
}

fn attributes_of_users_are_kept_or_refused(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let program = "import os
open('f', 'w')
try: os.setxattr('f', 'user.x', b'v'); print(os.getxattr('f', 'user.x'))
except OSError as e: print('refused', e.errno)
for name in ('trusted.x', 'security.capability', 'security.x'):
  try: os.setxattr('f', name, b'v'); print('set', name)
  except OSError: pass";
    let read_text = test_sandbox.python(program).ok();
    assert!(["b'v'\n", "refused 95\n", "refused 13\n", "refused 1\n"].contains(&read_text.as_str()), "{read_text}");
    Ok(())
}

fn a_change_is_noticed(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let program = "import ctypes, os
c = ctypes.CDLL(None); n = c.inotify_init1(0); c.inotify_add_watch(n, b'.', 0x100); open('ready', 'w'); os.read(n, 4096)
print('noticed')";
    let running = test_sandbox.begin(&crate::bench::python(program), crate::bench::CAPTURE);
    test_sandbox.wait_for("ready");
    test_sandbox.prints("touch new");
    assert_eq!(running.end().ok(), "noticed\n");
    Ok(())
}

fn kernel_settings_cannot_be_written(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let read_text = test_sandbox.prints(
        "for f in /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sysrq-trigger /proc/sys/vm/drop_caches \
         /sys/kernel/uevent_helper /sys/fs/cgroup/cgroup.procs /sys/power/state; do echo x > $f && echo $f; done 2>/dev/null; true",
    );
    assert_eq!(read_text, "");
    assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), before);
    Ok(())
}

fn nothing_can_be_mounted(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let script = "mkdir m; mount -t tmpfs x m; mount --bind /etc m; mount -o remount,rw /; umount /workspace; umount /proc; find m -mindepth 1; [ -e /proc/self/stat ]";
    assert_eq!(test_sandbox.run(script).ok(), "");
    Ok(())
}

fn the_trees_are_reached_from_outside(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let can = bench.capabilities().shows_files;
    bench.require_held_calls(can, "a tree", || bench.test_sandbox().sandbox().open_tree(SandboxTree::Home))?;
    test_sandbox.prints("echo work > a; echo home > ~/a");
    for (tree, expected) in [(SandboxTree::Workspace, "work\n"), (SandboxTree::Home, "home\n")] {
        let held = test_sandbox.sandbox().open_tree(tree).unwrap();
        let file = openat(&held, "a", OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let mut read_text = String::new();
        fs::File::from(file).read_to_string(&mut read_text).unwrap();
        assert_eq!(read_text, expected);
    }
    Ok(())
}

fn an_open_file_that_was_removed_lives_on(bench: &Bench) -> Verdict {
    assert_eq!(bench.test_sandbox().prints("echo alive > f; exec 5<f; rm f; cat <&5; ls"), "alive\n");
    Ok(())
}

fn shared_memory_is_there(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let program =
        "from multiprocessing import shared_memory as s; m = s.SharedMemory(create=True, size=100); m.buf[0] = 7
n = s.SharedMemory(m.name); print(n.buf[0]); n.close(); m.close(); m.unlink()";
    assert!(test_sandbox.python(program).ok().starts_with("7\n"));
    Ok(())
}

fn git_works(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    // The repository is within: what is protected is that of a workspace.
    let script = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; cd /tmp && git init -q r && cd r && \
                  echo x > f && git add f && git commit -qm one && echo y > f && git diff --stat | tail -1 && git log --format=%s";
    assert_eq!(test_sandbox.prints(script), " 1 file changed, 1 insertion(+), 1 deletion(-)\none\n");
    Ok(())
}
