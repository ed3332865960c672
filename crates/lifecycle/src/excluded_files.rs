//! Files of the host that are never copied.

use std::collections::HashSet;
use std::fs::{Metadata, metadata, symlink_metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stockade_files::{TreePath, WithholdRule};

/// Hidden files and directories, by path and by device and inode.
#[derive(Clone, Debug, Default)]
pub struct HiddenFiles {
    paths: Vec<PathBuf>,
    objects: HashSet<(u64, u64)>,
}

impl HiddenFiles {
    /// Looks these absolute paths up. For a path that does not exist, only its name is hidden.
    pub fn from_paths(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut hidden = Self::default();
        for path in paths {
            let found = [metadata(&path), symlink_metadata(&path)];
            hidden.objects.extend(found.into_iter().flatten().map(|found| file_identity(&found)));
            hidden.paths.extend(path.canonicalize().ok().filter(|real| *real != path));
            hidden.paths.push(path);
        }
        hidden
    }

    /// Returns whether `path` is hidden or inside a hidden directory. `path` is absolute and
    /// without links.
    pub fn covers_path(&self, path: &Path) -> bool {
        self.paths.iter().any(|hidden| path.starts_with(hidden))
            || path.ancestors().any(|above| symlink_metadata(above).is_ok_and(|found| self.is_object(&found)))
    }

    /// Withholds them from copies of `directory`, whatever their names in it are. So a second name
    /// of a file, or a mount of a directory, is hidden too.
    pub fn withhold_from(self, directory: PathBuf) -> WithholdRule {
        Arc::new(move |path: &TreePath, stat| {
            let path = directory.join(path.as_path());
            let is_hidden = self.paths.iter().any(|hidden| path.starts_with(hidden))
                || self.objects.contains(&(stat.st_dev, stat.st_ino));
            is_hidden.then(|| "it is hidden from runs".to_owned())
        })
    }

    fn is_object(&self, found: &Metadata) -> bool {
        self.objects.contains(&file_identity(found))
    }
}

fn file_identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}
