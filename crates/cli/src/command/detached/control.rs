//! How a run is asked to end: a line over a socket in its directory. The
//! supervisor does it, to what it holds itself; a number of a process, which may
//! be another's by then, is never signalled.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Signal, geteuid};
use stockade_engine::Interrupter;
use stockade_store::runs::Run;

use crate::failure::Failure;

/// The signals that a run can be asked to end with.
const ENDING: [Signal; 5] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::KILL];
/// How long either side waits for a line of the other.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest line, in bytes.
const LINE_BYTES: u64 = 64;
const DONE: &[u8] = b"done\n";

/// The socket of a run. Reached through a descriptor of its directory: the name
/// of a socket has 108 bytes at most (unix(7)), that of a directory has not.
struct Address {
    path: PathBuf,
    _directory: OwnedFd,
}

impl Address {
    fn of(run: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::open(run, flags, Mode::empty())?;
        let path = format!("/proc/self/fd/{}/control", directory.as_raw_fd()).into();
        Ok(Self { path, _directory: directory })
    }
}

/// Listens for the end of the run, on a thread of its own.
///
/// # Errors
/// When there can be no socket or thread.
pub fn serve(run: &Run, interrupter: Interrupter) -> Result<(), Failure> {
    let cannot = |e: io::Error| Failure::new(format!("cannot listen for the end of the run: {e}"));
    let listener = Address::of(run.path()).and_then(|at| UnixListener::bind(&at.path)).map_err(cannot)?;
    let answer_all = move || {
        for stream in listener.incoming() {
            // One that is not understood or goes away is its own loss.
            match stream.and_then(|stream| answer(&stream, &interrupter)) {
                Ok(()) => {}
                Err(error) => tracing::warn!(%error, "a caller was not answered"),
            }
        }
    };
    thread::Builder::new().name("stockade-control".to_owned()).spawn(answer_all).map(drop).map_err(cannot)
}

fn answer(mut stream: &UnixStream, interrupter: &Interrupter) -> io::Result<()> {
    demand_own(stream)?;
    let line = read_line(stream)?;
    let signal = line.strip_prefix("end ").and_then(|number| number.parse().ok());
    let signal = signal.filter(|number| ENDING.iter().any(|signal| signal.as_raw() == *number));
    let Some(signal) = signal else { return stream.write_all(b"not understood\n") };
    if !interrupter.interrupt(signal) {
        return stream.write_all(b"it is over\n");
    }
    stream.write_all(DONE)
}

/// Fails where the other side is another user. The directory keeps them out; this
/// holds where its mode was changed.
fn demand_own(stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let other = socket_peercred(stream)?.uid;
    if other == geteuid() { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

fn read_line(stream: &UnixStream) -> io::Result<String> {
    let mut line = String::new();
    let mut byte = [0];
    let mut bounded = stream.take(LINE_BYTES);
    while bounded.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(char::from(byte[0]));
    }
    Ok(line)
}

/// Asks the run's supervisor to end it, beginning with this signal.
///
/// # Errors
/// When nobody answers, or not as expected.
pub fn end(run: &Run, signal: Signal) -> Result<(), Failure> {
    let ask = || {
        let mut stream = Address::of(run.path()).and_then(|at| UnixStream::connect(&at.path))?;
        demand_own(&stream)?;
        stream.write_all(format!("end {}\n", signal.as_raw()).as_bytes())?;
        read_line(&stream)
    };
    let refused = |why: &dyn std::fmt::Display| Failure::new(format!("cannot end {}: {why}", run.id()));
    let answer = ask().map_err(|e| refused(&e))?;
    if answer.as_bytes() == DONE.trim_ascii_end() { Ok(()) } else { Err(refused(&answer)) }
}
