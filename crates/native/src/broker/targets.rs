//! Objects that carry a protected name somewhere else: where a link of such a
//! name leads, every link on the way, and a directory of hooks that a
//! repository's settings name. Looked up once, before a run.

use std::fs;
use std::path::{Path, PathBuf};

use stockade_model::{Plan, RawText};

/// Links followed from one name.
const MAX_LINKS: usize = 40;
/// Settings larger than this are not read.
const MAX_SETTINGS_BYTES: u64 = 1024 * 1024;

/// The objects that must be as protected as the names in the writable roots of
/// `plan` that lead to them. What cannot be read is skipped: then nothing can
/// be reached by it either.
pub fn linked_units(plan: &Plan) -> Vec<PathBuf> {
    let roots: Vec<&Path> = plan.profile.filesystem.write.iter().map(RawText::as_path).collect();
    linked_units_of(&roots, &plan.profile.filesystem.protect)
}

/// The same for `names` in writable `roots`.
pub(crate) fn linked_units_of(roots: &[&Path], names: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for root in roots {
        for name in names {
            follow(&root.join(name), &mut found);
        }
        found.extend(git_pointers(root));
    }
    found.sort();
    found.dedup();
    found
}

fn follow(name: &Path, found: &mut Vec<PathBuf>) {
    let mut at = name.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(text) = fs::read_link(&at) else { break };
        let Some(directory) = at.parent() else { break };
        // The parent's own links are resolved, so that what is protected is the
        // path under which the broker will see it.
        let Some(next) = resolved(&directory.join(text)) else { break };
        found.push(next.clone());
        at = next;
    }
}

/// The path with every link but a last one followed.
fn resolved(path: &Path) -> Option<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Some(fs::canonicalize(parent).ok()?.join(name)),
        _ => fs::canonicalize(path).ok(),
    }
}

/// `gitdir: PATH` of a `.git` file, `hooksPath` of a repository's settings.
fn git_pointers(root: &Path) -> Vec<PathBuf> {
    let pointer = text(&root.join(".git"));
    let settings = text(&root.join(".git/config"));
    let directory = pointer.iter().flat_map(|t| t.lines()).filter_map(|line| line.strip_prefix("gitdir:"));
    let hooks = settings.iter().flat_map(|t| t.lines()).filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        key.trim().eq_ignore_ascii_case("hooksPath").then_some(value)
    });
    directory
        .chain(hooks)
        .map(|value| root.join(value.trim().trim_matches('"')))
        .map(|path| resolved(&path).unwrap_or(path))
        .filter(|path| path != root)
        .collect()
}

fn text(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    (metadata.is_file() && metadata.len() <= MAX_SETTINGS_BYTES).then(|| fs::read_to_string(path).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn every_link_on_the_way_and_the_end_is_found() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("real/vs")).unwrap();
        symlink("real", root.join("alias")).unwrap();
        symlink("alias/vs", root.join("middle")).unwrap();
        symlink("middle", root.join(".vscode")).unwrap();
        let mut found = Vec::new();
        follow(&root.join(".vscode"), &mut found);
        assert_eq!(found, [root.join("middle"), root.join("real/vs")]);
    }

    #[test]
    fn a_repository_names_its_hooks() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        fs::create_dir_all(root.join(".git")).unwrap();
        fs::write(root.join(".git/config"), "[core]\n\tbare = false\n\thookspath = \"tools/hooks\"\n").unwrap();
        assert_eq!(git_pointers(&root), [root.join("tools/hooks")]);
        fs::remove_dir_all(root.join(".git")).unwrap();
        fs::write(root.join(".git"), "gitdir: ./e\n").unwrap();
        assert_eq!(git_pointers(&root), [root.join("e")]);
    }
}
