//! Resolves a path that a program passed to an object that the broker holds.
//!
//! The kernel never follows the last component. The broker keeps it as a held directory and one
//! name, so that the decision and the act are about the same object. Procfs links are resolved as
//! the *caller* would see them.

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, lstat, openat2};
use stockade_permissions::guards::view::join_name;
use stockade_sys::{Errno, resolve};

use super::caller::CallingThread;

/// The kernel's limit: `MAXSYMLINKS`.
const MAX_LINKS: u32 = 40;
/// Most components that are looked up for one path, links included. The kernel has no such limit;
/// this one keeps a hostile path from taking more than a few milliseconds.
const MAX_LOOKUPS: u32 = 10_000;
/// Inode of the root of every procfs.
const PROC_ROOT_INODE: u64 = 1;
/// Suffix that the kernel adds to the path of a removed object.
pub(super) const DELETED_SUFFIX: &[u8] = b" (deleted)";

/// Resolves paths of one caller.
pub(super) struct PathResolver<'a> {
    pub caller: &'a CallingThread,
    pub root: BorrowedFd<'a>,
    procfs_scope: ProcfsScope,
    links: Cell<u32>,
    steps: Cell<u32>,
}

/// A held directory and its path.
pub(super) struct ResolvedDirectory {
    pub fd: OwnedFd,
    pub path: Vec<u8>,
}

/// A name in a held directory.
pub(super) struct ResolvedName {
    pub directory: ResolvedDirectory,
    /// A single component, without slashes.
    pub name: CString,
    /// The path of the name.
    pub path: Vec<u8>,
    /// True if a slash followed: only a directory is accepted.
    pub slash: bool,
    /// True if the name is `.`, `..` or `/`, which cannot be made or removed.
    pub special: bool,
    /// True if the directory is on a procfs.
    pub on_proc: bool,
}

/// A held object.
pub(super) struct ResolvedObject {
    pub fd: OwnedFd,
    /// Absolute, or a text such as `pipe:[7]` for an object without a path.
    pub path: Vec<u8>,
    pub stat: Stat,
    /// The name by which it was found; `None` if it was reached by a descriptor.
    pub resolved: Option<ResolvedName>,
}

/// Target of a link.
enum SymlinkTarget {
    /// Continue with this text.
    Text(Vec<u8>),
    /// The object of a procfs link.
    Object(OwnedFd),
}

impl ResolvedObject {
    /// Creates the value for the object of `fd`.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, Errno> {
        let (path, stat) = (Self::path_of(&fd)?, fstat(&fd)?);
        Ok(Self { fd, path, stat, resolved: None })
    }

    /// Returns the path of the object, or its last path if it was removed.
    pub fn path_of(fd: &OwnedFd) -> Result<Vec<u8>, Errno> {
        let mut path = resolve::path_of(fd.as_fd())?;
        if path.ends_with(DELETED_SUFFIX) && !ends_so_by_itself(&fstat(fd)?, &path) {
            path.truncate(path.len() - DELETED_SUFFIX.len());
        }
        Ok(path)
    }

    /// Returns the file type.
    pub fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Returns whether no path leads to the object: a pipe, a socket, an anonymous file.
    pub fn is_placeless(&self) -> bool {
        !self.path.starts_with(b"/") || (self.stat.st_nlink == 0 && self.path.starts_with(b"/memfd:"))
    }
}

impl ResolvedName {
    /// Returns the current path of the name; `None` in a directory that was removed.
    pub fn path_now(&self) -> Result<Option<Vec<u8>>, Errno> {
        match resolve::path_of(self.directory.fd.as_fd()) {
            Err(Errno::NOENT) => Ok(None),
            path => Ok(Some(join_name(&path?, self.name.as_bytes()))),
        }
    }

    /// Returns the name as it was written, for a call that distinguishes the slash.
    pub fn name_as_written(&self) -> CString {
        if !self.slash || self.special {
            return self.name.clone();
        }
        let mut name = self.name.as_bytes().to_vec();
        name.push(b'/');
        CString::new(name).unwrap_or_else(|_| self.name.clone())
    }

    /// Returns whether the name is of a named pipe.
    pub fn is_pipe(&self) -> bool {
        let kind = |fd: OwnedFd| fstat(&fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
        self.open_nofollow().and_then(kind).is_ok_and(|kind| kind == FileType::Fifo)
    }

    /// Holds the object with this name; a link is not followed.
    pub fn open_nofollow(&self) -> Result<OwnedFd, Errno> {
        resolve::open_component(self.directory.fd.as_fd(), &self.name)
    }
}

impl<'a> PathResolver<'a> {
    pub fn new(caller: &'a CallingThread, root: BorrowedFd<'a>, procfs_scope: ProcfsScope) -> Self {
        Self { caller, root, procfs_scope, links: Cell::new(0), steps: Cell::new(0) }
    }

    /// Returns the name that `path` names. A relative path starts at descriptor `start`
    /// (`AT_FDCWD`: the working directory).
    pub fn resolve_name(&self, start: i32, path: &CStr) -> Result<ResolvedName, Errno> {
        let path = path.to_bytes();
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        let start = if path.starts_with(b"/") { None } else { Some(self.caller.open_start(start)?) };
        self.resolved_from(start, path)
    }

    /// Returns the object that `path` names; with `follow`, the last link is followed.
    pub fn resolve_object(&self, start: i32, path: &CStr, follow: bool) -> Result<ResolvedObject, Errno> {
        self.find_at(self.resolve_name(start, path)?, follow)
    }

    /// Returns the object at a name.
    pub fn find_at(&self, mut resolved: ResolvedName, follow: bool) -> Result<ResolvedObject, Errno> {
        loop {
            let fd = resolved.open_nofollow()?;
            let stat = fstat(&fd)?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind == FileType::Symlink && (follow || resolved.slash) {
                match self.follow_link(resolved, fd)? {
                    LinkDestination::Path(next) => resolved = next,
                    LinkDestination::Object(object) => return Ok(object),
                }
                continue;
            }
            if resolved.slash && kind != FileType::Directory {
                return Err(Errno::NOTDIR);
            }
            if resolved.special {
                return ResolvedObject::from_fd(fd);
            }
            return Ok(ResolvedObject { fd, path: resolved.path.clone(), stat, resolved: Some(resolved) });
        }
    }

    /// Resolves the held link `link`, which is at `resolved`.
    pub fn follow_link(&self, resolved: ResolvedName, link: OwnedFd) -> Result<LinkDestination, Errno> {
        match self.read_link_target(resolved.directory.fd.as_fd(), &resolved.name, &link)? {
            SymlinkTarget::Object(fd) => {
                let object = ResolvedObject::from_fd(fd)?;
                let is_directory = object.file_type() == FileType::Directory;
                if resolved.slash && !is_directory { Err(Errno::NOTDIR) } else { Ok(LinkDestination::Object(object)) }
            }
            SymlinkTarget::Text(mut text) => {
                if text.is_empty() {
                    return Err(Errno::NOENT);
                }
                if resolved.slash {
                    text.push(b'/');
                }
                let start = (!text.starts_with(b"/")).then_some(resolved.directory.fd);
                self.resolved_from(start, &text).map(LinkDestination::Path)
            }
        }
    }

    /// Resolves a path to a name; `start` is `None` for the root.
    fn resolved_from(&self, start: Option<OwnedFd>, path: &[u8]) -> Result<ResolvedName, Errno> {
        let slash = path.ends_with(b"/");
        let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
        let (parent, name) = match path[..end].iter().rposition(|b| *b == b'/') {
            Some(at) => (&path[..=at], &path[at + 1..end]),
            None if end == 0 => (path, &b"."[..]),
            None => (&b""[..], &path[..end]),
        };
        let (fd, on_proc) = self.open_directory(start, parent)?;
        let directory = ResolvedDirectory { path: directory_path(&fd)?, fd };
        let (path, special) = (join_name(&directory.path, name), matches!(name, b"." | b".."));
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        Ok(ResolvedName { directory, name, path, slash, special, on_proc })
    }

    /// Opens the directory at `path`. Uses the kernel's own resolution if it sees the same as the
    /// caller, else resolves each component. Returns also whether the directory is on a procfs.
    fn open_directory(&self, start: Option<OwnedFd>, path: &[u8]) -> Result<(OwnedFd, bool), Errno> {
        let text = CString::new(path).map_err(|_| Errno::INVAL)?;
        let fast = match &start {
            Some(_) if path.is_empty() => Err(Errno::XDEV),
            Some(fd) => resolve::directory_beneath(fd.as_fd(), &text),
            None => resolve::directory_in_root(self.root, &text),
        };
        match fast {
            Ok(fd) if !resolve::is_on_proc(fd.as_fd())? => Ok((fd, false)),
            Err(errno @ (Errno::NOTDIR | Errno::ACCESS | Errno::NAMETOOLONG)) => Err(errno),
            // The start itself, a path over procfs, a path out of the start, or a race.
            Ok(_) | Err(_) => {
                let fd = self.resolve_slowly(start, path)?;
                let on_proc = resolve::is_on_proc(fd.as_fd())?;
                Ok((fd, on_proc))
            }
        }
    }

    fn must_be_directory(&self, fd: OwnedFd) -> Result<OwnedFd, Errno> {
        let is_directory = FileType::from_raw_mode(fstat(&fd)?.st_mode) == FileType::Directory;
        if is_directory { Ok(fd) } else { Err(Errno::NOTDIR) }
    }

    fn resolve_slowly(&self, start: Option<OwnedFd>, path: &[u8]) -> Result<OwnedFd, Errno> {
        let mut here = match start {
            Some(fd) => fd,
            None => start_copy(self.root)?,
        };
        let mut rest = reversed_components(path);
        while let Some(component) = rest.pop() {
            self.steps.set(self.steps.get() + 1);
            if self.steps.get() > MAX_LOOKUPS {
                return Err(Errno::LOOP);
            }
            if component.as_bytes() == b"." {
                continue;
            }
            let next = resolve::open_component(here.as_fd(), &component)?;
            match FileType::from_raw_mode(fstat(&next)?.st_mode) {
                FileType::Directory => here = next,
                FileType::Symlink => match self.read_link_target(here.as_fd(), &component, &next)? {
                    SymlinkTarget::Object(fd) => here = self.must_be_directory(fd)?,
                    SymlinkTarget::Text(text) => {
                        if text.is_empty() {
                            return Err(Errno::NOENT);
                        }
                        if text.starts_with(b"/") {
                            here = start_copy(self.root)?;
                        }
                        rest.extend(reversed_components(&text));
                    }
                },
                _ => return Err(Errno::NOTDIR),
            }
        }
        self.must_be_directory(here)
    }

    /// Returns the target of a link, for this caller.
    fn read_link_target(&self, directory: BorrowedFd<'_>, name: &CStr, link: &OwnedFd) -> Result<SymlinkTarget, Errno> {
        self.links.set(self.links.get() + 1);
        if self.links.get() > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        if !resolve::is_on_proc(link.as_fd())? {
            return resolve::link_text(link.as_fd()).map(SymlinkTarget::Text);
        }
        let at_top = fstat(directory)?.st_ino == PROC_ROOT_INODE;
        match name.to_bytes() {
            b"self" if at_top => {
                let caller_status = self.caller.read_status()?;
                Ok(SymlinkTarget::Text(caller_status.own_process.to_string().into_bytes()))
            }
            b"thread-self" if at_top => {
                let caller_status = self.caller.read_status()?;
                Ok(SymlinkTarget::Text(
                    format!("{}/task/{}", caller_status.own_process, caller_status.own_thread).into_bytes(),
                ))
            }
            _ if at_top => resolve::link_text(link.as_fd()).map(SymlinkTarget::Text),
            _ => {
                self.may_look_into(&resolve::path_of(directory)?)?;
                resolve::open_link_target(directory, name).map(SymlinkTarget::Object)
            }
        }
    }

    /// Permits procfs links only into processes of the run. Another process may be in another mount
    /// namespace, where the same path is another file. `directory` is the path of the link's
    /// directory in procfs.
    fn may_look_into(&self, directory: &[u8]) -> Result<(), Errno> {
        let process: u32 = directory
            .strip_prefix(b"/proc/")
            .and_then(|rest| std::str::from_utf8(rest.split(|b| *b == b'/').next()?).ok()?.parse().ok())
            .ok_or(Errno::ACCESS)?;
        if process == self.caller.read_status()?.own_process {
            return Ok(());
        }
        let is_of_run = match self.procfs_scope {
            ProcfsScope::All => process != 1,
            ProcfsScope::Below(ancestor_pid) => is_descendant(process, ancestor_pid, &status_on_host),
            ProcfsScope::Of(first) => {
                let status = |at| status_of(self.root, &format!("proc/{at}/status"));
                process == first || is_descendant(process, first, &status)
            }
        };
        if is_of_run { Ok(()) } else { Err(Errno::ACCESS) }
    }
}

/// Processes of a run, whose procfs links it may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcfsScope {
    /// All visible processes but the first, which is not the command's.
    All,
    /// The descendants of this process, by the host's number.
    Below(u32),
    /// This process and its descendants, by their own numbers; other processes belong to other
    /// commands. A process that another one adopted is not recognised.
    Of(u32),
}

/// Target of a followed link.
pub(super) enum LinkDestination {
    /// A name.
    Path(ResolvedName),
    /// An object without a name.
    Object(ResolvedObject),
}

fn start_copy(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3)
}

/// Returns whether a path that ends like that of a removed object really is the path of the held
/// object. A directory has one name. A file may have other names left, so this one is looked up.
fn ends_so_by_itself(held: &Stat, path: &[u8]) -> bool {
    match FileType::from_raw_mode(held.st_mode) {
        _ if held.st_nlink == 0 => false,
        FileType::Directory => true,
        _ => lstat(path).is_ok_and(|found| (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)),
    }
}

/// Returns the path of a held directory. Fails for a removed one, because nothing can be made in it.
fn directory_path(fd: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let path = resolve::path_of(fd.as_fd())?;
    if !path.starts_with(b"/") || (path.ends_with(DELETED_SUFFIX) && fstat(fd)?.st_nlink == 0) {
        return Err(Errno::NOENT);
    }
    Ok(path)
}

/// Returns the components of a path, last one first.
fn reversed_components(path: &[u8]) -> Vec<CString> {
    path.split(|b| *b == b'/').filter(|c| !c.is_empty()).rev().filter_map(|c| CString::new(c).ok()).collect()
}

/// Reads the status of a process in procfs.
fn status_of(root: BorrowedFd<'_>, path: &str) -> Option<String> {
    /// Larger than any status, in bytes.
    const MAX_STATUS_BYTES: u64 = 64 << 10;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat2(root, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS).ok()?;
    let mut text = String::new();
    File::from(file).take(MAX_STATUS_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The same for a process by the host's number.
pub(super) fn status_on_host(process: u32) -> Option<String> {
    status_of(CWD, &format!("/proc/{process}/status"))
}

/// Returns whether `process` is a descendant of `ancestor`; both are numbered as in `status`.
pub(super) fn is_descendant(process: u32, ancestor: u32, status: &dyn Fn(u32) -> Option<String>) -> bool {
    /// Deeper trees are not searched.
    const MAX_GENERATIONS: u32 = 1000;
    let mut at = process;
    for _ in 0..MAX_GENERATIONS {
        let Some(status) = status(at) else { return false };
        let parent = status.lines().find_map(|l| l.strip_prefix("PPid:")).and_then(|v| v.trim().parse().ok());
        match parent {
            Some(parent) if parent == ancestor => return true,
            Some(0) | None => return false,
            Some(parent) => at = parent,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_come_last_first() {
        let text: Vec<Vec<u8>> = reversed_components(b"//a/./b//..").into_iter().map(CString::into_bytes).collect();
        assert_eq!(text, [b"..".to_vec(), b"b".to_vec(), b".".to_vec(), b"a".to_vec()]);
    }
}
