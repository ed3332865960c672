//! Client of the layer server: requests layers, and starts the server if none runs.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, flock, unlinkat};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use stockade_sys::socket::require_own;
use stockade_sys::{Errno, fd_passing};

use super::open_file;
use super::server::{LAST_ANSWER, LayerRequest, RELEASE_MESSAGE};

/// The socket of the layer server, in the directory of its workspace. The name has the version:
/// a server of another version may use another protocol or other rules.
const SOCKET_NAME: &str = concat!("holder-", env!("CARGO_PKG_VERSION"));
/// Lock file that serialises the start of a server.
const START_LOCK_NAME: &str = "holder.lock";

/// Time-out for an answer, which includes mounting, and for the start of a server by another
/// run. After it the run mounts layers of its own.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_DELAY: Duration = Duration::from_millis(1);
/// Connections that wait for `accept`.
const LISTEN_BACKLOG: i32 = 64;
/// Name in lists of processes: the path of the program may be `/proc/self/exe`.
const PROCESS_NAME: &str = "stockade";

/// How to start a layer server: this program, with these arguments and the path of a workspace's
/// directory, calls [`serve_layers`](super::serve_layers).
#[derive(Clone, Debug)]
pub struct LayerServerProgram {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments before the path.
    pub arguments: Vec<OsString>,
}

/// Layers that the server lends to this run, until this is dropped.
#[derive(Debug)]
pub(super) struct BorrowedLayers {
    /// Connection to the server, which does not exit while it is open.
    line: OwnedFd,
    /// Number of requested layers.
    count: usize,
    /// Lock of the set.
    lock: Option<OwnedFd>,
}

impl LayerServerProgram {
    /// Requests layers of the workspace with the directory `home`, which is at `path`.
    pub(super) fn request_layers(
        &self,
        home: BorrowedFd<'_>,
        path: &Path,
        requests: &[LayerRequest],
    ) -> io::Result<BorrowedLayers> {
        let line = match connect_to_server(home) {
            Ok(line) => line,
            Err(_) => self.start_alone(home, path)?,
        };
        fd_passing::send_message(line.as_fd(), &serde_json::to_vec(requests)?, &[])?;
        Ok(BorrowedLayers { line, count: requests.len(), lock: None })
    }

    /// Starts a server, unless another run has just started one.
    fn start_alone(&self, home: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
        let starting = open_file(home, START_LOCK_NAME)?;
        let until = Instant::now() + ANSWER_TIMEOUT;
        while let Err(errno) = flock(&starting, FlockOperation::NonBlockingLockExclusive) {
            if errno != Errno::WOULDBLOCK || Instant::now() >= until {
                return Err(errno.into());
            }
            thread::sleep(RETRY_DELAY);
        }
        connect_to_server(home).or_else(|_| {
            self.start_server(listen_in(home)?, path)?;
            Ok(connect_to_server(home)?)
        })
    }

    #[allow(clippy::disallowed_methods, reason = "a program of this project's own, and nothing of a run")]
    fn start_server(&self, listener: OwnedFd, path: &Path) -> io::Result<()> {
        let mut layer_server = Command::new(&self.program)
            .arg0(PROCESS_NAME)
            .args(&self.arguments)
            .arg(path)
            .env_clear()
            .current_dir("/")
            .stdin(listener)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        // The parent must reap it.
        thread::Builder::new().name("holder-end".to_owned()).spawn(move || drop(layer_server.wait())).map(drop)
    }
}

fn new_socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Address through a descriptor, because the name of a socket has 108 bytes at most (unix(7)).
fn socket_address(home: BorrowedFd<'_>) -> Result<SocketAddrUnix, Errno> {
    use std::os::fd::AsRawFd;
    SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET_NAME}", home.as_raw_fd()))
}

fn connect_to_server(home: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let line = new_socket()?;
    for which in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&line, which, Some(ANSWER_TIMEOUT))?;
    }
    connect(&line, &socket_address(home)?)?;
    require_own(&line).map_err(|_| Errno::PERM)?;
    Ok(line)
}

/// Listening socket for a server that does not run yet; clients can already connect.
fn listen_in(home: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    match unlinkat(home, SOCKET_NAME, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let listener = new_socket()?;
    bind(&listener, &socket_address(home)?)?;
    listen(&listener, LISTEN_BACKLOG)?;
    Ok(listener)
}

impl BorrowedLayers {
    /// Reports the end of the run. Its mounts go when `init` has exited.
    pub(super) fn report_end(&self, init: BorrowedFd<'_>) {
        let _ = fd_passing::send_message(self.line.as_fd(), &[RELEASE_MESSAGE], &[init]);
    }

    /// Receives the layers, in the order of the request.
    ///
    /// # Errors
    /// If not all layers arrive in time.
    pub(super) fn receive_layers(&mut self) -> io::Result<Vec<OwnedFd>> {
        let until = Instant::now() + ANSWER_TIMEOUT;
        let mut trees = Vec::new();
        loop {
            // Limits the sum of all answers.
            let remaining = until.checked_duration_since(Instant::now()).ok_or(io::ErrorKind::TimedOut)?;
            set_socket_timeout(&self.line, Timeout::Recv, Some(remaining.max(RETRY_DELAY)))?;
            let mut kind = [0];
            let received = fd_passing::receive_message(self.line.as_fd(), &mut kind, true)?;
            let mut descriptors = received.descriptors.into_iter().flatten();
            let (1, Some(lock)) = (received.length, descriptors.next()) else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            self.lock = Some(lock);
            trees.extend(descriptors);
            if kind == [LAST_ANSWER] {
                return if trees.len() == self.count { Ok(trees) } else { Err(io::ErrorKind::InvalidData.into()) };
            }
        }
    }
}
