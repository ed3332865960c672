//! What is mounted where, in the text of `mountinfo` (proc_pid_mountinfo(5)).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The largest such text that is read, in bytes.
const LIMIT_BYTES: u64 = 16 << 20;
/// As the kernel: `MAXSYMLINKS`.
const MAX_LINKS: usize = 40;
/// Types of filesystems that another process or machine answers for, or does not.
const SERVED: &[&str] =
    &["fuse", "nfs", "cifs", "smb", "9p", "ceph", "afs", "autofs", "virtiofs", "gfs", "ocfs", "orangefs"];

/// What is mounted for this process.
///
/// # Errors
/// Where procfs cannot be read.
pub fn read() -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open("/proc/self/mountinfo")?.take(LIMIT_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// Where a look at a file may wait for another process or machine, without an end.
#[derive(Debug)]
pub struct Served(Vec<PathBuf>);

impl Served {
    /// As it is now, but for what `here` itself lies on.
    pub fn beside(here: &Path) -> Self {
        let text = read().unwrap_or_default();
        let is_served = |kind: &[u8]| SERVED.iter().any(|served| kind.starts_with(served.as_bytes()));
        let points = mounts(&text).filter(|(point, kind)| is_served(kind) && !here.starts_with(point));
        Self(points.map(|(point, _)| point).collect())
    }

    /// Whether the way to `path`, an absolute one, leads there. Nothing there is looked at.
    pub fn holds(&self, path: &Path) -> bool {
        !self.0.is_empty() && self.leads_to(path, &mut { MAX_LINKS })
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
            if self.0.contains(&at) {
                return true;
            }
            if let Ok(target) = fs::read_link(&at) {
                let Some(left) = links.checked_sub(1) else { return true };
                *links = left;
                at.pop();
                return self.leads_to(&at.join(target).join(rest.as_path()), links);
            }
        }
        false
    }
}

/// The mount points, with the type of what is mounted there.
pub fn mounts(text: &[u8]) -> impl Iterator<Item = (PathBuf, &[u8])> {
    entries(text).map(|mount| (mount.point, mount.kind))
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount<'t> {
    /// The number of its filesystem's device, as `major:minor`.
    pub device: &'t [u8],
    /// Which directory or file of that filesystem is mounted.
    pub root: PathBuf,
    /// Where.
    pub point: PathBuf,
    /// Whether it is read-only by its own options.
    pub is_read_only: bool,
    /// The type of its filesystem.
    pub kind: &'t [u8],
}

/// All mounts; a later one at the same point hides an earlier one.
pub fn entries(text: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    let path = |field: &[u8]| PathBuf::from(OsStr::from_bytes(&unescape(field)));
    text.split(|byte| *byte == b'\n').filter_map(move |line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let (device, root, point, options) = (fields.nth(2)?, fields.next()?, fields.next()?, fields.next()?);
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        let is_read_only = options.split(|byte| *byte == b',').any(|option| option == b"ro");
        Some(Mount { device, root: path(root), point: path(point), is_read_only, kind })
    })
}

/// `\040` and the like are bytes in octal.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let octal = field.get(at + 1..at + 4).filter(|_| field[at] == b'\\');
        match octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(field[at]);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_to_what_is_served_is_known_by_its_names() {
        let Ok(directory) = tempfile::tempdir() else { panic!("no directory") };
        let Ok(root) = directory.path().canonicalize() else { panic!("no path") };
        let link = |to: &str, name: &str| assert!(std::os::unix::fs::symlink(to, root.join(name)).is_ok());
        link("served/x", "link");
        link("loop", "loop");
        let served = Served(vec![root.join("served")]);
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
            assert_eq!(served.holds(&root.join(path)), holds, "{path}");
        }
        assert!(!Served(Vec::new()).holds(&root.join("loop")));
    }

    #[test]
    fn mount_points_and_types_are_read() {
        let text = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw\n\
            37 36 0:5 / /dev/pts rw - devpts devpts rw,gid=5\nnonsense\n";
        let found: Vec<_> = mounts(text).collect();
        assert_eq!(found, [("/mnt 2".into(), &b"ext3"[..]), ("/dev/pts".into(), &b"devpts"[..])]);
        let Some(first) = entries(text).next() else { panic!("no mount") };
        assert_eq!((first.device, first.root.to_str(), first.is_read_only), (&b"98:0"[..], Some("/mnt1"), false));
        assert!(entries(b"1 2 0:1 / /a ro,nosuid - tmpfs none rw\n").all(|mount| mount.is_read_only));
    }
}
