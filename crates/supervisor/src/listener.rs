//! The socket of a supervisor, in the private directory of what it supervises.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use stockade_sys::socket::{UnixSocketAddress, require_own};

use crate::channel::Channel;

/// Name of the socket.
const SOCKET_NAME: &str = "supervisor";

/// A listening socket, which does not block.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    address: UnixSocketAddress,
    inode: u64,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Listener {
    /// Listens in this directory, replacing the socket of a supervisor that is gone.
    ///
    /// # Errors
    /// [`io::Error`] if no socket can be created.
    pub fn listen_in(directory: &Path) -> io::Result<Self> {
        let address = UnixSocketAddress::in_directory(directory, SOCKET_NAME)?;
        match fs::remove_file(address.path()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(address.path())?;
        listener.set_nonblocking(true)?;
        let inode = fs::symlink_metadata(address.path())?.ino();
        Ok(Self { listener, address, inode })
    }

    /// Returns the connection of a waiting client; `None` if none waits any more, or if it belongs
    /// to another user.
    ///
    /// # Errors
    /// [`io::Error`] if no descriptors are left.
    pub fn accept_client(&self) -> io::Result<Option<Channel>> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => return Ok(None),
            Err(e) => return Err(e),
        };
        if require_own(&stream).is_err() {
            return Ok(None);
        }
        // An accepted connection may block, unlike the listener.
        stream.set_nonblocking(false)?;
        Channel::from_stream(stream).map(Some)
    }

    /// Returns whether the socket still has its name.
    pub fn has_name(&self) -> bool {
        fs::symlink_metadata(self.address.path()).is_ok_and(|found| found.ino() == self.inode)
    }

    /// Stops listening, and removes the name if it is still this socket's.
    pub fn close(self) {
        if self.has_name() {
            // Another process may be removing the whole directory.
            let _ = fs::remove_file(self.address.path());
        }
    }
}

/// Connects to the supervisor in this directory.
///
/// # Errors
/// [`io::Error`] if no process listens there, or a process of another user.
pub fn connect_in(directory: &Path) -> io::Result<Channel> {
    let stream = UnixStream::connect(UnixSocketAddress::in_directory(directory, SOCKET_NAME)?.path())?;
    require_own(&stream)?;
    Channel::from_stream(stream)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_client_is_accepted_until_the_socket_has_lost_its_name() {
        let dir = tempfile::tempdir().unwrap();
        assert!(connect_in(dir.path()).is_err());
        let listener = Listener::listen_in(dir.path()).unwrap();
        assert!(listener.accept_client().unwrap().is_none());
        let client = connect_in(dir.path()).unwrap();
        let accepted = listener.accept_client().unwrap().unwrap();
        client.send(&"heard").unwrap();
        assert_eq!(accepted.receive_within::<String>(Duration::from_secs(5)).unwrap().unwrap(), "heard");
        let next = Listener::listen_in(dir.path()).unwrap();
        assert!(!listener.has_name() && next.has_name());
        listener.close();
        assert!(next.has_name());
        next.close();
        assert!(connect_in(dir.path()).is_err());
    }
}
