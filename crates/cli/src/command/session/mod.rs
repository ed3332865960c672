//! `stockade session`: runs commands one after the other, each in a fresh sandbox that was prepared
//! ahead. [`supervise`] is the supervisor of a session, and [`worker`] the worker that runs a command.

mod cache_warm_up;
mod supervise;
mod worker;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, umask};
use serde_json::{Value, json};
use stockade_model::{Grant, SessionId};
use stockade_policy::resolve_profile;
use stockade_store::sessions::{SessionDescription, SessionStore, WarmSession};
use stockade_supervisor::{
    Channel, ClientMessage, ExecRequest, MAX_RUN_MESSAGE_BYTES, OutcomeDestination, Reply, Request, RunMessage,
    StartReport, connect_in, fork_supervisor,
};
use stockade_sys::descriptors::close_all_but;
use stockade_sys::ready::readable_before;

use self::cache_warm_up::build_run_args;
use self::supervise::{SessionParameters, supervise_session};
use super::{CommandResult, configuration, now_ms, print_each, print_output, read_variable};
use crate::args::{CommandArgs, RunOptions};
use crate::failure::{CliError, quote_path};
use crate::interrupts::{self, BlockedSignals};
use crate::locations::StateDirectory;
use crate::render::session as text;
use crate::resolved_args::{self, ResolvedArgs};
use crate::session_args::{SessionCommand, SessionExecArgs, SessionStartArgs};
use crate::terminal::{self, SavedTerminalModes, UserTerminal};
use crate::{exit, locations, trace};

/// Time-out for the first sandbox of a session to be ready.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time-out for a session to end: the time of its commands, and its own.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Most stops of a job in the background. In a job that no shell can continue, the stop signal has
/// no effect.
const MAX_STOPS: u32 = 100;
/// Interval between two checks of an awaited session.
const SESSION_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs a subcommand.
///
/// # Errors
/// [`CliError`] if Stockade itself failed.
pub fn dispatch_session(typed: SessionCommand) -> CommandResult {
    trace::start_tracing(None)?;
    match typed {
        SessionCommand::Start(typed) => start_session(typed),
        SessionCommand::Exec(typed) => exec_in_session(typed),
        SessionCommand::End { id } => end_session_by_name(&id),
        SessionCommand::List { json } => list_sessions(json),
    }
}

fn open_sessions() -> Result<SessionStore, CliError> {
    Ok(SessionStore::at_root(StateDirectory::open(&locations::state_path(&read_variable)?)?.sessions_directory()))
}

/// Finds the session of this name, open or lost.
fn find_session(name: &str) -> Result<WarmSession, CliError> {
    let id = resolved_args::parse_session_id(name)?;
    open_sessions()?.find_session(&id)?.ok_or_else(|| {
        CliError::new(format!("there is no session `{id}`")).with_hint("`stockade session list` shows them")
    })
}

fn lost_session_error(session: &WarmSession) -> CliError {
    let why = format!("the supervisor of `{}` was killed; all processes of the session ended with it", session.id());
    CliError::new(why).with_hint("`stockade session start` begins another")
}

fn start_session(typed: SessionStartArgs) -> CommandResult {
    let id = match &typed.name {
        Some(name) => resolved_args::parse_session_id(name)?,
        None => resolved_args::session_id()?,
    };
    let (options, profile) = resolve_options(typed.options, &id)?;
    // Only descriptors of the caller are open besides, which the supervisor must not keep open.
    let cannot = |error: &dyn std::fmt::Display| CliError::new(format!("cannot start a session: {error}"));
    close_all_but(&[0, 1, 2]).map_err(|e| cannot(&e))?;
    let about = SessionDescription {
        id: id.clone(),
        workspace: options.workspace.as_deref().unwrap_or("/".as_ref()).into(),
        profile,
        started_ms: now_ms(),
        supervisor: 0,
    };
    let sessions = open_sessions()?;
    let idle = typed.idle_timeout;
    let supervise = |launcher| supervise_session(SessionParameters { sessions, about, options, idle, launcher });
    let (_, supervisor) = fork_supervisor(|launcher| crate::code_of(supervise(launcher))).map_err(|e| cannot(&e))?;
    match supervisor.receive_within::<StartReport>(START_TIMEOUT) {
        Ok(Some(Ok(()))) => {
            print_output(&format!("{id}\n"))?;
            Ok(exit::SUCCESS)
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            let why = format!("the session was not ready within {} s", START_TIMEOUT.as_secs());
            Err(CliError::new(why).with_hint(format!("stockade session end {id}")))
        }
        // The supervisor has printed the reason, if it could.
        _ => Err(CliError::new("no session was begun")),
    }
}

/// Resolves the options now, because a command of the session may start in another directory. Fails
/// if a command could not even be assessed.
fn resolve_options(options: RunOptions, id: &SessionId) -> Result<(RunOptions, Option<String>), CliError> {
    let request_args = ResolvedArgs::from_run_args(build_run_args(&options), &read_variable)?;
    let setting = configuration::load_config(&request_args.workspace)?;
    let profile = request_args.options.profile.clone().unwrap_or_else(|| setting.settings.profile.value.clone());
    resolve_profile(&setting.settings, &profile, &request_args.workspace, &request_args.all_grants())
        .map_err(|error| CliError::from_text(&error.to_string()).or_hint(Some(format!("for session {id}"))))?;
    let resolved = |grants: &[Grant]| grants.iter().map(Grant::to_string).map(Into::into).collect();
    let (grants, requests) = (resolved(&request_args.grants), resolved(&request_args.requested));
    Ok((RunOptions { workspace: Some(request_args.workspace), grants, requests, ..options }, Some(profile)))
}

fn exec_in_session(typed: SessionExecArgs) -> CommandResult {
    let session = find_session(&typed.id)?;
    if !session.is_supervised() {
        return Err(lost_session_error(&session));
    }
    let cannot = |error: io::Error| CliError::new(format!("cannot reach `{}`: {error}", session.id()));
    let signals = interrupts::take_signals()?;
    terminal::leave_input_to_foreground().map_err(|e| CliError::new(format!("cannot set standard input: {e}")))?;
    let request = Request::Exec(Box::new(build_exec_request(typed)?));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let cwd = rustix::fs::open(".", flags, Mode::empty()).map_err(|e| cannot(e.into()))?;
    let person = UserTerminal::open();
    let lent_terminal = person.as_ref().map(UserTerminal::clone_for_lending).transpose().map_err(cannot)?;
    let mut along = vec![cwd.as_fd()];
    along.extend([rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()]);
    along.extend(lent_terminal.as_ref().map(OwnedFd::as_fd));
    let channel = connect_in(session.path()).map_err(cannot)?;
    channel.send_request(&request, &along).map_err(cannot)?;
    drop((cwd, lent_terminal));
    let modes = SavedTerminalModes::of_standard_input();
    let followed = follow_command(&session, &channel, &signals, person.as_ref());
    if followed.is_err() {
        // The process that relayed the terminal was killed.
        modes.put_back();
    }
    followed
}

fn build_exec_request(typed: SessionExecArgs) -> Result<ExecRequest, CliError> {
    // umask(2) can only be read by replacing it.
    let mask = umask(Mode::empty());
    umask(mask);
    let CommandArgs { script, words } = typed.subject;
    if script.is_none() && words.is_empty() {
        return Err(CliError::new("there is no command").with_hint("put it after `--`, or a script after -c"));
    }
    Ok(ExecRequest {
        script: script.map(Into::into),
        words: words.into_iter().map(Into::into).collect(),
        requests: typed.requests.into_iter().map(Into::into).collect(),
        report: match typed.json {
            None => OutcomeDestination::Nowhere,
            Some(None) => OutcomeDestination::StandardOutput,
            Some(Some(file)) => OutcomeDestination::File(file.into()),
        },
        environment: std::env::vars_os().map(|(name, value)| (name.into(), value.into())).collect(),
        umask: mask.bits(),
    })
}

/// Passes signals on until the command has ended, and returns its exit code. A signal before the
/// session has accepted the command ends the wait.
fn follow_command(
    session: &WarmSession,
    channel: &Channel,
    signals: &BlockedSignals,
    person: Option<&UserTerminal>,
) -> CommandResult {
    // If the session is gone, the next read of the connection reports it.
    let pass_on = |signal| drop(channel.send(&ClientMessage::Signal(signal)));
    let mut is_accepted = false;
    loop {
        let of_terminal = signals.of_terminal();
        let mut waited = [channel.stream().as_fd(), signals.as_fd(), of_terminal.as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // Without a limit, because a command may run as long as its own limits allow.
        if poll(&mut waited, None).is_err() {
            continue;
        }
        let [answered, interrupted, changed] = waited.map(|fd| !fd.revents().is_empty());
        if answered && !is_accepted {
            match channel.receive::<Reply<()>>(MAX_RUN_MESSAGE_BYTES) {
                Ok(Some(Ok(()))) => is_accepted = true,
                Ok(Some(Err(refusal))) => return Err(CliError::new(format!("`{}`: {refusal}", session.id()))),
                Ok(None) | Err(_) => return Err(ended_without_a_word(session)),
            }
        } else if answered {
            match channel.receive(MAX_RUN_MESSAGE_BYTES) {
                Ok(Some(RunMessage::Over(code))) => return Ok(code),
                Ok(Some(RunMessage::Stopped)) => {
                    stop_with_it(person);
                    pass_on(Signal::CONT.as_raw());
                }
                _ => return Err(ended_without_a_word(session)),
            }
        }
        if changed && let Ok(signal) = of_terminal.next() {
            pass_on(signal);
        }
        if interrupted && let Ok(signal) = signals.next() {
            if !is_accepted {
                return Ok(u8::try_from(128 + signal).unwrap_or(exit::STOCKADE_FAILURE));
            }
            pass_on(signal);
        }
    }
}

/// Stops with the command, whose terminal is this job's, until the job is in the foreground again,
/// as a program that reads its terminal does.
fn stop_with_it(person: Option<&UserTerminal>) {
    for _ in 0..MAX_STOPS {
        terminal::stop_job();
        if person.is_none_or(UserTerminal::in_foreground) {
            return;
        }
    }
}

fn ended_without_a_word(session: &WarmSession) -> CliError {
    if session.path().exists() && !session.is_supervised() {
        return lost_session_error(session);
    }
    let why = format!("`{}` ended, or the supervisor of the command was killed", session.id());
    CliError::new(format!("{why}; all processes of the command ended with it"))
}

fn end_session_by_name(name: &str) -> CommandResult {
    let session = find_session(name)?;
    if !session.is_supervised() {
        session.remove()?;
        crate::print_error(&lost_session_error(&session));
        return Ok(exit::NEGATIVE_RESULT);
    }
    let mut channel = ask_to_end(&session);
    let deadline = Instant::now() + END_TIMEOUT;
    while session.is_supervised() {
        let cannot = |error| CliError::new(format!("cannot end `{}`: {error}", session.id()));
        let request_file = channel.as_ref().map_err(cannot)?;
        if Instant::now() >= deadline {
            let why = format!("{} did not end within {} s", quote_path(session.path()), END_TIMEOUT.as_secs());
            return Err(CliError::new(why));
        }
        sleep(SESSION_POLL_INTERVAL);
        // A worker that closes the connection without an answer was killed. The next one gets the
        // request, unless the session has ended meanwhile.
        if is_closed(request_file)
            && let Ok(new_channel) = ask_to_end(&session)
        {
            channel = Ok(new_channel);
        }
    }
    Ok(exit::SUCCESS)
}

fn ask_to_end(session: &WarmSession) -> io::Result<Channel> {
    let channel = connect_in(session.path())?;
    channel.send_request(&Request::End(None), &[])?;
    Ok(channel)
}

/// Returns whether the other side has closed the connection. Reads its answer, if there is one.
fn is_closed(channel: &Channel) -> bool {
    readable_before(&[channel.stream().as_fd()], Instant::now()).is_ok_and(|ready| ready)
        && !matches!(channel.receive::<Reply<()>>(MAX_RUN_MESSAGE_BYTES), Ok(Some(_)))
}

fn list_sessions(json: bool) -> CommandResult {
    let mut found: Vec<_> =
        open_sessions()?.list_sessions()?.into_iter().map(|session| (session.read_description(), session)).collect();
    found.sort_by_key(|(about, _)| std::cmp::Reverse(about.as_ref().map_or(u64::MAX, |about| about.started_ms)));
    super::remark_empty(found.is_empty(), "no sessions");
    print_each(
        &found,
        json,
        (
            |(about, session)| listed_json(session, about.as_ref(), session.is_supervised()),
            |(about, session)| text::format_line(session.id(), about.as_ref(), session.is_supervised()),
        ),
        "",
    )
}

fn listed_json(session: &WarmSession, about: Option<&SessionDescription>, open: bool) -> Value {
    json!({
        "id": session.id(),
        "state": if open { "open" } else { "lost" },
        "workspace": about.map(|about| &about.workspace),
        "profile": about.map(|about| &about.profile),
        "started_ms": about.map(|about| about.started_ms),
        "supervisor": about.map(|about| about.supervisor),
    })
}
