//! Results of the surveys of a run's writable trees.

use std::collections::{BTreeSet, HashMap, HashSet};

use rustix::fs::{FileType, Stat};
use stockade_model::{Grant, Operation};

use super::git::{GlobalSettings, named_by_repository};
use super::git_part::GitPart;
use super::names::GuardedNames;
use super::repository::{self, IsKnown, RepositoryState, TrustedParts};
use super::settings_cache::SettingsCache;
use super::survey::{SurveyError, survey};
use super::view::{There, View, join, parent};
use crate::powers::{Probe, Refusal, covers, prefix_ends, protected, renamed, to_path};

/// Name of a path that is guarded although its own name is not, for refusals.
const TARGET: &str = "the target of a protected link";

/// Names that git obeys, follows or writes in the directory of a repository, except objects
/// (gitrepository-layout(5)).
const BARE_PARTS: [&str; 20] = [
    "FETCH_HEAD",
    "HEAD",
    "ORIG_HEAD",
    "branches",
    "commondir",
    "config",
    "config.worktree",
    "gc.log",
    "gc.pid",
    "hooks",
    "info",
    "logs",
    "modules",
    "packed-refs",
    "packed-refs.lock",
    "packed-refs.new",
    "refs",
    "remotes",
    "shallow",
    "worktrees",
];

/// Guarded paths of one tree.
#[derive(Debug, Default)]
pub(crate) struct GuardedPlaces {
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

impl GuardedPlaces {
    /// Returns the reason why the grant of the writable root of `root_length` bytes does not cover
    /// `path`.
    pub(crate) fn refusal(&self, root_length: usize, path: &[u8]) -> Option<Refusal> {
        if self.targets.is_empty() {
            return None;
        }
        let ends = prefix_ends(path).into_iter().rev().filter(|end| *end > root_length);
        let unit = ends.map(|end| &path[..end]).find(|prefix| self.targets.contains(*prefix))?;
        Some(protected(unit, TARGET))
    }

    /// Returns the paths beneath `from` with the prefix `to` instead.
    fn renamed(self, from: &[u8], to: &[u8]) -> Self {
        let rename = |places: BTreeSet<Vec<u8>>| places.iter().filter_map(|p| renamed(p, from, to)).collect();
        let (targets, pins, directories) = (rename(self.targets), rename(self.pins), rename(self.directories));
        let (addresses, bare) = (rename(self.addresses), rename(self.bare));
        Self { targets, pins, directories, addresses, bare, ..self }
    }

    /// Returns the reason why the directory at `path` must stay in place. A directory that is
    /// removed no longer contains a link.
    fn stays(&self, path: &[u8], is_removed: bool) -> Option<Refusal> {
        let beneath = |places: &BTreeSet<Vec<u8>>| {
            let start = [path, b"/"].concat();
            places.range(start.clone()..).next().filter(|place| place.starts_with(&start)).cloned()
        };
        if let Some(target) = beneath(&self.targets) {
            return Some(protected(&target, TARGET));
        }
        let link = beneath(&self.pins).filter(|_| !is_removed)?;
        Some(Refusal {
            rule: "a directory that holds a protected link or a repository stays in place".to_owned(),
            grant: Some(Grant::Write(to_path(&link))),
        })
    }
}

/// Returns whether a survey failed because of a closed directory or file, which a run may open.
fn is_closed(survey: &Result<GuardedPlaces, SurveyError>) -> bool {
    matches!(survey, Err(SurveyError::Closed(_) | SurveyError::Locked(_) | SurveyError::Unlisted(..)))
}

/// Returns a path, and the end of its links.
pub(super) fn with_end(view: View<'_>, place: &[u8]) -> Vec<Vec<u8>> {
    let end = view.resolve(place).map(|chain| chain.end).filter(|end| end != place);
    std::iter::once(place.to_vec()).chain(end).collect()
}

/// The surveys of a run, one for each writable root. Each is made when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Surveys {
    settings: Option<GlobalSettings>,
    /// Parts of a repository that git obeys or runs, including those named by the user's settings.
    parts: TrustedParts,
    /// Number of writable roots at the last check.
    roots: usize,
    trees: Vec<(Vec<u8>, Result<GuardedPlaces, SurveyError>)>,
}

impl Surveys {
    /// Returns whether each of the writable `roots` was surveyed. Roots are only added, never
    /// removed.
    pub(crate) fn are_complete(&self, roots: &[Vec<u8>]) -> bool {
        self.roots == roots.len()
    }

    /// Surveys the new ones of the writable `roots`, each in its view.
    pub(crate) fn complete<'v>(
        &mut self,
        view_of: impl Fn(&[u8]) -> View<'v>,
        names: &GuardedNames,
        roots: &[Vec<u8>],
    ) {
        if self.are_complete(roots) {
            return;
        }
        self.roots = roots.len();
        for root in roots {
            if !self.knows(root) {
                let found = self.survey(view_of(root), (root, roots), names);
                self.trees.push((root.clone(), found));
            }
        }
    }

    /// Records that the run has made the file `path`, which has a meaning that depends on its
    /// location.
    pub(crate) fn pin(&mut self, path: &[u8]) {
        let of_path = self.trees.iter_mut().filter(|(root, _)| covers(root, path));
        for places in of_path.filter_map(|(_, found)| found.as_mut().ok()) {
            places.pins.insert(path.to_vec());
        }
    }

    /// Records paths that the settings of a repository name as remotes.
    pub(crate) fn add_addresses(&mut self, view: View<'_>, addresses: &[Vec<u8>]) {
        let all: Vec<Vec<u8>> = addresses.iter().flat_map(|place| with_end(view, place)).collect();
        for (root, found) in &mut self.trees {
            let Ok(found) = found else { continue };
            found.addresses.extend(all.iter().filter(|place| covers(root, place)).cloned());
        }
    }

    /// Returns the paths of remotes beneath `path`.
    pub(crate) fn addresses_beneath(&self, path: &[u8]) -> impl Iterator<Item = &Vec<u8>> {
        let found = self.trees.iter().filter_map(|(_, survey)| survey.as_ref().ok());
        let is_beneath = move |place: &&Vec<u8>| place.len() > path.len() && covers(path, place);
        found.flat_map(|places| &places.addresses).filter(is_beneath)
    }

    /// Returns the reason why only a directory may be put at `path`: git fetches from there and
    /// would follow a file to its target. `path.git` is checked as well (`enter_repo` in git's
    /// path.c).
    pub(crate) fn refusal_at_address(&self, path: &[u8], also_above: bool) -> Option<Refusal> {
        let plain = path.strip_suffix(b".git").unwrap_or(path);
        let leads_here = |address: &Vec<u8>| address == path || address == plain || also_above && covers(path, address);
        let mut found = self.trees.iter().filter_map(|(_, survey)| survey.as_ref().ok());
        found.any(|places| places.addresses.iter().any(leads_here)).then(|| Refusal {
            rule: "the place of a remote, from which git fetches".to_owned(),
            grant: Some(Grant::Write(to_path(path))),
        })
    }

    /// Guards the parts of a `workspace` that is itself a repository.
    pub(crate) fn guard_parts_of(&mut self, workspace: &[u8]) {
        let of_it = self.trees.iter_mut().filter(|(root, _)| root == workspace);
        for places in of_it.filter_map(|(_, found)| found.as_mut().ok()) {
            if places.bare.contains(workspace) {
                places.targets.extend(BARE_PARTS.iter().map(|part| join(workspace, part.as_bytes())));
            }
        }
    }

    /// Surveys a new tree with the path `inside` in the run, by its path on the host. Links and
    /// settings of the host contain the latter path. `host` is the host's root directory.
    pub(crate) fn complete_on_host(&mut self, host: View<'_>, names: &GuardedNames, inside: &[u8], tree: &[u8]) {
        let found = self.survey(host, (tree, &[tree.to_vec()]), names);
        self.trees.push((inside.to_vec(), found.map(|places| places.renamed(tree, inside))));
    }

    /// Returns whether the tree at `root` was surveyed.
    pub(crate) fn knows(&self, root: &[u8]) -> bool {
        self.trees.iter().any(|(known, _)| covers(known, root))
    }

    fn survey(
        &mut self,
        view: View<'_>,
        trees: (&[u8], &[Vec<u8>]),
        names: &GuardedNames,
    ) -> Result<GuardedPlaces, SurveyError> {
        let settings = self.settings.get_or_insert_with(GlobalSettings::of_caller);
        self.parts = TrustedParts::with_hooks(settings.from_top.all());
        survey(view, trees, names, (settings, &self.parts))
    }

    /// Returns the reason why `top` must not become a work tree of git: the user's settings would
    /// run or obey objects that exist there.
    pub(crate) fn refusal_of_work_tree(&self, view: View<'_>, top: &[u8]) -> Option<Refusal> {
        let named = self.settings.iter().flat_map(|settings| settings.from_top.all());
        let is_there = |path: &&Vec<u8>| {
            let mut at = top.to_vec();
            for part in path.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b".")) {
                at = join(&at, part);
                match view.there(&at) {
                    There::Is(FileType::Symlink) | There::Unknown => return true,
                    There::Is(_) if part == b".." => return true,
                    There::Is(_) => {}
                    There::Nothing => return false,
                }
            }
            true
        };
        let place = named.into_iter().find(is_there)?;
        Some(protected(&join(top, place), TARGET))
    }

    /// Returns the reason to refuse this operation on `path`, if the user's settings name it, or an
    /// object beneath it, in every work tree. `exists` reports which directories are work trees.
    pub(crate) fn refusal_in_work_tree(
        &self,
        operation: Operation,
        root_length: usize,
        path: &[u8],
        exists: Probe<'_>,
    ) -> Option<Refusal> {
        let moves = matches!(operation, Operation::Rename | Operation::Symlink | Operation::Link);
        for named in self.settings.iter().flat_map(|settings| settings.from_top.all()) {
            let named: Vec<&[u8]> = named.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
            for end in [0].into_iter().chain(prefix_ends(path)) {
                let beneath: Vec<&[u8]> = path[end..].split(|b| *b == b'/').skip(1).collect();
                let common = beneath.iter().zip(&named).take_while(|(one, other)| one == other).count();
                let is_named = common == named.len() || moves && common == beneath.len() && common > 0;
                let unit = join(&path[..end], &named.join(&b'/'));
                if is_named && unit.len() > root_length && exists(&to_path(&join(&path[..end], b".git"))) {
                    return Some(protected(&unit, TARGET));
                }
            }
        }
        None
    }

    /// Returns whether the settings of the repository in a directory name a path in its work tree
    /// with the top `top`, or cannot be read whole.
    pub(crate) fn names_in_work_tree(&self, view: View<'_>, repository: &[u8], top: &[u8]) -> bool {
        let cache = SettingsCache::new(self.settings.as_ref().and_then(|settings| settings.home.clone()));
        let named = named_by_repository(view, repository, top, &cache);
        named.map_or(true, |places| places.all().any(|place| covers(top, place)))
    }

    /// Returns whether `path` is in a tree that could not be surveyed because of a closed
    /// directory or file.
    pub(crate) fn are_closed(&self, path: &[u8]) -> bool {
        self.trees.iter().any(|(tree, survey)| is_closed(survey) && covers(tree, path))
    }

    /// Forgets those trees. They are surveyed again before any operation in them.
    pub(crate) fn forget_closed(&mut self) {
        self.trees.retain(|(_, survey)| !is_closed(survey));
        self.roots = 0;
    }

    /// Returns the reason why a tree could not be surveyed.
    pub(crate) fn error(&self) -> Option<&SurveyError> {
        self.trees.iter().find_map(|(_, survey)| survey.as_ref().err())
    }

    /// Returns the guarded paths at and beneath `root`, and the directories that are repositories.
    pub(crate) fn beneath(&self, root: &[u8]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let (mut places, mut repositories) = (Vec::new(), Vec::new());
        for found in self.trees.iter().filter_map(|(_, survey)| survey.as_ref().ok()) {
            places.extend(found.targets.iter().filter(|place| covers(root, place)).cloned());
            repositories.extend(found.directories.iter().filter(|place| covers(root, place)).cloned());
        }
        (places, repositories)
    }

    /// Returns the kind of `path` in a repository that is not called `.git` and is beneath the
    /// writable root of `root_length` bytes.
    pub(crate) fn bare_part(&self, root_length: usize, path: &[u8]) -> Option<GitPart> {
        let found = || self.trees.iter().filter_map(|(_, survey)| survey.as_ref().ok());
        if found().all(|places| places.bare.is_empty()) {
            return None;
        }
        let mut ends = prefix_ends(path).into_iter().filter(|end| *end > root_length);
        let end = ends.find(|end| found().any(|places| places.bare.contains(&path[..*end])))?;
        Some(GitPart::in_bare(&path[end..]))
    }

    /// Returns the parts of a repository that git obeys or runs.
    pub(crate) fn parts(&self) -> &TrustedParts {
        &self.parts
    }

    /// Returns the reason why the grant of the writable root of `root_length` bytes does not cover
    /// `path`.
    pub(crate) fn refusal(&self, root_length: usize, path: &[u8]) -> Option<Refusal> {
        self.trees.iter().find_map(|(tree, survey)| match survey {
            Ok(places) => places.refusal(root_length, path),
            Err(error) => (root_length <= tree.len() && covers(tree, path))
                .then(|| Refusal { rule: error.to_string(), grant: Some(Grant::Write(to_path(path))) }),
        })
    }

    /// As [`refusal`](Self::refusal), also for the parts of repositories that the user's settings
    /// name, beside those that are always trusted.
    pub(crate) fn refusal_of(
        &self,
        creates: bool,
        root_length: usize,
        path: &[u8],
        (is_known, probe): (IsKnown<'_>, Probe<'_>),
    ) -> Option<Refusal> {
        self.refusal(root_length, path).or_else(|| {
            let parts = self.parts.named_by_settings()?;
            repository::guarded_part(creates, root_length, path, (parts, is_known), probe).map(repository::refusal)
        })
    }

    /// Returns the reason why the directory at `path` must stay in place or must not be removed
    /// when empty.
    pub(crate) fn stays(&self, path: &[u8], is_removed: bool) -> Option<Refusal> {
        let surveys = self.trees.iter().filter_map(|(_, survey)| survey.as_ref().ok());
        surveys.into_iter().find_map(|places| places.stays(path, is_removed))
    }

    /// Returns the state of the repository in the directory of `path` when it was surveyed.
    pub(crate) fn repository(&self, view: View<'_>, path: &[u8]) -> Option<RepositoryState> {
        let stat = view.stat(parent(path)).ok()?;
        let key = (stat.st_dev, stat.st_ino);
        self.trees.iter().find_map(|(_, survey)| survey.as_ref().ok()?.repositories.get(&key).copied())
    }

    /// Returns whether a file of the trees has a guarded name and other names.
    pub(crate) fn has_linked(&self) -> bool {
        self.trees.iter().any(|(_, survey)| survey.as_ref().is_ok_and(|places| !places.linked.is_empty()))
    }

    /// Returns whether this file has a guarded name and other names.
    pub(crate) fn is_linked(&self, stat: &Stat) -> bool {
        let key = (stat.st_dev, stat.st_ino);
        self.trees.iter().any(|(_, survey)| survey.as_ref().is_ok_and(|places| places.linked.contains(&key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_reach_down_and_hold_what_is_above() {
        let mut places = GuardedPlaces::default();
        places.targets.insert(b"/ws/real/vs".to_vec());
        places.pins.insert(b"/ws/sub/.cargo".to_vec());
        let refused = |path: &str| places.refusal(3, path.as_bytes()).map(|refusal| refusal.grant);
        let grant = |path: &str| Some(Some(Grant::Write(path.into())));
        assert_eq!(refused("/ws/real/vs/tasks.json"), grant("/ws/real/vs"));
        assert_eq!(refused("/ws/real/vs"), grant("/ws/real/vs"));
        assert_eq!(refused("/ws/real/vsx"), None);
        assert!(places.refusal(b"/ws/real/vs".len(), b"/ws/real/vs/x").is_none(), "a grant for the place itself");
        let stays = |path: &str| places.stays(path.as_bytes(), false).is_some();
        assert!(stays("/ws/real") && stays("/ws/sub") && stays("/ws"));
        let removed = |path: &str| places.stays(path.as_bytes(), true).is_some();
        assert!(removed("/ws/real") && !removed("/ws/sub"));
        assert!(!stays("/ws/real/vs") && !stays("/ws/sub/.cargo") && !stays("/ws/su"));
    }
}
