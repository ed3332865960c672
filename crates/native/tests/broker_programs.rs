//! Real programs under the broker: what they do in the workspace works as
//! outside, what they may not do is refused and told exactly.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod broker_support;
mod support;

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use broker_support::{Brokered, Scene, run_brokered, snapshot};
use stockade_launch::ProcessExit;
use stockade_model::{AttemptPlan, IsolationLevel, RawText};

const LEVELS: [IsolationLevel; 2] = [IsolationLevel::Full, IsolationLevel::Restricted];

fn shell(level: IsolationLevel, workspace: &Path, script: &str) -> AttemptPlan {
    let mut plan = support::plan(level, workspace, &["/bin/sh", "-c", script]);
    plan.environment.insert("HOME".to_owned(), RawText::from(workspace));
    plan
}

/// Runs a script in a fresh workspace at every level.
#[track_caller]
fn each(script: &str, check: impl Fn(&Brokered, &Path)) {
    for level in LEVELS {
        let scene = Scene::bare("programs");
        let workspace = scene.workspace();
        let ran = run_brokered(&shell(level, &workspace, script));
        println!("{level}: {:?} {} {} {:#?}", ran.ended, ran.stdout, ran.stderr, ran.denied());
        check(&ran, &workspace);
    }
}

#[track_caller]
fn works(script: &str, output: &str) {
    each(script, |ran, _| {
        assert_eq!((ran.ended, ran.stdout.trim()), (ProcessExit::Exited(0), output), "{}", ran.stderr);
        assert!(ran.report.denials.is_empty(), "{:?}", ran.denied());
    });
}

/// True where a program is there; a test that needs another says so.
fn have(program: &str) -> bool {
    let found = ["/usr/bin", "/bin", "/usr/local/bin"].iter().any(|d| Path::new(d).join(program).exists());
    if !found {
        eprintln!("not run: no {program}");
    }
    found
}

#[test]
fn copying_packing_and_unpacking() {
    works(
        "mkdir -p a/b && echo one > a/f && ln -s f a/l && ln a/f a/b/h && chmod 640 a/f && mkfifo a/p && \
         cp -a a c && tar cf t.tar c && mkdir u && tar xf t.tar -C u && stat -c '%n %F %a %h' u/c/f u/c/l u/c/p && \
         diff -r --no-dereference a/b u/c/b && rm -rf a c && mv u/c z && ls z | tr '\\n' ' '",
        "u/c/f regular file 640 2\nu/c/l symbolic link 777 1\nu/c/p fifo 644 1\nb f l p",
    );
}

#[test]
fn a_shells_redirections_and_modes() {
    works(
        "umask 077; echo a > f; (umask 022; echo b > g); echo c >> f; cat f g > h 2>/dev/null; \
         stat -c %a f g h | tr '\\n' ' '; : > f; echo x | tee n >/dev/stderr 2>&1; echo y > /dev/stdout; \
         touch -d 2001-02-03 f; date -r f +%F; install -m 750 g i; stat -c %a i",
        "600 644 600 y\n2001-02-03\n750",
    );
}

#[test]
fn named_pipes_between_processes() {
    works("mkfifo p q; (cat p > out; echo end > q) & echo through > p; cat q; cat out", "end\nthrough");
}

#[test]
fn a_waiting_open_delays_no_other_call() {
    let start = Instant::now();
    works(
        "mkfifo p; (echo late > p) & i=0; while [ $i -lt 50 ]; do echo $i > f; i=$((i+1)); done; cat f; cat p; wait",
        "49\nlate",
    );
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_process_that_waits_for_a_pipe_can_be_killed() {
    works("mkfifo p; (echo never > p) & sleep 0.2; kill -9 $!; wait $! 2>/dev/null; echo $?", "137");
}

#[test]
fn process_substitution() {
    if have("bash") {
        works("bash -c 'cat <(echo in); echo out > >(cat > f); sleep 0.3; cat f'", "in\nout");
    }
}

#[test]
fn databases_and_interpreters() {
    if have("sqlite3") {
        works(
            "sqlite3 d.db 'pragma journal_mode=wal; create table t(x); insert into t values(7); select x from t;'",
            "wal\n7",
        );
    }
    if have("perl") {
        works(
            "perl -e 'open F,\">\",\"f\"; print F \"x\"; close F; utime 5,6,\"f\"; rename \"f\",\"g\"; print((stat \"g\")[9], -s \"g\"); unlink \"g\"'",
            "61",
        );
    }
}

/// In a process of its own: a launch in another thread would for a moment hold
/// copies of the broker's descriptors.
#[test]
fn a_freshly_written_program_can_be_run_at_once() {
    broker_support::in_each_role("a_freshly_written_program_can_be_run_at_once", || {
        works("i=0; while [ $i -lt 100 ]; do cp /bin/true ./t && ./t || echo busy; i=$((i+1)); done; echo ok", "ok")
    });
}

#[test]
fn threads_and_many_processes_at_once() {
    works(
        "for i in 1 2 3 4 5 6 7 8; do (j=0; while [ $j -lt 40 ]; do echo $i$j > f$i.$j; mkdir d$i.$j; mv f$i.$j d$i.$j/; j=$((j+1)); done) & done; wait; ls | wc -l; cat d8.39/f8.39",
        "320\n839",
    );
}

#[test]
fn no_repository_with_code_is_made_and_none_is_taken_over() {
    each(
        "mkdir -p sub/.git/hooks; echo x > sub/.git/hooks/pre-commit; echo x > sub/.git/config; echo x > .git; echo x > .GIT; mkdir x && mkdir x/hooks && mv x .git; ln -s x .git; true",
        |ran, workspace| {
            assert_eq!(ran.ended, ProcessExit::Exited(0));
            assert!(
                !workspace.join(".git").exists()
                    && !workspace.join(".GIT").exists()
                    && !workspace.join("sub/.git/hooks/pre-commit").exists()
            );
            // It is there as soon as it is made, and gets nothing that carries code.
            assert_eq!(fs::read_to_string(workspace.join("sub/.git/config")).unwrap(), "");
            let denied = ran.denied().join("\n");
            for expected in [
                format!("Create {0}/.git [write {0}/.git]", workspace.display()),
                format!("Create {0}/.GIT [write {0}/.GIT]", workspace.display()),
                format!("Create {0}/sub/.git/hooks/pre-commit [write {0}/sub/.git/hooks]", workspace.display()),
                format!("Create {0}/sub/.git/config [write {0}/sub/.git/config]", workspace.display()),
                format!("Rename {0}/.git [write {0}/.git]", workspace.display()),
                format!("Symlink {0}/.git [write {0}/.git]", workspace.display()),
            ] {
                assert!(denied.contains(&expected), "{expected}\n{denied}");
            }
        },
    );
    if have("git") {
        each(
            "git init -q . ; git config core.fsmonitor x; git init -q --bare bare.d && git -C bare.d config core.fsmonitor x; true",
            |ran, workspace| {
                let own = fs::read_to_string(workspace.join(".git/config")).unwrap();
                assert!(own.contains("bare = false") && !own.contains("fsmonitor"), "{own}");
                let shown_text = format!("Rename {0}/.git/config [write {0}/.git/config]", workspace.display());
                assert!(ran.denied().contains(&shown_text), "{:#?}", ran.denied());
                let settings = fs::read_to_string(workspace.join("bare.d/config")).unwrap_or_default();
                let whole = ["HEAD", "objects", "refs"].iter().all(|n| workspace.join("bare.d").join(n).exists());
                assert!(!(whole && settings.contains("fsmonitor")), "{settings} {:#?}", ran.denied());
            },
        );
    }
}

#[test]
fn a_grant_permits_exactly_its_target() {
    for level in LEVELS {
        let scene = Scene::bare("grant");
        let workspace = scene.workspace();
        fs::create_dir_all(workspace.join(".git/hooks")).unwrap();
        let mut plan =
            shell(level, &workspace, "echo x > .git/index; echo x > .git/hooks/pre-commit; echo x > .git/config; true");
        plan.grants = vec![format!("write {}/.git", workspace.display()).parse().unwrap()];
        plan.profile.filesystem.write.push(RawText::from(workspace.join(".git")));
        let ran = run_brokered(&plan);
        assert!(workspace.join(".git/index").exists(), "{level} {} {:#?}", ran.stderr, ran.denied());
        assert!(!workspace.join(".git/hooks/pre-commit").exists());
        assert_eq!(fs::read_to_string(workspace.join(".git/config")).unwrap(), "");
        assert_eq!(ran.report.denials.len(), 2, "{:#?}", ran.denied());
    }
}

#[test]
fn refusals_are_counted_with_process_and_object() {
    let scene = Scene::bare("count");
    for level in LEVELS {
        let outside = scene.outside().join("x");
        let script = format!("for i in 1 2 3; do echo x > {}; done 2>/dev/null || true", outside.display());
        let ran = run_brokered(&shell(level, &scene.workspace(), &script));
        let [denial] = &ran.report.denials[..] else { panic!("{:#?}", ran.denied()) };
        assert_eq!(denial.count, 3);
        assert!(denial.program.as_ref().is_some_and(|p| p.to_escaped().ends_with("sh")), "{denial:?}");
        assert!(denial.pid.is_some_and(|p| p > 1));
        assert_eq!(denial.grant.as_ref().unwrap().to_string(), format!("write {}", outside.display()));
        assert!(ran.programs.iter().any(|p| p.ends_with("sh")), "{:?}", ran.programs);
    }
}

#[test]
fn programs_are_named_by_their_file() {
    each(
        "cp /bin/true ./git; PATH=.:$PATH; git; (exec -a other true) 2>/dev/null; nosuch 2>/dev/null; true",
        |ran, workspace| {
            let own = workspace.join("git").display().to_string();
            assert!(ran.programs.contains(&own), "{:?}", ran.programs);
            assert!(!ran.programs.iter().any(|p| p.contains("nosuch")), "{:?}", ran.programs);
        },
    );
}

/// Connects, sends, tells what came; with the interpreter that is there.
const PERL_UNIX: &str = r#"perl -MSocket -e 'socket(S,AF_UNIX,SOCK_STREAM,0); if (connect(S,sockaddr_un($ARGV[0]))) { print "connected" } else { print $!+0 }'"#;

#[test]
fn sockets_of_the_host_are_refused_and_own_ones_work() {
    if !have("perl") {
        return;
    }
    for level in LEVELS {
        let scene = Scene::bare("sockets");
        let workspace = scene.workspace();
        let _in_workspace = UnixListener::bind(workspace.join("host.sock")).unwrap();
        let outside = scene.outside().join("s");
        let _outside = UnixListener::bind(&outside).unwrap();
        let server = r#"perl -MSocket -e 'socket(S,AF_UNIX,SOCK_STREAM,0); bind(S,sockaddr_un($ARGV[0])) or die $!; listen(S,1); print STDERR "up\n"; accept(C,S); print C "served\n"'"#;
        let client = r#"perl -MSocket -e 'for (1..100) { socket(S,AF_UNIX,SOCK_STREAM,0); last if connect(S,sockaddr_un($ARGV[0])); select(undef,undef,undef,0.05) } print scalar <S>'"#;
        let script = format!(
            "{PERL_UNIX} host.sock; echo; {PERL_UNIX} {0}; echo; ({server} own.sock &) ; {client} own.sock; ({server} ${{TMPDIR:-/tmp}}/t.sock &); {client} ${{TMPDIR:-/tmp}}/t.sock",
            outside.display()
        );
        let ran = run_brokered(&shell(level, &workspace, &script));
        assert_eq!(ran.stdout, "13\n13\nserved\nserved\n", "{level} {} {:#?}", ran.stderr, ran.denied());
        let denied = ran.denied();
        assert!(denied.contains(&format!("Connect {0} [socket {0}]", outside.display())), "{denied:#?}");
        assert_eq!(denied.len(), 2, "{denied:#?}");

        // What is granted is let through.
        let mut plan = shell(level, &workspace, &format!("{PERL_UNIX} {}", outside.display()));
        plan.profile.filesystem.sockets = vec![RawText::from(outside.as_path())];
        let ran = run_brokered(&plan);
        assert_eq!(ran.stdout, "connected", "{} {:#?}", ran.stderr, ran.denied());
    }
}

/// Binds `own`, takes the name away and brings the host's socket there in the way that
/// `$ARGV[0]` says; then connects to the name. What it printed.
const PERL_SWAP: &str = r#"perl -MSocket -e '
    my ($how, $host) = @ARGV;
    socket(S,AF_UNIX,SOCK_STREAM,0); bind(S,sockaddr_un("d/own")) or die "bind $!";
    listen(S,1); close(S);
    my $number = sub { my ($f, $g, $flags) = @_; syscall(316, -100, $f, -100, $g, $flags) };
    if ($how eq "rename") { unlink("d/own"); rename($host, "d/own") }
    if ($how eq "link") { unlink("d/own"); link($host, "d/own") }
    if ($how eq "exchange") { my ($f, $g) = ($host, "d/own"); $number->($f, $g, 2) }
    if ($how eq "directory") { unlink("d/own"); rename("d", "gone"); symlink("h", "d") }
    if ($how eq "moved") { unlink("d/own"); rename("d", "gone"); rename("h", "d") }
    socket(C,AF_UNIX,SOCK_STREAM,0);
    if (connect(C,sockaddr_un("d/own"))) { print "connected" } else { print "refused" }'"#;

/// The attack whose name a socket of the run's own had: what is connected to is
/// compared, never how it is called.
#[test]
fn a_socket_of_the_host_under_a_name_that_the_run_has_bound_is_refused() {
    if !have("perl") {
        return;
    }
    for level in LEVELS {
        for how in ["rename", "link", "exchange", "directory", "moved"] {
            let host = if matches!(how, "directory" | "moved") { "h/own" } else { "host.sock" };
            let furnished = || {
                let scene = Scene::bare("swapped");
                for directory in ["d", "h"] {
                    fs::create_dir(scene.workspace().join(directory)).unwrap();
                }
                let listener = UnixListener::bind(scene.workspace().join(host)).unwrap();
                (scene, listener)
            };
            let (scene, listener) = furnished();
            let workspace = scene.workspace();
            let ran = run_brokered(&shell(level, &workspace, &format!("{PERL_SWAP} {how} {host}")));
            assert_eq!(ran.stdout, "refused", "{level} {how} {} {:#?}", ran.stderr, ran.denied());
            listener.set_nonblocking(true).unwrap();
            assert!(listener.accept().is_err(), "{level} {how}");
            // Without the sandbox it passes.
            let (scene, _listener) = furnished();
            let bare = std::process::Command::new("sh")
                .args(["-c", &format!("{PERL_SWAP} {how} {host}")])
                .current_dir(scene.workspace())
                .output()
                .unwrap();
            let shown_text = String::from_utf8_lossy(&bare.stdout).into_owned();
            assert_eq!(shown_text, "connected", "{level} {how} {}", String::from_utf8_lossy(&bare.stderr));
        }
    }
}

/// Processes and a thread that bind, move, link and connect for `$1` seconds: names that
/// the run has bound change place with the host's socket, and the path of a bind changes
/// in memory while the call is on its way.
const PYTHON_RACE: &str = r#"
import ctypes, os, socket, sys, threading, time
end = time.time() + float(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def quiet(call, *arguments):
    try: call(*arguments)
    except OSError: pass
def binds():
    n = 0
    while time.time() < end:
        n += 1
        s = socket.socket(socket.AF_UNIX)
        quiet(s.bind, "d/own"); quiet(s.listen); s.close()
        if n % 2: quiet(os.unlink, "d/own")
def moves():
    while time.time() < end:
        quiet(os.rename, "host.sock", "d/own"); quiet(os.rename, "d/own", "host.sock")
        quiet(os.link, "host.sock", "d/own")
        libc.renameat2(-100, b"host.sock", -100, b"d/own", 2)
        quiet(os.rename, "d", "e"); quiet(os.symlink, "h", "d"); quiet(os.unlink, "d"); quiet(os.rename, "h", "d")
        quiet(os.rename, "d", "h"); quiet(os.rename, "e", "d")
def connects():
    while time.time() < end:
        for name in ("d/own", "h/own", "e/own"):
            c = socket.socket(socket.AF_UNIX); quiet(c.connect, name); c.close()
def flips():
    path = ctypes.create_string_buffer(b"\x01\x00.envrc\0", 110)
    def flip():
        while time.time() < end:
            path[2:9] = b"xenvrc\0"; path[2:9] = b".envrc\0"
    threading.Thread(target=flip).start()
    while time.time() < end:
        s = socket.socket(socket.AF_UNIX)
        libc.bind(s.fileno(), path, 110); s.close()
        quiet(os.unlink, "xenvrc")
for each in (binds, moves, connects, flips):
    if os.fork() == 0:
        each(); os._exit(0)
for _ in range(4): os.wait()
print("raced")
"#;

/// Five seconds at each level; `STOCKADE_RACE_SECONDS` makes it longer.
#[test]
fn no_race_leads_to_a_socket_of_the_host_or_makes_a_protected_name() {
    let Some(python) = ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|path| Path::new(path).exists())
    else {
        return;
    };
    let seconds = std::env::var("STOCKADE_RACE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5_u32);
    for level in LEVELS {
        let scene = Scene::bare("raced");
        let workspace = scene.workspace();
        for directory in ["d", "h"] {
            fs::create_dir(workspace.join(directory)).unwrap();
        }
        fs::write(workspace.join("race.py"), PYTHON_RACE).unwrap();
        let listeners = ["host.sock", "h/own"].map(|name| UnixListener::bind(workspace.join(name)).unwrap());
        let mut plan = shell(level, &workspace, &format!("{python} race.py {seconds}"));
        plan.profile.filesystem.protect = vec![".envrc".to_owned()];
        let ran = run_brokered(&plan);
        assert_eq!(ran.stdout, "raced\n", "{level} {}", ran.stderr);
        for listener in listeners {
            listener.set_nonblocking(true).unwrap();
            assert!(listener.accept().is_err(), "{level}: a socket of the host was reached");
        }
        assert!(fs::symlink_metadata(workspace.join(".envrc")).is_err(), "{level}: a protected name was made");
    }
}

#[test]
fn the_network_is_its_own_or_none() {
    if !have("perl") {
        return;
    }
    let connect = |address: &str, port: u16| {
        format!(
            r#"perl -MSocket -e 'socket(S,AF_INET,SOCK_STREAM,0) or die "no socket\n"; connect(S,sockaddr_in({port},inet_aton("{address}"))) or print $!+0'; "#
        )
    };
    let scene = Scene::bare("network");
    let ran = run_brokered(&shell(
        IsolationLevel::Full,
        &scene.workspace(),
        &(connect("198.51.100.7", 443) + "echo; " + &connect("127.0.0.1", 1)),
    ));
    // Without a way out its own network answers for every address.
    assert_eq!(ran.stdout, "111\n111", "{}", ran.stderr);
    assert_eq!(ran.denied(), [""; 0]);

    let ran = run_brokered(&shell(IsolationLevel::Restricted, &scene.workspace(), &connect("127.0.0.1", 1)));
    assert_eq!(ran.stdout, "111", "{}", ran.stderr);
    assert_eq!(ran.denied(), [""; 0]);
}

#[test]
fn other_processes_are_no_way_out() {
    each(
        "sleep 5 & for p in 1 $PPID $$ $!; do for w in root cwd; do echo x > /proc/$p/$w/etc/escape-canary; done; done 2>/dev/null; \
         for p in 1 $PPID; do true > /proc/$p/exe; echo 7 > /proc/$p/oom_score_adj; done 2>/dev/null; kill $!; echo done",
        |ran, _| {
            assert_eq!(ran.stdout.trim(), "done");
            assert!(!Path::new("/etc/escape-canary").exists());
        },
    );
}

/// A process sets which of its own memory a dump would hold, as Java does, and nobody else's.
#[test]
fn a_process_sets_its_own_dump_filter_alone() {
    works("echo 0x23 >/proc/self/coredump_filter && cat /proc/self/coredump_filter", "00000023");
    each(
        "for p in 1 $PPID $$; do (echo 0x23 >/proc/$p/coredump_filter) 2>/dev/null && echo $p; done; true",
        |ran, _| {
            assert_eq!(ran.stdout, "");
        },
    );
}

#[test]
fn files_move_between_temp_and_workspace() {
    works(
        "t=${TMPDIR:-/tmp}; echo x > $t/f && mkdir -p $t/d/.git/hooks && mv $t/f g && cat g && mv g $t/h && cat $t/h && \
         ln $t/h i 2>/dev/null; ls; cp $t/h j; cat j",
        "x\nx\nx",
    );
    // A tree in which everything was allowed does not carry hooks in.
    each(
        "t=${TMPDIR:-/tmp}; mkdir -p $t/d/.git/hooks; echo x > $t/d/.git/hooks/pre-commit; mv $t/d d; true",
        |_, workspace| {
            assert!(!workspace.join("d/.git/hooks/pre-commit").exists());
        },
    );
}

#[test]
fn a_hidden_file_is_not_read_by_way_of_the_broker() {
    if !have("perl") {
        return;
    }
    for level in LEVELS {
        let scene = Scene::bare("hidden");
        let workspace = scene.workspace();
        fs::write(workspace.join("secret"), "canary").unwrap();
        let script = r#"perl -e 'sysopen(P,"secret",010000000) or die; for $f (0,0100,01,02,0102,01000) { for $p ("secret","/proc/self/fd/".fileno(P)) { if (sysopen(F,$p,$f)) { print <F> } } } print "tried"'; ln secret n; cat n secret; mv secret m; cat m"#;
        let mut plan = shell(level, &workspace, script);
        plan.profile.filesystem.hide = vec![RawText::from(workspace.join("secret"))];
        let ran = run_brokered(&plan);
        assert_eq!(ran.stdout, "tried", "{level} {} {:#?}", ran.stderr, ran.denied());
        assert_eq!(fs::read_to_string(workspace.join("secret")).unwrap(), "canary");
    }
}

#[test]
fn a_directory_above_a_workspace_in_temp_is_not_moved_away() {
    for level in LEVELS {
        let top = tempfile::Builder::new().prefix("moved").tempdir_in("/tmp").unwrap();
        let (workspace, top) = (top.path().join("a/ws"), top.path().to_owned());
        fs::create_dir_all(&workspace).unwrap();
        let before = snapshot(&top);
        let script = format!(
            "cd /; mv {0}/a {0}/b; mkdir -p {0}/b/ws/.git/hooks; mkdir {0}/c; perl -e '$a=\"{0}/a\"; $c=\"{0}/c\"; rename $a,$c; syscall(316,-100,$a,-100,$c,2)'; \
             mkdir -p {0}/c/ws/.git; echo x > {0}/c/ws/.git/config; echo x > {0}/a/ws/.git",
            top.display()
        );
        let ran = run_brokered(&shell(level, &workspace, &script));
        assert_eq!(snapshot(&top), before, "{level} {} {:#?}", ran.stderr, ran.denied());
    }
}

#[test]
fn a_directory_above_a_hidden_file_is_not_moved_away() {
    for level in LEVELS {
        let scene = Scene::bare("hidden-above");
        let workspace = scene.workspace();
        fs::create_dir_all(workspace.join("d/e")).unwrap();
        fs::write(workspace.join("d/e/secret"), "canary").unwrap();
        let script = "mv d n; mv d/e d/n; cat n/e/secret d/n/secret; (cat <&3) 3<> n/e/secret; (cat <&3) 3<> d/n/secret; echo tried";
        let mut plan = shell(level, &workspace, script);
        plan.profile.filesystem.hide = vec![RawText::from(workspace.join("d/e/secret"))];
        let ran = run_brokered(&plan);
        assert_eq!(ran.stdout, "tried\n", "{level} {} {:#?}", ran.stderr, ran.denied());
        assert_eq!(fs::read_to_string(workspace.join("d/e/secret")).unwrap(), "canary");
    }
}

#[test]
fn nothing_changes_where_nothing_may() {
    for level in LEVELS {
        let scene = Scene::bare("read-only");
        let workspace = scene.workspace();
        fs::write(workspace.join("f"), "keep").unwrap();
        let before = snapshot(&workspace);
        let mut plan = shell(
            level,
            &workspace,
            "touch a; echo x >> f; rm -f f; mkdir d; ln -s a b; chmod 600 f; mv f g; truncate -s 0 f; echo x > ${TMPDIR:-/tmp}/ok && cat ${TMPDIR:-/tmp}/ok",
        );
        plan.profile.filesystem.write.clear();
        let ran = run_brokered(&plan);
        assert_eq!(ran.stdout, "x\n", "{level} {}", ran.stderr);
        assert_eq!(snapshot(&workspace), before);
        assert!(ran.report.denials.len() >= 7, "{:#?}", ran.denied());
    }
}
