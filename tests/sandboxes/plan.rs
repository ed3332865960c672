//! Which tasks there are, and their run: a few at a time, each in a process of its
//! own with a time-out, after which nothing of it may be left.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use stockade_testkit::suite::{SkippedTask, run_tasks};
use stockade_testkit::{
    ProgramOutput, SLOWNESS_VARIABLE, TestCommand, TestUser, UserAccount, processes_at, run_as, slowness_factor,
};
use stockade_tests::cross_section::{Turn, Wanted};
use stockade_tests::engines::SuiteEngines;
use tempfile::TempDir;

use crate::Case;
use crate::cases;
use crate::kinds::{KINDS, Kind, Made};
use crate::table;

/// Tasks at a time: most of what they do is waiting.
const PARALLEL: usize = 6;
/// Wall clock of one task.
const TASK_TIMEOUT: Duration = Duration::from_secs(180);
/// How long what is left of a task may take to go.
const GOES_WITHIN: Duration = Duration::from_secs(10);

/// One case, for a kind of sandboxes and a user.
#[derive(Clone, Copy)]
pub struct Task {
    pub case: &'static Case,
    pub kind: &'static Kind,
    user: TestUser,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}", self.case.area, self.case.name, self.kind.name, self.user.word())
    }
}

impl FromStr for Task {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        all().into_iter().find(|task| task.to_string() == text).with_context(|| format!("no such task: {text}"))
    }
}

/// Every task there is, whatever this machine can have.
fn all() -> Vec<Task> {
    let users = [TestUser::Root, TestUser::Ordinary];
    let of_kind =
        |kind| users.into_iter().flat_map(move |user| cases::all().map(move |case| Task { case, kind, user }));
    KINDS.iter().flat_map(of_kind).collect()
}

/// Runs what the arguments ask for.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let selection = Wanted::of(arguments);
    // Chosen among what there can be here, and the same whatever engines are missing.
    let (possible, never): (Vec<Task>, Vec<Task>) = all()
        .into_iter()
        .filter(|task| selection.names(&task.to_string()))
        .partition(|task| TestUser::available_users().contains(&task.user) && task.kind.not_for(task.user).is_none());
    let possible_count = possible.len();
    let tasks = selection.narrowed(possible, Task::turn);
    require_distinct()?;
    if arguments.iter().any(|argument| argument == "--list") {
        tasks.iter().for_each(|task| println!("{task}: test"));
        return Ok(ExitCode::SUCCESS);
    }
    selection.tell(tasks.len(), possible_count);
    let session = Session::open()?;
    let needed: Vec<_> = tasks.iter().filter_map(|task| task.kind.engine()).collect();
    let engines = SuiteEngines::start(session.directory.path(), &needed);
    let (mut here, mut not_here) = (Vec::new(), BTreeMap::new());
    for task in tasks.into_iter().chain(never) {
        match task.not_here(&engines) {
            Some(why) => not_here.entry((task.kind.name, task.user.word(), why)).or_insert_with(Vec::new).push(task),
            None => here.push(task),
        }
    }
    let played = here.iter().map(Task::to_string).collect();
    let mut tally = run_tasks(mixed(here), PARALLEL, |task| session.play(task));
    engines.require_empty()?;
    tally.not_run.extend(not_here.into_iter().map(|((kind, user, why), tasks)| not_run(kind, user, why, &tasks)));
    table::settle(&mut tally, &played)?;
    Ok(tally.print_report())
}

/// Kinds in turn, so that what waits for one engine goes on beside what waits for another;
/// each begins with another case, since some are heavy for all of them.
fn mixed(mut tasks: Vec<Task>) -> Vec<Task> {
    let cases: Vec<_> = cases::all().map(|case| (case.area, case.name)).collect();
    let turn = |task: &Task| {
        let case = cases.iter().position(|case| *case == (task.case.area, task.case.name)).unwrap_or_default();
        let kind = KINDS.iter().position(|kind| kind.name == task.kind.name).unwrap_or_default();
        (case + kind * cases.len() / KINDS.len()) % cases.len()
    };
    tasks.sort_by_cached_key(turn);
    tasks
}

/// A kind that cannot be had is told once.
fn not_run(kind: &str, user: &str, why: String, tasks: &[Task]) -> SkippedTask {
    let task = match tasks {
        [one] => one.to_string(),
        all => format!("{} cases of {kind}/{user}", all.len()),
    };
    SkippedTask { task, why }
}

impl Task {
    /// What else of its case a cross-section plays instead: each is played natively by both
    /// users and kept by one, one in two in containers, of one kind.
    fn turn(&self) -> Turn {
        let case = || format!("{}/{}", self.case.area, self.case.name);
        match self.kind.made {
            Made::Native => Turn::Each(case()),
            Made::Kept => Turn::Rarely(case() + "/kept", 1),
            Made::Container { .. } => Turn::Rarely(case() + "/container", 2),
        }
    }

    /// Why it cannot run on this machine.
    fn not_here(&self, engines: &SuiteEngines) -> Option<String> {
        if !TestUser::available_users().contains(&self.user) {
            return Some("the harness is not root".to_owned());
        }
        let for_all = self.kind.not_for(self.user).map(str::to_owned);
        for_all.or_else(|| engines.why_missing(self.kind.engine()?).map(str::to_owned))
    }
}

/// Two cases of one name would be one.
fn require_distinct() -> Result<()> {
    let mut names = BTreeSet::new();
    for case in cases::all() {
        ensure!(names.insert((case.area, case.name)), "two cases are named {}/{}", case.area, case.name);
    }
    Ok(())
}

/// What the tasks of one run share.
struct Session {
    directory: TempDir,
}

impl Session {
    fn open() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("stockade-sandboxes-").tempdir()?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        let suite = directory.path().join("suite");
        fs::copy(std::env::current_exe()?, &suite)?;
        fs::set_permissions(&suite, fs::Permissions::from_mode(0o755))?;
        Ok(Self { directory })
    }

    /// Plays one task as its user, in a directory of its own.
    fn play(&self, task: &Task) -> Result<ProgramOutput> {
        let account = UserAccount::for_user(task.user)?;
        let top = tempfile::Builder::new().prefix("case-").tempdir_in(self.directory.path())?;
        chown(top.path(), Some(account.uid), Some(account.gid))?;
        let mut command = TestCommand::new(self.directory.path().join("suite"), top.path())
            .args(["--case", &task.to_string()])
            .arg(top.path())
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("LANG", "C.UTF-8")
            .timeout(TASK_TIMEOUT);
        if let Some(times) = std::env::var_os(SLOWNESS_VARIABLE) {
            command = command.env(SLOWNESS_VARIABLE, times);
        }
        let output = run_as(&account, &command)?;
        let leftovers = wait_for_leftovers(top.path());
        ensure!(leftovers.is_empty(), "{}left behind: {}", output.combined_text(), leftovers.join(", "));
        Ok(output)
    }
}

/// What still has a directory of the task mounted, after the time that it may take.
fn wait_for_leftovers(top: &Path) -> Vec<String> {
    let give_up = Instant::now() + GOES_WITHIN * slowness_factor();
    loop {
        let leftovers = processes_at(top);
        if leftovers.is_empty() || Instant::now() > give_up {
            return leftovers;
        }
        thread::sleep(Duration::from_millis(20));
    }
}
