//! State of the host during an attempt: mounts, names, clock, processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

/// Most seconds that the wall clock may drift from the monotonic one in a run.
const CLOCK_TOLERANCE_S: i64 = 60;
/// Time-out for the owner of a mount to remove its mount point.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);

/// State that an attempt must not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostState {
    mounts: BTreeSet<String>,
    node_name: String,
    domain_name: String,
    clock_offset_s: i64,
}

impl HostState {
    /// Reads the state in the namespaces of the calling process.
    pub fn read_current() -> Self {
        let uname = rustix::system::uname();
        let realtime_s = clock_gettime(ClockId::Realtime).tv_sec;
        let monotonic = clock_gettime(ClockId::Boottime).tv_sec;
        Self {
            // An ordinary user cannot mount on the host, but others may at any time; a root harness
            // has a mount namespace of its own.
            mounts: if rustix::process::geteuid().is_root() {
                read_lines("/proc/self/mountinfo")
            } else {
                BTreeSet::new()
            },
            node_name: uname.nodename().to_string_lossy().into_owned(),
            domain_name: fs::read_to_string("/proc/sys/kernel/domainname").unwrap_or_default(),
            clock_offset_s: realtime_s - monotonic,
        }
    }

    /// Returns the differences of a later state, in words.
    pub fn list_changes(&self, later: &Self) -> Vec<String> {
        let mut changes: Vec<String> =
            later.mounts.difference(&self.mounts).map(|m| format!("host mount added: {m}")).collect();
        // If the mount point is gone too, its owner has removed it: the kernel then drops the mount
        // in every namespace. A container engine unmounts first, and removes a moment later.
        let missing_mounts = self.mounts.difference(&later.mounts).filter(|m| mount_point_stays(m));
        changes.extend(missing_mounts.map(|m| format!("host mount removed: {m}")));
        if self.node_name != later.node_name || self.domain_name != later.domain_name {
            changes.push(format!("host name is now {} {}", later.node_name, later.domain_name.trim_end()));
        }
        let step = later.clock_offset_s - self.clock_offset_s;
        if step.abs() > CLOCK_TOLERANCE_S {
            changes.push(format!("host clock stepped by {step} s"));
        }
        changes
    }

    /// Returns the seconds to correct the wall clock by.
    pub fn clock_step_s(&self, later: &Self) -> i64 {
        later.clock_offset_s - self.clock_offset_s
    }
}

fn mount_point_stays(line: &str) -> bool {
    let Some(mount_point) = line.split(' ').nth(4) else { return false };
    let deadline = Instant::now() + REMOVAL_TIMEOUT;
    while fs::symlink_metadata(mount_point).is_ok() {
        if Instant::now() >= deadline {
            return true;
        }
        thread::sleep(Duration::from_millis(20));
    }
    false
}

fn read_lines(path: &str) -> BTreeSet<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Returns whether a process with this id exists and is no zombie.
pub fn process_alive(pid: u32) -> bool {
    process_state(pid).is_some_and(|(_, state)| state != 'Z' && state != 'X')
}

/// Returns the parent and the state of a process.
fn process_state(pid: u32) -> Option<(u32, char)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may contain anything, also brackets and spaces.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}

/// Returns every living descendant of this process except those in `known`, with its command line.
/// Waits up to `timeout` for them to end.
///
/// The caller must be a child subreaper, or process 1, so that no process can leave its tree.
pub fn wait_for_descendants(known: &[u32], timeout: Duration) -> Vec<String> {
    let deadline = Instant::now() + timeout;
    loop {
        let found = living_descendants(known);
        if found.is_empty() || Instant::now() >= deadline {
            return found.iter().map(|pid| describe_pid(*pid)).collect();
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Kills every living descendant of this process except those in `known`, until none is left or
/// `timeout` has passed. For the caller, see [`wait_for_descendants`].
pub fn kill_descendants(known: &[u32], timeout: Duration) {
    let deadline = Instant::now() + timeout;
    loop {
        let found = living_descendants(known);
        if found.is_empty() || Instant::now() >= deadline {
            return;
        }
        for pid in found.iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
            // The process may have ended.
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn living_descendants(known: &[u32]) -> Vec<u32> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        if let Some(pid) = name.to_str().and_then(|n| n.parse::<u32>().ok())
            && let Some((parent, state)) = process_state(pid)
            && state != 'Z'
            && state != 'X'
        {
            parents.insert(pid, parent);
        }
    }
    let own = std::process::id();
    let is_descendant = |mut pid: u32| {
        // A process tree is never deeper than the number of processes.
        for _ in 0..=parents.len() {
            match parents.get(&pid) {
                Some(parent) if *parent == own => return true,
                Some(parent) => pid = *parent,
                None => return false,
            }
        }
        false
    };
    parents.keys().copied().filter(|pid| !known.contains(pid) && is_descendant(*pid)).collect()
}

fn describe_pid(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&line).replace('\0', " ");
    format!("{pid} {}", text.trim_end())
}

/// Returns the processes with a mount from this directory.
pub fn processes_at(top: &Path) -> Vec<String> {
    let name = top.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let has = |path: &PathBuf| fs::read_to_string(path.join("mountinfo")).is_ok_and(|mounts| mounts.contains(&name));
    entries.filter(has).map(|path| describe_process(&path)).collect()
}

fn describe_process(process: &Path) -> String {
    let words = fs::read(process.join("cmdline")).unwrap_or_default();
    format!("{} {}", process.display(), String::from_utf8_lossy(&words).replace('\0', " ").trim_end())
}
