//! `stockade ps`, `logs`, `wait` and `kill`: runs that live on without a
//! terminal. What starts one is in [`supervise`], what attaches to it in
//! [`attach`].

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

/// How often a run is looked at that is waited for.
const AGAIN: Duration = Duration::from_millis(50);
/// How long a run may take to end once it was asked to: its grace, its killing,
/// and its record.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

fn runs() -> Result<Runs, Failure> {
    Ok(Runs::of(State::open(&places::state_path(&variable)?)?.runs()))
}

/// Lists runs, the newest first.
///
/// # Errors
/// When they cannot be read.
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

/// Shows what a run printed, each stream where it was printed.
///
/// # Errors
/// When there is no such run, or what it printed cannot be read.
pub fn logs(typed: &LogsArgs) -> Ended {
    let run = runs()?.find(&typed.id)?;
    let (mut output, mut shower) = (run.output(), Shower::default());
    loop {
        // Before the look: what is kept when nobody watches is all there is.
        let over = !run.is_watched();
        shower.show(&mut output)?;
        if over || !typed.follow {
            return Ok(exit::SUCCESS);
        }
        sleep(AGAIN);
    }
}

/// Shows what a run has printed: on a terminal, which is not the run's, as text alone.
#[derive(Debug, Default)]
struct Shower {
    out: Harmless,
    err: Harmless,
}

impl Shower {
    /// What is there by now.
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

/// Waits for a run; its exit code.
///
/// # Errors
/// When there is no such run, or it ended without a word.
pub fn wait(typed: &WaitArgs) -> Ended {
    let run = runs()?.find(&typed.id)?;
    while run.is_watched() {
        sleep(AGAIN);
    }
    end_of(&run)
}

/// The exit code of a run that is over.
fn end_of(run: &Run) -> Ended {
    match run.standing() {
        Standing::Ended(outcome) => Ok(exit::of(&outcome)),
        Standing::Lost | Standing::Running => {
            Err(Failure::new(format!("the supervisor of {} was killed; everything of the run ended with it", run.id()))
                .hint("`stockade logs` shows what it had printed"))
        }
    }
}

/// Ends a run and waits until nothing of it is left.
///
/// # Errors
/// When there is no such run, or it cannot be reached or does not end.
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
