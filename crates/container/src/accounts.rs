//! Identity files of a container. They contain the user of its commands, with the sandbox's home
//! directory; the host names; and the name server. An image has other users, and an engine would
//! expose its host.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use stockade_backend_api::{INSIDE_HOME, StartError};
use stockade_egress::PROXY_ADDRESS_V4;
use stockade_model::SandboxId;

use crate::cannot;
use crate::spec::{ContainerUser, HOSTNAME};

/// Path in the container, and the host's path that is mounted there.
pub(crate) type BindMountPair = (String, PathBuf);

/// Creates the files in this directory, which is made if it does not exist. All sandboxes of a user
/// share them; `id` is the sandbox that needs them.
///
/// # Errors
/// [`StartError`] if they cannot be written.
pub(crate) fn create_account_files(
    directory: &Path,
    user: ContainerUser,
    id: &SandboxId,
) -> Result<Vec<BindMountPair>, StartError> {
    let account_directory = directory.join(format!("{}-{}", user.user, user.group));
    let texts = [
        ("passwd", passwd_text(user)),
        ("group", group_text(user)),
        ("hostname", format!("{HOSTNAME}\n")),
        ("hosts", format!("127.0.0.1\tlocalhost {HOSTNAME}\n::1\tlocalhost ip6-localhost ip6-loopback\n")),
        // Every query is answered by the egress proxy, or not at all.
        ("resolv.conf", format!("nameserver {PROXY_ADDRESS_V4}\n")),
    ];
    let written = || {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&account_directory)?;
        texts.iter().try_for_each(|(name, text)| write_shared_file(&account_directory, name, text, id))
    };
    written().map_err(cannot(format!("write the files of a container to {}", account_directory.display())))?;
    Ok(texts.iter().map(|(name, _)| (format!("/etc/{name}"), account_directory.join(name))).collect())
}

/// Creates a file with this text in an existing directory, readable for all users; `id` is the
/// sandbox that needs it.
///
/// # Errors
/// [`io::Error`] if it cannot be written.
pub(crate) fn write_shared_file(directory: &Path, name: &str, text: &str, id: &SandboxId) -> io::Result<()> {
    let (path, fresh) = (directory.join(name), directory.join(format!(".{name}.{id}")));
    if fs::read_to_string(&path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    // Atomic, because another sandbox may be made at the same time.
    fs::write(&fresh, text)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o644))?;
    fs::rename(&fresh, &path)
}

fn passwd_text(ContainerUser { user, group }: ContainerUser) -> String {
    let own = match user {
        0 => format!("root:x:0:{group}:agent:{INSIDE_HOME}:/bin/sh\n"),
        _ => format!("agent:x:{user}:{group}:agent:{INSIDE_HOME}:/bin/sh\nroot:x:0:0:root:/:/bin/sh\n"),
    };
    own + "nobody:x:65534:65534:nobody:/:/bin/false\n"
}

fn group_text(ContainerUser { group, .. }: ContainerUser) -> String {
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
            let all = create_account_files(directory.path(), ContainerUser { user, group: user }, &id).unwrap();
            let at = |inside: &str| all.iter().find(|one| one.0 == inside).unwrap().1.clone();
            let passwd = at("/etc/passwd");
            let text = fs::read_to_string(&passwd).unwrap();
            let own: Vec<&str> = text.lines().filter(|line| line.contains(&format!(":x:{user}:"))).collect();
            assert_eq!(own, [format!("{name}:x:{user}:{user}:agent:{INSIDE_HOME}:/bin/sh")]);
            assert!(fs::read_to_string(at("/etc/group")).unwrap().contains(&format!("agent:x:{user}:")));
            assert_eq!(fs::metadata(&passwd).unwrap().permissions().mode() & 0o777, 0o644);
        }
        let root_files = create_account_files(directory.path(), ContainerUser { user: 0, group: 0 }, &id).unwrap();
        let inside: Vec<&str> = root_files.iter().map(|one| one.0.as_str()).collect();
        assert_eq!(inside, ["/etc/passwd", "/etc/group", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf"]);
    }
}
