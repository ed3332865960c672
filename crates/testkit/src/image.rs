//! The image that containers of the suites have. It must not know what is run in them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// The variable that names an image that is there already.
const IMAGE: &str = "STOCKADE_TEST_IMAGE";

/// A root tree of the distribution's packages, as an archive: that of
/// `STOCKADE_TEST_IMAGE`, or made here and now in this directory.
///
/// # Errors
/// Where it cannot be made.
pub fn small_image(directory: &Path) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(IMAGE) {
        return Ok(path.into());
    }
    let path = directory.join("image.tar");
    make_image(&["--small"], &path)?;
    Ok(path)
}

/// Makes an image with these options of `cargo xtask image`, as an archive at `path`.
///
/// # Errors
/// Where it cannot be made.
pub fn make_image(options: &[&str], path: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").context("the image is made by `cargo xtask image`, and there is no cargo")?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--package", "xtask", "--", "image"]).args(options).arg(path).current_dir(root);
    let output = command.output().context("making the image")?;
    ensure!(output.status.success(), "the image was not made: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
