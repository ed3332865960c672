//! Sockets in private directories: how they are reached, and who may be at the
//! other end.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

/// Where a socket is. Reached through a descriptor of its directory: the name of a
/// socket has 108 bytes at most (unix(7)), that of a directory has not.
#[derive(Debug)]
pub struct Address {
    directory: OwnedFd,
    name: &'static str,
}

impl Address {
    /// The socket of this name in this directory.
    ///
    /// # Errors
    /// When there is no such directory.
    pub fn of(directory: &Path, name: &'static str) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self { directory: rustix::fs::open(directory, flags, Mode::empty())?, name })
    }

    /// Its path, as long as this value lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}/{}", self.directory.as_raw_fd(), self.name).into()
    }
}

/// Fails where the other side is another user, root aside. The directory keeps them
/// out; this holds where its mode was changed.
///
/// # Errors
/// Where it is, or where the kernel does not tell.
pub fn demand_own(socket: impl AsFd) -> io::Result<()> {
    let user = socket_peercred(socket)?.uid;
    if user == geteuid() || user.is_root() { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}
