//! Which tasks there are, and their run: two at a time, each in a process of
//! its own with a hard time-out.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use stockade_testkit::suite::{NotRun, play};
use stockade_testkit::{Account, Command, Output, SLOWNESS, User, run_as};
use stockade_tests::Level;

use crate::row::{Control, Row};
use crate::{TABLE, build, cases, check_completeness, harness_is_root, rows};

/// Tasks at a time.
const PARALLEL: usize = 2;
/// Wall clock of one task.
const TASK_TIMEOUT: Duration = Duration::from_secs(300);

/// One row, sandboxed as a user at a level, or its control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub row: String,
    /// None for the control.
    pub run: Option<(User, Level)>,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.run {
            Some((user, level)) => write!(f, "{}/{}/{}", self.row, user.word(), level.word()),
            None => write!(f, "{}/control", self.row),
        }
    }
}

impl FromStr for Task {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let run = match parts.as_slice() {
            [_, "control"] => None,
            [_, user, level] => {
                let user = [User::Root, User::Ordinary].into_iter().find(|u| u.word() == *user);
                let level = [Level::Full, Level::Restricted].into_iter().find(|l| l.word() == *level);
                Some(user.zip(level).with_context(|| format!("no such task: {text}"))?)
            }
            _ => bail!("no such task: {text}"),
        };
        Ok(Self { row: parts.first().copied().unwrap_or_default().to_owned(), run })
    }
}

/// Splits the suite into what can run here and what cannot, with the reason.
fn tasks(rows: &[&Row]) -> (Vec<Task>, Vec<NotRun>) {
    let mut here = Vec::new();
    let mut not_here = Vec::new();
    for row in rows {
        let task = Task { row: row.id.to_owned(), run: None };
        match row.control {
            Control::None(why) => not_here.push(NotRun { task: task.to_string(), why: format!("no control: {why}") }),
            _ if crate::world::control_account(row.control).is_none()
                || row.control_needs_root && !harness_is_root() =>
            {
                not_here.push(NotRun {
                    task: task.to_string(),
                    why: "this control needs the harness to be root".to_owned(),
                });
            }
            _ => match (row.control_not_here)() {
                Some(why) => not_here.push(NotRun { task: task.to_string(), why: why.to_owned() }),
                None => here.push(task),
            },
        }
        for level in [Level::Full, Level::Restricted] {
            for user in User::available() {
                let task = Task { row: row.id.to_owned(), run: Some((user, level)) };
                match (row.full_only, level) {
                    (Some(why), Level::Restricted) => {
                        not_here
                            .push(NotRun { task: task.to_string(), why: format!("not promised at this level: {why}") });
                    }
                    _ => here.push(task),
                }
            }
        }
        if !harness_is_root() {
            for level in [Level::Full, Level::Restricted] {
                let task = Task { row: row.id.to_owned(), run: Some((User::Root, level)) };
                not_here.push(NotRun { task: task.to_string(), why: "the harness is not root".to_owned() });
            }
        }
    }
    (here, not_here)
}

/// Runs what the arguments ask for.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let has = |flag: &str| arguments.iter().any(|a| a == flag);
    let filter = arguments.iter().find(|a| !a.starts_with('-')).cloned().unwrap_or_default();
    check_completeness(&cases::load(TABLE)?)?;
    let (mut here, mut not_here) = tasks(&rows());
    here.retain(|task| {
        let wanted = is_wanted(&filter, &task.to_string());
        wanted && !(has("--controls") && task.run.is_some()) && !(has("--no-controls") && task.run.is_none())
    });
    not_here.retain(|n| is_wanted(&filter, &n.task));
    if has("--list") {
        here.iter().for_each(|task| println!("{task}: test"));
        return Ok(ExitCode::SUCCESS);
    }
    let session = build::session(!has("--controls"))?;
    if !has("--controls") {
        let reported = reported(&session.path().join("stockade"))?;
        let (unpromised, promised) = here.into_iter().partition(|task| lacking(task, &reported).is_some());
        here = promised;
        not_here.extend(unpromised.into_iter().map(|task: Task| {
            let why =
                format!("this kernel cannot, and the report says so: {}", lacking(&task, &reported).unwrap_or(""));
            NotRun { task: task.to_string(), why }
        }));
    }
    let mut tally = play(here, PARALLEL, |task| start_task(task, session.path()));
    tally.not_run.splice(..0, not_here);
    Ok(tally.report())
}

/// Whether one of the filter's parts, parted by commas, is in the task's name.
fn is_wanted(filter: &str, task: &str) -> bool {
    filter.split(',').any(|part| task.contains(part))
}

/// What the program says of level restricted on this machine.
fn reported(program: &Path) -> Result<String> {
    let output = std::process::Command::new(program)
        .args(["doctor", "--json"])
        .output()
        .context("asking the program's doctor")?;
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).context("reading what the doctor said")?;
    let level = told["levels"].as_array().into_iter().flatten().find(|level| level["level"] == "restricted");
    Ok(level.context("the doctor said nothing of level restricted")?["enforced"].to_string())
}

/// Whether a task is of what the program says it cannot hold here.
fn lacking(task: &Task, reported: &str) -> Option<&'static str> {
    let Some((_, Level::Restricted)) = task.run else { return None };
    rows().iter().find(|row| row.id == task.row)?.unpromised.filter(|lack| reported.contains(lack))
}

fn start_task(task: &Task, session: &Path) -> Result<Output> {
    let own = Account::of(if harness_is_root() { User::Root } else { User::Ordinary })?;
    let mut command = Command::new(session.join("suite"), session)
        .args(["--row", &task.to_string()])
        .arg(session)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .env("LANG", "C.UTF-8")
        .timeout(TASK_TIMEOUT);
    if let Some(times) = std::env::var_os(SLOWNESS) {
        command = command.env(SLOWNESS, times);
    }
    if harness_is_root() {
        // Shared among themselves, so that a mount that escapes is seen, and
        // cut off from the host, so that it is seen here alone.
        let set_up = "mount --make-rshared / && mount -t tmpfs -o mode=1777 tmp /tmp && mount -t tmpfs -o mode=755 run /run && exec \"$@\"";
        command = command.behind([
            "/usr/bin/unshare",
            "-mpfiu",
            "--kill-child",
            "--mount-proc",
            "--propagation",
            "private",
            "/bin/sh",
            "-c",
            set_up,
            "row",
        ]);
    }
    run_as(&own, &command)
}
