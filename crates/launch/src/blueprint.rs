//! A prepared start: strings, identities, filters, rules and the list of steps. All of it is
//! computed before the fork, so that the child decides nothing.

mod scratch;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::process::{getegid, geteuid};
use rustix::thread::CapabilitySet;
use stockade_limits::compute_quotas;
use stockade_model::{AttemptPlan, EnforcementReport, IsolationLevel, LayerReport, LayerState};
use stockade_sys::bpf::SeccompProgram;
use stockade_sys::landlock::{self, Ruleset, access, network, scope};

use crate::filter::{FilterSize, init_filter};

use super::command::{PreparedCommand, cwd_identity, find_candidates};
use super::error::LaunchError;
use super::layout::{
    IdentifiedDirectory, MountAttachment, MountKind, RootLayout, c_string, compute_layout, find_devices, is_staged,
    refuse_planted_link,
};
use super::merge::merge_steps;
use super::options::LaunchOptions;
use super::restricted::{ALLOWED_DEVICES, OPEN_DEVICE_DIRECTORIES, PrivateDirectory, ReadAllowList, other_devices};
use super::step::{InitStep, TempSize};

pub(super) use scratch::scratch_entries;

/// A tree that only the run sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateTree {
    /// Path of the tree in the run.
    pub path: PathBuf,
    /// True if Landlock lets the command write there without the broker. False if something
    /// writable of the host is beneath. Landlock's rights apply through mounts, so the broker must
    /// make every change there; the kernel would refuse a call that is continued.
    pub kernel_allows: bool,
}

/// A prepared start. It is used once.
#[derive(Debug)]
pub struct Blueprint {
    pub(super) level: IsolationLevel,
    pub(super) parts: LevelParts,
    /// Number of steps that are taken before the command's process is made.
    pub(super) alone: usize,
    /// The command. Absent for a persistent sandbox.
    pub(super) command: Option<PreparedCommand>,
    pub(super) isolation: NamespaceOwner,
    pub(super) init_filter: SeccompProgram,
    abi: u32,
}

/// The owner of the namespaces in which a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamespaceOwner {
    /// The command's own init makes them.
    Own,
    /// They belong to a persistent sandbox. Its init reaps the command, and the command's parent
    /// stays outside.
    Persistent,
}

impl Blueprint {
    /// Prepares the start of `plan`. It opens the needed descriptors and runs nothing.
    ///
    /// # Errors
    /// [`LaunchError`] if the plan cannot be carried out on this machine.
    pub fn prepare(plan: &AttemptPlan) -> Result<Self, LaunchError> {
        Self::prepare_with(plan, &LaunchOptions::default())
    }

    /// As [`prepare`](Self::prepare), with launch options.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare). Also if the plan stages its writes at level full without an
    /// overlay, and for replaced files at level restricted.
    pub fn prepare_with(plan: &AttemptPlan, launch_options: &LaunchOptions) -> Result<Self, LaunchError> {
        if is_staged(plan) && launch_options.overlay.is_none() && plan.level == IsolationLevel::Full {
            return Err(LaunchError::Unfit("writes are staged at level full, but there is no stage".to_owned()));
        }
        if !launch_options.files.is_empty() && plan.level != IsolationLevel::Full {
            return Err(LaunchError::Unfit("files can be replaced only at level full".to_owned()));
        }
        if plan.level == IsolationLevel::None {
            return Err(LaunchError::Unfit("level none has no sandbox to launch".to_owned()));
        }
        let abi = landlock::query_abi_version().map_err(LaunchError::Landlock)?;
        let candidates = find_candidates(plan)?;
        let mut parts = match plan.level {
            IsolationLevel::Full => prepare_full(plan, &candidates, abi, launch_options)?,
            IsolationLevel::Restricted | IsolationLevel::None => prepare_restricted(plan, abi, launch_options)?,
        };
        let temp = parts.private_directory.as_ref().map(PrivateDirectory::path);
        let mut command =
            PreparedCommand::new(plan, candidates, launch_options, temp.unwrap_or(Path::new(OWN_FILES_DIR)), temp)?;
        command.cwd_identity = cwd_identity(plan, &parts.private_trees)?;
        parts.steps.push(InitStep::DropPrivileges);
        let alone = if plan.level == IsolationLevel::Full { FIRST_STEP_COUNT } else { parts.steps.len() };
        Self::new(plan.level, parts, alone, Some(command), abi)
    }

    pub(super) fn new(
        level: IsolationLevel,
        parts: LevelParts,
        alone: usize,
        command: Option<PreparedCommand>,
        abi: u32,
    ) -> Result<Self, LaunchError> {
        let init_filter = init_filter(level)?;
        Ok(Self { level, parts, alone, command, isolation: NamespaceOwner::Own, init_filter, abi })
    }

    /// Removes the broker and Landlock's refusals, which only make sense together. The rest shows
    /// the cost of writes in the mounts alone. For measurements; no release contains it.
    ///
    /// # Errors
    /// If the kernel has no Landlock.
    #[cfg(feature = "measure")]
    pub fn without_broker(mut self) -> Result<Self, LaunchError> {
        let filter = crate::filter::unasked_filter(self.level)?;
        self.command.iter_mut().for_each(|command| command.filter = filter.clone());
        self.parts.ruleset = Some(new_ruleset(self.abi, 0, 0)?);
        Ok(self)
    }

    /// Returns the trees that only the run sees, with their paths in the run.
    pub fn private_trees(&self) -> &[PrivateTree] {
        &self.parts.private_trees
    }

    /// Returns the writable paths of the plan that do not exist. Only existing paths can be
    /// attached, so the root stays read-only there.
    pub fn missing_paths(&self) -> &[PathBuf] {
        &self.parts.missing
    }

    /// Returns the number of steps of the init.
    pub(super) fn step_count(&self) -> usize {
        self.parts.steps.len()
    }

    /// Returns the name and description of the init's step `index`, for errors.
    pub(super) fn step_text(&self, index: u32) -> (&'static str, String) {
        let index = index as usize;
        match self.parts.steps.get(index) {
            Some(step) => {
                let (name, _, detail) = step.texts();
                (name, detail)
            }
            None if index == self.parts.steps.len() => ("start", "make the command's process".to_owned()),
            None => ("supervise", "watch over the command".to_owned()),
        }
    }

    /// Returns the descriptors that the child needs, beyond the sockets and streams.
    pub(super) fn held_descriptors(&self) -> impl Iterator<Item = RawFd> {
        let rules = self.parts.ruleset.iter().map(|rules| rules.as_fd());
        let isolation = self.parts.steps.iter().filter_map(|step| match step {
            InitStep::Enter(isolation) => Some(isolation.fds()),
            _ => None,
        });
        rules.chain(isolation.flatten()).map(|fd| fd.as_raw_fd())
    }

    /// Returns the report on the layers that are enforced once every step was applied. `ipv6` is
    /// true if the run's own network has IPv6, if there is one. `watched` is true if openings of
    /// hidden paths are reported.
    pub(super) fn build_report(&self, wait_killable: bool, ipv6: Option<bool>, watched: bool) -> EnforcementReport {
        let mut layers: BTreeMap<String, LayerReport> = BTreeMap::new();
        for step in self.parts.steps.iter().filter(|step| watched || !matches!(step, InitStep::Watch(_))) {
            let (_, layer, detail) = step.texts();
            let layer = layers
                .entry(layer.to_owned())
                .or_insert_with(|| LayerReport { state: LayerState::Enforced, detail: String::new() });
            let separator = if layer.detail.is_empty() { "" } else { "; " };
            layer.detail.push_str(separator);
            layer.detail.push_str(&detail);
        }
        if self.level == IsolationLevel::Full && self.isolation == NamespaceOwner::Own {
            let own = "a namespace of its own";
            for name in ["pid-namespace", "ipc-namespace", "uts-namespace", "cgroup-namespace"] {
                layers.insert(name.to_owned(), LayerReport { state: LayerState::Enforced, detail: own.to_owned() });
            }
        }
        if let (Some(false), Some(network)) = (ipv6, layers.get_mut("network-namespace")) {
            network.detail.push_str("; only IPv4: the kernel has no IPv6");
        }
        if self.parts.ruleset.is_some() {
            layers.insert("landlock".to_owned(), self.landlock_report());
        }
        if let Some(command) = &self.command {
            layers.insert("seccomp".to_owned(), seccomp_report(command, wait_killable));
        }
        if self.isolation == NamespaceOwner::Own {
            layers.insert("credentials".to_owned(), self.credentials_report(watched));
        }
        if !self.parts.missing.is_empty() {
            let detail = format!(
                "{} writable paths have no mount or are single files: only the broker makes and removes them",
                self.parts.missing.len()
            );
            layers.insert("unattached".to_owned(), LayerReport { state: LayerState::Enforced, detail });
        }
        EnforcementReport { level: self.level, layers }
    }

    fn credentials_report(&self, watched: bool) -> LayerReport {
        let covered = match self.parts.uncovered {
            0 => "every path to hide is hidden".to_owned(),
            paths => format!(
                "existing paths are hidden; {paths} paths are missing, and not covered if they appear during the run"
            ),
        };
        // At level restricted there are no watches: Landlock refuses and reports nothing.
        if watched || self.parts.hidden.is_empty() {
            let state = if self.parts.uncovered == 0 { LayerState::Enforced } else { LayerState::Partial };
            return LayerReport { state, detail: covered };
        }
        let detail = format!(
            "{covered}; opens are not reported: the user's other programs use all of fs.inotify.max_user_instances"
        );
        LayerReport { state: LayerState::Partial, detail }
    }

    fn landlock_report(&self) -> LayerReport {
        let mut lacks = Vec::new();
        for (needs, what) in [(2, "renames across directories fail"), (3, "truncation"), (5, "ioctl on devices")] {
            if self.abi < needs {
                lacks.push(what);
            }
        }
        // At level full the PID and network namespaces confine these.
        if self.abi < 6 && self.level == IsolationLevel::Restricted {
            lacks.push("signals to other processes of the user");
        }
        if lacks.is_empty() {
            LayerReport { state: LayerState::Enforced, detail: format!("ABI {}", self.abi) }
        } else {
            LayerReport {
                state: LayerState::Partial,
                detail: format!("ABI {}, without: {}", self.abi, lacks.join(", ")),
            }
        }
    }
}

fn seccomp_report(command: &PreparedCommand, wait_killable: bool) -> LayerReport {
    let FilterSize { refused, broker_entries } = command.filter_size;
    let counts =
        format!("{refused} refused calls, {broker_entries} brokered calls, {} instructions", command.filter.len());
    if wait_killable {
        LayerReport { state: LayerState::Enforced, detail: counts }
    } else {
        LayerReport {
            state: LayerState::Partial,
            detail: format!("{counts}; signals interrupt brokered calls (the kernel is older than 5.19)"),
        }
    }
}

/// The parts that differ between the levels.
#[derive(Debug, Default)]
pub(super) struct LevelParts {
    pub(super) steps: Vec<InitStep>,
    /// The command's rights without the broker; absent if there is no command.
    pub(super) ruleset: Option<Ruleset>,
    pub(super) private_trees: Vec<PrivateTree>,
    pub(super) missing: Vec<PathBuf>,
    /// True if the caller maps root. An ordinary user maps itself.
    pub(super) mapped_by_caller: bool,
    /// Hidden paths, in the order of their watches.
    pub(super) hidden: Vec<PathBuf>,
    pub(super) uncovered: usize,
    pub(super) private_directory: Option<PrivateDirectory>,
}

/// The private tree of level full that holds the run's own files.
const OWN_FILES_DIR: &str = "/run";

fn prepare_full(
    plan: &AttemptPlan,
    candidates: &[CString],
    abi: u32,
    launch_options: &LaunchOptions,
) -> Result<LevelParts, LaunchError> {
    let program = candidates.first().map(|c| Path::new(std::ffi::OsStr::from_bytes(c.to_bytes())));
    let program = program.and_then(|p| p.canonicalize().ok());
    let RootLayout { attachments, missing, uncovered } = compute_layout(plan, program.as_deref(), launch_options)?;
    let ruleset = new_ruleset(abi, access::change_rights(abi), 0)?;
    let mapped_by_caller = may_map_for_others();
    let mut steps = Vec::from(first_steps(mapped_by_caller)?);
    steps.push(InitStep::Quotas(compute_quotas(&plan.profile.limits)));
    let size = plan.profile.limits.temp_bytes.map(TempSize::new).transpose()?;
    if let Some(overlay) = &launch_options.overlay {
        let workspace = IdentifiedDirectory::at_path(plan.workspace.as_path())?;
        steps.push(InitStep::Stage { workspace, overlay: overlay.clone() });
    }
    steps.extend(merge_steps(&attachments));
    steps.extend([InitStep::Root { size }, InitStep::Scratch(scratch_entries(&attachments, launch_options)?)]);
    // As late as possible, because the layers are requested meanwhile.
    steps.extend(launch_options.has_borrowed_layers().then_some(InitStep::TakeLayers));
    let private_trees = private_trees(&attachments);
    let (mut hidden, mut watched) = (Vec::new(), Vec::new());
    for attachment in attachments.iter().filter(|attachment| matches!(attachment.mount_kind, MountKind::Hidden(_))) {
        hidden.push(attachment.own_path());
        watched.push(attachment.placeholder.clone());
    }
    steps.extend(attach_steps(attachments)?);
    if !watched.is_empty() {
        steps.push(InitStep::Watch(watched));
    }
    steps.push(InitStep::SwapRoot);
    Ok(LevelParts {
        steps,
        ruleset: Some(ruleset),
        private_trees,
        hidden,
        missing,
        uncovered,
        mapped_by_caller,
        ..LevelParts::default()
    })
}

/// Returns the steps that attach these objects.
pub(super) fn attach_steps(attachments: Vec<MountAttachment>) -> Result<Vec<InitStep>, LaunchError> {
    let mut steps = Vec::with_capacity(attachments.len() + 1);
    for attachment in attachments {
        let is_devices = attachment.mount_kind == MountKind::Devices;
        steps.push(InitStep::Attach(attachment));
        if is_devices {
            steps.push(InitStep::Devices(find_devices()?));
        }
    }
    Ok(steps)
}

/// Number of [`first_steps`].
pub(super) const FIRST_STEP_COUNT: usize = 7;

/// Returns the steps with which level full always begins, whatever the plan.
pub(super) fn first_steps(mapped_by_caller: bool) -> Result<[InitStep; FIRST_STEP_COUNT], LaunchError> {
    let identity = if mapped_by_caller { InitStep::AwaitIdentity } else { claim_identity()? };
    Ok([
        InitStep::Namespaces,
        identity,
        InitStep::KeyRing,
        InitStep::Network,
        InitStep::PrivateMounts,
        InitStep::Proc,
        InitStep::CopyRoot,
    ])
}

fn prepare_restricted(plan: &AttemptPlan, abi: u32, launch_options: &LaunchOptions) -> Result<LevelParts, LaunchError> {
    let files = &plan.profile.filesystem;
    let mut hidden = launch_options.hidden_there(plan).into_owned();
    let uncovered = files.hide.len() - hidden.len();
    // File permissions do not keep root from the disks. A surrounding sandbox has a few devices of
    // its own.
    if !launch_options.is_within_isolation() {
        hidden.push(PathBuf::from("/dev"));
        hidden.extend(other_devices());
    }
    let reads = if hidden.is_empty() { 0 } else { access::READ_FILE };
    // The broker connects on the command's behalf; the command itself cannot connect.
    let ports = match (abi >= 4, launch_options.own_network) {
        (false, _) => 0,
        (true, true) => network::CONNECT_TCP,
        (true, false) => network::BIND_TCP | network::CONNECT_TCP,
    };
    // A surrounding network of the sandbox's own separates such names already.
    let abstract_names = if launch_options.is_within_isolation() { 0 } else { scope::ABSTRACT_UNIX_SOCKET };
    let scoped = if abi >= 6 { scope::SIGNAL | abstract_names } else { 0 };
    let handled = access::change_rights(abi) | reads;
    let ruleset = Ruleset::new(abi, handled, ports, scoped).map_err(LaunchError::Landlock)?;
    let devices: Vec<PathBuf> = ALLOWED_DEVICES.iter().map(PathBuf::from).filter(|path| path.exists()).collect();
    for device in &devices {
        allow_path(&ruleset, device, access::WRITE_FILE | access::TRUNCATE | access::IOCTL_DEV)?;
    }
    let mut missing = Vec::new();
    for path in files.write.iter().map(|p| p.as_path()) {
        match path.canonicalize() {
            Ok(real) => refuse_planted_link(plan, path, &real)?,
            Err(_) => missing.push(path.to_owned()),
        }
    }
    if reads != 0 {
        let agreed = files.reveal.iter().chain(&files.write).filter_map(|p| p.as_path().canonicalize().ok());
        let shown: Vec<PathBuf> =
            agreed.chain(devices).chain(OPEN_DEVICE_DIRECTORIES.iter().map(PathBuf::from)).collect();
        ReadAllowList::new(&hidden, &shown).allow_reads(&ruleset)?;
    }
    let mut parts = private_directories(launch_options, &ruleset, access::change_rights(abi) | reads)?;
    if let Some(kept) = &launch_options.kept {
        allow_path(&ruleset, kept, access::change_rights(abi) | reads)?;
        parts.private_trees.push(PrivateTree { path: kept.clone(), kernel_allows: true });
    }
    parts.steps.extend([InitStep::KeyRing, InitStep::AdoptOrphans]);
    for named in &launch_options.named {
        parts.steps.push(InitStep::OwnFile { name: named.file_name()?, content: named.content.clone() });
    }
    if may_map_for_others() {
        parts.steps.push(InitStep::LeaveGroups);
    }
    Ok(LevelParts { ruleset: Some(ruleset), missing, uncovered, ..parts })
}

/// Returns the directories in which a run without a mount namespace may write: one that is made for the
/// run and removed with it, or those of the surrounding sandbox.
fn private_directories(
    launch_options: &LaunchOptions,
    ruleset: &Ruleset,
    rights: u64,
) -> Result<LevelParts, LaunchError> {
    let tree = |path: &Path| PrivateTree { path: path.to_owned(), kernel_allows: true };
    if !launch_options.is_within_isolation() {
        let directory = PrivateDirectory::choose_name()?;
        let steps = vec![InitStep::PrivateDirectory { path: c_string(directory.path().as_os_str())?, rights }];
        let private_trees = vec![tree(directory.path())];
        return Ok(LevelParts { steps, private_trees, private_directory: Some(directory), ..LevelParts::default() });
    }
    if !launch_options.named.is_empty() {
        return Err(LaunchError::Unfit("a private file of the run needs a private directory".to_owned()));
    }
    launch_options.private.iter().try_for_each(|path| allow_path(ruleset, path, rights))?;
    let private_trees = launch_options.private.iter().map(|path| tree(path)).collect();
    Ok(LevelParts { private_trees, ..LevelParts::default() })
}

fn new_ruleset(abi: u32, handled: u64, ports: u64) -> Result<Ruleset, LaunchError> {
    let scoped = if abi >= 6 { scope::SIGNAL | scope::ABSTRACT_UNIX_SOCKET } else { 0 };
    Ruleset::new(abi, handled, ports, scoped).map_err(LaunchError::Landlock)
}

/// Allows `rights` on the object that is at `path` now.
pub(super) fn allow_path(ruleset: &Ruleset, path: &Path, rights: u64) -> Result<(), LaunchError> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let why = |e: rustix::io::Errno| LaunchError::Path { path: path.to_owned(), why: e.to_string() };
    let object = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(why)?;
    ruleset.allow_beneath(object.as_fd(), rights).map_err(why)
}

/// Returns whether this process may map its user from outside. Root with its capabilities does so
/// and can then drop its groups. Other users may only map themselves, without a right to set
/// groups. A root user that an ordinary user has mapped may not change its groups either
/// (user_namespaces(7), `/proc/self/setgroups`).
pub fn may_map_for_others() -> bool {
    // This process cannot change the result.
    static MAY_MAP_OTHERS: OnceLock<bool> = OnceLock::new();
    *MAY_MAP_OTHERS.get_or_init(|| {
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::SETFCAP;
        rustix::thread::capabilities(None).is_ok_and(|c| c.effective.contains(needed))
            && std::fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "allow")
    })
}

pub(super) fn claim_identity() -> Result<InitStep, LaunchError> {
    let map = |id: u32| CString::new(format!("{id} {id} 1"));
    match (map(geteuid().as_raw()), map(getegid().as_raw())) {
        (Ok(uid_map), Ok(gid_map)) => Ok(InitStep::ClaimIdentity { uid_map, gid_map }),
        _ => Err(LaunchError::Unfit("the user's number cannot be written".to_owned())),
    }
}

pub(super) fn private_trees(attachments: &[MountAttachment]) -> Vec<PrivateTree> {
    let tree = |path: PathBuf, kernel_allows| PrivateTree { path, kernel_allows };
    let mut trees = Vec::new();
    for attachment in attachments {
        let path = attachment.own_path();
        match &attachment.mount_kind {
            MountKind::Private(_) | MountKind::Kept => trees.push(tree(path, attachment.kernel_allows)),
            MountKind::Merged(merged) if merged.is_whole() => trees.push(tree(path, true)),
            MountKind::Merged(merged) => {
                let within = |name: &CString| path.join(std::ffi::OsStr::from_bytes(name.as_bytes()));
                trees.extend(merged.directories.iter().map(|name| tree(within(name), true)));
                trees.extend(merged.files.iter().map(|name| tree(within(name), false)));
            }
            _ => {}
        }
    }
    trees
}
