//! Refusals that do not stop the program. One git command creates and removes many files. The
//! command would stop half way at the first refused file, and leave a checkout, a merge or a stash
//! that is neither done nor undone.
//!
//! So a refused change in a work tree is left out and reported as a refusal, and git continues. A
//! file to be written becomes a file without a name; a file to be removed stays. Afterwards
//! `git status` shows the difference. This gives no further powers: a program that only calls itself git
//! gets no more than that. The same is done for programs that unpack dependencies, because these
//! often contain editors' settings.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::CString;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat2};
use stockade_model::{DeniedOperation, RawText};
use stockade_permissions::guards::view::last_component;
use stockade_sys::Errno;

use super::brokered_call::BrokeredCall;
use super::call_result::{CallProgress, CallResult};
use super::opens::{OpenRequest, finish_open};
use super::service::BrokerService;
use super::walk::ResolvedName;

/// Most names that are taken to be gone.
const MAX_REPORTED_REMOVALS: usize = 10_000;

/// Returns the program that makes a call.
pub(super) type ProgramLookup<'a> = &'a dyn Fn() -> Option<RawText>;

/// Names whose removal was reported to a program but not done: device and inode of the directory,
/// and the name.
#[derive(Default)]
pub(super) struct ReportedRemovals(RefCell<HashSet<(u64, u64, Vec<u8>)>>);

impl ReportedRemovals {
    fn compute_key(resolved: &ResolvedName) -> Result<(u64, u64, Vec<u8>), Errno> {
        let directory = fstat(&resolved.directory.fd)?;
        Ok((directory.st_dev, directory.st_ino, resolved.name.as_bytes().to_vec()))
    }

    fn note_removal(&self, resolved: &ResolvedName) -> Result<(), Errno> {
        let mut removals = self.0.borrow_mut();
        if removals.len() >= MAX_REPORTED_REMOVALS {
            return Err(Errno::NFILE);
        }
        removals.insert(Self::compute_key(resolved)?);
        Ok(())
    }

    /// Returns whether the removal of this name was reported to a program.
    pub fn has_removal(&self, resolved: &ResolvedName) -> bool {
        let removals = self.0.borrow();
        !removals.is_empty() && Self::compute_key(resolved).is_ok_and(|key| removals.contains(&key))
    }
}

impl BrokerService {
    /// Carries out the harmless part of a call that was refused to `program`, if the program can go
    /// on without the rest. The harmless part may be empty.
    pub(super) fn leave_out(&self, broker_call: &BrokeredCall, program: ProgramLookup<'_>) -> Option<CallProgress> {
        if let Some(step) = self.leave_code_out(broker_call) {
            return Some(step);
        }
        match broker_call {
            BrokeredCall::Open { resolved, open_request } if self.goes_on_without(resolved, program) => {
                self.write_nowhere(resolved, *open_request).ok()
            }
            BrokeredCall::Remove { resolved, flags }
                if !flags.contains(AtFlags::REMOVEDIR) && self.is_of_git(resolved, program) =>
            {
                self.pretend_removal(resolved).ok()
            }
            _ => None,
        }
    }

    /// Returns the addition to a refusal's rule for a call that was left out.
    pub(super) fn describe_omission(&self, broker_call: &BrokeredCall) -> &'static str {
        match broker_call {
            BrokeredCall::Open { resolved, .. } | BrokeredCall::Remove { resolved, .. }
                if !self.powers.is_in_dependencies(&resolved.path) =>
            {
                "; left out, as `git status` shows"
            }
            _ => "; left out",
        }
    }

    /// Keeps a file, and notes that its removal was reported.
    fn pretend_removal(&self, resolved: &ResolvedName) -> Result<CallProgress, Errno> {
        match FileType::from_raw_mode(fstat(resolved.open_nofollow()?)?.st_mode) {
            FileType::RegularFile => self.reported_removals.note_removal(resolved).map(|()| CallProgress::ZERO),
            _ => Err(Errno::ACCESS),
        }
    }

    fn goes_on_without(&self, resolved: &ResolvedName, program: ProgramLookup<'_>) -> bool {
        !resolved.special && self.powers.is_in_dependencies(&resolved.path) || self.is_of_git(resolved, program)
    }

    /// Returns whether git makes the call, in a work tree.
    fn is_of_git(&self, resolved: &ResolvedName, program: ProgramLookup<'_>) -> bool {
        let is_git = || program().is_some_and(|program| last_component(program.as_bytes()) == b"git");
        !resolved.special && self.powers.is_of_work_tree(&resolved.path) && is_git()
    }

    /// Opens a file without a name in place of a new file.
    fn write_nowhere(&self, resolved: &ResolvedName, open_request: OpenRequest) -> CallResult {
        if !open_request.is_creating()
            || open_request.only_reads()
            || resolved.open_nofollow().is_ok() && !self.reported_removals.has_removal(resolved)
        {
            return Err(Errno::ACCESS.into());
        }
        // At level full the guarded directory is mounted read-only, so the file is created in the
        // workspace directory.
        let first = self.first.as_ref().ok_or(Errno::ACCESS)?;
        let workspace = CString::new(self.powers.workspace()).map_err(|_| Errno::INVAL)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_bits_retain(open_request.mode_of_new().bits() & 0o777);
        let file = openat2(&first.root, workspace, flags, mode, ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS)?;
        finish_open(file, open_request)
    }

    /// Creates an empty directory for settings after a refusal: without files it sets nothing. The
    /// files that are left out would be in it.
    pub(super) fn make_empty(&self, broker_call: &BrokeredCall, program: ProgramLookup<'_>) -> Option<CallProgress> {
        let BrokeredCall::MakeDirectory { resolved, mode } = broker_call else { return None };
        if !self.powers.is_directory_of_settings(&resolved.path)
            || self.refusal_of_name(DeniedOperation::Mkdir, &resolved.path).is_some()
            || !self.goes_on_without(resolved, program)
        {
            return None;
        }
        mkdirat(self.through_name(resolved).directory, &resolved.name, *mode).ok().map(|()| CallProgress::ZERO)
    }
}
