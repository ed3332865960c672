//! A tree: reads and changes its files.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, RenameFlags, Stat, Uid, chownat, fsync, mkdirat, openat, renameat_with, unlinkat,
};
use rustix::process::geteuid;
use stockade_model::RawText;
use stockade_sys::Errno;

use crate::error::{failed, failed_io};
use crate::incoming::{Incoming, is_passing};
use crate::object::{Kind, Object, Time, directory_beneath, entries, os};
use crate::removal::remove_tree;
use crate::{Bounds, FilesError, TreePath};

/// Most entries of one directory that are listed.
pub const LISTED_MAX: usize = 100_000;
/// Bytes moved at once.
const BLOCK_BYTES: usize = 64 * 1024;

/// Callback that returns whether a tree has an object at a path, now or after a change. For the
/// path of the changed object itself, only the state before the change counts.
pub type Exists<'a> = &'a dyn Fn(&TreePath) -> bool;

/// Callback that returns the reason why no object of this kind may be made, replaced, moved or
/// removed at a path, or `None`. Called for each name before the operation.
pub type Guard = Arc<dyn Fn(&TreePath, Kind, Exists<'_>) -> Option<String> + Send + Sync>;

/// Callback that returns the reason why an object is left out of copies and archives of a tree, or
/// `None`.
pub type Withhold = Arc<dyn Fn(&TreePath, &Stat) -> Option<String> + Send + Sync>;

/// An open tree, accessible only through its own descriptor.
pub struct Tree {
    root: OwnedFd,
    guard: Guard,
    withhold: Withhold,
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree").field("root", &self.root).finish_non_exhaustive()
    }
}

/// Metadata of one file in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path of the file.
    pub path: TreePath,
    /// Kind of the file.
    pub kind: Kind,
    /// Size in bytes; for a symbolic link, the length of its target.
    pub size: u64,
    /// Permission bits and the three special bits.
    pub mode: u32,
    /// Time of the last change of the content.
    pub modified: Time,
    /// Target of a symbolic link, as stored.
    pub leads_to: Option<RawText>,
}

impl Entry {
    fn of(path: TreePath, object: &Object) -> Result<Self, FilesError> {
        let kind = object.kind();
        let leads_to = match kind {
            Kind::Link => Some(object.link_text().map_err(failed("read", &path))?.into()),
            _ => None,
        };
        Ok(Self { path, kind, size: object.size(), mode: object.mode(), modified: object.modified(), leads_to })
    }
}

impl Tree {
    /// Makes a tree beneath an open directory, in which all changes are allowed.
    pub fn of(root: OwnedFd) -> Self {
        Self::guarded(root, Arc::new(|_, _, _| None))
    }

    /// Makes a tree in which `guard` refuses changes.
    pub fn guarded(root: OwnedFd, guard: Guard) -> Self {
        Self { root, guard, withhold: Arc::new(|_, _| None) }
    }

    /// Returns the tree with `withhold`, which leaves objects out of copies and archives.
    #[must_use]
    pub fn withholding(self, withhold: Withhold) -> Self {
        Self { withhold, ..self }
    }

    /// Returns a directory as a tree of its own, under the same rules.
    ///
    /// # Errors
    /// An error if there is no such directory.
    pub fn subtree(&self, path: &TreePath) -> Result<Self, FilesError> {
        let (guard, above) = (Arc::clone(&self.guard), path.clone());
        let guard = Arc::new(move |inner: &TreePath, kind, exists: Exists<'_>| {
            guard(&above.beneath(inner), kind, &|path| path.within(&above).is_some_and(|inner| exists(&inner)))
        });
        let (withhold, above) = (Arc::clone(&self.withhold), path.clone());
        let withhold = Arc::new(move |inner: &TreePath, stat: &Stat| withhold(&above.beneath(inner), stat));
        Ok(Self::guarded(self.directory(path)?.fd, guard).withholding(withhold))
    }

    /// Returns the metadata of a path; of a symbolic link itself.
    ///
    /// # Errors
    /// An error if there is no object, or if a parent is a symbolic link.
    pub fn stat(&self, path: &TreePath) -> Result<Entry, FilesError> {
        Entry::of(path.clone(), &self.find(path)?)
    }

    /// Lists a directory, sorted by the bytes of the names.
    ///
    /// # Errors
    /// An error if it is not a directory, or has more than [`LISTED_MAX`] entries.
    pub fn list(&self, path: &TreePath) -> Result<Vec<Entry>, FilesError> {
        let directory = self.directory(path)?;
        let mut found = entries(directory.fd.as_fd()).map_err(failed("list", path))?;
        if found.len() > LISTED_MAX {
            return Err(FilesError::TooMuch { limit: LISTED_MAX as u64, unit: "entries" });
        }
        found.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let mut listed = Vec::with_capacity(found.len());
        for (name, _) in found {
            if is_passing(path, &name) {
                continue;
            }
            let inner = path.join(os(&name));
            // Skips entries that were removed meanwhile.
            if let Some(object) = Object::find(directory.fd.as_fd(), os(&name)).map_err(failed("examine", &inner))? {
                listed.push(Entry::of(inner, &object)?);
            }
        }
        Ok(listed)
    }

    /// Opens a regular file for reading. Never opens another kind: a pipe without a writer would
    /// block, and a device may have side effects.
    ///
    /// # Errors
    /// An error if there is no such file.
    pub fn open(&self, path: &TreePath) -> Result<File, FilesError> {
        let object = self.find(path)?;
        demand(&object, Kind::File, path)?;
        object.open().map_err(failed("open", path))
    }

    /// Reads up to `limit_bytes` of a file from `start` on. Returns also the size of the file.
    ///
    /// # Errors
    /// An error if there is no such file.
    pub fn read(&self, path: &TreePath, start: u64, limit_bytes: usize) -> Result<(Vec<u8>, u64), FilesError> {
        let file = self.open(path)?;
        let size = file.metadata().map_err(failed_io("examine", path))?.len();
        let wanted = usize::try_from(size.saturating_sub(start)).unwrap_or(usize::MAX).min(limit_bytes);
        let mut bytes = vec![0; wanted];
        let mut filled = 0;
        while filled < wanted {
            match file.read_at(&mut bytes[filled..], start + filled as u64) {
                Ok(0) => break,
                Ok(length) => filled += length,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed_io("read", path)(e)),
            }
        }
        bytes.truncate(filled);
        Ok((bytes, size))
    }

    /// Writes a file atomically and durably; readers meanwhile see the old content. Replaces a
    /// symbolic link at the path, and leaves its target unchanged.
    ///
    /// # Errors
    /// An error if the parent is not a directory, a directory is at the path, or a limit is
    /// exceeded. Then nothing has changed.
    pub fn write(
        &self,
        path: &TreePath,
        content: &mut dyn Read,
        mode: u32,
        bounds: Bounds,
    ) -> Result<Entry, FilesError> {
        let (parent, name) = self.place(path, Kind::File)?;
        let there = Object::find(parent.fd.as_fd(), name).map_err(failed("examine", path))?;
        let is_new = there.is_none();
        if let Some(there) = there.filter(Object::is_directory) {
            return Err(FilesError::Kind { path: path.clone(), found: there.kind(), wanted: Kind::File });
        }
        let incoming = self.incoming()?;
        let made = new_file(incoming.directory(), OsStr::new("file")).map_err(failed("write", path))?;
        copy_bounded(content, &made, path, bounds)?;
        let made = Object::of(made.into()).map_err(failed("write", path))?;
        settle(&made, &parent.stat, mode).map_err(failed("write", path))?;
        fsync(&made.fd).map_err(failed("write", path))?;
        renameat_with(incoming.directory(), "file", &parent.fd, name, RenameFlags::empty())
            .map_err(failed("write", path))?;
        if is_new {
            self.may_stay(path, Kind::File).inspect_err(|_| {
                // Another process may have removed the file before.
                let _ = renameat_with(&parent.fd, name, incoming.directory(), "file", RenameFlags::NOREPLACE);
            })?;
        }
        self.stat(path)
    }

    /// Makes a directory. With `parents`, also makes missing parents, and accepts an existing
    /// directory.
    ///
    /// # Errors
    /// An error if an object is at the path, or the parent is not a directory.
    pub fn make_directory(&self, path: &TreePath, parents: bool) -> Result<(), FilesError> {
        let Some((above, name)) = path.split() else {
            return if parents { Ok(()) } else { Err(FilesError::Exists(path.clone())) };
        };
        if parents {
            self.make_directory(&above, true)?;
        }
        let directory = self.directory(&above)?;
        if let Some(there) = Object::find(directory.fd.as_fd(), name).map_err(failed("examine", path))? {
            return if parents { demand(&there, Kind::Directory, path) } else { Err(FilesError::Exists(path.clone())) };
        }
        self.may_change(path, Kind::Directory)?;
        make_directory(directory.fd.as_fd(), name, &directory.stat).map_err(failed("make", path))?;
        self.may_stay(path, Kind::Directory).inspect_err(|_| {
            let _ = unlinkat(&directory.fd, name, AtFlags::REMOVEDIR);
        })
    }

    /// Renames a file. With `replace`, replaces an existing object at `to` as rename(2) does: a
    /// file by a file, an empty directory by a directory.
    ///
    /// # Errors
    /// An error if there is no such file, an object is in the way, or the guard refuses a change.
    pub fn rename(&self, from: &TreePath, to: &TreePath, replace: bool) -> Result<(), FilesError> {
        let kind = self.find(from)?.kind();
        let (source, old) = self.place(from, kind)?;
        let (target, new) = self.place(to, kind)?;
        self.may_change_beneath(from, Some(to))?;
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let is_new = self.find(to).is_err();
        renameat_with(&source.fd, old, &target.fd, new, flags).map_err(|errno| match errno {
            Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR | Errno::NOTDIR => FilesError::Exists(to.clone()),
            errno => failed("rename", from)(errno),
        })?;
        if is_new {
            self.may_stay(to, kind).inspect_err(|_| {
                let _ = renameat_with(&target.fd, new, &source.fd, old, RenameFlags::NOREPLACE);
            })?;
        }
        Ok(())
    }

    /// Removes a file; with `recursive`, also a directory with its content.
    ///
    /// # Errors
    /// An error if there is no such file, or if a directory is not empty.
    pub fn remove(&self, path: &TreePath, recursive: bool) -> Result<(), FilesError> {
        let object = self.find(path)?;
        let (parent, name) = self.place(path, object.kind())?;
        if !object.is_directory() {
            return unlinkat(&parent.fd, name, AtFlags::empty()).map_err(failed("remove", path));
        }
        if !recursive {
            return unlinkat(&parent.fd, name, AtFlags::REMOVEDIR).map_err(failed("remove", path));
        }
        self.may_change_beneath(path, None)?;
        // A single rename removes the directory from the tree; then its content is deleted.
        let incoming = self.incoming()?;
        renameat_with(&parent.fd, name, incoming.directory(), "gone", RenameFlags::NOREPLACE)
            .map_err(failed("remove", path))?;
        remove_tree(incoming.directory(), b"gone").map_err(|path| FilesError::System { what: "remove", path })
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    pub(crate) fn incoming(&self) -> Result<Incoming<'_>, FilesError> {
        Incoming::begin(self.root()).map_err(|path| FilesError::System { what: "use", path })
    }

    /// Opens the object at a path.
    pub(crate) fn find(&self, path: &TreePath) -> Result<Object, FilesError> {
        let Some((parent, name)) = path.split() else {
            return Object::beneath(self.root(), path.as_path())
                .map_err(failed("open", path))?
                .ok_or_else(|| FilesError::NotFound(path.clone()));
        };
        let parent = self.directory(&parent)?;
        Object::find(parent.fd.as_fd(), name)
            .map_err(failed("open", path))?
            .ok_or_else(|| FilesError::NotFound(path.clone()))
    }

    /// Opens the directory at a path.
    pub(crate) fn directory(&self, path: &TreePath) -> Result<Object, FilesError> {
        let held = directory_beneath(self.root(), path.as_path()).and_then(Object::of);
        held.map_err(|errno| match errno {
            Errno::NOTDIR => match Object::beneath(self.root(), path.as_path()) {
                Ok(Some(there)) => {
                    FilesError::Kind { path: path.clone(), found: there.kind(), wanted: Kind::Directory }
                }
                _ => FilesError::NotFound(path.clone()),
            },
            errno => failed("open", path)(errno),
        })
    }

    /// Opens the parent directory of a name that is about to change, and returns the name.
    pub(crate) fn place<'p>(&self, path: &'p TreePath, kind: Kind) -> Result<(Object, &'p OsStr), FilesError> {
        let Some((parent, name)) = path.split() else {
            let why = "it is the root of the tree".to_owned();
            return Err(FilesError::Guarded { path: path.clone(), why });
        };
        self.may_change(path, kind)?;
        Ok((self.directory(&parent)?, name))
    }

    pub(crate) fn may_change(&self, path: &TreePath, kind: Kind) -> Result<(), FilesError> {
        self.may_become(path, kind, &|path| self.find(path).is_ok())
    }

    /// Checks a change with the guard; `exists` describes the state after the change.
    pub(crate) fn may_become(&self, path: &TreePath, kind: Kind, exists: Exists<'_>) -> Result<(), FilesError> {
        match (self.guard)(path, kind, exists) {
            Some(why) => Err(FilesError::Guarded { path: path.clone(), why }),
            None => Ok(()),
        }
    }

    /// Checks again an object that was made at a free name. Another process may have put a file
    /// beside it meanwhile, so that the object is now refused.
    pub(crate) fn may_stay(&self, path: &TreePath, kind: Kind) -> Result<(), FilesError> {
        self.may_become(path, kind, &|other| other != path && self.find(other).is_ok())
    }

    /// Returns the reason why an object is left out of copies and archives, or `None`.
    pub(crate) fn withheld(&self, path: &TreePath, object: &Object) -> Option<String> {
        (self.withhold)(path, &object.stat)
    }

    /// Checks everything beneath a directory that is moved or removed, at its old and at its new
    /// path.
    fn may_change_beneath(&self, path: &TreePath, to: Option<&TreePath>) -> Result<(), FilesError> {
        // Moved objects will be at their new paths.
        let exists = |place: &TreePath| {
            let moved = to.and_then(|to| Some(path.beneath(&place.within(to)?)));
            self.find(moved.as_ref().unwrap_or(place)).is_ok()
        };
        let mut waiting = vec![(path.clone(), to.cloned())];
        while let Some((path, to)) = waiting.pop() {
            let object = self.find(&path)?;
            self.may_change(&path, object.kind())?;
            to.iter().try_for_each(|to| self.may_become(to, object.kind(), &exists))?;
            if object.is_directory() {
                let inner = entries(object.fd.as_fd()).map_err(failed("list", &path))?;
                waiting.extend(
                    inner.iter().map(|(name, _)| (path.join(os(name)), to.as_ref().map(|to| to.join(os(name))))),
                );
            }
        }
        Ok(())
    }
}

/// Returns an error if an object is not of the wanted kind.
pub(crate) fn demand(object: &Object, wanted: Kind, path: &TreePath) -> Result<(), FilesError> {
    match object.kind() {
        found if found == wanted => Ok(()),
        found => Err(FilesError::Kind { path: path.clone(), found, wanted }),
    }
}

/// Makes a new empty file.
pub(crate) fn new_file(directory: BorrowedFd<'_>, name: &OsStr) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

/// Makes a new directory with the owner of its parent.
pub(crate) fn make_directory(parent: BorrowedFd<'_>, name: &OsStr, like: &Stat) -> Result<(), Errno> {
    mkdirat(parent, name, Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH)?;
    match Object::find(parent, name)? {
        Some(made) => own(&made, like),
        None => Err(Errno::NOENT),
    }
}

/// Sets the owner of a new object to that of its directory: the sandbox's own user, whatever this
/// process's user is. In another user's directory, such as `/tmp`, only root can do so; an ordinary
/// user keeps the ownership.
pub(crate) fn own(made: &Object, like: &Stat) -> Result<(), Errno> {
    if (made.stat.st_uid, made.stat.st_gid) == (like.st_uid, like.st_gid) {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
    match chownat(&made.fd, c"", Some(user), Some(group), AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::PERM) if !geteuid().is_root() => Ok(()),
        other => other,
    }
}

/// Sets owner and mode of a new object, without set-ID bits.
pub(crate) fn settle(made: &Object, like: &Stat, mode: u32) -> Result<(), Errno> {
    own(made, like)?;
    made.set_mode(mode & 0o777)
}

/// Copies a stream to a file, up to the limit.
fn copy_bounded(content: &mut dyn Read, mut file: &File, path: &TreePath, bounds: Bounds) -> Result<(), FilesError> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut written = 0u64;
    loop {
        let length = match content.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(FilesError::Stream { what: "input", why: e.to_string() }),
        };
        written += length as u64;
        if written > bounds.bytes {
            return Err(FilesError::TooMuch { limit: bounds.bytes, unit: "bytes" });
        }
        file.write_all(&block[..length]).map_err(failed_io("write", path))?;
    }
}
