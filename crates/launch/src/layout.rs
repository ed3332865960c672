//! The filesystem view of a run, as an ordered list of attachments over a read-only copy of the
//! host's root. The code only reads the host's tree and changes nothing.
//!
//! Every path gets one mount kind. Deeper paths override shallower ones. A path is not attached if its
//! kind changes nothing.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use stockade_model::{AttemptPlan, NameList, RawText, list_checked_names};
use stockade_sys::Errno;

use super::error::LaunchError;
use super::options::LaunchOptions;

/// Most first-level names of a hidden directory that are shown as placeholders.
const MAX_PLACEHOLDERS: usize = 256;

/// Trees that only the run sees: path, and name in the run's own temporary filesystem.
pub const PRIVATE_TREE_NAMES: &[(&str, &CStr)] =
    &[("/tmp", c"tmp"), ("/var/tmp", c"vartmp"), ("/run", c"run"), ("/dev/shm", c"shm")];

/// Covered kernel files. They are secrets of the host or of its kernel, or switches, and only their
/// modes would protect them from root.
pub(super) const KERNEL_MASKS: NameList = NameList::new(include_str!("../data/kernel_masks.txt"));

/// The kind of mount at a path inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MountKind {
    /// A new writable directory of this name in the run's own filesystem.
    Private(&'static CStr),
    /// A small set of devices.
    Devices,
    /// The host's object, writable.
    Writable,
    /// The host's directory as the lower directory of an overlay for the run's writes.
    Staged,
    /// The host's directory, writable as a private one is.
    Kept,
    /// The host's directory as the lower directory of an overlay for the writes of the workspace's
    /// runs.
    Merged(Box<MergedOverlay>),
    /// The host's object, read-only within a writable tree.
    Readable,
    /// The host's object, read-only, shown in a tree that starts empty. With `even_hidden` it is
    /// also shown in a hidden directory.
    Visible { even_hidden: bool },
    /// A placeholder that hides the host's object from the run.
    Hidden(Vec<(CString, bool)>),
    /// An empty object that covers a kernel file.
    Masked,
    /// A provided file, by its number, that covers the host's file.
    Provided(usize),
    /// An object from another path of the host.
    Brought { from: PathBuf, writable: bool },
}

/// Most directories that are merged in one run.
pub const MAX_MERGED_DIRECTORIES: usize = 16;

/// The overlay over a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MergedOverlay {
    /// Index among the merged directories.
    pub(super) index: usize,
    /// Absent if another process holds the overlay.
    pub(super) overlay: Option<OverlayWriteLayer>,
    /// Directories in it that the command may change without the broker. `files` are single files
    /// that only the broker changes. If both are empty, the command may change the whole directory.
    pub(super) directories: Vec<CString>,
    pub(super) files: Vec<CString>,
}

impl MergedOverlay {
    /// Returns whether the whole directory may be changed.
    pub(super) fn is_whole(&self) -> bool {
        self.directories.is_empty() && self.files.is_empty()
    }
}

/// A directory of the host that is the lower directory of an overlay for the runs' writes.
#[derive(Clone, Debug)]
pub struct MergedDirectory {
    /// Path on the host; links are not followed.
    pub directory: PathBuf,
    /// Upper directory for the writes, if the run mounts the overlay. Absent if another process
    /// holds the overlay and lends a copy of the mount.
    pub overlay: Option<OverlayWriteLayer>,
    /// Names of directories in it that may be changed. If both this and `files` are empty, the
    /// whole directory may be changed.
    pub directories: Vec<String>,
    /// Names of files in it that may be changed.
    pub files: Vec<String>,
    /// Directories in it that are shown as on the host.
    pub shown: Vec<PathBuf>,
}

impl MergedDirectory {
    /// Returns whether the whole directory may be changed.
    pub fn is_whole(&self) -> bool {
        self.directories.is_empty() && self.files.is_empty()
    }

    fn to_mount_kind(&self, index: usize) -> Result<MountKind, LaunchError> {
        let texts =
            |names: &[String]| names.iter().map(|name| c_string(OsStr::new(name))).collect::<Result<Vec<_>, _>>();
        let (directories, files) = (texts(&self.directories)?, texts(&self.files)?);
        Ok(MountKind::Merged(Box::new(MergedOverlay { index, overlay: self.overlay.clone(), directories, files })))
    }
}

/// A directory at its path, links not followed, with its device and inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IdentifiedDirectory {
    pub(super) path: CString,
    pub(super) identity: ObjectIdentity,
}

/// Upper and work directory of an overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayWriteLayer {
    pub(super) upper: IdentifiedDirectory,
    pub(super) work: IdentifiedDirectory,
}

impl OverlayWriteLayer {
    /// Makes an overlay of two directories on one filesystem that no other user can reach.
    ///
    /// # Errors
    /// [`LaunchError::Path`] if one of them does not exist.
    pub fn new(upper: &Path, work: &Path) -> Result<Self, LaunchError> {
        Ok(Self { upper: IdentifiedDirectory::at_path(upper)?, work: IdentifiedDirectory::at_path(work)? })
    }
}

impl IdentifiedDirectory {
    pub(super) fn at_path(path: &Path) -> Result<Self, LaunchError> {
        let why = |e: std::io::Error| LaunchError::Path { path: path.to_owned(), why: e.to_string() };
        let metadata = path.symlink_metadata().map_err(why)?;
        let identity = ObjectIdentity { device: metadata.dev(), inode: metadata.ino() };
        Ok(Self { path: c_string(path.as_os_str())?, identity })
    }
}

/// Device and inode of the object that a path named when the plan was examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObjectIdentity {
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// One object to attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountAttachment {
    /// Absolute path, for display and for opening on the host.
    pub(super) path: CString,
    /// Path on the host, for [`MountKind::Brought`].
    pub(super) source: Option<CString>,
    pub(super) mount_kind: MountKind,
    pub(super) directory: bool,
    pub(super) identity: ObjectIdentity,
    /// Directories to make first, relative to the run's own filesystem; the last is the target
    /// itself. Used if the path is in a tree that starts empty.
    pub(super) scaffold: Vec<CString>,
    /// Name in the run's own filesystem, for [`MountKind::Hidden`] and [`MountKind::Provided`].
    pub(super) placeholder: CString,
    /// For [`MountKind::Private`]: nothing writable of the host is beneath, so the kernel alone can
    /// distinguish the run's own files from others.
    pub(super) kernel_allows: bool,
}

impl MountAttachment {
    /// Returns whether the run can change the object.
    pub(super) fn is_written(&self) -> bool {
        is_written(&self.mount_kind)
    }

    pub(super) fn own_path(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(self.path.as_bytes()))
    }

    /// Returns the path without its leading slash, for a lookup beneath a root.
    pub(super) fn relative_path(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.path.as_bytes_with_nul()[1..]).unwrap_or(c"")
    }
}

/// The whole view.
#[derive(Debug)]
pub(super) struct RootLayout {
    /// Shallow paths before deep ones.
    pub(super) attachments: Vec<MountAttachment>,
    /// Writable paths of the plan that do not exist, and granted files with names that the broker
    /// changes on the host.
    pub(super) missing: Vec<PathBuf>,
    /// Number of paths to hide that do not exist. A path that does not exist cannot be covered.
    pub(super) uncovered: usize,
}

/// Computes the view for `plan`. `program` is the program to execute, if it exists; `launch_options` holds
/// the launch options.
pub(super) fn compute_layout(
    plan: &AttemptPlan,
    program: Option<&Path>,
    launch_options: &LaunchOptions,
) -> Result<RootLayout, LaunchError> {
    let mut mount_kinds: BTreeMap<PathBuf, MountKind> = BTreeMap::new();
    for (path, name) in PRIVATE_TREE_NAMES {
        if is_plain_directory(Path::new(path)) {
            mount_kinds.insert(PathBuf::from(path), MountKind::Private(name));
        }
    }
    mount_kinds.insert(PathBuf::from("/dev"), MountKind::Devices);
    for path in KERNEL_MASKS.names().map(PathBuf::from).filter(|p| p.symlink_metadata().is_ok()) {
        mount_kinds.insert(path, MountKind::Masked);
    }

    let (writable, mut missing) = writable_roots(plan)?;
    for path in &writable {
        mount_kinds.insert(path.clone(), MountKind::Writable);
    }
    missing.extend(files_alone(plan, &mount_kinds));
    if launch_options.overlay.is_some() {
        mount_kinds.insert(plan.workspace.as_path().to_owned(), MountKind::Staged);
    }
    for unit in protected_units(&writable, &plan.profile.filesystem.protect) {
        mount_kinds.entry(unit).or_insert(MountKind::Readable);
    }
    let files = &plan.profile.filesystem;
    let needed = [&plan.cwd, &plan.workspace].into_iter().chain(&files.sockets);
    let needed: Vec<PathBuf> = needed.filter_map(resolve_existing).collect();
    for path in needed.into_iter().chain(program.map(Path::to_owned)) {
        mount_kinds.entry(path).or_insert(MountKind::Visible { even_hidden: false });
    }
    let revealed: Vec<PathBuf> = files.reveal.iter().filter_map(resolve_existing).collect();
    let to_hide = launch_options.hidden_there(plan);
    let uncovered = files.hide.len() - to_hide.len();
    for path in to_hide.iter().filter(|path| !revealed.contains(path)) {
        if !matches!(mount_kinds.get(path), Some(MountKind::Writable | MountKind::Staged)) {
            mount_kinds.insert(path.clone(), MountKind::Hidden(placeholder_children(path)));
        }
    }
    for path in revealed {
        if let MountKind::Visible { even_hidden } =
            mount_kinds.entry(path).or_insert(MountKind::Visible { even_hidden: true })
        {
            *even_hidden = true;
        }
    }
    if let Some(kept) = &launch_options.kept {
        mount_kinds.insert(kept.clone(), MountKind::Kept);
    }
    if launch_options.merged.len() > MAX_MERGED_DIRECTORIES {
        return Err(LaunchError::Unfit(format!("at most {MAX_MERGED_DIRECTORIES} directories can be merged")));
    }
    for (index, merged) in launch_options.merged.iter().enumerate() {
        mount_kinds.insert(merged.directory.clone(), merged.to_mount_kind(index)?);
        for shown in &merged.shown {
            mount_kinds.entry(shown.clone()).or_insert(MountKind::Visible { even_hidden: false });
        }
    }
    for (index, (path, _)) in launch_options.files.iter().enumerate() {
        mount_kinds.insert(provided_at(path)?, MountKind::Provided(index));
    }
    Ok(RootLayout { attachments: select_attachments(mount_kinds)?, missing, uncovered })
}

/// Returns the canonical path at which a provided file is attached. It covers an existing object,
/// which must be a file.
pub(super) fn provided_at(path: &Path) -> Result<PathBuf, LaunchError> {
    let why = |why: String| LaunchError::Path { path: path.to_owned(), why };
    let real =
        path.canonicalize().map_err(|e| why(format!("cannot find the file to replace inside the sandbox: {e}")))?;
    if !real.is_file() {
        return Err(why("only a file can be replaced inside the sandbox".to_owned()));
    }
    Ok(real)
}

/// Keeps the attachments that change the view, and adds how each is attached.
pub(super) fn select_attachments(
    mount_kinds: BTreeMap<PathBuf, MountKind>,
) -> Result<Vec<MountAttachment>, LaunchError> {
    let mut kept: Vec<(PathBuf, MountAttachment)> = Vec::new();
    // Indices in `kept` of the objects around the last one kept. The paths within a path come
    // directly after it.
    let mut outer: Vec<usize> = Vec::new();
    for (path, mount_kind) in mount_kinds {
        while outer.last().and_then(|index| kept.get(*index)).is_some_and(|(outer, _)| !path.starts_with(outer)) {
            outer.pop();
        }
        let around = outer.last().and_then(|index| kept.get(*index));
        let outer_kind = around.map_or(&MountKind::Readable, |(_, a)| &a.mount_kind);
        if is_redundant(&mount_kind, outer_kind) {
            continue;
        }
        let source = match &mount_kind {
            MountKind::Brought { from, .. } => Some(from.as_path()),
            _ => None,
        };
        // An object within a brought tree is looked up at its source on the host.
        let brought = around.and_then(|(outer, a)| match &a.mount_kind {
            MountKind::Brought { from, .. } => Some(from.join(path.strip_prefix(outer).ok()?)),
            _ => None,
        });
        let object = source.or(brought.as_deref()).unwrap_or(&path);
        let metadata =
            object.symlink_metadata().map_err(|e| LaunchError::Path { path: object.to_owned(), why: e.to_string() })?;
        let source = source.map(|from| c_string(from.as_os_str())).transpose()?;
        let base = around.and_then(|(outer, a)| match a.mount_kind {
            MountKind::Private(name) => Some((outer, name.to_owned())),
            MountKind::Hidden(_) => Some((outer, a.placeholder.clone())),
            _ => None,
        });
        let scaffold = match base {
            Some((outer, name)) => scaffold_directories(&name, path.strip_prefix(outer).unwrap_or(Path::new("")))?,
            None => Vec::new(),
        };
        let attachment = MountAttachment {
            path: c_string(path.as_os_str())?,
            source,
            mount_kind,
            directory: metadata.is_dir(),
            identity: ObjectIdentity { device: metadata.dev(), inode: metadata.ino() },
            scaffold,
            placeholder: c_string(OsStr::new(&format!("h{}", kept.len())))?,
            kernel_allows: true,
        };
        outer.push(kept.len());
        kept.push((path, attachment));
    }
    let writable: Vec<PathBuf> =
        kept.iter().filter(|(_, a)| is_written(&a.mount_kind)).map(|(p, _)| p.clone()).collect();
    Ok(kept
        .into_iter()
        .map(|(path, mut a)| {
            a.kernel_allows = !writable.iter().any(|w| w.starts_with(&path));
            a
        })
        .collect())
}

/// Returns whether the run can change the object through the broker.
fn is_written(mount_kind: &MountKind) -> bool {
    matches!(mount_kind, MountKind::Writable | MountKind::Staged | MountKind::Brought { writable: true, .. })
}

/// Returns whether writes in the workspace are staged, and anything there can be written at all.
pub fn is_staged(plan: &AttemptPlan) -> bool {
    let files = &plan.profile.filesystem;
    files.stage && files.write.iter().any(|root| plan.workspace.as_path().starts_with(root.as_path()))
}

fn is_redundant(mount_kind: &MountKind, around: &MountKind) -> bool {
    match mount_kind {
        // In a stage only the broker protects names, because a name that is granted later must lead
        // into the stage as well.
        MountKind::Readable => !matches!(around, MountKind::Writable),
        MountKind::Visible { even_hidden } => match around {
            MountKind::Private(_) | MountKind::Merged(_) => false,
            MountKind::Hidden(_) => !even_hidden,
            _ => true,
        },
        MountKind::Writable => is_written(around),
        // A tree that starts empty holds nothing to hide.
        MountKind::Hidden(_) => matches!(around, MountKind::Private(_) | MountKind::Devices | MountKind::Hidden(_)),
        MountKind::Private(_) | MountKind::Devices | MountKind::Masked | MountKind::Staged => false,
        MountKind::Provided(_) | MountKind::Brought { .. } | MountKind::Kept | MountKind::Merged(_) => false,
    }
}

/// Returns the writable paths of the plan: the canonical ones that exist, and those that do not
/// exist.
fn writable_roots(plan: &AttemptPlan) -> Result<(Vec<PathBuf>, Vec<PathBuf>), LaunchError> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for text in &plan.profile.filesystem.write {
        let path = text.as_path();
        let Ok(real) = path.canonicalize() else {
            missing.push(path.to_owned());
            continue;
        };
        refuse_planted_link(plan, path, &real)?;
        let why = match real.components().nth(1) {
            None => "the whole root cannot be writable inside a sandbox",
            Some(Component::Normal(top)) if top == "proc" || top == "sys" || top == "dev" => {
                "the kernel's own files and devices cannot be made writable"
            }
            _ => {
                found.push(real);
                continue;
            }
        };
        return Err(LaunchError::Path { path: real, why: why.to_owned() });
    }
    Ok((found, missing))
}

/// Returns the granted files with names that the broker removes and replaces on the host, because
/// inside the directory around is read-only. Their mounts vanish with the name: a mount point in
/// another mount namespace can be removed (mount_namespaces(7)).
fn files_alone(plan: &AttemptPlan, mount_kinds: &BTreeMap<PathBuf, MountKind>) -> Vec<PathBuf> {
    let hidden = |path: &Path| plan.profile.filesystem.hide.iter().any(|hidden| path.starts_with(hidden.as_path()));
    let replaced = |path: &Path| path.ancestors().skip(1).any(|above| mount_kinds.contains_key(above));
    let is_alone = |path: &&PathBuf| !replaced(path) && !hidden(path) && path.is_file();
    let written =
        mount_kinds.iter().filter(|(_, mount_kind)| matches!(mount_kind, MountKind::Writable)).map(|(path, _)| path);
    written.filter(is_alone).cloned().collect()
}

/// Refuses a path beneath another writable root if links lead it out of that root. A command may
/// have made such a link, and the user did not agree to its target (L5).
pub(super) fn refuse_planted_link(plan: &AttemptPlan, path: &Path, real: &Path) -> Result<(), LaunchError> {
    let roots = plan.profile.filesystem.write.iter().chain([&plan.workspace]).map(RawText::as_path);
    if path == real || !roots.into_iter().any(|root| root != path && path.starts_with(root) && !real.starts_with(root))
    {
        return Ok(());
    }
    let real = RawText::from(real);
    let why = format!("a link in a writable directory leads to {}; name that path itself", real.to_escaped());
    Err(LaunchError::Path { path: path.to_owned(), why })
}

/// Returns the protected names that exist directly where a writable root makes them reachable.
/// Links are left to the broker, because a bind mount of a link would bind its target.
fn protected_units(roots: &[PathBuf], protect: &[String]) -> Vec<PathBuf> {
    let mut units = Vec::new();
    // Files that the broker checks are replaced by a rename, which no mount allows, or written
    // beneath. The broker checks each change.
    let known_names: Vec<&str> = list_checked_names().collect();
    let covered: Vec<&String> = protect.iter().filter(|entry| !known_names.contains(&entry.as_str())).collect();
    for root in roots {
        let Ok(held) = openat(CWD, root, OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty()) else {
            continue;
        };
        for entry in &covered {
            let parts: Vec<&OsStr> = Path::new(entry).iter().collect();
            // The root itself may be the beginning of the entry: `.git` for `.git/hooks`.
            for shared in (0..parts.len()).filter(|shared| ends_with(root, &parts[..*shared])) {
                let rest: PathBuf = parts[shared..].iter().collect();
                let unit = root.join(&rest);
                if unit.symlink_metadata().is_ok() && exists_plainly(held.as_fd(), &rest) && !roots.contains(&unit) {
                    units.push(unit);
                }
            }
        }
    }
    units
}

/// Returns whether `path` exists beneath `directory`, with no link on the way or at the end. Uses
/// one system call, because it runs for every protected name.
fn exists_plainly(directory: BorrowedFd<'_>, path: &Path) -> bool {
    // With O_NOFOLLOW a link at the end would be opened in spite of NO_SYMLINKS.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // An object that cannot be examined is attached, and fails there.
    !matches!(
        openat2(directory, path, flags, Mode::empty(), resolve),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS)
    )
}

fn ends_with(path: &Path, parts: &[&OsStr]) -> bool {
    let mut tail = path.iter().rev();
    parts.iter().rev().all(|want| tail.next().is_some_and(|have| have.eq_ignore_ascii_case(want)))
}

/// Returns the directories from the run's own filesystem down to the target.
fn scaffold_directories(base: &CStr, rest: &Path) -> Result<Vec<CString>, LaunchError> {
    let mut at = PathBuf::from(OsStr::from_bytes(base.to_bytes()));
    rest.iter()
        .map(|part| {
            at.push(part);
            c_string(at.as_os_str())
        })
        .collect()
}

pub(super) fn placeholder_children(path: &Path) -> Vec<(CString, bool)> {
    let Ok(entries) = path.read_dir() else { return Vec::new() };
    entries
        .flatten()
        .take(MAX_PLACEHOLDERS)
        .filter_map(|entry| {
            let directory = entry.file_type().is_ok_and(|t| t.is_dir());
            CString::new(entry.file_name().as_bytes()).ok().map(|name| (name, directory))
        })
        .collect()
}

/// Returns the existing paths that a plan hides, in canonical form.
pub fn hidden_there(plan: &AttemptPlan) -> Vec<PathBuf> {
    plan.profile.filesystem.hide.iter().filter_map(resolve_existing).collect()
}

/// Returns the canonical path of the object that a path of the plan names, if it exists.
pub(super) fn resolve_existing(text: &RawText) -> Option<PathBuf> {
    // Most of these paths do not exist. One system call shows that, while each component costs another.
    text.as_path().symlink_metadata().ok()?;
    text.as_path().canonicalize().ok()
}

pub(super) fn is_plain_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|m| m.is_dir())
}

pub(super) fn c_string(text: &OsStr) -> Result<CString, LaunchError> {
    CString::new(text.as_bytes()).map_err(|_| LaunchError::Unfit("a NUL byte cannot be passed to a program".to_owned()))
}

/// The devices of every run: name, major, minor (linux/major.h, devices.txt).
const HOST_DEVICES: &[(&CStr, u32, u32)] =
    &[(c"null", 1, 3), (c"zero", 1, 5), (c"full", 1, 7), (c"random", 1, 8), (c"urandom", 1, 9), (c"tty", 5, 0)];

/// A device to take from the host.
#[derive(Clone, Debug)]
pub(super) struct DeviceNode {
    pub(super) name: &'static CStr,
    /// Path on the host.
    pub(super) source: CString,
    pub(super) number: u64,
}

/// Returns the devices that exist on this host with the right type and number.
pub(super) fn find_devices() -> Result<Vec<DeviceNode>, LaunchError> {
    let mut found = Vec::new();
    for (name, major, minor) in HOST_DEVICES {
        let path = Path::new("/dev").join(OsStr::from_bytes(name.to_bytes()));
        let number = rustix::fs::makedev(*major, *minor);
        if path.symlink_metadata().is_ok_and(|m| m.file_type().is_char_device() && m.rdev() == number) {
            found.push(DeviceNode { name, source: c_string(path.as_os_str())?, number });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    use stockade_model::{
        EnvironmentRules, FilesystemAccess, IsolationLevel, Limits, NetworkAccess, Profile, RequestId,
    };

    /// Checks the attachments beneath a scratch directory in a private tree. The lists hold paths
    /// relative to it. The result is `path nature`, in order.
    #[track_caller]
    fn check(write: &[&str], protect: &[&str], hide: &[&str], reveal: &[&str], expected: &[&str]) {
        let scratch = tempfile::Builder::new().prefix("layout-").tempdir_in("/tmp").unwrap();
        let root = scratch.path().canonicalize().unwrap();
        for directory in ["ws/.git/hooks", "ws/src", "ws/keys/deep", "home/.ssh", "cwd"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for file in ["ws/.bashrc", "ws/.git/config", "ws/keys/one", "home/.netrc"] {
            fs::write(root.join(file), "").unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", root.join("ws/.profile")).unwrap();
        let paths = |list: &[&str]| list.iter().map(|p| RawText::from(root.join(p))).collect::<Vec<_>>();
        let plan = AttemptPlan {
            request: RequestId::from_random([1; 16]),
            attempt: 1,
            argv: vec![RawText::from("true")],
            environment: BTreeMap::new(),
            cwd: root.join("cwd").into(),
            workspace: root.join("cwd").into(),
            profile: Profile {
                name: "test".to_owned(),
                sandboxed: true,
                filesystem: FilesystemAccess {
                    write: paths(write),
                    hide: paths(hide),
                    reveal: paths(reveal),
                    protect: protect.iter().map(|p| (*p).to_owned()).collect(),
                    sockets: Vec::new(),
                    stage: false,
                    undo_bytes: None,
                    trace: false,
                    caches: Vec::new(),
                },
                exec: stockade_model::ExecRules::default(),
                network: NetworkAccess::None,
                egress: Default::default(),
                environment: EnvironmentRules::default(),
                limits: Limits::default(),
            },
            grants: Vec::new(),
            effects: Vec::new(),
            level: IsolationLevel::Full,
            backend: "native".to_owned(),
        };
        let found = compute_layout(&plan, None, &LaunchOptions::default()).unwrap();
        let beneath = found.attachments.iter().filter_map(|a| {
            let path = Path::new(OsStr::from_bytes(a.path.to_bytes())).strip_prefix(&root).ok()?;
            let mount_kind = match a.mount_kind {
                MountKind::Writable => "writable",
                MountKind::Readable | MountKind::Visible { .. } => "readable",
                MountKind::Hidden(_) => "hidden",
                _ => "other",
            };
            Some(format!("{} {mount_kind}", path.display()))
        });
        assert_eq!(beneath.collect::<Vec<_>>(), expected);
        // Every attachment in a tree that starts empty has a mount point made for it.
        for attachment in &found.attachments {
            let path = Path::new(OsStr::from_bytes(attachment.path.to_bytes()));
            let parent = found.attachments.iter().rev().find(|a| {
                let outer = Path::new(OsStr::from_bytes(a.path.to_bytes()));
                outer != path && path.starts_with(outer)
            });
            let empty = parent.is_some_and(|a| matches!(a.mount_kind, MountKind::Private(_) | MountKind::Hidden(_)));
            assert_eq!(empty, !attachment.scaffold.is_empty(), "{attachment:?}");
        }
    }

    #[test]
    fn only_mounts_that_change_something_are_attached() {
        check(&[], &[], &[], &[], &["cwd readable"]);
        check(&["ws"], &[], &[], &[], &["cwd readable", "ws writable"]);
        check(&["ws", "ws/src", "missing"], &[], &[], &[], &["cwd readable", "ws writable"]);
        // The working directory within a writable root stays writable.
        check(&["."], &[], &[], &[], &[" writable"]);
        check(&["."], &[], &[], &["ws/src"], &[" writable"]);
    }

    #[test]
    fn protected_names_are_read_only_up_to_the_next_grant() {
        let names = &[".git", ".git/hooks", ".git/config", ".bashrc", ".profile", ".absent"];
        check(
            &["ws"],
            names,
            &[],
            &[],
            &["cwd readable", "ws writable", "ws/.bashrc readable", "ws/.git/hooks readable"],
        );
        check(
            &["ws", "ws/.git"],
            names,
            &[],
            &[],
            &["cwd readable", "ws writable", "ws/.bashrc readable", "ws/.git/hooks readable"],
        );
        check(&["ws/.git"], names, &[], &[], &["cwd readable", "ws/.git writable", "ws/.git/hooks readable"]);
        check(&["ws", "ws/.git/hooks"], names, &[], &[], &["cwd readable", "ws writable", "ws/.bashrc readable"]);
    }

    #[test]
    fn hidden_things_are_hidden_where_they_would_be_seen() {
        // A private tree starts empty, so nothing in it needs hiding.
        check(&[], &[], &["home/.ssh", "home/.netrc"], &[], &["cwd readable"]);
        check(&["ws"], &[], &["ws/keys"], &[], &["cwd readable", "ws writable", "ws/keys hidden"]);
        check(
            &["ws"],
            &[],
            &["ws/keys"],
            &["ws/keys/one"],
            &["cwd readable", "ws writable", "ws/keys hidden", "ws/keys/one readable"],
        );
        check(
            &["ws"],
            &[],
            &["ws/keys", "ws/keys/deep"],
            &["ws/keys"],
            &["cwd readable", "ws writable", "ws/keys/deep hidden"],
        );
        check(
            &["ws", "ws/keys/deep"],
            &[],
            &["ws/keys"],
            &[],
            &["cwd readable", "ws writable", "ws/keys hidden", "ws/keys/deep writable"],
        );
    }
}
