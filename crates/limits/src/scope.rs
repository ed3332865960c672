//! Control groups from the user's service manager: a transient scope with delegation. This process
//! and the run's first process are moved into it (`StartTransientUnit` of
//! org.freedesktop.systemd1(5), through `busctl`).
//!
//! Used for an ordinary user whose own group belongs to another user, and only if the run would be
//! refused otherwise. Every wait has a deadline. After a failure the run has no group.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use super::processes::list_descendants;

/// Paths of the bus client. The user's PATH is not used.
const BUSCTL_PATHS: [&str; 2] = ["/usr/bin/busctl", "/bin/busctl"];
/// Time-out for all requests to the manager together.
const SCOPE_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Group in the scope for its first processes, because a group with processes cannot pass
/// controllers to nested groups.
const SUPERVISOR_GROUP: &str = "front";

static NEXT_SCOPE_NUMBER: AtomicU32 = AtomicU32::new(0);

/// The service manager of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceManager {
    busctl: PathBuf,
    runtime: PathBuf,
}

impl ServiceManager {
    /// Returns the manager of this user, if one runs.
    pub(super) fn of_user() -> Option<Self> {
        let user = geteuid();
        if user.is_root() {
            return None;
        }
        let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let runtime = named.unwrap_or_else(|| PathBuf::from(format!("/run/user/{}", user.as_raw())));
        let is_own = |path: &Path| fs::metadata(path).is_ok_and(|metadata| metadata.uid() == user.as_raw());
        let is_there = is_own(&runtime) && is_own(&runtime.join("bus")) && is_own(&runtime.join("systemd/private"));
        let busctl = BUSCTL_PATHS.into_iter().map(PathBuf::from).find(|path| path.exists())?;
        is_there.then_some(Self { busctl, runtime })
    }

    /// Moves this process and all processes of `init` into a scope of their own.
    ///
    /// # Errors
    /// The reason for the failure, for display.
    pub(super) fn give_scope(&self, init: u32) -> Result<(), String> {
        let until = Instant::now() + SCOPE_TIMEOUT;
        let own = std::process::id();
        let name = format!("stockade-{own}-{}.scope", NEXT_SCOPE_NUMBER.fetch_add(1, Ordering::Relaxed));
        self.call_bus(&start_unit_args(&name, &[own, init]), until)?;
        let scope = await_in(own, &name, until)?;
        // Processes forked while the manager moved the others are still in the old group.
        for straggler in self.list_run_processes(own, init).into_iter().filter(|pid| !is_in(*pid, &name)) {
            self.call_bus(&attach_processes_args(&name, straggler), until)?;
            await_in(straggler, &name, until)?;
        }
        let supervisor_group = scope.join(SUPERVISOR_GROUP);
        fs::create_dir(&supervisor_group).map_err(|error| format!("{}: {error}", supervisor_group.display()))?;
        let entrance = supervisor_group.join("cgroup.procs");
        let members = || fs::read_to_string(scope.join("cgroup.procs")).unwrap_or_default();
        while let Some(pid) = members().lines().next() {
            // The process may have ended meanwhile.
            let _ = fs::write(&entrance, pid);
            if Instant::now() > until {
                return Err("its processes could not be moved in time".to_owned());
            }
        }
        Ok(())
    }

    /// Lists this process, the run's init and the processes beneath it.
    fn list_run_processes(&self, own: u32, init: u32) -> Vec<u32> {
        let beneath = list_descendants(init).into_iter().map(|process| process.pid);
        [own, init].into_iter().chain(beneath).collect()
    }

    /// Calls the manager, which reports a refusal by an exit code.
    #[allow(clippy::disallowed_methods, reason = "the manager's own client, and nothing of a run")]
    fn call_bus(&self, words: &[String], until: Instant) -> Result<(), String> {
        let bus = format!("unix:path={}", self.runtime.join("bus").display());
        let mut client = Command::new(&self.busctl)
            .args(["--user", "--quiet", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1"])
            .arg("org.freedesktop.systemd1.Manager")
            .args(words)
            .env_clear()
            .env("XDG_RUNTIME_DIR", &self.runtime)
            .env("DBUS_SESSION_BUS_ADDRESS", bus)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| self.describe_failure(&error))?;
        loop {
            match client.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(_)) => return Err("the service manager refused a scope".to_owned()),
                Ok(None) if Instant::now() < until => thread::sleep(POLL_INTERVAL),
                Ok(None) => {
                    let _ = client.kill();
                    let _ = client.wait();
                    return Err("the service manager did not answer in time".to_owned());
                }
                Err(error) => return Err(self.describe_failure(&error)),
            }
        }
    }

    fn describe_failure(&self, error: &std::io::Error) -> String {
        format!("{}: {error}", self.busctl.display())
    }
}

/// Returns the words of `StartTransientUnit(name, mode, properties, auxiliary units)`: a property
/// is a name and a variant.
fn start_unit_args(name: &str, pids: &[u32]) -> Vec<String> {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let properties = format!("Description s Stockade Delegate b true TasksMax t {}", u64::MAX);
    let all = format!("StartTransientUnit ssa(sv)a(sa(sv)) {name} fail 4 {properties} PIDs au");
    let counted = [pids.len().to_string()].into_iter().chain(pids);
    all.split(' ').map(str::to_owned).chain(counted).chain(["0".to_owned()]).collect()
}

/// Returns the words of `AttachProcessesToUnit(name, subgroup, processes)`.
fn attach_processes_args(name: &str, pid: u32) -> Vec<String> {
    ["AttachProcessesToUnit", "ssau", name, "", "1", &pid.to_string()].map(str::to_owned).into()
}

/// Waits until a process is in the scope; returns the scope's directory.
fn await_in(pid: u32, name: &str, until: Instant) -> Result<PathBuf, String> {
    loop {
        if let Some(path) = group_of(pid).filter(|path| path.ends_with(name)) {
            let found = super::hierarchy::resolve_group_path(&path);
            return found.ok_or_else(|| format!("the control group {} is not visible here", path.display()));
        }
        if Instant::now() > until {
            return Err("the service manager did not create a scope in time".to_owned());
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn is_in(pid: u32, name: &str) -> bool {
    // A process that has ended needs no scope.
    group_of(pid).is_none_or(|path| path.ends_with(name))
}

/// Returns the version 2 group of a process.
fn group_of(pid: u32) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_scope_is_asked_for_in_the_words_of_the_bus() {
        let words = start_unit_args("stockade-7-0.scope", &[7, 8]).join(" ");
        let properties = "4 Description s Stockade Delegate b true TasksMax t 18446744073709551615 PIDs au 2 7 8";
        assert_eq!(words, format!("StartTransientUnit ssa(sv)a(sa(sv)) stockade-7-0.scope fail {properties} 0"));
        assert_eq!(attach_processes_args("a.scope", 9).join("|"), "AttachProcessesToUnit|ssau|a.scope||1|9");
    }

    #[test]
    fn a_manager_that_does_not_answer_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let busctl = directory.path().join("busctl");
        fs::write(&busctl, "#!/bin/sh\nexec sleep 600\n").unwrap();
        fs::set_permissions(&busctl, fs::Permissions::from_mode(0o755)).unwrap();
        let manager = ServiceManager { busctl, runtime: "/nowhere".into() };
        let error = manager.call_bus(&[], Instant::now() + Duration::from_millis(20)).unwrap_err();
        assert!(error.contains("in time"), "{error}");
        let absent = ServiceManager { busctl: "/nowhere/busctl".into(), runtime: "/nowhere".into() };
        assert!(absent.give_scope(1).unwrap_err().starts_with("/nowhere/busctl: "));
    }
}
