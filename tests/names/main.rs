//! The suite of guarded names: whether a run can plant, by links, moves, second names,
//! races or git's own indirections, what the host's git, cargo or npm then obeys. They
//! are asked from outside; each attack has a control without a sandbox.
//!
//! ```text
//! cargo test -p stockade-tests --test names -- [FILTER] [--list] [--all] [--controls] [--no-controls]
//! ```
//! A task is named `ROW/USER/LEVEL`, `ROW/USER/kept` (a persistent sandbox) or `ROW/control`; FILTER is a part of that, or
//! several, parted by commas. Without one each row is played as each user and at each level, but
//! only in two of these four pairs, which change from row to row; `--all` plays all of them.
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
mod rows_closed;
mod rows_git;
mod rows_held;
mod rows_judged;
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
use stockade_testkit::suite::{FAILED, PASSED, play};
use stockade_testkit::{Ended, Output, User};
use stockade_tests::Level;

use crate::counts::Counts;
use crate::row::Row;
use crate::scene::{Session, Walls};

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
    fn is_row(self) -> bool {
        matches!(self, Self::Row(_) | Self::Ordinary(_))
    }

    /// Whether persistent sandboxes are tried as well.
    fn is_played_kept(self) -> bool {
        match self {
            Self::Row(row) | Self::Ordinary(row) => row.is_played_kept(),
            Self::Trees(_) => false,
            Self::Races => true,
        }
    }
}

/// Something played as a user at a level, or its control.
struct Task {
    work: Work,
    user: User,
    walls: Walls,
    /// Whether it is left to the nights, where others of its kind are played.
    is_apart: bool,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.work {
            Work::Row(row) | Work::Ordinary(row) => f.write_str(row.id)?,
            Work::Trees(part) => write!(f, "trees-{}-{}", part.kind.word(), part.number)?,
            Work::Races => f.write_str("races")?,
        }
        match self.walls {
            Walls::None => f.write_str("/control"),
            walls => write!(f, "/{}/{walls}", self.user.word()),
        }
    }
}

impl Task {
    /// What was planted, or failed.
    fn play(&self, session: &Session, counts: &Counts) -> Result<Vec<String>> {
        match self.work {
            Work::Row(row) => row.play(session, self.user, self.walls),
            Work::Ordinary(row) => row.work(session, self.user, self.walls),
            Work::Trees(part) => trees::play(session, self.user, self.walls, part, counts),
            Work::Races => races::play(session, self.user, self.walls, counts),
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
        rows_judged::ROWS,
        rows_ways::ROWS,
        rows_closed::ROWS,
        rows_pushed::ROWS,
        rows_bare::ROWS,
        rows_project::ROWS,
    ]
    .concat();
    let ordinary = rows_work::ROWS
        .iter()
        .chain(rows_judged::WORK)
        .chain(rows_ways::WORK)
        .chain(rows_closed::WORK)
        .chain(rows_pushed::WORK)
        .chain(rows_bare::WORK)
        .chain(rows_project::WORK)
        .copied()
        .map(Work::Ordinary);
    let works = trees.chain([Work::Races]).chain(rows.into_iter().map(Work::Row)).chain(ordinary);
    let mut tasks = Vec::new();
    for (number, work) in works.enumerate() {
        // One part shows that the seeds plant.
        if !matches!(work, Work::Trees(part) if part.number > 0) {
            tasks.push(Task { work, user: User::Ordinary, walls: Walls::None, is_apart: false });
        }
        for user in User::available() {
            for level in [Level::Full, Level::Restricted] {
                // A row is played as each user and at each level, in every second pair of them.
                let is_apart = work.is_row() && ((user == User::Root) == (level == Level::Full)) == (number % 2 == 0);
                tasks.push(Task { work, user, walls: Walls::Run(level), is_apart });
            }
            if work.is_played_kept() {
                tasks.push(Task { work, user, walls: Walls::Kept, is_apart: false });
            }
        }
    }
    tasks
}

fn run(arguments: &[String]) -> Result<ExitCode> {
    let has = |flag: &str| arguments.iter().any(|a| a == flag);
    let filter = arguments.iter().find(|a| !a.starts_with('-')).cloned().unwrap_or_default();
    let is_short = filter.is_empty() && !has("--all") && User::available().len() > 1;
    let counts = Counts::of_environment()?;
    let mut tasks = tasks(&counts);
    tasks.retain(|task| {
        let name = task.to_string();
        let excluded = if task.walls.is_control() { "--no-controls" } else { "--controls" };
        filter.split(',').any(|part| name.contains(part)) && !has(excluded) && !(is_short && task.is_apart)
    });
    if has("--list") {
        tasks.iter().for_each(|task| println!("{task}: test"));
        return Ok(ExitCode::SUCCESS);
    }
    let session = Session::new()?;
    let tally = play(tasks, PARALLEL_ROWS, |task| {
        let began = Instant::now();
        let found = task.play(&session, &counts)?;
        Ok(judged(task, &found, began.elapsed()))
    });
    Ok(tally.report())
}

/// A control must plant, a sandboxed run must not. Ordinary work must never fail.
fn judged(task: &Task, found: &[String], elapsed: Duration) -> Output {
    let (code, text) = match (task.walls, found) {
        (_, []) if matches!(task.work, Work::Ordinary(_)) => (PASSED, String::new()),
        (_, [why, ..]) if matches!(task.work, Work::Ordinary(_)) => (FAILED, why.clone()),
        (Walls::None, []) => (FAILED, "the control planted nothing: the row proves nothing".to_owned()),
        (Walls::Run(_) | Walls::Kept, [_, ..]) => (FAILED, format!("planted:\n{}", found.join("\n"))),
        _ => (PASSED, String::new()),
    };
    Output { ended: Ended::Code(code.into()), stdout: text, stderr: String::new(), elapsed, held_open: false }
}
