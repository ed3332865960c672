//! Raises the file size limit for files that are larger than a small disk limit already. The kernel
//! enforces that limit per file (RLIMIT_FSIZE), but the limit is for data that the run writes. A
//! file from before the run may still be written, and may grow by as much as a new file.
//!
//! This module must not know which process watches the writes.

use std::cell::RefCell;
use std::collections::HashMap;

use rustix::fs::{FileType, fstat};
use rustix::process::Pid;
use stockade_limits::make_room;
use stockade_model::{DenialLayer, DeniedOperation, Grant, LimitKind};
use stockade_permissions::powers::PermissionRefusal;
use stockade_sys::limits::file_size_limit;

use super::call_result::{CallProgress, CallReply};
use super::caller::CallingThread;
use super::denials::RefusedOperation;
use super::service::BrokerService;

/// Most files that are remembered. Further files get no raised limit.
const MAX_REMEMBERED_FILES: usize = 100_000;

/// Allocated size of each file when the run first opened it for writing.
pub(super) struct FileAllocations {
    disk: u64,
    allocated: RefCell<HashMap<(u64, u64), u64>>,
}

impl FileAllocations {
    /// Creates the table for a run that may write `disk` bytes.
    pub(super) fn new(disk: u64) -> Self {
        Self { disk, allocated: RefCell::default() }
    }

    /// Raises the limit of `process` for the file that it is about to receive.
    pub(super) fn raise_size_limit(&self, process: u32, step: &CallProgress) {
        let CallProgress::Done(CallReply::Descriptor { fd, .. }) = step else { return };
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
        if known.len() >= MAX_REMEMBERED_FILES && !known.contains_key(&file) {
            return 0;
        }
        let before = known.entry(file).or_insert(allocated);
        *before = (*before).min(allocated);
        *before
    }
}

impl BrokerService {
    /// Handles an `ftruncate` that lengthens a file. The kernel carries it out, or refuses it and
    /// reports that to the program alone; the broker therefore records the refusal.
    pub(super) fn lengthen_file(&self, caller: &CallingThread) -> CallProgress {
        if let Some(denied) = too_long(caller) {
            self.record_denial(caller, denied);
        }
        CallProgress::CONTINUE
    }
}

fn too_long(caller: &CallingThread) -> Option<RefusedOperation> {
    let length = caller.request.args[1];
    let process = Pid::from_raw(i32::try_from(caller.request.pid).ok()?)?;
    // The limit is zero once the run is being ended.
    let most = file_size_limit(process).ok()?.current.filter(|most| *most > 0 && *most < length)?;
    let stat = fstat(caller.open_object(caller.int_argument(0)).ok()?).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_file || u64::try_from(stat.st_size).is_ok_and(|size| size >= length) {
        return None;
    }
    let (most, requested_size) = (LimitKind::Disk.format_amount(most), LimitKind::Disk.format_amount(length));
    let rule = format!("no new file larger than {most}; one of {requested_size} was to be made");
    let refusal = PermissionRefusal { rule, grant: Some(Grant::Limit(LimitKind::Disk, length)) };
    Some(RefusedOperation::new(DeniedOperation::Limit, LimitKind::Disk.name(), DenialLayer::Limits, refusal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_written_by_the_run_makes_no_room() {
        let room = FileAllocations::new(1);
        assert_eq!(room.allocated_before((1, 1), 0), 0);
        assert_eq!(room.allocated_before((1, 1), 4096), 0, "the run wrote it");
        assert_eq!(room.allocated_before((1, 2), 8192), 8192);
        assert_eq!(room.allocated_before((1, 2), 65536), 8192);
        assert_eq!(room.allocated_before((1, 2), 0), 0, "it was emptied");
        assert_eq!(room.allocated_before((1, 2), 65536), 0);
    }
}
