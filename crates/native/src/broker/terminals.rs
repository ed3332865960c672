//! Pseudo-terminals at a level where the host's terminals are visible. A run opens only terminals
//! that it created and its own standard streams, even if its user may open others. On another
//! terminal a program could ask the user for input. This file knows nothing of the relay of
//! terminal data.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, Stat, fstat, open};
use rustix::pty::{OpenptFlags, openpt, ptsname};
use stockade_model::{DeniedOperation, IsolationLevel};
use stockade_sys::{Errno, resolve};

use super::call_result::{CallResult, refuse_always};
use super::opens::{OpenRequest, finish_open};
use super::service::BrokerService;
use super::view::is_same_object;

/// Device that creates terminals (pty(7)).
const PTMX_PATH: &[u8] = b"/dev/ptmx";
/// Directory of the second ends.
const DEVPTS_DIR: &[u8] = b"/dev/pts/";
/// Most terminals of a run at a time. Terminals whose first end is closed do not count.
const MAX_TERMINALS: usize = 64;

/// Held second ends of the terminals that a run has created. The kernel reuses a number once the
/// first end is closed; the held second end has no name then (link count 0).
#[derive(Debug, Default)]
pub(super) struct RunTerminals(RefCell<Vec<OwnedFd>>);

impl RunTerminals {
    fn add_terminal(&self, second: OwnedFd) -> Result<(), Errno> {
        let mut held = self.0.borrow_mut();
        held.retain(|held| fstat(held).is_ok_and(|stat| stat.st_nlink > 0));
        if held.len() >= MAX_TERMINALS {
            return Err(Errno::NOSPC);
        }
        held.push(second);
        Ok(())
    }

    fn has_terminal(&self, terminal_stat: &Stat) -> bool {
        let is = |stat: Stat| stat.st_nlink > 0 && is_same_object(&stat, terminal_stat);
        self.0.borrow().iter().any(|held| fstat(held).is_ok_and(is))
    }
}

/// Returns whether a path is a terminal, or the device that creates terminals.
pub(super) fn is_of_terminals(path: &[u8]) -> bool {
    path == PTMX_PATH || path.starts_with(DEVPTS_DIR)
}

impl BrokerService {
    /// Returns whether the kernel may open the device at `path`, which is one that every user may
    /// write. Returns false for a terminal at a level where other terminals are visible.
    pub(super) fn may_open_by_itself(&self, path: &[u8]) -> bool {
        self.level == IsolationLevel::Full || !is_of_terminals(path)
    }

    /// Opens a path that the kernel [may not open](Self::may_open_by_itself).
    pub(super) fn open_other(&self, held: &OwnedFd, path: &[u8], open_request: OpenRequest) -> CallResult {
        if path == PTMX_PATH { self.make_terminal(open_request) } else { self.open_terminal(held, path, open_request) }
    }

    /// Creates a terminal for the caller and gives it the first end.
    fn make_terminal(&self, open_request: OpenRequest) -> CallResult {
        let first = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        let name = ptsname(&first, Vec::new())?;
        self.terminals.add_terminal(open(&*name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)?;
        if open_request.waits_not() {
            rustix::io::ioctl_fionbio(&first, true)?;
        }
        finish_open(first, open_request)
    }

    /// Opens the second end of a terminal, if that is the run's own. The terminal does not become a
    /// controlling terminal (`O_NOCTTY`).
    fn open_terminal(&self, held: &OwnedFd, path: &[u8], open_request: OpenRequest) -> CallResult {
        let stat = fstat(held)?;
        if !self.is_stream(&stat) && !self.terminals.has_terminal(&stat) {
            return Err(refuse_always(DeniedOperation::Write, path, "a terminal that the command did not create"));
        }
        let opened = resolve::reopen(held.as_fd(), open_request.of_broker() - OFlags::CREATE)?;
        finish_open(opened, open_request)
    }
}
