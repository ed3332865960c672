//! A scratch place for one attack: a workspace, a home, and the tools that run a
//! script in it, sandboxed or not.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use stockade_testkit::{Account, Command, Ended, Output, Running, User, run_as};
use stockade_tests::Level;

/// First line of every attack: it really ran.
pub const BEGIN: &str = "ATTACK-BEGIN";
/// In everything that an attack plants.
pub const MARK: &str = "STOCKADE-PLANTED";
/// Where a root harness keeps its scenes: not in `/tmp`, which a sandbox replaces.
const ROOT_BASE: &str = "/var/lib/stockade-test";
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// What every script may use: `W` is the workspace, `C` a program that leaves the
/// canary, and the functions print what an attack plants.
const PRELUDE: &str = r#"
gitcfg() { printf '[core]\n\tfsmonitor = %s\n\tsshCommand = %s\n[remote "planted"]\n\turl = ssh://127.0.0.1/x\n[stockade]\n\tplanted = STOCKADE-PLANTED\n' "$C" "$C"; }
cargocfg() { printf '[build]\nrustc-wrapper = "%s"\n[env]\nSTOCKADE = "STOCKADE-PLANTED"\n' "$C"; }
npmcfg() { printf 'script-shell=%s\nstockade=STOCKADE-PLANTED\n' "$C"; }
hook() { printf '#!/bin/sh\n# STOCKADE-PLANTED\n%s\n' "$C"; }
mkhook() { mkdir -p "$(dirname "$1")"; hook >"$1"; chmod 755 "$1"; }
rc() { printf '# STOCKADE-PLANTED\n%s\n' "$C"; }
head_file() { echo 'ref: refs/heads/main'; }
"#;

/// What all scenes share: the program under test and the helpers, where every
/// account can reach them. Removed at the end.
pub struct Session {
    directory: PathBuf,
}

impl Session {
    /// Makes it; compiles the helpers.
    pub fn new() -> Result<Self> {
        let directory = base()?.join(format!("names-{}", std::process::id()));
        open_directory(&directory)?;
        let session = Self { directory };
        for helper in ["acts", "play", "race"] {
            compile(helper, &session.path(helper))?;
        }
        copy(&engine()?, &session.path("stockade"))?;
        session.make_crate()?;
        Ok(session)
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The crate that the oracle lets cargo check.
    fn make_crate(&self) -> Result<()> {
        let top = self.path("crate");
        open_directory(&top)?;
        let manifest = "[package]\nname = \"judge\"\nversion = \"0.0.0\"\nedition = \"2021\"\n[lib]\npath = \"lib.rs\"\n[workspace]\n";
        fs::write(top.join("Cargo.toml"), manifest)?;
        fs::write(top.join("lib.rs"), "")?;
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = std::process::Command::new("rm").arg("-rf").arg("--").arg(&self.directory).status();
    }
}

/// The place of one attack.
pub struct Scene<'a> {
    /// What it shares with others.
    pub session: &'a Session,
    /// The attacking user.
    pub account: Account,
    top: PathBuf,
}

static SCENES: AtomicU32 = AtomicU32::new(0);

impl<'a> Scene<'a> {
    /// A new scene of this user.
    pub fn new(session: &'a Session, user: User) -> Result<Self> {
        let top = session.path(&format!("scene-{}", SCENES.fetch_add(1, Ordering::SeqCst)));
        let scene = Self { session, account: Account::of(user)?, top };
        for directory in ["", "ws", "home", "state", "probe", "out"] {
            let path = scene.path(directory);
            open_directory(&path)?;
            scene.own(&path)?;
        }
        let canary = scene.path("probe/canary.sh");
        fs::write(&canary, format!("#!/bin/sh\necho ran >>{}\nexit 1\n", scene.canary().display()))?;
        fs::set_permissions(&canary, fs::Permissions::from_mode(0o755))?;
        let gitconfig = scene.path("home/.gitconfig");
        fs::write(&gitconfig, "[user]\n\tname = Lab\n\temail = lab@localhost\n[init]\n\tdefaultBranch = main\n")?;
        scene.own(&gitconfig)?;
        Ok(scene)
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.top.join(name)
    }

    /// The workspace, or the tree that holds it.
    pub fn workspace(&self) -> PathBuf {
        self.path("ws")
    }

    /// The file that a planted program writes.
    pub fn canary(&self) -> PathBuf {
        self.path("out/canary")
    }

    /// Makes a file of the user's, of so many zeros.
    pub fn make_zeros(&self, path: &Path, bytes: usize) -> Result<()> {
        fs::write(path, vec![0; bytes]).with_context(|| format!("making {}", path.display()))?;
        self.own(path)
    }

    fn own(&self, path: &Path) -> Result<()> {
        lchown(path, Some(self.account.uid), Some(self.account.gid))
            .with_context(|| format!("changing the owner of {}", path.display()))
    }

    /// A command of the user, in the workspace.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        Command::new(program, self.workspace())
            .env("PATH", PATH)
            .env("HOME", self.path("home"))
            .env("USER", "lab")
            .env("LANG", "C.UTF-8")
            .env("XDG_STATE_HOME", self.path("state"))
            .timeout(Duration::from_secs(60))
    }

    /// Writes a script where the sandbox can read it.
    fn script(&self, name: &str, text: &str) -> Result<PathBuf> {
        let (workspace, canary) = (self.workspace(), self.path("probe/canary.sh"));
        let text = format!(
            "W={}\nC={}\nACTS={}\n{PRELUDE}\necho {BEGIN}\n{text}\n",
            workspace.display(),
            canary.display(),
            self.session.path("acts").display()
        );
        let path = self.path("probe").join(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// Runs a script of the person's own, which must succeed.
    pub fn prepare(&self, text: &str) -> Result<()> {
        let script = self.script("prepare.sh", &format!("set -e\n{text}"))?;
        let output = run_as(&self.account, &self.command("/bin/bash").arg(script))?;
        ensure!(output.ended == Ended::Code(0), "preparing: {}", output.text());
        Ok(())
    }

    /// The command that runs `argv` in the sandbox, or without one.
    pub fn sandboxed(
        &self,
        level: Option<Level>,
        tag: &str,
        workspace: &str,
        options: &[&str],
        argv: &[&Path],
    ) -> Command {
        let workspace = self.workspace().join(workspace);
        let mut command = match level {
            None => {
                let (program, rest) = argv.split_first().expect("a program");
                self.command(program).args(rest)
            }
            Some(level) => self
                .command(self.session.path("stockade"))
                .args(["run", "--profile", "workspace", "--level", level.word(), "--mode", "never", "--workspace"])
                .arg(&workspace)
                .arg(format!("--json={}", self.path("state").join(format!("{tag}.json")).display()))
                .args(options)
                .arg("--")
                .args(argv),
        };
        command.cwd = workspace;
        command
    }

    /// The command of an attack.
    pub fn attack(
        &self,
        level: Option<Level>,
        tag: &str,
        workspace: &str,
        options: &[&str],
        text: &str,
    ) -> Result<Command> {
        let script = self.script(&format!("{tag}.sh"), text)?;
        Ok(self.sandboxed(level, tag, workspace, options, &[Path::new("/bin/bash"), &script]))
    }

    /// Refuses an attack that did not run at its level.
    pub fn require_ran(&self, level: Option<Level>, tag: &str, output: &Output) -> Result<()> {
        let tail: Vec<&str> = output.stderr.trim_end().lines().rev().take(4).collect();
        if !output.stdout.contains(BEGIN) {
            bail!("the attack did not start ({:?}): {}", output.ended, tail.join(" | "));
        }
        let Some(level) = level else { return Ok(()) };
        let outcome = fs::read(self.path("state").join(format!("{tag}.json"))).context("no outcome was written")?;
        let outcome: serde_json::Value = serde_json::from_slice(&outcome)?;
        let enforced = outcome["attempts"].as_array().and_then(|a| a.last()).map(|a| a["enforced"]["level"].clone());
        ensure!(enforced.as_ref().and_then(|l| l.as_str()) == Some(level.word()), "ran at level {enforced:?}");
        ensure!(output.ended != Ended::TimedOut, "the attack took too long: {}", tail.join(" | "));
        Ok(())
    }

    /// Every directory of the tree, links not followed.
    pub fn directories(&self) -> Vec<PathBuf> {
        directories_of(&self.workspace())
    }

    /// Runs these commands of the user's side by side; each must end well.
    pub fn run_together(&self, commands: &[Command]) -> Result<()> {
        let running: Result<Vec<Running>> =
            commands.iter().map(|command| Running::start(&self.account, command)).collect();
        for one in running? {
            let output = one.finish()?;
            ensure!(output.ended == Ended::Code(0), "{:?}: {}", output.ended, output.text());
        }
        Ok(())
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("rm").arg("-rf").arg("--").arg(&self.top).status();
    }
}

/// A directory and every one beneath it, links not followed.
pub fn directories_of(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_owned()];
    let mut at = 0;
    while let Some(directory) = found.get(at).cloned() {
        at += 1;
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        found.extend(entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()));
    }
    found
}

fn base() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        open_directory(Path::new(ROOT_BASE))?;
        return Ok(ROOT_BASE.into());
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).context("HOME is not set")?;
    let base = home.join(".cache/stockade-test");
    fs::create_dir_all(&base)?;
    Ok(base)
}

fn open_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    stockade_testkit::copy_program(from, to)
}

/// The program under test: `STOCKADE_BIN`, or built here and now.
fn engine() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("STOCKADE_BIN") {
        return Ok(path.into());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    if let Some(cargo) = std::env::var_os("CARGO") {
        let status = std::process::Command::new(cargo)
            .args(["build", "-q", "-p", "stockade-cli"])
            .current_dir(&root)
            .status()?;
        ensure!(status.success(), "building the program under test failed");
    }
    // target/debug/deps/names-HASH
    let own = std::env::current_exe()?;
    let profile = own.ancestors().nth(2).context("no target directory")?.join("stockade");
    ensure!(profile.exists(), "no program under test\nhint: set STOCKADE_BIN to it");
    Ok(profile)
}

fn compile(name: &str, target: &Path) -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("names").join(format!("{name}.c"));
    let output = std::process::Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-static", "-o"])
        .arg(target)
        .arg(&source)
        .output()
        .context("starting cc\nhint: the helpers need a C compiler")?;
    ensure!(output.status.success(), "compiling {}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    Ok(())
}
