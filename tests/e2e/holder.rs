//! The process that holds the layers of a workspace: its runs share them, it ends by
//! itself or in the middle, and gives nothing to what is in a sandbox.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use stockade_testkit::{ProgramEnd, RunningProgram, few_or_all};

use crate::caches::{cache, caches, furnish, scripted};
use crate::kept::kill;
use crate::life::{assert_none_left, marked};
use crate::world::{World, binary, each_user, one_user};

/// How long something may take on a loaded machine.
const SOON: Duration = Duration::from_secs(30);

/// Asks a holder for a layer of `~/.npm`, as a run is asked for, and says what came.
const ASK: &str = r#"
import array, json, os, socket, sys
socket_path, home = sys.argv[1:]
lower = os.stat(home + "/.npm")
ask = [{"tool": "npm", "directory": home + "/.npm", "identity": [lower.st_dev, lower.st_ino], "mode": 448, "directories": [], "hidden": []}]
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.settimeout(10)
try:
    line.connect(socket_path)
    line.send(json.dumps(ask).encode())
    text, rest, _, _ = line.recvmsg(64, 4096)
except OSError as error:
    print("refused:", error.errno)
    sys.exit(0)
descriptors = array.array("i")
for _, _, data in rest:
    descriptors.frombytes(data[:len(data) - len(data) % descriptors.itemsize])
print(text[:1].decode(), len(descriptors))
"#;

/// The directories of all workspaces' caches.
fn layer_directories(world: &World) -> Vec<PathBuf> {
    let all = fs::read_dir(world.home().join(".local/state/stockade/caches")).unwrap();
    all.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn layer_directory(world: &World) -> PathBuf {
    let [layer_directory] = &layer_directories(world)[..] else { panic!("{:?}", layer_directories(world)) };
    layer_directory.clone()
}

/// The holders of a workspace.
fn layer_servers(layer_directory: &Path) -> Vec<u32> {
    marked(&layer_directory.display().to_string()).into_iter().collect()
}

#[track_caller]
fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < until, "not within {SOON:?}: {what}");
        sleep(Duration::from_millis(5));
    }
}

#[track_caller]
fn passes(world: &World, script: &str) -> String {
    let output = world.run(&scripted(world, &["--level", "full"], script));
    assert_eq!(output.ended, ProgramEnd::Code(0), "{script}\n{}\n{}", output.stdout, output.stderr);
    output.stdout
}

/// A script that waits for a file in a layer.
fn awaits(name: &str) -> String {
    format!("n=0; until test -e ~/.npm/{name}; do n=$((n+1)); test $n -lt 600; sleep 0.05; done; ")
}

#[test]
fn runs_at_the_same_time_share_layers() {
    one_user(|world| {
        furnish(world);
        let host = caches(world);
        let seconds = std::env::var("STOCKADE_SHARED_SECONDS").ok().and_then(|text| text.parse().ok());
        let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(few_or_all(10, 20)));
        scope(|scope| {
            for number in 0..16 {
                scope.spawn(move || {
                    while Instant::now() < until {
                        let script = format!(
                            "test \"$(cat ~/.npm/_cacache/seen)\" = host || exit 3; echo {number} > ~/.npm/n{number} || exit 4; \
                             echo a > ~/.cargo/.package-cache || exit 5; echo b > ~/.cargo/registry/own || exit 6; \
                             echo {number} > \"$UV_CACHE_DIR/n{number}\" || exit 7; sleep 0.05; \
                             test \"$(cat ~/.npm/n{number})\" = {number} || exit 8"
                        );
                        world.passes(&["--level", "full"], &["sh", "-c", &script]);
                    }
                });
            }
        });
        let found = passes(world, "ls ~/.npm");
        let all: BTreeSet<&str> = found.lines().filter(|name| name.starts_with('n')).collect();
        assert_eq!(all.len(), 16, "{found}");
        assert_eq!(caches(world), host);
        assert_eq!(layer_servers(&layer_directory(world)).len(), 1);
    });
}

#[test]
fn writes_of_one_run_are_seen_by_the_other_at_once() {
    each_user(|world| {
        furnish(world);
        scope(|scope| {
            let one = scope.spawn(|| {
                passes(
                    world,
                    &format!(
                        "echo 1 > ~/.npm/new1; mv ~/.npm/new1 ~/.npm/first; {}cat ~/.npm/second",
                        awaits("second")
                    ),
                )
            });
            let other =
                format!("{}cat ~/.npm/first; echo 2 > ~/.npm/new2; mv ~/.npm/new2 ~/.npm/second", awaits("first"));
            assert_eq!(passes(world, &other), "1\n");
            assert_eq!(one.join().unwrap(), "2\n");
        });
    });
}

/// Runs that have its layers keep them, and nobody else is given these: they would be mounted
/// twice.
#[test]
fn a_holder_that_is_killed_takes_nothing_along() {
    each_user(|world| {
        furnish(world);
        let host = caches(world);
        passes(world, "echo before > ~/.npm/before");
        scope(|scope| {
            let one = scope.spawn(|| {
                // A name that was looked up is not looked up below again, so not in the layer.
                let wait = "n=0; until test -e go; do n=$((n+1)); test $n -lt 600; sleep 0.05; done";
                passes(world, &format!("echo 1 > ~/.npm/first; {wait}; echo 2 > ~/.npm/last; cat ~/.npm/first"))
            });
            let layer_directory = layer_directory(world);
            soon("the run writes", || passes(world, "ls ~/.npm").contains("first"));
            let killed = layer_servers(&layer_directory);
            assert_eq!(killed.len(), 1, "{killed:?}");
            kill(killed[0]);
            soon("the holder is gone", || layer_servers(&layer_directory).is_empty());
            // Another one, with layers of its own, which are nobody's after that.
            assert!(!passes(world, "echo 3 > ~/.npm/third; ls ~/.npm").contains("first"));
            soon("the holder of other layers ends by itself", || layer_servers(&layer_directory).is_empty());
            world.file("ws/go", "");
            assert_eq!(one.join().unwrap(), "1\n");
        });
        let found = passes(world, "ls ~/.npm");
        let [before, first, last, third] = ["before", "first", "last", "third"].map(|name| found.contains(name));
        assert!(before && first && last && !third, "{found}");
        assert_eq!(caches(world), host);
    });
}

/// Does something while a run that has begun with a script waits.
fn during_a_run(world: &World, script: &str, act: impl FnOnce()) {
    scope(|scope| {
        let wait = "echo > begun; n=0; until test -e go; do n=$((n+1)); test $n -lt 600; sleep 0.05; done";
        let run = scope.spawn(move || passes(world, &format!("{script}; {wait}")));
        soon("the run begins", || world.workspace().join("begun").exists());
        act();
        world.file("ws/go", "");
        run.join().unwrap();
    });
    for name in ["go", "begun"] {
        fs::remove_file(world.workspace().join(name)).unwrap();
    }
}

/// An overlay keeps the names that it has looked up. What the host has changed since is seen
/// by the next run nevertheless.
#[test]
fn a_run_sees_the_hosts_current_content() {
    each_user(|world| {
        furnish(world);
        let cache = world.home().join(".npm/_cacache");
        passes(
            world,
            "test ! -e ~/.npm/_cacache/later; test ! -e ~/.npm/_cacache/deep/later; cat ~/.npm/_cacache/seen",
        );
        world.file("home/.npm/_cacache/later", "later");
        world.dir("home/.npm/_cacache/deep");
        world.file("home/.npm/_cacache/deep/later", "deep");
        assert_eq!(passes(world, "cat ~/.npm/_cacache/later ~/.npm/_cacache/deep/later"), "laterdeep");
        fs::rename(cache.join("deep"), cache.join("elsewhere")).unwrap();
        fs::remove_file(cache.join("later")).unwrap();
        let script =
            "test ! -e ~/.npm/_cacache/deep; test ! -e ~/.npm/_cacache/later; cat ~/.npm/_cacache/elsewhere/later";
        assert_eq!(passes(world, script), "deep");
        assert_eq!(layer_servers(&layer_directory(world)).len(), 1);
    });
}

/// Nobody says that a run is over which was killed: what it has looked up is forgotten by the next.
#[test]
fn a_run_that_was_killed_leaves_no_old_name() {
    each_user(|world| {
        furnish(world);
        passes(world, "true");
        world.file("home/.npm/_cacache/old", "old");
        let look = "cat ~/.npm/_cacache/old; test ! -e ~/.npm/_cacache/new; echo > begun; sleep 71.5";
        let run = RunningProgram::start(&world.account, &scripted(world, &["--level", "full"], look)).unwrap();
        soon("the run looks", || world.workspace().join("begun").exists());
        kill(run.pid());
        run.wait_for_end().unwrap();
        let cache = world.home().join(".npm/_cacache");
        fs::rename(cache.join("old"), cache.join("new")).unwrap();
        let found = passes(world, "test ! -e ~/.npm/_cacache/old; cat ~/.npm/_cacache/new");
        assert_eq!(found, "old");
        assert_none_left("71.5");
    });
}

/// Passes a directory and its mount namespace along in sockets that nobody reads, each in the
/// queue of the next: the kernel closes them one after the other, long after the end of the run.
const CHAIN: &str = r#"
import array, os, socket, sys
fds = [os.open(name, os.O_RDONLY) for name in sys.argv[1:]]
for _ in range(400):
    left, right = socket.socketpair()
    right.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
    right.close()
    for fd in fds:
        os.close(fd)
    fds = [left.detach()]
left, right = socket.socketpair()
right.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds + [left.fileno()]))])
for fd in fds + [right.detach(), left.detach()]:
    os.close(fd)
"#;

/// A run can keep names in use past its end. The next one is not lent a layer that has them.
#[test]
fn a_name_in_use_past_the_end_of_its_run_shows_nothing() {
    each_user(|world| {
        furnish(world);
        let home = world.home();
        world.dir("home/.ssh");
        world.dir("home/.npm/kept");
        world.file("ws/chain.py", CHAIN);
        let chain = "cat ~/.cargo/credentials.toml; python3 chain.py ~/.npm/kept /proc/self/ns/mnt";
        passes(world, &format!("{chain} || true"));
        // A directory moves to where it is hidden, and what was hidden moves away.
        fs::rename(home.join(".npm/kept"), home.join(".ssh/kept")).unwrap();
        world.file("home/.ssh/kept/token", "secret");
        fs::rename(home.join(".cargo/credentials.toml"), home.join(".ssh/moved")).unwrap();
        let read = "cat ~/.npm/kept/token ~/.cargo/credentials.toml ~/.ssh/moved 2>&1 || true";
        for _ in 0..3 {
            let begun = Instant::now();
            assert!(!passes(world, read).contains("secret"));
            assert!(begun.elapsed() < SOON);
        }
        // Control: a run that begins before the move sees what it had, where it has a name.
        passes(world, "mkdir -p ~/.npm/own && echo mine > ~/.npm/own/file && cat ~/.npm/own/file");
    });
}

/// The same of what is hidden, where another run uses the name: its cover lies on it.
#[test]
fn hidden_files_stay_hidden_under_their_old_names() {
    each_user(|world| {
        furnish(world);
        let [old, new] = [".cargo/credentials.toml", ".cargo/renamed"].map(|name| world.home().join(name));
        let read = "cat ~/.cargo/credentials.toml 2>&1 || true";
        during_a_run(world, read, || {
            fs::rename(&old, &new).unwrap();
            assert!(!passes(world, read).contains("secret"));
            // One that was not there when the run began, and one that is a directory now.
            world.file("home/.cargo/credentials", "secret");
            world.dir("home/.cargo/credentials.toml");
            world.file("home/.cargo/credentials.toml/inner", "secret");
            let all = "cat ~/.cargo/credentials ~/.cargo/credentials.toml ~/.cargo/credentials.toml/inner 2>&1 || true";
            assert!(!passes(world, all).contains("secret"));
        });
        fs::remove_dir_all(&old).unwrap();
        fs::rename(&new, &old).unwrap();
        assert!(!passes(world, read).contains("secret"));
        fs::remove_file(&old).unwrap();
        passes(world, "test ! -e ~/.cargo/credentials.toml || test ! -s ~/.cargo/credentials.toml");
        world.file("home/.cargo/credentials.toml", "secret");
        assert!(!passes(world, read).contains("secret"));
        assert_eq!(layer_servers(&layer_directory(world)).len(), 1);
    });
}

/// What is hidden may lie elsewhere than where the plan names it, in a cache or in the
/// workspace: a run that gave it another name would leave it to the next.
#[test]
fn targets_of_links_are_hidden_under_any_name() {
    each_user(|world| {
        furnish(world);
        world.dir("home/.gradle");
        world.dir("home/.gradle/caches");
        for (link, text, layer_directory) in [
            (".npmrc", ".npm/npmrc", ".npm/npmrc"),
            (".gradle/gradle.properties", "caches/own", ".gradle/caches/own"),
            (".cargo/credentials", "registry/own", ".cargo/registry/own"),
        ] {
            world.file(&format!("home/{layer_directory}"), "//registry/:_authToken=secret");
            symlink(text, world.home().join(link)).unwrap();
            let new = format!("{layer_directory}2");
            let rename = format!(
                "mv ~/{layer_directory} ~/{new}; ln ~/{layer_directory} ~/{new}; cp ~/{layer_directory} ~/{new}; rm -f ~/{layer_directory}"
            );
            world.run(&scripted(world, &["--level", "full"], &rename));
            let read = format!("cat ~/{new} ~/{link} ~/{layer_directory} 2>&1 || true");
            assert!(!passes(world, &read).contains("secret"), "{link}");
            assert!(fs::read_to_string(world.home().join(layer_directory)).unwrap().contains("secret"));
        }
        world.dir("home/.config");
        world.dir("home/.config/stockade");
        world.file("home/.config/stockade/config.toml", "[profiles.workspace]\nhide = [\"./secrets\"]\n");
        world.file("ws/real", "secret");
        symlink("real", world.workspace().join("secrets")).unwrap();
        for level in ["full", "restricted"] {
            for request in [&[][..], &["--request", "write real"], &["--request", "read real"]] {
                let options = [&["--level", level], request].concat();
                world.run(&scripted(world, &options, "mv real other; ln real other; cp real other"));
                let read = world.run(&scripted(world, &options, "cat real other secrets"));
                assert!(!read.stdout.contains("secret"), "{options:?}: {}", read.stdout);
                let read = world.run(&scripted(world, &["--level", level], "cat real other secrets"));
                assert!(!read.stdout.contains("secret"), "{options:?}: {}", read.stdout);
            }
            // Whoever grants it by either name means the file.
            for grant in ["read real", "read secrets"] {
                let read = world.run(&scripted(world, &["--level", level, "--grant", grant], "cat real secrets"));
                assert_eq!(read.stdout, "secretsecret", "{level}: {grant}: {}", read.stderr);
            }
        }
    });
}

/// A name that a run has open shows what it was; what the host puts in its place is hidden.
#[test]
fn a_file_that_another_run_has_open_is_still_hidden() {
    each_user(|world| {
        furnish(world);
        let [named, real] = ["credentials.toml", "real.toml"].map(|name| world.home().join(".cargo").join(name));
        fs::rename(&named, &real).unwrap();
        symlink("real.toml", &named).unwrap();
        let open = "exec 9< ~/.cargo; python3 -c 'import os,time; d = os.path.expanduser(\"~/.cargo/credentials.toml\"); \
                    f = os.open(d, os.O_PATH | os.O_NOFOLLOW); time.sleep(30)' & true";
        let read = "cat ~/.cargo/credentials.toml ~/.cargo/real.toml 2>&1 || true";
        during_a_run(world, open, || {
            fs::remove_file(&named).unwrap();
            fs::rename(&real, &named).unwrap();
            assert!(!passes(world, read).contains("secret"));
            fs::rename(&named, world.home().join(".cargo/away")).unwrap();
            symlink("real.toml", &named).unwrap();
            assert!(!passes(world, read).contains("secret"));
        });
    });
}

/// Whoever is given no layers has some of its own: none is read-only.
#[test]
fn a_run_that_is_lent_nothing_mounts_for_itself() {
    each_user(|world| {
        furnish(world);
        let write = "echo own > ~/.npm/own; echo own > ~/.cargo/registry/own; cat ~/.npm/own ~/.cargo/registry/own";
        let script = world.file("ws/write.sh", write).display().to_string();
        let binary = binary();
        let run = [&binary, "run", "--mode", "never", "--level", "full", "--", "sh", &script];
        let walled = world.bare(&[&["setpriv", "--no-new-privs"][..], &run].concat());
        for _ in 0..3 {
            assert_eq!(passes(world, write), "own\nown\n");
            let output = world.run(&walled);
            assert_eq!(
                (output.ended, output.stdout.as_str()),
                (ProgramEnd::Code(0), "own\nown\n"),
                "{}",
                output.stderr
            );
        }
        // Another directory at the path, while a run lasts.
        let npm = world.home().join(".npm");
        during_a_run(world, "cat ~/.npm/_cacache/seen", || {
            fs::rename(&npm, world.home().join("aside")).unwrap();
            world.dir("home/.npm");
            assert_eq!(passes(world, write), "own\nown\n");
        });
        // A holder that answers nobody; with a stage, which is mounted once, as well.
        let stopped = layer_servers(&layer_directory(world));
        let signal = |pid: &u32, signal| kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
        stopped.iter().for_each(|pid| signal(pid, Signal::STOP));
        assert_eq!(passes(world, write), "own\nown\n");
        let staged = world.run(&world.stockade(&["--level", "full", "--stage"], &["sh", &script]));
        assert_eq!((staged.ended, staged.stdout.as_str()), (ProgramEnd::Code(0), "own\nown\n"), "{}", staged.stderr);
        stopped.iter().for_each(|pid| signal(pid, Signal::CONT));
    });
}

/// Whoever may look into any process finds a layer in a holder, by a link that a run left.
#[test]
fn no_link_leads_into_a_process_by_its_number() {
    each_user(|world| {
        furnish(world);
        let make = "for n in 32000 99999 4000000; do ln -s /proc/$n/root/sys/npm l$n; ln -s ../../../../../proc/$n/fd/3 r$n; done; \
                    ln -s /proc p; ln -s p/77777/cwd c; true";
        for level in ["full", "restricted"] {
            world.run(&scripted(world, &["--level", level], make));
            let links = fs::read_dir(world.workspace()).unwrap().flatten().filter(|entry| entry.path().is_symlink());
            let names: Vec<_> = links.map(|entry| entry.file_name()).filter(|name| name != "p").collect();
            assert!(names.is_empty(), "{level}: {names:?}");
        }
        let holder = layer_servers(&layer_directory(world));
        let [holder] = holder[..] else { panic!("{holder:?}") };
        assert_eq!(fs::read_dir(format!("/proc/{holder}/root/sys")).unwrap().count(), 0);
    });
}

/// A way that is made in two steps: a link that leads nowhere, and what completes it.
#[test]
fn no_link_is_completed_to_a_hidden_path() {
    each_user(|world| {
        furnish(world);
        let home = world.home().display().to_string();
        for (name, make) in [
            ("a", format!("ln -s b/.ssh/id a; ln -s {home} b")),
            ("c", format!("ln -s d/.ssh/id c; ln -s {home} e; mv e d")),
            ("f", format!("ln -s g/h/.ssh/id f; mkdir i; ln -s {home} i/h; mv i g")),
            (
                "j",
                "mkdir -p k/l/m; ln -s ../../../../home/.ssh/id k/l/m/n; mkdir -p o/p; mv k/l/m o; mv o j".to_owned(),
            ),
            ("q", "mkdir -p r/s/t; ln -s ../../home/.ssh/id r/s/t/n; mv r/s/t q".to_owned()),
            ("u", "ln -s v/99999/root u; ln -s /proc v".to_owned()),
            ("w", "ln -s x/proc/99999/root w; ln -s / x".to_owned()),
        ] {
            for level in ["full", "restricted"] {
                world.run(&scripted(world, &["--level", level], &format!("{make}; true")));
                let top = world.workspace().join(name);
                let inner = [top.clone(), top.join("n"), top.join("m/n")];
                let read = inner.iter().find(|path| fs::read_to_string(path).is_ok_and(|text| text == "key"));
                assert!(read.is_none(), "{level}: {make}: {read:?}");
                // Of processes either link may be there, not both.
                let both = [("u", "v"), ("w", "x")]
                    .into_iter()
                    .filter(|pair| pair.0 == name)
                    .any(|(link, other)| [link, other].iter().all(|link| world.workspace().join(link).is_symlink()));
                assert!(!both, "{level}: {make}");
                let all = fs::read_dir(world.workspace()).unwrap().flatten().map(|entry| entry.path());
                for path in all.filter(|path| path.extension().is_none()) {
                    let removed = if path.is_dir() && !path.is_symlink() {
                        fs::remove_dir_all(&path)
                    } else {
                        fs::remove_file(&path)
                    };
                    removed.unwrap();
                }
            }
        }
        // Ordinary links.
        let ordinary = format!(
            "ln -s {home} home; ln -s / root; ln -s later/file f; mkdir later; echo x > later/file; cat f; \
             mkdir -p d/e; ln -s ../../later d/e/l; mv d g; cat g/e/l/file; ln -s nowhere n; mkdir o; mv n o; mv o p"
        );
        for level in ["full", "restricted"] {
            let output = world.run(&scripted(world, &["--level", level], &ordinary));
            assert_eq!(
                (output.ended, output.stdout.as_str()),
                (ProgramEnd::Code(0), "x\nx\n"),
                "{level}: {}",
                output.stderr
            );
            for name in ["home", "root", "f"] {
                fs::remove_file(world.workspace().join(name)).unwrap();
            }
            for name in ["later", "g", "p"] {
                fs::remove_dir_all(world.workspace().join(name)).unwrap();
            }
        }
    });
}

/// What a run does to the directories of a layer that others need.
#[test]
fn damage_by_a_run_in_a_layer_is_repaired() {
    each_user(|world| {
        furnish(world);
        for script in [
            "cd ~/.cargo; rm -rf registry; ln -s /etc registry",
            "cd ~/.cargo; rm -rf registry; echo > registry",
            "chmod 000 ~/.cargo/registry",
            "rm -rf ~/.cargo/registry",
            "chmod 000 ~/.npm",
            "rm -rf ~/.npm/_cacache; ln -s /etc ~/.npm/_cacache",
        ] {
            world.run(&scripted(world, &["--level", "full"], script));
            let wrote = passes(world, "echo own > ~/.cargo/registry/own; cat ~/.cargo/registry/own; echo > ~/.npm/own");
            assert_eq!(wrote, "own\n", "{script}");
        }
        assert_eq!(layer_servers(&layer_directory(world)).len(), 1);
    });
}

/// A pipe or a lock that its caller left open.
#[test]
fn a_layer_server_keeps_nothing_of_its_creator() {
    each_user(|world| {
        furnish(world);
        let run = [&[binary().as_str(), "run", "--mode", "never", "--"][..], &["/usr/bin/true"]].concat().join(" ");
        let lock = world.home().join("lock").display().to_string();
        // `flock` ends when nobody has the lock, `cat` when nobody has the pipe.
        let script =
            format!("exec 9>{lock}; flock 9; (exec 8>&1; {run}) | cat; exec 9>&-; flock --timeout 20 {lock} echo free");
        let output = world.run(&world.bare(&["sh", "-c", &script]));
        assert_eq!(output.stdout, "free\n", "{}", output.stderr);
        assert_eq!(layer_servers(&layer_directory(world)).len(), 1);
    });
}

#[test]
fn a_directory_that_is_another_one_has_another_layer() {
    each_user(|world| {
        furnish(world);
        passes(world, "echo 1 > ~/.npm/own; test \"$(cat ~/.npm/_cacache/seen)\" = host");
        let npm = world.home().join(".npm");
        fs::rename(&npm, world.home().join("aside")).unwrap();
        world.dir("home/.npm");
        world.file("home/.npm/new", "new");
        assert_eq!(passes(world, "cat ~/.npm/new; cat ~/.npm/own"), "new1\n");
    });
}

#[test]
fn a_layer_server_ends_with_its_layers() {
    each_user(|world| {
        furnish(world);
        passes(world, "echo 1 > ~/.npm/own");
        let layer_directory = layer_directory(world);
        assert_eq!(layer_servers(&layer_directory).len(), 1);
        let cleared = cache(world, &["clear", "--all"]);
        assert_eq!(cleared.ended, ProgramEnd::Code(0), "{}", cleared.stderr);
        soon("the holder ends", || layer_servers(&layer_directory).is_empty());
        assert!(!passes(world, "ls -a ~/.npm").contains("own"));
    });
}

/// A holder gives layers of its workspace to whoever runs things in it, and a run is not
/// that: with a layer in its hands it would write to that of another workspace.
#[test]
fn a_layer_server_refuses_processes_of_sandboxes() {
    each_user(|world| {
        furnish(world);
        passes(world, "echo 1 > ~/.npm/own");
        let socket = layer_directory(world).join(concat!("holder-", env!("CARGO_PKG_VERSION"))).display().to_string();
        let home = world.home().display().to_string();
        let ask = ["/usr/bin/python3", "-c", ASK, &socket, &home];
        let outside = world.run(&world.bare(&ask));
        assert_eq!(outside.stdout, "l 2\n", "{}", outside.stderr);
        // Whatever walls there are, by the holder itself.
        let walled = world.bare(&[&["setpriv", "--no-new-privs"][..], &ask].concat());
        assert!(!world.run(&walled).stdout.contains("l "));
        for level in ["full", "restricted"] {
            let grant = format!("socket {socket}");
            for options in [&["--level", level][..], &["--level", level, "--grant", &grant]] {
                let inside = world.run(&world.stockade(&[&["--mode", "never"], options].concat(), &ask));
                assert!(!inside.stdout.contains("l "), "{options:?}: {}{}", inside.stdout, inside.stderr);
            }
        }
    });
}
