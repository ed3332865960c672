//! The kinds of sandboxes of container engines.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use stockade_container::{ContainerEngineKind, ContainerSandboxes, ContainerSettings, PullProgress, PullProgressSink};
use stockade_model::ImageDigest;

use crate::failure::CliError;
use crate::progress::ProgressLine;
use crate::render::{count_noun, network::format_size};

/// Returns the available kinds, in order of preference. No engine is contacted before one of its
/// sandboxes is used. `root` is the directory of the sandboxes: the same engine may serve several
/// such directories.
///
/// # Errors
/// [`CliError`] if this program cannot find its own file, which also runs in the containers.
pub fn list_container_backends(root: &Path) -> Result<[ContainerSandboxes; 2], CliError> {
    let cannot = |what: &str, why: std::io::Error| CliError::new(format!("cannot {what}: {why}"));
    let launcher = std::env::current_exe().map_err(|why| cannot("find this program", why))?;
    let directory_metadata = std::fs::metadata(root).map_err(|why| cannot("look at the sandboxes", why))?;
    let owner = format!("{}-{}", directory_metadata.dev(), directory_metadata.ino());
    let of = |kind| {
        let settings = ContainerSettings {
            socket: None,
            launcher: launcher.clone(),
            accounts: root.with_file_name("containers"),
            owner: owner.clone(),
        };
        ContainerSandboxes::new(kind, settings).telling_pulls(show_pull_progress())
    };
    Ok([of(ContainerEngineKind::Docker), of(ContainerEngineKind::Podman)])
}

/// Shows on the terminal the progress of pulling an image.
fn show_pull_progress() -> PullProgressSink {
    let progress = Mutex::new(ProgressLine::new());
    Arc::new(move |image, pulled| {
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        match pulled {
            Some(pulled) => progress.show_text(|| format_pull_progress(image, pulled)),
            None => progress.clear(),
        }
    })
}

fn format_pull_progress(image: &ImageDigest, pulled: PullProgress) -> String {
    // The digest would fill the line.
    let name: String = image.name().unwrap_or_default().chars().take(40).collect();
    let mut line = format!("getting {name}");
    if pulled.layers > 0 {
        line += &format!(": {} of {}", pulled.there, count_noun(pulled.layers, "layer"));
    }
    if pulled.of_bytes > 0 {
        line += &format!(", {} of {}", format_size(pulled.bytes), format_size(pulled.of_bytes));
    }
    line
}
