//! Evidence of events that no trapped call shows: a hidden path was opened, or the private
//! temporary directory was full. It must not know its readers.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::inotify::{ReadFlags, Reader};
use stockade_launch::HiddenReads;
use stockade_model::{AttemptPlan, Denial, DenialLayer, DeniedOperation, Grant, RawText};

use crate::own_trees::NamedPaths;

/// Most distinct hidden paths that are reported for one attempt.
const MAX_HIDDEN_PATHS: usize = 256;

/// Reports openings of hidden paths. It watches the placeholders that hide them. Inotify does not
/// report which process opened them.
#[derive(Debug)]
pub(crate) struct HiddenWatch {
    reads: HiddenReads,
    revealed: Vec<PathBuf>,
    reported_paths: BTreeSet<PathBuf>,
}

impl HiddenWatch {
    pub(crate) fn new(reads: HiddenReads, plan: &AttemptPlan) -> Self {
        let revealed = plan.profile.filesystem.reveal.iter().map(|p| p.as_path().to_owned()).collect();
        Self { reads, revealed, reported_paths: BTreeSet::new() }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.reads.inotify.as_fd()
    }

    /// Returns the openings since the last call, each path once per attempt.
    pub(crate) fn take_denials(&mut self) -> Vec<Denial> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.reads.inotify, &mut buffer);
        let mut denials = Vec::new();
        while let Ok(event) = reader.next() {
            // Inotify also reports the end of the mount.
            if !event.events().contains(ReadFlags::OPEN) {
                continue;
            }
            let index = usize::try_from(event.wd()).ok().and_then(|wd| wd.checked_sub(1));
            let Some(hidden) = index.and_then(|i| self.reads.paths.get(i)) else { continue };
            let object = match event.file_name() {
                Some(name) => hidden.join(OsStr::from_bytes(name.to_bytes())),
                None => hidden.clone(),
            };
            let shown = self.revealed.iter().any(|path| object.starts_with(path));
            if shown || self.reported_paths.len() >= MAX_HIDDEN_PATHS || !self.reported_paths.insert(object.clone()) {
                continue;
            }
            denials.push(read_denial(object));
        }
        denials
    }
}

fn read_denial(object: PathBuf) -> Denial {
    let (shown, rule) = (RawText::from(object.as_path()), "hidden from runs".to_owned());
    Denial::of_unknown_process(DeniedOperation::Read, shown, DenialLayer::Mounts, rule, Some(Grant::Read(object)))
}

/// Reports at the end if the private temporary directory was full, and which of its paths the
/// command named.
#[derive(Debug)]
pub(crate) struct TempWatch {
    temp: OwnedFd,
    named: NamedPaths,
}

impl TempWatch {
    pub(crate) fn new(temp: OwnedFd, plan: &AttemptPlan) -> Self {
        Self { temp, named: NamedPaths::from_plan(plan) }
    }

    /// Returns the denials. Files that were made and removed meanwhile are not seen.
    pub(crate) fn into_denials(self) -> Vec<Denial> {
        let full = self.check_full();
        let named = self.named.check_paths(self.temp.as_fd());
        full.into_iter().chain(named).collect()
    }

    /// Returns a denial if no more can be written.
    fn check_full(&self) -> Option<Denial> {
        let space = rustix::fs::fstatvfs(&self.temp).ok()?;
        if space.f_blocks == 0 || space.f_bavail > 0 && space.f_favail > 0 {
            return None;
        }
        let bytes = space.f_blocks.saturating_mul(space.f_frsize);
        let rule = format!("the private temp holds {bytes} bytes and was full at the end");
        let object = RawText::from("private temp");
        Some(Denial::of_unknown_process(DeniedOperation::Limit, object, DenialLayer::Limits, rule, None))
    }
}
