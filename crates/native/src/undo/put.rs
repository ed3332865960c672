//! Puts back what was at a path. Must not know in which order paths are restored, or why.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, linkat, mkdirat, mknodat, openat, renameat_with, symlinkat,
    unlinkat,
};
use stockade_files::object::{Kind, Object};
use stockade_sys::Errno;
use stockade_sys::resolve::DescriptorPath;

use super::compare::{Judged, Plan, Source};
use super::journal::Before;
use super::keep::{copy_data, slot_name};
use super::restore::{Restoring, set_metadata};

impl Restoring<'_, '_> {
    /// Makes one path what it was, but for what lies beneath.
    pub(super) fn put(&mut self, judged: &Judged) -> Result<(), Errno> {
        let Some(before) = &judged.before else { return Ok(()) };
        let before =
            self.comparing.journal.first.get(&before.key()).filter(|_| before.kind == Kind::File).unwrap_or(before);
        // A run may go on meanwhile.
        let is_mode = judged.plan == Plan::Stay && before.kind == Kind::Directory;
        if judged.effect.is_some() && !is_mode && self.is_planted(&judged.path) {
            return Ok(());
        }
        match (&judged.plan, before.kind) {
            (Plan::Stay, Kind::Directory) | (Plan::Remove, _) => Ok(()),
            (Plan::Stay, _) => {
                if let Some(now) = &judged.now {
                    if judged.effect.is_some() {
                        self.touch(&judged.path, now)?;
                        set_metadata(now, before)?;
                    }
                    self.placed.entry(before.key()).or_insert_with(|| judged.path.clone());
                }
                Ok(())
            }
            (Plan::Put(source), kind) => {
                self.clear(judged)?;
                let (held, name) = self.place(&judged.path)?;
                if !matches!(kind, Kind::Directory | Kind::Link | Kind::Pipe) {
                    return self.put_file(judged, before, source.as_ref(), (&held, name));
                }
                self.make(&judged.path, before, (&held, name))
            }
        }
    }

    /// Makes a directory, a link or a pipe. It gets its name when it is noted as touched.
    fn make(&mut self, path: &[u8], before: &Before, (held, name): (&OwnedFd, &OsStr)) -> Result<(), Errno> {
        let partial = self.partial(name);
        let flags = if before.kind == Kind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        // What an attempt that was cut off left.
        let _ = unlinkat(held, &partial, flags);
        match before.kind {
            Kind::Directory => mkdirat(held, &partial, Mode::RWXU),
            Kind::Link => {
                let text = before.text.as_ref().ok_or(Errno::NOENT)?;
                symlinkat(text.as_os_str(), held, &partial)
            }
            _ => mknodat(held, &partial, FileType::Fifo, Mode::from_raw_mode(before.mode), 0),
        }?;
        let put = Object::find(held.as_fd(), &partial).and_then(|made| {
            let made = made.ok_or(Errno::STALE)?;
            self.touch(path, &made)?;
            if before.kind != Kind::Directory {
                set_metadata(&made, before)?;
            }
            renameat_with(held, &partial, held, name, RenameFlags::NOREPLACE)
        });
        if put.is_err() {
            let _ = unlinkat(held, &partial, flags);
        }
        put?;
        self.stays(path, || unlinkat(held, name, flags)).map(drop)
    }

    fn put_file(
        &mut self,
        judged: &Judged,
        before: &Before,
        source: Option<&Source>,
        (held, name): (&OwnedFd, &OsStr),
    ) -> Result<(), Errno> {
        // Another name of the same file is back already.
        if before.links > 1
            && let Some(first) = self.placed.get(&before.key()).cloned()
            && let Some(object) = self.find(&first)?
            && self.touch(&first, &object).is_ok()
            && link_object(&object, held, name).is_ok()
        {
            if let Some(Source::Moved(from) | Source::Linked(from)) = source {
                self.release(from);
            }
            return self.stays(&judged.path, || unlinkat(held, name, AtFlags::empty())).map(drop);
        }
        let path = &judged.path;
        let stays = match source {
            Some(Source::Moved(from)) => {
                let now_at = self.now_at(from);
                let (there, old) = self.place(&now_at)?;
                let moved = Object::find(there.as_fd(), old)?.filter(|object| before.is(object)).ok_or(Errno::STALE)?;
                self.touch(path, &moved)?;
                renameat_with(&there, old, held, name, RenameFlags::NOREPLACE)?;
                if self.stays(path, || renameat_with(held, name, &there, old, RenameFlags::NOREPLACE))? {
                    self.needed.remove(from);
                    self.take_over(held, name, before)?;
                    true
                } else {
                    false
                }
            }
            Some(Source::Linked(from)) => {
                let found = self.find(&self.now_at(from))?;
                let object = found.filter(|object| before.is(object)).ok_or(Errno::STALE)?;
                self.touch(path, &object)?;
                link_object(&object, held, name)?;
                self.release(from);
                self.take_over(held, name, before)?;
                self.stays(path, || unlinkat(held, name, AtFlags::empty()))?
            }
            Some(Source::Slot(slot)) => self.put_slot(*slot, (path, before), held, name)?,
            None => return Err(Errno::NOENT),
        };
        if stays {
            self.placed.entry(before.key()).or_insert_with(|| judged.path.clone());
        }
        Ok(())
    }

    fn take_over(&self, held: &OwnedFd, name: &OsStr, before: &Before) -> Result<(), Errno> {
        match Object::find(held.as_fd(), name)? {
            Some(object) => set_metadata(&object, before),
            None => Err(Errno::STALE),
        }
    }

    /// Puts a kept file in its place: itself where it is the very file and has no other name,
    /// a copy otherwise. Tells whether it is there.
    fn put_slot(
        &mut self,
        slot: u32,
        (path, before): (&[u8], &Before),
        held: &OwnedFd,
        name: &OsStr,
    ) -> Result<bool, Errno> {
        let run = self.comparing.run;
        let kept = run.slot(slot)?.ok_or(Errno::NOENT)?;
        let is_original = before.is(&kept) && kept.stat.st_nlink == 1;
        let slot = slot_name(slot);
        if is_original {
            self.touch(path, &kept)?;
        }
        if is_original && linkat(&run.objects, slot.as_str(), held, name, AtFlags::empty()).is_ok() {
            self.take_over(held, name, before)?;
            let stays = self.stays(path, || unlinkat(held, name, AtFlags::empty()))?;
            // Until here it is there twice, so that it is never lost.
            return match stays {
                true => unlinkat(&run.objects, slot.as_str(), AtFlags::empty()).map(|()| true),
                false => Ok(false),
            };
        }
        let partial = self.partial(name);
        let _ = unlinkat(held, &partial, AtFlags::empty());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat(held, &partial, flags, Mode::RUSR | Mode::WUSR)?;
        let copied = fill(&kept, &made).and_then(|()| {
            let made = Object::of(made)?;
            self.touch(path, &made)?;
            set_metadata(&made, before)
        });
        let put = copied.and_then(|()| renameat_with(held, &partial, held, name, RenameFlags::NOREPLACE));
        if put.is_err() {
            let _ = unlinkat(held, &partial, AtFlags::empty());
        }
        put?;
        self.stays(path, || unlinkat(held, name, AtFlags::empty()))
    }
}

/// Gives a held object one more name.
fn link_object(object: &Object, held: &OwnedFd, name: impl rustix::path::Arg) -> Result<(), Errno> {
    linkat(CWD, DescriptorPath::new(object.fd.as_fd()).as_c_str(), held, name, AtFlags::SYMLINK_FOLLOW)
}

fn fill(kept: &Object, made: &OwnedFd) -> Result<(), Errno> {
    use super::keep::KeepError;
    let content = kept.opened_up(|| kept.open())?;
    if rustix::fs::ioctl_ficlone(made, &content).is_ok() {
        return Ok(());
    }
    copy_data(&content, made, kept.size(), u64::MAX).map(drop).map_err(|error| match error {
        KeepError::Errno(errno) => errno,
        KeepError::Full => Errno::NOSPC,
    })
}
