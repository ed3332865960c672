//! Files of the project that run code later and were written, to be named at the end. It
//! decides nothing.

use std::cell::RefCell;
use std::collections::BTreeSet;

use stockade_model::{RawText, is_project_file};

use super::service::Service;
use crate::powers::to_path;

/// So many are named.
const MAX_NAMED: usize = 200;

/// The paths of those that were written.
#[derive(Default)]
pub(super) struct ProjectFiles(RefCell<BTreeSet<Vec<u8>>>);

impl Service {
    /// Notes that something was written, or got its name, at `path`.
    pub(super) fn note_written(&self, path: &[u8]) {
        let Some(beneath) = self.powers.beneath_workspace(path) else { return };
        let mut noted = self.project_files.0.borrow_mut();
        if noted.len() < MAX_NAMED && is_project_file(beneath) && !noted.contains(path) {
            noted.insert(path.to_vec());
        }
    }

    /// Those that are still there.
    pub(super) fn project_files_written(&self) -> Vec<RawText> {
        let noted = std::mem::take(&mut *self.project_files.0.borrow_mut());
        noted.into_iter().filter(|path| self.exists(&to_path(path))).map(RawText::from).collect()
    }
}
