//! The suite of guarded names: whether a run can plant, by links, moves, second names,
//! races or git's own indirections, what the host's git, cargo or npm then obeys. They
//! are asked from outside; each attack has a control without a sandbox.
//!
//! ```text
//! cargo test -p stockade-tests --test names -- [FILTER] [--list] [--all] [--controls] [--no-controls]
//! ```
//! A task is named `ROW/USER/LEVEL`, `ROW/USER/kept` (a persistent sandbox) or `ROW/control`; FILTER is a part of that, or
//! several, parted by commas. Without one each row is played in one of the pairs of a user and a
//! level, and in a persistent sandbox as one user; `--all` plays all of them.
//! `STOCKADE_BIN` names the program to test, and
//! `STOCKADE_NAMES` how much is tried (see `counts.rs`).
//!
//! Besides the rows there are `trees-git`, `trees-cargo` and `trees-npm`, in which
//! several processes of two runs play at random, and `races`.
#![allow(missing_docs, reason = "a test binary has no users")]
#![allow(clippy::disallowed_methods, reason = "starting programs without a sandbox is what controls are")]

mod board;
mod counts;
mod oracle;
mod races;
mod row;
mod rows_bare;
mod rows_checked;
mod rows_closed;
mod rows_git;
mod rows_held;
mod rows_linked;
mod rows_project;
mod rows_pushed;
mod rows_settings;
mod rows_ways;
mod rows_work;
mod scene;
mod trees;

use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use stockade_testkit::suite::{FAILED, PASSED, run_tasks};
use stockade_testkit::{ProgramEnd, ProgramOutput, TestUser};
use stockade_tests::Level;
use stockade_tests::cross_section::{Turn, Wanted};

use crate::counts::Counts;
use crate::row::Row;
use crate::scene::{IsolationKind, Session};

/// Rows at a time.
const PARALLEL_ROWS: usize = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments).unwrap_or_else(|error| {
        println!("error: {error:#}");
        ExitCode::from(FAILED)
    })
}

/// What a task does.
#[derive(Clone, Copy)]
enum Work {
    Row(Row),
    /// Ordinary work, which nothing may hinder.
    Ordinary(Row),
    Trees(trees::Part),
    Races,
}

impl Work {
    /// Whether persistent sandboxes are tried as well.
    fn is_played_persistent(self) -> bool {
        match self {
            Self::Row(row) | Self::Ordinary(row) => row.is_played_persistent(),
            Self::Trees(_) => false,
            Self::Races => true,
        }
    }
}

/// Something played as a user at a level, or its control.
struct Task {
    work: Work,
    user: TestUser,
    isolation: IsolationKind,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.work {
            Work::Row(row) | Work::Ordinary(row) => f.write_str(row.id)?,
            Work::Trees(part) => write!(f, "trees-{}-{}", part.kind.word(), part.number)?,
            Work::Races => f.write_str("races")?,
        }
        match self.isolation {
            IsolationKind::None => f.write_str("/control"),
            isolation => write!(f, "/{}/{isolation}", self.user.word()),
        }
    }
}

impl Task {
    /// What else of its row a cross-section plays instead.
    fn turn(&self) -> Turn {
        match (self.work, self.isolation) {
            (Work::Trees(_) | Work::Races, _) | (_, IsolationKind::None) => Turn::Rarely(self.to_string(), 1),
            (Work::Row(row) | Work::Ordinary(row), IsolationKind::Run(_)) => Turn::One(row.id.to_owned()),
            (Work::Row(row) | Work::Ordinary(row), IsolationKind::Kept) => Turn::Rarely(format!("{}/kept", row.id), 1),
        }
    }

    /// What was planted, or failed.
    fn play(&self, session: &Session, counts: &Counts) -> Result<Vec<String>> {
        match self.work {
            Work::Row(row) => row.play(session, self.user, self.isolation),
            Work::Ordinary(row) => row.work(session, self.user, self.isolation),
            Work::Trees(part) => trees::play(session, self.user, self.isolation, part, counts),
            Work::Races => races::play(session, self.user, self.isolation, counts),
        }
    }
}

fn tasks(counts: &Counts) -> Vec<Task> {
    // The longest first.
    let trees = trees::KINDS.into_iter().flat_map(|kind| trees::Part::all(kind, counts)).map(Work::Trees);
    let rows = [
        rows_linked::ROWS,
        rows_settings::ROWS,
        rows_git::ROWS,
        rows_held::ROWS,
        rows_checked::ROWS,
        rows_ways::ROWS,
        rows_closed::ROWS,
        rows_pushed::ROWS,
        rows_bare::ROWS,
        rows_project::ROWS,
    ]
    .concat();
    let ordinary = rows_work::ROWS
        .iter()
        .chain(rows_checked::WORK)
        .chain(rows_ways::WORK)
        .chain(rows_closed::WORK)
        .chain(rows_pushed::WORK)
        .chain(rows_bare::WORK)
        .chain(rows_project::WORK)
        .copied()
        .map(Work::Ordinary);
    let works = trees.chain([Work::Races]).chain(rows.into_iter().map(Work::Row)).chain(ordinary);
    let mut tasks = Vec::new();
    for work in works {
        // One part shows that the seeds plant.
        if !matches!(work, Work::Trees(part) if part.number > 0) {
            tasks.push(Task { work, user: TestUser::Ordinary, isolation: IsolationKind::None });
        }
        for user in TestUser::available_users() {
            for level in [Level::Full, Level::Restricted] {
                tasks.push(Task { work, user, isolation: IsolationKind::Run(level) });
            }
            if work.is_played_persistent() {
                tasks.push(Task { work, user, isolation: IsolationKind::Kept });
            }
        }
    }
    tasks
}

fn run(arguments: &[String]) -> Result<ExitCode> {
    let has = |flag: &str| arguments.iter().any(|a| a == flag);
    let selection = Wanted::of(arguments);
    let counts = Counts::of_environment()?;
    let mut tasks = tasks(&counts);
    tasks.retain(|task| {
        let excluded = if task.isolation.is_control() { "--no-controls" } else { "--controls" };
        selection.names(&task.to_string()) && !has(excluded)
    });
    let all = tasks.len();
    let tasks = selection.narrowed(tasks, Task::turn);
    if has("--list") {
        tasks.iter().for_each(|task| println!("{task}: test"));
        return Ok(ExitCode::SUCCESS);
    }
    selection.tell(tasks.len(), all);
    let session = Session::new()?;
    let tally = run_tasks(tasks, PARALLEL_ROWS, |task| {
        let began = Instant::now();
        let found = task.play(&session, &counts)?;
        Ok(build_output(task, &found, began.elapsed()))
    });
    Ok(tally.print_report())
}

/// A control must plant, a sandboxed run must not. Ordinary work must never fail.
fn build_output(task: &Task, found: &[String], elapsed: Duration) -> ProgramOutput {
    let (code, text) = match (task.isolation, found) {
        (_, []) if matches!(task.work, Work::Ordinary(_)) => (PASSED, String::new()),
        (_, [why, ..]) if matches!(task.work, Work::Ordinary(_)) => (FAILED, why.clone()),
        (IsolationKind::None, []) => (FAILED, "the control planted nothing: the row proves nothing".to_owned()),
        (IsolationKind::Run(_) | IsolationKind::Kept, [_, ..]) => (FAILED, format!("planted:\n{}", found.join("\n"))),
        _ => (PASSED, String::new()),
    };
    ProgramOutput {
        ended: ProgramEnd::Code(code.into()),
        stdout: text,
        stderr: String::new(),
        elapsed,
        held_open: false,
    }
}
