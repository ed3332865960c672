//! The container engine of a run of the suite, and the image with this machine's own tools. It
//! must not know what is run in its containers.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use stockade_testkit::{Engine, EngineKind, User};
use tempfile::TempDir;

use crate::world::{LENT, SETTINGS, sysroot};

/// What tools need of the machine, and what nobody reads.
const SYSTEM: &[&str] = &["usr", "etc", "bin", "sbin", "lib", "lib64", "opt"];
const LEFT_OUT: &[&str] = &[
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/src",
    "etc/shadow*",
    "etc/gshadow*",
    "etc/ssh/*key*",
    "etc/ssl/private",
    "etc/stockade",
    "etc/passwd*",
    "etc/group*",
    "etc/gitconfig",
];
/// What the image has of its own.
const OWN_FILES: &[&str] = &["etc/passwd", "etc/group", "etc/gitconfig"];
const OWN_DIRECTORIES: &[&str] = &["tmp", "proc", "sys", "dev", "run", "var", "root", "home", "workspace"];
/// Where the image has the Rust toolchain.
const TOOLCHAIN: &str = "rust";

/// An engine that everybody may use, ended with its value.
pub struct Desk {
    /// How it is addressed.
    pub address: String,
    /// The image, by its content.
    pub image: String,
    /// Where programs of the Rust toolchain lie in it.
    pub toolchain: String,
    // First: it ends before its place does.
    _engine: Engine,
    _place: TempDir,
    _lent: Lent,
}

/// The directory at which the host's part of a workflow sees what is lent.
struct Lent {
    is_ours: bool,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = fs::remove_dir(LENT);
        }
    }
}

impl Desk {
    /// Starts it, with an image of this machine's own programs.
    ///
    /// # Errors
    /// Where it is not installed or the image cannot be made.
    pub fn open() -> Result<Self> {
        ensure!(User::available().contains(&User::Root), "an engine of the suite's own needs root");
        let lent = Lent { is_ours: fs::create_dir(LENT).is_ok() };
        let place = tempfile::Builder::new().prefix("stockade-engine-").tempdir_in("/srv")?;
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755))?;
        let engine = Engine::start(EngineKind::Docker, &place.path().join("engine"))?;
        fs::set_permissions(place.path().join("engine"), fs::Permissions::from_mode(0o755))?;
        fs::set_permissions(engine.socket(), fs::Permissions::from_mode(0o666))?;
        let image = import(&engine, place.path())?;
        Ok(Self {
            address: format!("unix://{}", engine.socket().display()),
            image,
            toolchain: format!("/{TOOLCHAIN}/bin"),
            _engine: engine,
            _place: place,
            _lent: lent,
        })
    }
}

/// Gives an engine the image, and its digest.
fn import(engine: &Engine, place: &Path) -> Result<String> {
    let made = own_files(place)?;
    let sysroot = sysroot()?;
    let mut pack = Command::new("tar");
    pack.args(["--create", "--one-file-system", "--hard-dereference", "--file=-"]);
    pack.args(LEFT_OUT.iter().map(|path| format!("--exclude={path}")));
    pack.args(["--exclude=share/doc", "--directory=/"])
        .args(SYSTEM.iter().filter(|name| Path::new("/").join(name).exists()));
    // Nothing twice: an archive of an image has each path once.
    pack.arg("--directory").arg(&made).args(OWN_FILES).args(OWN_DIRECTORIES);
    let name = sysroot.strip_prefix("/").context("a toolchain has an absolute path")?.display().to_string();
    pack.args([
        &format!("--transform=s,^{name},{TOOLCHAIN},S"),
        "--directory=/",
        &format!("{name}/bin"),
        &format!("{name}/lib"),
    ]);
    let mut packing = pack.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("starting tar")?;
    let archive = packing.stdout.take().context("it prints the archive")?;
    let words = engine.client();
    let (program, first) = words.split_first().context("a client has a name")?;
    let output = Command::new(program).args(first).args(["import", "-"]).stdin(archive).output()?;
    packing.wait()?;
    ensure!(output.status.success(), "no image: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// What the image has of its own: its users, what everybody has who works with git, and the
/// places of a sandbox.
fn own_files(place: &Path) -> Result<PathBuf> {
    let root = place.join("root");
    for directory in OWN_DIRECTORIES.iter().chain(&["etc", "var/tmp", "home/agent"]) {
        fs::create_dir_all(root.join(directory))?;
    }
    let users = "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/bash\n";
    fs::write(root.join("etc/passwd"), users)?;
    fs::write(root.join("etc/group"), "root:x:0:\nagent:x:1000:\n")?;
    fs::write(root.join("etc/gitconfig"), SETTINGS)?;
    Ok(root)
}
