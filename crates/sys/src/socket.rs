//! Sockets in private directories: their addresses, and the check of the peer's user.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

/// Address of a socket, reached through a descriptor of its directory. The name of a socket has 108
/// bytes at most (unix(7)); the name of a directory has no such limit.
#[derive(Debug)]
pub struct UnixSocketAddress {
    directory: OwnedFd,
    name: &'static str,
}

impl UnixSocketAddress {
    /// Makes the address of the socket `name` in a directory.
    ///
    /// # Errors
    /// An error if there is no such directory.
    pub fn in_directory(directory: &Path, name: &'static str) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self { directory: rustix::fs::open(directory, flags, Mode::empty())?, name })
    }

    /// Returns the path, which is valid as long as this value lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}/{}", self.directory.as_raw_fd(), self.name).into()
    }
}

/// Fails if the peer is another user, except root. The directory excludes other users; this check
/// still applies if its mode was changed.
///
/// # Errors
/// `PermissionDenied` for another user, or the error of the kernel.
pub fn require_own(socket: impl AsFd) -> io::Result<()> {
    let user = socket_peercred(socket)?.uid;
    if user == geteuid() || user.is_root() { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}
