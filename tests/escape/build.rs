//! Makes the room the suite runs in: the program under test, the compiled
//! probes, and a copy of the suite itself, where every account can reach them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::harness_is_root;
use crate::world::open_directory;

/// Where a root harness keeps its rooms: not in `/tmp`, which a sandbox
/// replaces by its own.
const ROOT_BASE: &str = "/var/lib/stockade-test";

/// A room, removed at the end.
pub struct Session {
    directory: PathBuf,
}

impl Session {
    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = Command::new("rm").arg("-rf").arg("--").arg(&self.directory).status();
    }
}

/// Makes a room; with the program under test if `with_engine`.
pub fn session(with_engine: bool) -> Result<Session> {
    let directory = base()?.join(format!("session-{}", std::process::id()));
    open_directory(&directory)?;
    let session = Session { directory };
    open_directory(&session.path().join("probes"))?;
    open_directory(&session.path().join("labs"))?;
    compile_probes(&session.path().join("probes"))?;
    copy(&std::env::current_exe()?, &session.path().join("suite"))?;
    if with_engine {
        copy(&engine()?, &session.path().join("stockade"))?;
    }
    Ok(session)
}

fn base() -> Result<PathBuf> {
    if harness_is_root() {
        let base = PathBuf::from(ROOT_BASE);
        open_directory(&base)?;
        return Ok(base);
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).context("HOME is not set")?;
    let base = home.join(".cache/stockade-test");
    fs::create_dir_all(&base).with_context(|| format!("making {}", base.display()))?;
    Ok(base)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// The program under test: `STOCKADE_BIN`, or built here and now.
fn engine() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("STOCKADE_BIN") {
        return Ok(path.into());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    if let Some(cargo) = std::env::var_os("CARGO") {
        let status = Command::new(cargo).args(["build", "-q", "-p", "stockade-cli"]).current_dir(&root).status()?;
        ensure!(status.success(), "building the program under test failed");
    }
    // target/debug/deps/escape-HASH
    let own = std::env::current_exe()?;
    let profile = own.ancestors().nth(2).context("no target directory")?;
    let beside = [profile.to_owned(), root.join("target/debug"), root.join("target/release")];
    match beside.iter().map(|d| d.join("stockade")).find(|p| p.exists()) {
        Some(path) => Ok(path),
        None => bail!("no program under test\nhint: set STOCKADE_BIN to it"),
    }
}

fn compile_probes(directory: &Path) -> Result<()> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("probes");
    for entry in fs::read_dir(&sources).with_context(|| format!("reading {}", sources.display()))? {
        let source = entry?.path();
        if source.extension().is_some_and(|e| e == "py") {
            copy(&source, &directory.join(source.file_name().context("a probe without a name")?))?;
        }
        let (Some(stem), Some("c")) = (source.file_stem(), source.extension().and_then(|e| e.to_str())) else {
            continue;
        };
        let name = stem.to_string_lossy().into_owned();
        let (flags, name): (&[&str], String) = match name.as_str() {
            "inner" => (&["-static"], name),
            "race-open" => (&["-pthread"], name),
            "preload" => (&["-shared", "-fPIC"], "preload.so".to_owned()),
            _ => (&[], name),
        };
        let target = directory.join(name);
        let output = Command::new("cc")
            .args(["-O1", "-Wall", "-Wextra"])
            .args(flags)
            .arg("-o")
            .arg(&target)
            .arg(&source)
            .output();
        let output = output.context("starting cc\nhint: the probes need a C compiler")?;
        ensure!(output.status.success(), "compiling {}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
        fs::set_permissions(&target, fs::Permissions::from_mode(0o755))?;
    }
    if harness_is_root() {
        fs::set_permissions(directory.join("suid-id"), fs::Permissions::from_mode(0o4755))?;
    }
    Ok(())
}
