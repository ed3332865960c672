//! A tree: reads and changes its files.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Stat, fsync, mkdirat, openat, renameat_with, unlinkat};
use rustix::process::geteuid;
use stockade_model::RawText;
use stockade_sys::Errno;

use crate::error::{errno_error, failed_io};
use crate::incoming::{IncomingDirectory, is_passing};
use crate::object::{FileTime, ObjectKind, TreeObject, directory_beneath, list_entries, read_block, to_os_str};
use crate::removal::remove_tree;
use crate::{ContentLimits, FilesError, TreePath};

/// Most entries of one directory that are listed.
pub const MAX_LISTED_ENTRIES: usize = 100_000;
/// Bytes moved at once.
const BLOCK_BYTES: usize = 64 * 1024;

/// Callback that returns whether a tree has an object at a path, now or after a change. For the
/// path of the changed object itself, only the state before the change counts.
pub type ExistsCallback<'a> = &'a dyn Fn(&TreePath) -> bool;

/// Callback that returns the reason why no object of this kind may be made, replaced, moved or
/// removed at a path, or `None`. Called for each name before the operation.
pub type ChangeGuard = Arc<dyn Fn(&TreePath, ObjectKind, ExistsCallback<'_>) -> Option<String> + Send + Sync>;

/// Callback that returns the reason why an object is left out of copies and archives of a tree, or
/// `None`.
pub type WithholdRule = Arc<dyn Fn(&TreePath, &Stat) -> Option<String> + Send + Sync>;

/// An open tree, accessible only through its own descriptor.
pub struct FileTree {
    root: OwnedFd,
    guard: ChangeGuard,
    withhold: WithholdRule,
}

impl fmt::Debug for FileTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree").field("root", &self.root).finish_non_exhaustive()
    }
}

/// Metadata of one file in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMetadata {
    /// Path of the file.
    pub path: TreePath,
    /// Kind of the file.
    pub kind: ObjectKind,
    /// Size in bytes; for a symbolic link, the length of its target.
    pub size: u64,
    /// Permission bits and the three special bits.
    pub mode: u32,
    /// Time of the last change of the content.
    pub modified: FileTime,
    /// Target of a symbolic link, as stored.
    pub leads_to: Option<RawText>,
}

impl FileMetadata {
    fn from_object(path: TreePath, object: &TreeObject) -> Result<Self, FilesError> {
        let kind = object.kind();
        let leads_to = match kind {
            ObjectKind::Link => Some(object.link_text().map_err(errno_error("read", &path))?.into()),
            _ => None,
        };
        Ok(Self { path, kind, size: object.size(), mode: object.mode(), modified: object.modified_time(), leads_to })
    }
}

impl FileTree {
    /// Makes a tree beneath an open directory, in which all changes are allowed.
    pub fn from_fd(root: OwnedFd) -> Self {
        Self::with_guard(root, Arc::new(|_, _, _| None))
    }

    /// Makes a tree in which `guard` refuses changes.
    pub fn with_guard(root: OwnedFd, guard: ChangeGuard) -> Self {
        Self { root, guard, withhold: Arc::new(|_, _| None) }
    }

    /// Returns the tree with `withhold`, which leaves objects out of copies and archives.
    #[must_use]
    pub fn with_withhold_rule(self, withhold: WithholdRule) -> Self {
        Self { withhold, ..self }
    }

    /// Returns a directory as a tree of its own, under the same rules.
    ///
    /// # Errors
    /// An error if there is no such directory.
    pub fn open_subtree(&self, path: &TreePath) -> Result<Self, FilesError> {
        let (guard, above) = (Arc::clone(&self.guard), path.clone());
        let guard = Arc::new(move |inner: &TreePath, kind, exists: ExistsCallback<'_>| {
            guard(&above.join_path(inner), kind, &|path| path.relative_to(&above).is_some_and(|inner| exists(&inner)))
        });
        let (withhold, above) = (Arc::clone(&self.withhold), path.clone());
        let withhold = Arc::new(move |inner: &TreePath, stat: &Stat| withhold(&above.join_path(inner), stat));
        Ok(Self::with_guard(self.open_directory(path)?.fd, guard).with_withhold_rule(withhold))
    }

    /// Returns the metadata of a path; of a symbolic link itself.
    ///
    /// # Errors
    /// An error if there is no object, or if a parent is a symbolic link.
    pub fn stat(&self, path: &TreePath) -> Result<FileMetadata, FilesError> {
        FileMetadata::from_object(path.clone(), &self.open_object(path)?)
    }

    /// Lists a directory, sorted by the bytes of the names.
    ///
    /// # Errors
    /// An error if it is not a directory, or has more than [`MAX_LISTED_ENTRIES`] entries.
    pub fn list_directory(&self, path: &TreePath) -> Result<Vec<FileMetadata>, FilesError> {
        let directory = self.open_directory(path)?;
        let mut listed = Vec::new();
        for (count, (name, object)) in directory.entries().map_err(errno_error("list", path))?.enumerate() {
            if count == MAX_LISTED_ENTRIES {
                return Err(FilesError::TooMuch { limit: MAX_LISTED_ENTRIES as u64, unit: "entries" });
            }
            let inner = path.join(&name);
            if !is_passing(path, name.as_bytes()) {
                let object = object.map_err(errno_error("examine", &inner))?;
                listed.push(FileMetadata::from_object(inner, &object)?);
            }
        }
        Ok(listed)
    }

    /// Opens a regular file for reading. Never opens another kind: a pipe without a writer would
    /// block, and a device may have side effects.
    ///
    /// # Errors
    /// An error if there is no such file.
    pub fn open_file(&self, path: &TreePath) -> Result<File, FilesError> {
        let object = self.open_object(path)?;
        require_kind(&object, ObjectKind::File, path)?;
        object.open_file().map_err(errno_error("open", path))
    }

    /// Reads up to `limit_bytes` of a file from `start` on. Returns also the size of the file.
    ///
    /// # Errors
    /// An error if there is no such file.
    pub fn read_file(&self, path: &TreePath, start: u64, limit_bytes: usize) -> Result<(Vec<u8>, u64), FilesError> {
        let file = self.open_file(path)?;
        let size = file.metadata().map_err(failed_io("examine", path))?.len();
        let read_length = usize::try_from(size.saturating_sub(start)).unwrap_or(usize::MAX).min(limit_bytes);
        let mut bytes = vec![0; read_length];
        let filled = read_block(&file, &mut bytes, start).map_err(errno_error("read", path))?;
        bytes.truncate(filled);
        Ok((bytes, size))
    }

    /// Writes a file atomically and durably; readers meanwhile see the old content. Replaces a
    /// symbolic link at the path, and leaves its target unchanged.
    ///
    /// # Errors
    /// An error if the parent is not a directory, a directory is at the path, or a limit is
    /// exceeded. Then nothing has changed.
    pub fn write_file(
        &self,
        path: &TreePath,
        content: &mut dyn Read,
        mode: u32,
        bounds: ContentLimits,
    ) -> Result<FileMetadata, FilesError> {
        let (parent, name) = self.open_parent(path, ObjectKind::File)?;
        let there = TreeObject::open_entry(parent.fd.as_fd(), name).map_err(errno_error("examine", path))?;
        let is_new = there.is_none();
        if let Some(there) = there.filter(TreeObject::is_directory) {
            return Err(FilesError::Kind { path: path.clone(), found: there.kind(), expected: ObjectKind::File });
        }
        let incoming = self.create_incoming()?;
        let made = new_file(incoming.directory(), OsStr::new("file")).map_err(errno_error("write", path))?;
        copy_bounded(content, &made, path, bounds)?;
        let made = TreeObject::from_fd(made.into()).map_err(errno_error("write", path))?;
        set_owner_and_mode(&made, &parent.stat, mode).map_err(errno_error("write", path))?;
        fsync(&made.fd).map_err(errno_error("write", path))?;
        renameat_with(incoming.directory(), "file", &parent.fd, name, RenameFlags::empty())
            .map_err(errno_error("write", path))?;
        if is_new {
            self.may_stay(path, ObjectKind::File).inspect_err(|_| {
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
        let Some((above, name)) = path.split_name() else {
            return if parents { Ok(()) } else { Err(FilesError::Exists(path.clone())) };
        };
        if parents {
            self.make_directory(&above, true)?;
        }
        let directory = self.open_directory(&above)?;
        if let Some(there) = TreeObject::open_entry(directory.fd.as_fd(), name).map_err(errno_error("examine", path))? {
            return if parents {
                require_kind(&there, ObjectKind::Directory, path)
            } else {
                Err(FilesError::Exists(path.clone()))
            };
        }
        self.may_change(path, ObjectKind::Directory)?;
        make_directory(directory.fd.as_fd(), name, &directory.stat).map_err(errno_error("make", path))?;
        self.may_stay(path, ObjectKind::Directory).inspect_err(|_| {
            let _ = unlinkat(&directory.fd, name, AtFlags::REMOVEDIR);
        })
    }

    /// Renames a file. With `replace`, replaces an existing file at `to`; never a directory.
    ///
    /// # Errors
    /// An error if there is no such file, an object is in the way, or the guard refuses a change.
    pub fn rename(&self, from: &TreePath, to: &TreePath, replace: bool) -> Result<(), FilesError> {
        let kind = self.open_object(from)?.kind();
        let (source, old) = self.open_parent(from, kind)?;
        let (target, new) = self.open_parent(to, kind)?;
        self.may_change_beneath(from, Some(to))?;
        // Without the flag, a directory replaces an empty one (rename(2)).
        let may_replace = replace && kind != ObjectKind::Directory;
        let flags = if may_replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let is_new = self.open_object(to).is_err();
        renameat_with(&source.fd, old, &target.fd, new, flags).map_err(|errno| match errno {
            Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR | Errno::NOTDIR => FilesError::Exists(to.clone()),
            errno => errno_error("rename", from)(errno),
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
        let object = self.open_object(path)?;
        let (parent, name) = self.open_parent(path, object.kind())?;
        if !object.is_directory() {
            return unlinkat(&parent.fd, name, AtFlags::empty()).map_err(errno_error("remove", path));
        }
        if !recursive {
            return unlinkat(&parent.fd, name, AtFlags::REMOVEDIR).map_err(errno_error("remove", path));
        }
        self.may_change_beneath(path, None)?;
        // A single rename removes the directory from the tree; then its content is deleted.
        let incoming = self.create_incoming()?;
        renameat_with(&parent.fd, name, incoming.directory(), "gone", RenameFlags::NOREPLACE)
            .map_err(errno_error("remove", path))?;
        remove_tree(incoming.directory(), b"gone").map_err(|path| FilesError::System { what: "remove", path })
    }

    pub(crate) fn root_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    pub(crate) fn create_incoming(&self) -> Result<IncomingDirectory<'_>, FilesError> {
        IncomingDirectory::create_in(self.root_fd()).map_err(|path| FilesError::System { what: "use", path })
    }

    /// Opens the object at a path.
    pub(crate) fn open_object(&self, path: &TreePath) -> Result<TreeObject, FilesError> {
        let opened = match path.split_name() {
            Some((parent, name)) => TreeObject::require_entry(self.open_directory(&parent)?.fd, name),
            None => TreeObject::duplicate(self.root_fd()),
        };
        opened.map_err(errno_error("open", path))
    }

    /// Opens the directory at a path.
    pub(crate) fn open_directory(&self, path: &TreePath) -> Result<TreeObject, FilesError> {
        let held = directory_beneath(self.root_fd(), path.as_path()).and_then(TreeObject::from_fd);
        held.map_err(|errno| match errno {
            Errno::NOTDIR => match TreeObject::open_beneath(self.root_fd(), path.as_path()) {
                Ok(Some(there)) => {
                    FilesError::Kind { path: path.clone(), found: there.kind(), expected: ObjectKind::Directory }
                }
                _ => FilesError::NotFound(path.clone()),
            },
            errno => errno_error("open", path)(errno),
        })
    }

    /// Opens the parent directory of a name that is about to change, and returns the name.
    pub(crate) fn open_parent<'p>(
        &self,
        path: &'p TreePath,
        kind: ObjectKind,
    ) -> Result<(TreeObject, &'p OsStr), FilesError> {
        let Some((parent, name)) = path.split_name() else {
            let why = "it is the root of the tree".to_owned();
            return Err(FilesError::Guarded { path: path.clone(), why });
        };
        self.may_change(path, kind)?;
        Ok((self.open_directory(&parent)?, name))
    }

    pub(crate) fn may_change(&self, path: &TreePath, kind: ObjectKind) -> Result<(), FilesError> {
        self.may_become(path, kind, &|path| self.open_object(path).is_ok())
    }

    /// Checks a change with the guard; `exists` describes the state after the change.
    pub(crate) fn may_become(
        &self,
        path: &TreePath,
        kind: ObjectKind,
        exists: ExistsCallback<'_>,
    ) -> Result<(), FilesError> {
        match (self.guard)(path, kind, exists) {
            Some(why) => Err(FilesError::Guarded { path: path.clone(), why }),
            None => Ok(()),
        }
    }

    /// Checks again an object that was made at a free name. Another process may have put a file
    /// beside it meanwhile, so that the object is now refused.
    pub(crate) fn may_stay(&self, path: &TreePath, kind: ObjectKind) -> Result<(), FilesError> {
        self.may_become(path, kind, &|other| other != path && self.open_object(other).is_ok())
    }

    /// Returns the reason why an object is left out of copies and archives, or `None`.
    pub(crate) fn withhold_reason(&self, path: &TreePath, object: &TreeObject) -> Option<String> {
        (self.withhold)(path, &object.stat)
    }

    /// Checks everything beneath a directory that is moved or removed, at its old and at its new
    /// path.
    fn may_change_beneath(&self, path: &TreePath, to: Option<&TreePath>) -> Result<(), FilesError> {
        // Moved objects will be at their new paths.
        let exists = |target_path: &TreePath| {
            let moved = to.and_then(|to| Some(path.join_path(&target_path.relative_to(to)?)));
            self.open_object(moved.as_ref().unwrap_or(target_path)).is_ok()
        };
        let mut waiting = vec![(path.clone(), to.cloned())];
        while let Some((path, to)) = waiting.pop() {
            let object = self.open_object(&path)?;
            self.may_change(&path, object.kind())?;
            to.iter().try_for_each(|to| self.may_become(to, object.kind(), &exists))?;
            if object.is_directory() {
                let inner = list_entries(object.fd.as_fd()).map_err(errno_error("list", &path))?;
                waiting.extend(
                    inner
                        .iter()
                        .map(|(name, _)| (path.join(to_os_str(name)), to.as_ref().map(|to| to.join(to_os_str(name))))),
                );
            }
        }
        Ok(())
    }
}

/// Returns an error if an object is not of the wanted kind.
pub(crate) fn require_kind(object: &TreeObject, expected: ObjectKind, path: &TreePath) -> Result<(), FilesError> {
    match object.kind() {
        found if found == expected => Ok(()),
        found => Err(FilesError::Kind { path: path.clone(), found, expected }),
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
    set_owner(&TreeObject::require_entry(parent, name)?, like)
}

/// Sets the owner of a new object to that of its directory: the sandbox's own user, whatever this
/// process's user is. In another user's directory, such as `/tmp`, only root can do so; an ordinary
/// user keeps the ownership.
pub(crate) fn set_owner(made: &TreeObject, like: &Stat) -> Result<(), Errno> {
    match made.set_owner((like.st_uid, like.st_gid)) {
        Err(Errno::PERM) if !geteuid().is_root() => Ok(()),
        other => other,
    }
}

/// Sets owner and mode of a new object, without set-ID bits.
pub(crate) fn set_owner_and_mode(made: &TreeObject, like: &Stat, mode: u32) -> Result<(), Errno> {
    set_owner(made, like)?;
    made.set_mode(mode & 0o777)
}

/// Copies a stream to a file, up to the limit.
fn copy_bounded(
    content: &mut dyn Read,
    mut file: &File,
    path: &TreePath,
    bounds: ContentLimits,
) -> Result<(), FilesError> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut written = 0u64;
    loop {
        let length = match content.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(FilesError::Stream { what: "input", why: e.to_string() }),
        };
        bounds.add_bytes(&mut written, length as u64)?;
        file.write_all(&block[..length]).map_err(failed_io("write", path))?;
    }
}
