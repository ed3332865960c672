//! Files and links beneath a root that is held, as the run sees them. Nothing here
//! follows a link by itself.

use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, Stat, fstat, openat, openat2};
use stockade_sys::{Errno, resolve};

use crate::powers::covers;

/// As the kernel: `MAXSYMLINKS`.
const MAX_LINKS: usize = 40;
/// Components of one path, links included.
const MAX_COMPONENTS: usize = 1_000;
/// Bytes read of a directory at once.
const LISTING_BYTES: usize = 32 << 10;

/// A held root. Every path is absolute beneath it.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    root: BorrowedFd<'a>,
    /// Paths that are hidden from the run: opening one would be noticed as an attempt of
    /// the run, and it holds nothing.
    hidden: &'a [Vec<u8>],
}

/// The way from a link to its end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    /// The links after the first one, in the order they are met.
    pub links: Vec<Vec<u8>>,
    /// The path of what the last link leads to; its parents hold no link.
    pub end: Vec<u8>,
    /// The first component of `end` that does not exist.
    pub missing: Option<Vec<u8>>,
}

impl<'a> View<'a> {
    pub(crate) fn new(root: BorrowedFd<'a>) -> Self {
        Self { root, hidden: &[] }
    }

    /// The same without what is hidden.
    pub(crate) fn without(self, hidden: &'a [Vec<u8>]) -> Self {
        Self { hidden, ..self }
    }

    fn open(self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let text = CString::new(path).map_err(|_| Errno::INVAL)?;
        if !flags.contains(OFlags::PATH) && self.hidden.iter().any(|hidden| covers(hidden, path)) {
            return Err(Errno::NOENT);
        }
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        openat2(self.root, &text, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), how)
    }

    /// What is known of the object at `path`; of a link, the link.
    pub(crate) fn stat(self, path: &[u8]) -> Result<Stat, Errno> {
        fstat(self.open(path, OFlags::PATH)?)
    }

    /// Whether `path` is the same object in both views.
    pub(crate) fn shows_as(self, other: View<'_>, path: &[u8]) -> bool {
        let object = |view: View<'_>| view.stat(path).map(|stat| (stat.st_dev, stat.st_ino));
        object(self).is_ok_and(|here| object(other) == Ok(here))
    }

    pub(super) fn is_link(self, path: &[u8]) -> bool {
        self.stat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    }

    /// The regular file at `path`, where it holds at most `max_bytes`.
    pub(crate) fn read(self, path: &[u8], max_bytes: u64) -> Option<Vec<u8>> {
        let held = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).ok()?;
        let stat = fstat(&held).ok()?;
        let size = u64::try_from(stat.st_size).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || size > max_bytes {
            return None;
        }
        let mut content = Vec::new();
        File::from(held).take(max_bytes).read_to_end(&mut content).ok()?;
        Some(content)
    }

    /// The same with all links followed, as programs do that read their settings.
    pub(super) fn read_followed(self, path: &[u8], max_bytes: u64) -> Option<Vec<u8>> {
        self.read(&self.resolve(path)?.end, max_bytes)
    }

    /// Tells the names in the directory at `path`, and what the directory says they are.
    pub(crate) fn list(self, path: &[u8], mut each: impl FnMut(&[u8], FileType)) -> Result<(), Errno> {
        let held = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut buffer = vec![MaybeUninit::uninit(); LISTING_BYTES];
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

    /// Follows the link at `path`. None where it is no link or leads nowhere: a loop, a
    /// path that is too long, a directory that may not be entered.
    pub(super) fn follow(self, path: &[u8]) -> Option<Chain> {
        let text = self.link_text(path).ok()?;
        let start = if text.starts_with(b"/") { b"" } else { parent(path) };
        self.walk(start.to_vec(), components(&text))
    }

    /// The path without links of what is at `path`, as far as it is there.
    pub(crate) fn resolve_end(self, path: &[u8]) -> Option<Vec<u8>> {
        self.resolve(path).map(|chain| chain.end)
    }

    /// The same for any absolute path, whose links are all followed.
    pub(crate) fn resolve(self, path: &[u8]) -> Option<Chain> {
        self.walk(Vec::new(), components(path))
    }

    /// Goes along `rest` from `here`; its last component is the first on the way.
    fn walk(self, mut here: Vec<u8>, mut rest: Vec<Vec<u8>>) -> Option<Chain> {
        let mut chain = Chain::default();
        for _ in 0..MAX_COMPONENTS {
            let Some(component) = rest.pop() else {
                chain.end = if here.is_empty() { b"/".to_vec() } else { here };
                return Some(chain);
            };
            match &component[..] {
                b"." => continue,
                b".." => {
                    here.truncate(parent(&here).len());
                    continue;
                }
                _ => {}
            }
            let next = join(&here, &component);
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
                    rest.extend(components(&text));
                }
                Err(Errno::NOENT) => {
                    chain.missing = Some(next.clone());
                    here = next;
                }
                Err(Errno::INVAL) => here = next,
                Err(_) => return None,
            }
        }
        None
    }

    /// INVAL where `path` is no link.
    fn link_text(self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let held = self.open(path, OFlags::PATH)?;
        match FileType::from_raw_mode(fstat(&held)?.st_mode) {
            FileType::Symlink => resolve::link_text(held.as_fd()),
            _ => Err(Errno::INVAL),
        }
    }
}

/// The root directory of the host, as this process sees it.
pub(crate) fn open_host_root() -> Result<OwnedFd, Errno> {
    openat(CWD, c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The components of a path, last one first.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|b| *b == b'/').filter(|part| !part.is_empty()).rev().map(<[u8]>::to_vec).collect()
}

/// The path without its last component and the slash before it: empty for the root.
pub(crate) fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|b| *b == b'/').map_or(&b""[..], |at| &path[..at])
}

/// The last component of a path.
pub(super) fn name(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let directory = directory.strip_suffix(b"/").unwrap_or(directory);
    [directory, b"/", name].concat()
}

/// `path`, taken from `directory` where it is relative. Its `..` stay: what they mean
/// depends on the links before them.
pub(crate) fn at(directory: &[u8], path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") { path.to_vec() } else { join(directory, path) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn every_link_on_the_way_and_the_end_is_found() {
        let scratch = tempfile::tempdir().unwrap();
        let root = File::open(scratch.path()).unwrap();
        let view = View::new(root.as_fd());
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
            Some(Chain {
                links: links.iter().map(bytes).collect(),
                end: end.into(),
                missing: missing.as_ref().map(bytes),
            })
        };
        assert_eq!(view.follow(b"/.vscode"), chain(&["/middle", "/alias"], "/real/vs", None));
        assert_eq!(view.follow(b"/dangling"), chain(&[], "/gone/there/x", Some("/gone")));
        assert_eq!(view.follow(b"/top"), chain(&[], "/", None));
        assert_eq!(view.follow(b"/loop"), None);
        assert_eq!(view.follow(b"/real"), None);
    }
}
