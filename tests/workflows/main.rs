//! Everyday work with real tools, nobody there to answer: everything passes, and no power is
//! refused on the way. Each workflow has a control without a sandbox.
//!
//! ```text
//! cargo test -p stockade-tests --test workflows -- [FILTER] [--list] [--all] [--everywhere] [--docker] [--peers]
//! ```
//! A task is named `WORKFLOW/USER/PLACE/LEVEL` or `WORKFLOW/control`; FILTER is a part of that,
//! or several, parted by commas. `STOCKADE_BIN` names the program to test. A workspace below the
//! home is tried by both users at both levels, without a FILTER in one of these pairs for each
//! workflow; `--all` plays all of them. With `--everywhere` one in `/tmp` and one in `/srv` besides, with
//! `--peers` in neighbouring sandboxes. In a sandbox of Docker's some of those are played whose
//! tools are few; all workflows with `--docker`, where an image with all tools is made.
#![allow(missing_docs, reason = "a test binary has no users")]
#![allow(clippy::disallowed_methods, reason = "starting programs without a sandbox is what controls are")]

mod docker;
mod rows_build;
mod rows_git;
mod rows_hinted;
mod rows_scripts;
mod rows_serve;
mod way;
mod workflow;
mod world;

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use stockade_testkit::suite::{DECLARED, FAILED, PASSED, UNAVAILABLE, run_tasks};
use stockade_testkit::{ProgramEnd, ProgramOutput, TestUser};
use stockade_tests::Level;
use stockade_tests::cross_section::{Turn, Wanted};

use crate::docker::{Lazy, Tools};
use crate::way::{Peer, Way};
use crate::workflow::{Became, Workflow};
use crate::world::WorkspaceParent;

/// Workflows at a time.
const PARALLEL: usize = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments).unwrap_or_else(|error| {
        println!("error: {error:#}");
        ExitCode::from(FAILED)
    })
}

/// A workflow as a user somewhere.
struct Task {
    workflow: Workflow,
    user: TestUser,
    place: WorkspaceParent,
    way: Way,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, user, place) = (self.workflow.id, self.user.word(), self.place.word());
        match self.way {
            Way::Bare => write!(f, "{id}/control"),
            Way::Sandboxed(level) => write!(f, "{id}/{user}/{place}/{}", level.word()),
            Way::Docker => write!(f, "{id}/{user}/{place}/docker"),
            Way::Peer(peer) => write!(f, "{id}/{user}/{place}/{}", peer.word()),
        }
    }
}

impl Task {
    /// What else of its workflow a cross-section plays instead.
    fn turn(&self) -> Turn {
        let (id, place) = (self.workflow.id, self.place.word());
        match self.way {
            Way::Bare => Turn::Rarely(self.to_string(), 1),
            Way::Sandboxed(_) => Turn::One(format!("{id}/{place}")),
            Way::Docker => Turn::Rarely(format!("{id}/docker"), 3),
            Way::Peer(peer) => Turn::One(format!("{id}/{}", peer.word())),
        }
    }
}

/// Workflows that may be refused somewhere, see [`Workflow::refused`].
const REFUSED_MAX: usize = 6;

fn tasks(everywhere: bool, peers: bool, tools: Tools) -> Vec<Task> {
    let all = [rows_build::ALL, rows_git::ALL, rows_hinted::ALL, rows_scripts::ALL, rows_serve::ALL].concat();
    let refused = all.iter().filter(|workflow| !workflow.refused.is_empty()).count();
    assert!(refused <= REFUSED_MAX, "{refused} workflows are refused somewhere");
    let mut tasks = Vec::new();
    for workflow in all.iter().copied() {
        let mut add = |user, place, way| tasks.push(Task { workflow, user, place, way });
        add(TestUser::Ordinary, WorkspaceParent::Home, Way::Bare);
        for user in TestUser::available_users() {
            add(user, WorkspaceParent::Home, Way::Sandboxed(Level::Full));
            add(user, WorkspaceParent::Home, Way::Sandboxed(Level::Restricted));
            if everywhere {
                add(user, WorkspaceParent::Temporary, Way::Sandboxed(Level::Full));
                add(user, WorkspaceParent::Served, Way::Sandboxed(Level::Full));
            }
            for peer in Peer::ALL.into_iter().filter(|_| peers && !workflow.hinted) {
                add(user, WorkspaceParent::Home, Way::Peer(peer));
            }
        }
    }
    // The last: until the image is there, none of them can be played.
    let users =
        TestUser::available_users().into_iter().filter(|user| tools == Tools::All || *user == TestUser::Ordinary);
    for user in users {
        let workflows = all.iter().copied().filter(|workflow| tools.suffice(workflow.needs));
        tasks.extend(workflows.map(|workflow| Task {
            workflow,
            user,
            place: WorkspaceParent::Served,
            way: Way::Docker,
        }));
    }
    tasks
}

fn run(arguments: &[String]) -> Result<ExitCode> {
    let has = |flag: &str| arguments.iter().any(|a| a == flag);
    let selection = Wanted::of(arguments);
    let tools = if has("--docker") { Tools::All } else { Tools::Few };
    let mut tasks = tasks(has("--everywhere"), has("--peers"), tools);
    tasks.retain(|task| selection.names(&task.to_string()));
    let all = tasks.len();
    let tasks = selection.narrowed(tasks, Task::turn);
    if has("--list") {
        tasks.iter().for_each(|task| println!("{task}: test"));
        return Ok(ExitCode::SUCCESS);
    }
    selection.tell(tasks.len(), all);
    let lazy = Lazy::new(tools);
    let tally = run_tasks(tasks, PARALLEL, |task| {
        let (code, text) = match task.workflow.play(task.user, task.place, task.way, &lazy)? {
            Became::Passed => (PASSED, String::new()),
            Became::Failed(why) => (FAILED, why),
            Became::NotRun(why) => (UNAVAILABLE, why),
            Became::Refused(how) => (DECLARED, how),
        };
        let ended = ProgramEnd::Code(code.into());
        Ok(ProgramOutput { ended, stdout: text, stderr: String::new(), elapsed: Duration::ZERO, held_open: false })
    });
    lazy.require_empty()?;
    Ok(tally.print_report())
}
