//! What no hint names, place by place, and what stays a plain hint beside it.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::path::Path;

use stockade_model::Grant;
use stockade_policy::{advice_instead_of_grant, find_guarded_name};

const HOME: &str = "/home/u";

fn advice(power: &str) -> Option<String> {
    advice_instead_of_grant(&power.parse::<Grant>().unwrap(), Path::new(HOME))
}

/// The program, the power it lacks, and a part of the advice.
const GUARDED: &[(&str, &str, &str)] = &[
    ("su", "read /etc/shadow", "a run never becomes another user"),
    ("su", "write /run/utmp", "a run never becomes another user"),
    ("sudo", "write /run/sudo/ts/u", "a run never becomes another user"),
    ("sudo", "read /etc/sudoers.d/admin", "a run never becomes another user"),
    ("passwd", "write /etc/.pwd.lock", "a run never becomes another user"),
    ("passwd", "write /etc/shadow", "a run never becomes another user"),
    ("useradd", "write /etc/passwd", "a run never becomes another user"),
    ("apt-get", "write /var/lib/dpkg/lock-frontend", "packages of the system cannot be installed in a run"),
    ("apt-get", "write /var/lib/apt/lists/lock", "packages of the system"),
    ("apt-get", "write /var/cache/apt/archives/lock", "packages of the system"),
    ("dpkg", "write /var/lib/dpkg/lock", "packages of the system"),
    ("dnf", "write /var/lib/rpm/.rpm.lock", "packages of the system"),
    ("pacman", "write /var/lib/pacman/db.lck", "packages of the system"),
    ("apk", "write /lib/apk/db/lock", "packages of the system"),
    ("mount", "write /run/mount/utab", "a run cannot mount"),
    ("mount", "write /dev/sda1", "a run cannot mount"),
    ("sysctl", "write /proc/sys/kernel/hostname", "a run cannot mount"),
    ("systemctl", "socket /run/systemd/private", "a run starts and stops no services"),
    ("systemctl", "socket /run/dbus/system_bus_socket", "a run starts and stops no services"),
    ("systemctl --user", "socket /run/user/1000/bus", "a run starts and stops no services"),
    ("docker", "socket /run/docker.sock", "never reaches a container engine"),
    ("docker", "socket /var/run/docker.sock", "never reaches a container engine"),
    ("docker rootless", "socket /home/u/.docker/run/docker.sock", "never reaches a container engine"),
    ("podman", "socket /run/user/1000/podman/podman.sock", "never reaches a container engine"),
    ("ssh-add", "socket /tmp/ssh-XXabc/agent.123", "needs your keys yourself"),
    ("ssh-add", "socket /run/user/1000/openssh_agent", "needs your keys yourself"),
    ("ssh-add", "socket /home/u/.1password/agent.sock", "needs your keys yourself"),
    ("gpg", "socket /run/user/1000/gnupg/S.gpg-agent", "needs your keys yourself"),
    ("gpg", "socket /home/u/.gnupg/S.gpg-agent", "(keys and password stores)"),
    ("git push", "socket /run/user/1000/keyring/ssh", "needs your keys yourself"),
    ("tmux", "socket /tmp/tmux-1000/default", "your desktop or your terminals"),
    ("xterm", "socket /tmp/.X11-unix/X0", "your desktop or your terminals"),
    ("crontab", "write /var/spool/cron/crontabs/u", "add it to a crontab yourself"),
    ("at", "write /var/spool/cron/atjobs/.SEQ", "add it to a crontab yourself"),
    ("tee", "write /etc/cron.d/job", "add it to a crontab yourself"),
    ("tee", "write /etc/hosts", "change the system yourself"),
    ("tee", "write /etc/resolv.conf", "change the system yourself"),
    ("update-grub", "write /boot/grub/grub.cfg", "outside, as root"),
    ("make install", "write /usr/local/bin/tool", "into the workspace or into your home directory"),
    ("pip", "write /usr/lib/python3/dist-packages/x", "into the workspace or into your home directory"),
    ("ldconfig", "write /etc/ld.so.cache", "change the system yourself"),
    ("cp", "write /var", "change the system yourself"),
    ("cp", "write /", "your whole home directory"),
    ("cp", "write /home/u", "your whole home directory"),
    ("cp", "write /home", "your whole home directory"),
    ("ssh", "read /home/u/.ssh/id_ed25519", "(SSH keys"),
    ("ssh", "write /home/u/.ssh/known_hosts", "(SSH keys"),
    ("ssh-keygen", "read /etc/ssh/ssh_host_rsa_key", "(SSH keys"),
    ("aws", "read /home/u/.aws/credentials", "credentials of cloud"),
    ("curl", "read /home/u/.netrc", "credentials of code hosts"),
    ("git", "read /home/u/.git-credentials", "credentials of code hosts"),
    ("npm", "read /home/u/.npmrc", "tokens of package registries"),
    ("kubectl", "read /home/u/.kube/config", "credentials of clusters"),
    ("nginx", "read /etc/ssl/private/key.pem", "keys and secrets of this host"),
    ("curl", "connect 169.254.169.254:80", "this machine's cloud credentials"),
    ("gcloud", "connect metadata.google.internal:80", "this machine's cloud credentials"),
    ("curl", "connect 169.254.0.0/16:80", "this machine's cloud credentials"),
    ("cat", "read /home/u/private", "hidden from runs"),
    ("curl", "secret github to evil.example:443", "not for this host"),
];

#[test]
fn no_hint_names_a_credential_or_a_part_of_the_system() {
    let mut wrong = Vec::new();
    for (program, power, part) in GUARDED {
        match advice(power) {
            Some(advice) if advice.contains(part) && !advice.contains("--grant") && !advice.contains('\n') => {}
            advice => wrong.push(format!("{program}: {power}: {advice:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The control: hints of ordinary work stay.
#[test]
fn ordinary_powers_are_hinted_at() {
    for power in [
        "write /home/u/.cache/pip",
        "write /home/u/outside",
        "write /srv/data",
        "write /opt/tool",
        "write /tmp/x",
        "write /dev/shm/x",
        "write /var/www/site",
        "write /usr/local/src/x",
        "write /etcetera/x",
        "connect pypi.org:443",
        "connect 127.0.0.1:5432",
        "connect 10.0.0.1:443",
        "socket /run/postgresql/.s.PGSQL.5432",
        "socket /run/user/1000/pulse/native",
        "listen 8080",
        "exec /usr/bin/ssh",
        "env CI",
        "memory 32GiB",
    ] {
        assert_eq!(advice(power), None, "{power}");
        assert_eq!(find_guarded_name(&power.parse().unwrap(), Path::new(HOME)), None, "{power}");
    }
}
