//! `.git` files, which lead from a work tree to its repository. This module finds the target of
//! each by its text, and the files that lead to one repository.

use rustix::fs::FileType;
use stockade_sys::Errno;

use super::git::MAX_SETTINGS_BYTES;
use super::settings_allow_list::{local_addresses, work_tree_of_module};
use super::view::{ObjectPresence, RootView, join_name, join_relative, parent_path};

/// Longest `.git` file; longer ones lead nowhere.
pub const MAX_POINTER_BYTES: u64 = 4096;
/// Directories of a module that contain no other module.
const MODULE_DIRECTORIES: &[&[u8]] =
    &[b"branches", b"hooks", b"info", b"lfs", b"logs", b"objects", b"refs", b"rr-cache", b"worktrees"];
/// Most names that are examined in the target of a link.
const MAX_LINK_TARGET_NAMES: usize = 4_000;
/// Most entries beneath a directory that are searched for links. A larger directory counts as one
/// with a matching link.
const MAX_SEARCHED_ENTRIES: usize = 200_000;
/// Most names that are examined to find all files that lead to one repository.
const MAX_POINTER_NAMES: usize = 500_000;

/// Returns the target of a `.git` file in the directory `top`, by its text alone.
pub fn target_of(top: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    let text = text.strip_prefix(b"gitdir: ")?;
    path_of(top, text.strip_suffix(b"\n").unwrap_or(text))
}

/// Returns the path that `path` names in a file of the directory `start`, by its text alone.
pub fn path_of(start: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    if path.is_empty() || path.len() as u64 > MAX_POINTER_BYTES || path.iter().any(u8::is_ascii_control) {
        return None;
    }
    let is_absolute = path.starts_with(b"/");
    let start = if is_absolute { &b""[..] } else { start };
    let mut parts: Vec<&[u8]> = start.split(|b| *b == b'/').filter(|part| !part.is_empty()).collect();
    let mut rest = path;
    // `..` only at the beginning: after a name that is a link, it would be the parent of the link's
    // target.
    while let Some(above) = rest.strip_prefix(b"../").filter(|_| !is_absolute) {
        parts.pop()?;
        rest = above;
    }
    for part in rest.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
        if matches!(part, b"." | b"..") {
            return None;
        }
        parts.push(part);
    }
    Some(parts.iter().flat_map(|part| [b"/", *part]).flatten().copied().collect())
}

/// Returns the directories beneath `root` with a `.git` file that leads to `repository`.
///
/// # Errors
/// If the tree cannot be searched or is too large.
pub fn work_trees_of(view: RootView<'_>, root: &[u8], repository: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
    let mut found = Vec::new();
    for_each_git(view, root, |directory, name, is_directory| {
        let leads = |text: Vec<u8>| target_of(directory, &text).as_deref() == Some(repository);
        if !is_directory && file_text_matches(view, &join_name(directory, name), leads) {
            found.push(directory.to_vec());
        }
        Ok(())
    })?;
    Ok(found)
}

/// Returns a file in the root of `view` that leads git out of that tree. It has another meaning if
/// the tree is elsewhere. Such files are `.git` of a work tree, and `gitdir` in the data that a
/// repository keeps for one.
///
/// # Errors
/// If the tree cannot be searched or is too large.
pub fn leads_out(view: RootView<'_>) -> Result<Option<Vec<u8>>, Errno> {
    let mut found = None;
    for_each_git(view, b"/", |directory, name, is_directory| {
        let git = join_name(directory, name);
        if !is_directory {
            let leaves = |text: Vec<u8>| text.starts_with(b"gitdir:") && !stays_beneath(view, directory, &text);
            if file_text_matches(view, &git, leaves) {
                found = Some(git);
            }
            return Ok(());
        }
        for data_path in list_work_tree_data(view, &git)?.iter().map(|data_path| join_name(data_path, b"gitdir")) {
            // An absolute path means the same from everywhere.
            let out = |text: Vec<u8>| {
                let text = text.strip_suffix(b"\n").unwrap_or(&text);
                !text.starts_with(b"/") && path_of(parent_path(&data_path), text).is_none()
            };
            if file_text_matches(view, &data_path, out) {
                found = Some(data_path);
            }
        }
        Ok(())
    })?;
    Ok(found)
}

/// Returns a file that leads git, by its text, through a path for which `passes` is true. Such
/// files are `.git` of a work tree, and `gitdir` in the data that a repository keeps for one. With
/// `addresses`, settings with a local remote are included.
///
/// # Errors
/// If the tree cannot be searched or is too large.
pub fn leading_through(
    view: RootView<'_>,
    root: &[u8],
    addresses: bool,
    passes: &dyn Fn(&[u8]) -> bool,
) -> Result<Option<Vec<u8>>, Errno> {
    let mut found = None;
    for_each_git(view, root, |directory, name, is_directory| {
        let git = join_name(directory, name);
        let leads = |start: &[u8], referenced_path: &[u8]| {
            !referenced_path.is_empty() && passes(&join_relative(start, referenced_path.trim_ascii()))
        };
        if !is_directory {
            let of_pointer = |text: Vec<u8>| {
                text.strip_prefix(b"gitdir:").is_some_and(|referenced_path| leads(directory, referenced_path))
            };
            if file_text_matches(view, &git, of_pointer) {
                found = Some(git);
            }
            return Ok(());
        }
        for data_path in list_work_tree_data(view, &git)? {
            let file = join_name(&data_path, b"gitdir");
            if file_text_matches(view, &file, |text| leads(&data_path, &text)) {
                found = Some(file);
            }
        }
        let all = if addresses { settings_of(view, &git)? } else { Vec::new() };
        for (file, text) in all {
            if local_addresses(&file, &text).iter().any(|referenced_path| passes(referenced_path)) {
                found = Some(file);
            }
        }
        Ok(())
    })?;
    Ok(found)
}

/// Returns whether a link to the directory `top` could lead git from one repository to another. It
/// could if the directory contains a repository or a link to a directory, or too many entries to
/// examine. With `only_links` repositories do not count.
pub fn may_lead_elsewhere(view: RootView<'_>, top: &[u8], only_links: bool) -> bool {
    let may_be_directory = |path: &[u8]| {
        matches!(view.probe_object(path), ObjectPresence::Is(FileType::Directory) | ObjectPresence::Unknown)
    };
    contains_entry(view, top, MAX_LINK_TARGET_NAMES, |name, path, kind| match kind {
        FileType::Directory => !only_links && super::fold_name(name).as_ref() == b".git",
        FileType::Symlink => {
            view.resolve_path(path).is_some_and(|chain| chain.closed.is_some() || may_be_directory(&chain.end))
        }
        _ => false,
    })
}

/// Returns whether the directory `top` contains a link that `is_wanted` accepts, or cannot be
/// examined completely.
pub fn has_link(view: RootView<'_>, top: &[u8], is_wanted: &dyn Fn(&[u8]) -> bool) -> bool {
    contains_entry(view, top, MAX_SEARCHED_ENTRIES, |_, path, kind| kind == FileType::Symlink && is_wanted(path))
}

/// Returns whether `is_wanted` accepts an entry beneath the directory `top`, by its name, path and
/// type. Also returns true if there are more than `most` entries, or if not all can be examined.
fn contains_entry(
    view: RootView<'_>,
    top: &[u8],
    most: usize,
    is_wanted: impl Fn(&[u8], &[u8], FileType) -> bool,
) -> bool {
    let (mut waiting, mut seen) = (vec![top.to_vec()], 0);
    while let Some(directory) = waiting.pop() {
        let mut entries = Vec::new();
        let listed = view.for_each_name(&directory, |name, kind| {
            seen += 1;
            if matches!(kind, FileType::Directory | FileType::Unknown | FileType::Symlink) {
                entries.push((name.to_vec(), kind));
            }
        });
        let is_closed = match listed {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => false,
            Err(Errno::ACCESS) => view.is_own(&directory),
            Err(_) => true,
        };
        if is_closed || seen > most {
            return true;
        }
        for (name, kind) in entries {
            let path = join_name(&directory, &name);
            if is_wanted(&name, &path, kind) {
                return true;
            }
            if kind != FileType::Symlink {
                waiting.push(path);
            }
        }
    }
    false
}

/// Returns whether the text of a `.git` file leads to a path beneath the root of the view, wherever
/// the root is.
fn stays_beneath(view: RootView<'_>, directory: &[u8], text: &[u8]) -> bool {
    let is_relative = text.strip_prefix(b"gitdir: ").is_some_and(|referenced_path| !referenced_path.starts_with(b"/"));
    is_relative && target_of(directory, text).is_some_and(|target| view.stat_path(&target).is_ok())
}

/// Returns whether `what` accepts the text of a file that may lead git. Also returns true if the
/// file cannot be read: git reads longer files too, and the owner may open it later.
fn file_text_matches(view: RootView<'_>, file: &[u8], what: impl Fn(Vec<u8>) -> bool) -> bool {
    view.read_known(file, MAX_POINTER_BYTES).map_or(true, |text| text.is_some_and(what))
}

/// Returns the directories that the repository `git` keeps for other work trees.
fn list_work_tree_data(view: RootView<'_>, git: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
    let trees = join_name(git, b"worktrees");
    let mut data_path = Vec::new();
    match view.for_each_name(&trees, |name, _| data_path.push(join_name(&trees, name))) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(data_path),
        Err(errno) => Err(errno),
    }
}

/// Calls `each` for every name `.git` in the tree at `root`, with its directory and whether it is a
/// directory itself.
fn for_each_git(
    view: RootView<'_>,
    root: &[u8],
    mut each: impl FnMut(&[u8], &[u8], bool) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let (mut waiting, mut seen) = (vec![root.to_vec()], 0);
    while let Some(directory) = waiting.pop() {
        let mut gits = Vec::new();
        let listed = view.for_each_name(&directory, |name, kind| {
            seen += 1;
            if super::fold_name(name).as_ref() == b".git" {
                gits.push((name.to_vec(), kind == FileType::Directory));
            } else if matches!(kind, FileType::Directory | FileType::Unknown) {
                waiting.push(join_name(&directory, name));
            }
        });
        match listed {
            // The entry is gone, or no directory.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            // If the directory is the user's own, it may be opened again, and git then reads it.
            Err(Errno::ACCESS) if !view.is_own(&directory) => {}
            Err(errno) => return Err(errno),
        }
        if seen > MAX_POINTER_NAMES {
            return Err(Errno::OVERFLOW);
        }
        gits.iter().try_for_each(|(name, is_directory)| each(&directory, name, *is_directory))?;
    }
    Ok(())
}

/// Returns the work trees that the settings of modules in the directory `repository` name.
///
/// # Errors
/// If the modules cannot be searched or are too many.
pub fn work_trees_of_modules(view: RootView<'_>, repository: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
    let all = settings_of_modules(view, repository)?;
    Ok(all.iter().filter_map(|(settings, text)| work_tree_of_module(settings, text)).collect())
}

/// A settings file and its text.
type SettingsText = (Vec<u8>, Vec<u8>);

/// Returns the settings of a repository and of its modules.
///
/// # Errors
/// As for [`work_trees_of_modules`].
pub fn settings_of(view: RootView<'_>, repository: &[u8]) -> Result<Vec<SettingsText>, Errno> {
    let own = join_name(repository, b"config");
    let text = view.read_known(&own, MAX_SETTINGS_BYTES)?;
    let mut all = settings_of_modules(view, repository)?;
    all.extend(text.map(|text| (own, text)));
    Ok(all)
}

fn settings_of_modules(view: RootView<'_>, repository: &[u8]) -> Result<Vec<SettingsText>, Errno> {
    let (mut found, mut waiting, mut seen) = (Vec::new(), vec![join_name(repository, b"modules")], 0);
    while let Some(directory) = waiting.pop() {
        let (mut inner, mut is_module) = (Vec::new(), false);
        let listed = view.for_each_name(&directory, |name, kind| {
            seen += 1;
            is_module |= name == b"config" && kind != FileType::Directory;
            if matches!(kind, FileType::Directory | FileType::Unknown) {
                inner.push(name.to_vec());
            }
        });
        match listed {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(errno) => return Err(errno),
        }
        if seen > MAX_POINTER_NAMES {
            return Err(Errno::OVERFLOW);
        }
        let settings = join_name(&directory, b"config");
        let text = if is_module { view.read_known(&settings, MAX_SETTINGS_BYTES)? } else { None };
        found.extend(text.map(|text| (settings, text)));
        // A name of several components may begin with the name of another module.
        inner.retain(|name| !is_module || !MODULE_DIRECTORIES.contains(&name.as_slice()));
        waiting.extend(inner.iter().map(|name| join_name(&directory, name)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_names_one_path() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(target_of(b"/w/lib", text.as_bytes()).as_deref(), expected.map(str::as_bytes), "{text}");
        };
        check("gitdir: ../.git/modules/lib\n", Some("/w/.git/modules/lib"));
        check("gitdir: /w/.git/worktrees/x", Some("/w/.git/worktrees/x"));
        for text in [
            "gitdir: \n",
            "gitdir:x",
            "x",
            "gitdir: a\nb",
            "gitdir: a\r\n",
            "gitdir: ./a",
            "gitdir: ../../../x",
            "gitdir: link/../../.git/modules/lib",
            "gitdir: /w/link/../.git/modules/lib",
            "gitdir: ..",
            "gitdir: a\0b",
        ] {
            check(text, None);
        }
    }
}
