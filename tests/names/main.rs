//! The suite of guarded names: whether a run can plant, by links, moves, second names,
//! races or git's own indirections, what the host's git, cargo or npm then obeys. They
//! are asked from outside; each attack has a control without a sandbox.
//!
//! ```text
//! cargo test -p stockade-tests --test names -- [FILTER] [--list] [--controls] [--no-controls]
//! ```
//! A task is named `ROW/USER/LEVEL` or `ROW/control`; FILTER is a part of that, or
//! several, parted by commas. `STOCKADE_BIN` names the program to test.
#![allow(missing_docs, reason = "a test binary has no users")]
#![allow(clippy::disallowed_methods, reason = "starting programs without a sandbox is what controls are")]

mod oracle;
mod row;
mod rows_git;
mod rows_held;
mod rows_linked;
mod scene;

use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use stockade_testkit::suite::{FAILED, PASSED, play};
use stockade_testkit::{Ended, Output, User};
use stockade_tests::Level;

use crate::row::Row;
use crate::scene::Session;

/// Rows at a time.
const PARALLEL_ROWS: usize = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments).unwrap_or_else(|error| {
        println!("error: {error:#}");
        ExitCode::from(FAILED)
    })
}

/// One row as a user at a level, or its control.
struct Task {
    row: Row,
    user: User,
    level: Option<Level>,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            Some(level) => write!(f, "{}/{}/{}", self.row.id, self.user.word(), level.word()),
            None => write!(f, "{}/control", self.row.id),
        }
    }
}

fn rows() -> Vec<Row> {
    [rows_linked::ROWS, rows_git::ROWS, rows_held::ROWS].concat()
}

fn tasks() -> Vec<Task> {
    let mut tasks = Vec::new();
    for row in rows() {
        tasks.push(Task { row, user: User::Ordinary, level: None });
        for user in User::available() {
            for level in [Level::Full, Level::Restricted] {
                tasks.push(Task { row, user, level: Some(level) });
            }
        }
    }
    tasks
}

fn run(arguments: &[String]) -> Result<ExitCode> {
    let has = |flag: &str| arguments.iter().any(|a| a == flag);
    let filter = arguments.iter().find(|a| !a.starts_with('-')).cloned().unwrap_or_default();
    let mut tasks = tasks();
    tasks.retain(|task| {
        let name = task.to_string();
        filter.split(',').any(|part| name.contains(part))
            && !(has("--controls") && task.level.is_some())
            && !(has("--no-controls") && task.level.is_none())
    });
    if has("--list") {
        tasks.iter().for_each(|task| println!("{task}: test"));
        return Ok(ExitCode::SUCCESS);
    }
    let session = Session::new()?;
    let tally = play(tasks, PARALLEL_ROWS, |task| {
        let began = Instant::now();
        let found = task.row.play(&session, task.user, task.level)?;
        Ok(judged(task, &found, began.elapsed()))
    });
    Ok(tally.report())
}

/// A control must plant, a sandboxed run must not.
fn judged(task: &Task, found: &[String], elapsed: Duration) -> Output {
    let (code, text) = match (task.level, found) {
        (None, []) => (FAILED, "the control planted nothing: the row proves nothing".to_owned()),
        (Some(_), [_, ..]) => (FAILED, format!("planted:\n{}", found.join("\n"))),
        _ => (PASSED, String::new()),
    };
    Output { ended: Ended::Code(code.into()), stdout: text, stderr: String::new(), elapsed, held_open: false }
}
