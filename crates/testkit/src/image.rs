//! Image for the containers of the suites. This module must not depend on the programs in them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Variable that names an existing image.
const IMAGE_VARIABLE: &str = "STOCKADE_TEST_IMAGE";

/// Returns a root tree of the distribution's packages, as an archive: that of
/// `STOCKADE_TEST_IMAGE`, or one that is made now in this directory.
///
/// # Errors
/// An error if it cannot be made.
pub fn small_image(directory: &Path) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(IMAGE_VARIABLE) {
        return Ok(path.into());
    }
    let path = directory.join("image.tar");
    make_image(&["--small"], &path)?;
    Ok(path)
}

/// Makes an image with these options of `cargo xtask image`, as an archive at `path`.
///
/// # Errors
/// An error if it cannot be made.
pub fn make_image(options: &[&str], path: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").context("the image is made by `cargo xtask image`, and there is no cargo")?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--package", "xtask", "--", "image"]).args(options).arg(path).current_dir(root);
    let output = command.output().context("making the image")?;
    ensure!(output.status.success(), "the image was not made: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
