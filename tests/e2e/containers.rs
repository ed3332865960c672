//! Level `restricted` where the others do not start: in a default container,
//! and on a host whose user namespaces are switched off. Level `full` says so
//! there and runs nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Duration;

use stockade_testkit::{ContainerEngine, EngineKind, ProgramEnd, ProgramOutput, TestCommand, TestUser};
use tempfile::TempDir;

use crate::life::engine_directory;
use crate::world::{PATH, binary, each_user};

/// Programs of the container's root, with the libraries they need.
const PROGRAMS: &[&str] = &[
    "/bin/bash",
    "/bin/sh",
    "/bin/cat",
    "/bin/chmod",
    "/bin/chown",
    "/bin/cp",
    "/bin/echo",
    "/bin/ls",
    "/bin/mkdir",
    "/bin/mv",
    "/bin/rm",
    "/bin/sleep",
    "/bin/touch",
    "/bin/true",
    "/usr/bin/id",
    "/usr/bin/stat",
    "/usr/bin/setfattr",
    "/usr/bin/python3",
    "/usr/bin/setpriv",
    "/usr/bin/bwrap",
];

/// A Docker engine of our own, with one image.
struct Docker {
    // First: it ends before its place does.
    engine: ContainerEngine,
    directory: TempDir,
}

impl Docker {
    fn start() -> Self {
        let directory = engine_directory();
        let engine = ContainerEngine::start(EngineKind::Docker, &directory.path().join("engine"));
        Self { engine: engine.expect("dockerd is installed by the test command"), directory }
    }

    /// Runs a shell script in a container with every default but the network.
    fn run(&self, image: &str, user: &str, script: &str) -> ProgramOutput {
        let bin = Path::new(&binary()).parent().unwrap().to_str().unwrap().to_owned();
        let command = TestCommand::new("docker", "/")
            .args(["-H", &format!("unix://{}", self.engine.socket_path().display())])
            .args(["run", "--rm", "--network=none", "-u", user, "-w", "/home/user/ws", "-e", "HOME=/home/user"])
            .args(["-v", &format!("{bin}:/sb:ro"), image, "/bin/bash", "-c"])
            // Inside a sandbox root has no powers over what others own.
            .arg(format!("[ $(id -u) != 0 ] || chown -R 0:0 /home/user; {script}"))
            .env("PATH", PATH)
            .timeout(Duration::from_secs(60));
        stockade_testkit::run_as(&stockade_testkit::UserAccount::for_user(TestUser::Root).unwrap(), &command).unwrap()
    }
}

/// An archive of a root tree with this machine's own programs.
pub fn root_archive(directory: &Path) -> PathBuf {
    let root = directory.join("root");
    for dir in ["tmp", "root", "etc", "proc", "sys", "dev", "home/user/ws", "home/user/out", "usr/lib"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n").unwrap();
    for file in PROGRAMS.iter().map(PathBuf::from).flat_map(|p| with_libraries(&p)) {
        let target = root.join(file.strip_prefix("/").unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, &target).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
    let python = format!("{}/usr/lib", root.display());
    assert!(
        Process::new("sh")
            .args([
                "-c",
                &format!(
                    "cp -a /usr/lib/python3* {python}/ && chown -R 1000:1000 {}/home/user && chmod 1777 {}/tmp",
                    root.display(),
                    root.display()
                )
            ])
            .status()
            .unwrap()
            .success()
    );
    let tar = directory.join("root.tar");
    assert!(Process::new("tar").arg("-C").arg(&root).arg("-cf").arg(&tar).arg(".").status().unwrap().success());
    tar
}

/// A program and what the loader needs for it.
fn with_libraries(program: &Path) -> Vec<PathBuf> {
    let listed = Process::new("ldd").arg(program).output().unwrap();
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let libraries =
        text.split_whitespace().filter(|w| w.starts_with('/')).map(|w| PathBuf::from(w.trim_end_matches(':')));
    libraries.chain([program.to_owned()]).collect()
}

/// What Landlock mediates and what it does not, at places outside.
const ATTEMPTS: &str = r#"
echo x > ../out/new; echo x >> ../out/canary; : > ../out/canary; mkdir ../out/d; rm -f ../out/canary; mv ../out/canary ../out/moved
chmod 777 ../out/canary; chown 1:1 ../out/canary; touch -d 2001-01-01 ../out/canary; setfattr -n user.x -v 1 ../out/canary
python3 -c 'import os; os.chmod(os.open("../out/canary", os.O_RDONLY), 0o777)'
python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect("../out/socket"); s.send(b"reached")'
python3 -c 'import socket; s = socket.socket(); s.connect(("127.0.0.1", 4321))'
true
"#;

const LISTENER: &str = "import socket,os
u = socket.socket(socket.AF_UNIX); u.bind('../out/socket'); u.listen(); os.chmod('../out/socket', 0o777)
open('/tmp/ready', 'w').close()
u.accept()[0].recv(9); open('/tmp/reached', 'w').close()
";

#[test]
fn restricted_holds_in_a_default_container() {
    if !TestUser::available_users().contains(&TestUser::Root) {
        eprintln!("not run: a container engine needs root");
        return;
    }
    let docker = Docker::start();
    let image = docker.engine.import_image(&root_archive(docker.directory.path())).unwrap();
    let run = |user: &str, script: &str| docker.run(&image, user, script);
    for user in ["0", "1000"] {
        let peer = run(user, "bwrap --ro-bind / / true");
        assert_ne!(peer.ended, ProgramEnd::Code(0), "a default container refuses namespaces; this one does not");
        let full = run(user, "/sb/stockade run --mode never --level full -- touch ran; code=$?; ls; exit $code");
        assert_eq!(full.ended, ProgramEnd::Code(125), "{}", full.combined_text());
        assert!(!full.stdout.contains("ran"), "the command ran without its sandbox");
        assert!(full.stderr.contains("hint:"), "{}", full.stderr);

        let command_prefix = format!(
            "echo text > ../out/canary; chmod 644 ../out/canary; cp /bin/true t; rm t; python3 -c \"{LISTENER}\" & while ! [ -e /tmp/ready ]; do sleep 0.05; done; before=$(stat -c '%a %u %Y %s' ../out/canary);"
        );
        let tail = "; [ \"$before\" = \"$(stat -c '%a %u %Y %s' ../out/canary)\" ] && [ \"$(ls ../out)\" = \"$(printf 'canary\\nsocket')\" ] && [ ! -e /tmp/reached ] && echo contained; exit 0";
        let control =
            run(user, &format!("{command_prefix} bash -c '{}' 2>/dev/null {tail}", ATTEMPTS.replace('\'', "'\\''")));
        assert!(
            !control.stdout.contains("contained"),
            "the attempts do nothing even without a sandbox: {}",
            control.combined_text()
        );
        let held = run(
            user,
            &format!(
                "{command_prefix} /sb/stockade run --mode never --level restricted -- bash -c '{}' 2>/dev/null {tail}",
                ATTEMPTS.replace('\'', "'\\''")
            ),
        );
        assert!(held.stdout.contains("contained"), "user {user}: {}", held.combined_text());

        let work = "echo a > f && mkdir d && mv f d/g && chmod 600 d/g && cat d/g && rm -r d && t=$TMPDIR/x && echo tmp > $t && cat $t && python3 -c 'import tempfile; print(tempfile.TemporaryFile().write(b\"abc\"))'";
        let inside = run(
            user,
            &format!("/sb/stockade run --mode never --level restricted -- bash -c '{}'", work.replace('\'', "'\\''")),
        );
        assert_eq!(inside.stdout, "a\ntmp\n3\n", "user {user}: {}", inside.stderr);
    }
}

/// The limit is set in a user namespace of the test's own, so that the machine
/// keeps its user namespaces.
#[test]
fn restricted_holds_without_user_namespaces() {
    each_user(|world| {
        let off = |command: TestCommand| {
            command.with_prefix([
                "unshare",
                "--user",
                "--map-root-user",
                "sh",
                "-c",
                "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"",
                "sh",
            ])
        };
        let control = world.run(&off(world.bare(&["unshare", "--user", "true"])));
        assert_ne!(control.ended, ProgramEnd::Code(0), "user namespaces are still there");
        let full = world.run(&off(world.stockade(&[], &["touch", "ran"])));
        assert_eq!(full.ended, ProgramEnd::Code(125), "{}", full.combined_text());
        assert!(full.stderr.contains("hint:"), "{}", full.stderr);
        assert!(!world.workspace().join("ran").exists(), "the command ran without its sandbox");

        let canary = world.file("out/canary", "text");
        let script =
            format!("touch made; echo x > {0}; chmod 777 {0}; touch -d 2001-01-01 {0}; true", canary.display());
        let before = fs::metadata(&canary).unwrap();
        let held = world.run(&off(world.stockade(&["--level", "restricted"], &["sh", "-c", &script])));
        assert_eq!(held.ended, ProgramEnd::Code(0), "{}", held.combined_text());
        assert!(world.workspace().join("made").exists());
        let after = fs::metadata(&canary).unwrap();
        assert_eq!(fs::read_to_string(&canary).unwrap(), "text");
        assert_eq!(after.permissions(), before.permissions());
        assert_eq!(after.modified().unwrap(), before.modified().unwrap());
        let bare = world.run(&world.bare(&["sh", "-c", &script]));
        assert_eq!(bare.ended, ProgramEnd::Code(0));
        assert_eq!(fs::read_to_string(&canary).unwrap(), "x\n", "the attempts do nothing even without a sandbox");
    });
}

/// Root there is an ordinary user, who can give up no groups.
#[test]
fn both_levels_hold_in_a_namespace_that_a_user_made() {
    each_user(|world| {
        let within = |command: TestCommand| command.with_prefix(["unshare", "--user", "--map-root-user"]);
        for level in ["full", "restricted"] {
            let made = format!("made-{level}");
            let canary = world.outside().join(level);
            let script = format!("echo $(id -u) > {made}; echo x > {}; true", canary.display());
            let ran =
                world.run(&within(world.stockade(&["--mode", "never", "--level", level], &["sh", "-c", &script])));
            assert_eq!(ran.ended, ProgramEnd::Code(0), "{level}: {}", ran.combined_text());
            assert_eq!(fs::read_to_string(world.workspace().join(made)).unwrap(), "0\n", "{}", ran.combined_text());
            assert!(!canary.exists(), "{level}: {}", ran.combined_text());
            let bare = world.run(&within(world.bare(&["sh", "-c", &script])));
            assert!(canary.exists(), "it does nothing even without a sandbox: {}", bare.combined_text());
        }
    });
}
