//! The image of a sandbox: by its content, and there before a container is made.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bollard::models::CreateImageInfo;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::TryStreamExt;
use stockade_engine::StartError;
use stockade_model::ImageDigest;

use crate::client::{ANSWERS_WITHIN, CallError, Client};

/// How long an image may take to come.
const PULLS_WITHIN: Duration = Duration::from_secs(30 * 60);

/// More layers than an image may have (127).
const MAX_LAYERS: usize = 512;

/// How far the coming of an image is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    /// How many of its layers are there.
    pub there: usize,
    /// How many it has, as far as is known.
    pub layers: usize,
    /// How many bytes came, of those layers that say it.
    pub bytes: u64,
    /// How many bytes these have.
    pub of_bytes: u64,
}

/// Is told how far the coming of an image is; nothing, when it came or did not.
pub type TellPull = Arc<dyn Fn(&ImageDigest, Option<Pulled>) + Send + Sync>;

/// Has the engine get the image, where it does not have it and knows from where.
///
/// # Errors
/// When it cannot be had.
pub(crate) fn demand(client: &Client, image: &ImageDigest, tell: Option<&TellPull>) -> Result<(), StartError> {
    let name = image.as_str().to_owned();
    match client.call(ANSWERS_WITHIN, |docker| async move { docker.inspect_image(&name).await }) {
        Ok(_) => Ok(()),
        Err(CallError::NotFound(_)) => pull(client, image, tell),
        Err(error) => Err(error.to_start_error(&format!("look for the image {image}"))),
    }
}

fn pull(client: &Client, image: &ImageDigest, tell: Option<&TellPull>) -> Result<(), StartError> {
    if image.name().is_none() {
        return Err(StartError {
            what: format!("the container engine has no image {image}"),
            hint: Some("load it, or name where it comes from: NAME@sha256:...".to_owned()),
        });
    }
    let options = CreateImageOptionsBuilder::new().from_image(image.as_str()).build();
    let (tells, wanted) = (tell.cloned(), image.clone());
    let pulled = client.call(PULLS_WITHIN, |docker| async move {
        let mut steps = docker.create_image(Some(options), None, None);
        let mut layers = Layers::default();
        while let Some(step) = steps.try_next().await? {
            let pulled = layers.take(&step);
            if let Some(tell) = &tells {
                tell(&wanted, Some(pulled));
            }
        }
        Ok(())
    });
    if let Some(tell) = tell {
        tell(image, None);
    }
    pulled.map_err(|error| error.to_start_error(&format!("get the image {image}")))
}

/// What is known of its layers.
#[derive(Default)]
struct Layers(BTreeMap<String, Layer>);

#[derive(Clone, Copy, Default)]
struct Layer {
    bytes: u64,
    of_bytes: u64,
    is_there: bool,
}

impl Layers {
    /// Takes a step that the engine tells. What it is called is the engines' own
    /// convention; an unknown one is a step of a layer that is not there yet.
    fn take(&mut self, step: &CreateImageInfo) -> Pulled {
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
        self.0.values().fold(Pulled::default(), |all, layer| Pulled {
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
    fn what_came_is_counted() {
        let mut layers = Layers::default();
        let mut take = |id: &str, status: &str, progress| {
            let pulled = layers.take(&step(id, status, progress));
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
        let mut layers = Layers::default();
        let pulled = (0..2 * MAX_LAYERS).map(|n| layers.take(&step(&n.to_string(), "Waiting", None))).last();
        assert_eq!(pulled.map(|p| p.layers), Some(MAX_LAYERS));
    }
}
