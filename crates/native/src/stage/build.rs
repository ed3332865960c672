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
use stockade_sys::Errno;
use stockade_sys::resolve::DescriptorPath;

use super::apply::{apply_settings, slot_name};
use super::change::{Readable, is_whiteout};
use super::error::{At, PathError};
use super::journal::Settings;
use super::watch::{Point, Watch};
use stockade_files::object::{Kind, Object, Time, names, os};

/// Most files that are flushed one by one; if there are more, the whole filesystem is flushed.
const FLUSHED_SINGLY_MAX: usize = 64;
/// Bytes copied at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Makes objects in a commit area.
pub(super) struct Builder<'a> {
    pub upper: BorrowedFd<'a>,
    pub workspace: BorrowedFd<'a>,
    pub depot: BorrowedFd<'a>,
    /// True if the commit area shares a filesystem with the stage.
    pub links: bool,
    /// True if nothing of the stage is left afterwards.
    pub is_whole: bool,
    /// Paths to make, with the directories above them.
    pub wanted: &'a BTreeSet<PathBuf>,
    /// For each inode of a staged file: a name in the workspace with the same content.
    pub unchanged_names: &'a HashMap<u64, PathBuf>,
    pub watch: &'a mut dyn Watch,
    made: HashMap<u64, OwnedFd>,
    slots: u32,
    flush: Vec<OwnedFd>,
    built: usize,
}

/// Object in a slot of the commit area.
pub(super) struct Slot {
    pub number: u32,
    pub inode: u64,
    /// Metadata to set after the object is moved to its path. Until then a directory is open to its
    /// owner, because it could not be moved otherwise.
    pub settings: Option<Settings>,
}

impl<'a> Builder<'a> {
    pub fn new(
        (upper, workspace, depot): (BorrowedFd<'a>, BorrowedFd<'a>, BorrowedFd<'a>),
        (links, is_whole): (bool, bool),
        wanted: &'a BTreeSet<PathBuf>,
        unchanged_names: &'a HashMap<u64, PathBuf>,
        watch: &'a mut dyn Watch,
    ) -> Self {
        Self {
            upper,
            workspace,
            depot,
            links,
            is_whole,
            wanted,
            unchanged_names,
            watch,
            made: HashMap::new(),
            slots: 0,
            flush: Vec::new(),
            built: 0,
        }
    }

    /// Reserves a number for an object that will be moved into the commit area.
    pub fn reserve(&mut self) -> u32 {
        self.slots += 1;
        self.slots - 1
    }

    /// Makes the object that is staged at `path`, with all wanted objects beneath it.
    pub fn build(&mut self, path: &Path) -> Result<Slot, PathError> {
        let number = self.reserve();
        let staged = Object::beneath(self.upper, path).at(path)?;
        let staged = staged.ok_or_else(|| PathError::new(path, Errno::NOENT))?;
        let depot = self.depot;
        let name = slot_name(number);
        let settings = self.make(staged, path, depot, OsStr::new(&name))?;
        let object = Object::find(depot, OsStr::new(&name)).at(path)?;
        let object = object.ok_or_else(|| PathError::new(path, Errno::NOENT))?;
        if let Some(settings) = &settings {
            let open = Settings { mode: settings.mode.map(|mode| mode | 0o700), ..settings.clone() };
            apply_settings(&object, &open).at(path)?;
        }
        Ok(Slot { number, inode: object.inode(), settings })
    }

    /// Makes one object. The caller sets the metadata of a directory.
    fn make(
        &mut self,
        staged: Object,
        path: &Path,
        into: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<Option<Settings>, PathError> {
        let made = if staged.is_directory() {
            self.make_directory(staged, path, into, name).map(Some)
        } else {
            self.make_leaf(&staged, path, into, name).map(|()| None)
        }?;
        self.built += 1;
        self.watch.reached(Point::Built).at(path)?;
        self.watch.progress(self.built, self.wanted.len().max(self.built));
        Ok(made)
    }

    fn make_directory(
        &mut self,
        staged: Object,
        path: &Path,
        into: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<Settings, PathError> {
        let staged = Readable::of(staged).at(path)?;
        mkdirat(into, name, Mode::RWXU).at(path)?;
        let made = find(into, name).at(path)?;
        own(&made, &staged.object).at(path)?;
        for inner in names(staged.object.fd.as_fd()).at(path)? {
            let path = path.join(os(&inner));
            if !self.wanted.contains(&path) {
                continue;
            }
            let Some(object) = Object::find(staged.object.fd.as_fd(), os(&inner)).at(&path)? else { continue };
            if is_whiteout(&object) {
                continue;
            }
            if let Some(settings) = self.make(object, &path, made.fd.as_fd(), os(&inner))? {
                apply_settings(&find(made.fd.as_fd(), os(&inner)).at(&path)?, &settings).at(&path)?;
            }
        }
        Ok(Settings {
            mode: Some(staged.mode),
            modified: Some(staged.object.modified()),
            attributes: Some(staged.object.attributes().at(path)?),
        })
    }

    fn make_leaf(&mut self, staged: &Object, path: &Path, into: BorrowedFd<'_>, name: &OsStr) -> Result<(), PathError> {
        // The file already has a name in the workspace that stays, so this name becomes another
        // link.
        if let Some(other) = self.unchanged_names.get(&staged.inode())
            && let Some(there) = Object::beneath(self.workspace, other).at(other)?
            && same_name(&there, into, name).is_ok()
        {
            return Ok(());
        }
        // If another link to the file remains in the stage, a later write to either would change
        // both.
        if self.links && (self.is_whole || staged.stat.st_nlink == 1) {
            let own = staged.overlay_attributes().at(path)?;
            let remove = || own.iter().try_for_each(|attribute| staged.remove_attribute(attribute));
            staged.opened_up(remove).at(path)?;
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
            let first = Object::of(rustix::io::fcntl_dupfd_cloexec(first, 3).at(path)?).at(path)?;
            return same_name(&first, into, name).at(path);
        }
        let made = duplicate(staged, into, name).at(path)?;
        self.flush_later(&made, path)?;
        if staged.stat.st_nlink > 1 {
            self.made.insert(staged.inode(), made.fd);
        }
        Ok(())
    }

    fn flush_later(&mut self, object: &Object, path: &Path) -> Result<(), PathError> {
        if object.kind() == Kind::File && self.flush.len() <= FLUSHED_SINGLY_MAX {
            self.flush.push(rustix::io::fcntl_dupfd_cloexec(&object.fd, 3).at(path)?);
        }
        Ok(())
    }

    /// Flushes all objects made so far to the disk.
    pub fn flush(&mut self) -> Result<(), PathError> {
        let path = Path::new("");
        let flushed_singly = self.flush.len() <= FLUSHED_SINGLY_MAX
            && self.flush.iter().all(|fd| {
                let opened = openat(
                    CWD,
                    DescriptorPath::new(fd.as_fd()).as_c_str(),
                    OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
                    Mode::empty(),
                );
                opened.is_ok_and(|file| fsync(file).is_ok())
            });
        let depot = openat(self.depot, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let depot = depot.at(path)?;
        if flushed_singly { fsync(depot) } else { syncfs(depot) }.at(path)
    }
}

fn find(directory: BorrowedFd<'_>, name: &OsStr) -> Result<Object, Errno> {
    Object::find(directory, name)?.ok_or(Errno::NOENT)
}

/// Copies an object that is not a directory, with owner, mode, time and attributes.
pub(super) fn duplicate(model: &Object, into: BorrowedFd<'_>, name: &OsStr) -> Result<Object, Errno> {
    copy(model, into, name)?;
    let made = find(into, name)?;
    own(&made, model)?;
    let settings = Settings {
        mode: Some(model.mode()),
        modified: Some(model.modified()),
        attributes: Some(model.opened_up(|| model.attributes())?),
    };
    apply_settings(&made, &settings)?;
    Ok(made)
}

/// Sets the owner of a new object to that of its model, if they differ.
pub(super) fn own(made: &Object, model: &Object) -> Result<(), Errno> {
    let (user, group) = (model.stat.st_uid, model.stat.st_gid);
    if (user, group) == (made.stat.st_uid, made.stat.st_gid) {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    chownat(&made.fd, c"", Some(user), Some(group), AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)
}

/// Gives an open object one more name.
fn same_name(object: &Object, into: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    let path = DescriptorPath::new(object.fd.as_fd());
    linkat(CWD, path.as_c_str(), into, name, AtFlags::SYMLINK_FOLLOW)
}

/// Makes a new object of the same kind and content.
fn copy(staged: &Object, into: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    match staged.kind() {
        Kind::File => copy_file(staged, into, name),
        Kind::Link => symlinkat(os(&staged.link_text()?), into, name),
        Kind::Pipe => mknodat(into, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0),
        Kind::Socket => mknodat(into, name, FileType::Socket, Mode::RUSR | Mode::WUSR, 0),
        Kind::Directory | Kind::Device => Err(Errno::INVAL),
    }
}

fn copy_file(staged: &Object, into: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    let from = staged.opened_up(|| staged.open())?;
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
pub(super) fn settings_of(object: &Object) -> Settings {
    Settings { mode: Some(object.mode()), modified: Some(object.modified()), attributes: None }
}

/// Returns the later of two times.
pub(super) fn later(one: Time, other: Time) -> Time {
    one.max(other)
}
