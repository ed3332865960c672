//! What the container engine says it made, against what was asked for: the report of a
//! sandbox, or why it is none.

use bollard::models::{ContainerInspectResponse, HostConfig};
use stockade_engine::{SandboxPlan, StartError};
use stockade_model::{EnforcementReport, LayerReport, LayerState, Limits};

use crate::limits;
use crate::spec::User;
use crate::{Kind, filter};

/// The layers of a container.
///
/// # Errors
/// The first that is not as it was asked for.
pub(crate) fn report(
    kind: Kind,
    plan: &SandboxPlan,
    user: User,
    found: &ContainerInspectResponse,
) -> Result<EnforcementReport, StartError> {
    let host = found.host_config.as_ref().ok_or_else(|| missing("anything about the container"))?;
    demand(host.privileged != Some(true), "an unprivileged container")?;
    demand(drops_all(host), "a container without capabilities")?;
    demand(has_no_new_privileges(host), "`no-new-privileges`")?;
    demand(host.readonly_rootfs == Some(true), "a read-only system")?;
    demand(host.network_mode.as_deref() == Some("none"), "a container without a network")?;
    demand(!shares_host(host), "namespaces of its own")?;
    demand_limits(&plan.profile.limits, host)?;
    demand(filter::is_ours(kind, host.security_opt.as_deref().unwrap_or_default()), "its filter of system calls")?;
    let runtime = host.runtime.as_deref().filter(|name| !name.is_empty()).unwrap_or("its engine's own choice");
    let layers = [
        ("container", format!("runtime {runtime}: namespaces of processes, mounts, network and names of its own")),
        ("container-privileges", format!("no capability, no new privileges, user {user}")),
        ("container-files", "a read-only system; the workspace, the home and private temp can be written".to_owned()),
        ("container-network", "a loopback of its own and nothing else".to_owned()),
        ("container-filter", "system calls that no process of it may make are refused, whoever makes them".to_owned()),
        ("container-limits", limits_text(host)),
    ];
    let layer = |(name, detail): (&str, String)| (name.to_owned(), LayerReport { state: LayerState::Enforced, detail });
    Ok(EnforcementReport { level: plan.level, layers: layers.into_iter().map(layer).collect() })
}

fn missing(what: &str) -> StartError {
    StartError {
        what: format!("the container engine did not give {what}, although it was asked to"),
        hint: Some("look at what it says with `inspect`; no command ran".to_owned()),
    }
}

fn demand(is_there: bool, what: &str) -> Result<(), StartError> {
    if is_there { Ok(()) } else { Err(missing(what)) }
}

fn demand_limits(limits: &Limits, host: &HostConfig) -> Result<(), StartError> {
    let held =
        |wanted: Option<u64>, has: Option<i64>| wanted.is_none_or(|w| has.is_some_and(|h| h > 0 && h as u64 <= w));
    demand_held(held(limits.memory_bytes, host.memory), "memory")?;
    demand_held(held(limits::processes(limits), host.pids_limit), "processes")
}

/// Podman of an ordinary user makes a container without its limits where control groups
/// are of version 1, and says so to its own log alone.
fn demand_held(is_held: bool, limit: &str) -> Result<(), StartError> {
    if is_held {
        return Ok(());
    }
    let hint = "an ordinary user's engine holds limits only in a control group of version 2 that was delegated to that \
                user; take root's engine, or a native sandbox";
    Err(StartError {
        what: format!("the container engine does not hold the limit of {limit}, although it was asked to"),
        hint: Some(hint.to_owned()),
    })
}

/// Podman writes out what `ALL` was at the time.
fn drops_all(host: &HostConfig) -> bool {
    let added = host.cap_add.iter().flatten().next().is_some();
    let dropped = host.cap_drop.as_deref().unwrap_or_default();
    !added && (dropped.iter().any(|name| name.eq_ignore_ascii_case("ALL")) || dropped.len() >= DEFAULT_CAPABILITIES)
}

/// As many as container engines give where nothing is said, at the least.
const DEFAULT_CAPABILITIES: usize = 11;

fn has_no_new_privileges(host: &HostConfig) -> bool {
    host.security_opt
        .iter()
        .flatten()
        .any(|option| option.starts_with("no-new-privileges") && !option.ends_with("false"))
}

fn shares_host(host: &HostConfig) -> bool {
    let modes = [&host.pid_mode, &host.ipc_mode, &host.uts_mode, &host.userns_mode];
    modes.into_iter().flatten().any(|mode| mode == "host" || mode.starts_with("container:"))
}

fn limits_text(host: &HostConfig) -> String {
    let of =
        |name: &str, amount: Option<i64>| amount.filter(|amount| *amount > 0).map(|amount| format!("{name} {amount}"));
    let all = [
        of("memory (bytes)", host.memory),
        of("processes, those that serve commands among them", host.pids_limit),
        of("processors (billionths)", host.nano_cpus),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    if all.is_empty() { "none was asked for".to_owned() } else { format!("held by the engine: {}", all.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_an_engine_left_out_are_missed_by_their_names() {
        let host = |memory, processes| HostConfig { memory, pids_limit: processes, ..HostConfig::default() };
        let wanted = Limits { memory_bytes: Some(100), processes: Some(10), ..Limits::default() };
        let with_all = host(Some(100), limits::processes(&wanted).map(|processes| processes as i64));
        assert_eq!(demand_limits(&wanted, &with_all), Ok(()));
        assert_eq!(demand_limits(&Limits::default(), &host(None, None)), Ok(()));
        for (left_out, name) in [(host(Some(0), with_all.pids_limit), "memory"), (host(Some(100), None), "processes")] {
            let refused = demand_limits(&wanted, &left_out).unwrap_err();
            assert!(refused.what.contains(name) && refused.hint.is_some(), "{refused:?}");
        }
    }
}
