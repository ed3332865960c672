//! Meaning of each name in the directory of a repository, and the operations that need no grant.
//! This is a list of known names; any other name stays guarded. Pure.
//!
//! Only the directory called `.git` counts, with the data that git keeps in it for modules and
//! other work trees. The names are those of gitrepository-layout(5) and of git's sources (2.47).

use stockade_model::Operation;

use super::project_part::ProjectFile;
use super::view::name;
use crate::powers::prefix_ends;

/// A name in the directory of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GitPart {
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
    /// Content that is judged as a whole when it gets its name.
    Judged(Judged),
    /// Beneath `refs`: a reference, judged as such, or a directory of references.
    Reference,
    /// `commondir` of another work tree. Only one content is allowed.
    CommonDirectory,
    /// The progress of a rebase, a number. Shell prompts print it where a shell evaluates it.
    Number,
    /// Content that runs by itself, leads elsewhere or is unknown.
    Guarded,
}

/// Content that is judged when it gets its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
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
    Place,
    /// Settings of a project, for an editor or a tool.
    Project(ProjectFile),
}

/// The owner of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Repository,
    Module,
    WorkTree,
}

/// Data files directly beneath the top, also with the suffix `.lock`.
const DATA: &[&[u8]] = &[
    b"ADD_EDIT.patch",
    b"BISECT_ANCESTORS_OK",
    b"BISECT_FIRST_PARENT",
    b"BISECT_LOG",
    b"BISECT_NAMES",
    b"BISECT_RUN",
    b"BISECT_TERMS",
    b"COMMIT_EDITMSG",
    b"EDIT_DESCRIPTION",
    b"FETCH_HEAD",
    b"MERGE_HEAD",
    b"MERGE_MODE",
    b"MERGE_MSG",
    b"NOTES_EDITMSG",
    b"SQUASH_MSG",
    b"TAG_EDITMSG",
    b"addp-hunk-edit.diff",
    b"description",
    b"gc.log",
    b"gc.pid",
    b"packed-refs",
    b"packed-refs.new",
    b"shallow",
];
/// References directly beneath the top, beside `HEAD`.
const REFERENCES: &[&[u8]] = &[
    b"AUTO_MERGE",
    b"BISECT_EXPECTED_REV",
    b"BISECT_HEAD",
    b"CHERRY_PICK_HEAD",
    b"MERGE_AUTOSTASH",
    b"NOTES_MERGE_PARTIAL",
    b"NOTES_MERGE_REF",
    b"ORIG_HEAD",
    b"REBASE_HEAD",
    b"REVERT_HEAD",
];
const DATA_PART: GitPart = GitPart::Data { in_store: false };
/// Directories that contain only data.
const STORES: &[&[u8]] = &[b"lfs", b"logs", b"objects", b"refs", b"rr-cache"];
const REFERENCE: GitPart = GitPart::Judged(Judged::Reference);
/// Parts of a rebase (git's sequencer.c) that are data, also with the suffix `.lock`.
const DATA_OF_REBASE: &[&[u8]] = &[
    b"allow_rerere_autoupdate",
    b"amend",
    b"author-script",
    b"autostash",
    b"cdate_is_adate",
    b"current-fixups",
    b"done",
    b"dropped",
    b"drop_redundant_commits",
    b"git-rebase-todo",
    b"git-rebase-todo.backup",
    b"head-name",
    b"ignore_date",
    b"interactive",
    b"keep_redundant_commits",
    b"message",
    b"message-fixup",
    b"message-squash",
    b"no-reschedule-failed-exec",
    b"onto",
    b"orig-head",
    b"patch",
    b"quiet",
    b"refs-to-delete",
    b"reschedule-failed-exec",
    b"rewritten-list",
    b"rewritten-pending",
    b"signoff",
    b"squash-onto",
    b"stopped-sha",
    b"update-refs",
    b"verbose",
];

impl GitPart {
    /// Returns the kind of `path`, and the length of the path of its directory `.git`. Returns
    /// `None` if there is no such directory beneath the writable root of `root_length` bytes, or if
    /// the name does not decide.
    pub(crate) fn of(path: &[u8], root_length: usize) -> Option<(usize, Self)> {
        // This test rejects most paths at once, whatever their depth.
        if !path.windows(5).any(|part| part == b"/.git") {
            return None;
        }
        let is_git = |part: &[u8]| super::fold(part).as_ref() == b".git";
        let mut ends = prefix_ends(path).into_iter().filter(|end| is_git(name(&path[..*end])));
        let top = ends.next()?;
        // Git does not make a `.git` within another.
        if ends.next().is_some() || top < root_length || !path[..top].ends_with(b"/.git") {
            return None;
        }
        let rest: Vec<&[u8]> = path[top..].split(|b| *b == b'/').skip(1).collect();
        Some((top, part(&rest, Of::Repository)))
    }

    /// Returns the kind of `rest` beneath a repository that is not called `.git`. Only the parts
    /// that a push needs are known there.
    pub(crate) fn in_bare(rest: &[u8]) -> Self {
        let rest: Vec<&[u8]> = rest.split(|b| *b == b'/').filter(|part| !part.is_empty()).collect();
        match part(&rest, Of::Repository) {
            known @ (Self::Data { .. } | Self::Reference | Self::Needed { .. } | REFERENCE) => known,
            _ => Self::Guarded,
        }
    }

    /// Returns how content that gets this name is judged, if it is.
    pub(crate) fn judged(self) -> Option<Judged> {
        match self {
            Self::Judged(judged) => Some(judged),
            Self::Reference | Self::Needed { is_directory: false } => Some(Judged::Reference),
            _ => None,
        }
    }

    /// Returns whether the name alone permits this operation.
    pub(crate) fn permits(self, operation: Operation) -> bool {
        use Operation::{Create, Link, Metadata, Mkdir, Remove, Rename, Truncate, Write};
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
            Self::Judged(_) | Self::Needed { is_directory: false } | Self::CommonDirectory | Self::Number => {
                operation == Remove
            }
            Self::Guarded => false,
        }
    }

    /// Returns whether the content needs no guard under any other name either.
    pub(crate) fn is_free(self) -> bool {
        matches!(self, Self::Data { .. } | Self::Reference | Self::Needed { .. } | Self::Directory | Self::Trial)
    }

    /// Returns whether the rules for directories that look like a repository apply to it. For all
    /// other parts the name decides.
    pub(crate) fn is_in_store(self) -> bool {
        matches!(self, Self::Data { in_store: true } | Self::Reference)
    }
}

/// Returns the kind of a part; `rest` are the components beneath the top.
fn part(rest: &[&[u8]], of: Of) -> GitPart {
    let Some((first, beneath)) = rest.split_first() else {
        return if of == Of::Repository { GitPart::Top } else { GitPart::Directory };
    };
    match (*first, beneath) {
        (b"worktrees", []) | (b"modules", []) if of != Of::WorkTree => GitPart::Directory,
        (b"worktrees", [_]) if of == Of::Repository => GitPart::Directory,
        (b"worktrees", [_, beneath @ ..]) if of == Of::Repository => part(beneath, Of::WorkTree),
        (b"modules", beneath) if of != Of::WorkTree => module(beneath),
        (b"rebase-merge" | b"sequencer" | b"info", []) => GitPart::Directory,
        (b"hooks" | b"branches", []) if of != Of::WorkTree => GitPart::Directory,
        (b"rebase-merge", [b"git-rebase-todo"]) => GitPart::Judged(Judged::Steps),
        (b"rebase-merge", [b"msgnum" | b"end"]) => GitPart::Number,
        (b"rebase-merge", [b"4913"]) => GitPart::Trial,
        (b"rebase-merge", [name]) if is_data_of_rebase(name) => DATA_PART,
        (b"sequencer", [b"todo" | b"todo.lock" | b"head" | b"head.lock" | b"abort-safety"]) => DATA_PART,
        (b"info", [b"exclude" | b"refs" | b"sparse-checkout" | b"sparse-checkout.lock"]) => DATA_PART,
        // A temporary file of `git update-server-info`.
        (b"info", [name]) if name.starts_with(b"refs_") => DATA_PART,
        (b"hooks", [name]) if of != Of::WorkTree && name.len() > 7 && name.ends_with(b".sample") => GitPart::Sample,
        (store, beneath) if STORES.contains(&store) => match (beneath, of) {
            ([], Of::WorkTree) => GitPart::Directory,
            ([], _) if matches!(store, b"objects" | b"refs") => GitPart::Needed { is_directory: true },
            ([], _) => GitPart::Directory,
            ([.., name], _) if store == b"refs" && !name.ends_with(b".lock") => GitPart::Reference,
            _ => GitPart::Data { in_store: true },
        },
        (name, []) => file(name, of),
        _ => GitPart::Guarded,
    }
}

/// Returns the kind of a file directly beneath the top.
fn file(name: &[u8], of: Of) -> GitPart {
    match name {
        b"HEAD" if of == Of::WorkTree => REFERENCE,
        b"HEAD" => GitPart::Needed { is_directory: false },
        b"config" if of != Of::WorkTree => GitPart::Judged(Judged::Settings),
        b"config.worktree" => GitPart::Judged(Judged::Settings),
        b"index" => GitPart::Judged(Judged::Index),
        b"commondir" if of == Of::WorkTree => GitPart::CommonDirectory,
        b"gitdir" if of == Of::WorkTree => GitPart::Judged(Judged::Place),
        b"locked" if of == Of::WorkTree => DATA_PART,
        b"MERGE_RR" => GitPart::Judged(Judged::Resolutions),
        b"BISECT_START" => GitPart::Judged(Judged::Start),
        name if REFERENCES.contains(&name) => REFERENCE,
        _ if is_data(name) => DATA_PART,
        b"4913" => GitPart::Trial,
        [b't', random @ ..] if random.len() == 6 && random.iter().all(u8::is_ascii_alphanumeric) => GitPart::Trial,
        _ => GitPart::Guarded,
    }
}

/// Returns whether this is a data file, a temporary file for a name, or a file that editors make
/// beside an edited file.
fn is_data(name: &[u8]) -> bool {
    let on_the_way = name.strip_suffix(b".lock");
    if let Some(b"HEAD" | b"config" | b"config.worktree" | b"index" | b"gitdir") = on_the_way {
        return true;
    }
    let own = on_the_way.unwrap_or(name);
    if on_the_way.is_some() && (REFERENCES.contains(&own) || matches!(own, b"MERGE_RR" | b"BISECT_START")) {
        return true;
    }
    let passing = [&b"index.stash."[..], b"next-index-", b"shallow_"];
    DATA.contains(&own)
        || is_of_sed(own)
        || edited(own).is_some_and(|own| DATA.contains(&own))
        || passing.iter().any(|prefix| own.starts_with(prefix))
}

fn is_data_of_rebase(name: &[u8]) -> bool {
    let own = name.strip_suffix(b".lock").unwrap_or(name);
    DATA_OF_REBASE.contains(&own) || is_of_sed(own) || edited(own).is_some_and(|own| DATA_OF_REBASE.contains(&own))
}

/// Returns the file for which vim makes a file of this name while it edits.
fn edited(name: &[u8]) -> Option<&[u8]> {
    name.strip_suffix(b"~").or_else(|| {
        // Vim also makes `.NAME.swpx`, to test for links.
        let swap = name.strip_suffix(b"x").filter(|name| name.ends_with(b".swp")).unwrap_or(name);
        let (own, end) = swap.split_last_chunk::<4>().filter(|(_, end)| end.starts_with(b".sw"))?;
        own.strip_prefix(b".").filter(|_| end[3].is_ascii_lowercase())
    })
}

/// Returns whether this is a temporary file of `sed -i`, which then replaces the original.
fn is_of_sed(name: &[u8]) -> bool {
    name.strip_prefix(b"sed").is_some_and(|random| random.len() == 6 && random.iter().all(u8::is_ascii_alphanumeric))
}

/// Returns the kind of a path beneath `modules`. The name of a module may have several components,
/// so every split is examined, and the strictest result counts.
fn module(rest: &[&[u8]]) -> GitPart {
    let mut found = GitPart::Guarded;
    for start in 1..=rest.len() {
        let beneath = &rest[start..];
        let this = part(beneath, Of::Module);
        let in_store = found.is_in_store();
        let runs = beneath.first().is_some_and(|first| is_live(first) || !in_store && is_old_remote(first))
            && !(in_store && is_list_of_objects(beneath));
        match (this, found) {
            (GitPart::Guarded, _) if runs => return GitPart::Guarded,
            (GitPart::Judged(_) | GitPart::Sample, GitPart::Judged(_) | GitPart::Sample) if this != found => {
                return GitPart::Guarded;
            }
            (GitPart::Judged(_) | GitPart::Sample, _) => found = this,
            (_, GitPart::Guarded) => found = this,
            // The name of a module, or of a part of it.
            (GitPart::Data { .. } | GitPart::Reference | GitPart::Needed { .. }, GitPart::Directory)
                if !beneath.is_empty() =>
            {
                found = this;
            }
            _ => {}
        }
    }
    found
}

/// Returns whether git obeys this name in the directory of a module.
fn is_live(name: &[u8]) -> bool {
    let folded = super::fold(name);
    let name = folded.as_ref();
    matches!(name, b"config" | b"config.worktree" | b"hooks" | b"commondir" | b"info")
        || matches!(name, b"rebase-apply" | b"rebase-merge" | b"sequencer" | b"index" | b"gitdir")
        || name.starts_with(b"sharedindex")
}

/// Returns whether git writes this in `objects/info` and reads it nowhere else. For a module called
/// `a/objects` it would be its `info`.
fn is_list_of_objects(beneath: &[&[u8]]) -> bool {
    const LISTS: [&[u8]; 4] = [b"commit-graph", b"commit-graph.lock", b"commit-graphs", b"packs"];
    matches!(beneath, [b"info", list, ..] if LISTS.contains(list))
        || matches!(beneath, [b"info", temporary] if temporary.starts_with(b"packs_"))
}

/// Returns whether this is another directory in which git finds remotes. In a store these
/// directories have other content.
fn is_old_remote(name: &[u8]) -> bool {
    matches!(super::fold(name).as_ref(), b"remotes" | b"branches")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: Option<GitPart>) {
        let found = GitPart::of(format!("/ws/{path}").as_bytes(), 3).map(|(_, part)| part);
        assert_eq!(found, expected, "{path}");
    }

    #[test]
    fn each_name_is_known_or_guarded() {
        let data = Some(DATA_PART);
        let store = Some(GitPart::Data { in_store: true });
        let settings = Some(GitPart::Judged(Judged::Settings));
        let index = Some(GitPart::Judged(Judged::Index));
        let reference = Some(REFERENCE);
        for (path, part) in [
            (".git", Some(GitPart::Top)),
            ("sub/.git", Some(GitPart::Top)),
            ("sub/.git/objects/ab/cd", store),
            (".git/HEAD.lock", data),
            (".git/FETCH_HEAD", data),
            (".git/.COMMIT_EDITMSG.swp", data),
            (".git/.COMMIT_EDITMSG.swpx", data),
            (".git/4913", Some(GitPart::Trial)),
            (".git/MERGE_MSG~", data),
            (".git/HEAD", Some(GitPart::Needed { is_directory: false })),
            (".git/refs", Some(GitPart::Needed { is_directory: true })),
            (".git/config", settings),
            (".git/config.lock", data),
            (".git/config.worktree", settings),
            (".git/index", index),
            (".git/index.lock", data),
            (".git/index.stash.12", data),
            (".git/hooks", Some(GitPart::Directory)),
            (".git/hooks/x.sample", Some(GitPart::Sample)),
            (".git/info/exclude", data),
            (".git/tAb1xYz", Some(GitPart::Trial)),
            (".git/sedAb1xYz", data),
            (".git/rebase-merge/done", data),
            (".git/rebase-merge/sedAb1xYz", data),
            (".git/rebase-merge/.git-rebase-todo.swp", data),
            (".git/rebase-merge/git-rebase-todo~", data),
            (".git/rebase-merge/4913", Some(GitPart::Trial)),
            (".git/rebase-merge/git-rebase-todo", Some(GitPart::Judged(Judged::Steps))),
            (".git/rebase-merge/msgnum", Some(GitPart::Number)),
            (".git/rebase-merge/message.lock", data),
            (".git/worktrees/x", Some(GitPart::Directory)),
            (".git/worktrees/x/commondir", Some(GitPart::CommonDirectory)),
            (".git/worktrees/x/HEAD", reference),
            (".git/worktrees/x/index", index),
            (".git/worktrees/x/gitdir", Some(GitPart::Judged(Judged::Place))),
            (".git/worktrees/x/refs/bisect/bad", Some(GitPart::Reference)),
            (".git/ORIG_HEAD", reference),
            (".git/ORIG_HEAD.lock", data),
            (".git/MERGE_RR", Some(GitPart::Judged(Judged::Resolutions))),
            (".git/MERGE_RR.lock", data),
            (".git/refs/heads/a/b", Some(GitPart::Reference)),
            (".git/refs/heads/a/b.lock", store),
            (".git/modules/a/b/config", settings),
            (".git/modules/a/b", Some(GitPart::Directory)),
            (".git/modules/a/modules/b/config", settings),
            (".git/modules/a/hooks/x.sample", Some(GitPart::Sample)),
            (".git/modules/a/refs/heads/x", Some(GitPart::Reference)),
            (".git/modules/a/refs/remotes/o/HEAD", Some(GitPart::Reference)),
            (".git/modules/a/refs/heads/index", index),
            (".git/modules/a/objects/info/commit-graph", store),
            (".git/modules/a/objects/info/commit-graphs/graph-1", store),
            (".git/modules/a/objects/info/packs_Ab1xYz", store),
            (".git/modules/a/b/HEAD", Some(GitPart::Needed { is_directory: false })),
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
    fn what_runs_or_leads_elsewhere_or_is_not_known_stays_guarded() {
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
            check(&format!(".git/{path}"), Some(GitPart::Guarded));
        }
    }
}
