//! Directories that git takes for a repository by their content, under any name (`is_git_directory`
//! in git's setup.c). The content is a `HEAD`, and `objects` and `refs` or a `commondir` with their
//! location. Git obeys their settings and runs their hooks. It writes to the targets of their
//! references and links, and fetches from the addresses in their `remotes`. A run makes no such
//! directory and changes no existing one. Pure: a probe reports which paths exist.

use std::path::Path;

use super::view::{last_component, parent_path};
use crate::powers::{ExistsProbe, PermissionRefusal, prefix_ends, to_path};

/// Names that make a repository, beside `commondir`.
const MARKER_NAMES: [&str; 3] = ["HEAD", "objects", "refs"];
/// Parts of a repository that git obeys or runs.
const TRUSTED_NAMES: [&str; 5] = ["config", "config.worktree", "hooks", "commondir", "info"];

/// Returns whether a name has rules of its own.
pub type KnownNameCheck<'a> = &'a dyn Fn(&[u8]) -> bool;

/// Most directories of hooks that are guarded.
const MAX_HOOKS: usize = 120;

/// Parts of a repository that a directory contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepositoryState {
    is_repository: bool,
    /// Existing parts that git obeys or runs, one bit for each.
    trusted: u128,
}

/// Parts of a repository that git obeys or runs: its own, and directories of hooks that the user's
/// settings name.
#[derive(Clone, Debug)]
pub struct TrustedParts(Vec<Vec<u8>>);

impl Default for TrustedParts {
    fn default() -> Self {
        Self(TRUSTED_NAMES.iter().map(|part| part.as_bytes().to_vec()).collect())
    }
}

impl TrustedParts {
    /// Adds the first components of hook directories that apply to every repository.
    pub(super) fn with_hooks<'h>(hooks: impl Iterator<Item = &'h Vec<u8>>) -> Self {
        let mut parts = Self::default();
        let first =
            |path: &Vec<u8>| path.split(|b| *b == b'/').find(|part| !matches!(*part, b"" | b".")).map(<[u8]>::to_vec);
        let mut first: Vec<Vec<u8>> = hooks.filter_map(first).filter(|part| part != b"..").collect();
        first.sort();
        first.dedup();
        first.truncate(MAX_HOOKS);
        parts.0.extend(first);
        parts
    }

    /// Returns the parts if they are more than git's own.
    pub fn named_by_settings(&self) -> Option<&Self> {
        (self.0.len() > TRUSTED_NAMES.len()).then_some(self)
    }

    /// Returns their names in the directory of a repository.
    pub fn part_names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }

    fn has_name(&self, name: &[u8]) -> bool {
        self.0.iter().any(|part| part.eq_ignore_ascii_case(name))
    }
}

impl RepositoryState {
    /// Returns the state of `directory`; `exists` reports which names are in it.
    fn from_directory(directory: &Path, parts: &TrustedParts, exists: impl Fn(&[u8]) -> bool) -> Self {
        if directory.file_name().is_some_and(|name| name.eq_ignore_ascii_case(".git")) {
            // This directory has names of its own among the guarded ones.
            return Self::default();
        }
        let trusted = parts.0.iter().enumerate().filter(|(_, name)| exists(name));
        let trusted = trusted.fold(0, |bits, (at, _)| bits | 1_u128 << at);
        let is_repository = exists(b"HEAD") && (exists(b"commondir") || exists(b"objects") && exists(b"refs"));
        Self { is_repository, trusted }
    }

    /// Returns the state of the directory that contains `path`, if the name matters to git.
    pub fn containing_path(path: &[u8], parts: &TrustedParts, probe: ExistsProbe<'_>) -> Option<Self> {
        let directory = to_path(parent_path(path));
        let is_part = is_mark(last_component(path)) || parts.has_name(last_component(path));
        is_part.then(|| Self::from_directory(&directory, parts, |name| probe(&directory.join(to_path(name)))))
    }

    /// Returns whether git takes the directory for a repository, under a name that is not `.git`.
    pub(super) fn is_repository(self) -> bool {
        self.is_repository
    }

    /// Returns whether git newly takes the directory for a repository, or would newly obey or run a
    /// part of it.
    pub fn gives_more_than(self, before: Self) -> bool {
        let obeyed = |state: Self| if state.is_repository { state.trusted } else { 0 };
        self.is_repository && !before.is_repository || obeyed(self) & !obeyed(before) != 0
    }
}

fn is_mark(name: &[u8]) -> bool {
    MARKER_NAMES.iter().any(|mark| mark.as_bytes().eq_ignore_ascii_case(name))
}

/// Returns the part of `path` beneath a root of `root_length` bytes that is the settings or hooks
/// of a repository, or would make one. Git obeys its references and links as well. `creates` is
/// true if the name may be new. `is_known` returns whether a name has rules of its own.
pub fn guarded_part<'p>(
    creates: bool,
    root_length: usize,
    path: &'p [u8],
    (parts, is_known): (&TrustedParts, KnownNameCheck<'_>),
    probe: ExistsProbe<'_>,
) -> Option<&'p [u8]> {
    for end in prefix_ends(path).into_iter().filter(|end| *end > root_length) {
        let prefix = &path[..end];
        let own = last_component(prefix);
        let trusted = parts.has_name(own);
        let completes = end == path.len() && creates && is_mark(own);
        if !trusted && !completes || is_known(prefix) {
            continue;
        }
        let directory = to_path(parent_path(prefix));
        let is_there = |entry: &[u8]| entry.eq_ignore_ascii_case(own) || probe(&directory.join(to_path(entry)));
        let state = RepositoryState::from_directory(&directory, parts, is_there);
        let is_guarded = state.is_repository && (trusted || !probe(&to_path(prefix)));
        if is_guarded {
            return Some(prefix);
        }
    }
    None
}

/// Returns the refusal to change the part at `path`.
pub fn refuse_change(path: &[u8]) -> PermissionRefusal {
    PermissionRefusal::until_write(path, "a repository that is not called .git, or a part of one")
}

/// Returns whether the removal of `path` would unmake a repository. Its content could be changed
/// then, and the repository made again.
pub fn is_needed(path: &[u8], parts: &TrustedParts, probe: ExistsProbe<'_>) -> bool {
    is_mark(last_component(path))
        && RepositoryState::containing_path(path, parts, probe).is_some_and(|state| state.is_repository)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(creates: bool, path: &str, there: &[&str], guarded: Option<&str>) {
        let probe = |path: &Path| there.iter().any(|name| Path::new("/ws/r").join(name) == path);
        let found = guarded_part(creates, 3, path.as_bytes(), (&TrustedParts::default(), &|_| false), &probe);
        assert_eq!(found, guarded.map(str::as_bytes), "{path} {there:?}");
    }

    #[test]
    fn settings_of_repositories_whatever_the_order() {
        let whole = ["HEAD", "objects", "refs", "config"];
        check(false, "/ws/r/config", &whole, Some("/ws/r/config"));
        check(true, "/ws/r/hooks/post-update", &whole, Some("/ws/r/hooks"));
        check(true, "/ws/r/config.worktree", &whole, Some("/ws/r/config.worktree"));
        check(true, "/ws/r/objects/ab/cd", &whole, None);
        check(true, "/ws/r/HEAD", &whole, None);
        check(true, "/ws/r/config", &whole[..2], None);
        check(true, "/ws/r/refs", &[whole[0], whole[1], whole[3]], Some("/ws/r/refs"));
        check(true, "/ws/r/refs", &whole[..2], Some("/ws/r/refs"));
        check(true, "/ws/r/refs", &whole[..1], None);
        check(true, "/ws/r/config", &whole[..3], Some("/ws/r/config"));
    }

    #[test]
    fn a_common_directory_makes_a_repository_as_well() {
        check(true, "/ws/r/commondir", &["HEAD"], Some("/ws/r/commondir"));
        check(true, "/ws/r/HEAD", &["commondir"], Some("/ws/r/HEAD"));
        check(true, "/ws/r/commondir", &["config"], None);
        check(true, "/ws/r/Head", &["commondir"], Some("/ws/r/Head"));
    }

    #[test]
    fn two_states_are_compared() {
        let parts = TrustedParts::with_hooks([b"./githooks/x".to_vec(), b"../up".to_vec()].iter());
        let state = |names: &[&str]| {
            RepositoryState::from_directory(Path::new("/ws/r"), &parts, |name| {
                names.iter().any(|n| n.as_bytes() == name)
            })
        };
        let complete = state(&["HEAD", "objects", "refs"]);
        let with_settings = state(&["HEAD", "objects", "refs", "config"]);
        assert!(with_settings.gives_more_than(complete));
        assert!(with_settings.gives_more_than(state(&["objects", "refs", "config"])));
        assert!(state(&["HEAD", "objects", "refs", "githooks"]).gives_more_than(complete));
        assert!(complete.gives_more_than(state(&["HEAD", "objects"])));
        assert!(!with_settings.gives_more_than(with_settings) && !complete.gives_more_than(with_settings));
    }

    #[test]
    fn a_part_that_holds_a_repository_together() {
        let probe = |names: &'static [&'static str]| move |path: &Path| names.iter().any(|n| path.ends_with(n));
        let is_needed = |path: &[u8], probe: ExistsProbe<'_>| is_needed(path, &TrustedParts::default(), probe);
        assert!(is_needed(b"/ws/r/HEAD", &probe(&["HEAD", "objects", "refs", "hooks"])));
        assert!(is_needed(b"/ws/r/HEAD", &probe(&["HEAD", "objects", "refs"])));
        assert!(!is_needed(b"/ws/r/HEAD", &probe(&["HEAD", "objects"])));
        assert!(!is_needed(b"/ws/r/packed", &probe(&["HEAD", "objects", "refs", "hooks", "packed"])));
    }
}
