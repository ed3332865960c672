//! Compares the engine's description of a container with the request. The result is the report of a
//! sandbox, or the reason for its refusal.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use bollard::models::{ContainerConfig, ContainerInspectResponse, HostConfig, MountPoint};
use stockade_backend_api::{INSIDE_HOME, INSIDE_WORKSPACE, SandboxPlan, StartError};
use stockade_model::{EnforcementReport, LayerReport, LayerState, Limits};

use crate::accounts::BindMountPair;
use crate::images::ImageProperties;
use crate::spec::{ContainerUser, HOLD_COMMAND, LAUNCHER_PATH, NO_HEALTH_CHECK, TEMPORARY_DIRS};
use crate::{ContainerEngineKind, ContainerSettings, covers, filter, images, limits};

/// Files of the host in a container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostFileSet<'a> {
    /// With the launcher of its commands, and the directory of the files that replace its own.
    pub(crate) settings: &'a ContainerSettings,
    /// The files that are in every container.
    pub(crate) placed: &'a [BindMountPair],
    /// Image of the container.
    pub(crate) image: &'a ImageProperties,
}

/// Returns the layers of a container.
///
/// # Errors
/// [`StartError`] for the first difference from the request.
pub(crate) fn verify_container(
    kind: ContainerEngineKind,
    plan: &SandboxPlan,
    (user, brought): (ContainerUser, HostFileSet<'_>),
    found: &ContainerInspectResponse,
) -> Result<EnforcementReport, StartError> {
    let host = found.host_config.as_ref().ok_or_else(|| missing_error("anything about the container"))?;
    require_property(host.privileged != Some(true), "an unprivileged container")?;
    require_property(drops_all(host), "a container without capabilities")?;
    require_property(has_no_new_privileges(host), "`no-new-privileges`")?;
    require_property(host.readonly_rootfs == Some(true), "a read-only system")?;
    require_property(host.network_mode.as_deref() == Some("none"), "a container without a network")?;
    require_property(!shares_host(host), "namespaces of its own")?;
    require_property(has_nothing_else(host), "a container without devices and other containers' volumes")?;
    require_property(stays_stopped(host), "a container that the engine does not start again by itself")?;
    require_property(host.init != Some(true), "a container whose first process is the launcher")?;
    require_property(has_own_temp(kind, host), "private temp only at the requested paths")?;
    require_property(has_runtime(plan, host), "the requested runtime")?;
    let image = found.image.as_deref().map(images::bare_id);
    require_property(
        image == Some(brought.image.id.as_str()) && !brought.image.id.is_empty(),
        "a container of its image",
    )?;
    require_start(user, found.config.as_ref())?;
    require_mounts(plan, brought, found.mounts.as_deref().unwrap_or_default())?;
    require_limits(&plan.profile.limits, host)?;
    require_property(filter::is_ours(kind, host.security_opt.as_deref().unwrap_or_default()), "its seccomp filter")?;
    let runtime = host.runtime.as_deref().filter(|name| !name.is_empty()).unwrap_or("its engine's own choice");
    let layers = [
        ("container", format!("runtime {runtime}: its own namespaces for processes, mounts, network and host name")),
        ("container-privileges", format!("no capability, no new privileges, user {user}")),
        ("container-files", "read-only root filesystem; workspace, home and private temp are writable".to_owned()),
        ("container-network", "only its own loopback interface".to_owned()),
        ("container-filter", "forbidden system calls are refused for every process of the container".to_owned()),
        ("container-limits", limits_text(host)),
    ];
    let layer = |(name, detail): (&str, String)| (name.to_owned(), LayerReport { state: LayerState::Enforced, detail });
    Ok(EnforcementReport { level: plan.level, layers: layers.into_iter().map(layer).collect() })
}

fn missing_error(what: &str) -> StartError {
    StartError {
        what: format!("the container engine did not provide {what}, although it was requested"),
        hint: Some("check the container with `inspect`; no command was started".to_owned()),
    }
}

fn require_property(is_there: bool, what: &str) -> Result<(), StartError> {
    if is_there { Ok(()) } else { Err(missing_error(what)) }
}

/// Returns whether neither the engine's configuration nor another process added anything.
fn has_nothing_else(host: &HostConfig) -> bool {
    let is_none = |list: Option<usize>| list.is_none_or(|length| length == 0);
    is_none(host.devices.as_ref().map(Vec::len))
        && is_none(host.device_requests.as_ref().map(Vec::len))
        && is_none(host.device_cgroup_rules.as_ref().map(Vec::len))
        && is_none(host.volumes_from.as_ref().map(Vec::len))
        && is_none(host.group_add.as_ref().map(Vec::len))
        && is_none(host.links.as_ref().map(Vec::len))
        && is_none(host.port_bindings.as_ref().map(HashMap::len))
        && host.sysctls.iter().flatten().all(|(name, _)| name == PODMAN_DEFAULT_SYSCTL)
        && host.oom_kill_disable != Some(true)
}

/// Set by Podman's defaults in a container's own network.
const PODMAN_DEFAULT_SYSCTL: &str = "net.ipv4.ping_group_range";

/// Returns whether the engine does not restart an ended container.
fn stays_stopped(host: &HostConfig) -> bool {
    use bollard::models::RestartPolicyNameEnum::{EMPTY, NO};
    let name = host.restart_policy.as_ref().and_then(|policy| policy.name);
    name.is_none_or(|name| matches!(name, EMPTY | NO))
}

/// Returns whether writable memory is only at the requested paths. Podman adds one path to every
/// read-only system.
fn has_own_temp(kind: ContainerEngineKind, host: &HostConfig) -> bool {
    let is_ours = |at: &String| {
        TEMPORARY_DIRS.contains(&at.as_str()) || (kind == ContainerEngineKind::Podman && at == PODMAN_TEMPORARY_DIR)
    };
    host.tmpfs.iter().flatten().all(|(at, _)| is_ours(at))
}

/// See [`has_own_temp`].
const PODMAN_TEMPORARY_DIR: &str = "/var/tmp";

/// Podman accepts no name of a runtime, and reports another.
fn has_runtime(plan: &SandboxPlan, host: &HostConfig) -> bool {
    let (Some(requirement), Some(found)) = (&plan.runtime, &host.runtime) else { return true };
    found == requirement.as_str() || found == "oci"
}

/// Checks that it starts only the launcher, as the user: an engine runs health checks by itself.
fn require_start(user: ContainerUser, config: Option<&ContainerConfig>) -> Result<(), StartError> {
    let config = config.ok_or_else(|| missing_error("what the container starts"))?;
    let words = |words: &Option<Vec<String>>| words.clone().unwrap_or_default();
    require_property(
        words(&config.entrypoint) == [LAUNCHER_PATH] && words(&config.cmd) == HOLD_COMMAND,
        "a container that starts the launcher",
    )?;
    require_property(config.user.as_deref() == Some(&user.to_string()), "a container of its user")?;
    let check = config.healthcheck.as_ref().and_then(|check| check.test.as_deref()).unwrap_or_default();
    require_property(check.is_empty() || check == [NO_HEALTH_CHECK], "a container without a health check")
}

/// Checks that only the workspace, the home directory, the launcher and read-only files of Stockade
/// come from the host. Those files also replace the image's volumes.
fn require_mounts(plan: &SandboxPlan, brought: HostFileSet<'_>, found: &[MountPoint]) -> Result<(), StartError> {
    let own = [
        (plan.workspace.as_path(), INSIDE_WORKSPACE, true),
        (plan.home.as_path(), INSIDE_HOME, true),
        (brought.settings.launcher.as_path(), LAUNCHER_PATH, false),
    ];
    let mut seen = [false; 3];
    let is_ours_to_read = |source: &Path, inside: &str| {
        brought.placed.iter().any(|(at, from)| at == inside && from == source)
            || covers::is_cover(&brought.settings.accounts, source)
    };
    for mount in found {
        let source = Path::new(mount.source.as_deref().unwrap_or_default());
        let inside = mount.destination.as_deref().unwrap_or_default();
        let is_writable = mount.rw != Some(false);
        let which = own.iter().position(|(from, to, rw)| (*from, *to, *rw) == (source, inside, is_writable));
        let is_ours = match (mount.typ.as_deref().unwrap_or_default(), which) {
            ("bind", Some(at)) => !std::mem::replace(&mut seen[at], true),
            ("bind", None) => !is_writable && is_ours_to_read(source, inside),
            ("tmpfs", _) => TEMPORARY_DIRS.contains(&inside) || inside == PODMAN_TEMPORARY_DIR,
            _ => false,
        };
        if !is_ours {
            let what =
                format!("the container engine mounted {} at {inside}, which was not requested", source.display());
            let hint = "check what the engine's configuration mounts into every container; no command was started";
            return Err(StartError { what, hint: Some(hint.to_owned()) });
        }
    }
    require_property(seen == [true; 3], "the workspace, the home and the launcher at their paths")
}

/// Returns the paths of Stockade's files in a checked container.
pub(crate) fn read_only_mounts(found: &ContainerInspectResponse) -> BTreeSet<PathBuf> {
    let mounts = found.mounts.iter().flatten().filter(|mount| mount.rw == Some(false));
    mounts.filter_map(|mount| mount.destination.as_ref().map(PathBuf::from)).collect()
}

fn require_limits(limits: &Limits, host: &HostConfig) -> Result<(), StartError> {
    let held = |requirement: Option<u64>, has: Option<i64>| {
        requirement.is_none_or(|w| has.is_some_and(|h| h > 0 && h as u64 <= w))
    };
    require_enforced(held(limits.memory_bytes, host.memory), "memory")?;
    require_enforced(held(limits::engine_process_limit(limits), host.pids_limit), "processes")
}

/// Podman of an ordinary user makes a container without limits if control groups are of version 1,
/// and reports this only in its own log.
fn require_enforced(is_held: bool, limit: &str) -> Result<(), StartError> {
    if is_held {
        return Ok(());
    }
    let hint = "a rootless engine enforces limits only in a control group of version 2 that is delegated to the \
                user; use root's engine, or a native sandbox";
    Err(StartError {
        what: format!("the container engine does not enforce the limit of {limit}, although it was requested"),
        hint: Some(hint.to_owned()),
    })
}

/// Podman expands `ALL` to the list at that time.
fn drops_all(host: &HostConfig) -> bool {
    let added = host.cap_add.iter().flatten().next().is_some();
    let dropped = host.cap_drop.as_deref().unwrap_or_default();
    !added && (dropped.iter().any(|name| name.eq_ignore_ascii_case("ALL")) || dropped.len() >= MIN_DEFAULT_CAPABILITIES)
}

/// Least number of capabilities that container engines give by default.
const MIN_DEFAULT_CAPABILITIES: usize = 11;

fn has_no_new_privileges(host: &HostConfig) -> bool {
    host.security_opt
        .iter()
        .flatten()
        .any(|option| option.starts_with("no-new-privileges") && !option.ends_with("false"))
}

fn shares_host(host: &HostConfig) -> bool {
    let is_own = |mode: &&String| matches!(mode.as_str(), "" | "private" | "shareable");
    let modes = [&host.pid_mode, &host.ipc_mode, &host.uts_mode];
    let is_other_user = |mode: &&String| mode.as_str() == "host" || mode.contains(':');
    !modes.into_iter().flatten().all(|mode| is_own(&mode)) || host.userns_mode.iter().any(|mode| is_other_user(&mode))
}

fn limits_text(host: &HostConfig) -> String {
    let of =
        |name: &str, amount: Option<i64>| amount.filter(|amount| *amount > 0).map(|amount| format!("{name} {amount}"));
    let all = [
        of("memory (bytes)", host.memory),
        of("processes, including those of the launcher", host.pids_limit),
        of("processors (billionths)", host.nano_cpus),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    if all.is_empty() { "none was requested".to_owned() } else { format!("enforced by the engine: {}", all.join(", ")) }
}

#[cfg(test)]
mod tests {
    use bollard::models::HealthConfig;

    use super::*;

    #[test]
    fn whatever_else_is_mounted_or_started_is_refused() {
        let user = ContainerUser { user: 7, group: 8 };
        let config = || ContainerConfig {
            entrypoint: Some(vec![LAUNCHER_PATH.to_owned()]),
            cmd: Some(HOLD_COMMAND.map(str::to_owned).to_vec()),
            user: Some("7:8".to_owned()),
            ..ContainerConfig::default()
        };
        let check = |words: &[&str]| {
            let test = Some(words.iter().map(|word| (*word).to_owned()).collect());
            ContainerConfig { healthcheck: Some(HealthConfig { test, ..HealthConfig::default() }), ..config() }
        };
        assert_eq!(require_start(user, Some(&config())), Ok(()));
        assert_eq!(require_start(user, Some(&check(&["NONE"]))), Ok(()));
        for wrong in [
            check(&["CMD-SHELL", "touch x"]),
            ContainerConfig { user: Some("0:0".to_owned()), ..config() },
            ContainerConfig { entrypoint: Some(vec!["/bin/sh".to_owned()]), ..config() },
            ContainerConfig { cmd: None, ..config() },
        ] {
            assert!(require_start(user, Some(&wrong)).is_err(), "{wrong:?}");
        }
        assert!(require_start(user, None).is_err());
        let host = HostConfig { group_add: Some(vec!["docker".to_owned()]), ..HostConfig::default() };
        assert!(!has_nothing_else(&host) && has_nothing_else(&HostConfig::default()));
    }

    #[test]
    fn limits_that_an_engine_left_out_are_missed_by_their_names() {
        let host = |memory, processes| HostConfig { memory, pids_limit: processes, ..HostConfig::default() };
        let requirement = Limits { memory_bytes: Some(100), processes: Some(10), ..Limits::default() };
        let with_all = host(Some(100), limits::engine_process_limit(&requirement).map(|processes| processes as i64));
        assert_eq!(require_limits(&requirement, &with_all), Ok(()));
        assert_eq!(require_limits(&Limits::default(), &host(None, None)), Ok(()));
        for (incomplete_host, name) in
            [(host(Some(0), with_all.pids_limit), "memory"), (host(Some(100), None), "processes")]
        {
            let refused = require_limits(&requirement, &incomplete_host).unwrap_err();
            assert!(refused.what.contains(name) && refused.hint.is_some(), "{refused:?}");
        }
    }
}
