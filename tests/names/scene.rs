//! A scratch place for one attack: a workspace, a home, and the tools that run a
//! script in it, sandboxed or not.

use std::fmt;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use stockade_testkit::{ProgramEnd, ProgramOutput, RunningProgram, TestCommand, TestUser, UserAccount, run_as};
use stockade_tests::Level;

/// Programs of the attacks.
const HELPERS: [&str; 3] = ["acts", "play", "race"];
/// First line of every attack: it really ran.
pub const BEGIN: &str = "ATTACK-BEGIN";
/// In everything that an attack plants.
pub const MARK: &str = "STOCKADE-PLANTED";
/// Where a root harness keeps its scenes: not in `/tmp`, which a sandbox replaces.
const ROOT_BASE: &str = "/var/lib/stockade-test";
/// Where a persistent sandbox has its workspace.
const KEPT_WORKSPACE: &str = "/workspace";
/// Where in a bound workspace the helpers are, which such a sandbox sees nowhere else.
const KEPT_HELPERS: &str = "helpers";
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
wait_for_go() { : >$W/go.ready; for n in $(seq 1000); do [ -e $W/go ] && break; sleep 0.02; done; }
from_user_home() { printf '~%s/%s' "$(id -un)" "$(realpath --relative-to="$(getent passwd "$(id -un)" | cut -d: -f6)" "$W")"; }
head_file() { echo 'ref: refs/heads/main'; }
"#;

/// What an attack is made behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsolationKind {
    /// Nothing: the control.
    None,
    /// A run in the workspace.
    Run(Level),
    /// A command in a persistent sandbox to which the workspace is bound. It has all
    /// namespaces: there are none with less.
    Kept,
}

impl IsolationKind {
    /// Whether it is a control.
    pub fn is_control(self) -> bool {
        self == Self::None
    }

    fn level(self) -> Option<Level> {
        match self {
            Self::None => None,
            Self::Run(level) => Some(level),
            Self::Kept => Some(Level::Full),
        }
    }

    /// What the workspace of this scene is called in this isolation.
    pub fn workspace(self, scene: &Scene<'_>) -> PathBuf {
        if self == Self::Kept { KEPT_WORKSPACE.into() } else { scene.workspace() }
    }

    /// What a helper is called behind them.
    pub fn helper(self, scene: &Scene<'_>, name: &str) -> PathBuf {
        if self == Self::Kept {
            Path::new(KEPT_WORKSPACE).join(KEPT_HELPERS).join(name)
        } else {
            scene.session.path(name)
        }
    }
}

impl fmt::Display for IsolationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "control",
            Self::Run(level) => level.word(),
            Self::Kept => "kept",
        })
    }
}

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
        for helper in HELPERS {
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
    pub account: UserAccount,
    /// What the attack is made behind.
    pub isolation: IsolationKind,
    top: PathBuf,
    /// The persistent sandbox.
    sandbox_id: Option<String>,
}

static SCENES: AtomicU32 = AtomicU32::new(0);

impl<'a> Scene<'a> {
    /// A new scene of this user.
    pub fn new(session: &'a Session, user: TestUser, isolation: IsolationKind) -> Result<Self> {
        let top = session.path(&format!("scene-{}", SCENES.fetch_add(1, Ordering::SeqCst)));
        let scene = Self { session, account: UserAccount::for_user(user)?, isolation, top, sandbox_id: None };
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
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> TestCommand {
        TestCommand::new(program, self.workspace())
            .env("PATH", PATH)
            .env("HOME", self.path("home"))
            .env("USER", "lab")
            .env("LANG", "C.UTF-8")
            .env("XDG_STATE_HOME", self.path("state"))
            .timeout(Duration::from_secs(60))
    }

    /// Makes the persistent sandbox, if it is one.
    pub fn open(&mut self) -> Result<()> {
        if self.isolation != IsolationKind::Kept {
            return Ok(());
        }
        let helpers = self.workspace().join(KEPT_HELPERS);
        open_directory(&helpers)?;
        for helper in HELPERS {
            copy(&self.session.path(helper), &helpers.join(helper))?;
        }
        let create = self
            .command(self.session.path("stockade"))
            .args(["sandbox", "create", "--profile", "workspace", "--bind"])
            .arg(self.workspace());
        let output = run_as(&self.account, &create)?;
        ensure!(output.ended == ProgramEnd::Code(0), "sandbox create: {}", output.combined_text());
        self.sandbox_id = Some(output.stdout.trim_end().to_owned());
        Ok(())
    }

    /// Text of a script.
    fn text(&self, text: &str, workspace: &Path) -> String {
        format!(
            "W={}\nC={}\nACTS={}\n{PRELUDE}\necho {BEGIN}\n{text}\n",
            workspace.display(),
            self.path("probe/canary.sh").display(),
            self.isolation.helper(self, "acts").display()
        )
    }

    /// Runs a script of the person's own, which must succeed.
    pub fn prepare(&self, text: &str) -> Result<()> {
        let script = self.path("probe/prepare.sh");
        fs::write(&script, self.text(&format!("set -e\n{text}"), &self.workspace()))?;
        let output = run_as(&self.account, &self.command("/bin/bash").arg(script))?;
        ensure!(output.ended == ProgramEnd::Code(0), "preparing: {}", output.combined_text());
        Ok(())
    }

    /// The command that runs `argv` in this isolation.
    pub fn behind(
        &self,
        isolation: IsolationKind,
        tag: &str,
        workspace: &str,
        options: &[&str],
        argv: &[&Path],
    ) -> TestCommand {
        let workspace = self.workspace().join(workspace);
        let json = format!("--json={}", self.path("state").join(format!("{tag}.json")).display());
        let stockade = || self.command(self.session.path("stockade"));
        let command = match isolation {
            IsolationKind::None => {
                let (program, rest) = argv.split_first().expect("a program");
                self.command(program).args(rest)
            }
            IsolationKind::Run(level) => stockade()
                .args(["run", "--profile", "workspace", "--level", level.word(), "--mode", "never", "--workspace"])
                .arg(&workspace)
                .arg(json)
                .args(options)
                .arg("--")
                .args(argv),
            IsolationKind::Kept => stockade()
                .args(["sandbox", "exec", "--mode", "never"])
                .arg(json)
                .args(options)
                .arg(self.sandbox_id.as_deref().unwrap_or_default())
                .arg("--")
                .args(argv),
        };
        TestCommand { cwd: workspace, ..command }
    }

    /// The command of an attack.
    pub fn attack(&self, tag: &str, workspace: &str, options: &[&str], text: &str) -> Result<TestCommand> {
        let inside = self.isolation.workspace(self);
        let text = self.text(text, &inside);
        let name = format!("{tag}.sh");
        let (written, named) = match self.isolation {
            IsolationKind::Kept => {
                (self.workspace().join(KEPT_HELPERS).join(&name), inside.join(KEPT_HELPERS).join(&name))
            }
            _ => (self.path("probe").join(&name), self.path("probe").join(&name)),
        };
        fs::write(written, text)?;
        Ok(self.behind(self.isolation, tag, workspace, options, &[Path::new("/bin/bash"), &named]))
    }

    /// Refuses an attack that did not run at its level.
    pub fn require_ran(&self, tag: &str, output: &ProgramOutput) -> Result<()> {
        let tail: Vec<&str> = output.stderr.trim_end().lines().rev().take(4).collect();
        if !output.stdout.contains(BEGIN) {
            bail!("the attack did not start ({:?}): {}", output.ended, tail.join(" | "));
        }
        let Some(level) = self.isolation.level() else { return Ok(()) };
        let outcome = fs::read(self.path("state").join(format!("{tag}.json"))).context("no outcome was written")?;
        let outcome: serde_json::Value = serde_json::from_slice(&outcome)?;
        let enforced = outcome["attempts"].as_array().and_then(|a| a.last()).map(|a| a["enforced"]["level"].clone());
        ensure!(enforced.as_ref().and_then(|l| l.as_str()) == Some(level.word()), "ran at level {enforced:?}");
        ensure!(output.ended != ProgramEnd::TimedOut, "the attack took too long: {}", tail.join(" | "));
        Ok(())
    }

    /// Every directory of the tree, links not followed.
    pub fn directories(&self) -> Vec<PathBuf> {
        directories_of(&self.workspace())
    }

    /// Runs these commands of the user's side by side; each must end well.
    pub fn run_together(&self, commands: &[TestCommand]) -> Result<()> {
        let running: Result<Vec<RunningProgram>> =
            commands.iter().map(|command| RunningProgram::start(&self.account, command)).collect();
        for one in running? {
            let output = one.wait_for_end()?;
            ensure!(output.ended == ProgramEnd::Code(0), "{:?}: {}", output.ended, output.combined_text());
        }
        Ok(())
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        if let Some(sandbox_id) = &self.sandbox_id {
            let destroy = self.command(self.session.path("stockade")).args(["sandbox", "destroy", sandbox_id]);
            let _ = run_as(&self.account, &destroy);
        }
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
