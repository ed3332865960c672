//! Real work in profile `workspace` behaves as outside.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use stockade_testkit::{ProgramEnd, TestUser, UserAccount, copy_program};

use crate::toolchain::{toolchain, with_toolchain};
use crate::world::{World, binary, each_user, one_user};

/// The text of a program kept beside this file.
macro_rules! program {
    ($name:literal) => {
        include_str!(concat!("programs/", $name))
    };
}

/// Runs the same bare and in the sandbox; both must succeed and print the same.
#[track_caller]
fn same(world: &World, argv: &[&str]) {
    let bare = world.run(&world.bare(argv));
    assert_eq!(bare.ended, ProgramEnd::Code(0), "without a sandbox {argv:?} fails: {}", bare.combined_text());
    for level in ["full", "restricted"] {
        let inside = world.passes(&["--level", level], argv);
        assert_eq!(inside.stdout, bare.stdout, "{argv:?} prints something else at level {level}");
    }
}

/// As [`same`], at level full alone: it needs a loopback of its own.
#[track_caller]
fn same_at_full(world: &World, argv: &[&str]) {
    let bare = world.run(&world.bare(argv));
    assert_eq!(bare.ended, ProgramEnd::Code(0), "without a sandbox {argv:?} fails: {}", bare.combined_text());
    let inside = world.passes(&[], argv);
    assert_eq!(inside.stdout, bare.stdout, "{argv:?} prints something else");
}

#[test]
fn shells() {
    each_user(|world| {
        same(
            world,
            &[
                "bash",
                "-c",
                "diff <(printf 'a\\nb\\n') <(printf 'a\\nb\\n') && echo same; tee >(wc -c) < /etc/hostname >/dev/null; wait",
            ],
        );
        same(
            world,
            &[
                "sh",
                "-c",
                "mkdir -p a/b && echo x > a/b/c && mv a/b/c a/d && cat a/d && ln -s d a/l && cat a/l && rm -r a && test ! -e a",
            ],
        );
        same(world, &["sh", "-c", "umask 027; rm -f m; touch m; mkdir -p n; stat -c %a m n; rm -rf m n"]);
        same(
            world,
            &[
                "sh",
                "-c",
                "echo out > /dev/stdout; echo err > /dev/stderr; echo x | tee /dev/fd/1; echo gone > /dev/null",
            ],
        );
        same(
            world,
            &[
                "bash",
                "-c",
                "echo one > f; echo two >> f; exec 3<>f; read -r l <&3; echo \"$l\"; exec 3>&-; : > f; stat -c %s f; rm f",
            ],
        );
        same(world, &["bash", "-c", "mkfifo p && (echo through > p &) && cat p && rm p"]);
        same(
            world,
            &[
                "bash",
                "-c",
                "cd /tmp 2>/dev/null; cd \"$OLDPWD\"; t=$(mktemp) && echo y > $t && cat $t && rm $t; find . -maxdepth 1 | wc -l",
            ],
        );
        same(
            world,
            &[
                "sh",
                "-c",
                "tar cf t.tar -C /usr/share/doc bash 2>/dev/null; mkdir -p x && tar xf t.tar -C x && (cd x && find . -type f | sort | xargs cat | md5sum); rm -rf x t.tar",
            ],
        );
    });
}

#[test]
fn exit_codes_and_signals_are_the_commands_own() {
    each_user(|world| {
        for (script, code) in [("exit 7", 7), ("exit 126", 126), ("kill -TERM $$", 143), ("true", 0)] {
            let output = world.run(&world.stockade(&[], &["sh", "-c", script]));
            assert_eq!(output.ended, ProgramEnd::Code(code), "{script}: {}", output.stderr);
        }
        let missing = world.run(&world.stockade(&[], &["no-such-program-anywhere"]));
        assert_eq!(missing.ended, ProgramEnd::Code(127), "{}", missing.stderr);
        let slow = world.run(&world.stockade(&["--timeout", "300ms"], &["sleep", "60"]));
        assert_eq!(slow.ended, ProgramEnd::Code(124), "{}", slow.stderr);
    });
}

#[test]
fn python_with_a_virtual_environment() {
    one_user(|world| {
        world.file("ws/loop.py", program!("loop.py"));
        world.passes(&[], &["/usr/bin/python3", "-m", "venv", "v"]);
        let inside = world.passes(&[], &["v/bin/python", "-c", "import sys; print(sys.prefix != sys.base_prefix)"]);
        assert_eq!(inside.stdout, "True\n");
        world.passes(&[], &["v/bin/pip", "list"]);
        same_at_full(world, &["/usr/bin/python3", "loop.py"]);
        // Its semaphores live in /dev/shm, which is private at level full alone.
        same_at_full(
            world,
            &[
                "/usr/bin/python3",
                "-c",
                "import multiprocessing as m\nif __name__ == '__main__':\n print(m.Pool(2).map(abs, [-1, -2]))",
            ],
        );
        same(
            world,
            &[
                "/usr/bin/python3",
                "-c",
                "import subprocess, tempfile; f = tempfile.NamedTemporaryFile(); f.write(b'x'); print(subprocess.check_output(['echo', 'hi']))",
            ],
        );
    });
}

#[test]
fn node_listens_on_loopback() {
    each_user(|world| {
        world.file("ws/listen.js", program!("listen.js"));
        same_at_full(world, &["node", "listen.js"]);
    });
}

/// `NO_PROXY=*` means nothing to wget and Perl, which then ask a proxy for a server of their own run.
#[test]
fn clients_of_the_runs_own_server_need_no_proxy() {
    let script = "python3 -m http.server --bind 127.0.0.1 8123 >/dev/null 2>&1 & \
        n=0; until curl -sf http://127.0.0.1:8123/file; do n=$((n+1)); test $n -lt 100 || exit 9; sleep 0.1; done; \
        wget -qO- http://127.0.0.1:8123/file; wget -qO- http://localhost:8123/file; \
        perl -MHTTP::Tiny -e 'print HTTP::Tiny->new->get(\"http://127.0.0.1:8123/file\")->{content}'; kill %1";
    each_user(|world| {
        world.file("ws/file", "served\n");
        for level in ["full", "restricted"] {
            // At level restricted the port is one of the host's.
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
            let output = world.passes(&["--level", level], &["bash", "-c", &script.replace("8123", &port.to_string())]);
            assert_eq!(output.stdout, "served\n".repeat(4), "{level}: {}", output.stderr);
        }
    });
}

/// Git takes a relative address in `.gitmodules` from that of the remote: no place of this machine is
/// meant, and what a clone writes is what the repository has.
#[test]
fn a_clone_keeps_relative_addresses_of_modules() {
    let text = "[submodule \"lib\"]\n\tpath = lib\n\turl = ../other\n";
    each_user(|world| {
        world.dir("ws/source");
        world.file("ws/source/.gitmodules", text);
        let make = "cd source && git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm x";
        assert_eq!(world.run(&world.bare(&["sh", "-c", make])).ended, ProgramEnd::Code(0));
        world.passes(&[], &["git", "clone", "-q", "source", "clone"]);
        assert_eq!(fs::read_to_string(world.workspace().join("clone/.gitmodules")).unwrap(), text);
        // Control: a program to run, or an address of what is hidden, is not kept.
        let planted = "[submodule \"lib\"]\n\tpath = lib\n\turl = ../other\n\tupdate = !touch ran\n";
        world.file("ws/planted", planted);
        world.run(&world.stockade(&[], &["cp", "planted", ".gitmodules"]));
        let modules_text = fs::read_to_string(world.workspace().join(".gitmodules")).unwrap_or_default();
        assert!(!modules_text.contains("touch"), "{modules_text}");
    });
}

#[test]
fn tokio_hears_signals() {
    let program = Path::new(env!("CARGO_BIN_EXE_tokio-signals"));
    each_user(|world| {
        let copy = world.workspace().join("tokio-signals");
        copy_program(program, &copy).unwrap();
        same(world, &["./tokio-signals"]);
    });
}

#[test]
fn sqlite_tools() {
    each_user(|world| {
        same(
            world,
            &[
                "sh",
                "-c",
                "rm -f d.db*; sqlite3 d.db 'pragma journal_mode=wal; create table t(x); insert into t values(1),(2); select sum(x) from t; vacuum;' && sqlite3 d.db .dump && rm -f d.db*",
            ],
        );
    });
}

#[test]
fn postgres_own_tools() {
    // PostgreSQL refuses to run as root, inside and outside alike.
    let world = World::new(TestUser::Ordinary);
    let versions = fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed by the test command");
    let bin = versions.map(|e| e.unwrap().path().join("bin")).find(|p| p.join("initdb").exists()).unwrap();
    let script = program!("postgres.sh").replace("@BIN@", bin.to_str().unwrap());
    let inside = world.passes(&[], &["sh", "-c", &script]);
    assert!(inside.stdout.contains("sum=5050"), "{}", inside.combined_text());
}

/// A clone needs no yes for what git writes itself, but for files it brings that steer other
/// programs. With exactly these grants it behaves as outside.
#[test]
fn git_clone_build_and_test() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let toolchain = toolchain();
    one_user(|world| {
        let mirror = world.dir("mirror");
        let mirror = mirror.to_str().unwrap();
        let made = std::process::Command::new("git").args(["clone", "-q", "--mirror"]).arg(source).arg(mirror).status();
        assert!(made.unwrap().success());
        let status = std::process::Command::new("chown")
            .args(["-R", &format!("{}:{}", world.account.uid, world.account.gid), mirror])
            .status();
        assert!(status.unwrap().success());

        let clone = world.workspace().join("clone");
        // This repository brings settings that say how its programs are linked: they are left out.
        let refused = world.run(&world.stockade(&[], &["git", "clone", "-q", mirror, "clone"]));
        assert_eq!(refused.ended, ProgramEnd::Code(0), "{}", refused.combined_text());
        let named = |unit: &str| refused.stderr.contains(&format!("clone/{unit}"));
        assert!(
            named(".cargo/config.toml") && !named(".git/") && !named("rust-toolchain"),
            "{}",
            refused.combined_text()
        );
        assert!(clone.join("rust-toolchain.toml").exists() && !clone.join(".cargo/config.toml").exists());
        fs::remove_dir_all(&clone).unwrap();
        let grant = format!("write {}/.cargo/config.toml", clone.display());
        world.passes(&["--grant", &grant], &["git", "clone", "-q", mirror, "clone"]);
        assert!(clone.join(".cargo/config.toml").exists());
        let log = world.passes(&[], &["git", "-C", "clone", "log", "--oneline"]);
        let bare = world.run(&world.bare(&["git", "-C", mirror, "log", "--oneline"]));
        assert_eq!(log.stdout, bare.stdout);

        let script = "cd clone && cargo test --offline -q -p stockade-model 2>&1 && echo tested";
        let mut command = world.stockade(&[], &["sh", "-c", script]).timeout(Duration::from_secs(600));
        command = with_toolchain(command, &toolchain, world);
        let output =
            stockade_testkit::run_as(&UserAccount::for_user(TestUser::available_users()[0]).unwrap(), &command)
                .unwrap();
        assert!(output.stdout.contains("tested"), "{}", output.combined_text());
    });
}

/// The door takes descriptors of the front, whose shell gave it few; the command
/// has what it would have without a sandbox.
#[test]
fn more_connections_than_a_shell_gives_descriptors_for() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || listener.incoming().map_while(Result::ok).collect::<Vec<TcpStream>>());
    let script = format!(
        "import resource, socket\n\
         soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n\
         resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n\
         open_ones = [socket.create_connection(('127.0.0.1', {port})) for _ in range(100)]\n\
         print(soft, len(open_ones))"
    );
    let grant = format!("connect 127.0.0.1:{port}");
    each_user(|world| {
        let (program, workspace) = (binary(), world.workspace().display().to_string());
        let run = [&program, "run", "--workspace", &workspace, "--grant", &grant, "--", "python3", "-c", &script];
        let few = ["sh", "-c", "ulimit -Sn 256 && exec \"$@\"", "sh"];
        let ran = world.run(&world.bare(&[&few[..], &run[..]].concat()));
        assert_eq!(ran.stdout, "256 100\n", "{}", ran.combined_text());
    });
}

#[test]
fn timings_name_the_steps_of_every_process() {
    each_user(|world| {
        for level in ["full", "restricted"] {
            let run = |command: &[&str]| world.run(&world.stockade(&["--level", level, "--timings"], command));
            let ended = run(&["sh", "-c", "sleep 0.3; exit 7"]);
            assert_eq!(ended.ended, ProgramEnd::Code(7), "{}", ended.stderr);
            let rows: Vec<Vec<&str>> = ended
                .stderr
                .lines()
                .map(|line| line.split_whitespace().collect())
                .filter(|row: &Vec<_>| row.len() > 3)
                .collect();
            let took = |process: &str, step: &str| -> f64 {
                let row = rows.iter().find(|row| row[2] == process && row[3] == step);
                row.unwrap_or_else(|| panic!("no {process} {step}: {}", ended.stderr))[1].parse().unwrap()
            };
            for step in ["read", "request", "prepare", "release"] {
                took("front", step);
            }
            took("init", "drop-privileges:");
            took("command", "landlock:");
            assert!(took("command", "run:") >= 300.0, "{}", ended.stderr);
            // Nothing of one that never ran.
            let missing = run(&["/no/such/program"]);
            assert_eq!(missing.ended, ProgramEnd::Code(127), "{}", missing.stderr);
        }
    });
}
