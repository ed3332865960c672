//! Records which project files that run code later were written, for the report at the end. This
//! module decides nothing.

use std::cell::RefCell;
use std::collections::BTreeSet;

use stockade_model::{RawText, is_project_file};
use stockade_permissions::powers::to_path;

use super::service::BrokerService;

/// Most files that are named.
const MAX_NAMED_FILES: usize = 200;

/// Paths of the written files.
#[derive(Default)]
pub(super) struct WrittenProjectFiles(RefCell<BTreeSet<Vec<u8>>>);

impl BrokerService {
    /// Notes that the file at `path` was written or got this name.
    pub(super) fn note_written(&self, path: &[u8]) {
        let Some(beneath) = self.powers.beneath_workspace(path) else { return };
        let mut noted = self.project_files.0.borrow_mut();
        if noted.len() < MAX_NAMED_FILES && is_project_file(beneath) && !noted.contains(path) {
            noted.insert(path.to_vec());
        }
    }

    /// Returns the written files that still exist.
    pub(super) fn project_files_written(&self) -> Vec<RawText> {
        let noted = std::mem::take(&mut *self.project_files.0.borrow_mut());
        noted.into_iter().filter(|path| self.exists_in_view(&to_path(path))).map(RawText::from).collect()
    }
}
