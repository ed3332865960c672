//! Which tasks there are, and their run: two at a time, each in a process of
//! its own with a hard time-out.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use stockade_testkit::suite::{SkippedTask, run_tasks};
use stockade_testkit::{ProgramOutput, SLOWNESS_VARIABLE, TestCommand, TestUser, UserAccount, run_as};
use stockade_tests::Level;
use stockade_tests::cross_section::{Turn, Wanted, of_native_row};

use crate::contained;
use crate::row::{Control, Row};
use crate::way::Way;
use crate::{TABLE, build, cases, check_completeness, harness_is_root, rows};

/// Tasks at a time.
const PARALLEL: usize = 2;
/// Those in containers, which wait for engines.
const PARALLEL_CONTAINED: usize = 4;
/// Wall clock of one task.
const TASK_TIMEOUT: Duration = Duration::from_secs(300);

/// One row, sandboxed as a user in a way, or its control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub row: String,
    /// None for the control.
    pub run: Option<(TestUser, Way)>,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.run {
            Some((user, way)) => write!(f, "{}/{}/{}", self.row, user.word(), way.word()),
            None => write!(f, "{}/control", self.row),
        }
    }
}

/// Rows that wait for seconds, again and again.
const SLOW: &[&str] = &["esc-0065", "esc-0217", "esc-0221"];

impl Task {
    /// What else of its row a cross-section plays instead: one in two rows is played in
    /// containers, of one kind.
    fn turn(&self) -> Turn {
        match self.run {
            None => Turn::Rarely(self.to_string(), 1),
            Some((_, Way::Native(level))) => {
                of_native_row(&self.row, level == Level::Full, SLOW.contains(&self.row.as_str()))
            }
            Some((_, Way::Container(_))) => Turn::Rarely(format!("{}/container", self.row), 2),
        }
    }

    /// Where its worlds are.
    pub fn labs(&self, session: &Path) -> PathBuf {
        // Short: the path of a unix socket has 108 bytes.
        let mut hasher = DefaultHasher::new();
        self.to_string().hash(&mut hasher);
        session.join("labs").join(format!("{:x}", hasher.finish()))
    }
}

impl FromStr for Task {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let run = match parts.as_slice() {
            [_, "control"] => None,
            [_, user, way] => {
                let user = [TestUser::Root, TestUser::Ordinary].into_iter().find(|u| u.word() == *user);
                Some(user.zip(Way::named(way)).with_context(|| format!("no such task: {text}"))?)
            }
            _ => bail!("no such task: {text}"),
        };
        Ok(Self { row: parts.first().copied().unwrap_or_default().to_owned(), run })
    }
}

/// Whether a task of this name runs in a sandbox of this machine's kernel, not in a container or
/// as a control.
fn is_native(task: &str) -> bool {
    ["/full", "/restricted"].iter().any(|level| task.ends_with(level))
}

/// Splits the suite into what can run here and what cannot, with the reason.
fn tasks(rows: &[&Row]) -> (Vec<Task>, Vec<SkippedTask>) {
    let mut here = Vec::new();
    let mut not_here = Vec::new();
    for row in rows {
        let task = Task { row: row.id.to_owned(), run: None };
        match row.control {
            Control::None(why) => {
                not_here.push(SkippedTask { task: task.to_string(), why: format!("no control: {why}") })
            }
            _ if crate::world::control_account(row.control).is_none()
                || row.control_needs_root && !harness_is_root() =>
            {
                not_here.push(SkippedTask {
                    task: task.to_string(),
                    why: "this control needs the harness to be root".to_owned(),
                });
            }
            _ => match (row.control_not_here)() {
                Some(why) => not_here.push(SkippedTask { task: task.to_string(), why: why.to_owned() }),
                None => here.push(task),
            },
        }
        for (user, way) in Way::all_of_users() {
            let task = Task { row: row.id.to_owned(), run: Some((user, way)) };
            let task_of = task.to_string();
            match why_not(row, user, way) {
                Some(why) => not_here.push(SkippedTask { task: task_of, why }),
                None => here.push(task),
            }
        }
    }
    (here, not_here)
}

/// Why a row is not played by this user in this way, whatever the machine has.
fn why_not(row: &Row, user: TestUser, way: Way) -> Option<String> {
    if !TestUser::available_users().contains(&user) || way.needs_root() && !harness_is_root() {
        return Some("the harness is not root".to_owned());
    }
    match way {
        Way::Native(Level::Full) => None,
        Way::Native(Level::Restricted) => row.full_only.map(|why| format!("not promised at this level: {why}")),
        Way::Container(kind) => contained::why_not(row, kind).map(str::to_owned),
    }
}

/// Whether a task is played; where it is not, it is told why.
fn keep_or_skip(not_here: &mut Vec<SkippedTask>, task: &Task, why_not: Option<&str>) -> bool {
    not_here.extend(why_not.map(|why| SkippedTask { task: task.to_string(), why: why.to_owned() }));
    why_not.is_none()
}

/// Runs what the arguments ask for.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let has = |flag: &str| arguments.iter().any(|a| a == flag);
    let selection = Wanted::of(arguments);
    check_completeness(&cases::load(TABLE)?)?;
    let (mut here, mut not_here) = tasks(&rows());
    here.retain(|task| {
        selection.names(&task.to_string())
            && !(has("--controls") && task.run.is_some())
            && (!has("--native") || is_native(&task.to_string()))
            && !(has("--no-controls") && task.run.is_none())
    });
    not_here.retain(|n| selection.names(&n.task) && (!has("--native") || is_native(&n.task)));
    let all = here.len();
    here = selection.narrowed(here, Task::turn);
    if has("--list") {
        here.iter().for_each(|task| println!("{task}: test"));
        return Ok(ExitCode::SUCCESS);
    }
    selection.tell(here.len(), all);
    let session = build::session(!has("--controls"))?;
    if !has("--controls") {
        let reported = reported(&session.path().join("stockade"))?;
        let (unpromised, promised) = here.into_iter().partition(|task| lacking(task, &reported).is_some());
        here = promised;
        not_here.extend(unpromised.into_iter().map(|task: Task| {
            let why =
                format!("this kernel cannot, and the report says so: {}", lacking(&task, &reported).unwrap_or(""));
            SkippedTask { task: task.to_string(), why }
        }));
    }
    let engines = contained::start_engines(session.path(), &here)?;
    here.retain(|task| {
        keep_or_skip(&mut not_here, task, task.container().and_then(|kind| engines.why_missing(kind.engine)))
    });
    let (contained, native): (Vec<Task>, Vec<Task>) = here.into_iter().partition(|task| task.container().is_some());
    let mut tally = run_tasks(native, PARALLEL, |task| start_task(task, session.path()));
    tally.add_results(run_tasks(contained, PARALLEL_CONTAINED, |task| start_task(task, session.path())));
    if let Err(error) = contained::end_engines(&engines, session.path()) {
        tally.failed.push(("the end of the sandboxes".to_owned(), format!("{error:#}")));
    }
    tally.not_run.splice(..0, not_here);
    Ok(tally.print_report())
}

/// What the program says of level restricted on this machine.
fn reported(program: &Path) -> Result<String> {
    let output = std::process::Command::new(program)
        .args(["doctor", "--json"])
        .output()
        .context("asking the program's doctor")?;
    let doctor_report: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("reading what the doctor said")?;
    let level = doctor_report["levels"].as_array().into_iter().flatten().find(|level| level["level"] == "restricted");
    Ok(level.context("the doctor said nothing of level restricted")?["enforced"].to_string())
}

/// Whether a task is of what the program says it cannot hold here.
fn lacking(task: &Task, reported: &str) -> Option<&'static str> {
    let Some((_, Way::Native(Level::Restricted))) = task.run else { return None };
    rows().iter().find(|row| row.id == task.row)?.unpromised.filter(|lack| reported.contains(lack))
}

fn start_task(task: &Task, session: &Path) -> Result<ProgramOutput> {
    let own = UserAccount::for_user(if harness_is_root() { TestUser::Root } else { TestUser::Ordinary })?;
    let mut command = TestCommand::new(session.join("suite"), session)
        .args(["--row", &task.to_string()])
        .arg(session)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .env("LANG", "C.UTF-8")
        .timeout(TASK_TIMEOUT);
    if let Some(times) = std::env::var_os(SLOWNESS_VARIABLE) {
        command = command.env(SLOWNESS_VARIABLE, times);
    }
    if harness_is_root() {
        // Shared among themselves, so that a mount that escapes is seen, and
        // cut off from the host, so that it is seen here alone.
        let set_up = "mount --make-rshared / && mount -t tmpfs -o mode=1777 tmp /tmp && mount -t tmpfs -o mode=755 run /run && exec \"$@\"";
        command = command.with_prefix([
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
    let output = run_as(&own, &command)?;
    contained::require_gone(task, session)?;
    Ok(output)
}
