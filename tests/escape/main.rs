//! The escape suite: every row of `tests/cases/escapes.tsv`, and conformance
//! rows of our own, as root and as an ordinary user, at level full and
//! restricted and in containers, each in a process tree of its own and judged from
//! outside.
//!
//! ```text
//! cargo test -p stockade-tests --test escape -- [FILTER] [--list] [--all] [--controls] [--no-controls] [--native] [--share=N] [--rows=N]
//! ```
//! A task is named `ROW/USER/WAY` or `ROW/control`; FILTER is a part of that, or
//! several, parted by commas. Without one a cross-section is played: each row in some of its
//! ways, what is recorded of real escapes by both users at level full; `--all` plays all.
//! `STOCKADE_BIN` names the program to test; without it, it is built.
//!
//! As root the harness gives each row mount, PID, IPC and UTS namespaces, with
//! `/tmp` and `/run` of its own, so that an attempt that gets through hurts
//! that row alone. As an ordinary user run it on a machine that may be lost.
#![allow(missing_docs, reason = "a test binary has no users")]
#![allow(clippy::disallowed_methods, reason = "starting programs without a sandbox is what controls are")]

mod build;
mod cases;
mod conformance;
mod contained;
mod contained_rows;
mod launch;
mod limits;
mod plan;
mod row;
mod rows_fs;
mod rows_kernel;
mod rows_proc;
mod rows_reported;
mod rows_res;
mod special;
mod test_sandboxes;
mod unplayed;
mod way;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use stockade_testkit::suite::{FAILED, PASSED, UNAVAILABLE};
use stockade_testkit::{TestUser, UserAccount, kill_descendants};

use crate::plan::Task;
use crate::row::{Control, Row, Verdict};
use crate::way::Way;
use crate::world::World;

/// The cases that are judged here.
pub const TABLE: &str = include_str!("../cases/escapes.tsv");

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [flag, task, session] if flag == "--row" => run_one(task, session.into()),
        _ => plan::run(&arguments),
    };
    result.unwrap_or_else(|error| {
        println!("error: {error:#}");
        ExitCode::from(FAILED)
    })
}

/// All rows of the suite.
pub fn rows() -> Vec<&'static Row> {
    let of_cases = [rows_fs::ROWS, rows_proc::ROWS, rows_res::ROWS, rows_kernel::ROWS, rows_reported::ROWS];
    of_cases.into_iter().flatten().chain(conformance::ROWS).chain(contained_rows::ROWS).collect()
}

/// Runs one task in this process, whose tree is all the row's.
fn run_one(task: &str, session: PathBuf) -> Result<ExitCode> {
    let task: Task = task.parse()?;
    let row = rows().into_iter().find(|row| row.id == task.row).with_context(|| format!("no row {}", task.row))?;
    // As process 1 of a namespace this adds nothing; as an ordinary user's
    // harness it keeps every orphan in this tree.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).context("becoming subreaper")?;
    let user = match task.run {
        Some((user, _)) => user,
        None => world::control_account(row.control).context("the control needs a root harness")?,
    };
    let labs = task.labs(&session);
    world::open_directory(&labs)?;
    let world = World { session, labs, account: UserAccount::for_user(user)?, cases: cases::load(TABLE)? };
    let verdict = match task.run.map(|(_, way)| way) {
        None => world.attempt(row, None),
        Some(Way::Native(level)) => world.attempt(row, Some(level)),
        Some(Way::Container(kind)) => contained::attempt(&world, row, kind),
    };
    // What a control left running is the harness's to end.
    kill_descendants(&[], Duration::from_secs(5));
    let verdict = verdict?;
    let (code, text) = match (&verdict, task.run) {
        (Verdict::Contained, Some(_)) | (Verdict::Breached(_), None) => (PASSED, String::new()),
        (Verdict::Contained, None) => (FAILED, "the control was contained: the row proves nothing".to_owned()),
        (Verdict::Breached(breaches), Some(_)) => (FAILED, breaches.join("\n")),
        (Verdict::NotRun(why), _) => (FAILED, format!("did not run: {why}")),
        (Verdict::Unavailable(why), _) => (UNAVAILABLE, why.clone()),
    };
    println!("{text}");
    Ok(ExitCode::from(code))
}

/// Every case has a row, and every row a control or a reason.
pub fn check_completeness(cases: &[cases::Case]) -> Result<()> {
    let rows = rows();
    let mut missing = Vec::new();
    for case in cases {
        match rows.iter().filter(|row| row.id == case.id).count() {
            1 => {}
            0 => missing.push(format!("{}: no row ({})", case.id, case.goal)),
            n => missing.push(format!("{}: {n} rows", case.id)),
        }
    }
    missing.extend(unplayed::unknown(&rows).iter().map(|id| format!("{id}: not played in containers, and no row")));
    for row in &rows {
        if matches!(row.control, Control::None(why) if why.is_empty()) {
            missing.push(format!("{}: neither control nor reason", row.id));
        }
        if row.id.starts_with("esc-") && !cases.iter().any(|case| case.id == row.id) {
            missing.push(format!("{}: no such case", row.id));
        }
        let harness = cases.iter().any(|c| c.id == row.id && c.kind == cases::Kind::Harness);
        if harness && row.special.is_none() && row.text.is_none() {
            missing.push(format!("{}: neither text nor function", row.id));
        }
    }
    if !missing.is_empty() {
        bail!("the suite is incomplete:\n{}", missing.join("\n"));
    }
    Ok(())
}

/// True where the harness may do everything.
pub fn harness_is_root() -> bool {
    TestUser::available_users().contains(&TestUser::Root)
}
