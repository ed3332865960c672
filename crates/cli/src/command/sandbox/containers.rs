//! The kinds of sandboxes that container engines make.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use stockade_container::{ContainerSandboxes, Kind, Settings};

use crate::failure::Failure;

/// Those that there may be, in the order in which they are preferred. Nothing is asked of
/// an engine before one of its sandboxes is meant. `root` is where the sandboxes are: the
/// same engine may serve other lists of them.
///
/// # Errors
/// When this program cannot find itself: it is what runs in the containers.
pub fn all(root: &Path) -> Result<[ContainerSandboxes; 2], Failure> {
    let cannot = |what: &str, why: std::io::Error| Failure::new(format!("cannot {what}: {why}"));
    let launcher = std::env::current_exe().map_err(|why| cannot("find this program", why))?;
    let place = std::fs::metadata(root).map_err(|why| cannot("look at the sandboxes", why))?;
    let owner = format!("{}-{}", place.dev(), place.ino());
    let of = |kind| {
        let settings = Settings {
            socket: None,
            launcher: launcher.clone(),
            accounts: root.with_file_name("containers"),
            owner: owner.clone(),
        };
        ContainerSandboxes::new(kind, settings)
    };
    Ok([of(Kind::Docker), of(Kind::Podman)])
}
