//! Image of a sandbox, identified by its content and available before a container is made.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bollard::models::{CreateImageInfo, ImageInspect};
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::TryStreamExt;
use stockade_backend_api::{INSIDE_HOME, INSIDE_WORKSPACE, StartError};
use stockade_model::ImageDigest;

use crate::client::{CALL_TIMEOUT, CallError, ContainerClient};
use crate::spec::{LAUNCHER_PATH, TEMPORARY_DIRS};

/// Time-out for pulling an image.
const PULL_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Paths of a container that belong to the sandbox.
const OWN_PATHS: [&str; 3] = [INSIDE_WORKSPACE, INSIDE_HOME, LAUNCHER_PATH];

/// More layers than an image may have (127).
const MAX_LAYERS: usize = 512;

/// Progress of a pull.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullProgress {
    /// Number of its complete layers.
    pub there: usize,
    /// Number of its layers, as far as is known.
    pub layers: usize,
    /// Received bytes of the layers that report them.
    pub bytes: u64,
    /// Total bytes of those layers.
    pub of_bytes: u64,
}

/// Receives the progress of a pull; `None` when the pull has ended.
pub type PullProgressSink = Arc<dyn Fn(&ImageDigest, Option<PullProgress>) + Send + Sync>;

/// Properties of an image to check its containers against.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageProperties {
    /// The engine's identifier, without the name of the digest.
    pub(crate) id: String,
    /// Volumes of the image, except in private temporary directories: absolute paths without `.`
    /// and `..`, none within another.
    pub(crate) volumes: BTreeSet<String>,
}

/// Makes the engine pull the image, if it does not have the image and knows its source.
///
/// # Errors
/// [`StartError`] if the image is unavailable or unusable.
pub(crate) fn require_image(
    client: &ContainerClient,
    image: &ImageDigest,
    tell: Option<&PullProgressSink>,
) -> Result<ImageProperties, StartError> {
    match inspect_image(client, image) {
        Err(CallError::NotFound(_)) => {
            pull_image(client, image, tell)?;
            image_properties(client, image)
        }
        Ok(found) => facts_of(image, found),
        Err(error) => Err(error.to_start_error(&format!("look for the image {image}"))),
    }
}

/// Returns the properties of an image that the engine has.
///
/// # Errors
/// [`StartError`] if the engine does not have it, or it is unusable.
pub(crate) fn image_properties(client: &ContainerClient, image: &ImageDigest) -> Result<ImageProperties, StartError> {
    let found = inspect_image(client, image);
    facts_of(image, found.map_err(|error| error.to_start_error(&format!("look at the image {image}")))?)
}

fn inspect_image(client: &ContainerClient, image: &ImageDigest) -> Result<ImageInspect, CallError> {
    let name = image.as_str().to_owned();
    client.call(CALL_TIMEOUT, |docker| async move { docker.inspect_image(&name).await })
}

fn facts_of(image: &ImageDigest, found: ImageInspect) -> Result<ImageProperties, StartError> {
    let volumes = found.config.and_then(|config| config.volumes).unwrap_or_default();
    let volumes: BTreeSet<String> =
        volumes.iter().map(|volume| volume_path(image, volume)).collect::<Result<_, _>>()?;
    let is_around = |one: &String, other: &String| one != other && Path::new(other).starts_with(one);
    if let Some(inner) = volumes.iter().find(|inner| volumes.iter().any(|outer| is_around(outer, inner))) {
        return Err(no_volume(image, inner));
    }
    let volumes = volumes.into_iter().filter(|volume| !TEMPORARY_DIRS.contains(&volume.as_str())).collect();
    Ok(ImageProperties { id: bare_id(found.id.as_deref().unwrap_or_default()).to_owned(), volumes })
}

/// Returns an id without the name of its digest, which Podman omits in some fields.
pub(crate) fn bare_id(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}

/// Returns the path of a volume. A volume within a directory of the sandbox is refused. The engine
/// would create its mount point there, on the host, with a name that the image chooses. A volume
/// that would contain a path of the sandbox is refused too.
fn volume_path(image: &ImageDigest, volume: &str) -> Result<String, StartError> {
    let parts: Vec<&str> = volume.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let path = format!("/{}", parts.join("/"));
    let is_beneath = |own: &str| Path::new(&path).starts_with(own);
    let is_kernels = ["/proc", "/sys", "/dev"].into_iter().any(is_beneath);
    let holds_own = OWN_PATHS.into_iter().chain(["/etc/passwd"]).any(|own| Path::new(own).starts_with(&path));
    if parts.contains(&"..") || is_kernels || holds_own || OWN_PATHS.into_iter().any(is_beneath) {
        return Err(no_volume(image, volume));
    }
    Ok(path)
}

fn no_volume(image: &ImageDigest, volume: &str) -> StartError {
    StartError {
        what: format!("the image {image} asks for a volume at {}, where no volume is allowed", volume.escape_default()),
        hint: Some("build an image without that VOLUME".to_owned()),
    }
}

fn pull_image(
    client: &ContainerClient,
    image: &ImageDigest,
    tell: Option<&PullProgressSink>,
) -> Result<(), StartError> {
    if image.name().is_none() {
        return Err(StartError {
            what: format!("the container engine has no image {image}"),
            hint: Some("load it, or name it with its source: NAME@sha256:...".to_owned()),
        });
    }
    let options = CreateImageOptionsBuilder::new().from_image(image.as_str()).build();
    let (tells, image_name) = (tell.cloned(), image.clone());
    let pulled = client.call(PULL_TIMEOUT, |docker| async move {
        let mut steps = docker.create_image(Some(options), None, None);
        let mut layers = LayerProgressTable::default();
        while let Some(step) = steps.try_next().await? {
            let pulled = layers.record_step(&step);
            if let Some(tell) = &tells {
                tell(&image_name, Some(pulled));
            }
        }
        Ok(())
    });
    if let Some(tell) = tell {
        tell(image, None);
    }
    pulled.map_err(|error| error.to_start_error(&format!("get the image {image}")))
}

/// Progress of the layers.
#[derive(Default)]
struct LayerProgressTable(BTreeMap<String, LayerProgress>);

#[derive(Clone, Copy, Default)]
struct LayerProgress {
    bytes: u64,
    of_bytes: u64,
    is_there: bool,
}

impl LayerProgressTable {
    /// Processes a progress step of the engine. Its words are the engines' own convention; an
    /// unknown one is a step of an incomplete layer.
    fn record_step(&mut self, step: &CreateImageInfo) -> PullProgress {
        let status = step.status.as_deref().unwrap_or_default();
        let id = step.id.as_ref().filter(|id| !status.starts_with("Pulling from") && self.has_room(id));
        if let Some(id) = id {
            let layer = self.0.entry(id.clone()).or_default();
            let detail = step.progress_detail.as_ref().filter(|_| status.starts_with("Downloading"));
            let count = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
            if let Some((bytes, of_bytes)) = detail.and_then(|d| count(d.current).zip(count(d.total))) {
                (layer.bytes, layer.of_bytes) = (bytes.min(of_bytes), of_bytes);
            }
            layer.is_there = matches!(status, "Pull complete" | "Already exists");
            if layer.is_there || status == "Download complete" {
                layer.bytes = layer.of_bytes;
            }
        }
        self.0.values().fold(PullProgress::default(), |all, layer| PullProgress {
            there: all.there + usize::from(layer.is_there),
            layers: all.layers + 1,
            bytes: all.bytes.saturating_add(layer.bytes),
            of_bytes: all.of_bytes.saturating_add(layer.of_bytes),
        })
    }

    fn has_room(&self, id: &str) -> bool {
        self.0.len() < MAX_LAYERS || self.0.contains_key(id)
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::ProgressDetail;

    use super::*;

    fn step(id: &str, status: &str, progress: Option<(i64, i64)>) -> CreateImageInfo {
        let detail = progress.map(|(current, total)| ProgressDetail { current: Some(current), total: Some(total) });
        let (id, status) = (Some(id.to_owned()), Some(status.to_owned()));
        CreateImageInfo { id, status, progress_detail: detail, ..CreateImageInfo::default() }
    }

    #[test]
    fn volumes_are_separate_from_the_sandboxes_files() {
        let image: ImageDigest = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        for (volume, path) in [("/data", "/data"), ("data/./x/", "/data/x"), ("/tmp", "/tmp")] {
            assert_eq!(volume_path(&image, volume).unwrap(), path);
        }
        for volume in [
            "/",
            "",
            "/home",
            "/etc",
            "/workspace",
            "/workspace/.git/hooks",
            "/home/agent/x",
            "//workspace/",
            "/a/../b",
            "/dev/x",
        ] {
            assert!(volume_path(&image, volume).is_err(), "{volume}");
        }
    }

    #[test]
    fn received_bytes_are_counted() {
        let mut layers = LayerProgressTable::default();
        let mut take = |id: &str, status: &str, progress| {
            let pulled = layers.record_step(&step(id, status, progress));
            (pulled.there, pulled.layers, pulled.bytes, pulled.of_bytes)
        };
        assert_eq!(take("3.19", "Pulling from library/alpine", None), (0, 0, 0, 0));
        assert_eq!(take("a", "Pulling fs layer", None), (0, 1, 0, 0));
        assert_eq!(take("b", "Already exists", None), (1, 2, 0, 0));
        assert_eq!(take("a", "Downloading", Some((40, 100))), (1, 2, 40, 100));
        assert_eq!(take("a", "Downloading", Some((-1, 100))), (1, 2, 40, 100));
        assert_eq!(take("a", "Download complete", None), (1, 2, 100, 100));
        assert_eq!(take("a", "Extracting", Some((3, 100))), (1, 2, 100, 100));
        assert_eq!(take("a", "Pull complete", None), (2, 2, 100, 100));
    }

    #[test]
    fn an_engine_that_names_layers_without_end_fills_nothing() {
        let mut layers = LayerProgressTable::default();
        let pulled = (0..2 * MAX_LAYERS).map(|n| layers.record_step(&step(&n.to_string(), "Waiting", None))).last();
        assert_eq!(pulled.map(|p| p.layers), Some(MAX_LAYERS));
    }
}
