//! Files of an artifact: written as a tree with fixed modes and times, from which tar(1) and
//! dpkg-deb(1) make archives.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};

use super::output_of;

/// One file of an artifact.
pub struct PackedFile {
    /// Path relative to the top of the artifact.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// The bytes of the file.
    pub content: Vec<u8>,
}

impl PackedFile {
    /// Returns a file that everyone may read.
    pub fn data(path: &str, content: &[u8]) -> Self {
        Self { path: path.to_owned(), mode: 0o644, content: content.to_vec() }
    }

    /// Returns a file that everyone may read and execute.
    pub fn program(path: &str, content: &[u8]) -> Self {
        Self { path: path.to_owned(), mode: 0o755, content: content.to_vec() }
    }
}

/// Writes the files beneath a directory, which may exist.
pub fn write_tree(files: &[PackedFile], top: &Path) -> Result<()> {
    for file in files {
        let path = top.join(&file.path);
        fs::create_dir_all(path.parent().context("a file has a parent")?)?;
        fs::write(&path, &file.content).with_context(|| format!("cannot write {}", path.display()))?;
        fs::set_permissions(&path, Permissions::from_mode(file.mode))?;
    }
    Ok(())
}

/// Gives every file and directory of a tree the same time, and directories the usual mode, whatever
/// the umask is.
pub fn normalize_tree(top: &Path, epoch: u64) -> Result<()> {
    if top.is_dir() {
        for entry in fs::read_dir(top)? {
            normalize_tree(&entry?.path(), epoch)?;
        }
        fs::set_permissions(top, Permissions::from_mode(0o755))?;
    }
    File::open(top)?.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(epoch))?;
    Ok(())
}

/// Writes a compressed tar archive, in which all files are beneath `base`.
pub fn write_archive(files: &[PackedFile], base: &str, epoch: u64, archive: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let top = directory.path().join(base);
    write_tree(files, &top)?;
    normalize_tree(&top, epoch)?;
    let mut tar = Command::new("tar");
    tar.env("LC_ALL", "C").args(["--create", "--format=gnu", "--sort=name", "--owner=root:0", "--group=root:0"]);
    tar.args(["--use-compress-program=gzip -9n", "--file"]).arg(archive).arg("--directory").arg(directory.path());
    output_of(tar.arg(base))?;
    Ok(())
}

/// Compresses a file as gzip(1) does it without name and time.
pub fn compress(content: &[u8]) -> Result<Vec<u8>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("file");
    fs::write(&path, content)?;
    output_of(Command::new("gzip").arg("-9n").arg(&path))?;
    Ok(fs::read(directory.path().join("file.gz"))?)
}
