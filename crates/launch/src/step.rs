//! The steps that build the sandbox. Each step is a value. The child applies it by system calls
//! alone; the parent describes it for the report and for errors.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, symlinkat};
use rustix::process::fchdir;
use rustix::thread::set_thread_groups;
use stockade_limits::{NamespaceQuota, temp_inodes};
use stockade_model::RawText;
use stockade_sys::caps::{self, CapabilitySet};
use stockade_sys::clone::{flags, unshare_namespaces};
use stockade_sys::landlock::{Ruleset, access};
use stockade_sys::mount::{
    MountRestrictions, attach_at, attach_mount, copy_tree, make_private, new_filesystem, restrict_mount, swap_root,
};
use stockade_sys::{Errno, keyring};

use super::error::LaunchError;
use super::layout::{
    DeviceNode, IdentifiedDirectory, MAX_MERGED_DIRECTORIES, MountAttachment, MountKind, ObjectIdentity,
    OverlayWriteLayer,
};
use super::merge::{attach_merged, lay_over, prepare_overlay, take_layers};
use super::message::LaunchMessage;
use super::namespaces::NamespaceSet;
use super::network::RunNetwork;

/// Most terminals of one run. The whole machine has some thousands.
const MAX_TERMINALS: &CStr = c"256";

/// The namespaces of level full, beside the user and PID namespaces.
const FULL_NAMESPACES: u64 = flags::NEW_MOUNT | flags::NEW_NET | flags::NEW_IPC | flags::NEW_UTS | flags::NEW_CGROUP;

/// State that the steps share. Exists in the child.
#[derive(Debug)]
pub(super) struct BuildContext<'a> {
    /// Socket to the caller.
    pub(super) control: BorrowedFd<'a>,
    /// The Landlock rules for the command, if they exist already.
    pub(super) ruleset: Option<&'a Ruleset>,
    /// The procfs, not yet attached.
    proc: Option<OwnedFd>,
    /// The new root.
    root: Option<OwnedFd>,
    /// The overlay over the workspace, not yet attached.
    overlay: Option<OwnedFd>,
    /// Overlays over other directories, not yet attached. An overlay that could not be made is
    /// absent.
    pub(super) merged: [Option<OwnedFd>; MAX_MERGED_DIRECTORIES],
    /// Bits of the overlays that could not be made.
    pub(super) unmerged: u16,
    /// Retries so far for layers whose upper directories were still mounted.
    pub(super) busy_retries: u32,
    /// The same filesystem as `scratch`, mounted read-only.
    placeholders: Option<OwnedFd>,
    /// The run's own temporary filesystem.
    pub(super) scratch: Option<OwnedFd>,
    /// The inotify instance that reports openings of hidden paths.
    pub(super) watches: Option<OwnedFd>,
    /// The private directory of level restricted, once it is made.
    pub(super) private_directory: Option<OwnedFd>,
    /// Sockets of the network namespace.
    pub(super) network: Option<RunNetwork>,
    /// Namespaces that later commands enter.
    pub(super) isolation: Option<NamespaceSet>,
}

impl<'a> BuildContext<'a> {
    pub(super) fn new(control: BorrowedFd<'a>, ruleset: Option<&'a Ruleset>) -> Self {
        Self {
            control,
            ruleset,
            proc: None,
            root: None,
            overlay: None,
            merged: [const { None }; MAX_MERGED_DIRECTORIES],
            unmerged: 0,
            busy_retries: 0,
            placeholders: None,
            scratch: None,
            watches: None,
            private_directory: None,
            network: None,
            isolation: None,
        }
    }

    /// Lets the command use `rights` beneath `object` without the broker.
    pub(super) fn allow_rights(&self, object: BorrowedFd<'_>, rights: u64) -> Result<(), Errno> {
        // A persistent sandbox has no command of its own, so there is no ruleset.
        self.ruleset.map_or(Ok(()), |ruleset| ruleset.allow_beneath(object, rights))
    }

    pub(super) fn root_fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        require_made(&self.root)
    }

    fn scratch_fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        require_made(&self.scratch)
    }
}

/// Returns a descriptor that an earlier step has made.
fn require_made(slot: &Option<OwnedFd>) -> Result<BorrowedFd<'_>, Errno> {
    slot.as_ref().map(OwnedFd::as_fd).ok_or(Errno::BADF)
}

/// One step of the init, in the order of a [`Blueprint`](super::Blueprint).
#[derive(Debug)]
pub(super) enum InitStep {
    /// An ordinary user maps itself.
    ClaimIdentity { uid_map: CString, gid_map: CString },
    /// The caller maps root, and root drops its groups.
    AwaitIdentity,
    /// Root without namespaces drops its groups.
    LeaveGroups,
    /// Makes a directory of the run's own, with these Landlock rights.
    PrivateDirectory { path: CString, rights: u64 },
    /// Makes a file in that directory.
    OwnFile { name: CString, content: Vec<u8> },
    /// Enters the namespaces in which the init was not created.
    Namespaces,
    /// Joins a new session key ring.
    KeyRing,
    /// Makes later mounts invisible to other mount namespaces.
    PrivateMounts,
    /// Makes the procfs of the new PID namespace.
    Proc,
    /// Sets a share of the resources that the kernel counts for the user.
    Quotas(Vec<NamespaceQuota>),
    /// Copies the host's root.
    CopyRoot,
    /// Makes the overlay over the workspace.
    Stage { workspace: IdentifiedDirectory, overlay: OverlayWriteLayer },
    /// Makes an overlay for the writes of the workspace's runs over a directory.
    Merge { index: usize, lower: IdentifiedDirectory, overlay: OverlayWriteLayer },
    /// Receives from the caller the layers that another process holds.
    TakeLayers,
    /// Attaches the copy of the root and makes it read-only.
    Root { size: Option<TempSize> },
    /// Makes directories and files in the run's own filesystem.
    Scratch(Vec<ScratchEntry>),
    /// Attaches one object over the root.
    Attach(MountAttachment),
    /// Attaches the devices and the files that belong to them.
    Devices(Vec<DeviceNode>),
    /// Watches the placeholders, in this order.
    Watch(Vec<CString>),
    /// Sets up the loopback interface, which owns every address, and the sockets for the egress
    /// proxy.
    Network,
    /// Makes the new root the only one.
    SwapRoot,
    /// Makes the init a subreaper, so that it can kill orphans.
    AdoptOrphans,
    /// Drops all capabilities, with no way to get them back.
    DropPrivileges,
    /// Makes a root that holds only mount points.
    EmptyRoot(Vec<ScratchEntry>),
    /// Opens descriptors of all namespaces, for the commands that enter later.
    HoldNamespaces,
    /// Enters the namespaces of a persistent sandbox.
    Enter(Arc<NamespaceSet>),
    /// Adds the rights that the command has without the broker in a persistent sandbox.
    Allow(Vec<(CString, u64)>),
    /// Prevents processes inside from inspecting this process or its children.
    Opaque,
}

/// Size of the run's own filesystem, as mount options (tmpfs(5)).
#[derive(Debug)]
pub(super) struct TempSize {
    bytes: CString,
    files: CString,
}

impl TempSize {
    /// Makes the size for `bytes`, with a number of files in proportion.
    pub(super) fn new(bytes: u64) -> Result<Self, LaunchError> {
        let text = |number: u64| {
            CString::new(number.to_string()).map_err(|_| LaunchError::Unfit("a size is not a number".to_owned()))
        };
        Ok(Self { bytes: text(bytes)?, files: text(temp_inodes(bytes))? })
    }
}

/// An entry of the run's own filesystem.
#[derive(Debug)]
pub(super) enum ScratchEntry {
    Directory(CString, u32),
    EmptyFile(CString),
    /// Cannot be opened without capabilities, whichever user owns it.
    ClosedFile(CString),
    File(CString, Vec<u8>),
    Link(CString, CString),
}

impl InitStep {
    /// Returns a stable name, the layer of the report to which the step belongs, and a description
    /// for users.
    pub(super) fn texts(&self) -> (&'static str, &'static str, String) {
        match self {
            Self::ClaimIdentity { .. } => {
                ("identity", "user-namespace", "mapped to itself, no other user or group exists inside".into())
            }
            Self::AwaitIdentity => {
                ("identity", "user-namespace", "root mapped to itself by the caller, no groups".into())
            }
            Self::LeaveGroups => ("groups", "capabilities", "no supplementary groups".into()),
            Self::PrivateDirectory { .. } => {
                ("private-directory", "private-directory", "a temporary directory of its own".into())
            }
            Self::OwnFile { name, .. } => {
                ("private-directory", "private-directory", format!("{} in it", name.to_string_lossy()))
            }
            Self::Namespaces => ("namespaces", "mounts", "a mount namespace of its own".into()),
            Self::KeyRing => ("key-ring", "key-ring", "an empty session key ring".into()),
            Self::PrivateMounts => ("private-mounts", "mounts", "separated from the host's mounts".into()),
            Self::Proc => ("proc", "mounts", "/proc of the own PID namespace, read-only".into()),
            Self::Quotas(_) => (
                "quotas",
                "user-namespace",
                "half of the user's file watches, if the kernel supports that limit".into(),
            ),
            Self::CopyRoot => ("copy-root", "mounts", "a copy of the host's".into()),
            Self::Stage { workspace, .. } => {
                let path = RawText::from(workspace.path.as_bytes()).to_escaped();
                ("stage", "mounts", format!("writes to {path} go to a stage"))
            }
            Self::Merge { lower, .. } => {
                let path = RawText::from(lower.path.as_bytes()).to_escaped();
                ("merge", "mounts", format!("writes to {path} stay in a layer"))
            }
            Self::TakeLayers => ("merge", "mounts", "layers that the runs of the workspace share".into()),
            Self::Root { .. } => ("root", "mounts", "the host's root, read-only".into()),
            Self::Scratch(entries) => {
                ("scratch", "mounts", format!("{} entries in a private temporary filesystem", entries.len()))
            }
            Self::Attach(attachment) => ("attach", "mounts", describe_attachment(attachment)),
            Self::Devices(devices) => {
                ("devices", "mounts", format!("/dev with {} devices and its own terminals", devices.len()))
            }
            Self::Watch(names) => ("watch", "mounts", format!("{} hidden paths watched", names.len())),
            Self::Network => {
                ("network", "network-namespace", "only its own loopback, to which all addresses route".into())
            }
            Self::SwapRoot => ("swap-root", "mounts", "the host's root is unmounted".into()),
            Self::AdoptOrphans => ("adopt-orphans", "processes", "orphans are adopted and ended".into()),
            Self::DropPrivileges => {
                ("drop-privileges", "capabilities", "none in any set of the command, no_new_privs".into())
            }
            Self::EmptyRoot(_) => {
                ("empty-root", "mounts", "its own root, which contains only the named files of the host".into())
            }
            Self::HoldNamespaces => ("hold-namespaces", "namespaces", "kept open for later commands".into()),
            Self::Enter(_) => ("enter", "namespaces", "those of the sandbox, shared by all its commands".into()),
            Self::Allow(paths) => {
                ("allow", "mounts", format!("{} paths that the command may change directly", paths.len()))
            }
            Self::Opaque => ("opaque", "processes", "closed to other processes until its program starts".into()),
        }
    }

    /// Applies the step. Uses system calls only.
    pub(super) fn apply(&self, context: &mut BuildContext<'_>) -> Result<(), Errno> {
        match self {
            Self::ClaimIdentity { uid_map, gid_map } => claim_identity(uid_map, gid_map),
            Self::AwaitIdentity => await_identity(context.control),
            Self::LeaveGroups => set_thread_groups(&[]),
            Self::PrivateDirectory { path, rights } => make_private_directory(context, path, *rights),
            Self::OwnFile { name, content } => fill_file(require_made(&context.private_directory)?, name, content),
            Self::Namespaces => unshare_namespaces(FULL_NAMESPACES),
            Self::KeyRing => keyring::join_new_session(),
            Self::PrivateMounts => make_private(),
            Self::Proc => {
                let forbids = MountRestrictions { write: true, devices: true, setuid: true, exec: true };
                context.proc = Some(new_filesystem(c"proc", &[], forbids)?);
                Ok(())
            }
            Self::Quotas(quotas) => set_quotas(quotas),
            Self::CopyRoot => {
                context.root = Some(copy_tree(CWD, c"/")?);
                Ok(())
            }
            Self::Stage { workspace, overlay } => {
                context.overlay = Some(lay_over(workspace, overlay, c"off")?);
                Ok(())
            }
            Self::Merge { index, lower, overlay } => prepare_overlay(context, *index, lower, overlay),
            Self::TakeLayers => take_layers(context),
            Self::Root { size } => build_root(context, size.as_ref()),
            Self::Scratch(entries) => entries.iter().try_for_each(|e| make_entry(context.scratch_fd()?, e)),
            Self::Attach(attachment) => attach_one(context, attachment),
            Self::Devices(devices) => attach_devices(context, devices),
            Self::Watch(names) => watch_placeholders(context, names),
            Self::Network => {
                context.network = Some(RunNetwork::set_up()?);
                Ok(())
            }
            Self::SwapRoot => {
                fchdir(context.root_fd()?)?;
                swap_root()
            }
            Self::AdoptOrphans => stockade_sys::reap::adopt_orphans(),
            // The init listens inside for the egress proxy, on any port.
            Self::DropPrivileges if context.network.is_some() => caps::drop_all_but(CapabilitySet::NET_BIND_SERVICE),
            Self::DropPrivileges => caps::drop_all(),
            Self::EmptyRoot(entries) => {
                let forbids = MountRestrictions { devices: true, setuid: true, ..MountRestrictions::default() };
                let root = new_filesystem(c"tmpfs", &[(c"mode", c"0755")], forbids)?;
                entries.iter().try_for_each(|entry| make_entry(root.as_fd(), entry))?;
                context.root = Some(root);
                Ok(())
            }
            Self::HoldNamespaces => {
                context.isolation = Some(NamespaceSet::of_this_process()?);
                Ok(())
            }
            Self::Enter(isolation) => isolation.enter_all(),
            Self::Allow(paths) => paths.iter().try_for_each(|(path, rights)| {
                let object = open_plain(CWD, path, ResolveFlags::empty())?;
                context.allow_rights(object.as_fd(), *rights)
            }),
            Self::Opaque => caps::make_opaque(),
        }
    }
}

fn describe_attachment(attachment: &MountAttachment) -> String {
    let path = RawText::from(attachment.path.as_bytes()).to_escaped();
    match &attachment.mount_kind {
        MountKind::Private(_) => format!("{path} private"),
        MountKind::Devices => format!("{path} with few devices"),
        MountKind::Writable => format!("{path} writable"),
        MountKind::Staged => format!("{path} staged"),
        MountKind::Kept => format!("{path} private, kept for later runs"),
        MountKind::Merged(_) => format!("{path} as lower layer of the writes of the workspace's runs"),
        MountKind::Readable | MountKind::Visible { .. } => format!("{path} read-only"),
        MountKind::Hidden(_) => format!("{path} hidden"),
        MountKind::Masked => format!("{path} masked"),
        MountKind::Provided(_) => format!("{path} replaced"),
        MountKind::Brought { writable, .. } => format!("{path} {}", if *writable { "writable" } else { "read-only" }),
    }
}

fn claim_identity(uid_map: &CStr, gid_map: &CStr) -> Result<(), Errno> {
    write_file(c"/proc/self/setgroups", b"deny")?;
    write_file(c"/proc/self/uid_map", uid_map.to_bytes())?;
    write_file(c"/proc/self/gid_map", gid_map.to_bytes())
}

fn write_file(path: &CStr, bytes: &[u8]) -> Result<(), Errno> {
    let file = openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, bytes).map(drop)
}

/// Sets the quotas, best effort. They are no security boundary: before kernel 6.9, and if /proc/sys
/// is read-only, the run has the whole quota of its user.
fn set_quotas(quotas: &[NamespaceQuota]) -> Result<(), Errno> {
    for quota in quotas {
        let _ = write_file(quota.file, quota.amount.as_bytes());
    }
    Ok(())
}

fn await_identity(control: BorrowedFd<'_>) -> Result<(), Errno> {
    match LaunchMessage::receive_from(control, true)? {
        Some((LaunchMessage::Mapped, _)) => set_thread_groups(&[]),
        _ => Err(Errno::PIPE),
    }
}

/// Builds the new root. The root is copied before anything is attached to the old one, and attached
/// before anything is attached to it. Both the run's own filesystem and the new root are attached
/// over `/proc`, because every system has this directory and it is not used again.
fn build_root(context: &mut BuildContext<'_>, size: Option<&TempSize>) -> Result<(), Errno> {
    let root = context.root.take().ok_or(Errno::BADF)?;
    let (bytes, files) = size.map_or((c"", c""), |size| (&*size.bytes, &*size.files));
    let scratch_options = [(c"mode", c"0755"), (c"size", bytes), (c"nr_inodes", files)];
    let used = if size.is_some() { 3 } else { 1 };
    let forbids = MountRestrictions { devices: true, setuid: true, ..MountRestrictions::default() };
    let scratch = new_filesystem(c"tmpfs", &scratch_options[..used], forbids)?;
    attach_at(scratch.as_fd(), CWD, c"/proc")?;
    // The mount is made read-only once, not for each copy. It is attached, because only attached
    // mounts can be copied (before kernel 6.15).
    let placeholders = copy_tree(scratch.as_fd(), c"")?;
    restrict_mount(placeholders.as_fd(), MountRestrictions { write: true, ..forbids }, false)?;
    attach_at(placeholders.as_fd(), CWD, c"/proc")?;
    attach_at(root.as_fd(), CWD, c"/proc")?;
    restrict_mount(root.as_fd(), MountRestrictions { write: true, ..forbids }, true)?;
    if let Some(proc) = context.proc.take() {
        attach_at(proc.as_fd(), root.as_fd(), c"proc")?;
    }
    (context.root, context.scratch, context.placeholders) = (Some(root), Some(scratch), Some(placeholders));
    Ok(())
}

fn make_entry(scratch: BorrowedFd<'_>, entry: &ScratchEntry) -> Result<(), Errno> {
    match entry {
        ScratchEntry::Directory(name, mode) => mkdirat(scratch, name, Mode::from_raw_mode(*mode)),
        ScratchEntry::EmptyFile(name) => make_file(scratch, name, 0o444),
        ScratchEntry::ClosedFile(name) => make_file(scratch, name, 0),
        ScratchEntry::File(name, content) => fill_file(scratch, name, content),
        ScratchEntry::Link(text, name) => symlinkat(text, scratch, name),
    }
}

fn make_file(directory: BorrowedFd<'_>, name: &CStr, mode: u32) -> Result<(), Errno> {
    rustix::fs::mknodat(directory, name, FileType::RegularFile, Mode::from_raw_mode(mode), 0)
}

fn fill_file(directory: BorrowedFd<'_>, name: &CStr, content: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, Mode::from_raw_mode(0o444))?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))?;
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Opens `path` of the old root, or beneath `root`, without following any link. O_NOFOLLOW is not
/// used, because it would open a link at the end in spite of NO_SYMLINKS.
pub(super) fn open_plain(root: BorrowedFd<'_>, path: &CStr, within: ResolveFlags) -> Result<OwnedFd, Errno> {
    let resolve = within | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Returns ESTALE if the object is not the one that was examined.
pub(super) fn verify_identity(object: BorrowedFd<'_>, identity: ObjectIdentity) -> Result<(), Errno> {
    compare_identity(&fstat(object)?, identity)
}

fn compare_identity(stat: &rustix::fs::Stat, identity: ObjectIdentity) -> Result<(), Errno> {
    if (stat.st_dev, stat.st_ino) == (identity.device, identity.inode) { Ok(()) } else { Err(Errno::STALE) }
}

fn attach_one(context: &mut BuildContext<'_>, attachment: &MountAttachment) -> Result<(), Errno> {
    let scratch = context.scratch_fd()?;
    make_scaffold(scratch, attachment)?;
    let tree = match &attachment.mount_kind {
        MountKind::Merged(merged) => return attach_merged(context, attachment, merged),
        MountKind::Staged => context.overlay.take().ok_or(Errno::BADF)?,
        MountKind::Private(name) => copy_tree(scratch, name)?,
        MountKind::Devices => copy_tree(scratch, c"dev")?,
        MountKind::Masked if attachment.directory => copy_tree(require_made(&context.placeholders)?, c"void")?,
        MountKind::Masked => copy_tree(require_made(&context.placeholders)?, c"empty")?,
        MountKind::Hidden(_) | MountKind::Provided(_) => {
            copy_tree(require_made(&context.placeholders)?, &attachment.placeholder)?
        }
        MountKind::Writable
        | MountKind::Kept
        | MountKind::Readable
        | MountKind::Visible { .. }
        | MountKind::Brought { .. } => {
            let source = attachment.source.as_ref().unwrap_or(&attachment.path);
            let object = open_plain(CWD, source, ResolveFlags::empty())?;
            verify_identity(object.as_fd(), attachment.identity)?;
            copy_tree(object.as_fd(), c"")?
        }
    };
    let forbids = MountRestrictions { write: true, devices: true, setuid: true, exec: false };
    match attachment.mount_kind {
        // The run's own filesystem already has these restrictions.
        MountKind::Private(_)
        | MountKind::Devices
        | MountKind::Masked
        | MountKind::Hidden(_)
        | MountKind::Provided(_) => {}
        MountKind::Writable | MountKind::Kept | MountKind::Staged | MountKind::Brought { writable: true, .. } => {
            restrict_mount(tree.as_fd(), MountRestrictions { write: false, ..forbids }, true)?;
        }
        _ => restrict_mount(tree.as_fd(), forbids, true)?,
    }
    let target = open_plain(context.root_fd()?, attachment.relative_path(), ResolveFlags::IN_ROOT)?;
    attach_mount(tree.as_fd(), target.as_fd())?;
    context.allow_rights(tree.as_fd(), attachment_rights(attachment))
}

/// Returns the Landlock rights of the command on an attachment. In a writable root of the host
/// there are none: the broker makes every change there, which protects names that do not exist yet.
/// Rights apply through mounts to everything beneath. A private tree around such a root therefore
/// gets no more rights than the root.
pub(super) fn attachment_rights(attachment: &MountAttachment) -> u64 {
    match attachment.mount_kind {
        MountKind::Private(_) | MountKind::Kept if attachment.kernel_allows => access::change_rights(u32::MAX),
        _ => 0,
    }
}

fn make_scaffold(scratch: BorrowedFd<'_>, attachment: &MountAttachment) -> Result<(), Errno> {
    let Some((last, directories)) = attachment.scaffold.split_last() else { return Ok(()) };
    let directories = directories.iter().chain(attachment.directory.then_some(last));
    for directory in directories {
        match mkdirat(scratch, directory, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    match if attachment.directory { Ok(()) } else { make_file(scratch, last, 0o444) } {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// Attaches the devices; `/dev` is attached already. Device nodes cannot be made in a user
/// namespace. The host's nodes are attached one by one, and each is checked after it was opened.
fn attach_devices(context: &mut BuildContext<'_>, devices: &[DeviceNode]) -> Result<(), Errno> {
    let directory = open_plain(context.root_fd()?, c"dev", ResolveFlags::IN_ROOT)?;
    for device in devices {
        let node = copy_tree(CWD, &device.source)?;
        let stat = fstat(&node)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice || stat.st_rdev != device.number {
            return Err(Errno::STALE);
        }
        attach_at(node.as_fd(), directory.as_fd(), device.name)?;
        context.allow_rights(node.as_fd(), access::WRITE_FILE | access::TRUNCATE | access::IOCTL_DEV)?;
    }
    // The nodes belong to the host, so their owner could change their modes. A read-only mount does
    // not prevent opening a device for writing.
    let forbids = MountRestrictions { setuid: true, exec: true, ..MountRestrictions::default() };
    restrict_mount(directory.as_fd(), MountRestrictions { write: true, ..forbids }, true)?;
    let options = [(c"newinstance", c""), (c"ptmxmode", c"0666"), (c"mode", c"0620"), (c"max", MAX_TERMINALS)];
    let terminals = new_filesystem(c"devpts", &options, forbids)?;
    attach_at(terminals.as_fd(), directory.as_fd(), c"pts")?;
    context.allow_rights(terminals.as_fd(), access::WRITE_FILE | access::TRUNCATE | access::IOCTL_DEV)
}

/// Makes the private directory. Its name is unguessable, so an existing directory of that name is
/// an attack.
fn make_private_directory(context: &mut BuildContext<'_>, path: &CStr, rights: u64) -> Result<(), Errno> {
    mkdirat(CWD, path, Mode::RWXU)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(CWD, path, flags, Mode::empty())?;
    context.allow_rights(directory.as_fd(), rights)?;
    context.private_directory = Some(directory);
    Ok(())
}

/// Watches the placeholders. The caller identifies events by the number of the watch: 1 for the
/// first name, as inotify counts in a new instance. A user has few instances (128), and shares the
/// watches with other programs. Without them all paths stay hidden, but openings are not reported,
/// and the enforcement report states this.
fn watch_placeholders(context: &mut BuildContext<'_>, names: &[CString]) -> Result<(), Errno> {
    let watches = match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
        Err(Errno::MFILE) => return Ok(()),
        made => made?,
    };
    fchdir(context.scratch_fd()?)?;
    for (index, name) in names.iter().enumerate() {
        let number = match inotify::add_watch(&watches, name, WatchFlags::OPEN) {
            Err(Errno::NOSPC) => return Ok(()),
            added => added?,
        };
        if usize::try_from(number) != Ok(index + 1) {
            return Err(Errno::PROTO);
        }
    }
    context.watches = Some(watches);
    Ok(())
}

/// Returns an error unless the object at `path` is the one that was examined.
pub(super) fn verify_directory(path: &CStr, identity: ObjectIdentity) -> Result<(), Errno> {
    compare_identity(&rustix::fs::statat(CWD, path, AtFlags::empty())?, identity)
}
