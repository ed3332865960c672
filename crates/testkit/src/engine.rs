//! Container engines for one test. Their data, sockets, processes, containers and control groups
//! end with the test, even if it is killed. This module must not depend on the programs in them.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::slowness_factor;

/// Search path for engines and the programs that they start.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Time-out until an engine answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Container engine of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// The Docker Engine, with runc, and runsc if it is installed.
    Docker,
    /// Podman, with runc.
    Podman,
}

/// Script that starts the engine, waits for the end of its parent process, and removes everything.
/// `$1` is the engine's directory, `$2` its control group, `$3` a command that removes its
/// containers; the rest is the engine's command. `again` kills the engine and starts it again.
/// Other processes that Docker had started ended with it, and their id files are removed because a
/// zombie could still have the id. Podman's monitors of ended commands would wait for minutes and
/// then create its directories again. Monitors that have started may mount one of them once more. A
/// process that held a container removed during Docker's end would wait forever.
const SUPERVISOR_SCRIPT: &str = r#"trap '' INT TERM HUP QUIT
place=$1 group=$2 clear=$3; shift 3
cd "$place"
"$@" </dev/null >"$place/log" 2>&1 &
engine=$!
while read -r word && [ "$word" = again ]; do
    kill -KILL $engine; wait $engine
    rm -f "$place/pid" "$place/socket" "$place/exec/containerd/containerd.pid"
    "$@" </dev/null >>"$place/log" 2>&1 &
    engine=$!
    : >"$place/again"
done
sh -c "$clear" >/dev/null 2>&1
kill -TERM $engine 2>/dev/null; wait $engine
find /sys/fs/cgroup -depth -type d -path "*/$group*" -exec rmdir {} \; 2>/dev/null
for again in 1 2 3 4 5 6 7 8 9 10; do
    pkill -KILL -f "^[^ ]*(conmon|podman|containerd-shim[^ ]*) .*$place" 2>/dev/null
    grep -o " $place[^ ]*" /proc/self/mountinfo | sort -r | while read -r mount; do umount -l "$mount"; done 2>/dev/null
    rm -rf "$place" 2>/dev/null && break
    sleep 0.2
done
"#;

/// Engine that runs as root, and ends when its value is dropped or this process ends.
pub struct ContainerEngine {
    kind: EngineKind,
    engine_directory: PathBuf,
    overseer: Child,
}

impl ContainerEngine {
    /// Starts an engine in this directory, which is created and will be removed.
    ///
    /// # Errors
    /// An error if it is not installed, or does not answer in time.
    pub fn start(kind: EngineKind, engine_directory: &Path) -> Result<Self> {
        Self::start_with(kind, engine_directory, &[])
    }

    /// Does the same with these variables in the engine's environment.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_with(kind: EngineKind, engine_directory: &Path, environment: &[(&str, &OsStr)]) -> Result<Self> {
        fs::create_dir(engine_directory).with_context(|| format!("making {}", engine_directory.display()))?;
        let engine_directory = engine_directory.canonicalize()?;
        let group = format!("stockade-engine-{}", std::process::id());
        let (words, clear) = match kind {
            EngineKind::Docker => docker_commands(&engine_directory, &group)?,
            EngineKind::Podman => podman_commands(&engine_directory),
        };
        ensure!(find_program(&words[0]).is_some(), "{} is not installed", words[0]);
        let mut overseer = Command::new("/bin/sh");
        overseer.args(["-c", SUPERVISOR_SCRIPT, "overseer"]).arg(&engine_directory).args([&group, &clear]).args(&words);
        overseer
            .env("PATH", SEARCH_PATH)
            .env("CONTAINERS_REGISTRIES_CONF", write_registries(&engine_directory)?)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        // Files that container monitors leave in their working directory are removed with it.
        overseer.current_dir(&engine_directory);
        let overseer = overseer.spawn().context("starting the engine's supervisor")?;
        let mut engine = Self { kind, engine_directory, overseer };
        engine.wait_until_ready()?;
        Ok(engine)
    }

    /// Kills the engine with SIGKILL, and starts it again.
    ///
    /// # Errors
    /// An error if it does not answer in time.
    pub fn kill_and_restart(&mut self) -> Result<()> {
        let again = self.engine_directory.join("again");
        let input = self.overseer.stdin.as_mut().context("its supervisor has exited")?;
        input.write_all(b"again\n").context("sending a command to the supervisor")?;
        let give_up = Instant::now() + ANSWER_TIMEOUT * slowness_factor();
        while fs::remove_file(&again).is_err() {
            ensure!(Instant::now() < give_up, "the engine was not killed");
            sleep(Duration::from_millis(20));
        }
        self.wait_until_ready()
    }

    /// Returns the path of its socket.
    pub fn socket_path(&self) -> PathBuf {
        self.engine_directory.join("socket")
    }

    /// Returns the start of its own command line, which selects this engine.
    pub fn client_words(&self) -> Vec<String> {
        match self.kind {
            EngineKind::Docker => vec!["docker".to_owned(), "-H".to_owned(), socket_address(&self.engine_directory)],
            EngineKind::Podman => podman_words(&self.engine_directory),
        }
    }

    /// Runs its own command line, and returns the output.
    ///
    /// # Errors
    /// An error if it fails.
    pub fn run_client(&self, arguments: &[&str]) -> Result<String> {
        let words = self.client_words();
        let (program, first) = words.split_first().context("a client has a name")?;
        let mut command = Command::new(program);
        let output = command.args(first).args(arguments).env("PATH", SEARCH_PATH).stdin(Stdio::null()).output()?;
        let stderr_text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{program} {arguments:?} ended with {}: {stderr_text}", output.status);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Creates an image from an archive of a root tree, and returns its digest.
    ///
    /// # Errors
    /// An error if the engine does not accept it.
    pub fn import_image(&self, archive: &Path) -> Result<String> {
        let archive = archive.to_str().context("the archive's path is text")?;
        let digest = self.run_client(&["import", archive])?;
        let digest = digest.lines().next_back().unwrap_or_default().trim();
        Ok(if digest.starts_with("sha256:") { digest.to_owned() } else { format!("sha256:{digest}") })
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let give_up = Instant::now() + ANSWER_TIMEOUT * slowness_factor();
        while !(self.socket_path().exists() && self.run_client(&["info"]).is_ok()) {
            let log = || fs::read_to_string(self.engine_directory.join("log")).unwrap_or_default();
            if Instant::now() > give_up {
                bail!("the engine does not answer:\n{}", log());
            }
            sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

impl Drop for ContainerEngine {
    fn drop(&mut self) {
        // The overseer waits for the end of its input.
        if let Some(mut input) = self.overseer.stdin.take() {
            let _ = input.write_all(b"\n");
        }
        let _ = self.overseer.wait();
    }
}

fn find_program(program: &str) -> Option<PathBuf> {
    SEARCH_PATH.split(':').map(|directory| Path::new(directory).join(program)).find(|path| path.exists())
}

fn socket_address(engine_directory: &Path) -> String {
    format!("unix://{}", engine_directory.join("socket").display())
}

/// Returns the engine's command, and the command that removes its containers.
fn docker_commands(engine_directory: &Path, group: &str) -> Result<(Vec<String>, String)> {
    let at = |name: &str| engine_directory.join(name).display().to_string();
    // gVisor without the machine's own network, virtualisation or control groups.
    let runtimes = match find_program("runsc") {
        Some(path) => format!(
            r#"{{"runtimes": {{"runsc": {{"path": "{}", "runtimeArgs": ["--network=none", "--platform=ptrace", "--ignore-cgroups"]}}}}}}"#,
            path.display()
        ),
        None => "{}".to_owned(),
    };
    fs::write(engine_directory.join("config.json"), runtimes)?;
    let words =
        ["dockerd", "--config-file", &at("config.json"), "--data-root", &at("data"), "--exec-root", &at("exec")];
    let more =
        ["--pidfile", &at("pid"), "-H", &socket_address(engine_directory), "--cgroup-parent", &format!("/{group}")];
    let network = ["--bridge=none", "--iptables=false", "--ip6tables=false"];
    let words = words.into_iter().chain(more).chain(network).map(str::to_owned).collect();
    let client = format!("docker -H {}", socket_address(engine_directory));
    Ok((words, format!("{client} ps -aq | xargs -r {client} rm -f")))
}

fn podman_commands(engine_directory: &Path) -> (Vec<String>, String) {
    let mut words = podman_words(engine_directory);
    let clear = format!("{} rm --all --force --time 0", words.join(" "));
    words.extend(["system", "service", "--time", "0", &socket_address(engine_directory)].map(str::to_owned));
    (words, clear)
}

/// Makes Podman accept registries of the loopback without TLS, as Docker does.
fn write_registries(engine_directory: &Path) -> Result<PathBuf> {
    let path = engine_directory.join("registries.conf");
    fs::write(&path, "[[registry]]\nlocation = \"127.0.0.1\"\ninsecure = true\n")?;
    Ok(path)
}

fn podman_words(engine_directory: &Path) -> Vec<String> {
    let at = |name: &str| engine_directory.join(name).display().to_string();
    let words = ["podman", "--root", &at("data"), "--runroot", &at("run"), "--tmpdir", &at("tmp")];
    let more = ["--cgroup-manager", "cgroupfs", "--runtime", "runc", "--events-backend", "none"];
    words.into_iter().chain(more).map(str::to_owned).collect()
}
