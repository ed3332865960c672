//! Directories in which control groups can be made on this machine: version 2, version 1 or both
//! (cgroups(7)). The user is root, or the directory is delegated to the user.
//!
//! Must not depend on limits.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// A resource that a control group can count or limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    Pids,
    Memory,
    Cpu,
    /// Version 1 has a separate controller for processor time; in version 2 every group counts it.
    CpuTime,
    Io,
    /// A controller in version 1; in version 2 every group can be frozen.
    Freezer,
}

impl Controller {
    pub(super) const ALL: [Self; 6] = [Self::Pids, Self::Memory, Self::Cpu, Self::CpuTime, Self::Io, Self::Freezer];

    fn v1_name(self) -> &'static str {
        match self {
            Self::Pids => "pids",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::CpuTime => "cpuacct",
            Self::Io => "blkio",
            Self::Freezer => "freezer",
        }
    }

    /// Returns the name in `cgroup.controllers`, if there is one.
    fn v2_name(self) -> Option<&'static str> {
        match self {
            Self::Pids => Some("pids"),
            Self::Memory => Some("memory"),
            Self::Cpu => Some("cpu"),
            Self::Io => Some("io"),
            Self::CpuTime | Self::Freezer => None,
        }
    }
}

/// Version of a group's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CgroupVersion {
    One,
    Two,
}

/// A directory beneath which groups with these controllers can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupBase {
    pub(super) version: CgroupVersion,
    pub(super) path: PathBuf,
    pub(super) controllers: Vec<Controller>,
}

/// Returns base directories for the available ones of the `controller_list` controllers.
///
/// # Errors
/// The reason why there is none, for display.
pub(super) fn find_bases(controller_list: &[Controller]) -> Result<Vec<GroupBase>, String> {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let mounts = parse_cgroup_mounts(&read("/proc/self/mountinfo")?);
    if mounts.is_empty() {
        return Err("no control groups are mounted".to_owned());
    }
    let own = read("/proc/self/cgroup")?;
    let mut remaining = controller_list.to_vec();
    let mut found = Vec::new();
    for mount in mounts.iter().filter(|mount| mount.version == CgroupVersion::One) {
        let here: Vec<Controller> = remaining.iter().copied().filter(|c| mount.has_controller(c.v1_name())).collect();
        let path = here.first().and_then(|c| mount.directory_of(own_path(&own, c.v1_name())?));
        if let Some(path) = path.filter(|path| may_make(path)) {
            remaining.retain(|controller| !here.contains(controller));
            found.push(GroupBase { version: CgroupVersion::One, path, controllers: here });
        }
    }
    let two = mounts.iter().find(|mount| mount.version == CgroupVersion::Two);
    if let (Some(mount), Some(path)) = (two, own_path(&own, "")) {
        found.extend(mount.directory_of(path).and_then(|path| find_nearest_base(&path, &mount.point, &remaining)));
    }
    if found.is_empty() {
        return Err("this user may not write to any control group here".to_owned());
    }
    Ok(found)
}

/// Returns the directory of a version 2 group, given its path in the hierarchy.
pub(super) fn resolve_group_path(group: &Path) -> Option<PathBuf> {
    let mounts = parse_cgroup_mounts(&fs::read_to_string("/proc/self/mountinfo").ok()?);
    mounts.iter().find(|mount| mount.version == CgroupVersion::Two)?.directory_of(group)
}

/// Returns the nearest directory from `own` upwards that passes controllers to its groups. A group
/// with processes cannot, except for the root (cgroups(7), "no internal processes"). For some
/// controllers the kernel would accept it, but then no process could enter the groups beneath it.
fn find_nearest_base(own: &Path, root: &Path, controller_list: &[Controller]) -> Option<GroupBase> {
    let named: Vec<&str> = controller_list.iter().filter_map(|controller| controller.v2_name()).collect();
    let words = |path: &Path, file: &str| {
        let text = fs::read_to_string(path.join(file)).unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for path in own.ancestors().take_while(|path| path.starts_with(root)) {
        if !may_make(path) || holds_processes(path) {
            continue;
        }
        for name in words(path, "cgroup.controllers").iter().filter(|name| named.contains(&name.as_str())) {
            if !words(path, "cgroup.subtree_control").contains(name) {
                // The kernel refuses this if the group has processes; then the parent is tried.
                let _ = fs::write(path.join("cgroup.subtree_control"), format!("+{name}"));
            }
        }
        let enabled_names = words(path, "cgroup.subtree_control");
        let has =
            |controller: &&Controller| controller.v2_name().is_none_or(|name| enabled_names.iter().any(|g| g == name));
        let controllers: Vec<Controller> = controller_list.iter().filter(has).copied().collect();
        if controllers.iter().any(|controller| controller.v2_name().is_some()) {
            return Some(GroupBase { version: CgroupVersion::Two, path: path.to_owned(), controllers });
        }
    }
    None
}

/// Returns whether the group itself has processes. The root may have some; it is recognised by the
/// missing file `cgroup.type`.
fn holds_processes(path: &Path) -> bool {
    let is_empty = || fs::read_to_string(path.join("cgroup.procs")).is_ok_and(|text| text.trim().is_empty());
    path.join("cgroup.type").exists() && !is_empty()
}

/// Returns whether this user can make groups beneath `path` and move its processes there.
fn may_make(path: &Path) -> bool {
    access(path, Access::WRITE_OK | Access::EXEC_OK).is_ok()
        && access(path.join("cgroup.procs"), Access::WRITE_OK).is_ok()
}

#[derive(Debug, PartialEq, Eq)]
struct CgroupMount {
    version: CgroupVersion,
    /// The part of the hierarchy that is mounted.
    root: PathBuf,
    point: PathBuf,
    options: String,
}

impl CgroupMount {
    fn has_controller(&self, controller: &str) -> bool {
        self.options.split(',').any(|option| option == controller)
    }

    /// Returns the directory of the group `path` of the hierarchy.
    fn directory_of(&self, path: &Path) -> Option<PathBuf> {
        let beneath = path.strip_prefix(&self.root).ok()?;
        (!beneath.starts_with("..")).then(|| self.point.join(beneath))
    }
}

/// Lists the hierarchies in `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
fn parse_cgroup_mounts(mountinfo: &str) -> Vec<CgroupMount> {
    let mount = |line: &str| {
        let (mount_fields, kind) = line.split_once(" - ")?;
        let mut mount_fields = mount_fields.split(' ').skip(3);
        let (root, point) = (mount_fields.next()?, mount_fields.next()?);
        let mut kind = kind.split(' ');
        let version = match kind.next()? {
            "cgroup" => CgroupVersion::One,
            "cgroup2" => CgroupVersion::Two,
            _ => return None,
        };
        // A path with blanks is escaped there; no hierarchy is mounted on such a path.
        let options = kind.nth(1)?.to_owned();
        Some(CgroupMount { version, root: root.into(), point: point.into(), options })
    };
    mountinfo.lines().filter_map(mount).collect()
}

/// Returns the group of this process in the hierarchy with `controller`; an empty name means
/// version 2 (`/proc/self/cgroup`, cgroups(7)).
fn own_path<'text>(own: &'text str, controller: &str) -> Option<&'text Path> {
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        controllers.split(',').any(|name| name == controller).then(|| Path::new(path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "\
23 1 254:0 / / rw - ext4 /dev/root rw
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /box /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn hierarchies_are_found_with_their_mounted_part() {
        let mounts = parse_cgroup_mounts(MOUNTINFO);
        assert_eq!(mounts.len(), 3);
        assert!(mounts[0].has_controller("cpuacct") && !mounts[0].has_controller("memory"));
        assert_eq!(mounts[1].directory_of(Path::new("/box/a")), Some("/sys/fs/cgroup/memory/a".into()));
        assert_eq!(mounts[1].directory_of(Path::new("/other")), None);
        assert_eq!(mounts[2].version, CgroupVersion::Two);
        assert_eq!(mounts[2].directory_of(Path::new("/../x")), None);
    }

    #[test]
    fn a_group_with_processes_gives_no_controllers() {
        let top = tempfile::tempdir().unwrap();
        let group = |name: &str, processes: &str| {
            let path = top.path().join(name);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("cgroup.type"), "domain\n").unwrap();
            fs::write(path.join("cgroup.procs"), processes).unwrap();
            for file in ["cgroup.controllers", "cgroup.subtree_control"] {
                fs::write(path.join(file), "memory pids\n").unwrap();
            }
            path
        };
        let (slice, scope) = (group("slice", ""), group("slice/scope", "77\n"));
        let controller_list = [Controller::Memory, Controller::Cpu];
        let base = find_nearest_base(&scope, top.path(), &controller_list).unwrap();
        assert_eq!((base.path, base.controllers), (slice, vec![Controller::Memory]));
        fs::remove_file(scope.join("cgroup.type")).unwrap();
        assert_eq!(find_nearest_base(&scope, top.path(), &controller_list).unwrap().path, scope);
    }

    #[test]
    fn the_own_group_is_that_of_the_controller() {
        let own = "4:memory:/box/c9\n2:cpu,cpuacct:/\n0::/user.slice/a:b\n";
        assert_eq!(own_path(own, "memory"), Some(Path::new("/box/c9")));
        assert_eq!(own_path(own, "cpuacct"), Some(Path::new("/")));
        assert_eq!(own_path(own, ""), Some(Path::new("/user.slice/a:b")));
        assert_eq!(own_path(own, "pids"), None);
    }
}
