//! The oracle: asks the real tools, outside of every sandbox, what they would run or
//! obey. An answer that leads to what an attack wrote is a plant.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use anyhow::{Context as _, Result};
use stockade_model::DEFAULT_PROTECTED_NAMES;
use stockade_testkit::{ProgramEnd, ProgramOutput, TestCommand, UserAccount, run_as};

use crate::scene::{MARK, Scene};

/// Longest part of a file that is looked at.
const LOOKED_AT_BYTES: u64 = 1 << 16;
/// Deepest directories that are looked at beneath a guarded name.
const GUARDED_DEPTH: u32 = 3;

/// A tool that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// git, with every command that obeys settings.
    Git,
    /// git as it reads the settings of a home, taking each directory for one.
    GitHome,
    /// git's attributes.
    Attributes,
    /// cargo.
    Cargo,
    /// npm.
    Npm,
    /// Any program that opens a guarded name.
    Reader,
    /// A command line of the person, in the workspace.
    Person(&'static str),
    /// Whether this name is there at all, in the workspace.
    There(&'static str),
}

/// How thoroughly the tools are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// By what they say of their settings.
    Settings,
    /// By letting them run as well.
    Run,
}

/// The oracle of a scene.
pub struct Oracle<'a> {
    scene: &'a Scene<'a>,
    depth: Depth,
}

impl<'a> Oracle<'a> {
    /// One for this scene.
    pub fn new(scene: &'a Scene<'a>, depth: Depth) -> Self {
        Self { scene, depth }
    }

    /// Everything planted that the tools find from these directories.
    pub fn ask(&self, directories: &[PathBuf], tools: &[Tool]) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for tool in tools {
            for directory in directories.iter().filter(|directory| self.is_asked(*tool, directory)) {
                found.extend(self.ask_one(*tool, directory)?);
            }
            if fs::metadata(self.scene.canary()).is_ok() {
                found.push(format!("{tool:?} ran what was planted"));
                fs::remove_file(self.scene.canary())?;
            }
        }
        Ok(found)
    }

    /// Whether the tool could find anything here that it does not find further up:
    /// each looks for these names and no other, in a directory and those above it.
    fn is_asked(&self, tool: Tool, directory: &Path) -> bool {
        let has = |name: &str| fs::symlink_metadata(directory.join(name)).is_ok();
        let finds = match tool {
            Tool::Git | Tool::Attributes => has("HEAD") || has(".git"),
            Tool::Cargo => has(".cargo"),
            Tool::Npm => has(".npmrc"),
            Tool::GitHome | Tool::Reader | Tool::There(_) => true,
            Tool::Person(_) => false,
        };
        finds || directory == self.scene.workspace()
    }

    fn ask_one(&self, tool: Tool, directory: &Path) -> Result<Vec<String>> {
        match tool {
            Tool::Git => self.ask_git(directory),
            Tool::GitHome => self.ask_git_home(directory),
            Tool::Attributes => self.ask_attributes(directory),
            Tool::Cargo => self.ask_cargo(directory),
            Tool::Npm => self.ask_npm(directory),
            Tool::Reader => Ok(read_guarded(directory)),
            Tool::There(name) if directory == self.scene.workspace() => {
                let path = directory.join(name);
                Ok(fs::symlink_metadata(&path)
                    .is_ok()
                    .then(|| format!("{} is there", path.display()))
                    .into_iter()
                    .collect())
            }
            Tool::There(_) => Ok(Vec::new()),
            Tool::Person(text) if self.depth == Depth::Run => {
                run_as(&self.scene.account, &self.scene.command("/bin/bash").args(["-c", text]))?;
                Ok(Vec::new())
            }
            Tool::Person(_) => Ok(Vec::new()),
        }
    }

    fn git(&self, directory: &Path, arguments: &[&str]) -> Result<ProgramOutput> {
        let mut command = self.scene.command("git").args(arguments).env("GIT_CONFIG_NOSYSTEM", "1");
        command.cwd = directory.to_owned();
        run_as(&self.scene.account, &command.timeout(Duration::from_secs(10)))
    }

    fn ask_git(&self, directory: &Path) -> Result<Vec<String>> {
        let paths = self.git(directory, &["rev-parse", "--git-path", "hooks"])?;
        if self.depth == Depth::Settings && paths.stderr.contains("not a git repository") {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        if let Some(hooks) = paths.stdout.lines().next().filter(|_| paths.ended == ProgramEnd::Code(0)) {
            found.extend(planted_hooks(&directory.join(hooks)));
        }
        let settings = self.git(directory, &["config", "--list", "--show-origin"])?;
        found.extend(marked_lines(&settings, "git in", directory));
        if settings.stderr.contains("bad config") {
            found.push(format!("git in {} reads what it cannot: {}", directory.display(), settings.stderr.trim()));
        }
        if self.depth == Depth::Run {
            for arguments in [
                &["status"][..],
                &["diff"],
                &["ls-remote", "planted"],
                &["hook", "run", "--ignore-missing", "pre-commit"],
                &["hook", "run", "--ignore-missing", "post-index-change", "--", "1", "0"],
            ] {
                self.git(directory, arguments)?;
            }
        }
        Ok(found)
    }

    fn ask_git_home(&self, directory: &Path) -> Result<Vec<String>> {
        let mut command =
            self.scene.command("git").args(["config", "--list", "--show-origin"]).env("GIT_CONFIG_NOSYSTEM", "1");
        command = command.env("HOME", directory);
        command.cwd = self.scene.path("home");
        let output = run_as(&self.scene.account, &command.timeout(Duration::from_secs(10)))?;
        Ok(marked_lines(&output, "git at home in", directory))
    }

    fn ask_attributes(&self, directory: &Path) -> Result<Vec<String>> {
        let output = self.git(directory, &["check-attr", MARK, "--", "file"])?;
        let is_set = output.stdout.trim_end().ends_with(": set");
        Ok(is_set.then(|| format!("git in {} takes a planted attribute", directory.display())).into_iter().collect())
    }

    /// cargo is asked by the harness: the ordinary user may not have one.
    fn cargo(&self, directory: &Path, arguments: &[&str]) -> Result<ProgramOutput> {
        let target = self.scene.path("out/target");
        let command = TestCommand::new(cargo()?, directory)
            .args(arguments)
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.scene.path("home"))
            .env("CARGO_HOME", self.scene.path("home/.cargo"))
            .env("CARGO_TARGET_DIR", target)
            .env("RUSTC", cargo()?.with_file_name("rustc"))
            .env("RUSTC_BOOTSTRAP", "1")
            .timeout(Duration::from_secs(30));
        let user = *stockade_testkit::TestUser::available_users().first().context("no user")?;
        run_as(&UserAccount::for_user(user)?, &command)
    }

    fn ask_cargo(&self, directory: &Path) -> Result<Vec<String>> {
        let settings = self.cargo(directory, &["-Zunstable-options", "config", "get", "--show-origin"])?;
        let mut found = marked_lines(&settings, "cargo in", directory);
        if settings.ended != ProgramEnd::Code(0) && settings.stderr.contains(&*self.scene.workspace().to_string_lossy())
        {
            let error = settings.stderr.lines().next().unwrap_or_default();
            found.push(format!("cargo in {} reads what it cannot: {error}", directory.display()));
        }
        if self.depth == Depth::Run {
            let manifest = self.scene.session.path("crate/Cargo.toml").display().to_string();
            self.cargo(directory, &["check", "--offline", "--manifest-path", &manifest])?;
        }
        Ok(found)
    }

    fn ask_npm(&self, directory: &Path) -> Result<Vec<String>> {
        let mut command = self.scene.command("npm").args(["config", "get", "stockade"]);
        command.cwd = directory.to_owned();
        let output = run_as(&self.scene.account, &command)?;
        Ok(marked_lines(&output, "npm in", directory))
    }
}

fn marked_lines(output: &ProgramOutput, tool: &str, directory: &Path) -> Vec<String> {
    let marked = output.stdout.lines().filter(|line| line.contains(MARK));
    marked.map(|line| format!("{tool} {}: {}", directory.display(), line.replace('\t', " "))).collect()
}

/// The hooks in a directory that hold what was planted. Git runs nothing that is called
/// `.sample` (githooks(5)).
fn planted_hooks(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_planted = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
            && path.extension().is_none_or(|end| end != "sample")
            && is_marked(path)
    };
    entries.map(|e| e.path()).filter(is_planted).map(|path| format!("git would run {}", path.display())).collect()
}

/// What a program that opens a guarded name in this directory would read.
fn read_guarded(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    // Of `.git` the parts count that are guarded themselves, and what git says.
    for name in DEFAULT_PROTECTED_NAMES.iter().filter(|name| **name != ".git") {
        look_at(&directory.join(name), GUARDED_DEPTH, &mut found);
    }
    found
}

fn look_at(path: &Path, depth: u32, found: &mut Vec<String>) {
    let Ok(metadata) = fs::metadata(path) else { return };
    let kind = metadata.file_type();
    if kind.is_dir() && depth > 0 {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.for_each(|entry| look_at(&entry.path(), depth - 1, found));
    } else if kind.is_fifo() || kind.is_socket() {
        found.push(format!("{} is no file", path.display()));
    } else if kind.is_file() && !is_replacement_file(path) && is_marked(path) {
        found.push(format!("{} would be read", path.display()));
    }
}

/// Whether it is called as a file that will take the place of one in `.vscode`, which no editor
/// reads: the names there are fixed.
fn is_replacement_file(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_temporary = name.len() == 9 && name.starts_with("sed") || name.contains(".json.tmp.");
    is_temporary && path.parent().is_some_and(|above| above.ends_with(".vscode"))
}

fn is_marked(path: &Path) -> bool {
    let mut text = Vec::new();
    // A name may lead to a pipe by now: nobody would end the wait for it.
    let opened =
        fs::OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed()).open(path);
    let Ok(file) = opened else { return false };
    let _ = file.take(LOOKED_AT_BYTES).read_to_end(&mut text);
    text.windows(MARK.len()).any(|part| part == MARK.as_bytes())
}

/// The toolchain's own cargo, not the one that chooses a toolchain.
fn cargo() -> Result<PathBuf> {
    static FOUND: std::sync::OnceLock<Option<PathBuf>> = std::sync::OnceLock::new();
    let find = || {
        let output = process::Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
        Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim_end()).join("bin/cargo"))
    };
    FOUND.get_or_init(find).clone().context("no cargo")
}
