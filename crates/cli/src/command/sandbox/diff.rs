//! The changes of a command in a clone: written by git inside, to a file outside.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::stdio::{dup2_stdout, stdout};
use stockade_lifecycle::{Lifecycle, diff_commands, head_command};
use stockade_model::{GitRevision, RawText, SandboxId};

use super::exec;
use crate::failure::{CliError, quote_path};

/// Longest name of a commit with a line feed, in bytes.
const MAX_COMMIT_NAME_BYTES: u64 = 65;

/// File for the difference, and the base commit.
pub struct SandboxDiff {
    path: PathBuf,
    file: File,
    base: GitRevision,
}

impl SandboxDiff {
    /// Takes the current commit as the base, and creates the file.
    ///
    /// # Errors
    /// [`CliError`] if the file cannot be created, or if git fails.
    pub fn start_diff(lifecycle: &Lifecycle, id: &SandboxId, path: &Path) -> Result<Self, CliError> {
        let cannot = |what: &str, why: &dyn std::fmt::Display| CliError::new(format!("cannot {what}: {why}"));
        let file = File::create(path).map_err(|e| cannot(&format!("write {}", quote_path(path)), &e))?;
        let name = memfd_create("stockade-head", MemfdFlags::CLOEXEC).map_err(|e| cannot("make a file", &e))?;
        run_git_with_output(name.as_fd(), lifecycle, id, [head_command()])?;
        let (mut name, mut text) = (File::from(name), String::new());
        let read = name.rewind().and_then(|()| name.take(MAX_COMMIT_NAME_BYTES).read_to_string(&mut text));
        read.map_err(|e| cannot("read the output of git", &e))?;
        let base = text.trim().parse().map_err(|e| cannot("parse the output of git", &e))?;
        Ok(Self { path: path.to_owned(), file, base })
    }

    /// Writes the difference to the base, whatever was committed meanwhile.
    ///
    /// # Errors
    /// [`CliError`] if git fails.
    pub fn write_diff(&self, lifecycle: &Lifecycle, id: &SandboxId) -> Result<(), CliError> {
        run_git_with_output(self.file.as_fd(), lifecycle, id, diff_commands(&self.base)).map_err(|failure| {
            CliError::new(format!("cannot write the difference to {}: {failure}", quote_path(&self.path)))
                .or_hint(failure.hint)
        })
    }
}

/// Runs git inside, with this descriptor as standard output meanwhile.
fn run_git_with_output<const N: usize>(
    to: impl AsFd,
    lifecycle: &Lifecycle,
    id: &SandboxId,
    commands: [Vec<RawText>; N],
) -> Result<(), CliError> {
    let cannot = |e: std::io::Error| CliError::new(format!("cannot redirect standard output: {e}"));
    let own = rustix::io::fcntl_dupfd_cloexec(stdout(), 3).map_err(|e| cannot(e.into()))?;
    dup2_stdout(to).map_err(|e| cannot(e.into()))?;
    let result = exec::steps_inside(lifecycle, id, commands.into());
    dup2_stdout(own).map_err(|e| cannot(e.into()))?;
    result
}
