//! Reads of a traced run: each object once, with a count and its first reader.
//!
//! The record shows requested reads and nothing more. The kernel reads the path again and the
//! kernel-enforced layer decides. So a program that rewrites the path meanwhile can hide a read,
//! but cannot gain one. The size is limited: if there are too many reads, a directory represents
//! the reads beneath it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::ops::Bound;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, openat2};
use stockade_model::{DenialLayer, DeniedOperation, IsolationLevel, RawText, ReadAccess};
use stockade_sys::Errno;

use super::caller::CallingThread;
use super::denials::{CallerProcess, RefusedOperation};
use super::service::BrokerService;
use super::walk::ResolvedObject;

/// Most objects that are recorded separately.
const MAX_RECORDED_OBJECTS: usize = 1000;
/// Number of entries after directories have replaced some of them.
const MAX_ENTRIES_AFTER_FOLD: usize = MAX_RECORDED_OBJECTS / 2;
/// Trees that are not recorded, because their entries are not real files.
const KERNEL_TREES: [&[u8]; 3] = [b"/proc/", b"/sys/", b"/dev/"];

/// The reads of one attempt, by path.
#[derive(Debug, Default)]
pub(super) struct ReadLog {
    known: BTreeMap<Vec<u8>, ReadEntry>,
    has_folded: bool,
}

#[derive(Debug)]
struct ReadEntry {
    directory: bool,
    files: u64,
    caller_process: CallerProcess,
    count: u64,
}

impl ReadLog {
    /// Notes a read of the object at `path`.
    pub fn record_read(&mut self, path: &[u8], directory: bool, caller_process: impl FnOnce() -> CallerProcess) {
        if let Some(known) = self.known.get_mut(path) {
            known.count += 1;
            return;
        }
        if let Some(above) = self.folded_above(path) {
            above.count += 1;
            return;
        }
        if self.known.len() >= MAX_RECORDED_OBJECTS {
            self.fold_entries();
            if let Some(above) = self.folded_above(path) {
                above.count += 1;
                above.files += 1;
                return;
            }
            // All paths are in the root directory, which never represents others.
            if self.known.len() >= MAX_RECORDED_OBJECTS {
                return;
            }
        }
        self.known.insert(path.to_vec(), ReadEntry { directory, files: 0, caller_process: caller_process(), count: 1 });
    }

    /// Returns a directory above `path` that represents the reads beneath it.
    fn folded_above(&mut self, path: &[u8]) -> Option<&mut ReadEntry> {
        if !self.has_folded {
            return None;
        }
        let above =
            ancestor_directories(path).find(|above| self.known.get(*above).is_some_and(|known| known.files > 0))?;
        self.known.get_mut(above)
    }

    /// Replaces files by their directories, the fullest directories first, until half of the
    /// entries are left.
    fn fold_entries(&mut self) {
        while self.known.len() > MAX_ENTRIES_AFTER_FOLD {
            let mut sizes: BTreeMap<&[u8], usize> = BTreeMap::new();
            for parent in self.known.keys().filter_map(|path| ancestor_directories(path).next()) {
                *sizes.entry(parent).or_default() += 1;
            }
            let mut largest: Vec<(usize, Vec<u8>)> = sizes.into_iter().map(|(path, n)| (n, path.to_vec())).collect();
            largest.sort_by(|a, b| b.cmp(a));
            if largest.is_empty() {
                return;
            }
            for (_, directory) in largest {
                if self.known.len() <= MAX_ENTRIES_AFTER_FOLD {
                    return;
                }
                self.fold_into(directory);
            }
        }
    }

    fn fold_into(&mut self, directory: Vec<u8>) {
        self.has_folded = true;
        let (from, to) = ([&directory[..], b"/"].concat(), [&directory[..], b"0"].concat());
        let range = (Bound::Excluded(from), Bound::Excluded(to));
        let beneath: Vec<Vec<u8>> = self.known.range(range).map(|(path, _)| path.clone()).collect();
        let mut whole = self.known.remove(&directory);
        for path in beneath {
            let Some(known) = self.known.remove(&path) else { continue };
            let files = known.files.max(1);
            match &mut whole {
                None => whole = Some(ReadEntry { directory: true, files, ..known }),
                Some(whole) => {
                    whole.files += files;
                    whole.count += known.count;
                }
            }
        }
        if let Some(whole) = whole {
            self.known.insert(directory, whole);
        }
    }

    /// Returns all reads, by path, and clears them.
    pub fn take_reads(&mut self) -> Vec<ReadAccess> {
        let build_access = |(path, known): (Vec<u8>, ReadEntry)| ReadAccess {
            object: RawText::from(path),
            directory: known.directory,
            files: known.files,
            pid: known.caller_process.pid,
            program: known.caller_process.program,
            count: known.count,
        };
        std::mem::take(&mut self.known).into_iter().map(build_access).collect()
    }
}

/// Returns the directories above an absolute path, nearest first, without the root.
fn ancestor_directories(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    slashes.filter(|at| *at > 0).map(|at| &path[..at])
}

impl BrokerService {
    /// Notes an open that can only read. The kernel carries it out.
    pub(super) fn note_open(
        &self,
        reads: &RefCell<ReadLog>,
        caller: &CallingThread,
        (start, path): (i32, &CStr),
        flags: i32,
    ) {
        if KERNEL_TREES.iter().any(|tree| path.to_bytes().starts_with(tree)) {
            return;
        }
        // An open that fails reads nothing.
        let Ok(object) = self.find_opened_object(caller, start, path, flags) else { return };
        if object.is_placeless() || KERNEL_TREES.iter().any(|tree| object.path.starts_with(tree)) {
            return;
        }
        if let Some(refusal) = self.powers.hidden_refusal(&object.path) {
            // At level full the placeholder that hides the path reports the refusal.
            if self.level != IsolationLevel::Full {
                let denied = RefusedOperation::new(DeniedOperation::Read, object.path, DenialLayer::Landlock, refusal);
                self.record_denial(caller, denied);
            }
            return;
        }
        self.note_read(reads, &object, || self.identify_caller(caller));
    }

    /// Notes a read of `object`, unless only the run sees that object.
    pub(super) fn note_read(
        &self,
        reads: &RefCell<ReadLog>,
        object: &ResolvedObject,
        caller_process: impl FnOnce() -> CallerProcess,
    ) {
        if !self.powers.in_private_tree(&object.path) {
            reads.borrow_mut().record_read(&object.path, object.file_type() == FileType::Directory, caller_process);
        }
    }

    /// Returns the object that the open would open now.
    fn find_opened_object(
        &self,
        caller: &CallingThread,
        start: i32,
        path: &CStr,
        flags: i32,
    ) -> Result<ResolvedObject, Errno> {
        let first = self.first.as_ref().ok_or(Errno::ACCESS)?;
        let is_followed = flags & libc::O_NOFOLLOW == 0;
        let mut how = OFlags::PATH | OFlags::CLOEXEC;
        how.set(OFlags::NOFOLLOW, !is_followed);
        let found = if path.to_bytes().starts_with(b"/") {
            openat2(&first.root, path, how, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
        } else {
            let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            openat2(caller.open_start(start)?, path, how, Mode::empty(), within)
        };
        let object = match found {
            Ok(fd) => ResolvedObject::from_fd(fd)?,
            // The path leaves the start directory, or passes a procfs link.
            Err(Errno::XDEV | Errno::LOOP | Errno::AGAIN) => {
                self.start_resolution(caller)?.resolve_object(start, path, is_followed)?
            }
            Err(errno) => return Err(errno),
        };
        self.must_still_wait(caller)?;
        match object.file_type() {
            // `O_NOFOLLOW` on a link fails.
            FileType::Symlink => Err(Errno::LOOP),
            FileType::Directory => Ok(object),
            _ if flags & libc::O_DIRECTORY != 0 => Err(Errno::NOTDIR),
            _ => Ok(object),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actor() -> CallerProcess {
        CallerProcess { pid: Some(7), program: Some("/bin/cat".into()) }
    }

    fn paths(reads: &[ReadAccess]) -> Vec<(String, u64, u64)> {
        reads.iter().map(|read| (read.object.to_escaped(), read.files, read.count)).collect()
    }

    #[test]
    fn one_object_is_listed_once_with_a_count_and_its_first_reader() {
        let mut reads = ReadLog::default();
        reads.record_read(b"/etc/hosts", false, actor);
        reads.record_read(b"/etc/hosts", false, || unreachable!());
        reads.record_read(b"/etc", true, actor);
        let found = reads.take_reads();
        assert_eq!(paths(&found), [("/etc".to_owned(), 0, 1), ("/etc/hosts".to_owned(), 0, 2)]);
        assert!(found[0].directory && !found[1].directory && found[1].pid == Some(7));
    }

    #[test]
    fn too_many_are_put_together_by_directory_and_the_rest_stays_exact() {
        let mut reads = ReadLog::default();
        reads.record_read(b"/home/u/one", false, actor);
        for n in 0..5 * MAX_RECORDED_OBJECTS {
            reads.record_read(format!("/w/modules/{}/{n}", n % 7).as_bytes(), false, actor);
            assert!(reads.known.len() <= MAX_RECORDED_OBJECTS);
        }
        let found = reads.take_reads();
        assert!(found.iter().any(|read| read.object == RawText::from("/home/u/one") && read.files == 0));
        let folded: Vec<_> = found.iter().filter(|read| read.files > 0).collect();
        assert!(!folded.is_empty() && folded.iter().all(|read| read.directory));
        assert!(folded.iter().all(|read| read.object.as_bytes().starts_with(b"/w/modules")));
        assert_eq!(found.iter().map(|read| read.count).sum::<u64>(), 5 * MAX_RECORDED_OBJECTS as u64 + 1);
    }

    /// For any tree shape: never more entries than the limit, and never the root.
    #[test]
    fn deep_and_flat_trees_are_bounded_too() {
        for path in
            [|n: usize| format!("/{n}"), |n: usize| format!("/a{n}/b/c/d"), |n| format!("/x{}", "/y".repeat(n % 900))]
        {
            let mut reads = ReadLog::default();
            for n in 0..3 * MAX_RECORDED_OBJECTS {
                reads.record_read(path(n).as_bytes(), false, actor);
            }
            let found = reads.take_reads();
            assert!(!found.is_empty() && found.len() <= MAX_RECORDED_OBJECTS, "{}", found.len());
            assert!(found.iter().all(|read| read.object.as_bytes().len() > 1));
        }
    }
}
