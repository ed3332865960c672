//! Checks whether a path may be trusted: every name that the kernel looks up on the way to it, including
//! symbolic links, and the users who may change those names.
//!
//! A configuration is only as trustworthy as the most writable directory on the way to it. The walk is done
//! by hand, because `realpath(3)` returns neither the links that it followed nor the target of a dangling
//! link.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use stockade_model::{RawText, shell_quoted};

/// Most symbolic links that are followed, as in the kernel (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Limit of the walk: a path of the kernel has at most 4,096 bytes.
const MAX_PATH_STEPS: usize = 4_096;

/// File with the owner of all objects whose owner is not mapped here (user_namespaces(7)).
const OVERFLOW_UID_FILE: &str = "/proc/sys/kernel/overflowuid";

/// File with the users that are mapped in this user namespace.
const UID_MAP_FILE: &str = "/proc/self/uid_map";

/// One name that is looked up on the way to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStep {
    /// The directory, without symbolic links, and the name in it.
    pub location: PathBuf,
    /// The object of that name.
    pub object: StepObject,
    /// The symbolic link that led here, if any.
    pub link: Option<PathBuf>,
}

/// Object of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepObject {
    /// No object: one could be created.
    Missing,
    /// A symbolic link of this owner.
    Link {
        /// User id of the owner.
        owner: u32,
    },
    /// A directory or file.
    Other {
        /// User id of the owner.
        owner: u32,
        /// Type and permission bits (inode(7)), see [`mode_for_others`].
        mode: u32,
    },
}

/// The way to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathTrace {
    /// Every name that is looked up, in order.
    pub steps: Vec<PathStep>,
    /// The end of the way, without symbolic links; it need not exist.
    pub end: PathBuf,
}

/// Resolves an absolute path as the kernel does. Parts that do not exist, or that cannot be examined, are
/// kept unchanged. The walk ends at an unreadable symbolic link, and after 40 links.
pub fn trace_path(path: &Path) -> PathTrace {
    let mut waiting: VecDeque<(OsString, Option<PathBuf>)> = split_path_names(path).map(|name| (name, None)).collect();
    let mut trace = PathTrace { steps: Vec::new(), end: PathBuf::from("/") };
    let mut links = 0;
    while let Some((name, link)) = waiting.pop_front() {
        if name == ".." {
            trace.end.pop();
            continue;
        }
        let location = trace.end.join(name);
        let object = match location.symlink_metadata() {
            Err(_) => StepObject::Missing,
            Ok(metadata) if metadata.is_symlink() => StepObject::Link { owner: metadata.uid() },
            Ok(metadata) => StepObject::Other {
                owner: metadata.uid(),
                mode: mode_for_others(metadata.uid(), metadata.gid(), metadata.mode()),
            },
        };
        trace.steps.push(PathStep { location: location.clone(), object, link });
        if !matches!(object, StepObject::Link { .. }) {
            trace.end = location;
            continue;
        }
        links += 1;
        let target = location.read_link().ok().filter(|_| links <= MAX_LINKS && trace.steps.len() < MAX_PATH_STEPS);
        let Some(target) = target else { break };
        if target.is_absolute() {
            trace.end = PathBuf::from("/");
        }
        for name in split_path_names(&target).collect::<Vec<_>>().into_iter().rev() {
            waiting.push_front((name, Some(location.clone())));
        }
    }
    trace
}

fn split_path_names(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// Reason why a path is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// An object on the way belongs to another user.
    #[error(
        "{} belongs to user {owner}, who could change it; it must be {}\nhint: sudo chown {} {}{}",
        quote_path(location), describe_owners(*trusted), chown_target(*trusted), shell_word(location),
        match trusted {
            0 => "; where it is another user's home use root's own: sudo -H",
            _ => ", or set XDG_CONFIG_HOME and XDG_STATE_HOME to directories of yours",
        }
    )]
    Owner {
        /// The object.
        location: PathBuf,
        /// User id of the owner.
        owner: u32,
        /// The user who may own it besides root.
        trusted: u32,
    },
    /// The file has another name, by which it could be written.
    #[error(
        "{0} has a second hard link, through which a run could write it\nhint: replace it by a copy: cp {1} {1}.new && mv {1}.new {1}",
        quote_path(location),
        shell_word(location)
    )]
    Linked {
        /// The file.
        location: PathBuf,
    },
    /// Other users may write an object on the way.
    #[error("{} may be written by {} (mode {:04o})\nhint: chmod {} {}", quote_path(location), describe_writers(*mode).0, mode & 0o7777, describe_writers(*mode).1, shell_word(location))]
    Writable {
        /// The object.
        location: PathBuf,
        /// Permission bits of the object.
        mode: u32,
    },
}

fn quote_path(path: &Path) -> String {
    format!("`{}`", RawText::from(path).to_escaped())
}

fn shell_word(path: &Path) -> String {
    shell_quoted(&RawText::from(path).to_escaped())
}

fn describe_owners(trusted: u32) -> String {
    if trusted == 0 { "root's".to_owned() } else { format!("yours (user {trusted}) or root's") }
}

fn chown_target(trusted: u32) -> String {
    if trusted == 0 { "root".to_owned() } else { trusted.to_string() }
}

/// Returns the writers of an object, and the change of its mode that removes them.
fn describe_writers(mode: u32) -> (&'static str, &'static str) {
    match (mode & 0o020 != 0, mode & 0o002 != 0) {
        (true, true) => ("its group and by everybody", "go-w"),
        (true, false) => ("its group", "g-w"),
        _ => ("everybody", "o-w"),
    }
}

/// Checks that only root and `trusted` can change the object of `path`, or its content. Every existing
/// object on the way must belong to one of them, and must not be writable by others. A directory with the
/// sticky bit may be writable, because only their owners can replace names in it (unlink(2)).
///
/// # Errors
/// The first object that does not fit.
pub fn require_trusted_path(path: &Path, trusted: u32) -> Result<(), TrustError> {
    for step in trace_path(path).steps {
        let (owner, mode) = match step.object {
            StepObject::Missing => continue,
            StepObject::Link { owner } => (owner, 0),
            StepObject::Other { owner, mode } => (owner, mode),
        };
        require_trusted_object(&step.location, owner, mode, trusted)?;
    }
    Ok(())
}

/// Checks the same for one object.
pub(crate) fn require_trusted_object(location: &Path, owner: u32, mode: u32, trusted: u32) -> Result<(), TrustError> {
    if owner != 0 && owner != trusted && Some(owner) != unmapped_owner() {
        return Err(TrustError::Owner { location: location.to_owned(), owner, trusted });
    }
    const STICKY_DIRECTORY: u32 = 0o041_000;
    let is_sticky = mode & 0o171_000 == STICKY_DIRECTORY;
    if mode & 0o022 != 0 && !is_sticky {
        return Err(TrustError::Writable { location: location.to_owned(), mode });
    }
    Ok(())
}

/// Returns the mode without the group's write permission if the owner is the only member of that group.
/// Many systems give each user such a group, and a umask of 002 (adduser(8), `USERGROUPS_ENAB` in
/// login.defs(5)).
pub(crate) fn mode_for_others(owner: u32, group: u32, mode: u32) -> u32 {
    const GROUP_WRITE_BIT: u32 = 0o020;
    const OTHERS_WRITE_BIT: u32 = 0o002;
    if mode & (GROUP_WRITE_BIT | OTHERS_WRITE_BIT) != GROUP_WRITE_BIT {
        return mode;
    }
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let is_private = is_private_group((owner, group), &read("/etc/passwd"), &read("/etc/group"));
    if is_private { mode & !GROUP_WRITE_BIT } else { mode }
}

/// Returns whether `group` has the name of its only member, the user `owner`, by the texts of passwd(5) and
/// group(5).
fn is_private_group((owner, group): (u32, u32), passwd: &str, groups: &str) -> bool {
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let is = |entry: &[String], at: usize, id: u32| entry.get(at).is_some_and(|field| field.parse() == Ok(id));
    let users: Vec<Vec<String>> = passwd.lines().map(fields).filter(|entry| is(entry, 3, group)).collect();
    let groups: Vec<Vec<String>> = groups.lines().map(fields).filter(|entry| is(entry, 2, group)).collect();
    let ([user], [group]) = (&users[..], &groups[..]) else { return false };
    let members = group.get(3).map_or("", |members| members.trim());
    is(user, 2, owner)
        && user.first() == group.first()
        && (members.is_empty() || Some(members) == user.first().map(String::as_str))
}

/// Checks that a file has one name (link(2)): a hard link in a workspace could be used to write it.
pub(crate) fn require_one_name(location: &Path, links: u64) -> Result<(), TrustError> {
    if links > 1 { Err(TrustError::Linked { location: location.to_owned() }) } else { Ok(()) }
}

/// Returns the number that stands for the host's root in a user namespace which does not map it. `None` if
/// every user is mapped.
fn unmapped_owner() -> Option<u32> {
    let map = std::fs::read_to_string(UID_MAP_FILE).ok()?;
    let fields: Vec<&str> = map.split_ascii_whitespace().collect();
    if fields == ["0", "0", "4294967295"] {
        return None;
    }
    std::fs::read_to_string(OVERFLOW_UID_FILE).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn every_link_on_the_way_is_seen_whether_or_not_it_leads_anywhere() {
        let root = tempfile::tempdir().unwrap();
        let top = root.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("ws/sub")).unwrap();
        std::fs::create_dir(top.join("home")).unwrap();
        let cases = [
            ("home/dangling", "../ws/new", "home/dangling/config.toml", "ws/new/config.toml"),
            ("home/through", "../ws/sub/../../home", "home/through/x", "home/x"),
            ("home/twice", "dangling", "home/twice", "ws/new"),
        ];
        for (link, target, path, end) in cases {
            symlink(target, top.join(link)).unwrap();
            let trace = trace_path(&top.join(path));
            assert_eq!(trace.end, top.join(end), "{path}");
            let passes =
                trace.steps.iter().any(|step| step.location.starts_with(top.join("ws")) && step.link.is_some());
            assert!(passes, "{path}: {trace:?}");
        }
        symlink("loop", top.join("loop")).unwrap();
        assert!(trace_path(&top.join("loop/x")).steps.len() < 60);
    }

    #[test]
    fn files_writable_by_others_are_not_trusted() {
        let root = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let dir = root.path().join("dir");
        let file = dir.join("file");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(&file, "").unwrap();
        let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(&dir, 0o755);
        mode(&file, 0o644);
        require_trusted_path(&file, user).unwrap();
        for bits in [0o100_664, 0o040_775] {
            assert!(require_trusted_object(&file, user, bits, user).is_err(), "{bits:o}");
        }
        for (path, bits) in [(&file, 0o666), (&file, 0o646), (&dir, 0o757), (&dir, 0o777)] {
            let before = path.metadata().unwrap().permissions().mode();
            mode(path, bits);
            let error = require_trusted_path(&file, user).unwrap_err();
            assert!(matches!(&error, TrustError::Writable { location, .. } if location == path), "{error}");
            assert!(error.to_string().contains("\nhint: chmod "), "{error}");
            mode(path, before);
        }
        // Like /tmp.
        mode(&dir, 0o1777);
        require_trusted_path(&file, user).unwrap();
        // A missing file has no owner.
        require_trusted_path(&dir.join("none"), user).unwrap();
    }

    #[test]
    fn a_group_of_the_owner_alone_is_the_owner() {
        let passwd = "root:x:0:0::/root:/bin/sh\ndev:x:1000:1000::/home/dev:/bin/sh\nops:x:1001:100::/:/bin/sh\n";
        for (ids, groups, expected) in [
            ((1000, 1000), "dev:x:1000:\n", true),
            ((1000, 1000), "dev:x:1000:dev\n", true),
            ((1000, 1000), "dev:x:1000:dev,ops\n", false),
            ((1000, 1000), "staff:x:1000:\n", false),
            ((1001, 1000), "dev:x:1000:\n", false),
            ((1001, 100), "users:x:100:\n", false),
            ((1000, 50), "staff:x:50:\n", false),
            ((1000, 1000), "dev:x:1000:\nother:x:1000:ops\n", false),
        ] {
            assert_eq!(is_private_group(ids, passwd, groups), expected, "{ids:?} {groups}");
        }
    }

    #[test]
    fn files_of_another_user_are_not_trusted() {
        let error = require_trusted_object(Path::new("/x"), 12_345, 0o100_644, 1_000).unwrap_err();
        assert!(error.to_string().contains("`/x` belongs to user 12345"), "{error}");
        assert!(require_trusted_object(Path::new("/x"), 1_000, 0o100_644, 1_000).is_ok());
        assert!(require_trusted_object(Path::new("/x"), 0, 0o100_644, 1_000).is_ok());
        let error = require_trusted_object(Path::new("/x"), 1_000, 0o100_644, 0).unwrap_err();
        assert!(error.to_string().contains("must be root's"), "{error}");
    }
}
