//! The namespaces of a sandbox that stands, as descriptors: whoever holds them
//! can have processes made within, and they last as long as somebody does.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_sys::Errno;
use stockade_sys::clone::{enter, flags};

/// Which there are, in the order in which they are entered: within the user
/// namespace the caller has the power to enter the others.
const NAMESPACES: [(&CStr, u64); Walls::COUNT] = [
    (c"/proc/self/ns/user", flags::NEW_USER),
    (c"/proc/self/ns/ipc", flags::NEW_IPC),
    (c"/proc/self/ns/uts", flags::NEW_UTS),
    (c"/proc/self/ns/net", flags::NEW_NET),
    (c"/proc/self/ns/cgroup", flags::NEW_CGROUP),
    (c"/proc/self/ns/pid", flags::NEW_PID),
    // The last: it changes what a path means.
    (c"/proc/self/ns/mnt", flags::NEW_MOUNT),
];

/// All namespaces of one sandbox.
#[derive(Debug)]
pub(super) struct Walls([OwnedFd; Self::COUNT]);

impl Walls {
    pub(super) const COUNT: usize = 7;

    /// Those of this process. System calls only.
    pub(super) fn of_this_process() -> Result<Self, Errno> {
        let mut opened = [const { None }; Self::COUNT];
        for (slot, (path, _)) in opened.iter_mut().zip(NAMESPACES) {
            *slot = Some(openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
        }
        Self::of(opened).ok_or(Errno::BADF)
    }

    /// Those that another process opened, in the order of [`fds`](Self::fds).
    pub(super) fn of(descriptors: impl IntoIterator<Item = Option<OwnedFd>>) -> Option<Self> {
        let mut descriptors = descriptors.into_iter().map_while(|fd| fd);
        let mut next = || descriptors.next();
        Some(Self([next()?, next()?, next()?, next()?, next()?, next()?, next()?]))
    }

    /// To hand over or to keep open.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; Self::COUNT] {
        self.0.each_ref().map(OwnedFd::as_fd)
    }

    /// Moves this process, which must have one thread, into them; of the PID
    /// namespace it becomes no part, only what it forks from now on. Its root and
    /// its directory are those of the sandbox then. System calls only.
    pub(super) fn enter(&self) -> Result<(), Errno> {
        self.0.iter().zip(NAMESPACES).try_for_each(|(fd, (_, kind))| enter(fd.as_fd(), kind))
    }
}
