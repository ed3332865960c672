//! Moves the run's changes into its stage, and the originals back into the workspace. The trees
//! show which steps are done, so all steps can be repeated after any interruption.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, mkdirat, mknodat, openat, renameat, unlinkat};
use stockade_sys::Errno;

use super::super::apply::apply_settings;
use super::super::build::own;
use super::super::change::is_whiteout;
use super::super::error::{At, PathError};
use super::super::journal::Settings;
use super::super::place::{Stage, UPPER};
use super::{ASIDE, DIRECTORIES, Directory, MAKING, NEW, settings_of, writable, write_note};
use stockade_files::object::{OVERLAY_ATTRIBUTES, Object, names, os};
use stockade_files::removal::remove_tree;

/// Most levels of directories that are restored, because each level holds four descriptors.
const DEPTH_MAX: usize = 200;

/// Restores the workspace and moves the run's changes into the stage. Does nothing without a backup
/// tree. The call can be repeated until [`clear`].
pub(in super::super) fn put_back(stage: &Stage) -> Result<(), PathError> {
    let root = Path::new("");
    let Some(aside) = Object::find(stage.directory.as_fd(), OsStr::new(ASIDE)).at(root)? else { return Ok(()) };
    let workspace = stage.open_workspace().map_err(super::super::commit::unreadable)?;
    let workspace = Object::of(workspace).at(root)?;
    let upper = Object::find(stage.directory.as_fd(), OsStr::new(UPPER)).at(root)?;
    let upper = upper.ok_or_else(|| PathError::new(Path::new(UPPER), Errno::NOENT))?;
    let mut back = Back { stage, directories: read_notes(stage)? };
    back.directory(&aside, &workspace, Some(&upper), root)
}

/// Removes the backup tree after everything is restored.
pub(in super::super) fn clear(stage: &Stage) -> Result<(), PathError> {
    for name in [ASIDE, MAKING] {
        remove_tree(stage.directory.as_fd(), name.as_bytes())?;
    }
    stage.remove_file(DIRECTORIES)
}

fn read_notes(stage: &Stage) -> Result<HashMap<PathBuf, Directory>, PathError> {
    let text = stage.read_whole(DIRECTORIES)?.unwrap_or_default();
    // An incomplete last line belongs to a change that was never made.
    let lines = text.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice::<Directory>(line).ok());
    Ok(lines.map(|noted| (noted.path.as_path().to_owned(), noted)).collect())
}

struct Back<'a> {
    stage: &'a Stage,
    directories: HashMap<PathBuf, Directory>,
}

impl Back<'_> {
    /// Restores one directory that existed before the run and still exists. `upper` is its
    /// counterpart in the stage; `None` if the stage hides the directory as a whole.
    fn directory(
        &mut self,
        aside: &Object,
        here: &Object,
        upper: Option<&Object>,
        path: &Path,
    ) -> Result<(), PathError> {
        if path.components().count() > DEPTH_MAX {
            return Err(PathError::because(path, "it lies too deep to be put back"));
        }
        let after = upper.map(|_| self.after(here, path)).transpose()?;
        let is_closed = here.mode() & 0o700 != 0o700 && !rustix::process::geteuid().is_root();
        let opened = is_closed.then(|| here.mode());
        if let Some(mode) = opened {
            here.set_mode(mode | 0o700).at(path)?;
        }
        for name in names(aside.fd.as_fd()).at(path)? {
            let path = path.join(os(&name));
            let Some(kept) = Object::find(aside.fd.as_fd(), os(&name)).at(&path)? else { continue };
            let spot = Spot { path: &path, name: os(&name), aside, here, upper };
            if kept.is_directory() { self.child(&spot, &kept)? } else { spot.leaf(&kept)? }
        }
        if let (Some(upper), Some(after)) = (upper, after) {
            own(upper, here).at(path)?;
            apply_settings(upper, &after).at(path)?;
        }
        let settings = self.directories.get(path).map(|noted| &noted.settings);
        match (settings, opened) {
            (Some(settings), _) => apply_settings(here, settings).at(path),
            (None, Some(mode)) => here.set_mode(mode).at(path),
            (None, None) => Ok(()),
        }
    }

    /// Returns the metadata that the run left, even if the directory is already restored.
    fn after(&mut self, here: &Object, path: &Path) -> Result<Settings, PathError> {
        let Some(noted) = self.directories.get_mut(path) else { return settings_of(here).at(path) };
        if let Some(after) = &noted.after {
            return Ok(after.clone());
        }
        let after = settings_of(here).at(path)?;
        noted.after = Some(after.clone());
        note_again(self.stage, noted)?;
        Ok(after)
    }

    /// Restores a path that was a directory.
    fn child(&mut self, spot: &Spot<'_>, kept: &Object) -> Result<(), PathError> {
        let known = self.directories.get(spot.path);
        let (noted, is_remade) = (known.map(|noted| noted.inode), known.is_some_and(|noted| noted.is_remade));
        let there = spot.there()?;
        // A directory that was made again may have the inode number of the old one. The result is
        // the same: nothing of the old one was left in it.
        match there.filter(|there| there.is_directory() && Some(there.inode()) == noted) {
            Some(there) => {
                let upper = if is_remade { None } else { spot.upper_directory()? };
                self.directory(kept, &there, upper.as_ref(), spot.path)?;
            }
            None => {
                spot.take(true)?;
                let made = self.remake(spot)?;
                self.directory(kept, &made, None, spot.path)?;
            }
        }
        unlinkat(&spot.aside.fd, spot.name, AtFlags::REMOVEDIR).at(spot.path)
    }

    /// Makes a directory again that the run removed. Records it before moving it to its path, so
    /// that a repeated call recognises it.
    fn remake(&mut self, spot: &Spot<'_>) -> Result<Object, PathError> {
        let making = making(self.stage).at(spot.path)?;
        match unlinkat(&making, NEW, AtFlags::empty()) {
            Err(Errno::ISDIR) => unlinkat(&making, NEW, AtFlags::REMOVEDIR).at(spot.path)?,
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(PathError::new(spot.path, errno)),
        }
        mkdirat(&making, NEW, Mode::RWXU).at(spot.path)?;
        let made = Object::find(making.as_fd(), OsStr::new(NEW)).at(spot.path)?;
        let made = made.ok_or_else(|| PathError::new(spot.path, Errno::NOENT))?;
        if let Some(noted) = self.directories.get_mut(spot.path) {
            noted.inode = made.inode();
            noted.is_remade = true;
            note_again(self.stage, noted)?;
        }
        renameat(&making, NEW, &spot.here.fd, spot.name).at(spot.path)?;
        Ok(made)
    }
}

/// A name in the three trees.
struct Spot<'a> {
    path: &'a Path,
    name: &'a OsStr,
    aside: &'a Object,
    here: &'a Object,
    upper: Option<&'a Object>,
}

impl Spot<'_> {
    fn there(&self) -> Result<Option<Object>, PathError> {
        Object::find(self.here.fd.as_fd(), self.name).at(self.path)
    }

    /// Restores a path that was free or was not a directory.
    fn leaf(&self, kept: &Object) -> Result<(), PathError> {
        if is_whiteout(kept) {
            if self.there()?.is_some() {
                self.take(false)?;
            }
            return unlinkat(&self.aside.fd, self.name, AtFlags::empty()).at(self.path);
        }
        if self.there()?.is_some_and(|there| there.inode() == kept.inode()) {
            // The object was never changed; two names of one object cannot be exchanged.
            return unlinkat(&self.aside.fd, self.name, AtFlags::empty()).at(self.path);
        }
        self.take(false)?;
        renameat(&self.aside.fd, self.name, &self.here.fd, self.name).at(self.path)
    }

    /// Moves the present object into the stage, or marks the path there as removed. An object that
    /// was moved before an interruption stays.
    fn take(&self, was_directory: bool) -> Result<(), PathError> {
        let there = self.there()?;
        let Some(upper) = self.upper else {
            // The directory was moved as a whole, so the present object is newer.
            return Ok(());
        };
        let staged = Object::find(upper.fd.as_fd(), self.name).at(self.path)?;
        match (there, staged) {
            (Some(there), None) => {
                if there.is_directory() && was_directory {
                    let opaque = [OVERLAY_ATTRIBUTES, b"opaque"].concat();
                    there.set_attribute(&opaque, b"y").at(self.path)?;
                }
                let moved = || renameat(&self.here.fd, self.name, &upper.fd, self.name);
                let done = if there.is_directory() { writable(&there, moved) } else { moved() };
                done.at(self.path)
            }
            (None, None) => mknodat(&upper.fd, self.name, FileType::CharacterDevice, Mode::empty(), 0).at(self.path),
            (_, Some(_)) => Ok(()),
        }
    }

    fn upper_directory(&self) -> Result<Option<Object>, PathError> {
        let Some(upper) = self.upper else { return Ok(None) };
        match mkdirat(&upper.fd, self.name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(PathError::new(self.path, errno)),
        }
        Object::find(upper.fd.as_fd(), self.name).at(self.path)
    }
}

fn note_again(stage: &Stage, noted: &Directory) -> Result<(), PathError> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let notes = openat(&stage.directory, DIRECTORIES, flags, Mode::empty()).at(Path::new(DIRECTORIES))?;
    write_note(&mut notes.into(), noted)
}

fn making(stage: &Stage) -> Result<OwnedFd, Errno> {
    openat(
        &stage.directory,
        MAKING,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
}
