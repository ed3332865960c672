//! Paths in a command's text that are in private directories of the run (`/tmp`). The run did not
//! see the host's files there, and its own files there are gone at its end.
//!
//! The text only selects the paths to check; the report contains only the checked facts. This
//! module must not know its callers.

use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use stockade_model::{AttemptPlan, Denial, DenialLayer, DeniedOperation, Grant, PRIVATE_TREES, RawText};

use stockade_launch::PRIVATE_TREE_NAMES;

/// Most paths that are checked.
const MAX_CHECKED_PATHS: usize = 16;
/// Most bytes of text that are searched.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// Bytes that delimit a path in a text, beside white space.
const PATH_DELIMITERS: &[u8] = b"'\"`=;|&<>(){},:";
/// Bytes from which a shell computes another path.
const EXPANSION_BYTES: &[u8] = b"$*?[]~\\!";

/// The paths of one run.
#[derive(Debug)]
pub(crate) struct NamedPaths(Vec<PathBuf>);

impl NamedPaths {
    /// Returns the paths in the command's text that are not the host's inside.
    pub(crate) fn from_plan(plan: &AttemptPlan) -> Self {
        let files = &plan.profile.filesystem;
        let lists = [&files.write, &files.reveal, &files.sockets].into_iter().flatten();
        let shown: Vec<&Path> =
            lists.chain([&plan.workspace, &plan.cwd]).map(RawText::as_path).filter(|path| path.exists()).collect();
        let is_seen = |path: &Path| shown.iter().any(|other| path.starts_with(other) || other.starts_with(path));
        let mut found = Vec::new();
        for word in plan.argv.iter().flat_map(|text| split_words(text.as_bytes())) {
            if let Some(path) = path_of(word, plan.cwd.as_path())
                && !files.hide.iter().any(|hidden| path.starts_with(hidden.as_path()))
                && PRIVATE_TREES.iter().any(|tree| path != Path::new(tree) && path.starts_with(tree))
                && !is_seen(&path)
                && !found.contains(&path)
                && found.len() < MAX_CHECKED_PATHS
            {
                found.push(path);
            }
        }
        Self(found)
    }

    /// Returns the state of the paths at the end. `own` holds the run's own directories.
    pub(crate) fn check_paths(self, own: BorrowedFd<'_>) -> Vec<Denial> {
        let mut found: Vec<Denial> = self.0.into_iter().filter_map(|path| evidence_of(path, own)).collect();
        // A directory represents its content.
        let tops: Vec<PathBuf> = found.iter().map(|denial| denial.object.as_path().to_owned()).collect();
        found.retain(|denial| {
            !tops.iter().any(|top| denial.object.as_path() != top && denial.object.as_path().starts_with(top))
        });
        found
    }
}

fn evidence_of(path: PathBuf, own: BorrowedFd<'_>) -> Option<Denial> {
    let (tree, name) = PRIVATE_TREE_NAMES.iter().find(|(tree, _)| path.starts_with(tree))?;
    let inside = Path::new(name.to_str().ok()?).join(path.strip_prefix(tree).ok()?);
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let is_inside =
        openat2(own, &inside, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), how).is_ok();
    let outside = path.symlink_metadata().ok().map(|found| found.file_type());
    let denial = |operation, rule, grant| {
        Denial::of_unknown_process(operation, RawText::from(path.as_path()), DenialLayer::Mounts, rule, grant)
    };
    if is_inside {
        let others = if outside.is_some() { "; the host's is as it was" } else { "; in the workspace it stays" };
        let rule = format!("a run has a {tree} of its own, which ends with it{others}");
        return Some(denial(DeniedOperation::Create, rule, None));
    }
    let grant = match outside? {
        kind if kind.is_socket() => Grant::Socket(path.clone()),
        _ => Grant::Read(path.clone()),
    };
    Some(denial(DeniedOperation::Read, format!("a run has a {tree} of its own"), Some(grant)))
}

fn split_words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let text = &text[..text.len().min(MAX_TEXT_BYTES)];
    text.split(|byte| byte.is_ascii_whitespace() || PATH_DELIMITERS.contains(byte)).filter(|word| !word.is_empty())
}

/// Returns the path that a word may be, without following links.
fn path_of(word: &[u8], cwd: &Path) -> Option<PathBuf> {
    let word = Path::new(std::ffi::OsStr::from_bytes(word));
    if !word.is_absolute() && !word.starts_with("..")
        || word.as_os_str().as_bytes().iter().any(|b| EXPANSION_BYTES.contains(b))
    {
        return None;
    }
    let mut path = PathBuf::new();
    for part in cwd.join(word).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_in_words() {
        let found = |text: &str, cwd: &str| -> Vec<String> {
            let paths = split_words(text.as_bytes()).filter_map(|word| path_of(word, Path::new(cwd)));
            paths.map(|path| path.display().to_string()).collect()
        };
        assert_eq!(found("echo x>/tmp/out; cat '/tmp/a'", "/w"), ["/tmp/out", "/tmp/a"]);
        assert_eq!(found("cp -r ../lib --to=/tmp/../tmp/./b a/b ./c", "/tmp/x/p"), ["/tmp/x/lib", "/tmp/b"]);
        assert_eq!(found("ls /tmp/*.c /tmp/$X ..", "/tmp/p"), ["/tmp"]);
    }

    #[test]
    fn the_trees_are_those_that_a_run_has() {
        assert_eq!(PRIVATE_TREE_NAMES.iter().map(|(tree, _)| *tree).collect::<Vec<_>>(), PRIVATE_TREES);
    }
}
