//! Compares the required mounts of a container with the mounts found in it.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use stockade_backend_api::{INSIDE_HOME, INSIDE_WORKSPACE, StartError};
use stockade_model::RawText;
use stockade_model::mountinfo::{self, MountInfoEntry};

use crate::in_container::ContainerMounts;
use crate::spec::LAUNCHER_PATH;
use crate::{ContainerEngineKind, cannot};

/// Device nodes of every container.
const REQUIRED_DEVICES: [&str; 8] = ["null", "zero", "full", "random", "urandom", "tty", "console", "ptmx"];
/// Kernel filesystems in which a runtime mounts to hide or to protect.
const KERNEL_TREES: [&str; 2] = ["/proc", "/sys"];

/// File or directory of the host that a container shares.
#[derive(Clone, Debug)]
pub(crate) struct SharedObject {
    /// Path on the host.
    path: PathBuf,
    /// Path in the container.
    inside: &'static str,
    device: u64,
    inode: u64,
}

/// Required mounts of a container.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedMounts {
    kind: ContainerEngineKind,
    shared: Vec<SharedObject>,
    /// Stockade's own files, and volumes of the image.
    read_only: BTreeSet<PathBuf>,
}

impl ExpectedMounts {
    /// Creates the list for a container with these files of the host, which were examined before
    /// the engine got their paths.
    pub(crate) fn new(kind: ContainerEngineKind, shared: Vec<SharedObject>, read_only: BTreeSet<PathBuf>) -> Self {
        Self { kind, shared, read_only }
    }

    /// Returns the paths to examine in the container.
    pub(crate) fn paths_to_examine(&self) -> Vec<RawText> {
        self.shared.iter().map(|shared| RawText::from(Path::new(shared.inside))).collect()
    }

    /// Compares them with the found mounts. A runtime's own kernel has its own inode numbers and
    /// devices.
    ///
    /// # Errors
    /// [`StartError`] for the first difference.
    pub(crate) fn require_match(&self, found: &ContainerMounts, is_host_kernel: bool) -> Result<(), StartError> {
        let own = File::open(mountinfo::OWN_MOUNTINFO)
            .and_then(mountinfo::read_mountinfo)
            .map_err(cannot("read /proc/self/mountinfo"))?;
        let own: Vec<MountInfoEntry<'_>> = mountinfo::parse_mounts(&own).collect();
        let mounts: Vec<MountInfoEntry<'_>> = mountinfo::parse_mounts(found.text.as_bytes()).collect();
        for mount in &mounts {
            if !(self.is_expected(mount) || self.is_nested(mount, &own)) {
                let how = if mount.is_read_only { "read-only" } else { "writable" };
                return Err(unexpected_mount_error(&format!(
                    "a {how} mount at {}",
                    RawText::from(mount.point.as_path()).to_escaped()
                )));
            }
        }
        let points = ["/", INSIDE_WORKSPACE, INSIDE_HOME, LAUNCHER_PATH].map(Path::new).into_iter();
        let protected = is_host_kernel.then_some(Path::new("/proc/sys"));
        for point in points.chain(protected) {
            if !mounts.iter().any(|mount| mount.point == point) {
                return Err(unexpected_mount_error(&format!("nothing mounted at {}", point.display())));
            }
        }
        if is_host_kernel { self.require_objects(found) } else { Ok(()) }
    }

    fn require_objects(&self, found: &ContainerMounts) -> Result<(), StartError> {
        for shared in &self.shared {
            let is_it = |path: &RawText| path.as_path() == Path::new(shared.inside);
            let there = found.objects.iter().find(|object| is_it(&object.path));
            if there.is_none_or(|there| (there.device, there.inode) != (shared.device, shared.inode)) {
                let path = RawText::from(shared.path.as_path()).to_escaped();
                return Err(unexpected_mount_error(&format!("another object than {path} at {}", shared.inside)));
            }
        }
        let is_known = |path: &Path| REQUIRED_DEVICES.iter().any(|name| Path::new("/dev").join(name) == path);
        match found.devices.iter().find(|device| !is_known(device.as_path())) {
            Some(device) => Err(unexpected_mount_error(&format!("the device {}", device.to_escaped()))),
            None => Ok(()),
        }
    }

    fn is_expected(&self, mount: &MountInfoEntry<'_>) -> bool {
        let point = mount.point.as_path();
        let is_writable_temp = || match point.to_str() {
            Some("/tmp" | "/run" | "/dev" | "/dev/shm") => true,
            // Podman adds it to every read-only system.
            Some("/var/tmp") => self.kind == ContainerEngineKind::Podman,
            _ => false,
        };
        match (point.to_str(), mount.kind) {
            (Some("/" | LAUNCHER_PATH), _) => mount.is_read_only,
            (Some(INSIDE_WORKSPACE | INSIDE_HOME), _) => !mount.is_read_only,
            (Some("/dev/pts" | "/dev/console"), b"devpts") | (Some("/dev/mqueue"), b"mqueue") => true,
            (_, b"tmpfs") if is_writable_temp() => true,
            _ if self.read_only.contains(point) => mount.is_read_only,
            _ => is_of_kernel(mount) || is_device(mount),
        }
    }

    /// Returns whether the host itself has this mount in the workspace or the home directory.
    fn is_nested(&self, mount: &MountInfoEntry<'_>, own: &[MountInfoEntry<'_>]) -> bool {
        self.shared.iter().any(|shared| {
            let Some(rest) = mount.point.strip_prefix(shared.inside).ok().filter(|rest| *rest != Path::new("")) else {
                return false;
            };
            let outside = shared.path.join(rest);
            own.iter().any(|own| own.point == outside && (own.device, &own.root) == (mount.device, &mount.root))
        })
    }
}

/// Returns whether the mount is in a kernel filesystem: that filesystem itself, or an empty or
/// read-only one that hides a part.
fn is_of_kernel(mount: &MountInfoEntry<'_>) -> bool {
    let tree = KERNEL_TREES.iter().find(|tree| mount.point.starts_with(tree));
    let is_whole = tree.is_some_and(|tree| mount.point == Path::new(tree));
    match mount.kind {
        _ if tree.is_none() => false,
        b"proc" => is_whole || mount.is_read_only,
        b"sysfs" | b"cgroup" | b"cgroup2" => mount.is_read_only,
        b"tmpfs" => {
            mount.is_read_only || mount.root == Path::new("/null") || mount.point == Path::new("/sys/fs/cgroup")
        }
        b"devtmpfs" => mount.root == Path::new("/null"),
        _ => false,
    }
}

/// Returns whether the mount is a device. An unprivileged engine cannot make device nodes, and
/// mounts the host's.
fn is_device(mount: &MountInfoEntry<'_>) -> bool {
    let named = REQUIRED_DEVICES.iter().find(|name| Path::new("/dev").join(name) == mount.point);
    let is_same = named.is_some_and(|name| mount.root == Path::new("/").join(name));
    is_same && matches!(mount.kind, b"devtmpfs" | b"tmpfs")
}

/// Records a file of the host before an engine gets its path.
pub(crate) fn record_host_file(path: &Path, inside: &'static str, found: &Metadata) -> SharedObject {
    SharedObject { path: path.to_owned(), inside, device: found.dev(), inode: found.ino() }
}

fn unexpected_mount_error(what: &str) -> StartError {
    let hint = "check the engine's configuration: it can add mounts, devices and hooks to every container; no \
                command ran";
    StartError { what: format!("the container has {what}, which was not requested"), hint: Some(hint.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_container::MountedObject;

    /// Mounts as made by Docker and Podman.
    const USUAL: &str = "1 0 0:39 / / ro - overlay overlay rw\n\
        2 1 0:42 / /proc rw - proc proc rw\n\
        3 1 0:43 / /dev rw - tmpfs tmpfs rw\n\
        4 3 0:44 / /dev/pts rw - devpts devpts rw\n\
        5 1 0:45 / /sys ro - sysfs sysfs ro\n\
        6 5 0:46 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        7 6 0:29 / /sys/fs/cgroup/cpu ro - cgroup cgroup rw\n\
        8 3 0:41 / /dev/mqueue rw - mqueue mqueue rw\n\
        9 1 8:1 /x/launcher /.stockade ro - ext4 /dev/a rw\n\
        10 1 8:1 /x/work /workspace rw - ext4 /dev/a rw\n\
        11 1 8:1 /x/home /home/agent rw - ext4 /dev/a rw\n\
        12 1 8:1 /x/passwd /etc/passwd ro - ext4 /dev/a rw\n\
        13 1 0:48 / /tmp rw - tmpfs tmpfs rw\n\
        14 2 0:42 /sys /proc/sys ro - proc proc rw\n\
        15 2 0:43 /null /proc/keys rw - tmpfs tmpfs rw\n\
        16 2 0:50 / /proc/acpi ro - tmpfs tmpfs ro\n\
        17 1 8:1 /volume /data ro - ext4 /dev/a rw\n";

    fn expected() -> ExpectedMounts {
        let one = |inside, inode| SharedObject { path: format!("/x{inside}").into(), inside, device: 1, inode };
        let shared = vec![one(INSIDE_WORKSPACE, 2), one(INSIDE_HOME, 3), one(LAUNCHER_PATH, 4)];
        ExpectedMounts::new(ContainerEngineKind::Docker, shared, ["/etc/passwd", "/data"].map(PathBuf::from).into())
    }

    fn found(text: &str) -> ContainerMounts {
        let one = |inside: &str, inode| MountedObject { path: inside.into(), device: 1, inode };
        let objects = vec![one(INSIDE_WORKSPACE, 2), one(INSIDE_HOME, 3), one(LAUNCHER_PATH, 4)];
        ContainerMounts { text: text.into(), objects, devices: vec!["/dev/null".into(), "/dev/tty".into()] }
    }

    #[test]
    fn the_usual_mounts_are_expected_and_no_other() {
        assert_eq!(expected().require_match(&found(USUAL), true), Ok(()));
        for added in [
            "8:1 /etc /host ro - ext4 /dev/a rw",
            "8:1 /secrets /run/secrets ro - ext4 /dev/a rw",
            "8:1 / /workspace/.git/hooks rw - ext4 /dev/a rw",
            "0:9 / /var/tmp rw - tmpfs none rw",
            "0:9 / /data rw - tmpfs none rw",
            "8:1 /x /etc/passwd rw - ext4 /dev/a rw",
            "0:42 / /proc/sys rw - proc proc rw",
            "0:45 / /sys/kernel rw - sysfs sysfs rw",
            "0:5 /kmsg /dev/kmsg rw - devtmpfs none rw",
            "0:5 /sda /dev/null rw - devtmpfs none rw",
            "8:1 /x /sys/x ro - ext4 /dev/a rw",
        ] {
            let text = format!("{USUAL}99 1 {added}\n");
            assert!(expected().require_match(&found(&text), true).is_err(), "{added}");
        }
        let podman = ExpectedMounts { kind: ContainerEngineKind::Podman, ..expected() };
        assert_eq!(
            podman.require_match(&found(&format!("{USUAL}99 1 0:9 / /var/tmp rw - tmpfs none rw\n")), true),
            Ok(())
        );
        for line in
            USUAL.lines().filter(|line| [" /workspace ", " / ro", " /proc/sys "].iter().any(|p| line.contains(p)))
        {
            let text = USUAL.replace(line, "");
            assert!(expected().require_match(&found(&text), true).is_err(), "{line}");
        }
        assert!(expected().require_match(&found(&USUAL.replace("/ / ro", "/ / rw")), true).is_err());
    }

    #[test]
    fn a_mounted_object_must_be_the_specified_one() {
        let mut other = found(USUAL);
        other.objects[0].inode = 9;
        assert!(expected().require_match(&other, true).unwrap_err().what.contains("/workspace"));
        assert_eq!(expected().require_match(&other, false), Ok(()), "a kernel of its own has its own numbers");
        let mut more = found(USUAL);
        more.devices.push("/dev/kmsg".into());
        assert!(expected().require_match(&more, true).unwrap_err().what.contains("/dev/kmsg"));
    }
}
