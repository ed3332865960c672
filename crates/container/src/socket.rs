//! Socket of a container engine. Only on this machine, because the workspace is mounted from it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use stockade_backend_api::StartError;

use crate::ContainerEngineKind;

/// Returns the socket of an engine: the configured one, the one in the environment, or the first at
/// a default path of its packages.
///
/// # Errors
/// [`StartError`] if there is none.
pub(crate) fn find_socket(
    kind: ContainerEngineKind,
    named: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, StartError> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let host = match kind {
        ContainerEngineKind::Docker => "DOCKER_HOST",
        ContainerEngineKind::Podman => "CONTAINER_HOST",
    };
    if let Some(value) = variable(host).filter(|value| !value.is_empty()) {
        let path = value.to_str().and_then(|text| text.strip_prefix("unix://")).map(PathBuf::from);
        return path.ok_or_else(|| StartError {
            what: format!("{host} names an engine that is not a socket of this machine"),
            hint: Some(format!("set {host} to unix:///PATH, or leave it out")),
        });
    }
    let usual = default_sockets(kind, variable("XDG_RUNTIME_DIR").map(PathBuf::from));
    usual.iter().find(|path| path.exists()).cloned().ok_or_else(|| StartError {
        what: format!("there is no socket of {} on this machine", kind.name()),
        hint: Some(match kind {
            ContainerEngineKind::Docker => "start the engine, or name its socket with DOCKER_HOST".to_owned(),
            ContainerEngineKind::Podman => {
                "`podman system service --time 0` serves one; CONTAINER_HOST names another".to_owned()
            }
        }),
    })
}

fn default_sockets(kind: ContainerEngineKind, runtime: Option<PathBuf>) -> Vec<PathBuf> {
    let (of_user, of_machine): (&str, &[&str]) = match kind {
        ContainerEngineKind::Docker => ("docker.sock", &["/run/docker.sock", "/var/run/docker.sock"]),
        ContainerEngineKind::Podman => ("podman/podman.sock", &["/run/podman/podman.sock"]),
    };
    let of_user = runtime.map(|directory| directory.join(of_user));
    of_user.into_iter().chain(of_machine.iter().map(PathBuf::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_a_socket_of_this_machine_or_nothing() {
        let with = |value: &'static str| move |name: &str| (name == "DOCKER_HOST").then(|| OsString::from(value));
        assert_eq!(find_socket(ContainerEngineKind::Docker, None, with("unix:///x/y")).unwrap(), PathBuf::from("/x/y"));
        for bad in ["tcp://127.0.0.1:2375", "ssh://host", "/x/y"] {
            assert!(find_socket(ContainerEngineKind::Docker, None, with(bad)).unwrap_err().hint.is_some(), "{bad}");
        }
        let named = find_socket(ContainerEngineKind::Podman, Some(Path::new("/named")), with("unix:///x/y"));
        assert_eq!(named.unwrap(), PathBuf::from("/named"));
    }

    #[test]
    fn an_engine_of_the_user_is_before_that_of_the_machine() {
        let found = default_sockets(ContainerEngineKind::Podman, Some(PathBuf::from("/run/user/1")));
        assert_eq!(found[0], Path::new("/run/user/1/podman/podman.sock"));
        assert_eq!(found.len(), 2);
    }
}
