//! Symbolic links in an image at mount points of a container. A runtime follows them, and creates a
//! missing target: for example an empty file with any name in the workspace, on the host. So this
//! module looks for them before any directory of the host is mounted. Podman does not distinguish a
//! dangling link from a missing file.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use bollard::Docker;
use bollard::container::PathStatResponse;
use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{ContainerArchiveInfoOptionsBuilder, CreateContainerOptionsBuilder};
use stockade_backend_api::{INSIDE_HOME, INSIDE_WORKSPACE, StartError};
use stockade_model::ImageDigest;

use crate::accounts::BindMountPair;
use crate::client::{CREATE_TIMEOUT, ContainerClient, none_if_missing};
use crate::persistent::remove_container;
use crate::spec::{LAUNCHER_PATH, TEMPORARY_DIRS, launcher_request};

/// Bit of a symbolic link in a mode of Go (`fs.ModeSymlink`).
const LINK_MODE: u32 = 1 << 27;

/// Refuses an image with a symbolic link at a mount point, or in the path to it. A container with
/// this name and these labels is made for the check and never starts.
///
/// # Errors
/// [`StartError`] if there is one, or the engine does not answer.
pub(crate) fn require_none(
    client: &ContainerClient,
    image: &ImageDigest,
    (name, labels): (String, HashMap<String, String>),
    placed: &[BindMountPair],
) -> Result<(), StartError> {
    let network = HostConfig { network_mode: Some("none".to_owned()), ..HostConfig::default() };
    let body = ContainerCreateBody { host_config: Some(network), ..launcher_request(image, labels) };
    let mounted_at = mount_points(placed);
    let found = client.call(CREATE_TIMEOUT, |docker| async move {
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        let made = docker.create_container(Some(options), body).await?;
        let found = first_link(&docker, &made.id, mounted_at).await;
        remove_container(&docker, &made.id).await?;
        found
    });
    match found.map_err(|error| error.to_start_error(&format!("look at the image {image}")))? {
        None => Ok(()),
        Some(mount_path) => Err(StartError {
            what: format!("the image {image} has a link at {mount_path}, where a sandbox has files of its own"),
            hint: Some("make an image with a file or directory there, or nothing".to_owned()),
        }),
    }
}

/// Returns each mount point, and each directory above it.
fn mount_points(placed: &[BindMountPair]) -> BTreeSet<String> {
    let own = [INSIDE_WORKSPACE, INSIDE_HOME, LAUNCHER_PATH].into_iter().chain(TEMPORARY_DIRS);
    let all = own.chain(placed.iter().map(|(inside, _)| inside.as_str()));
    let above = |mount_path: &str| {
        Path::new(mount_path).ancestors().filter_map(Path::to_str).map(str::to_owned).collect::<Vec<_>>()
    };
    all.flat_map(above).filter(|mount_path| mount_path != "/").collect()
}

/// For other files, Docker reports no target, Podman the path itself.
fn is_link(mount_path: &str, found: &PathStatResponse) -> bool {
    let target = found.link_target.as_str();
    found.file_mode & LINK_MODE != 0 || !(target.is_empty() || target == mount_path)
}

async fn first_link(docker: &Docker, container: &str, mounted_at: BTreeSet<String>) -> Result<Option<String>, Error> {
    for mount_path in mounted_at {
        let options = ContainerArchiveInfoOptionsBuilder::new().path(&mount_path).build();
        let found = none_if_missing(docker.get_container_archive_info(container, Some(options)).await)?;
        if found.is_some_and(|found| is_link(&mount_path, &found)) {
            return Ok(Some(mount_path));
        }
    }
    Ok(None)
}
