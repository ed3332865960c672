//! The image of a sandbox: by its content, and there before a container is made.

use std::time::Duration;

use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::TryStreamExt;
use stockade_engine::StartError;
use stockade_model::ImageDigest;

use crate::client::{ANSWERS_WITHIN, CallError, Client};

/// How long an image may take to come.
const PULLS_WITHIN: Duration = Duration::from_secs(30 * 60);

/// Has the engine get the image, where it does not have it and knows from where.
///
/// # Errors
/// When it cannot be had.
pub(crate) fn demand(client: &Client, image: &ImageDigest) -> Result<(), StartError> {
    let name = image.as_str().to_owned();
    match client.call(ANSWERS_WITHIN, |docker| async move { docker.inspect_image(&name).await }) {
        Ok(_) => Ok(()),
        Err(CallError::NotFound(_)) => pull(client, image),
        Err(error) => Err(error.to_start_error(&format!("look for the image {image}"))),
    }
}

fn pull(client: &Client, image: &ImageDigest) -> Result<(), StartError> {
    if image.name().is_none() {
        return Err(StartError {
            what: format!("the container engine has no image {image}"),
            hint: Some("load it, or name where it comes from: NAME@sha256:...".to_owned()),
        });
    }
    let options = CreateImageOptionsBuilder::new().from_image(image.as_str()).build();
    let pulled = client.call(PULLS_WITHIN, |docker| async move {
        let progress = docker.create_image(Some(options), None, None);
        progress.try_for_each(|step| async move { told(&step) }).await
    });
    pulled.map_err(|error| error.to_start_error(&format!("get the image {image}")))
}

/// One step of a pull, to whoever reads the program's own log.
fn told(step: &bollard::models::CreateImageInfo) -> Result<(), bollard::errors::Error> {
    if let Some(status) = &step.status {
        tracing::info!(layer = step.id.as_deref().unwrap_or_default(), "pull: {status}");
    }
    Ok(())
}
