//! The namespaces of a persistent sandbox, as descriptors. A process that holds them can make
//! processes within. The namespaces exist as long as a process holds them.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_sys::Errno;
use stockade_sys::clone::{enter_namespace, flags};

/// The namespaces, in the order in which they are entered. In the user namespace the caller has the
/// capabilities to enter the others.
const NAMESPACE_FLAGS: [(&CStr, u64); NamespaceSet::COUNT] = [
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
pub(super) struct NamespaceSet([OwnedFd; Self::COUNT]);

impl NamespaceSet {
    pub(super) const COUNT: usize = 7;

    /// Opens the namespaces of this process. Uses system calls only.
    pub(super) fn of_this_process() -> Result<Self, Errno> {
        let mut opened = [const { None }; Self::COUNT];
        for (slot, (path, _)) in opened.iter_mut().zip(NAMESPACE_FLAGS) {
            *slot = Some(openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
        }
        Self::from_fds(opened).ok_or(Errno::BADF)
    }

    /// Takes over namespaces that another process opened, in the order of [`fds`](Self::fds).
    pub(super) fn from_fds(descriptors: impl IntoIterator<Item = Option<OwnedFd>>) -> Option<Self> {
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
    pub(super) fn enter_all(&self) -> Result<(), Errno> {
        self.0.iter().zip(NAMESPACE_FLAGS).try_for_each(|(fd, (_, kind))| enter_namespace(fd.as_fd(), kind))
    }
}
