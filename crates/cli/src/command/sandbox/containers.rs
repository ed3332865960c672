//! The kinds of sandboxes that container engines make.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use stockade_container::{ContainerSandboxes, Kind, Settings};
use stockade_engine::Sandboxes;

use crate::failure::Failure;

/// Those that there may be, in the order in which they are preferred. Nothing is asked of
/// an engine before one of its sandboxes is meant.
///
/// # Errors
/// When this program cannot find itself: it is what runs in the containers.
pub fn kinds(root: &Path) -> Result<Vec<Arc<dyn Sandboxes>>, Failure> {
    let cannot = |what: &str, why: std::io::Error| Failure::new(format!("cannot {what}: {why}"));
    let launcher = std::env::current_exe().map_err(|why| cannot("find this program", why))?;
    let place = std::fs::metadata(root).map_err(|why| cannot("look at the sandboxes", why))?;
    // The same engine may serve other lists of sandboxes.
    let owner = format!("{}-{}", place.dev(), place.ino());
    let of = |kind| -> Arc<dyn Sandboxes> {
        let settings = Settings {
            socket: None,
            launcher: launcher.clone(),
            accounts: root.with_file_name("containers"),
            owner: owner.clone(),
        };
        Arc::new(ContainerSandboxes::new(kind, settings))
    };
    Ok(vec![of(Kind::Docker), of(Kind::Podman)])
}
