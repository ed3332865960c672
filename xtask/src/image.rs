//! The base image of sandboxes: a root tree of the distribution's packages, without
//! any registry. The same packages give the same bytes, so the image is named by
//! its content.
//!
//! mmdebstrap(1) does the work; the script and the lists in `image/` define the content.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::workspace;

/// Debian release of the image.
pub const SUITE: &str = "bookworm";

/// Makes the image, and prints its digest.
pub fn build(arguments: &[String]) -> Result<()> {
    let lists = workspace()?.join("xtask/src/image");
    let mut script = Command::new("sh");
    script.arg("-eu").arg(lists.join("build.sh")).arg(lists).arg(SUITE).args(arguments);
    let status = script.status().context("cannot start sh")?;
    ensure!(status.success(), "the image was not made: {status}");
    Ok(())
}
