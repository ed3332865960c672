//! Meaning of each name in the directory of a repository, and the operations that need no grant.
//! This is a list of known names; any other name stays guarded. Pure.
//!
//! Only the directory called `.git` counts, with the data that git keeps in it for modules and
//! other work trees. The names are those of gitrepository-layout(5) and of git's sources (2.47).

use stockade_model::{DeniedOperation, NameList};

use super::project_part::ProjectFile;
use super::view::last_component;
use crate::powers::prefix_ends;

/// A name in the directory of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GitPathKind {
    /// The directory itself, or a file in its place that contains its location.
    Top,
    /// A directory with a meaning of its own and known parts.
    Directory,
    /// A part that makes the directory a repository.
    Needed {
        /// True if it is a directory.
        is_directory: bool,
    },
    /// Content that git takes for data.
    Data {
        /// True if it is in a directory that contains only data.
        in_store: bool,
    },
    /// `tXXXXXX`, with which git tests for symbolic links, and `4913`, with which vim tests its
    /// permissions in the directory.
    Trial,
    /// An inactive hook: its name ends in `.sample`.
    Sample,
    /// Content that is checked as a whole when it gets its name.
    Checked(GuardedContent),
    /// Beneath `refs`: a reference, checked as such, or a directory of references.
    Reference,
    /// `commondir` of another work tree. Only one content is allowed.
    CommonDirectory,
    /// The progress of a rebase, a number. Shell prompts print it where a shell evaluates it.
    Number,
    /// Content that runs by itself, leads elsewhere or is unknown.
    Guarded,
}

/// Content that is checked when it gets its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardedContent {
    /// `config`, `config.worktree`.
    Settings,
    /// `.gitmodules`, which is in the work tree.
    Modules,
    /// `index`.
    Index,
    /// The steps of a rebase.
    Steps,
    /// A reference. Git writes through it to the reference that it names.
    Reference,
    /// `MERGE_RR`: the files with conflicts that git keeps a copy of once they are resolved.
    Resolutions,
    /// `BISECT_START`, the revision that is checked out at the end.
    Start,
    /// `gitdir` of another work tree. Git writes to the path that it names, and removes it.
    Path,
    /// Settings of a project, for an editor or a tool.
    Project(ProjectFile),
}

/// The owner of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GitDirOwner {
    Repository,
    Module,
    WorkTree,
}

/// Data files directly beneath the top, also with the suffix `.lock`.
const DATA_FILES: NameList = NameList::new(include_str!("../../knowledge/git_data_files.txt"));
/// References directly beneath the top, beside `HEAD`.
const REFERENCE_FILES: NameList = NameList::new(include_str!("../../knowledge/git_reference_files.txt"));
const DATA_KIND: GitPathKind = GitPathKind::Data { in_store: false };
/// Directories that contain only data.
const DATA_DIRECTORIES: &[&[u8]] = &[b"lfs", b"logs", b"objects", b"refs", b"rr-cache"];
const REFERENCE_KIND: GitPathKind = GitPathKind::Checked(GuardedContent::Reference);
/// Parts of a rebase (git's sequencer.c) that are data, also with the suffix `.lock`.
const REBASE_DATA_FILES: NameList = NameList::new(include_str!("../../knowledge/git_rebase_files.txt"));

impl GitPathKind {
    /// Returns the kind of `path`, and the length of the path of its directory `.git`. Returns
    /// `None` if there is no such directory beneath the writable root of `root_length` bytes, or if
    /// the name does not decide.
    pub fn classify_path(path: &[u8], root_length: usize) -> Option<(usize, Self)> {
        // This test rejects most paths at once, whatever their depth.
        if !path.windows(5).any(|part| part == b"/.git") {
            return None;
        }
        let is_git = |part: &[u8]| super::fold_name(part).as_ref() == b".git";
        let mut ends = prefix_ends(path).into_iter().filter(|end| is_git(last_component(&path[..*end])));
        let top = ends.next()?;
        // Git does not make a `.git` within another.
        if ends.next().is_some() || top < root_length || !path[..top].ends_with(b"/.git") {
            return None;
        }
        let rest: Vec<&[u8]> = path[top..].split(|b| *b == b'/').skip(1).collect();
        Some((top, classify_components(&rest, GitDirOwner::Repository)))
    }

    /// Returns the kind of `rest` beneath a repository that is not called `.git`. Only the parts
    /// that a push needs are known there.
    pub fn in_bare(rest: &[u8]) -> Self {
        let rest: Vec<&[u8]> = rest.split(|b| *b == b'/').filter(|part| !part.is_empty()).collect();
        match classify_components(&rest, GitDirOwner::Repository) {
            known @ (Self::Data { .. } | Self::Reference | Self::Needed { .. } | REFERENCE_KIND) => known,
            _ => Self::Guarded,
        }
    }

    /// Returns how content that gets this name is checked, if it is.
    pub fn guarded_content(self) -> Option<GuardedContent> {
        match self {
            Self::Checked(rule) => Some(rule),
            Self::Reference | Self::Needed { is_directory: false } => Some(GuardedContent::Reference),
            _ => None,
        }
    }

    /// Returns whether the name alone permits this operation.
    pub fn allows_operation(self, operation: DeniedOperation) -> bool {
        use DeniedOperation::{Create, Link, Metadata, Mkdir, Remove, Rename, Truncate, Write};
        match self {
            // Can be removed if it is empty or a file.
            Self::Top | Self::Directory | Self::Needed { is_directory: true } => matches!(operation, Mkdir | Remove),
            Self::Reference => matches!(operation, Mkdir | Remove | Metadata),
            Self::Data { .. } => {
                matches!(operation, Create | Write | Truncate | Metadata | Remove | Rename | Link | Mkdir)
            }
            Self::Trial => matches!(operation, Create | Write | Remove),
            Self::Sample => matches!(operation, Create | Write | Remove),
            // Without the file git acts as with an empty one, which is harmless.
            Self::Checked(_) | Self::Needed { is_directory: false } | Self::CommonDirectory | Self::Number => {
                operation == Remove
            }
            Self::Guarded => false,
        }
    }

    /// Returns whether the content needs no guard under any other name either.
    pub fn is_free(self) -> bool {
        matches!(self, Self::Data { .. } | Self::Reference | Self::Needed { .. } | Self::Directory | Self::Trial)
    }

    /// Returns whether the rules for directories that look like a repository apply to it. For all
    /// other parts the name decides.
    pub fn is_in_store(self) -> bool {
        matches!(self, Self::Data { in_store: true } | Self::Reference)
    }
}

/// Returns the kind of a part; `rest` are the components beneath the top.
fn classify_components(rest: &[&[u8]], of: GitDirOwner) -> GitPathKind {
    let Some((first, beneath)) = rest.split_first() else {
        return if of == GitDirOwner::Repository { GitPathKind::Top } else { GitPathKind::Directory };
    };
    match (*first, beneath) {
        (b"worktrees", []) | (b"modules", []) if of != GitDirOwner::WorkTree => GitPathKind::Directory,
        (b"worktrees", [_]) if of == GitDirOwner::Repository => GitPathKind::Directory,
        (b"worktrees", [_, beneath @ ..]) if of == GitDirOwner::Repository => {
            classify_components(beneath, GitDirOwner::WorkTree)
        }
        (b"modules", beneath) if of != GitDirOwner::WorkTree => classify_module(beneath),
        (b"rebase-merge" | b"sequencer" | b"info", []) => GitPathKind::Directory,
        (b"hooks" | b"branches", []) if of != GitDirOwner::WorkTree => GitPathKind::Directory,
        (b"rebase-merge", [b"git-rebase-todo"]) => GitPathKind::Checked(GuardedContent::Steps),
        (b"rebase-merge", [b"msgnum" | b"end"]) => GitPathKind::Number,
        (b"rebase-merge", [b"4913"]) => GitPathKind::Trial,
        (b"rebase-merge", [name]) if is_data_of_rebase(name) => DATA_KIND,
        (b"sequencer", [b"todo" | b"todo.lock" | b"head" | b"head.lock" | b"abort-safety"]) => DATA_KIND,
        (b"info", [b"exclude" | b"refs" | b"sparse-checkout" | b"sparse-checkout.lock"]) => DATA_KIND,
        // A temporary file of `git update-server-info`.
        (b"info", [name]) if name.starts_with(b"refs_") => DATA_KIND,
        (b"hooks", [name]) if of != GitDirOwner::WorkTree && name.len() > 7 && name.ends_with(b".sample") => {
            GitPathKind::Sample
        }
        (store, beneath) if DATA_DIRECTORIES.contains(&store) => match (beneath, of) {
            ([], GitDirOwner::WorkTree) => GitPathKind::Directory,
            ([], _) if matches!(store, b"objects" | b"refs") => GitPathKind::Needed { is_directory: true },
            ([], _) => GitPathKind::Directory,
            ([.., name], _) if store == b"refs" && !name.ends_with(b".lock") => GitPathKind::Reference,
            _ => GitPathKind::Data { in_store: true },
        },
        (name, []) => classify_file(name, of),
        _ => GitPathKind::Guarded,
    }
}

/// Returns the kind of a file directly beneath the top.
fn classify_file(name: &[u8], of: GitDirOwner) -> GitPathKind {
    match name {
        b"HEAD" if of == GitDirOwner::WorkTree => REFERENCE_KIND,
        b"HEAD" => GitPathKind::Needed { is_directory: false },
        b"config" if of != GitDirOwner::WorkTree => GitPathKind::Checked(GuardedContent::Settings),
        b"config.worktree" => GitPathKind::Checked(GuardedContent::Settings),
        b"index" => GitPathKind::Checked(GuardedContent::Index),
        b"commondir" if of == GitDirOwner::WorkTree => GitPathKind::CommonDirectory,
        b"gitdir" if of == GitDirOwner::WorkTree => GitPathKind::Checked(GuardedContent::Path),
        b"locked" if of == GitDirOwner::WorkTree => DATA_KIND,
        b"MERGE_RR" => GitPathKind::Checked(GuardedContent::Resolutions),
        b"BISECT_START" => GitPathKind::Checked(GuardedContent::Start),
        name if REFERENCE_FILES.contains(name) => REFERENCE_KIND,
        _ if is_data(name) => DATA_KIND,
        b"4913" => GitPathKind::Trial,
        [b't', random @ ..] if is_random(random) => GitPathKind::Trial,
        _ => GitPathKind::Guarded,
    }
}

/// Returns whether this is a data file, a temporary file for a name, or a file that editors make
/// beside an edited file.
fn is_data(name: &[u8]) -> bool {
    let lock_target = name.strip_suffix(b".lock");
    if let Some(b"HEAD" | b"config" | b"config.worktree" | b"index" | b"gitdir") = lock_target {
        return true;
    }
    let own = lock_target.unwrap_or(name);
    if lock_target.is_some() && (REFERENCE_FILES.contains(own) || matches!(own, b"MERGE_RR" | b"BISECT_START")) {
        return true;
    }
    let passing = [&b"index.stash."[..], b"next-index-", b"shallow_"];
    is_listed_data(DATA_FILES, own) || passing.iter().any(|prefix| own.starts_with(prefix))
}

fn is_data_of_rebase(name: &[u8]) -> bool {
    is_listed_data(REBASE_DATA_FILES, name.strip_suffix(b".lock").unwrap_or(name))
}

/// Returns whether a file is in the list, or is a temporary one of an editor or of sed.
fn is_listed_data(list: NameList, name: &[u8]) -> bool {
    list.contains(name) || is_of_sed(name) || edited_file(name).is_some_and(|own| list.contains(own))
}

/// Returns the file for which vim makes a file of this name while it edits.
fn edited_file(name: &[u8]) -> Option<&[u8]> {
    name.strip_suffix(b"~").or_else(|| {
        // Vim also makes `.NAME.swpx`, to test for links.
        let swap = name.strip_suffix(b"x").filter(|name| name.ends_with(b".swp")).unwrap_or(name);
        let (own, end) = swap.split_last_chunk::<4>().filter(|(_, end)| end.starts_with(b".sw"))?;
        own.strip_prefix(b".").filter(|_| end[3].is_ascii_lowercase())
    })
}

/// Returns whether this is a temporary file of `sed -i`, which then replaces the original.
fn is_of_sed(name: &[u8]) -> bool {
    name.strip_prefix(b"sed").is_some_and(is_random)
}

fn is_random(end: &[u8]) -> bool {
    end.len() == 6 && end.iter().all(u8::is_ascii_alphanumeric)
}

/// Returns the kind of a path beneath `modules`. The name of a module may have several components,
/// so every split is examined, and the strictest result counts.
fn classify_module(rest: &[&[u8]]) -> GitPathKind {
    let mut found = GitPathKind::Guarded;
    for start in 1..=rest.len() {
        let beneath = &rest[start..];
        let this = classify_components(beneath, GitDirOwner::Module);
        let in_store = found.is_in_store();
        let runs = beneath.first().is_some_and(|first| is_live(first) || !in_store && is_old_remote(first))
            && !(in_store && is_list_of_objects(beneath));
        match (this, found) {
            (GitPathKind::Guarded, _) if runs => return GitPathKind::Guarded,
            (GitPathKind::Checked(_) | GitPathKind::Sample, GitPathKind::Checked(_) | GitPathKind::Sample)
                if this != found =>
            {
                return GitPathKind::Guarded;
            }
            (GitPathKind::Checked(_) | GitPathKind::Sample, _) => found = this,
            (_, GitPathKind::Guarded) => found = this,
            // The name of a module, or of a part of it.
            (
                GitPathKind::Data { .. } | GitPathKind::Reference | GitPathKind::Needed { .. },
                GitPathKind::Directory,
            ) if !beneath.is_empty() => {
                found = this;
            }
            _ => {}
        }
    }
    found
}

/// Returns whether git obeys this name in the directory of a module.
fn is_live(name: &[u8]) -> bool {
    let folded = super::fold_name(name);
    let name = folded.as_ref();
    matches!(name, b"config" | b"config.worktree" | b"hooks" | b"commondir" | b"info")
        || matches!(name, b"rebase-apply" | b"rebase-merge" | b"sequencer" | b"index" | b"gitdir")
        || name.starts_with(b"sharedindex")
}

/// Returns whether git writes this in `objects/info` and reads it nowhere else. For a module called
/// `a/objects` it would be its `info`.
fn is_list_of_objects(beneath: &[&[u8]]) -> bool {
    const OBJECT_LISTS: [&[u8]; 4] = [b"commit-graph", b"commit-graph.lock", b"commit-graphs", b"packs"];
    matches!(beneath, [b"info", list, ..] if OBJECT_LISTS.contains(list))
        || matches!(beneath, [b"info", temporary] if temporary.starts_with(b"packs_"))
}

/// Returns whether this is another directory in which git finds remotes. In a store these
/// directories have other content.
fn is_old_remote(name: &[u8]) -> bool {
    matches!(super::fold_name(name).as_ref(), b"remotes" | b"branches")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: Option<GitPathKind>) {
        let found = GitPathKind::classify_path(format!("/ws/{path}").as_bytes(), 3).map(|(_, part)| part);
        assert_eq!(found, expected, "{path}");
    }

    #[test]
    fn each_name_is_known_or_guarded() {
        let data = Some(DATA_KIND);
        let store = Some(GitPathKind::Data { in_store: true });
        let settings = Some(GitPathKind::Checked(GuardedContent::Settings));
        let index = Some(GitPathKind::Checked(GuardedContent::Index));
        let reference = Some(REFERENCE_KIND);
        for (path, part) in [
            (".git", Some(GitPathKind::Top)),
            ("sub/.git", Some(GitPathKind::Top)),
            ("sub/.git/objects/ab/cd", store),
            (".git/HEAD.lock", data),
            (".git/FETCH_HEAD", data),
            (".git/.COMMIT_EDITMSG.swp", data),
            (".git/.COMMIT_EDITMSG.swpx", data),
            (".git/4913", Some(GitPathKind::Trial)),
            (".git/MERGE_MSG~", data),
            (".git/HEAD", Some(GitPathKind::Needed { is_directory: false })),
            (".git/refs", Some(GitPathKind::Needed { is_directory: true })),
            (".git/config", settings),
            (".git/config.lock", data),
            (".git/config.worktree", settings),
            (".git/index", index),
            (".git/index.lock", data),
            (".git/index.stash.12", data),
            (".git/hooks", Some(GitPathKind::Directory)),
            (".git/hooks/x.sample", Some(GitPathKind::Sample)),
            (".git/info/exclude", data),
            (".git/tAb1xYz", Some(GitPathKind::Trial)),
            (".git/sedAb1xYz", data),
            (".git/rebase-merge/done", data),
            (".git/rebase-merge/sedAb1xYz", data),
            (".git/rebase-merge/.git-rebase-todo.swp", data),
            (".git/rebase-merge/git-rebase-todo~", data),
            (".git/rebase-merge/4913", Some(GitPathKind::Trial)),
            (".git/rebase-merge/git-rebase-todo", Some(GitPathKind::Checked(GuardedContent::Steps))),
            (".git/rebase-merge/msgnum", Some(GitPathKind::Number)),
            (".git/rebase-merge/message.lock", data),
            (".git/worktrees/x", Some(GitPathKind::Directory)),
            (".git/worktrees/x/commondir", Some(GitPathKind::CommonDirectory)),
            (".git/worktrees/x/HEAD", reference),
            (".git/worktrees/x/index", index),
            (".git/worktrees/x/gitdir", Some(GitPathKind::Checked(GuardedContent::Path))),
            (".git/worktrees/x/refs/bisect/bad", Some(GitPathKind::Reference)),
            (".git/ORIG_HEAD", reference),
            (".git/ORIG_HEAD.lock", data),
            (".git/MERGE_RR", Some(GitPathKind::Checked(GuardedContent::Resolutions))),
            (".git/MERGE_RR.lock", data),
            (".git/refs/heads/a/b", Some(GitPathKind::Reference)),
            (".git/refs/heads/a/b.lock", store),
            (".git/modules/a/b/config", settings),
            (".git/modules/a/b", Some(GitPathKind::Directory)),
            (".git/modules/a/modules/b/config", settings),
            (".git/modules/a/hooks/x.sample", Some(GitPathKind::Sample)),
            (".git/modules/a/refs/heads/x", Some(GitPathKind::Reference)),
            (".git/modules/a/refs/remotes/o/HEAD", Some(GitPathKind::Reference)),
            (".git/modules/a/refs/heads/index", index),
            (".git/modules/a/objects/info/commit-graph", store),
            (".git/modules/a/objects/info/commit-graphs/graph-1", store),
            (".git/modules/a/objects/info/packs_Ab1xYz", store),
            (".git/modules/a/b/HEAD", Some(GitPathKind::Needed { is_directory: false })),
            ("x", None),
            (".GIT/config", None),
            (".git./HEAD", None),
            (".git/x/.git/HEAD", None),
            (".gitx/HEAD", None),
        ] {
            check(path, part);
        }
    }

    #[test]
    fn executable_redirecting_and_unknown_settings_stay_guarded() {
        for path in [
            "hooks/pre-commit",
            "hooks/x/y.sample",
            "hooks/.sample",
            "Hooks/x.sample",
            "CONFIG",
            "config ",
            "commondir",
            "info/attributes",
            "remotes/x",
            "branches/x",
            "gitdir",
            "sharedindex.1",
            "rebase-apply/apply-opt",
            "rebase-merge/strategy",
            "rebase-merge/gpg_sign_opt",
            "rebase-merge/msgnum.lock",
            "rebase-merge/unknown",
            "sequencer/opts",
            "sl/config",
            "modules/a/info/commit-graph",
            "modules/a/objects/info/attributes",
            "worktrees/x/hooks/y.sample",
            "worktrees/x/config",
            "worktrees/x/modules/y/config",
            "modules/a/hooks/pre-commit",
            "modules/a/remotes/x",
            "modules/a/commondir",
            "modules/a/objects/hooks/pre-commit",
            "modules/a/b/info/attributes",
            "modules/a/Config",
            "unknown",
        ] {
            check(&format!(".git/{path}"), Some(GitPathKind::Guarded));
        }
    }
}
