//! Persistent isolation for many commands, one after the other or at the same time: an init without
//! a command, and processes that enter later.
//!
//! The root is empty except for the named objects. Of the host's files it has only the system (see
//! [`SYSTEM_DIRECTORIES`]), read-only, and the directories that may be written. Each command enters as a child
//! of a process that stays outside, with a seccomp filter, a listener and a Landlock domain of its
//! own. The init adopts the processes that a command leaves behind.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use stockade_model::{AttemptPlan, EnforcementReport, IsolationLevel, Profile, RawText};
use stockade_sys::landlock::{self, Ruleset, access};

use stockade_limits::compute_quotas;

use super::blueprint::{
    Blueprint, FIRST_STEP_COUNT, LevelParts, NamespaceOwner, PrivateTree, attach_steps, first_steps,
    may_map_for_others, private_trees, scratch_entries,
};
use super::command::{PreparedCommand, every_candidate};
use super::error::LaunchError;
use super::launched::{CommandStdio, LaunchedSandbox, LaunchingSandbox, begin_launch};
use super::layout::{
    DeviceNode, KERNEL_MASKS, MountAttachment, MountKind, PRIVATE_TREE_NAMES, c_string, find_devices,
    is_plain_directory, placeholder_children, provided_at, select_attachments,
};
use super::namespaces::NamespaceSet;
use super::network::NetworkSockets;
use super::options::LaunchOptions;
use super::step::{InitStep, ScratchEntry, TempSize, attachment_rights};

/// System directories of the host's root: programs, libraries, settings.
const SYSTEM_DIRECTORIES: [&str; 9] = ["bin", "etc", "lib", "lib32", "lib64", "libx32", "opt", "sbin", "usr"];
/// Entries of a root tree that are not its system, because the sandbox has its own. All other
/// entries are.
const NON_SYSTEM_NAMES: [&str; 7] = ["dev", "home", "proc", "run", "sys", "tmp", "workspace"];
/// Most entries of a root tree that are read.
const MAX_ROOT_ENTRIES: usize = 256;

/// Specification of the root and the isolation.
#[derive(Clone, Debug)]
pub struct RootSpec<'a> {
    /// A root tree with the system that is shown inside; absent for the host's.
    pub system: Option<&'a Path>,
    /// Directories that may be written: the path inside, and the path on the host.
    pub trees: Vec<(&'a Path, &'a Path)>,
    /// The powers for which the isolation is built.
    pub profile: &'a Profile,
    /// Read-only files that replace files of the system.
    pub files: Vec<(PathBuf, Vec<u8>)>,
}

/// A persistent set of namespaces. Dropping it kills every process within and waits for their end.
#[derive(Debug)]
pub struct PersistentNamespaces {
    launched: LaunchedSandbox,
    isolation: Arc<NamespaceSet>,
    /// Rights that every command has without the broker.
    rights: Vec<(CString, u64)>,
    /// The directories that may be written, as paths inside.
    trees: Vec<PathBuf>,
    /// The hidden paths, as the profile names them.
    hidden: Vec<RawText>,
    private_trees: Vec<PrivateTree>,
    abi: u32,
    leaves_groups: bool,
}

impl PersistentNamespaces {
    /// Builds the namespaces and the root. On an error nothing is left behind.
    ///
    /// # Errors
    /// [`LaunchError`] names the step and the kernel's error.
    pub fn build(root_spec: &RootSpec<'_>) -> Result<Self, LaunchError> {
        let abi = landlock::query_abi_version().map_err(LaunchError::Landlock)?;
        let system = list_system_entries(root_spec.system)?;
        let attachments = select_attachments(plan_mount_kinds(root_spec, &system)?)?;
        let private_trees = private_trees(&attachments);
        let rights = own_rights(&attachments)?;
        let leaves_groups = may_map_for_others();
        let steps = build_steps(root_spec, build_root_entries(root_spec, &system)?, attachments, leaves_groups)?;
        let alone = steps.len();
        let parts = LevelParts {
            steps,
            private_trees: private_trees.clone(),
            mapped_by_caller: leaves_groups,
            ..LevelParts::default()
        };
        let blueprint = Blueprint::new(IsolationLevel::Full, parts, alone, None, abi)?;
        let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(LaunchError::call_error("open /dev/null"))?;
        let nothing = nothing.as_fd();
        let mut launched = begin_launch(blueprint, CommandStdio { stdin: nothing, stdout: nothing, stderr: nothing })?
            .finish_without_command()?;
        let isolation = Arc::new(launched.take_namespaces().ok_or(LaunchError::Lost)?);
        Ok(Self {
            launched,
            isolation,
            rights,
            trees: root_spec.trees.iter().map(|(inside, _)| (*inside).to_owned()).collect(),
            hidden: root_spec.profile.filesystem.hide.clone(),
            private_trees,
            abi,
            leaves_groups,
        })
    }

    /// Starts making a command within.
    ///
    /// # Errors
    /// [`LaunchError`] if the isolation does not match the plan, or if not even the first process
    /// could be made.
    pub fn begin_command(
        &self,
        plan: &AttemptPlan,
        launch_options: &LaunchOptions,
        stdio: CommandStdio<'_>,
    ) -> Result<LaunchingSandbox, LaunchError> {
        self.require_fit(plan, launch_options)?;
        let command = PreparedCommand::new(plan, every_candidate(plan)?, launch_options, Path::new("/run"), None)?;
        let mut steps = vec![InitStep::Enter(Arc::clone(&self.isolation))];
        if self.leaves_groups {
            steps.push(InitStep::LeaveGroups);
        }
        steps.extend([
            InitStep::KeyRing,
            InitStep::Allow(self.rights.clone()),
            InitStep::DropPrivileges,
            InitStep::Opaque,
        ]);
        let alone = steps.len();
        // Nothing is scoped, because all commands share the isolation. They may signal each other
        // and connect by any name within.
        let rules = Ruleset::new(self.abi, access::change_rights(self.abi), 0, 0).map_err(LaunchError::Landlock)?;
        let parts = LevelParts {
            steps,
            ruleset: Some(rules),
            private_trees: self.private_trees.clone(),
            missing: self.missing_writable_paths(plan),
            ..LevelParts::default()
        };
        let mut blueprint = Blueprint::new(IsolationLevel::Full, parts, alone, Some(command), self.abi)?;
        blueprint.isolation = NamespaceOwner::Persistent;
        begin_launch(blueprint, stdio)
    }

    /// Returns the process ID of the init, as the caller sees it.
    pub fn init_pid(&self) -> u32 {
        self.launched.init_pid()
    }

    /// Returns a descriptor that is readable when the init and all processes within are gone.
    pub fn end_fd(&self) -> BorrowedFd<'_> {
        self.launched.end_fd()
    }

    /// Returns the report on the layers that the kernel enforces.
    pub fn enforcement_report(&self) -> &EnforcementReport {
        self.launched.report()
    }

    /// Returns the caller's sockets of the network.
    pub fn take_network(&mut self) -> Option<NetworkSockets> {
        self.launched.take_network()
    }

    /// Returns whether `path`, as it is seen inside, is in a directory that may be written.
    pub fn is_writable(&self, path: &Path) -> bool {
        self.trees.iter().any(|tree| path.starts_with(tree))
    }

    fn require_fit(&self, plan: &AttemptPlan, launch_options: &LaunchOptions) -> Result<(), LaunchError> {
        let unfit = |why: String| Err(LaunchError::Unfit(why));
        let files = &plan.profile.filesystem;
        if plan.level != IsolationLevel::Full {
            return unfit(format!("its isolation has level full, but the plan requests {}", plan.level));
        }
        if files.stage {
            return unfit("writes in a sandbox are not staged: they stay there until you copy them out".to_owned());
        }
        if !launch_options.files.is_empty() || !launch_options.named.is_empty() {
            return unfit("an existing sandbox already has its files".to_owned());
        }
        match files.hide.iter().find(|path| !self.hidden.contains(path)) {
            Some(path) => unfit(format!("the sandbox was created without {} being hidden", path.to_escaped())),
            None => Ok(()),
        }
    }

    /// Returns the writable paths of the plan that do not exist here.
    fn missing_writable_paths(&self, plan: &AttemptPlan) -> Vec<PathBuf> {
        let private = |path: &Path| self.private_trees.iter().any(|tree| path.starts_with(&tree.path));
        let paths = plan.profile.filesystem.write.iter().map(RawText::as_path);
        paths.filter(|path| !self.is_writable(path) && !private(path)).map(Path::to_owned).collect()
    }
}

fn build_steps(
    root_spec: &RootSpec<'_>,
    skeleton: Vec<ScratchEntry>,
    attachments: Vec<MountAttachment>,
    mapped_by_caller: bool,
) -> Result<Vec<InitStep>, LaunchError> {
    let limits = &root_spec.profile.limits;
    let launch_options = LaunchOptions { files: root_spec.files.clone(), ..LaunchOptions::default() };
    // All first steps but the copy of the host's root.
    let mut steps: Vec<InitStep> = first_steps(mapped_by_caller)?.into_iter().take(FIRST_STEP_COUNT - 1).collect();
    let size = limits.temp_bytes.map(TempSize::new).transpose()?;
    steps.extend([
        InitStep::EmptyRoot(skeleton),
        InitStep::Quotas(compute_quotas(limits)),
        InitStep::Root { size },
        InitStep::Scratch(scratch_entries(&attachments, &launch_options)?),
    ]);
    steps.extend(attach_steps(attachments)?);
    steps.extend([InitStep::SwapRoot, InitStep::HoldNamespaces, InitStep::DropPrivileges]);
    Ok(steps)
}

/// Returns the kind of mount at each path.
fn plan_mount_kinds(
    root_spec: &RootSpec<'_>,
    system: &[(PathBuf, PathBuf)],
) -> Result<BTreeMap<PathBuf, MountKind>, LaunchError> {
    let mut natures = BTreeMap::from([(PathBuf::from("/dev"), MountKind::Devices)]);
    // If a root tree contains a parent of the path, it must contain the path as well.
    let is_attached = |path: &Path| {
        let around = system.iter().find(|(inside, _)| path.starts_with(inside));
        around.is_none_or(|(inside, from)| is_plain_directory(&from.join(path.strip_prefix(inside).unwrap_or(path))))
    };
    let is_there = |path: &Path| is_plain_directory(path) && is_attached(path);
    for (path, name) in PRIVATE_TREE_NAMES.iter().filter(|(path, _)| is_there(Path::new(path))) {
        natures.insert(PathBuf::from(path), MountKind::Private(name));
    }
    let is_there = |path: &&str| path.starts_with("/proc") && Path::new(path).symlink_metadata().is_ok();
    natures.extend(KERNEL_MASKS.names().filter(is_there).map(|path| (PathBuf::from(path), MountKind::Masked)));
    for (inside, from) in system.iter().filter(|(_, from)| is_plain_directory(from)) {
        natures.insert(inside.clone(), MountKind::Brought { from: from.clone(), writable: false });
    }
    if root_spec.system.is_none() {
        let hide = root_spec.profile.filesystem.hide.iter().filter_map(|path| path.as_path().canonicalize().ok());
        let is_shown = |path: &PathBuf| system.iter().any(|(_, from)| path.starts_with(from));
        for path in hide.filter(is_shown) {
            let children = placeholder_children(&path);
            natures.insert(path, MountKind::Hidden(children));
        }
        for (index, (path, _)) in root_spec.files.iter().enumerate() {
            natures.insert(provided_at(path)?, MountKind::Provided(index));
        }
    }
    for (inside, from) in &root_spec.trees {
        let why = |e: std::io::Error| LaunchError::Path { path: from.to_path_buf(), why: e.to_string() };
        let from = from.canonicalize().map_err(why)?;
        for path in &root_spec.profile.filesystem.hide {
            let Some(found) =
                path.as_path().strip_prefix(inside).ok().and_then(|path| from.join(path).canonicalize().ok())
            else {
                continue;
            };
            // A hidden path elsewhere is not visible.
            if let Ok(beneath) = found.strip_prefix(&from) {
                natures.insert(inside.join(beneath), MountKind::Hidden(placeholder_children(&found)));
            }
        }
        natures.insert(inside.to_path_buf(), MountKind::Brought { from, writable: true });
    }
    Ok(natures)
}

/// Returns the top directories and links of the system: the path inside, and the path on the host.
fn list_system_entries(tree: Option<&Path>) -> Result<Vec<(PathBuf, PathBuf)>, LaunchError> {
    let Some(tree) = tree else {
        let all = SYSTEM_DIRECTORIES.iter().map(|name| Path::new("/").join(name));
        return Ok(all.filter(|path| path.symlink_metadata().is_ok()).map(|path| (path.clone(), path)).collect());
    };
    let why = |e: std::io::Error| LaunchError::Path { path: tree.to_owned(), why: e.to_string() };
    let tree = tree.canonicalize().map_err(why)?;
    let mut found = Vec::new();
    for entry in tree.read_dir().map_err(why)?.take(MAX_ROOT_ENTRIES) {
        let entry = entry.map_err(why)?;
        if !NON_SYSTEM_NAMES.iter().any(|name| entry.file_name() == *name) {
            found.push((Path::new("/").join(entry.file_name()), entry.path()));
        }
    }
    Ok(found)
}

/// Returns the entries of the empty root: the mount points, and the links of the system.
fn build_root_entries(
    root_spec: &RootSpec<'_>,
    system: &[(PathBuf, PathBuf)],
) -> Result<Vec<ScratchEntry>, LaunchError> {
    let mut directories = BTreeSet::from(["proc", "dev", "sys"].map(PathBuf::from));
    let mut entries = Vec::new();
    for (inside, from) in system {
        match from.read_link() {
            Ok(text) => entries
                .push(ScratchEntry::Link(c_string(text.as_os_str())?, c_string(relative_to_root(inside).as_os_str())?)),
            Err(_) => drop(directories.insert(relative_to_root(inside))),
        }
    }
    let attached = PRIVATE_TREE_NAMES.iter().map(|(path, _)| Path::new(path)).filter(|path| !path.starts_with("/dev"));
    for path in attached.chain(root_spec.trees.iter().map(|(inside, _)| *inside)) {
        // Its parents sort before it.
        directories.extend(path.ancestors().map(relative_to_root).filter(|path| !path.as_os_str().is_empty()));
    }
    let directories = directories.iter().map(|path| Ok(ScratchEntry::Directory(c_string(path.as_os_str())?, 0o755)));
    let directories: Vec<_> = directories.collect::<Result<_, LaunchError>>()?;
    Ok(directories.into_iter().chain(entries).collect())
}

fn relative_to_root(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

/// Returns the rights that every command has without the broker: on the private trees and the
/// devices.
fn own_rights(attachments: &[MountAttachment]) -> Result<Vec<(CString, u64)>, LaunchError> {
    let device = access::WRITE_FILE | access::TRUNCATE | access::IOCTL_DEV;
    let mut all = vec![(c"/dev/pts".to_owned(), device)];
    for DeviceNode { name, .. } in find_devices()? {
        all.push((c_string(Path::new("/dev").join(OsStr::from_bytes(name.to_bytes())).as_os_str())?, device));
    }
    let private = attachments.iter().filter(|attachment| matches!(attachment.mount_kind, MountKind::Private(_)));
    all.extend(private.map(|attachment| (attachment.path.clone(), attachment_rights(attachment))));
    Ok(all)
}
