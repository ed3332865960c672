//! Level restricted: no view of one's own, so a private directory on the host
//! and reading by allow-list where something is to be hidden.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use stockade_sys::landlock::{Ruleset, access};

use super::blueprint::allow;
use super::error::LaunchError;

/// Most entries looked at while the readable rest is listed.
const MAX_ENTRIES: usize = 100_000;

/// A directory of the run's own. The init makes and removes it, so that nothing
/// stays where the caller is killed; removed on drop, if the init could not.
#[derive(Debug)]
pub(super) struct PrivateDirectory {
    path: PathBuf,
}

impl PrivateDirectory {
    /// Chooses an unguessable name where temporary files belong.
    pub(super) fn choose() -> Result<Self, LaunchError> {
        let parent = std::env::temp_dir();
        let parent = parent.canonicalize().map_err(|e| LaunchError::Path { path: parent, why: e.to_string() })?;
        let mut bytes = [0_u8; 12];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(LaunchError::call("get random bytes"))?;
        let name: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        Ok(Self { path: parent.join(format!("stockade-{name}")) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // Usually gone by now. Otherwise the standard library removes by
        // descriptor and follows no link.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Allows reading everywhere but in `hidden`, except for what of it is `shown`:
/// Landlock knows no exceptions, so every sibling on the way is allowed by
/// itself. What is made later directly in a directory on the way stays
/// unreadable.
pub(super) fn allow_reads(ruleset: &Ruleset, hidden: &[PathBuf], shown: &[PathBuf]) -> Result<(), LaunchError> {
    let hidden: Vec<&PathBuf> =
        hidden.iter().filter(|h| !shown.iter().any(|s| h.starts_with(s) && !is_strictly_within(h, s))).collect();
    let mut on_the_way: BTreeSet<PathBuf> = BTreeSet::new();
    for path in &hidden {
        on_the_way.extend(path.ancestors().skip(1).map(Path::to_owned));
    }
    let mut budget = MAX_ENTRIES;
    for directory in &on_the_way {
        if hidden.iter().any(|h| directory.starts_with(h)) {
            continue;
        }
        // A directory that cannot be listed cannot be allowed: it stays unread.
        let Ok(entries) = directory.read_dir() else { continue };
        for entry in entries.flatten() {
            budget = budget.checked_sub(1).ok_or_else(|| LaunchError::Path {
                path: directory.clone(),
                why: format!("more than {MAX_ENTRIES} entries stand beside hidden paths"),
            })?;
            let path = entry.path();
            let is_link = entry.file_type().map_or(true, |t| t.is_symlink());
            if !is_link && !on_the_way.contains(&path) && !hidden.contains(&&path) {
                allow_one(ruleset, &path)?;
            }
        }
    }
    for path in shown.iter().filter(|s| hidden.iter().any(|h| is_strictly_within(s, h))) {
        allow_one(ruleset, path)?;
    }
    if hidden.is_empty() { allow(ruleset, Path::new("/"), access::READ_FILE) } else { Ok(()) }
}

fn is_strictly_within(path: &Path, outer: &Path) -> bool {
    path != outer && path.starts_with(outer)
}

/// What vanished since it was listed, or cannot carry a rule, needs none.
fn allow_one(ruleset: &Ruleset, path: &Path) -> Result<(), LaunchError> {
    match allow(ruleset, path, access::READ_FILE) {
        Err(LaunchError::Path { .. }) => Ok(()),
        other => other,
    }
}
