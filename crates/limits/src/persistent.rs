//! Control groups of a persistent sandbox: one for all of its commands, and one in it for each
//! command. So a command can be ended with all of its processes while other commands run on.
//!
//! Must not depend on the sandbox, or on the reason for stopping it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use stockade_model::SandboxUsage;
use stockade_model::{IsolationLevel, Limits, ResourceUsage};

use super::group::{ControlGroup, GroupDirectory, list_nested, needed_controllers, remove_leftovers};
use super::hierarchy::{CgroupVersion, Controller, GroupBase, find_bases};

/// Time-out for freezing the processes of a group. A process that waits for a disk freezes after
/// the disk has answered.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two checks of the state.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

impl ControlGroup {
    /// Makes the group for all commands of a sandbox. The group itself never contains a process.
    ///
    /// # Errors
    /// The reason why there can be no group, for display.
    pub(super) fn of_sandbox(limits: &Limits, workspace: &Path) -> Result<Self, String> {
        let mut all = needed_controllers(limits, IsolationLevel::Full);
        // Needed for freezing, and for reporting the usage.
        let counts = [Controller::Freezer, Controller::Memory, Controller::Pids, Controller::CpuTime];
        all.extend(
            counts.into_iter().filter(|counter| !needed_controllers(limits, IsolationLevel::Full).contains(counter)),
        );
        let bases = find_bases(&all)?;
        bases.iter().for_each(|base| remove_leftovers(&base.path));
        let mut group = Self::create_in_bases(bases)?;
        group.set_limits(limits, workspace);
        group.parts.iter().for_each(GroupDirectory::pass_controllers_on);
        Ok(group)
    }

    /// Makes a nested group for one command.
    ///
    /// # Errors
    /// The reason why there can be no group, for display.
    pub(super) fn create_nested(around: &Arc<Self>, limits: &Limits, workspace: &Path) -> Result<Self, String> {
        let base = |part: &GroupDirectory| GroupBase {
            version: part.version,
            path: part.path.clone(),
            controllers: part.controllers.clone(),
        };
        let mut group = Self::create_in_bases(around.parts.iter().map(base).collect())?;
        group.set_limits(limits, workspace);
        group.around = Some(Arc::clone(around));
        Ok(group)
    }

    /// Freezes every process of the group, and waits until all are frozen.
    ///
    /// # Errors
    /// The reason why they did not freeze; all processes then run on.
    pub fn freeze_and_wait(&self) -> Result<(), String> {
        if !self.set_frozen(true) {
            return Err("no control group here can freeze processes".to_owned());
        }
        let deadline = Instant::now() + PAUSE_TIMEOUT;
        while !self.is_fully_frozen() {
            if Instant::now() >= deadline {
                self.set_frozen(false);
                return Err(format!("its processes did not freeze within {} s", PAUSE_TIMEOUT.as_secs()));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn is_fully_frozen(&self) -> bool {
        if self.can_freeze() {
            return self.is_frozen();
        }
        let state = |part: &GroupDirectory| fs::read_to_string(part.path.join("freezer.state"));
        self.find_directory(Controller::Freezer)
            .is_some_and(|part| state(part).is_ok_and(|state| state.trim() == "FROZEN"))
    }

    /// Thaws the processes.
    pub fn thaw_processes(&self) {
        self.set_frozen(false);
    }

    /// Kills every process in the nested groups.
    pub fn kill_within(&self) {
        let Some(part) = self.parts.first() else { return };
        if part.version == CgroupVersion::Two {
            return self.kill_processes();
        }
        self.set_frozen(true);
        for path in list_nested(&part.path) {
            GroupDirectory { version: part.version, path, controllers: Vec::new() }.kill_listed();
        }
        self.set_frozen(false);
    }

    /// Returns the present and the total usage of all processes. The caller sets the time.
    pub fn read_usage(&self) -> SandboxUsage {
        let counted = self.read_counters();
        let memory_bytes = self.find_directory(Controller::Memory).and_then(|part| match part.version {
            CgroupVersion::One => part.read_number("memory.usage_in_bytes"),
            CgroupVersion::Two => part.read_number("memory.current"),
        });
        let total = ResourceUsage {
            cpu_ms: counted.cpu_us.unwrap_or_default() / 1000,
            tree_memory_peak_bytes: counted.memory_peak_bytes,
            processes_peak: counted.processes_peak,
            throttled_ms: counted.throttled_us.map(|us| us / 1000),
            memory_pressure_ms: counted.memory_pressure_us.map(|us| us / 1000),
            ..ResourceUsage::default()
        };
        let processes = self.find_directory(Controller::Pids).and_then(|part| part.read_number("pids.current"));
        SandboxUsage { total, memory_bytes, processes }
    }
}

impl GroupDirectory {
    /// Passes on all controllers to nested groups. In version 2 a group has only the controllers
    /// that its parent passes on.
    fn pass_controllers_on(&self) {
        if self.version == CgroupVersion::One {
            return;
        }
        let available = fs::read_to_string(self.path.join("cgroup.controllers")).unwrap_or_default();
        for name in available.split_whitespace() {
            // Without the controller, only the sandbox's limits apply to a command.
            let _ = self.write_text("cgroup.subtree_control", &format!("+{name}"));
        }
    }
}
