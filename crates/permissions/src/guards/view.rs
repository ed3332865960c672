//! Files and links beneath a root directory that is held open, as the run sees them. Nothing here
//! follows a link by itself.

use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, Stat, fstat, openat, openat2};
use stockade_sys::{Errno, resolve};

use crate::powers::is_at_or_beneath;

/// Same limit as the kernel's `MAXSYMLINKS`.
const MAX_LINKS: usize = 40;
/// Most components of one path, links included. This is more than the kernel follows, because its
/// paths have at most 4,096 bytes each.
const MAX_COMPONENTS: usize = 100_000;
/// Longest path that the kernel takes in one call, in bytes without the NUL.
const MAX_CALL_PATH: usize = libc::PATH_MAX as usize - 1;
/// Bytes of a directory that are read at once.
const LISTING_BUFFER_BYTES: usize = 32 << 10;

/// A held root. Every path is absolute beneath it.
#[derive(Clone, Copy)]
pub struct RootView<'a> {
    root: BorrowedFd<'a>,
    /// Paths that are hidden from the run. They hold nothing, and opening one would be noticed as
    /// an attempt of the run.
    hidden: &'a [Vec<u8>],
    /// Longest path that is looked up.
    max_bytes: usize,
}

/// The path from a link to its end.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LinkChain {
    /// The links after the first one, in the order of the lookup.
    pub links: Vec<Vec<u8>>,
    /// The path of the last link's target; its parents contain no link.
    pub end: Vec<u8>,
    /// The first component of `end` that does not exist.
    pub missing: Option<Vec<u8>>,
    /// A directory on the path that cannot be searched, so that the object at `end` is unknown. Its
    /// owner may open it later.
    pub closed: Option<Vec<u8>>,
}

/// The kind of object at a path, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectPresence {
    /// An object of this kind.
    Is(FileType),
    /// No object.
    Nothing,
    /// Unknown at present.
    Unknown,
}

impl<'a> RootView<'a> {
    /// Returns the view beneath this root directory, with nothing hidden.
    pub fn new(root: BorrowedFd<'a>) -> Self {
        Self { root, hidden: &[], max_bytes: usize::MAX }
    }

    /// Returns the same view without the hidden paths.
    pub fn without_hidden(self, hidden: &'a [Vec<u8>]) -> Self {
        Self { hidden, ..self }
    }

    /// Returns the same view in which longer paths fail with ENAMETOOLONG.
    pub fn up_to(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }

    fn open_path(self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        if path.len() > self.max_bytes {
            return Err(Errno::NAMETOOLONG);
        }
        if !flags.contains(OFlags::PATH) && self.hidden.iter().any(|hidden| is_at_or_beneath(hidden, path)) {
            return Err(Errno::NOENT);
        }
        if path.len() > MAX_CALL_PATH {
            let (held, rest) = self.open_above(path)?;
            return open_in_root(held.as_fd(), rest, flags);
        }
        open_in_root(self.root, path, flags)
    }

    /// Opens a directory on a path that is too long for one call. Returns it with the rest of the
    /// path.
    fn open_above(self, path: &[u8]) -> Result<(OwnedFd, &[u8]), Errno> {
        // The root of a part would stop a `..`.
        if path.split(|b| *b == b'/').any(|part| part == b"..") {
            return Err(Errno::NAMETOOLONG);
        }
        let (mut held, mut rest) = (open_in_root(self.root, b"/", OFlags::PATH | OFlags::DIRECTORY)?, path);
        while rest.len() > MAX_CALL_PATH {
            let end = rest[..=MAX_CALL_PATH].iter().rposition(|b| *b == b'/').filter(|end| *end > 0);
            let end = end.ok_or(Errno::NAMETOOLONG)?;
            held = open_in_root(held.as_fd(), &rest[..end], OFlags::PATH | OFlags::DIRECTORY)?;
            rest = &rest[end + 1..];
        }
        Ok((held, rest))
    }

    /// Returns the status of the object at `path`; of a link, the status of the link itself.
    pub fn stat_path(self, path: &[u8]) -> Result<Stat, Errno> {
        fstat(self.open_path(path, OFlags::PATH)?)
    }

    /// Returns the kind of object at `path`.
    pub fn probe_object(self, path: &[u8]) -> ObjectPresence {
        match self.stat_path(path) {
            Ok(stat) => ObjectPresence::Is(FileType::from_raw_mode(stat.st_mode)),
            Err(Errno::NOENT | Errno::NOTDIR) => ObjectPresence::Nothing,
            Err(_) => ObjectPresence::Unknown,
        }
    }

    /// Returns whether `path` is the same object in both views.
    pub fn shows_as(self, other: RootView<'_>, path: &[u8]) -> bool {
        let object = |view: RootView<'_>| view.stat_path(path).map(|stat| (stat.st_dev, stat.st_ino));
        object(self).is_ok_and(|here| object(other) == Ok(here))
    }

    pub(super) fn is_link(self, path: &[u8]) -> bool {
        self.stat_path(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    }

    /// Returns the content of the regular file at `path`, if it has at most `max_bytes`.
    pub fn read_file(self, path: &[u8], max_bytes: u64) -> Option<Vec<u8>> {
        let held = self.open_path(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).ok()?;
        let stat = fstat(&held).ok()?;
        let size = u64::try_from(stat.st_size).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || size > max_bytes {
            return None;
        }
        let mut content = Vec::new();
        File::from(held).take(max_bytes).read_to_end(&mut content).ok()?;
        Some(content)
    }

    /// Returns whether the object at `path` can be opened for reading.
    pub(super) fn is_readable(self, path: &[u8]) -> bool {
        self.open_path(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).is_ok()
    }

    /// Returns the content of the regular file at `path`, or `None` if there is no such file.
    ///
    /// # Errors
    /// EACCES if the content is unknown or longer than `max_bytes`. The owner of the file may open
    /// it later.
    pub fn read_known(self, path: &[u8], max_bytes: u64) -> Result<Option<Vec<u8>>, Errno> {
        match self.probe_object(path) {
            ObjectPresence::Is(FileType::RegularFile) => self.read_file(path, max_bytes).map(Some).ok_or(Errno::ACCESS),
            ObjectPresence::Is(_) | ObjectPresence::Nothing => Ok(None),
            ObjectPresence::Unknown => Err(Errno::ACCESS),
        }
    }

    /// Returns the content of the regular file at `path`, with all links followed, as programs do
    /// that read their settings. Returns `None` if no program of this user could read one.
    ///
    /// # Errors
    /// The path of the file if it exists and is not read whole: it is longer than `max_bytes`, or
    /// its owner may open it later.
    pub(super) fn read_settings(self, path: &[u8], max_bytes: u64) -> Result<Option<Vec<u8>>, Vec<u8>> {
        let Some(LinkChain { end, .. }) = self.resolve_path(path) else { return Ok(None) };
        if let Some(content) = self.read_file(&end, max_bytes) {
            return Ok(Some(content));
        }
        let is_hidden = self.hidden.iter().any(|hidden| is_at_or_beneath(hidden, &end));
        let is_file = self.probe_object(&end) == ObjectPresence::Is(FileType::RegularFile);
        match is_file && !is_hidden && (self.is_readable(&end) || self.is_own(&end)) {
            true => Err(end),
            false => Ok(None),
        }
    }

    /// Calls `each` for the names in the directory at `path`, with the type in the directory entry.
    pub fn for_each_name(self, path: &[u8], mut each: impl FnMut(&[u8], FileType)) -> Result<(), Errno> {
        let held = self.open_path(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut buffer = vec![MaybeUninit::uninit(); LISTING_BUFFER_BYTES];
        let mut listing = RawDir::new(held.as_fd(), &mut buffer);
        while let Some(entry) = listing.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                each(name, entry.file_type());
            }
        }
        Ok(())
    }

    /// Follows the link at `path`. Returns `None` if it is no link or leads nowhere, for example in
    /// a loop.
    pub(super) fn follow_link(self, path: &[u8]) -> Option<LinkChain> {
        let text = self.link_text(path).ok()?;
        let start = if text.starts_with(b"/") { b"" } else { parent_path(path) };
        self.follow_components(start.to_vec(), reversed_components(&text))
    }

    /// As [`follow_link`](Self::follow_link), for any absolute path with all its links.
    pub fn resolve_path(self, path: &[u8]) -> Option<LinkChain> {
        if is_normal(path)
            && !matches!(
                self.probe_object(path),
                ObjectPresence::Is(FileType::Symlink) | ObjectPresence::Nothing | ObjectPresence::Unknown
            )
        {
            return Some(LinkChain { end: path.to_vec(), ..LinkChain::default() });
        }
        self.follow_components(Vec::new(), reversed_components(path))
    }

    /// Follows `rest` from `here`; the last element of `rest` is the first component. Returns
    /// `None` if the kernel does not follow further either: each link of a loop is examined by
    /// itself.
    fn follow_components(self, mut here: Vec<u8>, mut rest: Vec<Vec<u8>>) -> Option<LinkChain> {
        let mut chain = LinkChain::default();
        for _ in 0..MAX_COMPONENTS {
            let Some(component) = rest.pop() else {
                chain.end = if here.is_empty() { b"/".to_vec() } else { here };
                return Some(chain);
            };
            match &component[..] {
                b"." => continue,
                b".." => {
                    here.truncate(parent_path(&here).len());
                    continue;
                }
                _ => {}
            }
            let next = join_name(&here, &component);
            if chain.missing.is_some() {
                here = next;
                continue;
            }
            match self.link_text(&next) {
                Ok(text) => {
                    if chain.links.len() >= MAX_LINKS {
                        return None;
                    }
                    chain.links.push(next);
                    if text.starts_with(b"/") {
                        here.clear();
                    }
                    rest.extend(reversed_components(&text));
                }
                Err(Errno::NOENT | Errno::NOTDIR) => {
                    chain.missing = Some(next.clone());
                    here = next;
                }
                Err(Errno::INVAL) => here = next,
                Err(Errno::ACCESS) => {
                    // A user who may enter another user's directory finds nothing there that a run
                    // has put there.
                    if self.is_own(&here) || rest.iter().any(|part| part == b"..") {
                        chain.closed = Some(here.clone());
                    }
                    chain.missing = Some(next.clone());
                    here = next;
                }
                Err(_) => {
                    chain.closed = Some(here.clone());
                    here = next;
                    chain.missing = Some(here.clone());
                }
            }
        }
        chain.closed = Some(here.clone());
        chain.end = here;
        Some(chain)
    }

    /// Returns whether the directory belongs to the user of this process, who could change its
    /// mode.
    pub(super) fn is_own(self, directory: &[u8]) -> bool {
        let directory = if directory.is_empty() { b"/" } else { directory };
        self.stat_path(directory).map_or(true, |stat| stat.st_uid == rustix::process::geteuid().as_raw())
    }

    /// Returns the target of a link; fails with EINVAL if `path` is no link.
    pub fn link_text(self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let held = self.open_path(path, OFlags::PATH)?;
        match FileType::from_raw_mode(fstat(&held)?.st_mode) {
            FileType::Symlink => resolve::link_text(held.as_fd()),
            _ => Err(Errno::INVAL),
        }
    }
}

/// Opens `path` beneath a directory, without links.
pub fn open_in_root(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let text = CString::new(path).map_err(|_| Errno::INVAL)?;
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    openat2(root, &text, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), how)
}

/// Returns whether an absolute path has no empty component, no `.` and no `..`.
fn is_normal(path: &[u8]) -> bool {
    let mut parts = path.split(|b| *b == b'/');
    parts.next() == Some(b"") && parts.all(|part| !matches!(part, b"" | b"." | b".."))
}

/// Opens the root directory of the host, as this process sees it.
pub fn open_host_root() -> Result<OwnedFd, Errno> {
    openat(CWD, c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Returns the components of a path, last one first.
fn reversed_components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|b| *b == b'/').filter(|part| !part.is_empty()).rev().map(<[u8]>::to_vec).collect()
}

/// Returns the path without its last component and the slash before it: empty for the root.
pub fn parent_path(path: &[u8]) -> &[u8] {
    path.iter().rposition(|b| *b == b'/').map_or(&b""[..], |at| &path[..at])
}

/// Returns the last component of a path.
pub fn last_component(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

/// Returns the path of a name in a directory.
pub fn join_name(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let directory = directory.strip_suffix(b"/").unwrap_or(directory);
    [directory, b"/", name].concat()
}

/// Joins `path` to `directory` if it is relative. Its `..` stay, because their meaning depends on
/// the links before them.
pub fn join_relative(directory: &[u8], path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") { path.to_vec() } else { join_name(directory, path) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn every_link_on_the_way_and_the_end_is_found() {
        let scratch = tempfile::tempdir().unwrap();
        let root = File::open(scratch.path()).unwrap();
        let view = RootView::new(root.as_fd());
        std::fs::create_dir_all(scratch.path().join("real/vs")).unwrap();
        for (text, name) in [
            ("real", "alias"),
            ("/alias/vs", "middle"),
            ("middle", ".vscode"),
            ("gone/there/x", "dangling"),
            ("../../..", "top"),
            ("loop", "loop"),
        ] {
            symlink(text, scratch.path().join(name)).unwrap();
        }
        let chain = |links: &[&str], end: &str, missing: Option<&str>| {
            let bytes = |text: &&str| text.as_bytes().to_vec();
            Some(LinkChain {
                links: links.iter().map(bytes).collect(),
                end: end.into(),
                missing: missing.as_ref().map(bytes),
                closed: None,
            })
        };
        assert_eq!(view.follow_link(b"/.vscode"), chain(&["/middle", "/alias"], "/real/vs", None));
        assert_eq!(view.follow_link(b"/dangling"), chain(&[], "/gone/there/x", Some("/gone")));
        assert_eq!(view.follow_link(b"/top"), chain(&[], "/", None));
        assert_eq!(view.follow_link(b"/loop"), None);
        assert_eq!(view.follow_link(b"/real"), None);
        let long = format!("{}real/vs", "./".repeat(3_000));
        assert_eq!(view.resolve_path(long.as_bytes()).unwrap().end, b"/real/vs");
        assert_eq!(view.resolve_path(b"/file/x").unwrap().missing.unwrap(), b"/file");
    }

    #[test]
    fn paths_longer_than_one_call_takes_are_examined() {
        let scratch = tempfile::tempdir().unwrap();
        let root = File::open(scratch.path()).unwrap();
        let view = RootView::new(root.as_fd());
        let name = [b'd'; 200];
        let (mut held, mut path) = (root.try_clone().unwrap().into(), Vec::new());
        while path.len() < 9_000 {
            rustix::fs::mkdirat(&held, &name[..], Mode::RWXU).unwrap();
            held = openat(&held, &name[..], OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
            path = join_name(&path, &name);
        }
        rustix::fs::symlinkat("x", &held, "link").unwrap();
        let mut found = Vec::new();
        view.for_each_name(&path, |name, kind| found.push((name.to_vec(), kind))).unwrap();
        assert_eq!(found, [(b"link".to_vec(), FileType::Symlink)]);
        assert_eq!(view.resolve_path(&join_name(&path, b"link")).unwrap().end, join_name(&path, b"x"));
        assert_eq!(view.probe_object(&join_name(&path, b"none")), ObjectPresence::Nothing);
        assert_eq!(view.stat_path(&join_name(&path, b"..")).unwrap_err(), Errno::NAMETOOLONG);
        assert_eq!(view.up_to(1_000).stat_path(&path[..1_005]).unwrap_err(), Errno::NAMETOOLONG);
    }

    /// Skipped for root, which can search the directory; the broker's threads have dropped that
    /// capability.
    #[test]
    fn files_hidden_by_a_closed_directory_are_reported() {
        if rustix::process::geteuid().is_root() {
            return;
        }
        let scratch = tempfile::tempdir().unwrap();
        let root = File::open(scratch.path()).unwrap();
        let view = RootView::new(root.as_fd());
        let closed = scratch.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let chain = view.resolve_path(b"/closed/x/../y").unwrap();
        assert_eq!((chain.closed, chain.end), (Some(b"/closed".to_vec()), b"/closed/y".to_vec()));
        assert_eq!(view.probe_object(b"/closed/x"), ObjectPresence::Unknown);
        assert_eq!(view.read_known(b"/closed/x", 9), Err(Errno::ACCESS));
        assert_eq!(view.read_known(b"/none", 9), Ok(None));
    }
}
