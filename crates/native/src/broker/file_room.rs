//! Raises the file size limit for files that are larger than a small disk limit already. The kernel
//! enforces that limit per file (RLIMIT_FSIZE), but the limit is for data that the run writes. A
//! file from before the run may still be written, and may grow by as much as a new file.
//!
//! This module must not know which process watches the writes.

use std::cell::RefCell;
use std::collections::HashMap;

use rustix::fs::{FileType, fstat};
use rustix::process::Pid;
use stockade_model::{Grant, Layer, Limit, Operation};
use stockade_sys::limits::file_size_limit;

use super::caller::Caller;
use super::deed::Step;
use super::ledger::Denied;
use super::service::{Reply, Service};
use crate::limits::make_room;
use crate::powers::Refusal;

/// Most files that are remembered. Further files get no raised limit.
const FILES_MAX: usize = 100_000;

/// Allocated size of each file when the run first opened it for writing.
pub(super) struct FileRoom {
    disk: u64,
    allocated: RefCell<HashMap<(u64, u64), u64>>,
}

impl FileRoom {
    /// Creates the table for a run that may write `disk` bytes.
    pub(super) fn new(disk: u64) -> Self {
        Self { disk, allocated: RefCell::default() }
    }

    /// Raises the limit of `process` for the file that it is about to receive.
    pub(super) fn make(&self, process: u32, step: &Step) {
        let Step::Done(Reply::Descriptor { fd, .. }) = step else { return };
        let Ok(stat) = fstat(fd) else { return };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return;
        }
        let allocated = u64::try_from(stat.st_blocks).unwrap_or_default().saturating_mul(512);
        let before = self.allocated_before((stat.st_dev, stat.st_ino), allocated);
        let process = i32::try_from(process).ok().and_then(Pid::from_raw);
        if let (1.., Some(process)) = (before, process) {
            make_room(process, before, self.disk);
        }
    }

    /// Returns the allocated bytes of the file when first opened, or fewer if it became smaller. An
    /// empty file is new, even if an older file had its inode number.
    fn allocated_before(&self, file: (u64, u64), allocated: u64) -> u64 {
        let mut known = self.allocated.borrow_mut();
        if known.len() >= FILES_MAX && !known.contains_key(&file) {
            return 0;
        }
        let before = known.entry(file).or_insert(allocated);
        *before = (*before).min(allocated);
        *before
    }
}

impl Service {
    /// Handles an `ftruncate` that lengthens a file. The kernel carries it out, or refuses it and
    /// reports that to the program alone; the broker therefore records the refusal.
    pub(super) fn lengthen(&self, caller: &Caller) -> Step {
        if let Some(denied) = too_long(caller) {
            self.record(caller, denied);
        }
        Step::Done(Reply::Continue)
    }
}

fn too_long(caller: &Caller) -> Option<Denied> {
    let length = caller.request.args[1];
    let process = Pid::from_raw(i32::try_from(caller.request.pid).ok()?)?;
    // The limit is zero once the run is being ended.
    let most = file_size_limit(process).ok()?.current.filter(|most| *most > 0 && *most < length)?;
    let stat = fstat(caller.object(caller.int(0)).ok()?).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_file || u64::try_from(stat.st_size).is_ok_and(|size| size >= length) {
        return None;
    }
    let (most, wanted) = (Limit::Disk.text(most), Limit::Disk.text(length));
    Some(Denied {
        operation: Operation::Limit,
        object: Limit::Disk.name().as_bytes().to_vec(),
        layer: Layer::Limits,
        refusal: Refusal {
            rule: format!("no new file larger than {most}; one of {wanted} was to be made"),
            grant: Some(Grant::Limit(Limit::Disk, length)),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_run_wrote_makes_no_room() {
        let room = FileRoom::new(1);
        assert_eq!(room.allocated_before((1, 1), 0), 0);
        assert_eq!(room.allocated_before((1, 1), 4096), 0, "the run wrote it");
        assert_eq!(room.allocated_before((1, 2), 8192), 8192);
        assert_eq!(room.allocated_before((1, 2), 65536), 8192);
        assert_eq!(room.allocated_before((1, 2), 0), 0, "it was emptied");
        assert_eq!(room.allocated_before((1, 2), 65536), 0);
    }
}
