//! Restores the object of a path. Must not depend on the order of paths, or the reason.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, linkat, mkdirat, mknodat, openat, renameat_with, symlinkat,
    unlinkat,
};
use stockade_files::content::copy_content;
use stockade_files::object::{ObjectKind, TreeObject};
use stockade_sys::Errno;
use stockade_sys::resolve::DescriptorPath;

use super::compare::{ComparedPath, ContentSource, RestoreAction};
use super::content_copies::slot_name;
use super::held_name::RestoreTarget;
use super::journal::OriginalObject;
use super::restore::{WorkspaceRestorer, set_metadata};
use crate::state_files::open_to_write;

impl WorkspaceRestorer<'_, '_> {
    /// Restores one path, without the content beneath it.
    pub(super) fn restore_path(&mut self, compared_path: &ComparedPath) -> Result<(), Errno> {
        let Some(before) = &compared_path.before else { return Ok(()) };
        let before = self
            .comparing
            .journal
            .first
            .get(&before.key())
            .filter(|_| before.kind == ObjectKind::File)
            .unwrap_or(before);
        // The mode can be restored while another run uses the directory.
        let is_mode = compared_path.plan == RestoreAction::Stay && before.kind == ObjectKind::Directory;
        if compared_path.effect.is_some() && !is_mode && self.is_planted(&compared_path.path) {
            return Ok(());
        }
        match (&compared_path.plan, before.kind) {
            (RestoreAction::Stay, ObjectKind::Directory) | (RestoreAction::Remove, _) => Ok(()),
            (RestoreAction::Stay, _) => {
                if let Some(now) = &compared_path.now {
                    if compared_path.effect.is_some() {
                        let found =
                            self.find_object(&compared_path.path)?.filter(|found| self.matches_comparison(now, found));
                        let found = found.ok_or(Errno::STALE)?;
                        self.record_touch(&compared_path.path, &found)?;
                        set_metadata(&found, before)?;
                        self.note_put(&compared_path.path, &found)?;
                    }
                    self.placed.entry(before.key()).or_insert_with(|| compared_path.path.clone());
                }
                Ok(())
            }
            (RestoreAction::Put(source), kind) => {
                self.clear(compared_path)?;
                let spot = self.open_writable_entry(&compared_path.path)?;
                if !matches!(kind, ObjectKind::Directory | ObjectKind::Link | ObjectKind::Pipe) {
                    return self.put_file(before, source.as_ref(), &spot);
                }
                self.make_object(before, &spot)
            }
        }
    }

    /// Makes a directory, a symbolic link or a pipe. Records it as touched before it gets its name.
    fn make_object(&mut self, before: &OriginalObject, spot: &RestoreTarget<'_>) -> Result<(), Errno> {
        let (held, partial) = (&spot.held, self.partial_name(spot.name));
        let flags = if before.kind == ObjectKind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        // Remains of an interrupted attempt.
        let _ = unlinkat(held, &partial, flags);
        match before.kind {
            ObjectKind::Directory => mkdirat(held, &partial, Mode::RWXU),
            ObjectKind::Link => {
                let text = before.text.as_ref().ok_or(Errno::NOENT)?;
                symlinkat(text.as_os_str(), held, &partial)
            }
            _ => mknodat(held, &partial, FileType::Fifo, Mode::from_raw_mode(before.mode), 0),
        }?;
        let ready = TreeObject::open_entry(held.as_fd(), &partial).and_then(|made| {
            let made = made.ok_or(Errno::STALE)?;
            self.record_touch(spot.path, &made)?;
            if before.kind == ObjectKind::Directory { Ok(()) } else { set_metadata(&made, before) }
        });
        self.put_partial(ready, &partial, spot, flags).map(drop)
    }

    /// Renames a prepared object to its final name. Removes it if it does not get that name.
    fn put_partial(
        &mut self,
        ready: Result<(), Errno>,
        partial: &OsStr,
        spot: &RestoreTarget<'_>,
        flags: AtFlags,
    ) -> Result<bool, Errno> {
        let (held, name) = (&spot.held, spot.name);
        let rename = || renameat_with(held, partial, held, name, RenameFlags::NOREPLACE);
        let put = ready.and_then(|()| self.give_name(spot, rename, || unlinkat(held, name, flags)));
        if !matches!(put, Ok(true)) {
            let _ = unlinkat(held, partial, flags);
        }
        put
    }

    fn put_file(
        &mut self,
        before: &OriginalObject,
        source: Option<&ContentSource>,
        spot: &RestoreTarget<'_>,
    ) -> Result<(), Errno> {
        let (path, held, name) = (spot.path, &spot.held, spot.name);
        let is_guarded = self.comparing.guarded_before.is_guarded(path);
        // Another name of the same file is already restored.
        if before.links > 1
            && !is_guarded
            && let Some(first) = self.placed.get(&before.key()).cloned()
            && let Some(object) = self.find_object(&first)?
            && self.record_touch(&first, &object).is_ok()
        {
            let link = || object.link_at(held, name);
            match self.give_name(spot, link, || unlinkat(held, name, AtFlags::empty())) {
                // Then the file is restored from its own source.
                Err(errno) if errno != Errno::STALE => {}
                result => {
                    if let Some(ContentSource::Moved(from) | ContentSource::Linked(from)) = source {
                        self.release_source(from);
                    }
                    return result.map(drop);
                }
            }
        }
        let stays = match source {
            Some(ContentSource::Moved(from)) => self.put_moved(from, before, spot)?,
            Some(ContentSource::Linked(from)) => self.put_linked(from, before, spot)?,
            Some(ContentSource::Slot(slot)) => self.put_slot(*slot, before, spot, is_guarded)?,
            None => return Err(Errno::NOENT),
        };
        if stays && !is_guarded {
            self.placed.entry(before.key()).or_insert_with(|| path.to_vec());
        }
        Ok(())
    }

    fn put_moved(&mut self, from: &[u8], before: &OriginalObject, spot: &RestoreTarget<'_>) -> Result<bool, Errno> {
        let now_at = self.now_at(from);
        let old = self.open_writable_entry(&now_at)?;
        let moved = old.find_object()?.filter(|object| before.is_same_object(object)).ok_or(Errno::STALE)?;
        self.record_touch(spot.path, &moved)?;
        let there = || renameat_with(&old.held, old.name, &spot.held, spot.name, RenameFlags::NOREPLACE);
        let back = || renameat_with(&spot.held, spot.name, &old.held, old.name, RenameFlags::NOREPLACE);
        let stays = self.give_name(spot, there, back)?;
        if stays {
            self.needed.remove(from);
            self.take_over(spot, before)?;
        }
        Ok(stays)
    }

    fn put_linked(&mut self, from: &[u8], before: &OriginalObject, spot: &RestoreTarget<'_>) -> Result<bool, Errno> {
        let found = self.find_object(&self.now_at(from))?;
        let object = found.filter(|object| before.is_same_object(object)).ok_or(Errno::STALE)?;
        self.record_touch(spot.path, &object)?;
        let link = || object.link_at(&spot.held, spot.name);
        let stays = self.give_name(spot, link, || unlinkat(&spot.held, spot.name, AtFlags::empty()))?;
        self.release_source(from);
        if stays {
            self.take_over(spot, before)?;
        }
        Ok(stays)
    }

    fn take_over(&self, spot: &RestoreTarget<'_>, before: &OriginalObject) -> Result<(), Errno> {
        match spot.find_object()?.filter(|object| before.is_same_object(object)) {
            Some(object) => set_metadata(&object, before),
            None => Err(Errno::STALE),
        }
    }

    /// Restores a kept file: moves the file itself if it is the original and has no other name;
    /// otherwise makes a copy. A guarded file is always copied, because another run may have opened
    /// the original while it had another name. Returns whether the file stays.
    fn put_slot(
        &mut self,
        slot: u32,
        before: &OriginalObject,
        spot: &RestoreTarget<'_>,
        is_guarded: bool,
    ) -> Result<bool, Errno> {
        let run = self.comparing.run;
        let saved_copy = run.open_slot(slot)?.ok_or(Errno::NOENT)?;
        if is_guarded || !before.is_same_object(&saved_copy) || saved_copy.stat.st_nlink != 1 {
            return self.put_copy(&saved_copy, before, spot);
        }
        let slot = slot_name(slot);
        self.record_touch(spot.path, &saved_copy)?;
        let (held, name) = (&spot.held, spot.name);
        let link = || linkat(&run.objects, slot.as_str(), held, name, AtFlags::empty());
        match self.give_name(spot, link, || unlinkat(held, name, AtFlags::empty())) {
            Ok(true) => {
                self.take_over(spot, before)?;
                // Until here the file has two names, so that an interruption cannot lose it.
                unlinkat(&run.objects, slot.as_str(), AtFlags::empty()).map(|()| true)
            }
            Err(errno) if errno != Errno::STALE => self.put_copy(&saved_copy, before, spot),
            other => other,
        }
    }

    /// Writes a new file, and gives it its name when it is complete. Before that it has no name if
    /// the filesystem supports `O_TMPFILE`, so other processes cannot open or see it.
    fn put_copy(
        &mut self,
        saved_copy: &TreeObject,
        before: &OriginalObject,
        spot: &RestoreTarget<'_>,
    ) -> Result<bool, Errno> {
        let held = &spot.held;
        let mode = Mode::RUSR | Mode::WUSR;
        let fill_in = |restoring: &mut Self, made: File| {
            let content = saved_copy.opened_up(|| saved_copy.open_file())?;
            copy_content(&content, &made, saved_copy.size(), u64::MAX)?;
            // From now on no process has the file open for writing.
            let path = DescriptorPath::new(made.as_fd());
            let made =
                TreeObject::from_fd(openat(CWD, path.as_c_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)?;
            restoring.record_touch(spot.path, &made)?;
            set_metadata(&made, before)?;
            Ok(made)
        };
        if let Ok(made) = openat(held, c".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
            let made = fill_in(self, made.into())?;
            let link = || made.link_at(held, spot.name);
            return self.give_name(spot, link, || unlinkat(held, spot.name, AtFlags::empty()));
        }
        let partial = self.partial_name(spot.name);
        let _ = unlinkat(held, &partial, AtFlags::empty());
        let made = open_to_write(held, &partial, OFlags::RDWR | OFlags::EXCL)?;
        let ready = fill_in(self, made).map(drop);
        self.put_partial(ready, &partial, spot, AtFlags::empty())
    }
}
