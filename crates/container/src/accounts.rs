//! The files by which programs in a container know who they are: the user that
//! commands run as, whose home is the sandbox's. An image knows other users.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use stockade_engine::{INSIDE_HOME, StartError};
use stockade_model::SandboxId;

use crate::spec::User;

/// A path inside, and the one on the host that stands in its place.
pub(crate) type Placed = (String, PathBuf);

/// Has them in this directory, which is made where it is not there. All sandboxes of a
/// user have the same; `id` is that of the one which asks.
///
/// # Errors
/// Where they cannot be written.
pub(crate) fn files(directory: &Path, user: User, id: &SandboxId) -> Result<[Placed; 2], StartError> {
    let place = directory.join(format!("{}-{}", user.user, user.group));
    let named = |inside: &str, name| (inside.to_owned(), place.join(name));
    let all = [named("/etc/passwd", "passwd"), named("/etc/group", "group")];
    write(&place, user, id).map_err(|why| StartError {
        what: format!("cannot write the user of a container to {}: {why}", place.display()),
        hint: None,
    })?;
    Ok(all)
}

fn write(place: &Path, user: User, id: &SandboxId) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(place)?;
    for (name, text) in [("passwd", users(user)), ("group", groups(user))] {
        let (path, fresh) = (place.join(name), place.join(format!(".{name}.{id}")));
        if fs::read_to_string(&path).is_ok_and(|found| found == text) {
            continue;
        }
        // Whole or not at all: another sandbox may be made beside.
        fs::write(&fresh, text)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o644))?;
        fs::rename(&fresh, &path)?;
    }
    Ok(())
}

fn users(User { user, group }: User) -> String {
    let own = match user {
        0 => format!("root:x:0:{group}:agent:{INSIDE_HOME}:/bin/sh\n"),
        _ => format!("agent:x:{user}:{group}:agent:{INSIDE_HOME}:/bin/sh\nroot:x:0:0:root:/:/bin/sh\n"),
    };
    own + "nobody:x:65534:65534:nobody:/:/bin/false\n"
}

fn groups(User { group, .. }: User) -> String {
    let root = if group == 0 { "" } else { "root:x:0:\n" };
    format!("agent:x:{group}:\n{root}nogroup:x:65534:\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_is_known_once_with_the_home_of_the_sandbox() {
        let directory = tempfile::tempdir().unwrap();
        let id = SandboxId::from_random([1; 16]);
        for (user, name) in [(0, "root"), (1000, "agent")] {
            let [passwd, group] = files(directory.path(), User { user, group: user }, &id).unwrap();
            let text = fs::read_to_string(&passwd.1).unwrap();
            let own: Vec<&str> = text.lines().filter(|line| line.contains(&format!(":x:{user}:"))).collect();
            assert_eq!(own, [format!("{name}:x:{user}:{user}:agent:{INSIDE_HOME}:/bin/sh")]);
            assert!(fs::read_to_string(&group.1).unwrap().contains(&format!("agent:x:{user}:")));
            assert_eq!(fs::metadata(&passwd.1).unwrap().permissions().mode() & 0o777, 0o644);
        }
        let again = files(directory.path(), User { user: 0, group: 0 }, &id).unwrap();
        assert_eq!(again[0].0, "/etc/passwd");
    }
}
