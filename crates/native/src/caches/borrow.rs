//! Layers that the holder of a workspace lends to a run; and how a holder is started.

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
use stockade_sys::socket::demand_own;
use stockade_sys::{Errno, passing};

use super::holder::{LAST, OVER, Wanted};
use super::open_file;

/// The socket of a holder, in the directory of its workspace. A program of another version is
/// not asked: it may understand something else, or lend what this one would not.
const SOCKET: &str = concat!("holder-", env!("CARGO_PKG_VERSION"));
/// The file that is locked by who starts one.
const STARTING: &str = "holder.lock";

/// How long a holder may take to answer, which may have to mount, and how long whoever
/// starts one is waited for. After that the run mounts for itself.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(1);
/// Who waits until the holder accepts them.
const BACKLOG: i32 = 64;
/// What it is called in lists of processes: its program may be a link to itself.
const NAME: &str = "stockade";

/// How a process that holds layers is started: this program, with these arguments and the
/// path of a workspace's directory, calls [`hold_layers`](super::hold_layers).
#[derive(Clone, Debug)]
pub struct HolderProgram {
    /// The program.
    pub program: PathBuf,
    /// What stands before the path.
    pub arguments: Vec<OsString>,
}

/// Layers that are asked for and then lent, as long as this is there.
#[derive(Debug)]
pub(super) struct Loan {
    /// The holder stays as long as it is open.
    line: OwnedFd,
    /// How many layers were asked for.
    count: usize,
    /// Of the set, which nobody else may use meanwhile.
    lock: Option<OwnedFd>,
}

impl HolderProgram {
    /// Asks for layers of the workspace that has the directory `home`, at this path.
    pub(super) fn ask(&self, home: BorrowedFd<'_>, path: &Path, wanted: &[Wanted]) -> io::Result<Loan> {
        let line = match reach(home) {
            Ok(line) => line,
            Err(_) => self.start_alone(home, path)?,
        };
        passing::send(line.as_fd(), &serde_json::to_vec(wanted)?, &[])?;
        Ok(Loan { line, count: wanted.len(), lock: None })
    }

    /// Starts a holder, unless somebody else just did.
    fn start_alone(&self, home: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
        let starting = open_file(home, STARTING)?;
        let until = Instant::now() + ANSWERS_WITHIN;
        while let Err(errno) = flock(&starting, FlockOperation::NonBlockingLockExclusive) {
            if errno != Errno::WOULDBLOCK || Instant::now() >= until {
                return Err(errno.into());
            }
            thread::sleep(AGAIN);
        }
        reach(home).or_else(|_| {
            self.start(listen_in(home)?, path)?;
            Ok(reach(home)?)
        })
    }

    #[allow(clippy::disallowed_methods, reason = "a program of this project's own, and nothing of a run")]
    fn start(&self, listener: OwnedFd, path: &Path) -> io::Result<()> {
        let mut holder = Command::new(&self.program)
            .arg0(NAME)
            .args(&self.arguments)
            .arg(path)
            .env_clear()
            .current_dir("/")
            .stdin(listener)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        // Whoever started it is its parent, and has to take its end.
        thread::Builder::new().name("holder-end".to_owned()).spawn(move || drop(holder.wait())).map(drop)
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Reached through a descriptor: the name of a socket has 108 bytes at most (unix(7)).
fn address(home: BorrowedFd<'_>) -> Result<SocketAddrUnix, Errno> {
    use std::os::fd::AsRawFd;
    SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET}", home.as_raw_fd()))
}

fn reach(home: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let line = socket()?;
    for which in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&line, which, Some(ANSWERS_WITHIN))?;
    }
    connect(&line, &address(home)?)?;
    demand_own(&line).map_err(|_| Errno::PERM)?;
    Ok(line)
}

/// The socket of a holder that does not run yet: who connects waits for it.
fn listen_in(home: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    match unlinkat(home, SOCKET, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let listener = socket()?;
    bind(&listener, &address(home)?)?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

impl Loan {
    /// Tells the holder that nothing is left that looks into a layer but this init.
    pub(super) fn end(&self, init: BorrowedFd<'_>) {
        let _ = passing::send(self.line.as_fd(), &[OVER], &[init]);
    }

    /// Waits for the layers, in the order of the request.
    ///
    /// # Errors
    /// Where not all of them come in time.
    pub(super) fn receive(&mut self) -> io::Result<Vec<OwnedFd>> {
        let until = Instant::now() + ANSWERS_WITHIN;
        let mut trees = Vec::new();
        loop {
            // Whoever answers could else go on for ever.
            let left = until.checked_duration_since(Instant::now()).ok_or(io::ErrorKind::TimedOut)?;
            set_socket_timeout(&self.line, Timeout::Recv, Some(left.max(AGAIN)))?;
            let mut kind = [0];
            let received = passing::receive(self.line.as_fd(), &mut kind, true)?;
            let mut descriptors = received.descriptors.into_iter().flatten();
            let (1, Some(lock)) = (received.length, descriptors.next()) else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            self.lock = Some(lock);
            trees.extend(descriptors);
            if kind == [LAST] {
                return if trees.len() == self.count { Ok(trees) } else { Err(io::ErrorKind::InvalidData.into()) };
            }
        }
    }
}
