//! `.git` files, which lead from a work tree to its repository: where each leads by its
//! text, and which ones lead to one repository.

use rustix::fs::{FileType, Stat};
use stockade_sys::Errno;

use super::settings_judge::{local_addresses, work_tree_of_module};
use super::view::{View, at, join, parent};

/// Longer ones lead nowhere.
pub(crate) const MAX_POINTER_BYTES: u64 = 4096;
/// Settings that are read.
const MAX_SETTINGS_BYTES: u64 = 1 << 20;
/// Directories of a module in which no other module is.
const PARTS_OF_MODULE: &[&[u8]] =
    &[b"branches", b"hooks", b"info", b"lfs", b"logs", b"objects", b"refs", b"rr-cache", b"worktrees"];
/// Names that are looked at in what a link leads to.
const MAX_LOOKED_INTO: usize = 4_000;
/// Names that are looked at for all that lead to one repository.
const MAX_LOOKED_AT: usize = 500_000;

/// Where a `.git` file in the directory `top` leads, by its text alone.
pub(crate) fn target_of(top: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    let text = text.strip_prefix(b"gitdir: ")?;
    place_of(top, text.strip_suffix(b"\n").unwrap_or(text))
}

/// The place that `path` says in a file of the directory `start`, by its text alone.
pub(crate) fn place_of(start: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    if path.is_empty() || path.len() as u64 > MAX_POINTER_BYTES || path.iter().any(u8::is_ascii_control) {
        return None;
    }
    let is_absolute = path.starts_with(b"/");
    let start = if is_absolute { &b""[..] } else { start };
    let mut parts: Vec<&[u8]> = start.split(|b| *b == b'/').filter(|part| !part.is_empty()).collect();
    let mut rest = path;
    // Up at first only: behind a name that is a link it would be up from where that leads.
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

/// The directories beneath `root` whose `.git` file leads to `repository`.
///
/// # Errors
/// Where the tree cannot be looked through, or is too large for that.
pub(crate) fn work_trees_of(view: View<'_>, root: &[u8], repository: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
    let mut found = Vec::new();
    for_each_git(view, root, |directory, name, is_directory| {
        let leads = |text: Vec<u8>| target_of(directory, &text).as_deref() == Some(repository);
        if !is_directory && view.read(&join(directory, name), MAX_POINTER_BYTES).is_some_and(leads) {
            found.push(directory.to_vec());
        }
    })?;
    Ok(found)
}

/// A file in the tree that is the root of `view` which leads git out of that tree, so that
/// another place of the tree gives it another meaning: `.git` of a work tree, `gitdir` of what
/// a repository keeps of one.
///
/// # Errors
/// Where the tree cannot be looked through, or is too large for that.
pub(crate) fn leads_out(view: View<'_>) -> Result<Option<Vec<u8>>, Errno> {
    let mut found = None;
    for_each_git(view, b"/", |directory, name, is_directory| {
        let git = join(directory, name);
        if !is_directory {
            // What cannot be read is taken for one.
            let stays = |text: Vec<u8>| !text.starts_with(b"gitdir:") || stays_beneath(view, directory, &text);
            if !view.read(&git, MAX_POINTER_BYTES).is_some_and(stays) {
                found = Some(git);
            }
            return;
        }
        for kept in kept_of_work_trees(view, &git).iter().map(|kept| join(kept, b"gitdir")) {
            // An absolute one means the same from everywhere.
            let out = |text: Vec<u8>| {
                let text = text.strip_suffix(b"\n").unwrap_or(&text);
                !text.starts_with(b"/") && place_of(parent(&kept), text).is_none()
            };
            if view.read(&kept, MAX_POINTER_BYTES).is_some_and(out) {
                found = Some(kept);
            }
        }
    })?;
    Ok(found)
}

/// What leads git, by its text, along a way that `passes` a place: `.git` of a work tree,
/// `gitdir` of what a repository keeps of one and, with `addresses`, a remote's on this machine.
///
/// # Errors
/// Where the tree cannot be looked through, or is too large for that.
pub(crate) fn leading_through(
    view: View<'_>,
    root: &[u8],
    addresses: bool,
    passes: &dyn Fn(&[u8]) -> bool,
) -> Result<Option<Vec<u8>>, Errno> {
    let mut found = None;
    for_each_git(view, root, |directory, name, is_directory| {
        let git = join(directory, name);
        if !is_directory {
            let text = view.read(&git, MAX_POINTER_BYTES).unwrap_or_default();
            if text.strip_prefix(b"gitdir:").is_some_and(|place| passes(&at(directory, place.trim_ascii()))) {
                found = Some(git);
            }
            return;
        }
        for kept in kept_of_work_trees(view, &git) {
            let file = join(&kept, b"gitdir");
            let text = view.read(&file, MAX_POINTER_BYTES).unwrap_or_default();
            if !text.is_empty() && passes(&at(&kept, text.trim_ascii())) {
                found = Some(file);
            }
        }
        if addresses {
            let settings = join(&git, b"config");
            let text = view.read(&settings, MAX_SETTINGS_BYTES).unwrap_or_default();
            if local_addresses(&settings, &text).iter().any(|place| passes(place)) {
                found = Some(settings);
            }
        }
    })?;
    Ok(found)
}

/// Whether a link to the directory `top` could lead git from one repository to another: one is
/// in it, or a link to a directory, or more than is looked through. With `only_links` a
/// repository does not count.
pub(crate) fn may_lead_elsewhere(view: View<'_>, top: &[u8], only_links: bool) -> bool {
    let (mut waiting, mut seen) = (vec![top.to_vec()], 0);
    let is_directory =
        |path: &[u8]| view.stat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
    while let Some(directory) = waiting.pop() {
        let (mut links, mut has_git) = (Vec::new(), false);
        let listed = view.list(&directory, |name, kind| {
            seen += 1;
            has_git |= kind == FileType::Directory && super::fold(name).as_ref() == b".git";
            match kind {
                FileType::Directory | FileType::Unknown => waiting.push(join(&directory, name)),
                FileType::Symlink => links.push(join(&directory, name)),
                _ => {}
            }
        });
        let leads = |link: &Vec<u8>| view.resolve_end(link).is_some_and(|end| is_directory(&end));
        let is_closed = matches!(listed, Err(errno) if !matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::ACCESS));
        if is_closed || has_git && !only_links || seen > MAX_LOOKED_INTO || links.iter().any(leads) {
            return true;
        }
    }
    false
}

/// Whether the text of a `.git` file leads to a place beneath the root of the view, wherever
/// that is.
fn stays_beneath(view: View<'_>, directory: &[u8], text: &[u8]) -> bool {
    let is_relative = text.strip_prefix(b"gitdir: ").is_some_and(|place| !place.starts_with(b"/"));
    is_relative && target_of(directory, text).is_some_and(|target| view.stat(&target).is_ok())
}

/// The directories that the repository `git` keeps of other work trees.
fn kept_of_work_trees(view: View<'_>, git: &[u8]) -> Vec<Vec<u8>> {
    let trees = join(git, b"worktrees");
    let mut kept = Vec::new();
    // What cannot be listed cannot be followed either, and none is the rule.
    let _ = view.list(&trees, |name, _| kept.push(join(&trees, name)));
    kept
}

/// Tells each name `.git` in the tree at `root`, with its directory and whether it is one.
fn for_each_git(view: View<'_>, root: &[u8], mut each: impl FnMut(&[u8], &[u8], bool)) -> Result<(), Errno> {
    let (mut waiting, mut seen) = (vec![root.to_vec()], 0);
    while let Some(directory) = waiting.pop() {
        let mut gits = Vec::new();
        let listed = view.list(&directory, |name, kind| {
            seen += 1;
            if super::fold(name).as_ref() == b".git" {
                gits.push((name.to_vec(), kind == FileType::Directory));
            } else if matches!(kind, FileType::Directory | FileType::Unknown) {
                waiting.push(join(&directory, name));
            }
        });
        match listed {
            // It is gone, or no directory.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            // Its owner may open it again, and git looks into it then.
            Err(Errno::ACCESS) if view.stat(&directory).is_ok_and(|stat| !is_own(&stat)) => {}
            Err(errno) => return Err(errno),
        }
        if seen > MAX_LOOKED_AT {
            return Err(Errno::OVERFLOW);
        }
        gits.iter().for_each(|(name, is_directory)| each(&directory, name, *is_directory));
    }
    Ok(())
}

fn is_own(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw()
}

/// The work trees that the settings of modules in the directory `repository` name.
///
/// # Errors
/// Where they cannot be looked through, or are too many for that.
pub(crate) fn work_trees_of_modules(view: View<'_>, repository: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
    let (mut found, mut waiting, mut seen) = (Vec::new(), vec![join(repository, b"modules")], 0);
    while let Some(directory) = waiting.pop() {
        let (mut inner, mut is_module) = (Vec::new(), false);
        let listed = view.list(&directory, |name, kind| {
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
        if seen > MAX_LOOKED_AT {
            return Err(Errno::OVERFLOW);
        }
        let settings = join(&directory, b"config");
        let text = view.read(&settings, MAX_SETTINGS_BYTES).filter(|_| is_module);
        found.extend(text.and_then(|text| work_tree_of_module(&settings, &text)));
        // A name of several components may begin with that of another module.
        inner.retain(|name| !is_module || !PARTS_OF_MODULE.contains(&name.as_slice()));
        waiting.extend(inner.iter().map(|name| join(&directory, name)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_says_one_place() {
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
