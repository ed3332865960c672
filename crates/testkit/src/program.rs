//! Programs that a test writes and then starts.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// Writes a program with this content, in another process. A thread of this process could fork
/// meanwhile. Its child would have the file open for writing, and such a file cannot be executed
/// (`ETXTBSY`, execve(2)).
pub fn write_program(to: &Path, content: &[u8]) -> Result<()> {
    let mut install =
        install_program(Path::new("/dev/stdin"), to).stdin(Stdio::piped()).spawn().context("starting install")?;
    let written = install.stdin.take().context("its input")?.write_all(content);
    ensure!(install.wait()?.success(), "{} was not made", to.display());
    Ok(written?)
}

/// Copies a program in the same way.
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    let status = install_program(from, to).status().context("starting install")?;
    ensure!(status.success(), "{} was not made", to.display());
    Ok(())
}

fn install_program(from: &Path, to: &Path) -> Command {
    let mut command = Command::new("install");
    command.args(["-m", "755"]).arg(from).arg(to);
    command
}
