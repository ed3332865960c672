//! Specification of a container. Every option is set, because the defaults differ between engines.

use std::collections::HashMap;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, ResourcesUlimits,
};
use rustix::process::{Resource, getrlimit};
use stockade_backend_api::{INSIDE_HOME, INSIDE_WORKSPACE, SandboxPlan, StartError};
use stockade_model::{ImageDigest, RawText, SandboxId};

use crate::accounts::BindMountPair;
use crate::{ContainerEngineKind, limits};

/// Path of the launcher in the container.
pub(crate) const LAUNCHER_PATH: &str = "/.stockade";
/// Label with the sandbox of a container.
pub(crate) const SANDBOX_LABEL: &str = "stockade.sandbox";
/// Label with the owner of the list of sandboxes.
pub(crate) const OWNER_LABEL: &str = "stockade.owner";
/// Default size of the private temporary directory, in bytes of memory.
const DEFAULT_TEMP_BYTES: u64 = 1 << 30;
/// Private temporary directories.
pub(crate) const TEMPORARY_DIRS: [&str; 2] = ["/tmp", "/run"];
/// Size of `/run`, in bytes.
const RUN_DIR_BYTES: u64 = 16 << 20;
/// Default number of open files of one process.
const DEFAULT_OPEN_FILES: u64 = 16_384;
/// Limit for all processes of the user: Podman's own. The sandbox has a limit of its own.
const USER_PROCESSES_MAX: u64 = 32_768;
/// Shared memory of all commands, in bytes: the default of container engines.
const SHARED_MEMORY_BYTES: i64 = 64 << 20;

/// Value for no health check.
pub(crate) const NO_HEALTH_CHECK: &str = "NONE";
/// Arguments of the launcher as the container's first process.
pub(crate) const HOLD_COMMAND: [&str; 2] = [LAUNCHER_WORD, "hold"];
/// First argument of every launcher.
pub(crate) const LAUNCHER_WORD: &str = "inside";

/// Host name in a container.
pub(crate) const HOSTNAME: &str = "sandbox";

/// Returns the name of a sandbox's container.
pub(crate) fn container_name(id: &SandboxId) -> String {
    format!("stockade-{id}")
}

/// User that runs commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContainerUser {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

impl std::fmt::Display for ContainerUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.user, self.group)
    }
}

/// Parameters that a plan does not contain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainerContext<'a> {
    pub(crate) kind: ContainerEngineKind,
    pub(crate) image: &'a ImageDigest,
    pub(crate) launcher: &'a Path,
    /// Mounts that replace files of the image.
    pub(crate) placed: &'a [BindMountPair],
    pub(crate) owner: &'a str,
    pub(crate) user: ContainerUser,
    /// The filter of system calls, as an option.
    pub(crate) filter: &'a str,
    /// True if the engine runs as an ordinary user: then the user is mapped to itself.
    pub(crate) rootless: bool,
}

/// Returns the request to the engine.
pub(crate) fn create_request(plan: &SandboxPlan, around: ContainerContext<'_>) -> ContainerCreateBody {
    ContainerCreateBody {
        hostname: Some(HOSTNAME.to_owned()),
        user: Some(around.user.to_string()),
        env: Some(Vec::new()),
        working_dir: Some("/".to_owned()),
        // The engine would run an image's health check, outside every check of commands.
        healthcheck: Some(HealthConfig { test: Some(vec![NO_HEALTH_CHECK.to_owned()]), ..HealthConfig::default() }),
        host_config: Some(host_config(plan, around)),
        ..launcher_request(around.image, owner_labels(&plan.id, around.owner))
    }
}

/// Returns the part of a request that every container of an image has: its first process, and no
/// network.
pub(crate) fn launcher_request(image: &ImageDigest, labels: HashMap<String, String>) -> ContainerCreateBody {
    ContainerCreateBody {
        entrypoint: Some(vec![LAUNCHER_PATH.to_owned()]),
        cmd: Some(HOLD_COMMAND.map(str::to_owned).to_vec()),
        // An image without a name can only be found by its digest.
        image: Some(image.as_str().to_owned()),
        labels: Some(labels),
        // Docker would enter each new network namespace to disable IPv6 there. Its process for that
        // retries without a pause while the kernel removes other namespaces. A dozen of them at a
        // time have kept both processors of a machine busy for minutes. Instead, the network is
        // checked from inside.
        network_disabled: Some(true),
        ..ContainerCreateBody::default()
    }
}

/// Returns the labels with the owner of a container.
pub(crate) fn owner_labels(id: &SandboxId, owner: &str) -> HashMap<String, String> {
    let labels = [(SANDBOX_LABEL, id.to_string()), (OWNER_LABEL, owner.to_owned())];
    labels.map(|(key, value)| (key.to_owned(), value)).into()
}

fn host_config(plan: &SandboxPlan, around: ContainerContext<'_>) -> HostConfig {
    let limits = &plan.profile.limits;
    let memory = limits.memory_bytes.map(saturating_signed);
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
        mounts: Some(container_mounts(plan, around)),
        tmpfs: Some(temporary_dirs(limits.temp_bytes.unwrap_or(DEFAULT_TEMP_BYTES), around)),
        shm_size: Some(SHARED_MEMORY_BYTES),
        memory,
        // Includes memory, so that there is no swap.
        memory_swap: memory,
        pids_limit: limits::engine_process_limit(limits).map(saturating_signed),
        nano_cpus: limits.cpus_milli.map(|milli| saturating_signed(milli.saturating_mul(1_000_000))),
        ulimits: Some(resource_limits(limits.open_files, limits.file_size_bytes)),
        init: Some(false),
        auto_remove: Some(false),
        // The output of the launcher's processes is sent to their starter.
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        ..HostConfig::default()
    }
}

/// Returns a path as engines accept it.
///
/// # Errors
/// [`StartError`] if it is not valid UTF-8, because the engine could take it for another file.
pub(crate) fn text_of(path: &Path) -> Result<&str, StartError> {
    path.to_str().ok_or_else(|| StartError {
        what: format!(
            "cannot pass {} to the container engine: its name is not valid UTF-8",
            RawText::from(path).to_escaped()
        ),
        hint: Some("rename it".to_owned()),
    })
}

/// Returns the mounts: the workspace, the home directory, the launcher, and the user files. No
/// other path of the host.
fn container_mounts(plan: &SandboxPlan, around: ContainerContext<'_>) -> Vec<Mount> {
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
        bind(around.launcher, LAUNCHER_PATH, true),
    ];
    own.into_iter().chain(around.placed.iter().map(|(inside, from)| bind(from, inside, true))).collect()
}

/// Returns the temporary directories, owned by the user; a runtime would apply the mode of the
/// image's directory. Each engine has another option for the owner.
fn temporary_dirs(temp_bytes: u64, around: ContainerContext<'_>) -> HashMap<String, String> {
    let owned = match around.kind {
        ContainerEngineKind::Docker => format!("uid={},gid={}", around.user.user, around.user.group),
        ContainerEngineKind::Podman => "U".to_owned(),
    };
    let of = |bytes: u64| format!("rw,nosuid,nodev,exec,size={bytes},mode=1777,{owned}");
    let [temp, run] = TEMPORARY_DIRS;
    [(temp, of(temp_bytes)), (run, of(RUN_DIR_BYTES))].map(|(at, how)| (at.to_owned(), how)).into()
}

/// Returns every limit that an engine would otherwise choose, and perhaps may not set. None exceeds
/// this process's own limit, or that of an engine that was started with low limits.
fn resource_limits(open_files: Option<u64>, file_size_bytes: Option<u64>) -> Vec<ResourcesUlimits> {
    let of = |name: &str, resource: Resource, requested_limit: Option<u64>| {
        let own = getrlimit(resource).maximum;
        let amount = requested_limit.into_iter().chain(own).min().map_or(-1, saturating_signed);
        ResourcesUlimits { name: Some(name.to_owned()), soft: Some(amount), hard: Some(amount) }
    };
    vec![
        of("nofile", Resource::Nofile, open_files.or(Some(DEFAULT_OPEN_FILES))),
        of("nproc", Resource::Nproc, Some(USER_PROCESSES_MAX)),
        of("fsize", Resource::Fsize, file_size_bytes),
        of("core", Resource::Core, Some(0)),
    ]
}

fn saturating_signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}
