//! Links in an image at places where a container has mounts. A runtime follows them, and
//! makes what they lead to where it is missing: an empty file of any name in the workspace,
//! on the host. So they are looked for before anything of the host is mounted. Podman does
//! not tell a link that leads nowhere from what is missing.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use bollard::Docker;
use bollard::container::PathStatResponse;
use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{ContainerArchiveInfoOptionsBuilder, CreateContainerOptionsBuilder};
use stockade_engine::{INSIDE_HOME, INSIDE_WORKSPACE, StartError};
use stockade_model::ImageDigest;

use crate::accounts::Placed;
use crate::client::{Client, MAKES_WITHIN};
use crate::spec::{HOLDS, LAUNCHER, TEMPORARY, image_name};
use crate::standing::remove_container;

/// That of a link, in a mode as Go writes it (`fs.ModeSymlink`).
const LINK_MODE: u32 = 1 << 27;

/// Refuses an image that has a link at the place of a mount, or on the way there. What looks
/// is a container with this name and these labels, which never starts.
///
/// # Errors
/// Where there is one, or the engine does not say.
pub(crate) fn demand_none(
    client: &Client,
    image: &ImageDigest,
    (name, labels): (String, HashMap<String, String>),
    placed: &[Placed],
) -> Result<(), StartError> {
    let body = ContainerCreateBody {
        image: Some(image_name(image)),
        labels: Some(labels),
        entrypoint: Some(vec![LAUNCHER.to_owned()]),
        cmd: Some(HOLDS.map(str::to_owned).to_vec()),
        network_disabled: Some(true),
        host_config: Some(HostConfig { network_mode: Some("none".to_owned()), ..HostConfig::default() }),
        ..ContainerCreateBody::default()
    };
    let places = places(placed);
    let found = client.call(MAKES_WITHIN, |docker| async move {
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        let made = docker.create_container(Some(options), body).await?;
        let found = first_link(&docker, &made.id, places).await;
        remove_container(&docker, &made.id).await?;
        found
    });
    match found.map_err(|error| error.to_start_error(&format!("look at the image {image}")))? {
        None => Ok(()),
        Some(place) => Err(StartError {
            what: format!("the image {image} has a link at {place}, where a sandbox has files of its own"),
            hint: Some("make an image with a file or directory there, or nothing".to_owned()),
        }),
    }
}

/// Each place of a mount, and each directory above it.
fn places(placed: &[Placed]) -> BTreeSet<String> {
    let own = [INSIDE_WORKSPACE, INSIDE_HOME, LAUNCHER].into_iter().chain(TEMPORARY);
    let all = own.chain(placed.iter().map(|(inside, _)| inside.as_str()));
    let above =
        |place: &str| Path::new(place).ancestors().filter_map(Path::to_str).map(str::to_owned).collect::<Vec<_>>();
    all.flat_map(above).filter(|place| place != "/").collect()
}

/// Docker has no target of anything else, Podman the path itself.
fn is_link(place: &str, found: &PathStatResponse) -> bool {
    let target = found.link_target.as_str();
    found.file_mode & LINK_MODE != 0 || !(target.is_empty() || target == place)
}

async fn first_link(docker: &Docker, container: &str, places: BTreeSet<String>) -> Result<Option<String>, Error> {
    for place in places {
        let options = ContainerArchiveInfoOptionsBuilder::new().path(&place).build();
        match docker.get_container_archive_info(container, Some(options)).await {
            Ok(found) if is_link(&place, &found) => return Ok(Some(place)),
            Ok(_) | Err(Error::DockerResponseServerError { status_code: 404, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
