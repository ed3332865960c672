//! Errors of a start, with one hint each.

use std::path::PathBuf;

use stockade_model::RawText;
use stockade_sys::Errno;
use stockade_sys::bpf::CompileError;

/// Error of an attempt that did not start or was lost. If it did not start, nothing ran and nothing
/// is left behind (L6).
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The plan needs a feature that is not available.
    #[error("{0}")]
    Unfit(String),
    /// A path of the plan cannot be used.
    #[error("cannot use {}: {why}", RawText::from(.path.as_path()).to_escaped())]
    Path {
        /// The path.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Landlock is missing or too old for the level.
    #[error("Landlock is not available: {0}")]
    Landlock(Errno),
    /// The filter tables do not compile.
    #[error("the system-call filter is invalid: {0}")]
    Filter(#[from] CompileError),
    /// The child with its namespaces could not be made.
    #[error("cannot make the sandbox's process: {errno}")]
    Clone {
        /// The kernel's error.
        errno: Errno,
        /// True if namespaces were requested.
        namespaces: bool,
    },
    /// A system call of the caller failed.
    #[error("cannot {what}: {errno}")]
    Call {
        /// The attempted operation.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// A step inside failed.
    #[error("the sandbox could not be built: {step} ({detail}): {errno}")]
    Step {
        /// Name of the step.
        step: &'static str,
        /// Description of the step.
        detail: String,
        /// The kernel's error.
        errno: Errno,
    },
    /// The sandbox was not ready in time.
    #[error("the sandbox was not ready after {0} ms")]
    TimedOut(u64),
    /// The sandbox's processes died without a message.
    #[error("the sandbox's own process was killed from outside")]
    Lost,
}

impl LaunchError {
    /// Returns the hint for the user, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Landlock(_) => Some(
                "boot a kernel with Landlock (5.13 or later) and with `landlock` in its list of security modules (lsm=)"
                    .to_owned(),
            ),
            Self::Clone { errno, namespaces: true } => Some(namespace_hint(*errno, &read_sysctl)),
            Self::Clone { .. } => Some("the limit of processes is reached (ulimit -u)".to_owned()),
            Self::Step { step, errno, .. } => step_hint(step, *errno, &read_sysctl),
            Self::TimedOut(_) => Some("the machine is overloaded, or a mount of it does not answer".to_owned()),
            _ => None,
        }
    }

    /// Returns a function that makes the error of a failed system call.
    pub fn call_error(what: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Call { what, errno }
    }
}

/// Hint for errors that a sandbox without namespaces avoids, by its name (L6).
const RESTRICTED_HINT: &str = "or use `--level restricted`, which does without";
/// Profile of AppArmor that the Debian package installs; it permits user namespaces.
const APPARMOR_PROFILE: &str = "/etc/apparmor.d/stockade";

/// Returns the hint for user namespaces that AppArmor refuses to programs without a profile, as on
/// Ubuntu since 23.10. `read_sysctl` returns the text of a file beneath `/proc/sys`.
pub fn apparmor_hint(read_sysctl: &dyn Fn(&str) -> String) -> Option<String> {
    let restricts = read_sysctl("kernel/apparmor_restrict_unprivileged_userns").trim() == "1";
    restricts.then(|| {
        format!(
            "AppArmor restricts user namespaces here: load the profile `{APPARMOR_PROFILE}` of the Debian package \
             for this program; in a container, its seccomp profile must permit them too; {RESTRICTED_HINT}"
        )
    })
}

/// Returns the text of a file beneath `/proc/sys`; empty if this kernel does not have it.
pub fn read_sysctl(name: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default()
}

fn namespace_hint(errno: Errno, read_sysctl: &dyn Fn(&str) -> String) -> String {
    if let (Errno::PERM | Errno::ACCESS, Some(hint)) = (errno, apparmor_hint(read_sysctl)) {
        return hint;
    }
    let what = match errno {
        Errno::NOSPC => "raise `sysctl user.max_user_namespaces` (and `max_net_namespaces` and so on)",
        _ if read_sysctl("kernel/unprivileged_userns_clone").trim() == "0" => {
            "allow user namespaces: `sysctl kernel.unprivileged_userns_clone=1`"
        }
        Errno::NOSYS => "the kernel is older than 5.3, or a filter around this process refuses clone3",
        Errno::PERM => "user namespaces are refused here (a container's seccomp profile, or a chroot)",
        _ => "allow user namespaces on this machine",
    };
    format!("{what}, {RESTRICTED_HINT}")
}

fn step_hint(step: &str, errno: Errno, read_sysctl: &dyn Fn(&str) -> String) -> Option<String> {
    if let (Errno::PERM | Errno::ACCESS, Some(hint)) = (errno, apparmor_hint(read_sysctl)) {
        return Some(hint);
    }
    match (step, errno) {
        ("proc", Errno::PERM) => {
            Some(format!("/proc is partly covered, as in containers: run outside of it {RESTRICTED_HINT}"))
        }
        ("filter", Errno::BUSY) => Some(
            "this process already runs under a supervisor that takes system-call notifications: run outside of it"
                .to_owned(),
        ),
        (_, Errno::NOSYS) => Some(format!("the kernel is too old for this (5.12 is needed), {RESTRICTED_HINT}")),
        ("attach", Errno::STALE) => Some("a directory was replaced while the sandbox was built: try again".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_by_apparmor_names_the_profile() {
        let set_to = |value: &'static str| {
            move |name: &str| match name {
                "kernel/apparmor_restrict_unprivileged_userns" => value.to_owned(),
                _ => String::new(),
            }
        };
        for errno in [Errno::PERM, Errno::ACCESS] {
            assert!(namespace_hint(errno, &set_to("1\n")).contains("/etc/apparmor.d/stockade"));
            assert!(step_hint("mounts", errno, &set_to("1\n")).unwrap().contains("/etc/apparmor.d/stockade"));
            assert!(!namespace_hint(errno, &set_to("0\n")).contains("AppArmor"));
            assert_eq!(step_hint("mounts", errno, &set_to("")), None);
        }
        assert!(namespace_hint(Errno::NOSPC, &set_to("1\n")).contains("max_user_namespaces"));
    }
}
