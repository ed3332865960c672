//! What a container is made with: everything is said, nothing left to what the engine
//! would choose, because that differs from one to the next.

use std::collections::HashMap;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, ResourcesUlimits,
};
use rustix::process::{Resource, getrlimit};
use stockade_engine::{INSIDE_HOME, INSIDE_WORKSPACE, SandboxPlan, StartError};
use stockade_model::{ImageDigest, RawText, SandboxId};

use crate::accounts::Placed;
use crate::{Kind, limits};

/// Where the launcher is inside.
pub(crate) const LAUNCHER: &str = "/.stockade";
/// The label that says which sandbox a container is.
pub(crate) const SANDBOX_LABEL: &str = "stockade.sandbox";
/// The label that says whose list of sandboxes it stands in.
pub(crate) const OWNER_LABEL: &str = "stockade.owner";
/// Size of the private temp where the profile says nothing, in bytes: it is memory.
const TEMP_BYTES: u64 = 1 << 30;
/// Where private temp is.
pub(crate) const TEMPORARY: [&str; 2] = ["/tmp", "/run"];
/// Size of `/run`, in bytes.
const RUN_BYTES: u64 = 16 << 20;
/// Open files of one process where the profile says nothing.
const OPEN_FILES: u64 = 16_384;
/// Processes of the user, wherever they are: what Podman lets itself have. The limit of the
/// sandbox's own is another.
const PROCESSES_OF_USER: u64 = 32_768;
/// Shared memory of all commands, in bytes: what container engines have as their own choice.
const SHARED_BYTES: i64 = 64 << 20;

/// What engines call no health check.
pub(crate) const NO_CHECK: &str = "NONE";
/// What the launcher is started with, as the container's first process.
pub(crate) const HOLDS: [&str; 2] = [LAUNCHER_WORD, "hold"];
/// The first argument of every launcher.
pub(crate) const LAUNCHER_WORD: &str = "inside";

/// What a container's commands find their machine to be called.
pub(crate) const HOSTNAME: &str = "sandbox";

/// The name of a sandbox's container.
pub(crate) fn name(id: &SandboxId) -> String {
    format!("stockade-{id}")
}

/// The user that commands run as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.user, self.group)
    }
}

/// What a plan does not say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings<'a> {
    pub(crate) kind: Kind,
    pub(crate) image: &'a ImageDigest,
    pub(crate) launcher: &'a Path,
    /// What stands in the place of the image's.
    pub(crate) placed: &'a [Placed],
    pub(crate) owner: &'a str,
    pub(crate) user: User,
    /// The filter of system calls, as an option.
    pub(crate) filter: &'a str,
    /// Whether the engine is an ordinary user's: then the user is mapped to itself.
    pub(crate) rootless: bool,
}

/// What the engine is asked for.
pub(crate) fn container(plan: &SandboxPlan, around: Surroundings<'_>) -> ContainerCreateBody {
    ContainerCreateBody {
        hostname: Some(HOSTNAME.to_owned()),
        user: Some(around.user.to_string()),
        env: Some(Vec::new()),
        entrypoint: Some(vec![LAUNCHER.to_owned()]),
        cmd: Some(HOLDS.map(str::to_owned).to_vec()),
        image: Some(image_name(around.image)),
        working_dir: Some("/".to_owned()),
        labels: Some(labels(&plan.id, around.owner)),
        // Docker would go into each new network namespace to forbid IPv6 there. Its process
        // for that tries without a pause while the kernel takes others away: a dozen at a time
        // have kept both processors of a machine for minutes. What there is of a network is
        // looked at from inside.
        network_disabled: Some(true),
        // An image's would be run by the engine, beside everything that looks at commands.
        healthcheck: Some(HealthConfig { test: Some(vec![NO_CHECK.to_owned()]), ..HealthConfig::default() }),
        host_config: Some(host_config(plan, around)),
        ..ContainerCreateBody::default()
    }
}

/// What says whose a container is.
pub(crate) fn labels(id: &SandboxId, owner: &str) -> HashMap<String, String> {
    let labels = [(SANDBOX_LABEL, id.to_string()), (OWNER_LABEL, owner.to_owned())];
    labels.map(|(key, value)| (key.to_owned(), value)).into()
}

/// An image that has no name is found by its digest alone.
pub(crate) fn image_name(image: &ImageDigest) -> String {
    image.as_str().to_owned()
}

fn host_config(plan: &SandboxPlan, around: Surroundings<'_>) -> HostConfig {
    let limits = &plan.profile.limits;
    let memory = limits.memory_bytes.map(signed);
    HostConfig {
        runtime: plan.runtime.as_ref().map(|runtime| runtime.as_str().to_owned()),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges".to_owned(), around.filter.to_owned()]),
        privileged: Some(false),
        readonly_rootfs: Some(true),
        network_mode: Some("none".to_owned()),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        userns_mode: around.rootless.then(|| "keep-id".to_owned()),
        mounts: Some(mounts(plan, around)),
        tmpfs: Some(temporary(limits.temp_bytes.unwrap_or(TEMP_BYTES), around)),
        shm_size: Some(SHARED_BYTES),
        memory,
        // Together with memory: there is no swap.
        memory_swap: memory,
        pids_limit: limits::processes(limits).map(signed),
        nano_cpus: limits.cpus_milli.map(|milli| signed(milli.saturating_mul(1_000_000))),
        ulimits: Some(ulimits(limits.open_files, limits.file_size_bytes)),
        init: Some(false),
        auto_remove: Some(false),
        log_config: Some(no_log()),
        ..HostConfig::default()
    }
}

/// What the launcher's processes say goes to who started them.
fn no_log() -> HostConfigLogConfig {
    HostConfigLogConfig { typ: Some("none".to_owned()), config: None }
}

/// A path as engines take it.
///
/// # Errors
/// Where it is no text: another file may be called what it would be taken for.
pub(crate) fn text_of(path: &Path) -> Result<&str, StartError> {
    path.to_str().ok_or_else(|| StartError {
        what: format!("a container engine cannot be told of {}: its name is no text", RawText::from(path).escaped()),
        hint: Some("rename it".to_owned()),
    })
}

/// The workspace, the home, the launcher, and who the user is. No other path of the host.
fn mounts(plan: &SandboxPlan, around: Surroundings<'_>) -> Vec<Mount> {
    let bind = |from: &Path, to: &str, read_only| Mount {
        typ: Some(MountType::BIND),
        source: Some(from.to_string_lossy().into_owned()),
        target: Some(to.to_owned()),
        read_only: Some(read_only),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    };
    let own = [
        bind(&plan.workspace, INSIDE_WORKSPACE, false),
        bind(&plan.home, INSIDE_HOME, false),
        bind(around.launcher, LAUNCHER, true),
    ];
    own.into_iter().chain(around.placed.iter().map(|(inside, from)| bind(from, inside, true))).collect()
}

/// They are the user's: a runtime gives each the mode that the image has there. Each
/// engine has its own word for that.
fn temporary(temp_bytes: u64, around: Surroundings<'_>) -> HashMap<String, String> {
    let owned = match around.kind {
        Kind::Docker => format!("uid={},gid={}", around.user.user, around.user.group),
        Kind::Podman => "U".to_owned(),
    };
    let of = |bytes: u64| format!("rw,nosuid,nodev,exec,size={bytes},mode=1777,{owned}");
    let [temp, run] = TEMPORARY;
    [(temp, of(temp_bytes)), (run, of(RUN_BYTES))].map(|(at, how)| (at.to_owned(), how)).into()
}

/// Every one that an engine would otherwise choose, and perhaps may not set. None is
/// higher than this process's own, or than what an engine has that was started with
/// little.
fn ulimits(open_files: Option<u64>, file_size_bytes: Option<u64>) -> Vec<ResourcesUlimits> {
    let of = |name: &str, resource: Resource, wanted: Option<u64>| {
        let own = getrlimit(resource).maximum;
        let amount = wanted.into_iter().chain(own).min().map_or(-1, signed);
        ResourcesUlimits { name: Some(name.to_owned()), soft: Some(amount), hard: Some(amount) }
    };
    vec![
        of("nofile", Resource::Nofile, open_files.or(Some(OPEN_FILES))),
        of("nproc", Resource::Nproc, Some(PROCESSES_OF_USER)),
        of("fsize", Resource::Fsize, file_size_bytes),
        of("core", Resource::Core, Some(0)),
    ]
}

fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}
