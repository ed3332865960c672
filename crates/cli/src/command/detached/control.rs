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
use stockade_engine::InterruptSender;
use stockade_store::runs::DetachedRun;
use stockade_sys::socket::{UnixSocketAddress, require_own};

use super::client_connections::RunConnectionHandler;
use super::wire::{InputKind, RunChannel};
use crate::failure::CliError;

/// Signals that may be requested to end a run.
const END_SIGNALS: [Signal; 5] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::KILL];
/// Time-out of either side for a line of the other.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest line, in bytes.
const MAX_LINE_BYTES: u64 = 64;
/// Name of the socket in the directory.
const SOCKET_NAME: &str = "control";
const DONE_REPLY: &[u8] = b"done\n";
/// Like `DONE_REPLY`, for a run that takes input.
const DONE_WITH_INPUT_REPLY: &[u8] = b"done input\n";
/// Like `DONE_REPLY`, for a run with a terminal.
const DONE_WITH_TERMINAL_REPLY: &[u8] = b"done terminal\n";
const ATTACH_REQUEST: &str = "attach";
/// Like `ATTACH_REQUEST`, for a client whose user can answer questions.
const ATTACH_TO_ANSWER_REQUEST: &str = "attach answers";

/// Listens on a thread of its own.
///
/// # Errors
/// [`CliError`] if no socket or thread can be created.
pub fn serve_control_socket(
    run: &DetachedRun,
    interrupter: InterruptSender,
    handler: Arc<RunConnectionHandler>,
) -> Result<(), CliError> {
    let cannot = |e: io::Error| CliError::new(format!("cannot listen in the directory of the run: {e}"));
    let listener = UnixSocketAddress::in_directory(run.path(), SOCKET_NAME)
        .and_then(|at| UnixListener::bind(at.path()))
        .map_err(cannot)?;
    let answer_all = move || {
        for stream in listener.incoming() {
            // An invalid or closed connection affects only its client.
            match stream.and_then(|stream| answer_request(stream, &interrupter, &handler)) {
                Ok(()) => {}
                Err(error) => tracing::warn!(%error, "a client got no answer"),
            }
        }
    };
    thread::Builder::new().name("stockade-control".to_owned()).spawn(answer_all).map(drop).map_err(cannot)
}

fn answer_request(
    mut stream: UnixStream,
    interrupter: &InterruptSender,
    handler: &Arc<RunConnectionHandler>,
) -> io::Result<()> {
    configure_stream(&stream)?;
    let line = read_line(&stream)?;
    if line == ATTACH_REQUEST || line == ATTACH_TO_ANSWER_REQUEST {
        return serve_attach_request(stream, handler, line == ATTACH_TO_ANSWER_REQUEST);
    }
    let signal = line.strip_prefix("end ").and_then(|number| number.parse().ok());
    let signal = signal.filter(|number| END_SIGNALS.iter().any(|signal| signal.as_raw() == *number));
    let Some(signal) = signal else { return stream.write_all(b"not understood\n") };
    if !interrupter.send_interrupt(signal) {
        return stream.write_all(b"it is over\n");
    }
    stream.write_all(DONE_REPLY)
}

fn serve_attach_request(mut stream: UnixStream, handler: &Arc<RunConnectionHandler>, answers: bool) -> io::Result<()> {
    let Some(slot) = handler.reserve_slot() else { return stream.write_all(b"too many clients are attached\n") };
    stream.write_all(match handler.input_kind() {
        InputKind::Nothing => DONE_REPLY,
        InputKind::Pipe => DONE_WITH_INPUT_REPLY,
        InputKind::Terminal => DONE_WITH_TERMINAL_REPLY,
    })?;
    let client = socket_peercred(&stream)?.pid.as_raw_nonzero().get().unsigned_abs();
    slot.serve_client(RunChannel::from_stream(stream)?, client, answers)
}

/// Sets time-outs and requires a peer of the run's own user.
fn configure_stream(stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(CONTROL_TIMEOUT))?;
    stream.set_write_timeout(Some(CONTROL_TIMEOUT))?;
    require_own(stream)
}

/// Connects to a run's supervisor.
fn connect_to_supervisor(run: &DetachedRun) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(UnixSocketAddress::in_directory(run.path(), SOCKET_NAME)?.path())?;
    configure_stream(&stream)?;
    Ok(stream)
}

fn read_line(stream: &UnixStream) -> io::Result<String> {
    let mut line = String::new();
    let mut byte = [0];
    let mut bounded = stream.take(MAX_LINE_BYTES);
    while bounded.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(char::from(byte[0]));
    }
    Ok(line)
}

/// Attaches this process to the run, with `answers` also to answer its questions. Returns the kind
/// of the run's input too.
///
/// # Errors
/// [`CliError`] if the supervisor does not answer, or answers unexpectedly.
pub fn attach_to_supervisor(run: &DetachedRun, answers: bool) -> Result<(RunChannel, InputKind), CliError> {
    let ask = || {
        let mut stream = connect_to_supervisor(run)?;
        let line = if answers { ATTACH_TO_ANSWER_REQUEST } else { ATTACH_REQUEST };
        stream.write_all(format!("{line}\n").as_bytes())?;
        let answer = format!("{}\n", read_line(&stream)?);
        Ok((answer, RunChannel::from_stream(stream)?))
    };
    let refused = |why: &dyn std::fmt::Display| CliError::new(format!("cannot attach to {}: {why}", run.id()));
    let (answer, line) = ask().map_err(|e: io::Error| refused(&e))?;
    match answer.as_bytes() {
        DONE_REPLY => Ok((line, InputKind::Nothing)),
        DONE_WITH_INPUT_REPLY => Ok((line, InputKind::Pipe)),
        DONE_WITH_TERMINAL_REPLY => Ok((line, InputKind::Terminal)),
        _ => Err(refused(&answer.trim_ascii())),
    }
}

/// Requests the run's supervisor to end it, starting with this signal.
///
/// # Errors
/// [`CliError`] if the supervisor does not answer, or answers unexpectedly.
pub fn request_run_end(run: &DetachedRun, signal: Signal) -> Result<(), CliError> {
    let ask = || {
        let mut stream = connect_to_supervisor(run)?;
        stream.write_all(format!("end {}\n", signal.as_raw()).as_bytes())?;
        read_line(&stream)
    };
    let refused = |why: &dyn std::fmt::Display| CliError::new(format!("cannot end {}: {why}", run.id()));
    let answer = ask().map_err(|e| refused(&e))?;
    if answer.as_bytes() == DONE_REPLY.trim_ascii_end() { Ok(()) } else { Err(refused(&answer)) }
}
