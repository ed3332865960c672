//! Mounts of the host that another process or machine serves.

use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};

use stockade_model::mountinfo::{OWN_MOUNTINFO, parse_mount_points, read_mountinfo};

/// The kernel's limit: `MAXSYMLINKS`.
const MAX_LINKS: usize = 40;
/// Types of filesystems that another process or machine serves; it may never answer.
const SERVED_FILESYSTEMS: &[&str] =
    &["fuse", "nfs", "cifs", "smb", "9p", "ceph", "afs", "autofs", "virtiofs", "gfs", "ocfs", "orangefs"];

/// Mount points at which an access to a file may block forever.
#[derive(Debug)]
pub struct ServedMounts(Vec<PathBuf>);

impl ServedMounts {
    /// Returns the current mount points, except those that contain `here` itself.
    pub fn read_current(here: &Path) -> Self {
        Self::parse_mountinfo(&File::open(OWN_MOUNTINFO).and_then(read_mountinfo).unwrap_or_default(), here)
    }

    /// Returns the same for the text of a mountinfo file.
    pub fn parse_mountinfo(text: &[u8], here: &Path) -> Self {
        let is_served = |kind: &[u8]| SERVED_FILESYSTEMS.iter().any(|served| kind.starts_with(served.as_bytes()));
        let points = parse_mount_points(text).filter(|(point, kind)| is_served(kind) && !here.starts_with(point));
        Self(points.map(|(point, _)| point).collect())
    }

    /// Returns whether the absolute `path` leads to such a mount point, or into the root of a
    /// process, which may have other mounts. Accesses no file there.
    pub fn covers_path(&self, path: &Path) -> bool {
        self.leads_to(path, &mut { MAX_LINKS })
    }

    fn leads_to(&self, path: &Path, links: &mut usize) -> bool {
        let mut at = PathBuf::from("/");
        let mut rest = path.components();
        while let Some(component) = rest.next() {
            match component {
                Component::Normal(name) => at.push(name),
                Component::ParentDir => drop(at.pop()),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
            }
            if self.0.contains(&at) || is_of_process(&at) {
                return true;
            }
            if let Ok(target) = fs::read_link(&at) {
                // The kernel follows no more links either: nothing is reached.
                let Some(remaining) = links.checked_sub(1) else { return !self.0.is_empty() };
                *links = remaining;
                at.pop();
                return self.leads_to(&at.join(target).join(rest.as_path()), links);
            }
        }
        false
    }
}

/// Returns whether `path` is the root or working directory of a process, as procfs links it.
fn is_of_process(path: &Path) -> bool {
    path.starts_with("/proc") && path.file_name().is_some_and(|name| name == "root" || name == "cwd")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_to_served_files_is_recognized_by_its_names() {
        let Ok(directory) = tempfile::tempdir() else { panic!("no directory") };
        let Ok(root) = directory.path().canonicalize() else { panic!("no path") };
        let link = |to: &str, name: &str| assert!(std::os::unix::fs::symlink(to, root.join(name)).is_ok());
        link("served/x", "link");
        link("loop", "loop");
        let served = ServedMounts(vec![root.join("served")]);
        for (path, holds) in [
            ("served", true),
            ("served/deep/file", true),
            ("link", true),
            ("none/../served/x", true),
            ("loop", true),
            ("servedx", false),
            ("other/file", false),
            ("served/..", true),
        ] {
            assert_eq!(served.covers_path(&root.join(path)), holds, "{path}");
        }
        assert!(ServedMounts(Vec::new()).covers_path(Path::new("/proc/self/root/etc/passwd")));
        assert!(!ServedMounts(Vec::new()).covers_path(&root.join("loop")));
    }
}
