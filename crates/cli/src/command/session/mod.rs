//! `stockade session`: runs commands one after the other, each in a fresh sandbox that was prepared
//! ahead. [`supervise`] is the supervisor of a session, [`front`] the worker that runs a command,
//! and [`wire`] defines the messages.

mod front;
mod rehearsal;
mod supervise;
mod wire;

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, umask};
use serde_json::{Value, json};
use stockade_model::{Grant, SessionId};
use stockade_policy::resolve_profile;
use stockade_store::sessions::{About, Session, Sessions};
use stockade_sys::descriptors::close_all_but;
use stockade_sys::ready::readable_before;
use stockade_sys::session::{Side, fork_into_session};

use self::rehearsal::of_terms;
use self::supervise::{STARTED, Start, supervise};
use self::wire::{Asked, Line, Report, Word};
use super::{Ended, now_ms, print, setting, variable};
use crate::args::{Subject, Terms};
use crate::failure::{Failure, quoted};
use crate::interrupts::{self, Taken};
use crate::meaning::{self, Meant};
use crate::places::State;
use crate::render::{self, session as text};
use crate::session_args::{SessionCommand, SessionExecArgs, SessionStartArgs};
use crate::terminal::{self, Kept, Terminal};
use crate::{exit, places, trace};

/// Time-out for the first sandbox of a session to be ready.
const STARTS_WITHIN: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };
/// Time-out for a session to end: the time of its commands, and its own.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// Most stops of a job in the background. In a job that no shell can continue, the stop signal has
/// no effect.
const STOPS_MAX: u32 = 100;
/// Interval between two checks of an awaited session.
const AGAIN: Duration = Duration::from_millis(20);

/// Runs a subcommand.
///
/// # Errors
/// [`Failure`] if Stockade itself failed.
pub fn session(typed: SessionCommand) -> Ended {
    trace::start(None)?;
    match typed {
        SessionCommand::Start(typed) => start(typed),
        SessionCommand::Exec(typed) => exec(typed),
        SessionCommand::End { id } => end(&id),
        SessionCommand::List { json } => list(json),
    }
}

fn sessions() -> Result<Sessions, Failure> {
    Ok(Sessions::of(State::open(&places::state_path(&variable)?)?.sessions()))
}

/// Finds the session of this name, open or lost.
fn find(name: &str) -> Result<Session, Failure> {
    let id = meaning::session(name)?;
    sessions()?
        .find(&id)?
        .ok_or_else(|| Failure::new(format!("there is no session `{id}`")).hint("`stockade session list` shows them"))
}

fn lost(session: &Session) -> Failure {
    let why = format!("the supervisor of `{}` was killed; everything of the session ended with it", session.id());
    Failure::new(why).hint("`stockade session start` begins another")
}

fn start(typed: SessionStartArgs) -> Ended {
    let id = match &typed.name {
        Some(name) => meaning::session(name)?,
        None => meaning::session_id()?,
    };
    let (terms, profile) = settle(typed.terms, &id)?;
    // Only descriptors of the caller are open besides, which the supervisor must not keep open.
    let cannot = |error: &dyn std::fmt::Display| Failure::new(format!("cannot begin a session: {error}"));
    close_all_but(&[0, 1, 2]).map_err(|e| cannot(&e))?;
    let about = About {
        id: id.clone(),
        workspace: terms.workspace.as_deref().unwrap_or("/".as_ref()).into(),
        profile,
        started_ms: now_ms(),
        supervisor: 0,
    };
    let sessions = sessions()?;
    let (told, launcher) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| cannot(&e))?;
    if let Side::Child = fork_into_session().map_err(|e| cannot(&e))? {
        drop(told);
        return supervise(Start { sessions, about, terms, idle: typed.idle_timeout, launcher });
    }
    drop(launcher);
    let mut waited = [PollFd::new(&told, PollFlags::IN)];
    if poll(&mut waited, Some(&STARTS_WITHIN)).map_err(|e| cannot(&e))? == 0 {
        let why = format!("the session was not ready within {} s", STARTS_WITHIN.tv_sec);
        return Err(Failure::new(why).hint(format!("stockade session end {id}")));
    }
    let mut word = [0];
    match std::fs::File::from(told).read(&mut word) {
        Ok(1) if word == [STARTED] => {
            print(&format!("{id}\n"))?;
            Ok(exit::SUCCESS)
        }
        // The supervisor has printed the reason, if it could.
        _ => Err(Failure::new("no session was begun")),
    }
}

/// Resolves the options now, because a command of the session may start in another directory. Fails
/// if a command could not even be assessed.
fn settle(terms: Terms, id: &SessionId) -> Result<(Terms, Option<String>), Failure> {
    let meant = Meant::run(of_terms(&terms), &variable)?;
    let setting = setting::load(&meant.workspace)?;
    let profile = meant.profile.clone().unwrap_or_else(|| setting.settings.profile.value.clone());
    resolve_profile(&setting.settings, &profile, &meant.workspace, &meant.all_grants())
        .map_err(|error| Failure::from_text(&error.to_string()).or_hint(Some(format!("for session {id}"))))?;
    let resolved = |grants: &[Grant]| grants.iter().map(Grant::to_string).map(Into::into).collect();
    let (grants, requests) = (resolved(&meant.grants), resolved(&meant.requested));
    Ok((Terms { workspace: Some(meant.workspace), grants, requests, ..terms }, Some(profile)))
}

fn exec(typed: SessionExecArgs) -> Ended {
    let session = find(&typed.id)?;
    if !session.is_open() {
        return Err(lost(&session));
    }
    let cannot = |error: io::Error| Failure::new(format!("cannot reach `{}`: {error}", session.id()));
    let signals = interrupts::take()?;
    terminal::leave_input_to_foreground().map_err(|e| Failure::new(format!("cannot set standard input: {e}")))?;
    let asked = asked(typed)?.to_file().map_err(cannot)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let cwd = rustix::fs::open(".", flags, Mode::empty()).map_err(|e| cannot(e.into()))?;
    let person = Terminal::open();
    let lent = person.as_ref().map(Terminal::lent).transpose().map_err(cannot)?;
    let mut along = vec![asked.as_fd(), cwd.as_fd()];
    along.extend([rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()]);
    along.extend(lent.as_ref().map(OwnedFd::as_fd));
    let line = Line::to(session.path()).map_err(cannot)?;
    line.say(Word::Exec, &along).map_err(cannot)?;
    drop((asked, cwd, lent));
    let modes = Kept::of_standard_input();
    let followed = follow(&session, &line, &signals, person.as_ref());
    if followed.is_err() {
        // The process that relayed the terminal was killed.
        modes.put_back();
    }
    followed
}

fn asked(typed: SessionExecArgs) -> Result<Asked, Failure> {
    // umask(2) can only be read by replacing it.
    let mask = umask(Mode::empty());
    umask(mask);
    let Subject { script, words } = typed.subject;
    if script.is_none() && words.is_empty() {
        return Err(Failure::new("there is no command").hint("put it after `--`, or a script after -c"));
    }
    Ok(Asked {
        script: script.map(Into::into),
        words: words.into_iter().map(Into::into).collect(),
        requests: typed.requests.into_iter().map(Into::into).collect(),
        report: match typed.json {
            None => Report::Nowhere,
            Some(None) => Report::StandardOutput,
            Some(Some(file)) => Report::File(file.into()),
        },
        environment: std::env::vars_os().map(|(name, value)| (name.into(), value.into())).collect(),
        umask: mask.bits(),
    })
}

/// Passes signals on until the command has ended, and returns its exit code. A signal before the
/// session has accepted the command ends the wait.
fn follow(session: &Session, line: &Line, signals: &Taken, person: Option<&Terminal>) -> Ended {
    let mut heard = false;
    loop {
        let of_terminal = signals.of_terminal();
        let mut waited =
            [line.as_fd(), signals.as_fd(), of_terminal.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // Without a limit, because a command may run as long as its own limits allow.
        if poll(&mut waited, None).is_err() {
            continue;
        }
        let [answered, interrupted, changed] = waited.map(|fd| !fd.revents().is_empty());
        if answered {
            match line.hear() {
                Ok(Some((Word::Heard, _))) => heard = true,
                Ok(Some((Word::Over(code), _))) => return Ok(code),
                Ok(Some((Word::Stopped, _))) => {
                    stop_with_it(person);
                    let _ = line.say(Word::Signal(Signal::CONT.as_raw()), &[]);
                }
                _ => return Err(ended_without_a_word(session)),
            }
        }
        if changed && let Ok(signal) = of_terminal.next() {
            let _ = line.say(Word::Signal(signal), &[]);
        }
        if interrupted && let Ok(signal) = signals.next() {
            if !heard {
                return Ok(u8::try_from(128 + signal).unwrap_or(exit::FAILURE));
            }
            // If the session is gone, the next read of the connection reports it.
            let _ = line.say(Word::Signal(signal), &[]);
        }
    }
}

/// Stops with the command, whose terminal is this job's, until the job is in the foreground again,
/// as a program that reads its terminal does.
fn stop_with_it(person: Option<&Terminal>) {
    for _ in 0..STOPS_MAX {
        terminal::stop_job();
        if person.is_none_or(Terminal::in_foreground) {
            return;
        }
    }
}

fn ended_without_a_word(session: &Session) -> Failure {
    if session.path().exists() && !session.is_open() {
        return lost(session);
    }
    let why = format!("`{}` ended, or the process in front of the command was killed", session.id());
    Failure::new(format!("{why}; everything of the command ended with it"))
}

fn end(name: &str) -> Ended {
    let session = find(name)?;
    if !session.is_open() {
        session.remove()?;
        crate::complain(&lost(&session));
        return Ok(exit::NEGATIVE);
    }
    let mut line = ask_to_end(&session);
    let deadline = Instant::now() + ENDS_WITHIN;
    while session.is_open() {
        let cannot = |error| Failure::new(format!("cannot end `{}`: {error}", session.id()));
        let asked = line.as_ref().map_err(cannot)?;
        if Instant::now() >= deadline {
            let why = format!("{} did not end within {} s", quoted(session.path()), ENDS_WITHIN.as_secs());
            return Err(Failure::new(why));
        }
        sleep(AGAIN);
        // A worker that closes the connection without an answer was killed. The next one gets the
        // request, unless the session has ended meanwhile.
        if is_closed(asked)
            && let Ok(again) = ask_to_end(&session)
        {
            line = Ok(again);
        }
    }
    Ok(exit::SUCCESS)
}

fn ask_to_end(session: &Session) -> io::Result<Line> {
    let line = Line::to(session.path())?;
    line.say(Word::End, &[])?;
    Ok(line)
}

/// Returns whether the other side has closed the connection. Reads its answer, if there is one.
fn is_closed(line: &Line) -> bool {
    let now = Instant::now();
    readable_before(&[line.as_fd()], now).is_ok_and(|ready| ready) && !matches!(line.hear(), Ok(Some(_)))
}

fn list(json: bool) -> Ended {
    let mut found: Vec<_> = sessions()?.all()?.into_iter().map(|session| (session.about(), session)).collect();
    found.sort_by_key(|(about, _)| std::cmp::Reverse(about.as_ref().map_or(u64::MAX, |about| about.started_ms)));
    let mut out = String::new();
    for (about, session) in &found {
        let open = session.is_open();
        out += &if json {
            render::json::line(&listed_json(session, about.as_ref(), open))?
        } else {
            text::listed(session.id(), about.as_ref(), open)
        };
    }
    print(&out)?;
    super::remark_empty(&out, "no sessions");
    Ok(exit::SUCCESS)
}

fn listed_json(session: &Session, about: Option<&About>, open: bool) -> Value {
    json!({
        "id": session.id(),
        "state": if open { "open" } else { "lost" },
        "workspace": about.map(|about| &about.workspace),
        "profile": about.map(|about| &about.profile),
        "started_ms": about.map(|about| about.started_ms),
        "supervisor": about.map(|about| about.supervisor),
    })
}
