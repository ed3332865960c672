//! Checks which layers this machine can enforce. Each is tried in a child of its own, because a
//! kernel version only shows which features may exist.
//!
//! This module must not know plans or profiles. Other code tries a whole sandbox.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{Signal, getegid, geteuid, pidfd_send_signal};
use rustix::thread::set_no_new_privs;
use stockade_launch::{RUN_ADDRESS_V4, RUN_ADDRESS_V6, apparmor_hint, read_sysctl};
use stockade_model::{IsolationLevel, LayerReport, LayerState};
use stockade_sys::bpf::{SeccompAction, SeccompProgram, SeccompRule, compile_rules};
use stockade_sys::clone::{ClonedChild, flags, fork_with};
use stockade_sys::landlock::{self, Ruleset, access};
use stockade_sys::mount::{MountRestrictions, attach_at, make_private, new_filesystem};
use stockade_sys::notify::{NotificationAnswer, SeccompNotifier};
use stockade_sys::ready::readable_before;
use stockade_sys::reap::{ProcessExit, wait_pidfd_end};
use stockade_sys::{Errno, caps, fd_passing, net, seccomp};

/// Time-out for one trial.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// A system call that no child here makes for another reason.
const TRIAL_SYSCALL: i64 = libc::SYS_getpriority;
/// The errno by which a trial recognizes its own filter's refusal.
const TRIAL_ERRNO: Errno = Errno::XDEV;
/// The layers that are made inside a user namespace.
const USER_NAMESPACE_LAYERS: [&str; 3] = ["mounts", "proc", "network-namespace"];

/// Result of the checks.
#[derive(Clone, Debug)]
pub struct HostDiagnosis {
    /// Each layer with its state, in order of importance.
    pub layers: Vec<(&'static str, LayerReport)>,
}

impl HostDiagnosis {
    /// Returns the layers that `level` needs.
    fn needed_layers(level: IsolationLevel) -> &'static [&'static str] {
        match level {
            IsolationLevel::Full => {
                &["user-namespace", "mounts", "proc", "network-namespace", "landlock", "seccomp", "notify", "pidfd"]
            }
            IsolationLevel::Restricted => &["landlock", "seccomp", "notify", "pidfd"],
            IsolationLevel::None => &[],
        }
    }

    /// Returns the missing layers that `level` needs. If there is no user namespace, the layers
    /// inside it are not listed, because they are a consequence.
    pub fn missing_layers(&self, level: IsolationLevel) -> Vec<&'static str> {
        let absent = |name: &str| !self.layers.iter().any(|(n, l)| *n == name && l.state != LayerState::Absent);
        let consequence = |name: &str| absent("user-namespace") && USER_NAMESPACE_LAYERS.contains(&name);
        Self::needed_layers(level).iter().copied().filter(|name| absent(name) && !consequence(name)).collect()
    }
}

/// Returns the hint for a missing `layer`, if no closer cause is known.
pub fn hint_for_layer(layer: &str) -> Option<String> {
    hint_for_layer_with(layer, &read_sysctl)
}

fn hint_for_layer_with(layer: &str, read_sysctl: &dyn Fn(&str) -> String) -> Option<String> {
    // Where AppArmor restricts a user namespace, it may exist and have no power to mount.
    let in_user_namespace = layer == "user-namespace" || USER_NAMESPACE_LAYERS.contains(&layer);
    if let Some(hint) = apparmor_hint(read_sysctl).filter(|_| in_user_namespace) {
        return Some(hint);
    }
    let hint = match layer {
        "user-namespace" => "allow user namespaces on this machine, or use `--level restricted`, which does without",
        "mounts" | "proc" | "network-namespace" => {
            "run outside of the container around this process, or use `--level restricted`, which does without"
        }
        "landlock" => {
            "boot a kernel with Landlock (5.13 or later) and with `landlock` in its list of security modules (lsm=)"
        }
        "seccomp" => "boot a kernel with CONFIG_SECCOMP_FILTER",
        "notify" => "run outside of the supervisor around this process",
        "pidfd" => "boot a kernel from 5.4 on, or run outside of the filter around this process",
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Tries every layer. It takes some milliseconds, and at most a few seconds for each layer that
/// hangs.
pub fn diagnose_host() -> HostDiagnosis {
    let user_namespace = user_namespace();
    let inside = |trial: fn() -> Result<(), Errno>, what: &str| match user_namespace {
        Ok(()) => from_trial(trial(), what),
        Err(_) => layer_report(LayerState::Absent, "it needs a user namespace, which is not available"),
    };
    let layers = vec![
        ("user-namespace", report_user_namespace(user_namespace)),
        ("mounts", inside(try_mounts, "new mount API, a filesystem of its own over /proc")),
        ("proc", inside(try_proc, "/proc of a PID namespace of its own")),
        (
            "network-namespace",
            inside(try_network, "its own loopback, on which all addresses route to the egress proxy"),
        ),
        ("landlock", try_landlock()),
        ("seccomp", from_trial(try_filter(), "a filter refuses a call")),
        ("notify", try_notify()),
        ("pidfd", from_trial(try_pidfd(), "a process is ended by its descriptor")),
        ("limits", stockade_limits::survey_group_limits()),
    ];
    HostDiagnosis { layers }
}

/// The kernel returns `ENOSPC` if a limit is reached (user_namespaces(7)).
fn report_user_namespace(trial: Result<(), Errno>) -> LayerReport {
    match trial {
        Err(Errno::NOSPC) => layer_report(
            LayerState::Absent,
            "this user has no user namespaces left (user.max_user_namespaces, or 32 nested)",
        ),
        other => from_trial(other, "an identity of its own for this user"),
    }
}

fn layer_report(state: LayerState, detail: impl Into<String>) -> LayerReport {
    LayerReport { state, detail: detail.into() }
}

fn from_trial(trial: Result<(), Errno>, what: &str) -> LayerReport {
    match trial {
        Ok(()) => layer_report(LayerState::Enforced, what),
        Err(errno) => layer_report(LayerState::Absent, format!("{what}: {errno}")),
    }
}

/// Runs `body` in a child with these namespaces. The child's exit code is the errno.
fn in_child(namespaces: u64, body: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    let child = fork_with(namespaces, 0, || match body() {
        Ok(()) => 0,
        Err(errno) => errno.raw_os_error(),
    })?;
    match end_of(&child)? {
        ProcessExit::Exited(0) => Ok(()),
        // Errno numbers end at 133, far below the largest exit code, 255.
        ProcessExit::Exited(code) => Err(Errno::from_raw_os_error(code)),
        ProcessExit::Signaled(_) => Err(Errno::IO),
    }
}

/// Waits for a child, and kills it if it hangs.
fn end_of(child: &ClonedChild) -> Result<ProcessExit, Errno> {
    let timed_out = !readable_before(&[child.pidfd.as_fd()], Instant::now() + TRIAL_TIMEOUT)?;
    if timed_out {
        pidfd_send_signal(&child.pidfd, Signal::KILL)?;
    }
    let ended = wait_pidfd_end(child.pidfd.as_fd())?;
    if timed_out { Err(Errno::TIMEDOUT) } else { ended.ok_or(Errno::CHILD) }
}

/// Tries a user namespace that maps this user to itself.
fn user_namespace() -> Result<(), Errno> {
    let (uid, gid) = (geteuid(), getegid());
    let maps = [
        ("setgroups", "deny".to_owned()),
        ("uid_map", map_single_id(uid.as_raw())),
        ("gid_map", map_single_id(gid.as_raw())),
    ];
    in_child(flags::NEW_USER, || {
        for (file, text) in &maps {
            let directory = openat(CWD, c"/proc/self", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            let file = openat(&directory, *file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::io::write(&file, text.as_bytes())?;
        }
        if geteuid() == uid && getegid() == gid { Ok(()) } else { Err(Errno::PERM) }
    })
}

fn map_single_id(id: u32) -> String {
    format!("{id} {id} 1")
}

fn try_mounts() -> Result<(), Errno> {
    in_child(flags::NEW_USER | flags::NEW_MOUNT, || {
        make_private()?;
        let forbids = MountRestrictions { devices: true, setuid: true, ..MountRestrictions::default() };
        let filesystem = new_filesystem(c"tmpfs", &[(c"mode", c"0755")], forbids)?;
        attach_at(filesystem.as_fd(), CWD, c"/proc")?;
        match openat(CWD, c"/proc/self", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOENT) => Ok(()),
            _ => Err(Errno::IO),
        }
    })
}

fn try_proc() -> Result<(), Errno> {
    in_child(flags::NEW_USER | flags::NEW_MOUNT | flags::NEW_PID, || {
        make_private()?;
        new_filesystem(c"proc", &[], MountRestrictions { write: true, devices: true, setuid: true, exec: true })
            .map(drop)
    })
}

fn try_network() -> Result<(), Errno> {
    let nobodys = SocketAddr::from(([203, 0, 113, 1], 443));
    in_child(flags::NEW_USER | flags::NEW_NET, || {
        net::own_every_address(RUN_ADDRESS_V4, RUN_ADDRESS_V6)?;
        let _listener = net::tcp_listener(nobodys)?;
        let connect = |to: SocketAddr| {
            let socket = net::tcp_socket(to)?;
            match rustix::net::connect(&socket, &to) {
                // A connect to the loopback completes within the call.
                Err(Errno::INPROGRESS) | Ok(()) => rustix::net::sockopt::socket_error(&socket)?,
                other => other,
            }
        };
        match (connect(nobodys), connect(SocketAddr::new(nobodys.ip(), 444))) {
            (Ok(()), Err(Errno::CONNREFUSED)) => Ok(()),
            (Err(errno), _) => Err(errno),
            _ => Err(Errno::IO),
        }
    })
}

/// Tries Landlock: the same open succeeds before the restriction and is refused after it.
fn try_landlock() -> LayerReport {
    let tried = landlock::query_abi_version().and_then(|abi| {
        let rules = Ruleset::new(abi, access::change_rights(abi), 0, 0)?;
        in_child(0, || {
            let open = || openat(CWD, c"/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
            open()?;
            set_no_new_privs(true)?;
            rules.restrict_self()?;
            match open() {
                Err(Errno::ACCESS) => Ok(()),
                _ => Err(Errno::IO),
            }
        })?;
        Ok(abi)
    });
    match tried {
        Ok(abi @ 6..) => layer_report(LayerState::Enforced, format!("ABI {abi}, a write is refused")),
        Ok(abi) => layer_report(
            LayerState::Partial,
            format!(
                "ABI {abi}, a write is refused; signals and abstract sockets are confined from ABI 6 (kernel 6.12) on"
            ),
        ),
        Err(errno) => layer_report(LayerState::Absent, errno.to_string()),
    }
}

fn compile_trial_filter(action: SeccompAction) -> Result<SeccompProgram, Errno> {
    let rules = [SeccompRule { call: TRIAL_SYSCALL, conditions: Vec::new(), action }];
    compile_rules(&rules, TRIAL_SYSCALL.unsigned_abs() as u32 + 1000, SeccompAction::Allow).map_err(|_| Errno::INVAL)
}

/// Makes the call that the filter refuses.
fn try_call() -> Result<(), Errno> {
    match rustix::process::getpriority_process(None) {
        Err(TRIAL_ERRNO) => Ok(()),
        _ => Err(Errno::IO),
    }
}

fn try_filter() -> Result<(), Errno> {
    let program = compile_trial_filter(SeccompAction::Errno(TRIAL_ERRNO.raw_os_error() as u16))?;
    in_child(0, || {
        caps::drop_all()?;
        seccomp::install_filter(&program)?;
        try_call()
    })
}

/// Tries a whole round trip: the child's call is trapped, the notification arrives here, and the
/// answer arrives there.
fn try_notify() -> LayerReport {
    match notify_round() {
        Ok((true, true)) => {
            layer_report(LayerState::Enforced, "a question was answered; wait-killable, synchronous wake-up")
        }
        Ok((killable, prompt)) => {
            let mut lacks = Vec::new();
            if !killable {
                lacks.push("signals interrupt brokered calls (before kernel 5.19)");
            }
            if !prompt {
                lacks.push("answers are about ten times slower (before kernel 6.6)");
            }
            layer_report(LayerState::Partial, format!("a question was answered; {}", lacks.join("; ")))
        }
        Err(Errno::BUSY) => {
            layer_report(LayerState::Absent, "another supervisor already takes this process's notifications")
        }
        Err(errno) => layer_report(LayerState::Absent, errno.to_string()),
    }
}

fn notify_round() -> Result<(bool, bool), Errno> {
    let program = compile_trial_filter(SeccompAction::Notify)?;
    let (ours, theirs) = fd_passing::socket_pair()?;
    let child = fork_with(0, 0, || {
        let trial = || {
            caps::drop_all()?;
            let listener = seccomp::install_with_listener(&program)?;
            fd_passing::send_message(theirs.as_fd(), &[u8::from(listener.wait_killable)], &[listener.fd.as_fd()])?;
            drop(listener);
            try_call()
        };
        trial().map_or_else(Errno::raw_os_error, |()| 0)
    })?;
    drop(theirs);
    let answered = answer_one(&ours);
    if answered.is_err() {
        let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
    }
    match (end_of(&child)?, answered) {
        (ProcessExit::Exited(0), answered) => answered,
        (ProcessExit::Exited(code), _) => Err(Errno::from_raw_os_error(code)),
        (ProcessExit::Signaled(_), answered) => Err(answered.err().unwrap_or(Errno::IO)),
    }
}

fn answer_one(socket: &OwnedFd) -> Result<(bool, bool), Errno> {
    let mut byte = [0];
    if !readable_before(&[socket.as_fd()], Instant::now() + TRIAL_TIMEOUT)? {
        return Err(Errno::TIMEDOUT);
    }
    let received = fd_passing::receive_message(socket.as_fd(), &mut byte, false)?;
    let [Some(listener), ..] = received.descriptors else { return Err(Errno::PIPE) };
    let notifier = SeccompNotifier::new(listener)?;
    let prompt = notifier.wake_synchronously().is_ok();
    if !notifier.wait_for_events(socket.as_fd(), Some(TRIAL_TIMEOUT))?.request {
        return Err(Errno::TIMEDOUT);
    }
    let request = notifier.receive_notification(&mut notifier.allocate_buffer())?;
    notifier.answer_call(request.id, NotificationAnswer::Error(TRIAL_ERRNO))?;
    Ok((byte[0] != 0, prompt))
}

fn try_pidfd() -> Result<(), Errno> {
    let child = fork_with(0, 0, || {
        let long = Timespec { tv_sec: TRIAL_TIMEOUT.as_secs() as i64, tv_nsec: 0 };
        let _ = rustix::thread::clock_nanosleep_relative(rustix::thread::ClockId::Monotonic, &long);
        0
    })?;
    pidfd_send_signal(&child.pidfd, Signal::KILL)?;
    match end_of(&child)? {
        ProcessExit::Signaled(9) => Ok(()),
        _ => Err(Errno::IO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layer_is_tried_and_the_missing_are_named() {
        let mut found = diagnose_host();
        for (name, layer) in &found.layers {
            assert_ne!(layer.state, LayerState::Absent, "{name}: {}", layer.detail);
        }
        let mut check = |missing: &[&str], full: &[&str], restricted: &[&str]| {
            found.layers.retain(|(name, _)| !missing.contains(name));
            assert_eq!(found.missing_layers(IsolationLevel::Full), full);
            assert_eq!(found.missing_layers(IsolationLevel::Restricted), restricted);
        };
        check(&[], &[], &[]);
        check(&["mounts", "proc"], &["mounts", "proc"], &[]);
        check(&["user-namespace"], &["user-namespace"], &[]);
        check(&["landlock"], &["user-namespace", "landlock"], &["landlock"]);
    }

    #[test]
    fn every_layer_has_a_remedy() {
        let needed = [IsolationLevel::Full, IsolationLevel::Restricted].map(HostDiagnosis::needed_layers);
        for name in needed.into_iter().flatten() {
            assert!(hint_for_layer(name).is_some(), "{name}");
        }
    }

    #[test]
    fn the_remedy_where_apparmor_restricts_namespaces_is_the_profile() {
        let restricts = |name: &str| match name {
            "kernel/apparmor_restrict_unprivileged_userns" => "1\n".to_owned(),
            _ => String::new(),
        };
        for layer in ["user-namespace", "mounts", "proc", "network-namespace"] {
            let hint = |read: &dyn Fn(&str) -> String| hint_for_layer_with(layer, read).unwrap();
            assert!(hint(&restricts).contains("/etc/apparmor.d/stockade"), "{layer}");
            assert!(!hint(&|_| String::new()).contains("AppArmor"), "{layer}");
        }
        assert!(hint_for_layer_with("landlock", &restricts).unwrap().contains("lsm="));
    }
}
