//! Classification of names: guarded, checked by content, or known to be harmless.

use stockade_model::{DeniedOperation, NameList};

use super::{AttemptPermissions, is_at_or_beneath, prefix_ends};
use crate::guards::fold_name;
use crate::guards::git_part::{GitPathKind, GuardedContent};
use crate::guards::project_part::{ProjectPathKind, is_in_dependencies};

/// Settings directories of editors, agents and hooks. Their content is guarded; an empty one has no
/// effect.
const SETTINGS_DIRECTORIES: NameList = NameList::new(include_str!("../../knowledge/settings_directories.txt"));

impl AttemptPermissions {
    /// Returns the kind of `path` in the directory of a repository, the parts of which are checked
    /// by name and content. Returns `None` if it is guarded or free like any other name.
    pub fn git_part(&self, path: &[u8]) -> Option<GitPathKind> {
        if !self.checks_content_at(path) {
            return None;
        }
        let root = self.writable.deepest(path)?.len();
        let (top, part) = GitPathKind::classify_path(path, root)?;
        (self.names.find_match(&path[..top]).is_some() && !self.is_guarded_above(path, root, top)).then_some(part)
    }

    /// Returns how content that gets the name `path` is checked, if it is.
    pub fn content_rule_at(&self, path: &[u8]) -> Option<GuardedContent> {
        if let Some(part) = self.git_part(path) {
            return part.guarded_content();
        }
        if path.ends_with(b"/.gitmodules") && self.checks_content_at(path) {
            let root = self.writable.deepest(path)?.len();
            return (!self.is_guarded_above(path, root, path.len())).then_some(GuardedContent::Modules);
        }
        match self.project_part(path)? {
            ProjectPathKind::File(file) => Some(GuardedContent::Project(file)),
            ProjectPathKind::Directory | ProjectPathKind::Passing => None,
        }
    }

    /// Returns the kind of `path` among the settings of a project, if these are guarded.
    fn checks_content_at(&self, path: &[u8]) -> bool {
        self.checks_content && !self.is_staged(path) && !self.in_private_tree(path)
    }

    fn project_part(&self, path: &[u8]) -> Option<ProjectPathKind> {
        let root = self.writable.deepest(path)?.len();
        let (unit, part) = ProjectPathKind::classify_path(path, root)?;
        let is_checked = self.checks_content_at(path);
        // The broker does not read hidden files on behalf of any process.
        let is_checked = is_checked && self.hidden_refusal(path).is_none();
        // A profile may guard one of the files by its own name.
        let has_own_name = unit < path.len() && self.names.find_match(path).is_some();
        let is_unit = self.names.find_match(&path[..unit]).is_some() && !self.is_guarded_above(path, root, unit);
        (is_checked && is_unit && !has_own_name).then_some(part)
    }

    /// Returns whether the name of `path` decides on its kind, whatever is beside it.
    pub fn is_known_part(&self, path: &[u8]) -> bool {
        self.git_part(path).is_some_and(|part| !part.is_in_store() && part != GitPathKind::Guarded)
    }

    /// Returns whether a prefix of `path` that ends beneath the root and before byte `end` is
    /// guarded.
    fn is_guarded_above(&self, path: &[u8], root: usize, end: usize) -> bool {
        prefix_ends(path).into_iter().any(|at| at > root && at < end && self.names.find_match(&path[..at]).is_some())
    }

    /// Returns whether `path` is a file of a project's settings that is checked by its content.
    pub fn is_project_settings(&self, path: &[u8]) -> bool {
        matches!(self.project_part(path), Some(ProjectPathKind::File(_)))
    }

    /// Returns whether `path` is, or is within, an object with a guarded name, granted or not.
    pub fn has_guarded_name(&self, path: &[u8]) -> bool {
        if self.git_part(path).is_some_and(GitPathKind::is_free) {
            return false;
        }
        let above = if is_at_or_beneath(&self.workspace, path) { self.workspace.len() } else { 0 };
        prefix_ends(path).into_iter().any(|end| end > above && self.names.find_match(&path[..end]).is_some())
    }

    /// Returns whether `path` is in a writable root, and in no directory that a version control
    /// system or the engine has for itself.
    pub fn is_of_work_tree(&self, path: &[u8]) -> bool {
        const VERSION_CONTROL_NAMES: [&[u8]; 5] = [b".git", b".hg", b".svn", b".jj", b".stockade"];
        let beneath = self.root_length(path).map(|length| &path[length..]);
        !self.is_staged(path)
            && !self.in_private_tree(path)
            && beneath.is_some_and(|beneath| {
                beneath
                    .split(|b| *b == b'/')
                    .all(|name| !VERSION_CONTROL_NAMES.iter().any(|own| fold_name(name) == *own))
            })
    }

    /// Returns whether `path` is, or is within, a settings directory of an editor or an agent, with
    /// no other guarded name above it. The mere existence of such a directory has no effect.
    pub fn is_directory_of_settings(&self, path: &[u8]) -> bool {
        let Some(length) = self.root_length(path) else { return false };
        let mut units = prefix_ends(path)
            .into_iter()
            .filter(|end| *end > length)
            .filter_map(|end| self.names.find_match(&path[..end]));
        self.is_of_work_tree(path)
            && units.next().is_some_and(|unit| SETTINGS_DIRECTORIES.contains(unit))
            && units.next().is_none()
    }

    /// Returns whether `path` is in a directory of dependencies. Settings there do not belong to
    /// the users of the project.
    pub fn is_in_dependencies(&self, path: &[u8]) -> bool {
        self.is_of_work_tree(path) && self.root_length(path).is_some_and(|length| is_in_dependencies(path, length))
    }

    /// Returns whether the name of `path` permits this operation, guarded or not.
    pub(super) fn permits_by_name(&self, operation: DeniedOperation, path: &[u8]) -> bool {
        match self.git_part(path) {
            Some(part) => part.allows_operation(operation),
            None => match self.project_part(path) {
                Some(part) => part.allows_operation(operation),
                // As for checked content in the directory of a repository.
                None => operation == DeniedOperation::Remove && self.content_rule_at(path).is_some(),
            },
        }
    }

    /// Returns the deepest protected unit strictly beneath `root` that contains `path`.
    pub(super) fn find_protected_unit<'p>(&self, root: &[u8], path: &'p [u8]) -> Option<(&'p [u8], String)> {
        let mut ends = prefix_ends(path);
        ends.reverse();
        for end in ends.into_iter().filter(|end| *end > root.len()) {
            let prefix = &path[..end];
            if let Some(name) = self.names.find_match(prefix) {
                return Some((prefix, name));
            }
        }
        None
    }
}
