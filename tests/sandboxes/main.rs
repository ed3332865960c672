//! The conformance suite of sandboxes that last: what `engine::Sandboxes` promises,
//! demanded of every kind that this machine can have, for root and for an ordinary
//! user, and judged from outside.
//!
//! ```text
//! cargo test -p stockade-tests --test sandboxes -- [FILTER] [--list] [--all]
//! ```
//! A task is named `AREA/CASE/KIND/USER`; FILTER is a part of that, or several, parted
//! by commas. Without one a cross-section is played: one case in two in containers, of
//! one kind; `--all` plays all. Each is a process of its own, which has a directory of its own.
//!
//! What a kind cannot do it declares, and refuses with a clear error: the case then
//! demands that, and is listed as refused, never passed over in silence.
#![allow(missing_docs, reason = "a test binary has no users")]
#![allow(clippy::disallowed_methods, reason = "starting programs without a sandbox is what controls are")]

mod approval_fixture;
mod bench;
mod cases;
mod kinds;
mod plan;
mod server;
mod sleepers;
mod streams;
mod table;

use std::any::Any;
use std::fs::File;
use std::io::Write as _;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use stockade_backend_api::SandboxEventSender;
use stockade_container::in_container;
use stockade_native::{SupervisorHooks, run_sandbox_supervisor};
use stockade_testkit::suite::{DECLARED, FAILED, PASSED};

use crate::bench::{Bench, Declared};
use crate::plan::Task;

/// What is demanded.
pub struct Case {
    /// What it is about.
    pub area: &'static str,
    /// Its name, which says what holds.
    pub name: &'static str,
    /// Stops where something else is seen.
    pub run: fn(&Bench) -> Verdict,
}

/// Seen as demanded, or declared as not to be had.
pub type Verdict = Result<(), Declared>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [flag, task, top] if flag == "--case" => play_one(task, Path::new(top)),
        // What containers run as their launcher.
        [inside, part] if inside == "inside" => launcher(part),
        // An engine that is killed.
        [flag, kind, top] if flag == "--fill" => cases::killed::play(kind, Path::new(top)).map(|()| ExitCode::SUCCESS),
        // What keeps a sandbox.
        [keep, ..] if keep == "--keep" => run_supervisor(),
        _ => plan::run(&arguments),
    };
    result.unwrap_or_else(|error| {
        println!("error: {error:#}");
        ExitCode::from(FAILED)
    })
}

fn launcher(part: &str) -> Result<ExitCode> {
    in_container::run_subcommand(part).context("serving a container")?;
    Ok(ExitCode::SUCCESS)
}

fn run_supervisor() -> Result<ExitCode> {
    let next_check_delay = || Some(Duration::from_secs(1));
    let keep =
        SupervisorHooks { events: SandboxEventSender::new(|_| {}), next_check_delay: Box::new(next_check_delay) };
    run_sandbox_supervisor(|_, _| Ok(keep)).context("keeping a sandbox")?;
    Ok(ExitCode::SUCCESS)
}

/// The first thing that went wrong, on whatever thread.
static FAULT: Mutex<Option<String>> = Mutex::new(None);

/// Plays one case in this process, whose streams may become a command's.
fn play_one(task: &str, top: &Path) -> Result<ExitCode> {
    let task: Task = task.parse()?;
    let mut result_stream =
        File::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3).context("duplicating")?);
    panic::set_hook(Box::new(|info| {
        let at = info.location().map(|at| format!("{}:{}: ", at.file(), at.line())).unwrap_or_default();
        let text = format!("{at}{}", message(info.payload()));
        FAULT.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
    }));
    let bench = Bench::new(task.kind, top)?;
    let played = panic::catch_unwind(AssertUnwindSafe(|| (task.case.run)(&bench)));
    let (code, text) = match played {
        Ok(Ok(())) => (PASSED, String::new()),
        Ok(Err(Declared(how))) => (DECLARED, how),
        Err(_) => (FAILED, FAULT.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()),
    };
    writeln!(result_stream, "{text}")?;
    Ok(ExitCode::from(code))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}
