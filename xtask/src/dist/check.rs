//! `cargo xtask dist --check`: installs the artifacts in fresh minimal Debian systems, runs the first
//! command there, and compares the files of the system before and after.
//!
//! The work is that of a shell script, because it consists of programs of the system.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::image::SUITE;

const SCRIPT: &str = include_str!("check.sh");
const INSIDE_SCRIPT: &str = include_str!("check_inside.sh");

/// Tries the artifacts in `output`.
///
/// # Errors
/// An error if a trial fails, or if this machine cannot make a system to try them in.
pub fn try_artifacts(output: &Path) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "--check makes system trees, and needs root for that");
    // All mounts of the trials end with this namespace.
    let mut script = Command::new("unshare");
    script.args(["--mount", "--propagation=private", "sh", "-euc", SCRIPT, "check"]);
    let status = script.arg(output).args([SUITE, INSIDE_SCRIPT]).status().context("cannot start unshare")?;
    ensure!(status.success(), "a test of the artifacts failed: {status}");
    Ok(())
}
