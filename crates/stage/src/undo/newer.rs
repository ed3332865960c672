//! Finds objects that were changed or made after a run. The records at the end of the run and the
//! kernel's change times show the state that the run left. Must not depend on the state before it.

use rustix::fs::{AtFlags, StatxFlags, statx};
use stockade_files::object::{FileTime, ObjectKind, TreeObject};

use super::compare::{MAX_CONFLICTS, MAX_DEPTH, RunComparer, entries_readable};
use super::end_record::digest_of;
use super::journal::{JournalEntry, key_of};
use super::paths::{join_path, split_path};

/// Largest lag of the clock of file times behind the system clock.
const MAX_CLOCK_LAG_MS: u64 = 100;

impl RunComparer<'_> {
    /// Returns whether an object that is not a directory was changed after the run.
    pub(super) fn is_newer(&self, now: &TreeObject, entry: &JournalEntry) -> bool {
        if now.changed_time() <= self.end || self.is_left(now) {
            return false;
        }
        let digest_after = entry.after.as_ref().and_then(|(_, digest)| digest.as_ref());
        digest_after
            .is_none_or(|digest_after| now.kind() != ObjectKind::File || digest_of(now).as_ref() != Some(digest_after))
    }

    /// Returns whether only the restoration changed an object after the run. After an interruption
    /// the time of its last change is unknown. Then the content must have an older modification
    /// time, which programs can set.
    pub(super) fn is_left(&self, now: &TreeObject) -> bool {
        let Some(touched) = self.journal.touched.get(&key_of(now)) else { return false };
        match touched.changed {
            Some(at) => now.changed_time() <= at,
            // A new object may have the inode number of a removed one.
            None => touched.born == creation_time(now) && (now.is_directory() || now.modified_time() <= self.end),
        }
    }

    /// Returns whether the content is as the run left it. Ignores the modification time, which a
    /// run may have set to the future.
    pub(super) fn is_content_old(&self, now: &TreeObject) -> bool {
        now.changed_time() <= self.end || self.is_left(now)
    }

    /// Returns whether a directory was made after the run. Entries are checked separately.
    pub(super) fn is_newer_directory(&self, now: &TreeObject) -> bool {
        if now.changed_time() <= self.end || self.is_left(now) {
            return false;
        }
        creation_time(now).is_none_or(|born| born > self.end)
    }

    /// Returns whether the object at a new path differs from the one that the run left there.
    pub(super) fn is_foreign(&self, path: &[u8], now: &TreeObject) -> bool {
        let (above, name) = split_path(path);
        if self.is_left(now) || self.is_own_name(name) {
            return false;
        }
        let above = self.run.find_object(above).ok().flatten();
        match above.and_then(|above| self.was_made(&above, name, now)) {
            Some(was_made) => !was_made,
            // Each new directory was recorded at the end of the run.
            None => now.is_directory() && !self.journal.made.contains_key(&key_of(now)),
        }
    }

    /// Returns whether the times of an object do not prove that the run made it. Used if the object
    /// is not recorded at the end of the run.
    pub(super) fn is_unproven(&self, now: &TreeObject) -> bool {
        let start = self.time_before_run();
        let is_within = |time: FileTime| start <= time && time <= self.end;
        let is_proven =
            is_within(now.changed_time()) || now.is_directory() && creation_time(now).is_some_and(is_within);
        !is_proven && !self.is_left(now) && !self.journal.first.contains_key(&key_of(now))
    }

    /// Returns a time before any change of the run.
    fn time_before_run(&self) -> FileTime {
        let start_ms = self.run.meta.started_ms.saturating_sub(MAX_CLOCK_LAG_MS);
        FileTime {
            seconds: i64::try_from(start_ms / 1000).unwrap_or(i64::MAX),
            nanoseconds: u32::try_from(start_ms % 1000).unwrap_or(0) * 1_000_000,
        }
    }

    /// Returns whether an object is unchanged since the run began.
    pub(super) fn is_older_than_run(&self, now: &TreeObject) -> bool {
        now.changed_time() <= self.journal.begun.unwrap_or_else(|| self.time_before_run())
    }

    /// Returns whether a name is reserved for the restoration.
    pub(super) fn is_own_name(&self, name: &[u8]) -> bool {
        name.starts_with(self.run.temporary_prefix().as_bytes())
    }

    /// Returns whether an entry of a new directory existed under this name at the end of the run.
    pub(super) fn may_go(&self, directory: &TreeObject, name: &[u8], object: &TreeObject) -> bool {
        self.is_own_name(name) || self.was_made(directory, name, object).unwrap_or_else(|| !self.is_unproven(object))
    }

    /// Returns whether an object had this name in this new directory at the end of the run. `None`
    /// if the names of the directory were not recorded.
    pub(super) fn was_made(&self, directory: &TreeObject, name: &[u8], object: &TreeObject) -> Option<bool> {
        let inner = self.journal.made.get(&key_of(directory))?.as_ref()?;
        Some(inner.get(name) == Some(&key_of(object)))
    }

    /// Records entries of a new directory that were changed or made after the run.
    pub(super) fn look_for_newer(&mut self, path: &[u8], directory: &TreeObject, depth: usize) {
        let Ok(inner) = entries_readable(directory) else { return };
        for (name, object) in inner {
            if self.newer.len() >= MAX_CONFLICTS {
                return;
            }
            let (name, Ok(object)) = (name.as_encoded_bytes(), object) else { continue };
            let path = join_path(path, name);
            // Objects that the restoration moved aside or made have lines of their own.
            let is_own = self.journal.entries.contains_key(&path);
            if !is_own && !self.may_go(directory, name, &object) {
                self.newer.push(path);
            } else if object.is_directory() && depth < MAX_DEPTH {
                if self.is_newer_directory(&object) {
                    self.newer.push(path.clone());
                }
                self.look_for_newer(&path, &object, depth + 1);
            } else if self.is_newer(&object, &JournalEntry::default())
                && !is_own
                && !self.journal.first.contains_key(&key_of(&object))
            {
                self.newer.push(path);
            }
        }
    }
}

/// Returns the creation time of an object, if the filesystem has one.
pub(super) fn creation_time(object: &TreeObject) -> Option<FileTime> {
    let found = statx(&object.fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    let has_birth_time = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    has_birth_time.then_some(FileTime { seconds: found.stx_btime.tv_sec, nanoseconds: found.stx_btime.tv_nsec })
}
