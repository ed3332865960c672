//! What the container engine says it made, against what was asked for: the report of a
//! sandbox, or why it is none.

use bollard::models::{ContainerInspectResponse, HostConfig};
use stockade_engine::{SandboxPlan, StartError};
use stockade_model::{EnforcementReport, LayerReport, LayerState};

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
    let limits = &plan.profile.limits;
    let held =
        |wanted: Option<u64>, has: Option<i64>| wanted.is_none_or(|w| has.is_some_and(|h| h > 0 && h as u64 <= w));
    demand(held(limits.memory_bytes, host.memory), "the limit of memory")?;
    demand(held(limits::processes(limits), host.pids_limit), "the limit of processes")?;
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
