//! A sandbox that is started before its plan exists. While the request is read, assessed and
//! planned, the init makes its namespaces and copies the root. A process has one, for its first run
//! at level full. An init that is not used is killed.
//!
//! This module must not know the command.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use stockade_model::{AttemptPlan, IsolationLevel};
use stockade_sys::clone::{ClonedChild, fork_with};
use stockade_sys::shared_arena::SharedArena;
use stockade_sys::{fd_passing, fork_signals};

use super::blueprint::{Blueprint, first_steps, may_map_for_others};
use super::child;
use super::error::LaunchError;
use super::exiting_inits;
use super::launched::{CommandStdio, INIT_NAMESPACES, LaunchingSandbox, begin_early, begin_launch, map_identity};
use super::options::LaunchOptions;

/// Maximum age of an init if it is unknown whether it sees all mounts made meanwhile.
const MAX_INIT_AGE: Duration = Duration::from_secs(2);

/// A watch on the host's mount table.
#[derive(Debug)]
pub struct MountTableWatch(File);

impl MountTableWatch {
    /// Starts watching.
    ///
    /// # Errors
    /// If there is no `/proc`.
    pub fn start_watching() -> std::io::Result<Self> {
        File::open("/proc/self/mountinfo").map(Self)
    }

    /// Returns whether a filesystem was mounted or unmounted since the last call. The kernel
    /// reports each change once (proc_pid_mounts(5)).
    pub fn has_changed(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(self, PollFlags::PRI)], Some(&now)) != Ok(0)
    }
}

impl AsFd for MountTableWatch {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An init without a plan.
#[derive(Debug)]
pub struct PrewarmedInit {
    arena: SharedArena,
    init: IdleInit,
    mounts: Option<MountTableWatch>,
    umask: Option<u32>,
    born: Instant,
}

/// The process, until a run takes it over. Dropping it kills the process.
#[derive(Debug)]
struct IdleInit(Option<(ClonedChild, OwnedFd, OwnedFd)>);

impl Drop for IdleInit {
    fn drop(&mut self) {
        if let Some((init, ..)) = self.0.take() {
            let _ = pidfd_send_signal(&init.pidfd, Signal::KILL);
            exiting_inits::wait_for_init(&init.pidfd);
        }
    }
}

impl PrewarmedInit {
    /// Makes the init. It is best called while the process has one thread and little memory.
    ///
    /// # Errors
    /// [`LaunchError`] if this process had one before, or if namespaces are not available. A start
    /// without it reports the reason.
    pub fn start() -> Result<Self, LaunchError> {
        let (born, mounts) = (Instant::now(), MountTableWatch::start_watching().ok());
        let arena = SharedArena::reserve_arena().map_err(LaunchError::call_error("reserve shared memory"))?;
        let pair = || fd_passing::socket_pair().map_err(LaunchError::call_error("make a socket pair"));
        let ((control, control_inside), (gate, gate_inside)) = (pair()?, pair()?);
        let mapped_by_caller = may_map_for_others();
        let first = first_steps(mapped_by_caller)?;
        let blocked = fork_signals::SignalBlockGuard::new().map_err(LaunchError::call_error("block signals"))?;
        let init =
            fork_with(INIT_NAMESPACES, 0, || child::early_init(&first, control_inside.as_fd(), gate_inside.as_fd()))
                .map_err(|errno| LaunchError::Clone { errno, namespaces: true })?;
        drop(blocked);
        let init = IdleInit(Some((init, control, gate)));
        if let (true, Some((child, control, _))) = (mapped_by_caller, &init.0) {
            map_identity(child.pid.as_raw_nonzero().get().unsigned_abs(), control.as_fd())?;
        }
        Ok(Self { arena, init, mounts, umask: None, born })
    }

    /// Sets the command's file mode creation mask, instead of the mask of this process when the
    /// init was made.
    #[must_use]
    pub fn with_umask(self, umask: u32) -> Self {
        Self { umask: Some(umask), ..self }
    }

    /// Returns whether this init can serve a sandbox of this level now.
    pub fn can_serve(&self, level: IsolationLevel) -> bool {
        let has_stale_mounts =
            self.mounts.as_ref().map_or(self.born.elapsed() >= MAX_INIT_AGE, MountTableWatch::has_changed);
        level == IsolationLevel::Full && !has_stale_mounts
    }

    /// Continues with `plan`.
    ///
    /// # Errors
    /// [`LaunchError`] as for [`begin_launch`].
    pub fn begin_launch(
        mut self,
        plan: &AttemptPlan,
        launch_options: &LaunchOptions,
        stdio: CommandStdio<'_>,
    ) -> Result<LaunchingSandbox, LaunchError> {
        let blueprint = self.arena.fill_with(|| Blueprint::prepare_with(plan, launch_options).map(Box::new))?;
        let published = self.arena.publish_value(blueprint);
        match (published, self.init.0.take()) {
            (Ok(blueprint), Some(init)) => begin_early(init, blueprint, self.umask, stdio),
            (Ok(_), None) => Err(LaunchError::Lost),
            // The program has another allocator, so the start begins from scratch.
            (Err(blueprint), init) => {
                drop(IdleInit(init));
                begin_launch(*blueprint, stdio)
            }
        }
    }
}
