//! Limits of a run: the mechanism that enforces each limit, and the watch over limits that the
//! kernel does not enforce by itself.
//!
//! Mechanisms in the order of preference:
//! - a control group of the run's own;
//! - resource limits of each process;
//! - the size of the private filesystem;
//! - a watch, which polls the usage and reports a breach.
//!
//! Must not depend on rules or questions, or on how a sandbox is built.

#![forbid(unsafe_code)]

mod disk;
mod file_size;
mod freeze;
mod group;
mod hierarchy;
mod numbers;
mod persistent;
mod processes;
mod quotas;
mod raising;
mod report;
mod resources;
mod scope;
mod watch;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stockade_model::{AttemptPlan, IsolationLevel, LayerReport, LayerState, LimitKind, Limits};

pub use file_size::{make_room, small_disk};
pub use group::ControlGroup;
pub use numbers::parse_written_bytes;
pub use processes::{ParentLister, ProcessIdentity};
pub use quotas::{NamespaceQuota, compute_quotas};
pub use raising::{FIRST_LIMIT_QUESTION, LimitEvent};
pub use resources::{resource_limits, temp_inodes};
pub use watch::{LimitOutcome, LimitWatch};

use report::LimitMechanism;
use scope::ServiceManager;

/// The limits of a plan cannot be applied to its run.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// No mechanism of this machine can enforce a limit.
    #[error("this machine cannot enforce the limit {limit} {amount}: {why}")]
    Unheld {
        /// The limit.
        limit: LimitKind,
        /// Its amount, for display.
        amount: String,
        /// The reason.
        why: String,
    },
    /// A file of the control group cannot be opened, for this reason.
    #[error("cannot open the command's control group: {0}")]
    Unopened(String),
}

impl LimitError {
    /// Returns the remedy.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unheld { limit, .. } => Some(format!(
                "remove {limit}, or run where a control group can be created: as root, or within \
                 `systemd-run --user --scope -p Delegate=yes`"
            )),
            Self::Unopened(_) => None,
        }
    }
}

/// Reports which limits a control group enforces on this machine. Tests it by making a group.
pub fn survey_group_limits() -> LayerReport {
    let tried = [LimitKind::Cpus, LimitKind::Memory, LimitKind::Processes];
    let mut limits = Limits::default();
    tried.iter().for_each(|limit| limits.set_limit(*limit, 1 << 20));
    let (state, detail) = match ControlGroup::create_for_limits(&limits, IsolationLevel::Full, Path::new("/")) {
        Ok(Some(group)) => report::survey_group(&tried, &group),
        Ok(None) => (LayerState::Partial, WITHOUT_GROUP_TEXT.to_owned()),
        Err(why) if ServiceManager::of_user().is_some() => {
            (LayerState::Partial, format!("{WITHOUT_GROUP_TEXT}: {why}; {SCOPE_TEXT}"))
        }
        Err(why) => (LayerState::Partial, format!("{WITHOUT_GROUP_TEXT}: {why}")),
    };
    LayerReport { state, detail }
}

/// Removes groups whose supervisors are gone, and kills the processes in them.
pub fn remove_orphans() {
    let bases = hierarchy::find_bases(&[hierarchy::Controller::Freezer, hierarchy::Controller::Pids]);
    // Without a base directory there are no groups.
    bases.iter().flatten().for_each(|base| group::remove_leftovers(&base.path));
}

/// Returns whether a sandbox can have a control group on this machine.
pub fn can_have_group() -> bool {
    hierarchy::find_bases(&[hierarchy::Controller::Freezer, hierarchy::Controller::Pids]).is_ok()
}

/// Report text for limits without a control group.
const WITHOUT_GROUP_TEXT: &str = "only resource limits and a watch, no control group";
/// Report text for the remedy if only a group can enforce a limit.
const SCOPE_TEXT: &str = "the service manager is asked for a scope if nothing else enforces a limit";

/// Reduces the limits to the capacity of this machine.
fn within_machine(limits: &Limits) -> Limits {
    let mut limits = limits.clone();
    resources::within_machine(&mut limits);
    limits
}

fn group_or_reason(group: Result<Option<ControlGroup>, String>) -> (Option<Arc<ControlGroup>>, String) {
    match group {
        Ok(group) => (group.map(Arc::new), String::new()),
        Err(why) => (None, why),
    }
}

/// The limits of one run, prepared before its command starts.
#[derive(Debug)]
pub struct LimitGuard {
    limits: Limits,
    workspace: PathBuf,
    group: Option<Arc<ControlGroup>>,
    holders: Vec<(LimitKind, u64, LimitMechanism)>,
}

impl LimitGuard {
    /// Prepares the mechanisms for the limits of `plan`, for the run under `init`. No process is in
    /// them yet. If only a group can enforce a limit, requests a scope from the service manager.
    ///
    /// # Errors
    /// [`LimitError`] if no mechanism here can enforce one of them (L6).
    pub fn prepare_for_run(plan: &AttemptPlan, init: u32) -> Result<Self, LimitError> {
        let limits = within_machine(&plan.profile.limits);
        let workspace = plan.workspace.as_path();
        let make_group = || group_or_reason(ControlGroup::create_for_limits(&limits, plan.level, workspace));
        let (mut group, mut absent) = make_group();
        let nothing_holds = |group: Option<&ControlGroup>| {
            report::find_mechanisms(&limits, plan.level, group).iter().any(|(.., h)| *h == LimitMechanism::Nothing)
        };
        if nothing_holds(group.as_deref())
            && let Some(manager) = ServiceManager::of_user()
        {
            match manager.give_scope(init) {
                Ok(()) => (group, absent) = make_group(),
                Err(why) => absent = format!("{absent}; {why}"),
            }
        }
        Self::from_group(limits, plan.level, workspace, (group, absent))
    }

    /// Makes the guard. `absent` is the reason why there is no group.
    fn from_group(
        limits: Limits,
        level: IsolationLevel,
        workspace: &Path,
        (group, absent): (Option<Arc<ControlGroup>>, String),
    ) -> Result<Self, LimitError> {
        let holders = report::find_mechanisms(&limits, level, group.as_deref());
        if let Some((limit, amount, _)) = holders.iter().find(|(.., holder)| *holder == LimitMechanism::Nothing) {
            let refused = group.as_deref().and_then(|group| group.refusal_reason(*limit));
            let why = refused.unwrap_or(if absent.is_empty() { "no mechanism here enforces it" } else { &absent });
            return Err(LimitError::Unheld {
                limit: *limit,
                amount: limit.format_amount(*amount),
                why: why.to_owned(),
            });
        }
        Ok(Self { limits, workspace: workspace.to_owned(), group, holders })
    }

    /// Prepares the limits of a sandbox. The group contains all commands of the sandbox, and is
    /// made even without a limit, if possible.
    ///
    /// # Errors
    /// As [`prepare_for_run`](Self::prepare_for_run).
    pub fn of_sandbox(limits: &Limits, workspace: &Path) -> Result<Self, LimitError> {
        let limits = within_machine(limits);
        let group = group_or_reason(ControlGroup::of_sandbox(&limits, workspace).map(Some));
        Self::from_group(limits, IsolationLevel::Full, workspace, group)
    }

    /// Prepares the limits of a command in a sandbox, within the sandbox's group.
    ///
    /// # Errors
    /// As [`prepare_for_run`](Self::prepare_for_run).
    pub fn prepare_in_sandbox(
        plan: &AttemptPlan,
        workspace: &Path,
        sandbox: Option<&Arc<ControlGroup>>,
    ) -> Result<Self, LimitError> {
        let limits = within_machine(&plan.profile.limits);
        let group =
            group_or_reason(sandbox.map(|group| ControlGroup::create_nested(group, &limits, workspace)).transpose());
        Self::from_group(limits, plan.level, workspace, group)
    }

    /// Reports the mechanism of each limit for the enforcement report. With `asks`, also reports
    /// which limits an approver can raise while the run is frozen.
    pub fn report_limits(&self, asks: bool) -> LayerReport {
        let is_small = small_disk(&self.limits).is_some();
        // With a large limit, one file may take all of it.
        let file_size = file_size::file_size(&self.limits, asks);
        let file_size = file_size.and_then(|size| if is_small { size.current } else { size.maximum });
        let mut report = report::build_report(&self.holders, self.group.as_deref(), file_size);
        if asks {
            report.detail += &report::raised_in_place(&self.holders, self.group.as_deref());
        }
        report
    }

    /// Returns the group, if there is one.
    pub fn group(&self) -> Option<Arc<ControlGroup>> {
        self.group.clone()
    }

    /// Opens the files through which the command enters its group, in every hierarchy.
    ///
    /// # Errors
    /// [`LimitError::Unopened`] if one cannot be opened.
    pub fn open_join_files(&self) -> Result<Vec<OwnedFd>, LimitError> {
        let group = self.group.as_ref().map(|group| group.open_join_files()).transpose();
        group.map(Option::unwrap_or_default).map_err(LimitError::Unopened)
    }

    /// Starts the watch over the sandbox under `init`. With `asks`, an approver may raise limits.
    pub fn start_watch(self, init: u32, asks: bool) -> LimitWatch {
        LimitWatch::new(self, (init, Box::new(Vec::new)), asks)
    }

    /// Starts the watch over a persistent sandbox, whose commands are children of processes
    /// `beside` its init. No approver can raise limits.
    pub fn watch_all(self, init: u32, beside: ParentLister) -> LimitWatch {
        LimitWatch::new(self, (init, beside), false)
    }
}
