//! A container engine of the test's own: its data, socket and processes end with it.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use stockade_backend_api::{
    Attempt, AttemptEnd, AttemptEvent, AttemptEventSender, CommandEnd, GuestSystem, Sandbox, SandboxError,
    SandboxEvent, SandboxEventSender, SandboxPlan, SandboxProvider, StartError, StdioMode,
};
use stockade_container::{ContainerEngineKind, ContainerSandboxes, ContainerSettings};
use stockade_model::{
    AttemptPlan, BackgroundPolicy, DEFAULT_PROTECTED_NAMES, Denial, EnforcementReport, EnvironmentRules,
    FilesystemAccess, ImageDigest, IsolationLevel, Limits, NetworkAccess, Profile, RequestId, SandboxId,
};
use stockade_testkit::EngineKind;
use tempfile::TempDir;

pub const CAPTURE: StdioMode = StdioMode::Capture { limit_bytes: 1 << 20 };
pub const TIMEOUT: Duration = Duration::from_secs(60);
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Programs of the image: all of them busybox.
const APPLETS: &[&str] = &[
    "sh", "cat", "echo", "env", "false", "head", "id", "kill", "ln", "ls", "mkdir", "mkfifo", "mount", "mv", "nc",
    "printf", "ps", "pwd", "rm", "seq", "setsid", "sleep", "stat", "stty", "tail", "test", "touch", "true", "tty",
    "umask", "wc", "wget", "yes", "dd", "chmod", "cp", "grep", "tr", "sync", "date", "sort", "cut", "unshare",
];

/// An engine with one small image.
pub struct Engine {
    kind: ContainerEngineKind,
    // First: it ends before its place does.
    engine: stockade_testkit::ContainerEngine,
    engine_directory: TempDir,
    image: ImageDigest,
}

impl Engine {
    /// The Docker Engine, whose own choice of a runtime is `runc`; it has `runsc` besides.
    pub fn docker() -> Option<Self> {
        Self::start(ContainerEngineKind::Docker, EngineKind::Docker, |_| None)
    }

    /// Podman of root, with `runc`.
    pub fn podman() -> Option<Self> {
        Self::start(ContainerEngineKind::Podman, EngineKind::Podman, |_| None)
    }

    /// The same with a configuration of its own, which gets a directory of the engine's.
    pub fn podman_with(configuration: impl FnOnce(&Path) -> String) -> Option<Self> {
        Self::start(ContainerEngineKind::Podman, EngineKind::Podman, |engine_directory| {
            Some(configuration(engine_directory))
        })
    }

    /// None, and said so, where this user can run no engine.
    fn start(
        kind: ContainerEngineKind,
        engine: EngineKind,
        configure: impl FnOnce(&Path) -> Option<String>,
    ) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: a container engine needs root");
            return None;
        }
        let engine_directory = engine_directory();
        let file = engine_directory.path().join("containers.conf");
        let configured = configure(engine_directory.path()).map(|text| fs::write(&file, text).unwrap());
        let environment = configured.map(|()| ("CONTAINERS_CONF", file.as_os_str()));
        let engine = stockade_testkit::ContainerEngine::start_with(
            engine,
            &engine_directory.path().join("engine"),
            environment.as_slice(),
        );
        let engine = engine.expect("the engines are installed by the test command");
        let digest = engine.import_image(&root_tree(engine_directory.path())).unwrap();
        Some(Self { kind, engine, engine_directory, image: digest.parse().unwrap() })
    }

    fn socket(&self) -> PathBuf {
        self.engine.socket_path()
    }

    /// An image like its own, with these instructions of a Dockerfile besides.
    pub fn image_with(&self, changes: &[&str]) -> ImageDigest {
        let made = match self.kind {
            ContainerEngineKind::Docker => {
                let file = self.engine_directory.path().join("Dockerfile");
                fs::write(&file, format!("FROM {}\n{}\n", self.image, changes.join("\n"))).unwrap();
                let mut command = Command::new("docker");
                command.arg("-H").arg(format!("unix://{}", self.socket().display())).args(["build", "-q", "-"]);
                let file = fs::File::open(file).unwrap();
                command.env("DOCKER_BUILDKIT", "0").stdin(file).output().unwrap()
            }
            ContainerEngineKind::Podman => {
                let changes: Vec<String> = changes.iter().map(|change| format!("--change={change}")).collect();
                let archive = self.engine_directory.path().join("root.tar").display().to_string();
                let words = ["import"].into_iter().chain(changes.iter().map(String::as_str)).chain([archive.as_str()]);
                self.own_command(&words.collect::<Vec<_>>())
            }
        };
        let text = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        let id = text.lines().next_back().unwrap_or_default();
        let id = id.strip_prefix("sha256:").unwrap_or(id);
        format!("sha256:{id}").parse().unwrap_or_else(|_| panic!("{made:?}"))
    }

    /// The engine's own command line, where one of another engine does not do.
    pub fn own_command(&self, arguments: &[&str]) -> std::process::Output {
        let (program, option) = match self.kind {
            ContainerEngineKind::Docker => ("docker", "-H"),
            ContainerEngineKind::Podman => ("podman", "--url"),
        };
        let mut command = Command::new(program);
        command.args([option, &format!("unix://{}", self.socket().display())]).args(arguments);
        command.env("PATH", PATH).stdin(Stdio::null()).output().unwrap()
    }

    /// A command line of the engine.
    pub fn command(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new("docker");
        command.arg("-H").arg(format!("unix://{}", self.socket().display())).args(arguments);
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Where the files of its containers are.
    fn accounts(&self) -> PathBuf {
        self.engine_directory.path().join("accounts")
    }

    pub fn sandboxes(&self) -> ContainerSandboxes {
        self.sandboxes_of("tests")
    }

    pub fn sandboxes_of(&self, owner: &str) -> ContainerSandboxes {
        let settings = ContainerSettings {
            socket: Some(self.socket()),
            launcher: launcher(),
            accounts: self.accounts(),
            owner: owner.to_owned(),
        };
        ContainerSandboxes::new(self.kind, settings)
    }

    /// A program that runs one command in a sandbox, with streams of its own.
    pub fn one_command(&self, plan: &SandboxPlan, io: &str, script: &str) -> Command {
        let mut command = Command::new(example("one_command"));
        command.arg(self.socket()).arg(self.accounts()).arg(self.image.as_str()).arg(plan.id.as_str());
        command.arg(&plan.workspace).arg(&plan.home).arg(launcher()).args([io, script]);
        command
    }

    /// Whether a process of a container can make itself a namespace of users, which no
    /// lack of privilege prevents: of the sandbox's where one is named, without Stockade's
    /// launcher and its walls; else of a container without a filter of system calls.
    pub fn lets_make_namespaces(&self, sandbox: Option<&SandboxPlan>) -> bool {
        let attempt = ["/bin/unshare", "-U", "/bin/true"];
        let attempted = || match sandbox {
            Some(plan) => self.own_command(&[&["exec", &format!("stockade-{}", plan.id)], &attempt[..]].concat()),
            None => {
                let bare = ["run", "--rm", "--network=none", "--cap-drop=ALL", "--user=1000:1000"];
                let options = ["--security-opt=seccomp=unconfined", "--ulimit=nofile=1024:1024", PROCESS_LIMIT];
                self.own_command(&[&bare[..], &options, &[self.image.as_str()], &attempt].concat())
            }
        };
        let mut made = attempted();
        // Podman may lose how one ended.
        for _ in 0..3 {
            if String::from_utf8_lossy(&made.stderr).contains("Cannot get exit code") {
                made = attempted();
            }
        }
        let error_text = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success() || error_text.contains("unshare(0x10000000)"), "{error_text}");
        made.status.success()
    }

    /// The words of the host's processes that name this engine's directory and this text.
    pub fn processes_of(&self, text: &str) -> Vec<String> {
        let own = self.engine_directory.path().to_str().unwrap().to_owned();
        let words = |entry: fs::DirEntry| fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let all = fs::read_dir("/proc").unwrap().map(Result::unwrap).map(words);
        let all = all.map(|words| String::from_utf8_lossy(&words).replace('\0', " "));
        all.filter(|words| words.contains(&own) && words.contains(text)).collect()
    }

    /// The ids of all containers that there are.
    pub fn containers(&self) -> Vec<String> {
        let listed = self.command(&["ps", "-aq"]);
        String::from_utf8_lossy(&listed.stdout).split_whitespace().map(str::to_owned).collect()
    }

    /// The commands of the processes in a sandbox, as the engine sees them.
    pub fn processes(&self, plan: &SandboxPlan) -> Vec<String> {
        let listed = self.command(&["top", &format!("stockade-{}", plan.id), "-eo", "pid,args"]);
        String::from_utf8_lossy(&listed.stdout).lines().skip(1).map(str::to_owned).collect()
    }

    pub fn image(&self) -> ImageDigest {
        self.image.clone()
    }
}

/// Limit of processes for a container of Podman's, whose own default can be above the hard limit. All
/// processes of the user count, also those of tests beside this one.
pub const PROCESS_LIMIT: &str = "--ulimit=nproc=16384:16384";

fn engine_directory() -> TempDir {
    tempfile::Builder::new().prefix("stockade-engine-").tempdir_in("/var/tmp").unwrap()
}

/// The example `launcher` of this crate, where every user can read it.
fn launcher() -> PathBuf {
    example("launcher")
}

/// An example of this crate: they are built with its tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(built.exists(), "{} is built with the tests", built.display());
    built
}

/// The files of an image with nothing but busybox, as an archive.
fn root_tree(engine_directory: &Path) -> PathBuf {
    let root = engine_directory.join("root");
    for directory in ["bin", "etc", "proc", "sys", "dev", "tmp", "run", "srv", "workspace", "home/agent"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    fs::copy("/usr/bin/busybox", root.join("bin/busybox")).expect("a static busybox");
    for applet in APPLETS {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n").unwrap();
    let tar = engine_directory.join("root.tar");
    assert!(Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&tar).arg(".").status().unwrap().success());
    tar
}

/// A sandbox with its directories on the host, and what it tells.
pub struct TestSandbox {
    pub top: TempDir,
    pub plan: SandboxPlan,
    pub sandbox: Box<dyn Sandbox>,
    pub event_receiver: Receiver<SandboxEvent>,
}

impl TestSandbox {
    /// Kills its container from outside: a command in it and the sandbox are told as
    /// lost, and it is found no more.
    #[track_caller]
    pub fn is_lost_when_killed(&self, engine: &Engine) {
        let (mut attempt, events) = self.begin(&inside("sleep 4321"), CAPTURE, false).unwrap();
        attempt.release_command().unwrap();
        engine.command(&["kill", &engine.containers()[0]]);
        assert!(matches!(drain(&events).0.end, CommandEnd::Lost(_)));
        assert!(matches!(self.event_receiver.recv_timeout(TIMEOUT), Ok(SandboxEvent::Lost(_))));
        drop(attempt);
        let adopt_result = engine.sandboxes().adopt_sandbox(&self.plan, SandboxEventSender::new(|_| {}));
        assert!(matches!(adopt_result, Err(SandboxError::Gone(_))));
    }

    pub fn new(engine: &Engine) -> Self {
        Self::with(engine, |_| {}).unwrap()
    }

    /// Why a sandbox was refused; nothing where it was made.
    pub fn new_refused(engine: &Engine) -> Option<String> {
        Self::with(engine, |_| {}).err().map(|refused| refused.to_string())
    }

    pub fn with(engine: &Engine, change: impl FnOnce(&mut SandboxPlan)) -> Result<Self, SandboxError> {
        let top = tempfile::Builder::new().prefix("sandbox-").tempdir().unwrap();
        let mut plan = plan(engine, top.path());
        change(&mut plan);
        let (sandbox, event_receiver) = begun(&plan, |plan, events| engine.sandboxes().create_sandbox(plan, events))?;
        Ok(Self { top, plan, sandbox, event_receiver })
    }

    pub fn begin(
        &self,
        plan: &AttemptPlan,
        io: StdioMode,
        hold: bool,
    ) -> Result<(Box<dyn Attempt>, Receiver<AttemptEvent>), StartError> {
        let (sender, events) = channel();
        let sink = AttemptEventSender::new(move |event| drop(sender.send(event)));
        Ok((self.sandbox.backend().prepare_attempt(plan, &io, hold, sink)?, events))
    }

    #[track_caller]
    pub fn run(&self, script: &str) -> Ran {
        self.run_plan(&inside(script))
    }

    #[track_caller]
    pub fn run_plan(&self, plan: &AttemptPlan) -> Ran {
        let (mut attempt, events) = self.begin(plan, CAPTURE, false).unwrap();
        attempt.release_command().unwrap();
        let report = attempt.enforcement_report().clone();
        let (end, denials) = drain(&events);
        Ran { end, denials, report }
    }
}

/// A sandbox made or found, and what it tells.
pub fn begun(
    plan: &SandboxPlan,
    by: impl FnOnce(&SandboxPlan, SandboxEventSender) -> Result<Box<dyn Sandbox>, SandboxError>,
) -> Result<(Box<dyn Sandbox>, Receiver<SandboxEvent>), SandboxError> {
    let (sender, event_receiver) = channel();
    let sandbox = by(plan, SandboxEventSender::new(move |event| drop(sender.send(event))))?;
    Ok((sandbox, event_receiver))
}

/// The plan of a sandbox with directories beneath this one.
pub fn plan(engine: &Engine, top: &Path) -> SandboxPlan {
    let directory = |name: &str| {
        let path = top.join(name);
        fs::create_dir(&path).unwrap();
        // As an ordinary user's: no command is to be root.
        std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
        path
    };
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
    SandboxPlan {
        id: SandboxId::from_random(bytes),
        system: Some(GuestSystem::Image(engine.image())),
        workspace: directory("work"),
        home: directory("home"),
        profile: profile(),
        level: IsolationLevel::Full,
        background: BackgroundPolicy::End,
        runtime: None,
    }
}

#[derive(Debug)]
pub struct Ran {
    pub end: AttemptEnd,
    pub denials: Vec<Denial>,
    pub report: EnforcementReport,
}

impl Ran {
    #[track_caller]
    pub fn ok(&self) -> String {
        assert_eq!(self.end.end, CommandEnd::Exited(0), "{self:#?}");
        self.stdout()
    }

    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(self.end.stdout.as_ref().unwrap().as_bytes()).into_owned()
    }
}

#[track_caller]
pub fn drain(events: &Receiver<AttemptEvent>) -> (AttemptEnd, Vec<Denial>) {
    let mut denials = Vec::new();
    loop {
        match events.recv_timeout(TIMEOUT).expect("the attempt ends") {
            AttemptEvent::Denied(denial) | AttemptEvent::Breached(denial) => denials.push(denial),
            AttemptEvent::Executed { .. }
            | AttemptEvent::Connection(_)
            | AttemptEvent::Signed { .. }
            | AttemptEvent::Withdrawn(_)
            | AttemptEvent::Stopped(_) => {}
            AttemptEvent::Held { .. } => panic!("it was not told to hold"),
            AttemptEvent::Ended(end) => return (end, denials),
        }
    }
}

pub fn profile() -> Profile {
    Profile {
        name: "workspace".to_owned(),
        sandboxed: true,
        filesystem: FilesystemAccess {
            write: vec!["/workspace".into(), "/home/agent".into()],
            protect: DEFAULT_PROTECTED_NAMES.iter().map(|&n| n.to_owned()).collect(),
            ..FilesystemAccess::default()
        },
        exec: stockade_model::ExecRules::default(),
        network: NetworkAccess::None,
        egress: Default::default(),
        environment: EnvironmentRules::default(),
        limits: Limits {
            memory_bytes: Some(256 << 20),
            temp_bytes: Some(64 << 20),
            processes: Some(200),
            ..Limits::default()
        },
    }
}

/// A script in the workspace of a sandbox.
pub fn inside(script: &str) -> AttemptPlan {
    let variables = [("PATH", "/bin"), ("HOME", "/home/agent"), ("LC_ALL", "C")];
    AttemptPlan {
        request: RequestId::from_random([7; 16]),
        attempt: 1,
        argv: ["/bin/sh", "-c", script].map(Into::into).into(),
        environment: variables.map(|(name, value)| (name.to_owned(), value.into())).into(),
        cwd: "/workspace".into(),
        workspace: "/workspace".into(),
        profile: profile(),
        grants: Vec::new(),
        effects: Vec::new(),
        level: IsolationLevel::Full,
        backend: "docker".to_owned(),
    }
}

/// An image with volumes: they can be read in a sandbox, and not written, whatever the
/// runtime.
pub fn volumes_of_an_image_can_be_read_alone(
    engine: &Engine,
    change: impl Fn(&mut SandboxPlan),
    level: IsolationLevel,
) {
    let image = engine.image_with(&["VOLUME /data", "VOLUME /srv", "VOLUME /tmp"]);
    let engine_directory = TestSandbox::with(engine, |plan| {
        plan.system = Some(GuestSystem::Image(image.clone()));
        change(plan);
    })
    .unwrap();
    let script = "for d in /data /srv; do touch $d/x 2>/dev/null && echo wrote $d; mkdir $d/y 2>/dev/null && echo made; \
                  done; ls /bin/busybox; touch /tmp/x && echo temp";
    let ran = engine_directory.run_plan(&AttemptPlan { level, ..inside(script) });
    assert_eq!(ran.stdout(), "/bin/busybox\ntemp\n", "{ran:#?}");
    // Its launcher has no walls but the container's.
    let name = format!("stockade-{}", engine_directory.plan.id);
    let write = |at: &str| engine.own_command(&["exec", "-u", "0:0", &name, "/bin/touch", at]).status.success();
    assert!(!write("/data/x") && !write("/srv/x"));
    let (sandbox, _event_receiver) =
        begun(&engine_directory.plan, |plan, events| engine.sandboxes().adopt_sandbox(plan, events)).unwrap();
    drop(sandbox);
    engine_directory.sandbox.destroy().unwrap();
    // The control.
    let bare = ["run", "--rm", "--network=none", "--ulimit=nofile=1024:1024", PROCESS_LIMIT];
    let control = engine.own_command(&[&bare[..], &[image.as_str(), "/bin/touch", "/data/x"]].concat());
    assert!(control.status.success(), "an image's volume can be written: {control:?}");

    for at in ["/workspace/.git/hooks", "/workspace", "/home/agent/x", "/etc"] {
        let image = engine.image_with(&[&format!("VOLUME {at}")]);
        let refused = TestSandbox::with(engine, |plan| {
            plan.system = Some(GuestSystem::Image(image));
            change(plan);
        });
        let refused = refused.map(drop).unwrap_err();
        assert!(refused.to_string().contains("asks for a volume"), "{at}: {refused}");
    }
    assert_eq!(engine.containers(), Vec::<String>::new());
    let volumes = engine.own_command(&["volume", "ls", "-q"]);
    assert_eq!(String::from_utf8_lossy(&volumes.stdout), "", "volumes are left");
}

/// An engine that runs as root follows links to a directory with its own rights: the path of
/// the workspace leads elsewhere by the time it looks.
pub fn a_workspace_that_is_exchanged_is_not_another_users(engine: &Engine) {
    let engine_directory = TestSandbox::new(engine);
    let (workspace, backup) = (engine_directory.plan.workspace.clone(), engine_directory.top.path().join("aside"));
    let adopt = || engine.sandboxes().adopt_sandbox(&engine_directory.plan, SandboxEventSender::new(|_| {})).map(drop);
    assert!(adopt().is_ok(), "the control");
    fs::rename(&workspace, &backup).unwrap();
    fs::create_dir(&workspace).unwrap();
    std::os::unix::fs::chown(&workspace, Some(1000), Some(1000)).unwrap();
    let refused = adopt().unwrap_err().to_string();
    assert!(refused.contains("another object"), "{refused}");
    fs::remove_dir(&workspace).unwrap();
    fs::rename(&backup, &workspace).unwrap();
    assert!(adopt().is_ok(), "the control");
    engine_directory.sandbox.destroy().unwrap();

    // While it is made, as fast as can be: whatever was looked at is what is mounted.
    let ended = std::sync::atomic::AtomicBool::new(false);
    let (mut made, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = fs::rename(&workspace, &backup);
                let _ = std::os::unix::fs::symlink("/etc", &workspace);
                let _ = fs::remove_file(&workspace);
                let _ = fs::rename(&backup, &workspace);
            }
        });
        for _ in 0..8 {
            let (sandbox, _event_receiver) =
                match begun(&engine_directory.plan, |plan, events| engine.sandboxes().create_sandbox(plan, events)) {
                    Ok(begun) => begun,
                    Err(_) => {
                        refused += 1;
                        continue;
                    }
                };
            made += 1;
            let name = format!("stockade-{}", engine_directory.plan.id);
            let user = engine.own_command(&["inspect", "-f", "{{.Config.User}}", &name]);
            let user = String::from_utf8_lossy(&user.stdout).trim().to_owned();
            let shown = engine.own_command(&["exec", &name, "/bin/ls", "/workspace"]);
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            let is_etc = shown.contains("passwd");
            assert!(!(is_etc && user != "0:0"), "{user} {shown}");
            sandbox.destroy().unwrap();
        }
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    eprintln!("{made} made, {refused} refused");
}

/// Links in an image at the places of mounts: an engine follows them, and makes what is
/// missing at their end, on the host.
pub fn an_image_makes_nothing_on_the_host(engine: &Engine) {
    let links = ["/etc/passwd", "/etc/hosts", "/home", "/run"];
    for link in links.into_iter().chain([""]) {
        let top = tempfile::tempdir().unwrap();
        let root = top.path().join("root");
        let tar = top.path().join("root.tar");
        let source = engine.engine_directory.path().join("root");
        assert!(Command::new("cp").arg("-a").arg(&source).arg(&root).status().unwrap().success());
        if !link.is_empty() {
            let engine_directory = root.join(link.trim_start_matches('/'));
            let _ = fs::remove_file(&engine_directory);
            let _ = fs::remove_dir_all(&engine_directory);
            std::os::unix::fs::symlink("/workspace/.envrc", engine_directory).unwrap();
        }
        assert!(Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&tar).arg(".").status().unwrap().success());
        let made = engine.own_command(&["import", tar.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        let id = text.lines().next_back().unwrap_or_default();
        let image: ImageDigest = format!("sha256:{}", id.strip_prefix("sha256:").unwrap_or(id)).parse().unwrap();
        let mut plan = plan(engine, top.path());
        plan.system = Some(GuestSystem::Image(image));
        let begun = begun(&plan, |plan, events| engine.sandboxes().create_sandbox(plan, events)).map(drop);
        // Docker itself removes links at those of its own files.
        let is_made = link.is_empty() || link == "/etc/hosts";
        assert_eq!(begun.is_ok(), is_made, "{link} {:?}", begun.map_err(|error| error.to_string()));
        assert_eq!(fs::read_dir(&plan.workspace).unwrap().count(), 0, "{link}");
        engine.sandboxes().clear(&plan.id).unwrap();
        assert_eq!(engine.containers(), Vec::<String>::new());
    }
}
