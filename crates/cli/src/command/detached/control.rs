//! The socket in a run's directory: requests to end the run, and connections of clients. The
//! supervisor acts on the descriptors that it holds. It never signals a process by number, because
//! the number may belong to another process by then.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::Signal;
use stockade_engine::Interrupter;
use stockade_store::runs::Run;
use stockade_sys::socket::{Address, demand_own};

use super::served::Desk;
use super::wire::{Intake, Line};
use crate::failure::Failure;

/// Signals that may be requested to end a run.
const ENDING: [Signal; 5] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::KILL];
/// Time-out of either side for a line of the other.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest line, in bytes.
const LINE_BYTES: u64 = 64;
/// Name of the socket in the directory.
const SOCKET: &str = "control";
const DONE: &[u8] = b"done\n";
/// Like `DONE`, for a run that takes input.
const DONE_WITH_INPUT: &[u8] = b"done input\n";
/// Like `DONE`, for a run with a terminal.
const DONE_WITH_TERMINAL: &[u8] = b"done terminal\n";
const ATTACH: &str = "attach";
/// Like `ATTACH`, for a client whose user can answer questions.
const ATTACH_TO_ANSWER: &str = "attach answers";

/// Listens on a thread of its own.
///
/// # Errors
/// [`Failure`] if no socket or thread can be created.
pub fn serve(run: &Run, interrupter: Interrupter, desk: Arc<Desk>) -> Result<(), Failure> {
    let cannot = |e: io::Error| Failure::new(format!("cannot listen in the directory of the run: {e}"));
    let listener = Address::of(run.path(), SOCKET).and_then(|at| UnixListener::bind(at.path())).map_err(cannot)?;
    let answer_all = move || {
        for stream in listener.incoming() {
            // An invalid or closed connection affects only its client.
            match stream.and_then(|stream| answer(stream, &interrupter, &desk)) {
                Ok(()) => {}
                Err(error) => tracing::warn!(%error, "a caller was not answered"),
            }
        }
    };
    thread::Builder::new().name("stockade-control".to_owned()).spawn(answer_all).map(drop).map_err(cannot)
}

fn answer(mut stream: UnixStream, interrupter: &Interrupter, desk: &Arc<Desk>) -> io::Result<()> {
    expect(&stream)?;
    let line = read_line(&stream)?;
    if line == ATTACH || line == ATTACH_TO_ANSWER {
        return attend(stream, desk, line == ATTACH_TO_ANSWER);
    }
    let signal = line.strip_prefix("end ").and_then(|number| number.parse().ok());
    let signal = signal.filter(|number| ENDING.iter().any(|signal| signal.as_raw() == *number));
    let Some(signal) = signal else { return stream.write_all(b"not understood\n") };
    if !interrupter.interrupt(signal) {
        return stream.write_all(b"it is over\n");
    }
    stream.write_all(DONE)
}

fn attend(mut stream: UnixStream, desk: &Arc<Desk>, answers: bool) -> io::Result<()> {
    let Some(place) = desk.place() else { return stream.write_all(b"too many are attached\n") };
    stream.write_all(match desk.intake() {
        Intake::Nothing => DONE,
        Intake::Pipe => DONE_WITH_INPUT,
        Intake::Terminal => DONE_WITH_TERMINAL,
    })?;
    let client = socket_peercred(&stream)?.pid.as_raw_nonzero().get().unsigned_abs();
    place.attend(Line::over(stream)?, client, answers)
}

/// Sets time-outs and requires a peer of the run's own user.
fn expect(stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    demand_own(stream)
}

/// Connects to a run's supervisor.
fn reach(run: &Run) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(Address::of(run.path(), SOCKET)?.path())?;
    expect(&stream)?;
    Ok(stream)
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

/// Attaches this process to the run, with `answers` also to answer its questions. Returns the kind
/// of the run's input too.
///
/// # Errors
/// [`Failure`] if the supervisor does not answer, or answers unexpectedly.
pub fn attach(run: &Run, answers: bool) -> Result<(Line, Intake), Failure> {
    let ask = || {
        let mut stream = reach(run)?;
        let line = if answers { ATTACH_TO_ANSWER } else { ATTACH };
        stream.write_all(format!("{line}\n").as_bytes())?;
        let answer = format!("{}\n", read_line(&stream)?);
        Ok((answer, Line::over(stream)?))
    };
    let refused = |why: &dyn std::fmt::Display| Failure::new(format!("cannot attach to {}: {why}", run.id()));
    let (answer, line) = ask().map_err(|e: io::Error| refused(&e))?;
    match answer.as_bytes() {
        DONE => Ok((line, Intake::Nothing)),
        DONE_WITH_INPUT => Ok((line, Intake::Pipe)),
        DONE_WITH_TERMINAL => Ok((line, Intake::Terminal)),
        _ => Err(refused(&answer.trim_ascii())),
    }
}

/// Requests the run's supervisor to end it, starting with this signal.
///
/// # Errors
/// [`Failure`] if the supervisor does not answer, or answers unexpectedly.
pub fn end(run: &Run, signal: Signal) -> Result<(), Failure> {
    let ask = || {
        let mut stream = reach(run)?;
        stream.write_all(format!("end {}\n", signal.as_raw()).as_bytes())?;
        read_line(&stream)
    };
    let refused = |why: &dyn std::fmt::Display| Failure::new(format!("cannot end {}: {why}", run.id()));
    let answer = ask().map_err(|e| refused(&e))?;
    if answer.as_bytes() == DONE.trim_ascii_end() { Ok(()) } else { Err(refused(&answer)) }
}
