//! Prepares the new objects of a commit in its commit area. Each object is complete: content with
//! its holes, mode, time, attributes, names that share a file. Leaves the workspace untouched and
//! does not read its content.
//!
//! If stage and workspace are on one filesystem, the new object is the staged one under a second
//! name (hard link), so nothing is copied.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, SeekFrom, Uid, chownat, fsync, ftruncate, ioctl_ficlone, linkat,
    mkdirat, mknodat, openat, seek, symlinkat, syncfs,
};
use stockade_files::object::{FileTime, ObjectKind, TreeObject, list_entry_names, to_os_str};
use stockade_sys::Errno;
use stockade_sys::resolve::DescriptorPath;

use super::apply::{apply_settings, slot_name};
use super::change::{ReadableDirectory, is_whiteout};
use super::error::{PathContext, PathError};
use super::journal::ObjectMetadata;
use super::watch::{CommitObserver, CommitPoint};

/// Most files that are flushed one by one; if there are more, the whole filesystem is flushed.
const MAX_SINGLE_FLUSHES: usize = 64;
/// Bytes copied at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Makes objects in a commit area.
pub(super) struct ObjectBuilder<'a> {
    pub upper: BorrowedFd<'a>,
    pub workspace: BorrowedFd<'a>,
    pub commit_area: BorrowedFd<'a>,
    /// True if the commit area shares a filesystem with the stage.
    pub links: bool,
    /// True if nothing of the stage is left afterwards.
    pub is_whole: bool,
    /// Paths to make, with the directories above them.
    pub target_paths: &'a BTreeSet<PathBuf>,
    /// For each inode of a staged file: a name in the workspace with the same content.
    pub unchanged_names: &'a HashMap<u64, PathBuf>,
    pub watch: &'a mut dyn CommitObserver,
    made: HashMap<u64, OwnedFd>,
    slots: u32,
    flush: Vec<OwnedFd>,
    built: usize,
}

/// Object in a slot of the commit area.
pub(super) struct CommitSlot {
    pub number: u32,
    pub inode: u64,
    /// Metadata to set after the object is moved to its path. Until then a directory is open to its
    /// owner, because it could not be moved otherwise.
    pub settings: Option<ObjectMetadata>,
}

impl<'a> ObjectBuilder<'a> {
    pub fn new(
        (upper, workspace, commit_area): (BorrowedFd<'a>, BorrowedFd<'a>, BorrowedFd<'a>),
        (links, is_whole): (bool, bool),
        target_paths: &'a BTreeSet<PathBuf>,
        unchanged_names: &'a HashMap<u64, PathBuf>,
        watch: &'a mut dyn CommitObserver,
    ) -> Self {
        Self {
            upper,
            workspace,
            commit_area,
            links,
            is_whole,
            target_paths,
            unchanged_names,
            watch,
            made: HashMap::new(),
            slots: 0,
            flush: Vec::new(),
            built: 0,
        }
    }

    /// Reserves a number for an object that will be moved into the commit area.
    pub fn reserve_slot(&mut self) -> u32 {
        self.slots += 1;
        self.slots - 1
    }

    /// Makes the object that is staged at `path`, with all wanted objects beneath it.
    pub fn build_object(&mut self, path: &Path) -> Result<CommitSlot, PathError> {
        let number = self.reserve_slot();
        let staged = TreeObject::open_beneath(self.upper, path).at_path(path)?;
        let staged = staged.ok_or_else(|| PathError::new(path, Errno::NOENT))?;
        let commit_area = self.commit_area;
        let name = slot_name(number);
        let settings = self.make_object(staged, path, commit_area, OsStr::new(&name))?;
        let object = TreeObject::open_entry(commit_area, OsStr::new(&name)).at_path(path)?;
        let object = object.ok_or_else(|| PathError::new(path, Errno::NOENT))?;
        if let Some(settings) = &settings {
            let open = ObjectMetadata { mode: settings.mode.map(|mode| mode | 0o700), ..settings.clone() };
            apply_settings(&object, &open).at_path(path)?;
        }
        Ok(CommitSlot { number, inode: object.inode(), settings })
    }

    /// Makes one object. The caller sets the metadata of a directory.
    fn make_object(
        &mut self,
        staged: TreeObject,
        path: &Path,
        into: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<Option<ObjectMetadata>, PathError> {
        let made = if staged.is_directory() {
            self.make_directory(staged, path, into, name).map(Some)
        } else {
            self.make_leaf(&staged, path, into, name).map(|()| None)
        }?;
        self.built += 1;
        self.watch.on_point(CommitPoint::Built).at_path(path)?;
        self.watch.on_progress(self.built, self.target_paths.len().max(self.built));
        Ok(made)
    }

    fn make_directory(
        &mut self,
        staged: TreeObject,
        path: &Path,
        into: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<ObjectMetadata, PathError> {
        let staged = ReadableDirectory::from_object(staged).at_path(path)?;
        mkdirat(into, name, Mode::RWXU).at_path(path)?;
        let made = find_object(into, name).at_path(path)?;
        copy_owner(&made, &staged.object).at_path(path)?;
        for inner in list_entry_names(staged.object.fd.as_fd()).at_path(path)? {
            let path = path.join(to_os_str(&inner));
            if !self.target_paths.contains(&path) {
                continue;
            }
            let Some(object) = TreeObject::open_entry(staged.object.fd.as_fd(), to_os_str(&inner)).at_path(&path)?
            else {
                continue;
            };
            if is_whiteout(&object) {
                continue;
            }
            if let Some(settings) = self.make_object(object, &path, made.fd.as_fd(), to_os_str(&inner))? {
                apply_settings(&find_object(made.fd.as_fd(), to_os_str(&inner)).at_path(&path)?, &settings)
                    .at_path(&path)?;
            }
        }
        Ok(ObjectMetadata {
            mode: Some(staged.mode),
            modified: Some(staged.object.modified_time()),
            attributes: Some(staged.object.read_attributes().at_path(path)?),
        })
    }

    fn make_leaf(
        &mut self,
        staged: &TreeObject,
        path: &Path,
        into: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<(), PathError> {
        // The file already has a name in the workspace that stays, so this name becomes another
        // link.
        if let Some(other) = self.unchanged_names.get(&staged.inode())
            && let Some(there) = TreeObject::open_beneath(self.workspace, other).at_path(other)?
            && same_name(&there, into, name).is_ok()
        {
            return Ok(());
        }
        // If another link to the file remains in the stage, a later write to either would change
        // both.
        if self.links && (self.is_whole || staged.stat.st_nlink == 1) {
            let own = staged.overlay_attributes().at_path(path)?;
            let remove = || own.iter().try_for_each(|attribute| staged.remove_attribute(attribute));
            staged.opened_up(remove).at_path(path)?;
            match same_name(staged, into, name) {
                Ok(()) => return self.flush_later(staged, path),
                // Too many links, or links to it are not allowed: copy.
                Err(Errno::MLINK | Errno::PERM | Errno::XDEV | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(PathError::new(path, errno)),
            }
        }
        if staged.stat.st_nlink > 1
            && let Some(first) = self.made.get(&staged.inode())
        {
            let first = TreeObject::from_fd(rustix::io::fcntl_dupfd_cloexec(first, 3).at_path(path)?).at_path(path)?;
            return same_name(&first, into, name).at_path(path);
        }
        let made = duplicate_object(staged, into, name).at_path(path)?;
        self.flush_later(&made, path)?;
        if staged.stat.st_nlink > 1 {
            self.made.insert(staged.inode(), made.fd);
        }
        Ok(())
    }

    fn flush_later(&mut self, object: &TreeObject, path: &Path) -> Result<(), PathError> {
        if object.kind() == ObjectKind::File && self.flush.len() <= MAX_SINGLE_FLUSHES {
            self.flush.push(rustix::io::fcntl_dupfd_cloexec(&object.fd, 3).at_path(path)?);
        }
        Ok(())
    }

    /// Flushes all objects made so far to the disk.
    pub fn flush(&mut self) -> Result<(), PathError> {
        let path = Path::new("");
        let flushed_singly = self.flush.len() <= MAX_SINGLE_FLUSHES
            && self.flush.iter().all(|fd| {
                let opened = openat(
                    CWD,
                    DescriptorPath::new(fd.as_fd()).as_c_str(),
                    OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
                    Mode::empty(),
                );
                opened.is_ok_and(|file| fsync(file).is_ok())
            });
        let commit_area =
            openat(self.commit_area, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let commit_area = commit_area.at_path(path)?;
        if flushed_singly { fsync(commit_area) } else { syncfs(commit_area) }.at_path(path)
    }
}

fn find_object(directory: BorrowedFd<'_>, name: &OsStr) -> Result<TreeObject, Errno> {
    TreeObject::open_entry(directory, name)?.ok_or(Errno::NOENT)
}

/// Copies an object that is not a directory, with owner, mode, time and attributes.
pub(super) fn duplicate_object(model: &TreeObject, into: BorrowedFd<'_>, name: &OsStr) -> Result<TreeObject, Errno> {
    copy_object(model, into, name)?;
    let made = find_object(into, name)?;
    copy_owner(&made, model)?;
    let settings = ObjectMetadata {
        mode: Some(model.mode()),
        modified: Some(model.modified_time()),
        attributes: Some(model.opened_up(|| model.read_attributes())?),
    };
    apply_settings(&made, &settings)?;
    Ok(made)
}

/// Sets the owner of a new object to that of its model, if they differ.
pub(super) fn copy_owner(made: &TreeObject, model: &TreeObject) -> Result<(), Errno> {
    let (user, group) = (model.stat.st_uid, model.stat.st_gid);
    if (user, group) == (made.stat.st_uid, made.stat.st_gid) {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    chownat(&made.fd, c"", Some(user), Some(group), AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)
}

/// Gives an open object one more name.
fn same_name(object: &TreeObject, into: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    let path = DescriptorPath::new(object.fd.as_fd());
    linkat(CWD, path.as_c_str(), into, name, AtFlags::SYMLINK_FOLLOW)
}

/// Makes a new object of the same kind and content.
fn copy_object(staged: &TreeObject, into: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    match staged.kind() {
        ObjectKind::File => copy_file(staged, into, name),
        ObjectKind::Link => symlinkat(to_os_str(&staged.link_text()?), into, name),
        ObjectKind::Pipe => mknodat(into, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0),
        ObjectKind::Socket => mknodat(into, name, FileType::Socket, Mode::RUSR | Mode::WUSR, 0),
        ObjectKind::Directory | ObjectKind::Device => Err(Errno::INVAL),
    }
}

fn copy_file(staged: &TreeObject, into: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    let from = staged.opened_up(|| staged.open_file())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let to = File::from(openat(into, name, flags, Mode::RUSR | Mode::WUSR)?);
    if ioctl_ficlone(&to, &from).is_ok() {
        return Ok(());
    }
    copy_data(&from, &to, staged.size())
}

/// Copies the data of a file and keeps its holes.
fn copy_data(from: &File, to: &File, size: u64) -> Result<(), Errno> {
    ftruncate(to, size)?;
    let mut at = 0;
    while at < size {
        let start = match seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Only a hole is left.
            Err(Errno::NXIO) => return Ok(()),
            // Some filesystems do not support holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(errno),
        };
        let end = seek(from, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        copy_range(from, to, start, end)?;
        at = end.max(start + 1);
    }
    Ok(())
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> Result<(), Errno> {
    use std::os::unix::fs::FileExt;
    let mut chunk = vec![0; CHUNK_BYTES.min(usize::try_from(end - start).unwrap_or(CHUNK_BYTES))];
    let mut at = start;
    let failed = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
    while at < end {
        let length = chunk.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        let read = from.read_at(&mut chunk[..length], at).map_err(failed)?;
        if read == 0 {
            return Ok(());
        }
        to.write_all_at(&chunk[..read], at).map_err(failed)?;
        at += read as u64;
    }
    Ok(())
}

/// Returns the metadata of a directory before a name is moved in or out of it.
pub(super) fn settings_of(object: &TreeObject) -> ObjectMetadata {
    ObjectMetadata { mode: Some(object.mode()), modified: Some(object.modified_time()), attributes: None }
}

/// Returns the later of two times.
pub(super) fn later_time(one: FileTime, other: FileTime) -> FileTime {
    one.max(other)
}
