//! Moves the run's changes into its stage, and the originals back into the workspace. The trees
//! show which steps are done, so all steps can be repeated after any interruption.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, mkdirat, mknodat, renameat, unlinkat};
use stockade_files::object::{OVERLAY_ATTRIBUTES, TreeObject, make_where_missing};
use stockade_files::removal::remove_tree;
use stockade_sys::Errno;

use super::super::apply::apply_settings;
use super::super::change::is_whiteout;
use super::super::error::{PathContext, PathError};
use super::super::journal::ObjectMetadata;
use super::super::stage_directory::{OpenStage, UPPER_DIRECTORY};
use super::super::state_files::{LineWriter, open_directory, read_lines};
use super::{
    BACKUP_DIRECTORY, DIRECTORY_NOTES_FILE, DirectoryNote, NEW_OBJECT_NAME, TEMPORARY_DIRECTORY, open_notes,
    settings_of,
};

/// Most levels of directories that are restored, because each level holds four descriptors.
const MAX_DEPTH: usize = 200;

/// Restores the workspace and moves the run's changes into the stage. Does nothing without a backup
/// tree. The call can be repeated until [`clear`].
pub(in super::super) fn put_back(stage: &OpenStage) -> Result<(), PathError> {
    let root = Path::new("");
    let Some(backup) = TreeObject::open_entry(stage.directory.as_fd(), OsStr::new(BACKUP_DIRECTORY)).at_path(root)?
    else {
        return Ok(());
    };
    let workspace = stage.open_workspace().map_err(super::super::commit::stage_path_error)?;
    let workspace = TreeObject::from_fd(workspace).at_path(root)?;
    let upper = TreeObject::require_entry(&stage.directory, UPPER_DIRECTORY).at_path(Path::new(UPPER_DIRECTORY))?;
    let mut back = BackupRestorer { stage, notes: open_notes(stage)?, directories: read_notes(stage)? };
    back.restore_directory(&backup, &workspace, Some(&upper), root)
}

/// Removes the backup tree after everything is restored.
pub(in super::super) fn clear(stage: &OpenStage) -> Result<(), PathError> {
    for name in [BACKUP_DIRECTORY, TEMPORARY_DIRECTORY] {
        remove_tree(stage.directory.as_fd(), name.as_bytes())?;
    }
    stage.remove_file(DIRECTORY_NOTES_FILE)
}

fn read_notes(stage: &OpenStage) -> Result<HashMap<PathBuf, DirectoryNote>, PathError> {
    let mut notes = HashMap::new();
    // A damaged line must not prevent the restoration of the other directories.
    read_lines(stage.directory.as_fd(), DIRECTORY_NOTES_FILE, |noted: Result<DirectoryNote, _>| {
        notes.extend(noted.ok().map(|noted| (noted.path.as_path().to_owned(), noted)));
        Ok(())
    })?;
    Ok(notes)
}

struct BackupRestorer<'a> {
    stage: &'a OpenStage,
    notes: LineWriter,
    directories: HashMap<PathBuf, DirectoryNote>,
}

impl BackupRestorer<'_> {
    /// Restores one directory that existed before the run and still exists. `upper` is its
    /// counterpart in the stage; `None` if the stage hides the directory as a whole.
    fn restore_directory(
        &mut self,
        backup: &TreeObject,
        here: &TreeObject,
        upper: Option<&TreeObject>,
        path: &Path,
    ) -> Result<(), PathError> {
        if path.components().count() > MAX_DEPTH {
            return Err(PathError::from_reason(path, "it is nested too deeply to be restored"));
        }
        let after = upper.map(|_| self.metadata_after_run(here, path)).transpose()?;
        let is_closed = here.mode() & 0o700 != 0o700 && !rustix::process::geteuid().is_root();
        let opened = is_closed.then(|| here.mode());
        if let Some(mode) = opened {
            here.set_mode(mode | 0o700).at_path(path)?;
        }
        for (name, backup_object) in backup.entries().at_path(path)? {
            let path = path.join(&name);
            let backup_object = backup_object.at_path(&path)?;
            let spot = BackupEntry { path: &path, name: &name, backup, here, upper };
            if backup_object.is_directory() {
                self.restore_child(&spot, &backup_object)?
            } else {
                spot.restore_leaf(&backup_object)?
            }
        }
        if let (Some(upper), Some(after)) = (upper, after) {
            upper.set_owner(here.owner()).at_path(path)?;
            apply_settings(upper, &after).at_path(path)?;
        }
        let settings = self.directories.get(path).map(|noted| &noted.settings);
        match (settings, opened) {
            (Some(settings), _) => apply_settings(here, settings).at_path(path),
            (None, Some(mode)) => here.set_mode(mode).at_path(path),
            (None, None) => Ok(()),
        }
    }

    /// Returns the metadata that the run left, even if the directory is already restored.
    fn metadata_after_run(&mut self, here: &TreeObject, path: &Path) -> Result<ObjectMetadata, PathError> {
        let Some(noted) = self.directories.get_mut(path) else { return settings_of(here).at_path(path) };
        if let Some(after) = &noted.after {
            return Ok(after.clone());
        }
        let after = settings_of(here).at_path(path)?;
        noted.after = Some(after.clone());
        self.notes.append_line(noted).at_path(path)?;
        Ok(after)
    }

    /// Restores a path that was a directory.
    fn restore_child(&mut self, spot: &BackupEntry<'_>, backup_object: &TreeObject) -> Result<(), PathError> {
        let known = self.directories.get(spot.path);
        let (noted, is_remade) = (known.map(|noted| noted.inode), known.is_some_and(|noted| noted.is_remade));
        let there = spot.find_present()?;
        // A directory that was made again may have the inode number of the old one. The result is
        // the same: nothing of the old one was left in it.
        match there.filter(|there| there.is_directory() && Some(there.inode()) == noted) {
            Some(there) => {
                let upper = if is_remade { None } else { spot.upper_directory()? };
                self.restore_directory(backup_object, &there, upper.as_ref(), spot.path)?;
            }
            None => {
                spot.move_to_stage(true)?;
                let made = self.remake_directory(spot)?;
                self.restore_directory(backup_object, &made, None, spot.path)?;
            }
        }
        unlinkat(&spot.backup.fd, spot.name, AtFlags::REMOVEDIR).at_path(spot.path)
    }

    /// Makes a directory again that the run removed. Records it before moving it to its path, so
    /// that a repeated call recognises it.
    fn remake_directory(&mut self, spot: &BackupEntry<'_>) -> Result<TreeObject, PathError> {
        let making = open_directory(&self.stage.directory, TEMPORARY_DIRECTORY).at_path(spot.path)?;
        match unlinkat(&making, NEW_OBJECT_NAME, AtFlags::empty()) {
            Err(Errno::ISDIR) => unlinkat(&making, NEW_OBJECT_NAME, AtFlags::REMOVEDIR).at_path(spot.path)?,
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(PathError::new(spot.path, errno)),
        }
        mkdirat(&making, NEW_OBJECT_NAME, Mode::RWXU).at_path(spot.path)?;
        let made = TreeObject::require_entry(&making, NEW_OBJECT_NAME).at_path(spot.path)?;
        if let Some(noted) = self.directories.get_mut(spot.path) {
            noted.inode = made.inode();
            noted.is_remade = true;
            self.notes.append_line(noted).at_path(spot.path)?;
        }
        renameat(&making, NEW_OBJECT_NAME, &spot.here.fd, spot.name).at_path(spot.path)?;
        Ok(made)
    }
}

/// A name in the three trees.
struct BackupEntry<'a> {
    path: &'a Path,
    name: &'a OsStr,
    backup: &'a TreeObject,
    here: &'a TreeObject,
    upper: Option<&'a TreeObject>,
}

impl BackupEntry<'_> {
    fn find_present(&self) -> Result<Option<TreeObject>, PathError> {
        TreeObject::open_entry(self.here.fd.as_fd(), self.name).at_path(self.path)
    }

    /// Restores a path that was free or was not a directory.
    fn restore_leaf(&self, backup_object: &TreeObject) -> Result<(), PathError> {
        if is_whiteout(backup_object) {
            if self.find_present()?.is_some() {
                self.move_to_stage(false)?;
            }
            return unlinkat(&self.backup.fd, self.name, AtFlags::empty()).at_path(self.path);
        }
        if self.find_present()?.is_some_and(|there| there.inode() == backup_object.inode()) {
            // The object was never changed; two names of one object cannot be exchanged.
            return unlinkat(&self.backup.fd, self.name, AtFlags::empty()).at_path(self.path);
        }
        self.move_to_stage(false)?;
        renameat(&self.backup.fd, self.name, &self.here.fd, self.name).at_path(self.path)
    }

    /// Moves the present object into the stage, or marks the path there as removed. An object that
    /// was moved before an interruption stays.
    fn move_to_stage(&self, was_directory: bool) -> Result<(), PathError> {
        let there = self.find_present()?;
        let Some(upper) = self.upper else {
            // The directory was moved as a whole, so the present object is newer.
            return Ok(());
        };
        let staged = TreeObject::open_entry(upper.fd.as_fd(), self.name).at_path(self.path)?;
        match (there, staged) {
            (Some(there), None) => {
                if there.is_directory() && was_directory {
                    let opaque = [OVERLAY_ATTRIBUTES, b"opaque"].concat();
                    there.set_attribute(&opaque, b"y").at_path(self.path)?;
                }
                let moved = || renameat(&self.here.fd, self.name, &upper.fd, self.name);
                let done = if there.is_directory() { there.opened_up(moved) } else { moved() };
                done.at_path(self.path)
            }
            (None, None) => {
                mknodat(&upper.fd, self.name, FileType::CharacterDevice, Mode::empty(), 0).at_path(self.path)
            }
            (_, Some(_)) => Ok(()),
        }
    }

    fn upper_directory(&self) -> Result<Option<TreeObject>, PathError> {
        let Some(upper) = self.upper else { return Ok(None) };
        make_where_missing(&upper.fd, self.name, Mode::RWXU).at_path(self.path)?;
        TreeObject::open_entry(upper.fd.as_fd(), self.name).at_path(self.path)
    }
}
