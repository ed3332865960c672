//! The kinds of sandboxes that container engines make.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use stockade_container::{ContainerSandboxes, Kind, Pulled, Settings, TellPull};
use stockade_model::ImageDigest;

use crate::failure::Failure;
use crate::progress::Progress;
use crate::render::{counted, network::size};

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
        ContainerSandboxes::new(kind, settings).telling_pulls(shown())
    };
    Ok([of(Kind::Docker), of(Kind::Podman)])
}

/// Shows on the terminal how far an image is that has to come first.
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
    // Its digest alone would fill the line.
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
