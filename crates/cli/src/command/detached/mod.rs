//! `stockade ps`, `logs`, `wait` and `kill`: detached runs, which continue without a terminal.
//! [`supervise`] starts one, [`attach`] attaches to it.

pub mod attach;
mod client;
mod clients;
mod control;
mod faithful;
mod input;
mod seat;
mod served;
pub mod supervise;
mod wire;

use std::io::{self, IsTerminal, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stockade_store::runs::{About, OutputReader, Piece, Run, Runs, Standing, Stream};

use super::{Ended, print, variable};
use crate::detached_args::{KillArgs, LogsArgs, PsArgs, WaitArgs};
use crate::failure::Failure;
use crate::places::State;
use crate::render::{self, detached as text};
use crate::screen::Harmless;
use crate::{exit, places};

/// Interval between two checks of an awaited run.
const AGAIN: Duration = Duration::from_millis(50);
/// Time-out for a run to end after the request: its grace period, its killing, and its entry in the
/// audit log.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

fn runs() -> Result<Runs, Failure> {
    Ok(Runs::of(State::open(&places::state_path(&variable)?)?.runs()))
}

/// Lists runs, the newest first.
///
/// # Errors
/// [`Failure`] if they cannot be read.
pub fn ps(typed: &PsArgs) -> Ended {
    let looked_at = |run: Run| {
        let (about, standing) = (run.about(), run.standing());
        (run, about, standing)
    };
    let mut found: Vec<_> = runs()?.all()?.into_iter().map(looked_at).collect();
    found.retain(|(.., standing)| typed.all || *standing == Standing::Running);
    found.sort_by_key(|(_, about, _)| std::cmp::Reverse(about.as_ref().map_or(u64::MAX, |about| about.started_ms)));
    let mut out = String::new();
    for (run, about, standing) in &found {
        out += &if typed.json {
            render::json::line(&listed_json(run, about.as_ref(), standing))?
        } else {
            text::listed(run.id(), about.as_ref(), standing)
        };
    }
    print(&out)?;
    super::remark_empty(&out, "no detached runs");
    Ok(exit::SUCCESS)
}

fn listed_json(run: &Run, about: Option<&About>, standing: &Standing) -> Value {
    let (state, status, exit_code) = match standing {
        Standing::Running => ("running", None, None),
        Standing::Ended(outcome) => ("ended", Some(outcome.status), Some(exit::of(outcome))),
        Standing::Lost => ("lost", None, None),
    };
    json!({
        "id": run.id(),
        "state": state,
        "status": status,
        "exit_code": exit_code,
        "session": about.map(|about| &about.session),
        "command": about.map(|about| &about.command),
        "workspace": about.map(|about| &about.workspace),
        "profile": about.map(|about| &about.profile),
        "started_ms": about.map(|about| about.started_ms),
        "supervisor": about.map(|about| about.supervisor),
    })
}

/// Shows the output of a run, each stream on the same stream.
///
/// # Errors
/// [`Failure`] if there is no such run, or if its output cannot be read.
pub fn logs(typed: &LogsArgs) -> Ended {
    let run = runs()?.find(&typed.id)?;
    let (mut output, mut shower) = (run.output(), Shower::default());
    loop {
        // Checked before the read: once the supervisor has exited, the output is complete.
        let over = !run.is_watched();
        shower.show(&mut output)?;
        if over || !typed.follow {
            return Ok(exit::SUCCESS);
        }
        sleep(AGAIN);
    }
}

/// Shows the output of a run. A terminal does not belong to the run, so it gets text and colours
/// only.
#[derive(Debug, Default)]
struct Shower {
    out: Harmless,
    err: Harmless,
}

impl Shower {
    /// Shows the available output.
    fn show(&mut self, output: &mut OutputReader) -> Result<(), Failure> {
        let cannot = |e: io::Error| Failure::new(format!("cannot show what the run printed: {e}"));
        let (mut stdout, mut stderr) = (io::stdout().lock(), io::stderr().lock());
        while let Some(piece) = output.next_piece().map_err(cannot)? {
            match piece {
                Piece::Bytes(Stream::Out, bytes) if stdout.is_terminal() => stdout.write_all(&self.out.of(&bytes)),
                Piece::Bytes(Stream::Out, bytes) => stdout.write_all(&bytes),
                Piece::Bytes(Stream::Err, bytes) if stderr.is_terminal() => stderr.write_all(&self.err.of(&bytes)),
                Piece::Bytes(Stream::Err, bytes) => stderr.write_all(&bytes),
                Piece::LeftOut(bytes) => stderr.write_all(text::left_out(bytes).as_bytes()),
            }
            .map_err(cannot)?;
        }
        stdout.flush().map_err(cannot)
    }
}

/// Waits for a run; the exit code is that of the run.
///
/// # Errors
/// [`Failure`] if there is no such run, or if it ended without an outcome.
pub fn wait(typed: &WaitArgs) -> Ended {
    let run = runs()?.find(&typed.id)?;
    while run.is_watched() {
        sleep(AGAIN);
    }
    end_of(&run)
}

/// Returns the exit code of a run that has ended.
fn end_of(run: &Run) -> Ended {
    match run.standing() {
        Standing::Ended(outcome) => Ok(exit::of(&outcome)),
        Standing::Lost | Standing::Running => {
            Err(Failure::new(format!("the supervisor of {} was killed; everything of the run ended with it", run.id()))
                .hint("`stockade logs` shows what it had printed"))
        }
    }
}

/// Ends a run and waits until all its processes are gone.
///
/// # Errors
/// [`Failure`] if there is no such run, if it cannot be reached, or if it does not end.
pub fn kill(typed: &KillArgs) -> Ended {
    let run = runs()?.find(&typed.id)?;
    if let Err(failure) = control::end(&run, typed.signal.number()) {
        if run.is_watched() {
            return Err(failure);
        }
        crate::complain(&Failure::new(format!("{} is over", run.id())));
        return Ok(exit::NEGATIVE);
    }
    let deadline = Instant::now() + ENDS_WITHIN;
    while run.is_watched() {
        if Instant::now() >= deadline {
            let why = format!("{} did not end within {} s", run.id(), ENDS_WITHIN.as_secs());
            return Err(Failure::new(why).hint("again with --signal kill"));
        }
        sleep(AGAIN);
    }
    Ok(exit::SUCCESS)
}
