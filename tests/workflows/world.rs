//! A scratch home and a workspace, and what runs in them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use stockade_testkit::{ProgramOutput, TestCommand, TestUser, UserAccount, run_as};
use stockade_tests::Level;
use tempfile::TempDir;

use crate::way::Peer;

const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
/// What everybody has who works with these tools.
const SETTINGS: &str = "[user]\n\tname = Dev\n\temail = dev@example.invalid\n[init]\n\tdefaultBranch = main\n";

/// Where the workspace lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkspaceParent {
    /// Below the home; root's below `/root`.
    Home,
    /// In `/tmp`.
    Temporary,
    /// In `/srv`.
    Served,
}

impl WorkspaceParent {
    pub fn word(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::Temporary => "tmp",
            Self::Served => "srv",
        }
    }
}

/// One user's scratch world. Everything in it belongs to that user.
pub struct World {
    account: UserAccount,
    home: TempDir,
    /// Of a workspace that is not below the home.
    outside_dir: Option<TempDir>,
    /// Where the Rust toolchain is shown to a user who may not reach where it lies.
    toolchain: PathBuf,
}

impl World {
    pub fn new(user: TestUser, place: WorkspaceParent) -> Result<Self> {
        let account = UserAccount::for_user(user)?;
        let is_own = user == TestUser::available_users()[0];
        let base =
            if is_own { PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?) } else { "/home".into() };
        let home = directory(&account, &base)?;
        let outside_dir = match place {
            WorkspaceParent::Home => None,
            WorkspaceParent::Temporary => Some(directory(&account, Path::new("/tmp"))?),
            WorkspaceParent::Served => Some(directory(&account, Path::new("/srv"))?),
        };
        let toolchain = home.path().join(".toolchain");
        let world = Self { account, home, outside_dir, toolchain };
        for made in [world.workspace(), world.toolchain.clone()] {
            fs::create_dir(&made)?;
            world.own(&made)?;
        }
        fs::write(world.home.path().join(".gitconfig"), SETTINGS)?;
        world.own(&world.home.path().join(".gitconfig"))?;
        Ok(world)
    }

    fn own(&self, path: &Path) -> Result<()> {
        Ok(chown(path, Some(self.account.uid), Some(self.account.gid))?)
    }

    /// The directory of the workspace and of what lies beside it.
    pub fn around(&self) -> &Path {
        self.outside_dir.as_ref().unwrap_or(&self.home).path()
    }

    /// The project.
    pub fn workspace(&self) -> PathBuf {
        self.around().join("project")
    }

    /// The home of whoever works here.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Whether a program is there.
    pub fn has(&self, program: &str) -> bool {
        let in_toolchain = ["cargo", "rustc"].contains(&program);
        in_toolchain || PATH.split(':').any(|directory| Path::new(directory).join(program).exists())
    }

    /// Runs a script in the workspace without a sandbox.
    pub fn bare(&self, script: &str) -> Result<ProgramOutput> {
        self.bare_at(self.home(), script)
    }

    /// The same with another home.
    pub fn bare_at(&self, home: &Path, script: &str) -> Result<ProgramOutput> {
        self.run(self.command(["sh", "-c", script])?.env("HOME", home))
    }

    /// Runs a script in the sandbox; the outcome is the standard output. Nobody is there to be
    /// asked.
    pub fn stockade(&self, level: Level, options: &[String], script: &str) -> Result<ProgramOutput> {
        let options: Vec<&str> = ["--json"].into_iter().chain(options.iter().map(String::as_str)).collect();
        self.sandboxed(level, &options, script)
    }

    /// The same, told in words.
    pub fn stockade_for_people(&self, level: Level, script: &str) -> Result<ProgramOutput> {
        self.sandboxed(level, &[], script)
    }

    /// Runs a script in a neighbour's sandbox.
    pub fn peer(&self, peer: Peer, script: &str) -> Result<ProgramOutput> {
        let words = peer.command(&self.workspace(), script)?;
        self.run(self.command(words.iter().map(String::as_str))?)
    }

    fn sandboxed(&self, level: Level, options: &[&str], script: &str) -> Result<ProgramOutput> {
        let begin = ["run", "--level", level.word()];
        self.stockade_with(&[], &[&begin, options, &["--", "sh", "-c", script]].concat())
    }

    /// Runs the program under test, with these variables besides.
    pub fn stockade_with(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Result<ProgramOutput> {
        let program = std::env::var("STOCKADE_BIN").context("STOCKADE_BIN names the binary under test")?;
        let command = self.command([program.as_str()].into_iter().chain(arguments.iter().copied()))?;
        self.run(variables.iter().fold(command, |command, (name, value)| command.env(name, value)))
    }

    fn command<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Result<TestCommand> {
        let sysroot = sysroot()?;
        let is_reached = self.account.user == TestUser::available_users()[0];
        let toolchain = if is_reached { sysroot.as_path() } else { &self.toolchain };
        let mut command = TestCommand::new("/usr/bin/env", self.workspace())
            .args(words)
            .env("PATH", format!("{}/bin:{PATH}", toolchain.display()))
            .env("HOME", self.home.path())
            .env("LANG", "C.UTF-8")
            .timeout(Duration::from_secs(240));
        if !is_reached {
            let (uid, gid, place) = (self.account.uid, self.account.gid, toolchain.display());
            let show = format!(
                "mount --bind {} {place} && exec setpriv --reuid {uid} --regid {gid} --clear-groups -- \"$@\"",
                sysroot.display()
            );
            command = command.with_prefix(["unshare", "--mount", "--propagation", "private", "sh", "-c", &show, "sh"]);
        }
        Ok(command)
    }

    fn run(&self, command: TestCommand) -> Result<ProgramOutput> {
        let is_shown = command.argv.first().is_some_and(|program| program == "unshare");
        // Who mounts has to be root; the command has given that up before it begins.
        let account = if is_shown { UserAccount::for_user(TestUser::Root)? } else { self.account.clone() };
        run_as(&account, &command)
    }
}

/// Where the Rust toolchain lies.
pub fn sysroot() -> Result<PathBuf> {
    let rustc_output = Program::new("rustc").args(["--print", "sysroot"]).output().context("starting rustc")?;
    ensure!(rustc_output.status.success(), "rustc does not tell where it lies");
    Ok(String::from_utf8(rustc_output.stdout)?.trim().into())
}

fn directory(account: &UserAccount, base: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("stockade-work-").tempdir_in(base)?;
    fs::set_permissions(made.path(), fs::Permissions::from_mode(0o755))?;
    chown(made.path(), Some(account.uid), Some(account.gid))?;
    Ok(made)
}
