//! Persistent isolation for many commands, one after the other or at the same time: an init without
//! a command, and processes that enter later.
//!
//! The root is empty except for the named objects. Of the host's files it has only the system (see
//! [`SYSTEM`]), read-only, and the directories that may be written. Each command enters as a child
//! of a process that stays outside, with a seccomp filter, a listener and a Landlock domain of its
//! own. The init adopts the processes that a command leaves behind.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use stockade_model::{EnforcementReport, Level, Plan, Profile, RawText};
use stockade_sys::landlock::{self, Ruleset, access};

use crate::limits::quotas;

use super::blueprint::{
    Blueprint, FIRST_STEPS, Parts, PrivateTree, Whose, first_steps, may_map_for_others, private_trees, scratch_entries,
};
use super::command::{Command, every_candidate};
use super::error::LaunchError;
use super::launched::{Launched, Launching, Stdio, begin};
use super::layout::{
    Attachment, Device, KERNEL_MASKS, Nature, PRIVATE, attachments, c_string, devices, is_plain_directory,
    placeholder_children, provided_at,
};
use super::network::NetworkEnds;
use super::outfit::Outfit;
use super::step::{ScratchEntry, Step, TempSize, rights};
use super::walls::Walls;

/// System directories of the host's root: programs, libraries, settings.
const SYSTEM: [&str; 9] = ["bin", "etc", "lib", "lib32", "lib64", "libx32", "opt", "sbin", "usr"];
/// Entries of a root tree that are not its system, because the sandbox has its own. All other
/// entries are.
const NOT_SYSTEM: [&str; 7] = ["dev", "home", "proc", "run", "sys", "tmp", "workspace"];
/// Most entries of a root tree that are read.
const ENTRIES_MAX: usize = 256;

/// Specification of the root and the isolation.
#[derive(Clone, Debug)]
pub struct Grounds<'a> {
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
pub struct Standing {
    launched: Launched,
    walls: Arc<Walls>,
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

impl Standing {
    /// Builds the namespaces and the root. On an error nothing is left behind.
    ///
    /// # Errors
    /// [`LaunchError`] names the step and the kernel's error.
    pub fn build(grounds: &Grounds<'_>) -> Result<Self, LaunchError> {
        let abi = landlock::abi().map_err(LaunchError::Landlock)?;
        let system = system(grounds.system)?;
        let attachments = attachments(natures(grounds, &system)?)?;
        let private_trees = private_trees(&attachments);
        let rights = own_rights(&attachments)?;
        let leaves_groups = may_map_for_others();
        let steps = steps(grounds, skeleton(grounds, &system)?, attachments, leaves_groups)?;
        let alone = steps.len();
        let parts = Parts {
            ruleset: None,
            private_trees: private_trees.clone(),
            mapped_by_caller: leaves_groups,
            ..Parts::of(steps)
        };
        let blueprint = Blueprint::new(Level::Full, parts, alone, None, abi)?;
        let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(LaunchError::call("open /dev/null"))?;
        let nothing = nothing.as_fd();
        let mut launched = begin(blueprint, Stdio { stdin: nothing, stdout: nothing, stderr: nothing })?.stand()?;
        let walls = Arc::new(launched.take_walls().ok_or(LaunchError::Lost)?);
        Ok(Self {
            launched,
            walls,
            rights,
            trees: grounds.trees.iter().map(|(inside, _)| (*inside).to_owned()).collect(),
            hidden: grounds.profile.filesystem.hide.clone(),
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
    pub fn enter(&self, plan: &Plan, outfit: &Outfit, stdio: Stdio<'_>) -> Result<Launching, LaunchError> {
        self.demand_fit(plan, outfit)?;
        let command = Command::new(plan, every_candidate(plan)?, outfit, Path::new("/run"), None)?;
        let mut steps = vec![Step::Enter(Arc::clone(&self.walls))];
        if self.leaves_groups {
            steps.push(Step::LeaveGroups);
        }
        steps.extend([Step::KeyRing, Step::Allow(self.rights.clone()), Step::DropPrivileges, Step::Opaque]);
        let alone = steps.len();
        // Nothing is scoped, because all commands share the isolation. They may signal each other
        // and connect by any name within.
        let rules = Ruleset::new(self.abi, access::changing(self.abi), 0, 0).map_err(LaunchError::Landlock)?;
        let parts = Parts {
            ruleset: Some(rules),
            private_trees: self.private_trees.clone(),
            missing: self.missing(plan),
            ..Parts::of(steps)
        };
        let mut blueprint = Blueprint::new(Level::Full, parts, alone, Some(command), self.abi)?;
        blueprint.walls = Whose::Standing;
        begin(blueprint, stdio)
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
    pub fn report(&self) -> &EnforcementReport {
        self.launched.report()
    }

    /// Returns the caller's sockets of the network.
    pub fn take_network(&mut self) -> Option<NetworkEnds> {
        self.launched.take_network()
    }

    /// Returns whether `path`, as it is seen inside, is in a directory that may be written.
    pub fn holds(&self, path: &Path) -> bool {
        self.trees.iter().any(|tree| path.starts_with(tree))
    }

    fn demand_fit(&self, plan: &Plan, outfit: &Outfit) -> Result<(), LaunchError> {
        let unfit = |why: String| Err(LaunchError::Unfit(why));
        let files = &plan.profile.filesystem;
        if plan.level != Level::Full {
            return unfit(format!("its walls are of level full, and the plan asks for {}", plan.level));
        }
        if files.stage {
            return unfit(
                "what is written in a sandbox is not staged: it stays there until it is copied out".to_owned(),
            );
        }
        if !outfit.files.is_empty() || !outfit.named.is_empty() {
            return unfit("a sandbox that stands has its files already".to_owned());
        }
        match files.hide.iter().find(|path| !self.hidden.contains(path)) {
            Some(path) => unfit(format!("the sandbox was made without {} being hidden", path.escaped())),
            None => Ok(()),
        }
    }

    /// Returns the writable paths of the plan that do not exist here.
    fn missing(&self, plan: &Plan) -> Vec<PathBuf> {
        let private = |path: &Path| self.private_trees.iter().any(|tree| path.starts_with(&tree.path));
        let paths = plan.profile.filesystem.write.iter().map(RawText::as_path);
        paths.filter(|path| !self.holds(path) && !private(path)).map(Path::to_owned).collect()
    }
}

fn steps(
    grounds: &Grounds<'_>,
    skeleton: Vec<ScratchEntry>,
    attachments: Vec<Attachment>,
    mapped_by_caller: bool,
) -> Result<Vec<Step>, LaunchError> {
    let limits = &grounds.profile.limits;
    let outfit = Outfit { files: grounds.files.clone(), ..Outfit::default() };
    // All first steps but the copy of the host's root.
    let mut steps: Vec<Step> = first_steps(mapped_by_caller)?.into_iter().take(FIRST_STEPS - 1).collect();
    let size = limits.temp_bytes.map(TempSize::new).transpose()?;
    steps.extend([
        Step::EmptyRoot(skeleton),
        Step::Quotas(quotas(limits)),
        Step::Root { size },
        Step::Scratch(scratch_entries(&attachments, &outfit)?),
    ]);
    for attachment in attachments {
        let is_devices = attachment.nature == Nature::Devices;
        steps.push(Step::Attach(attachment));
        if is_devices {
            steps.push(Step::Devices(devices()?));
        }
    }
    steps.extend([Step::SwapRoot, Step::HoldWalls, Step::DropPrivileges]);
    Ok(steps)
}

/// Returns the kind of mount at each path.
fn natures(grounds: &Grounds<'_>, system: &[(PathBuf, PathBuf)]) -> Result<BTreeMap<PathBuf, Nature>, LaunchError> {
    let mut natures = BTreeMap::from([(PathBuf::from("/dev"), Nature::Devices)]);
    // If a root tree contains a parent of the path, it must contain the path as well.
    let has_place = |path: &Path| {
        let around = system.iter().find(|(inside, _)| path.starts_with(inside));
        around.is_none_or(|(inside, from)| is_plain_directory(&from.join(path.strip_prefix(inside).unwrap_or(path))))
    };
    let is_there = |path: &Path| is_plain_directory(path) && has_place(path);
    for (path, name) in PRIVATE.iter().filter(|(path, _)| is_there(Path::new(path))) {
        natures.insert(PathBuf::from(path), Nature::Private(name));
    }
    let is_there = |path: &&&str| path.starts_with("/proc") && Path::new(path).symlink_metadata().is_ok();
    natures.extend(KERNEL_MASKS.iter().filter(is_there).map(|path| (PathBuf::from(path), Nature::Masked)));
    for (inside, from) in system.iter().filter(|(_, from)| is_plain_directory(from)) {
        natures.insert(inside.clone(), Nature::Brought { from: from.clone(), writable: false });
    }
    if grounds.system.is_none() {
        let hide = grounds.profile.filesystem.hide.iter().filter_map(|path| path.as_path().canonicalize().ok());
        let is_shown = |path: &PathBuf| system.iter().any(|(_, from)| path.starts_with(from));
        for path in hide.filter(is_shown) {
            let children = placeholder_children(&path);
            natures.insert(path, Nature::Hidden(children));
        }
        for (index, (path, _)) in grounds.files.iter().enumerate() {
            natures.insert(provided_at(path)?, Nature::Provided(index));
        }
    }
    for (inside, from) in &grounds.trees {
        let why = |e: std::io::Error| LaunchError::Path { path: from.to_path_buf(), why: e.to_string() };
        let from = from.canonicalize().map_err(why)?;
        for path in &grounds.profile.filesystem.hide {
            let Some(found) =
                path.as_path().strip_prefix(inside).ok().and_then(|path| from.join(path).canonicalize().ok())
            else {
                continue;
            };
            // A hidden path elsewhere is not visible.
            if let Ok(beneath) = found.strip_prefix(&from) {
                natures.insert(inside.join(beneath), Nature::Hidden(placeholder_children(&found)));
            }
        }
        natures.insert(inside.to_path_buf(), Nature::Brought { from, writable: true });
    }
    Ok(natures)
}

/// Returns the top directories and links of the system: the path inside, and the path on the host.
fn system(tree: Option<&Path>) -> Result<Vec<(PathBuf, PathBuf)>, LaunchError> {
    let Some(tree) = tree else {
        let all = SYSTEM.iter().map(|name| Path::new("/").join(name));
        return Ok(all.filter(|path| path.symlink_metadata().is_ok()).map(|path| (path.clone(), path)).collect());
    };
    let why = |e: std::io::Error| LaunchError::Path { path: tree.to_owned(), why: e.to_string() };
    let tree = tree.canonicalize().map_err(why)?;
    let mut found = Vec::new();
    for entry in tree.read_dir().map_err(why)?.take(ENTRIES_MAX) {
        let entry = entry.map_err(why)?;
        if !NOT_SYSTEM.iter().any(|name| entry.file_name() == *name) {
            found.push((Path::new("/").join(entry.file_name()), entry.path()));
        }
    }
    Ok(found)
}

/// Returns the entries of the empty root: the mount points, and the links of the system.
fn skeleton(grounds: &Grounds<'_>, system: &[(PathBuf, PathBuf)]) -> Result<Vec<ScratchEntry>, LaunchError> {
    let mut directories = BTreeSet::from(["proc", "dev", "sys"].map(PathBuf::from));
    let mut entries = Vec::new();
    for (inside, from) in system {
        match from.read_link() {
            Ok(text) => entries.push(ScratchEntry::Link(c_string(text.as_os_str())?, beneath_root(inside)?)),
            Err(_) => drop(directories.insert(relative(inside))),
        }
    }
    let attached = PRIVATE.iter().map(|(path, _)| Path::new(path)).filter(|path| !path.starts_with("/dev"));
    for path in attached.chain(grounds.trees.iter().map(|(inside, _)| *inside)) {
        // Its parents sort before it.
        directories.extend(path.ancestors().map(relative).filter(|path| !path.as_os_str().is_empty()));
    }
    let directories = directories.iter().map(|path| Ok(ScratchEntry::Directory(c_string(path.as_os_str())?, 0o755)));
    let directories: Vec<_> = directories.collect::<Result<_, LaunchError>>()?;
    Ok(directories.into_iter().chain(entries).collect())
}

fn relative(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

fn beneath_root(path: &Path) -> Result<CString, LaunchError> {
    c_string(relative(path).as_os_str())
}

/// Returns the rights that every command has without the broker: on the private trees and the
/// devices.
fn own_rights(attachments: &[Attachment]) -> Result<Vec<(CString, u64)>, LaunchError> {
    let device = access::WRITE_FILE | access::TRUNCATE | access::IOCTL_DEV;
    let mut all = vec![(c"/dev/pts".to_owned(), device)];
    for Device { name, .. } in devices()? {
        all.push((c_string(Path::new("/dev").join(OsStr::from_bytes(name.to_bytes())).as_os_str())?, device));
    }
    let private = attachments.iter().filter(|attachment| matches!(attachment.nature, Nature::Private(_)));
    all.extend(private.map(|attachment| (attachment.path.clone(), rights(attachment))));
    Ok(all)
}
