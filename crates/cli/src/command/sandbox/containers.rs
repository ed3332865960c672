//! The kinds of sandboxes of container engines.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use stockade_container::{ContainerSandboxes, Kind, Pulled, Settings, TellPull};
use stockade_model::ImageDigest;

use crate::failure::Failure;
use crate::progress::Progress;
use crate::render::{counted, network::size};

/// Returns the available kinds, in order of preference. No engine is contacted before one of its
/// sandboxes is used. `root` is the directory of the sandboxes: the same engine may serve several
/// such directories.
///
/// # Errors
/// [`Failure`] if this program cannot find its own file, which also runs in the containers.
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
        ContainerSandboxes::new(kind, settings).telling_pulls(shown())
    };
    Ok([of(Kind::Docker), of(Kind::Podman)])
}

/// Shows on the terminal the progress of pulling an image.
fn shown() -> TellPull {
    let progress = Mutex::new(Progress::new());
    Arc::new(move |image, pulled| {
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        match pulled {
            Some(pulled) => progress.say(|| line(image, pulled)),
            None => progress.clear(),
        }
    })
}

fn line(image: &ImageDigest, pulled: Pulled) -> String {
    // The digest would fill the line.
    let name: String = image.name().unwrap_or_default().chars().take(40).collect();
    let mut line = format!("getting {name}");
    if pulled.layers > 0 {
        line += &format!(": {} of {}", pulled.there, counted(pulled.layers, "layer"));
    }
    if pulled.of_bytes > 0 {
        line += &format!(", {} of {}", size(pulled.bytes), size(pulled.of_bytes));
    }
    line
}
