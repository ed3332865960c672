//! Results of the surveys of a run's writable trees.

use std::collections::{BTreeSet, HashMap, HashSet};

use rustix::fs::{FileType, Stat};
use stockade_model::{DeniedOperation, NameList};

use super::git::{GlobalSettings, named_by_repository};
use super::git_part::GitPathKind;
use super::names::GuardedNames;
use super::repository::{self, KnownNameCheck, RepositoryState, TrustedParts};
use super::settings_cache::SettingsCache;
use super::survey::{SurveyError, survey_tree};
use super::view::{ObjectPresence, RootView, join_name, parent_path};
use crate::powers::{
    ExistsProbe, PermissionRefusal, is_at_or_beneath, prefix_ends, protected_refusal, replace_prefix, to_path,
};

/// Name of a path that is guarded although its own name is not, for refusals.
const LINK_TARGET_REASON: &str = "the target of a protected link";

/// Names that git obeys, follows or writes in the directory of a repository, except objects
/// (gitrepository-layout(5)).
const BARE_REPOSITORY_NAMES: NameList = NameList::new(include_str!("../../knowledge/git_repository_names.txt"));

/// Guarded paths of one tree.
#[derive(Debug, Default)]
pub struct GuardedPaths {
    /// Absolute paths; each is guarded with everything beneath it.
    pub(super) targets: BTreeSet<Vec<u8>>,
    /// Links with a meaning that depends on their location. A directory above one cannot be moved.
    pub(super) pins: BTreeSet<Vec<u8>>,
    /// Files, by device and inode, that have a guarded name and other names.
    pub(super) linked: HashSet<(u64, u64)>,
    /// Existing repositories, by device and inode of their directory.
    pub(super) repositories: HashMap<(u64, u64), RepositoryState>,
    /// Their directories.
    pub(super) directories: BTreeSet<Vec<u8>>,
    /// Those directories that are not called `.git`.
    pub(super) bare: BTreeSet<Vec<u8>>,
    /// Local paths that are addresses of their remotes.
    pub(super) addresses: BTreeSet<Vec<u8>>,
}

impl GuardedPaths {
    /// Returns the reason why the grant of the writable root of `root_length` bytes does not cover
    /// `path`.
    pub fn find_refusal(&self, root_length: usize, path: &[u8]) -> Option<PermissionRefusal> {
        if self.targets.is_empty() {
            return None;
        }
        let ends = prefix_ends(path).into_iter().rev().filter(|end| *end > root_length);
        let unit = ends.map(|end| &path[..end]).find(|prefix| self.targets.contains(*prefix))?;
        Some(protected_refusal(unit, LINK_TARGET_REASON))
    }

    /// Returns the paths beneath `from` with the prefix `to` instead.
    fn rename_prefix(self, from: &[u8], to: &[u8]) -> Self {
        let rename = |guarded_paths: BTreeSet<Vec<u8>>| {
            guarded_paths.iter().filter_map(|p| replace_prefix(p, from, to)).collect()
        };
        let (targets, pins, directories) = (rename(self.targets), rename(self.pins), rename(self.directories));
        let (addresses, bare) = (rename(self.addresses), rename(self.bare));
        Self { targets, pins, directories, addresses, bare, ..self }
    }

    /// Returns the reason why the directory at `path` must stay in place. A directory that is
    /// removed no longer contains a link.
    fn refusal_to_move(&self, path: &[u8], is_removed: bool) -> Option<PermissionRefusal> {
        let beneath = |guarded_paths: &BTreeSet<Vec<u8>>| {
            let start = [path, b"/"].concat();
            guarded_paths.range(start.clone()..).next().filter(|guarded_path| guarded_path.starts_with(&start)).cloned()
        };
        if let Some(target) = beneath(&self.targets) {
            return Some(protected_refusal(&target, LINK_TARGET_REASON));
        }
        let link = beneath(&self.pins).filter(|_| !is_removed)?;
        Some(PermissionRefusal::until_write(
            &link,
            "a directory that holds a protected link or a repository stays in place",
        ))
    }
}

/// Returns whether a survey failed because of a closed directory or file, which a run may open.
fn is_closed(survey: &Result<GuardedPaths, SurveyError>) -> bool {
    matches!(survey, Err(SurveyError::Closed(_) | SurveyError::Locked(_) | SurveyError::Unlisted(..)))
}

/// Returns a path, and the end of its links.
pub(super) fn with_end(view: RootView<'_>, guarded_path: &[u8]) -> Vec<Vec<u8>> {
    let end = view.resolve_path(guarded_path).map(|chain| chain.end).filter(|end| end != guarded_path);
    std::iter::once(guarded_path.to_vec()).chain(end).collect()
}

/// The surveys of a run, one for each writable root. Each is made when it is first needed.
#[derive(Debug, Default)]
pub struct RunSurveys {
    settings: Option<GlobalSettings>,
    /// Parts of a repository that git obeys or runs, including those named by the user's settings.
    parts: TrustedParts,
    /// Number of writable roots at the last check.
    roots: usize,
    trees: Vec<(Vec<u8>, Result<GuardedPaths, SurveyError>)>,
}

impl RunSurveys {
    fn found_paths(&self) -> impl Iterator<Item = &GuardedPaths> {
        self.trees.iter().filter_map(|(_, survey)| survey.as_ref().ok())
    }

    fn named_by_user(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.settings.iter().flat_map(|settings| settings.from_top.iter_paths())
    }

    /// Returns whether each of the writable `roots` was surveyed. Roots are only added, never
    /// removed.
    pub fn are_complete(&self, roots: &[Vec<u8>]) -> bool {
        self.roots == roots.len()
    }

    /// Surveys the new ones of the writable `roots`, each in its view.
    pub fn survey_new_roots<'v>(
        &mut self,
        view_of: impl Fn(&[u8]) -> RootView<'v>,
        names: &GuardedNames,
        roots: &[Vec<u8>],
    ) {
        if self.are_complete(roots) {
            return;
        }
        self.roots = roots.len();
        for root in roots {
            if !self.has_surveyed(root) {
                let found = self.survey_tree(view_of(root), (root, roots), names);
                self.trees.push((root.clone(), found));
            }
        }
    }

    /// Records that the run has made the file `path`, which has a meaning that depends on its
    /// location.
    pub fn pin_file(&mut self, path: &[u8]) {
        let of_path = self.trees.iter_mut().filter(|(root, _)| is_at_or_beneath(root, path));
        of_path
            .filter_map(|(_, found)| found.as_mut().ok())
            .for_each(|guarded_paths| _ = guarded_paths.pins.insert(path.to_vec()));
    }

    /// Records paths that the settings of a repository name as remotes.
    pub fn add_addresses(&mut self, view: RootView<'_>, addresses: &[Vec<u8>]) {
        let all: Vec<Vec<u8>> = addresses.iter().flat_map(|guarded_path| with_end(view, guarded_path)).collect();
        for (root, found) in &mut self.trees {
            let Ok(found) = found else { continue };
            found.addresses.extend(all.iter().filter(|guarded_path| is_at_or_beneath(root, guarded_path)).cloned());
        }
    }

    /// Returns the paths of remotes beneath `path`.
    pub fn addresses_beneath(&self, path: &[u8]) -> impl Iterator<Item = &Vec<u8>> {
        let is_beneath =
            move |guarded_path: &&Vec<u8>| guarded_path.len() > path.len() && is_at_or_beneath(path, guarded_path);
        self.found_paths().flat_map(|guarded_paths| &guarded_paths.addresses).filter(is_beneath)
    }

    /// Returns the reason why only a directory may be put at `path`: git fetches from there and
    /// would follow a file to its target. `path.git` is checked as well (`enter_repo` in git's
    /// path.c).
    pub fn refusal_at_address(&self, path: &[u8], also_above: bool) -> Option<PermissionRefusal> {
        let plain = path.strip_suffix(b".git").unwrap_or(path);
        let leads_here =
            |address: &Vec<u8>| address == path || address == plain || also_above && is_at_or_beneath(path, address);
        self.found_paths()
            .any(|guarded_paths| guarded_paths.addresses.iter().any(leads_here))
            .then(|| PermissionRefusal::until_write(path, "the path of a remote, from which git fetches"))
    }

    /// Guards the parts of a `workspace` that is itself a repository.
    pub fn guard_parts_of(&mut self, workspace: &[u8]) {
        let of_it = self.trees.iter_mut().filter(|(root, _)| root == workspace);
        for guarded_paths in of_it.filter_map(|(_, found)| found.as_mut().ok()) {
            if guarded_paths.bare.contains(workspace) {
                guarded_paths
                    .targets
                    .extend(BARE_REPOSITORY_NAMES.names().map(|part| join_name(workspace, part.as_bytes())));
            }
        }
    }

    /// Surveys a new tree with the path `inside` in the run, by its path on the host. Links and
    /// settings of the host contain the latter path. `host` is the host's root directory.
    pub fn complete_on_host(&mut self, host: RootView<'_>, names: &GuardedNames, inside: &[u8], tree: &[u8]) {
        let found = self.survey_tree(host, (tree, &[tree.to_vec()]), names);
        self.trees.push((inside.to_vec(), found.map(|guarded_paths| guarded_paths.rename_prefix(tree, inside))));
    }

    /// Returns whether the tree at `root` was surveyed.
    pub fn has_surveyed(&self, root: &[u8]) -> bool {
        self.trees.iter().any(|(known, _)| is_at_or_beneath(known, root))
    }

    fn survey_tree(
        &mut self,
        view: RootView<'_>,
        trees: (&[u8], &[Vec<u8>]),
        names: &GuardedNames,
    ) -> Result<GuardedPaths, SurveyError> {
        let settings = self.settings.get_or_insert_with(GlobalSettings::of_caller);
        self.parts = TrustedParts::with_hooks(settings.from_top.iter_paths());
        survey_tree(view, trees, names, (settings, &self.parts))
    }

    /// Returns the reason why `top` must not become a work tree of git: the user's settings would
    /// run or obey objects that exist there.
    pub fn refusal_of_work_tree(&self, view: RootView<'_>, top: &[u8]) -> Option<PermissionRefusal> {
        let is_there = |path: &&Vec<u8>| {
            let mut at = top.to_vec();
            for part in path.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b".")) {
                at = join_name(&at, part);
                match view.probe_object(&at) {
                    ObjectPresence::Is(FileType::Symlink) | ObjectPresence::Unknown => return true,
                    ObjectPresence::Is(_) if part == b".." => return true,
                    ObjectPresence::Is(_) => {}
                    ObjectPresence::Nothing => return false,
                }
            }
            true
        };
        let guarded_path = self.named_by_user().find(is_there)?;
        Some(protected_refusal(&join_name(top, guarded_path), LINK_TARGET_REASON))
    }

    /// Returns the reason to refuse this operation on `path`, if the user's settings name it, or an
    /// object beneath it, in every work tree. `exists` reports which directories are work trees.
    pub fn refusal_in_work_tree(
        &self,
        operation: DeniedOperation,
        root_length: usize,
        path: &[u8],
        exists: ExistsProbe<'_>,
    ) -> Option<PermissionRefusal> {
        let moves = matches!(operation, DeniedOperation::Rename | DeniedOperation::Symlink | DeniedOperation::Link);
        for named in self.named_by_user() {
            let named: Vec<&[u8]> = named.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
            for end in [0].into_iter().chain(prefix_ends(path)) {
                let beneath: Vec<&[u8]> = path[end..].split(|b| *b == b'/').skip(1).collect();
                let common = beneath.iter().zip(&named).take_while(|(one, other)| one == other).count();
                let is_named = common == named.len() || moves && common == beneath.len() && common > 0;
                let unit = join_name(&path[..end], &named.join(&b'/'));
                if is_named && unit.len() > root_length && exists(&to_path(&join_name(&path[..end], b".git"))) {
                    return Some(protected_refusal(&unit, LINK_TARGET_REASON));
                }
            }
        }
        None
    }

    /// Returns whether the settings of the repository in a directory name a path in its work tree
    /// with the top `top`, or cannot be read whole.
    pub fn names_in_work_tree(&self, view: RootView<'_>, repository: &[u8], top: &[u8]) -> bool {
        let cache = SettingsCache::new(self.settings.as_ref().and_then(|settings| settings.home.clone()));
        let named = named_by_repository(view, repository, top, &cache);
        named.map_or(true, |guarded_paths| {
            guarded_paths.iter_paths().any(|guarded_path| is_at_or_beneath(top, guarded_path))
        })
    }

    /// Returns whether `path` is in a tree that could not be surveyed because of a closed
    /// directory or file.
    pub fn are_closed(&self, path: &[u8]) -> bool {
        self.trees.iter().any(|(tree, survey)| is_closed(survey) && is_at_or_beneath(tree, path))
    }

    /// Forgets those trees. They are surveyed again before any operation in them.
    pub fn forget_closed(&mut self) {
        self.trees.retain(|(_, survey)| !is_closed(survey));
        self.roots = 0;
    }

    /// Returns the reason why a tree could not be surveyed.
    pub fn survey_error(&self) -> Option<&SurveyError> {
        self.trees.iter().find_map(|(_, survey)| survey.as_ref().err())
    }

    /// Returns the guarded paths at and beneath `root`, and the directories that are repositories.
    pub fn guarded_beneath(&self, root: &[u8]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let (mut guarded_paths, mut repositories) = (Vec::new(), Vec::new());
        for found in self.found_paths() {
            guarded_paths
                .extend(found.targets.iter().filter(|guarded_path| is_at_or_beneath(root, guarded_path)).cloned());
            repositories
                .extend(found.directories.iter().filter(|guarded_path| is_at_or_beneath(root, guarded_path)).cloned());
        }
        (guarded_paths, repositories)
    }

    /// Returns the kind of `path` in a repository that is not called `.git` and is beneath the
    /// writable root of `root_length` bytes.
    pub fn bare_part(&self, root_length: usize, path: &[u8]) -> Option<GitPathKind> {
        if self.found_paths().all(|guarded_paths| guarded_paths.bare.is_empty()) {
            return None;
        }
        let mut ends = prefix_ends(path).into_iter().filter(|end| *end > root_length);
        let end =
            ends.find(|end| self.found_paths().any(|guarded_paths| guarded_paths.bare.contains(&path[..*end])))?;
        Some(GitPathKind::in_bare(&path[end..]))
    }

    /// Returns the parts of a repository that git obeys or runs.
    pub fn trusted_parts(&self) -> &TrustedParts {
        &self.parts
    }

    /// Returns the reason why the grant of the writable root of `root_length` bytes does not cover
    /// `path`.
    pub fn find_refusal(&self, root_length: usize, path: &[u8]) -> Option<PermissionRefusal> {
        self.trees.iter().find_map(|(tree, survey)| match survey {
            Ok(guarded_paths) => guarded_paths.find_refusal(root_length, path),
            Err(error) => (root_length <= tree.len() && is_at_or_beneath(tree, path))
                .then(|| PermissionRefusal::until_write(path, error.to_string())),
        })
    }

    /// As [`find_refusal`](Self::find_refusal), also for the parts of repositories that the user's settings
    /// name, beside those that are always trusted.
    pub fn refusal_of(
        &self,
        creates: bool,
        root_length: usize,
        path: &[u8],
        (is_known, probe): (KnownNameCheck<'_>, ExistsProbe<'_>),
    ) -> Option<PermissionRefusal> {
        self.find_refusal(root_length, path).or_else(|| {
            let parts = self.parts.named_by_settings()?;
            repository::guarded_part(creates, root_length, path, (parts, is_known), probe)
                .map(repository::refuse_change)
        })
    }

    /// Returns the reason why the directory at `path` must stay in place or must not be removed
    /// when empty.
    pub fn refusal_to_move(&self, path: &[u8], is_removed: bool) -> Option<PermissionRefusal> {
        self.found_paths().find_map(|guarded_paths| guarded_paths.refusal_to_move(path, is_removed))
    }

    /// Returns the state of the repository in the directory of `path` when it was surveyed.
    pub fn repository_state(&self, view: RootView<'_>, path: &[u8]) -> Option<RepositoryState> {
        let stat = view.stat_path(parent_path(path)).ok()?;
        let key = (stat.st_dev, stat.st_ino);
        self.found_paths().find_map(|guarded_paths| guarded_paths.repositories.get(&key).copied())
    }

    /// Returns whether a file of the trees has a guarded name and other names.
    pub fn has_linked(&self) -> bool {
        self.found_paths().any(|guarded_paths| !guarded_paths.linked.is_empty())
    }

    /// Returns whether this file has a guarded name and other names.
    pub fn is_linked(&self, stat: &Stat) -> bool {
        let key = (stat.st_dev, stat.st_ino);
        self.found_paths().any(|guarded_paths| guarded_paths.linked.contains(&key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_model::Grant;

    #[test]
    fn targets_include_descendants_and_protect_ancestors() {
        let mut guarded_paths = GuardedPaths::default();
        guarded_paths.targets.insert(b"/ws/real/vs".to_vec());
        guarded_paths.pins.insert(b"/ws/sub/.cargo".to_vec());
        let refused = |path: &str| guarded_paths.find_refusal(3, path.as_bytes()).map(|refusal| refusal.grant);
        let grant = |path: &str| Some(Some(Grant::Write(path.into())));
        assert_eq!(refused("/ws/real/vs/tasks.json"), grant("/ws/real/vs"));
        assert_eq!(refused("/ws/real/vs"), grant("/ws/real/vs"));
        assert_eq!(refused("/ws/real/vsx"), None);
        assert!(
            guarded_paths.find_refusal(b"/ws/real/vs".len(), b"/ws/real/vs/x").is_none(),
            "a grant for the place itself"
        );
        let stays = |path: &str| guarded_paths.refusal_to_move(path.as_bytes(), false).is_some();
        assert!(stays("/ws/real") && stays("/ws/sub") && stays("/ws"));
        let removed = |path: &str| guarded_paths.refusal_to_move(path.as_bytes(), true).is_some();
        assert!(removed("/ws/real") && !removed("/ws/sub"));
        assert!(!stays("/ws/real/vs") && !stays("/ws/sub/.cargo") && !stays("/ws/su"));
    }
}
