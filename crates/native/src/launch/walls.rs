//! The namespaces of a persistent sandbox, as descriptors. A process that holds them can make
//! processes within. The namespaces exist as long as a process holds them.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_sys::Errno;
use stockade_sys::clone::{enter, flags};

/// The namespaces, in the order in which they are entered. In the user namespace the caller has the
/// capabilities to enter the others.
const NAMESPACES: [(&CStr, u64); Walls::COUNT] = [
    (c"/proc/self/ns/user", flags::NEW_USER),
    (c"/proc/self/ns/ipc", flags::NEW_IPC),
    (c"/proc/self/ns/uts", flags::NEW_UTS),
    (c"/proc/self/ns/net", flags::NEW_NET),
    (c"/proc/self/ns/cgroup", flags::NEW_CGROUP),
    (c"/proc/self/ns/pid", flags::NEW_PID),
    // The last one, because it changes the meaning of paths.
    (c"/proc/self/ns/mnt", flags::NEW_MOUNT),
];

/// All namespaces of one sandbox.
#[derive(Debug)]
pub(super) struct Walls([OwnedFd; Self::COUNT]);

impl Walls {
    pub(super) const COUNT: usize = 7;

    /// Opens the namespaces of this process. Uses system calls only.
    pub(super) fn of_this_process() -> Result<Self, Errno> {
        let mut opened = [const { None }; Self::COUNT];
        for (slot, (path, _)) in opened.iter_mut().zip(NAMESPACES) {
            *slot = Some(openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
        }
        Self::of(opened).ok_or(Errno::BADF)
    }

    /// Takes over namespaces that another process opened, in the order of [`fds`](Self::fds).
    pub(super) fn of(descriptors: impl IntoIterator<Item = Option<OwnedFd>>) -> Option<Self> {
        let mut descriptors = descriptors.into_iter().map_while(|fd| fd);
        let mut next = || descriptors.next();
        Some(Self([next()?, next()?, next()?, next()?, next()?, next()?, next()?]))
    }

    /// Returns the descriptors, to pass them or to keep them open.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; Self::COUNT] {
        self.0.each_ref().map(OwnedFd::as_fd)
    }

    /// Moves this process, which must have one thread, into the namespaces. Only its later children
    /// enter the PID namespace. Its root and working directory are then those of the sandbox. Uses
    /// system calls only.
    pub(super) fn enter(&self) -> Result<(), Errno> {
        self.0.iter().zip(NAMESPACES).try_for_each(|(fd, (_, kind))| enter(fd.as_fd(), kind))
    }
}
