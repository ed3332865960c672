//! A sandbox begun before there is a plan: while the request is read, judged
//! and planned, the init makes its namespaces and copies the root. One in a
//! process, for its first run at level full; what is not used is ended.
//!
//! It must not know what will run.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::process::{Signal, pidfd_send_signal};
use stockade_model::{Level, Plan};
use stockade_sys::arena::Arena;
use stockade_sys::clone::{Child, fork_with};
use stockade_sys::{fork_signals, passing};

use super::blueprint::{Blueprint, first_steps, may_map_for_others};
use super::child;
use super::error::LaunchError;
use super::launched::{Launching, NAMESPACES, Stdio, begin, begin_early, map_identity};
use super::leaving;
use super::outfit::Outfit;

/// Older ones are not used: they do not see what was mounted meanwhile.
const FRESH: Duration = Duration::from_secs(2);

/// An init without a plan.
#[derive(Debug)]
pub struct Nursery {
    arena: Arena,
    init: Waiting,
    born: Instant,
}

/// The process, until somebody takes it over. Dropping it ends it.
#[derive(Debug)]
struct Waiting(Option<(Child, OwnedFd, OwnedFd)>);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((init, ..)) = self.0.take() {
            let _ = pidfd_send_signal(&init.pidfd, Signal::KILL);
            leaving::wait(&init.pidfd);
        }
    }
}

impl Nursery {
    /// Makes the init. Best called while the process has one thread and little
    /// memory.
    ///
    /// # Errors
    /// Where there was one before, or namespaces cannot be had: a start
    /// without it says why.
    pub fn start() -> Result<Self, LaunchError> {
        let arena = Arena::reserve().map_err(LaunchError::call("reserve shared memory"))?;
        let pair = || passing::pair().map_err(LaunchError::call("make a socket pair"));
        let ((control, control_inside), (gate, gate_inside)) = (pair()?, pair()?);
        let mapped_by_caller = may_map_for_others();
        let first = first_steps(mapped_by_caller)?;
        let blocked = fork_signals::AllBlocked::new().map_err(LaunchError::call("block signals"))?;
        let init = fork_with(NAMESPACES, 0, || child::early_init(&first, control_inside.as_fd(), gate_inside.as_fd()))
            .map_err(|errno| LaunchError::Clone { errno, namespaces: true })?;
        drop(blocked);
        let init = Waiting(Some((init, control, gate)));
        if let (true, Some((child, control, _))) = (mapped_by_caller, &init.0) {
            map_identity(child.pid.as_raw_nonzero().get().unsigned_abs(), control.as_fd())?;
        }
        Ok(Self { arena, init, born: Instant::now() })
    }

    /// Whether a sandbox of this level may be had of it now.
    pub fn serves(&self, level: Level) -> bool {
        level == Level::Full && self.born.elapsed() < FRESH
    }

    /// Goes on with `plan`.
    ///
    /// # Errors
    /// [`LaunchError`] as [`begin`].
    pub fn begin(mut self, plan: &Plan, outfit: &Outfit, stdio: Stdio<'_>) -> Result<Launching, LaunchError> {
        let blueprint = self.arena.fill(|| Blueprint::prepare_with(plan, outfit).map(Box::new))?;
        let published = self.arena.publish(blueprint);
        match (published, self.init.0.take()) {
            (Ok(blueprint), Some(init)) => begin_early(init, blueprint, stdio),
            (Ok(_), None) => Err(LaunchError::Lost),
            // The program has another allocator: from the beginning, then.
            (Err(blueprint), init) => {
                drop(Waiting(init));
                begin(*blueprint, stdio)
            }
        }
    }
}
