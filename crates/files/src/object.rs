//! An object of a tree, open by descriptor: its kind, metadata and content. A symbolic link is
//! never followed, and no path of several components is passed to the kernel without [`BENEATH_FLAGS`].
//! Independent of overlays.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RawDir, ResolveFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid,
    chownat, fstat, getxattr, linkat, listxattr, mkdirat, openat, openat2, removexattr, setxattr, utimensat,
};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use stockade_model::RawText;
use stockade_sys::resolve::DescriptorPath;
use stockade_sys::{Errno, actor, resolve};

/// Flags for the lookup of a path of several components: neither a symbolic link nor a mount leads
/// out.
pub const BENEATH_FLAGS: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// Permission bits and the three special bits.
pub const MODE_BITS: u32 = 0o7777;
/// Bytes compared at once.
const BLOCK_BYTES: usize = 64 * 1024;
/// Largest list of attribute names (`XATTR_LIST_MAX`) and value (`XATTR_SIZE_MAX`).
const ATTRIBUTE_BYTES: usize = 65_536;

/// Makes a directory if the path is free.
///
/// # Errors
/// The errors of mkdirat(2), but no error if the path exists.
pub fn make_where_missing<P: rustix::path::Arg>(parent: impl AsFd, path: P, mode: Mode) -> Result<(), Errno> {
    match mkdirat(parent, path, mode) {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// Returns random bytes.
///
/// # Errors
/// The errors of getrandom(2).
pub fn random_bytes() -> Result<[u8; 16], Errno> {
    let mut bytes = [0; 16];
    // The kernel returns so few bytes at once or not at all (getrandom(2)).
    if getrandom(&mut bytes, GetRandomFlags::empty())? < bytes.len() {
        return Err(Errno::AGAIN);
    }
    Ok(bytes)
}

/// Returns a name that is unique and cannot be guessed: 32 hexadecimal digits.
///
/// # Errors
/// The errors of getrandom(2).
pub fn unguessable_name() -> Result<String, Errno> {
    Ok(format!("{:032x}", u128::from_ne_bytes(random_bytes()?)))
}

/// Kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A named pipe.
    Pipe,
    /// The name of a unix socket.
    Socket,
    /// A device node.
    Device,
}

impl ObjectKind {
    /// Returns the name of the kind with its article, for display.
    pub fn with_article(self) -> &'static str {
        match self {
            Self::File => "a file",
            Self::Directory => "a directory",
            Self::Link => "a link",
            Self::Pipe => "a pipe",
            Self::Socket => "a socket",
            Self::Device => "a device",
        }
    }

    /// Returns the kind in a file mode.
    pub fn of_mode(mode: u32) -> Self {
        match FileType::from_raw_mode(mode) {
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Link,
            FileType::Fifo => Self::Pipe,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice | FileType::BlockDevice => Self::Device,
            FileType::RegularFile | FileType::Unknown => Self::File,
        }
    }
}

/// A time with the resolution of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileTime {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanoseconds: u32,
}

/// Identity and metadata of an object, for detecting a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeMark {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Time of the last change of the content.
    pub modified: FileTime,
    /// Time of the last change of content or metadata (`ctime`).
    pub changed: FileTime,
}

/// Extended attributes, sorted by name.
pub type ExtendedAttributes = Vec<(RawText, RawText)>;

/// An open object, identified by an `O_PATH` descriptor.
#[derive(Debug)]
pub struct TreeObject {
    /// Descriptor of the object.
    pub fd: OwnedFd,
    /// Metadata at the time of the open.
    pub stat: Stat,
}

impl TreeObject {
    /// Opens `name` (one component) in `directory`; `None` if it does not exist.
    ///
    /// # Errors
    /// As openat(2).
    pub fn open_entry(directory: BorrowedFd<'_>, name: &OsStr) -> Result<Option<Self>, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(directory, name, flags, Mode::empty()) {
            Ok(fd) => Self::from_fd(fd).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Opens `name` (one component) in `directory`, which must exist.
    ///
    /// # Errors
    /// As openat(2).
    pub fn require_entry(directory: impl AsFd, name: impl AsRef<OsStr>) -> Result<Self, Errno> {
        Self::open_entry(directory.as_fd(), name.as_ref())?.ok_or(Errno::NOENT)
    }

    /// Opens the object at `path` beneath `root`, or `root` itself if `path` is empty. `None` if
    /// there is no object, or if a parent is not a directory.
    ///
    /// # Errors
    /// As openat2(2).
    pub fn open_beneath(root: BorrowedFd<'_>, path: &Path) -> Result<Option<Self>, Errno> {
        Self::open_resolved(root, path, BENEATH_FLAGS)
    }

    /// Does the same with other flags for the lookup.
    ///
    /// # Errors
    /// As openat2(2).
    pub fn open_resolved(root: BorrowedFd<'_>, path: &Path, flags: ResolveFlags) -> Result<Option<Self>, Errno> {
        if path.as_os_str().is_empty() {
            return Self::duplicate(root).map(Some);
        }
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else { return Err(Errno::INVAL) };
        match directory_resolved(root, parent, flags) {
            Ok(parent) => Self::open_entry(parent.as_fd(), name),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Makes an object from a descriptor.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn from_fd(fd: OwnedFd) -> Result<Self, Errno> {
        let stat = fstat(&fd)?;
        Ok(Self { fd, stat })
    }

    /// Makes an object from a copy of a descriptor.
    ///
    /// # Errors
    /// As fcntl(2) and fstat(2).
    pub fn duplicate(fd: impl AsFd) -> Result<Self, Errno> {
        Self::from_fd(rustix::io::fcntl_dupfd_cloexec(fd, 3)?)
    }

    /// Returns the entries of a directory, sorted by name. Each is opened when it is reached; an
    /// entry that is removed before is skipped.
    ///
    /// # Errors
    /// As [`list_entry_names`]; for an entry, as openat(2).
    pub fn entries(&self) -> Result<impl Iterator<Item = (OsString, Result<Self, Errno>)>, Errno> {
        let names = list_entry_names(self.fd.as_fd())?.into_iter().map(OsString::from_vec);
        Ok(names.filter_map(|name| {
            let opened = Self::open_entry(self.fd.as_fd(), &name).transpose()?;
            Some((name, opened))
        }))
    }

    /// Gives the object one more name (hard link).
    ///
    /// # Errors
    /// As linkat(2).
    pub fn link_at(&self, directory: impl AsFd, name: impl rustix::path::Arg) -> Result<(), Errno> {
        linkat(CWD, DescriptorPath::new(self.fd.as_fd()).as_c_str(), directory, name, AtFlags::SYMLINK_FOLLOW)
    }

    /// Returns user and group.
    pub fn owner(&self) -> (u32, u32) {
        (self.stat.st_uid, self.stat.st_gid)
    }

    /// Sets user and group, if they differ.
    ///
    /// # Errors
    /// As chown(2).
    pub fn set_owner(&self, (user, group): (u32, u32)) -> Result<(), Errno> {
        if self.owner() == (user, group) {
            return Ok(());
        }
        let (user, group) = (Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
        chownat(&self.fd, c"", user, group, AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Returns the kind.
    pub fn kind(&self) -> ObjectKind {
        ObjectKind::of_mode(self.stat.st_mode)
    }

    /// Returns whether the object is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind() == ObjectKind::Directory
    }

    /// Returns the permission bits and the three special bits.
    pub fn mode(&self) -> u32 {
        self.stat.st_mode & MODE_BITS
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }

    /// Returns the inode number.
    pub fn inode(&self) -> u64 {
        self.stat.st_ino
    }

    /// Returns the time of the last change of the content.
    pub fn modified_time(&self) -> FileTime {
        FileTime { seconds: self.stat.st_mtime, nanoseconds: to_nanoseconds(self.stat.st_mtime_nsec) }
    }

    /// Returns the time of the last change of content or metadata (`ctime`).
    pub fn changed_time(&self) -> FileTime {
        FileTime { seconds: self.stat.st_ctime, nanoseconds: to_nanoseconds(self.stat.st_ctime_nsec) }
    }

    /// Returns the mark for detecting a later change.
    pub fn change_mark(&self) -> ChangeMark {
        ChangeMark {
            kind: self.kind(),
            inode: self.inode(),
            size: self.size(),
            mode: self.mode(),
            modified: self.modified_time(),
            changed: self.changed_time(),
        }
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// An error if the object is not a symbolic link.
    pub fn link_text(&self) -> Result<Vec<u8>, Errno> {
        resolve::link_text(self.fd.as_fd())
    }

    /// Runs `act` on an own file or directory whose mode would not permit it, and restores the mode.
    /// Never for files in a workspace.
    ///
    /// # Errors
    /// The errors of `act`, or of changing the mode.
    pub fn opened_up<T>(&self, act: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let mode = self.mode();
        let needed = match self.kind() {
            ObjectKind::File => 0o600,
            ObjectKind::Directory => 0o700,
            _ => 0,
        };
        if mode & needed == needed || rustix::process::geteuid().is_root() {
            return act();
        }
        self.set_mode(mode | needed)?;
        let done = act();
        self.set_mode(mode)?;
        done
    }

    /// Opens the object for reading.
    ///
    /// # Errors
    /// As open(2).
    pub fn open_file(&self) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        openat(CWD, DescriptorPath::new(self.fd.as_fd()).as_c_str(), flags, Mode::empty()).map(File::from)
    }

    /// Returns the names of the attributes that overlays keep.
    ///
    /// # Errors
    /// As listxattr(2).
    pub fn overlay_attributes(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let names = self.attribute_names()?;
        let own = names.split(|b| *b == 0).filter(|name| name.starts_with(OVERLAY_ATTRIBUTES));
        Ok(own.map(<[u8]>::to_vec).collect())
    }

    fn attribute_names(&self) -> Result<Vec<u8>, Errno> {
        let mut names = vec![0; ATTRIBUTE_BYTES];
        match listxattr(DescriptorPath::new(self.fd.as_fd()).as_c_str(), &mut names) {
            Ok(length) => names.truncate(length),
            Err(Errno::OPNOTSUPP) => names.clear(),
            Err(errno) => return Err(errno),
        }
        Ok(names)
    }

    /// Returns the attributes that belong to the content: `user.*` and access control lists.
    ///
    /// # Errors
    /// As listxattr(2) and getxattr(2).
    pub fn read_attributes(&self) -> Result<ExtendedAttributes, Errno> {
        if self.kind() == ObjectKind::Link {
            return Ok(ExtendedAttributes::new());
        }
        let names = self.attribute_names()?;
        let mut found = ExtendedAttributes::new();
        for name in names.split(|b| *b == 0).filter(|name| is_content_attribute(name)) {
            found.extend(self.read_attribute(name)?.map(|value| (RawText::from(name), RawText::from(value))));
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Replaces all attributes that belong to the content.
    ///
    /// # Errors
    /// As setxattr(2) and removexattr(2).
    pub fn replace_attributes(&self, after: &ExtendedAttributes) -> Result<(), Errno> {
        let present = self.read_attributes()?;
        for (name, _) in present.iter().filter(|(name, _)| !after.iter().any(|(other, _)| other == name)) {
            self.remove_attribute(name.as_bytes())?;
        }
        let mut changed = after.iter().filter(|pair| !present.contains(pair));
        changed.try_for_each(|(name, value)| self.set_attribute(name.as_bytes(), value.as_bytes()))
    }

    /// Returns the value of one attribute.
    ///
    /// # Errors
    /// As getxattr(2).
    pub fn read_attribute(&self, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        let mut value = vec![0; ATTRIBUTE_BYTES];
        match getxattr(DescriptorPath::new(self.fd.as_fd()).as_c_str(), name, &mut value) {
            Ok(length) => {
                value.truncate(length);
                Ok(Some(value))
            }
            // Only the owner may read the attributes of some kinds.
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Sets one attribute.
    ///
    /// # Errors
    /// As setxattr(2).
    pub fn set_attribute(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        setxattr(DescriptorPath::new(self.fd.as_fd()).as_c_str(), name, value, rustix::fs::XattrFlags::empty())
    }

    /// Removes one attribute, if it exists.
    ///
    /// # Errors
    /// As removexattr(2).
    pub fn remove_attribute(&self, name: &[u8]) -> Result<(), Errno> {
        match removexattr(DescriptorPath::new(self.fd.as_fd()).as_c_str(), name) {
            Err(Errno::NODATA) => Ok(()),
            other => other,
        }
    }

    /// Sets the permission bits; not for a symbolic link.
    ///
    /// # Errors
    /// As chmod(2).
    pub fn set_mode(&self, mode: u32) -> Result<(), Errno> {
        actor::change_mode(self.fd.as_fd(), mode)
    }

    /// Sets the modification time.
    ///
    /// # Errors
    /// As utimensat(2).
    pub fn set_modified(&self, time: FileTime) -> Result<(), Errno> {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
        };
        utimensat(&self.fd, c"", &times, AtFlags::EMPTY_PATH)
    }
}

fn to_nanoseconds(value: impl TryInto<u32>) -> u32 {
    value.try_into().unwrap_or(0)
}

/// Prefix of the attributes of overlays (overlayfs.rst, `userxattr`).
pub const OVERLAY_ATTRIBUTES: &[u8] = b"user.overlay.";

/// Returns whether an attribute is part of a program's content. Attributes of the kernel or its
/// security modules (`security.`, `trusted.`) and of overlays are not.
fn is_content_attribute(name: &[u8]) -> bool {
    (name.starts_with(b"user.") && !name.starts_with(OVERLAY_ATTRIBUTES)) || name.starts_with(b"system.posix_acl_")
}

/// Opens the directory at `path` beneath `root`; `root` itself if `path` is empty.
///
/// # Errors
/// As openat2(2).
pub fn directory_beneath(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    directory_resolved(root, path, BENEATH_FLAGS)
}

/// Does the same with other flags for the lookup.
///
/// # Errors
/// As openat2(2).
pub fn directory_resolved(root: BorrowedFd<'_>, path: &Path, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    if path.as_os_str().is_empty() {
        return rustix::io::fcntl_dupfd_cloexec(root, 3);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(root, path, flags, Mode::empty(), resolve)
}

/// Lists the names in an open directory, sorted by bytes. Opens up an own unreadable directory for
/// that moment.
///
/// # Errors
/// As open(2) and getdents(2).
pub fn list_entry_names(directory: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names: Vec<Vec<u8>> = list_entries(directory)?.into_iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    Ok(names)
}

/// Lists the names in an open directory with their types, as the directory reports them.
///
/// # Errors
/// As open(2) and getdents(2).
pub fn list_entries(directory: BorrowedFd<'_>) -> Result<Vec<(Vec<u8>, FileType)>, Errno> {
    let open = || openat(directory, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let listed = match open() {
        Err(Errno::ACCESS) => {
            let mode = fstat(directory)?.st_mode & MODE_BITS;
            actor::change_mode(directory, mode | 0o700)?;
            let opened = open();
            actor::change_mode(directory, mode)?;
            opened?
        }
        other => other?,
    };
    let mut buffer = vec![MaybeUninit::uninit(); BLOCK_BYTES];
    let mut listing = RawDir::new(listed, &mut buffer);
    let mut found = Vec::new();
    while let Some(entry) = listing.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            found.push((name.to_vec(), entry.file_type()));
        }
    }
    Ok(found)
}

/// Converts a name to the type of the standard library.
pub fn to_os_str(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

/// Returns whether two objects have the same kind and the same bytes or link target. Unreadable
/// objects count as different.
///
/// # Errors
/// As read(2).
pub fn same_content(one: &TreeObject, other: &TreeObject) -> Result<bool, Errno> {
    if one.kind() != other.kind() {
        return Ok(false);
    }
    match one.kind() {
        ObjectKind::Link => Ok(one.link_text()? == other.link_text()?),
        ObjectKind::File if one.size() != other.size() => Ok(false),
        ObjectKind::File if (one.stat.st_dev, one.inode()) == (other.stat.st_dev, other.inode()) => Ok(true),
        ObjectKind::File => match (one.open_file(), other.open_file()) {
            (Ok(one), Ok(other)) => same_bytes(&one, &other),
            (Err(Errno::ACCESS), _) | (_, Err(Errno::ACCESS)) => Ok(false),
            (Err(errno), _) | (_, Err(errno)) => Err(errno),
        },
        ObjectKind::Device => Ok(one.stat.st_rdev == other.stat.st_rdev),
        ObjectKind::Directory | ObjectKind::Pipe | ObjectKind::Socket => Ok(true),
    }
}

fn same_bytes(one: &File, other: &File) -> Result<bool, Errno> {
    let (mut left, mut right) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    let mut at = 0;
    loop {
        let length = read_block(one, &mut left, at)?;
        if length != read_block(other, &mut right, at)? || left[..length] != right[..length] {
            return Ok(false);
        }
        if length == 0 {
            return Ok(true);
        }
        at += length as u64;
    }
}

/// Reads from an offset; fills the block unless the file ends. Returns the number of bytes.
///
/// # Errors
/// As read(2).
pub fn read_block(file: &File, block: &mut [u8], at: u64) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < block.len() {
        match file.read_at(&mut block[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
        }
    }
    Ok(filled)
}
