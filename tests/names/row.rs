//! One row: what a repository ships, what a run does to it, and who is asked then.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use stockade_testkit::{ProgramEnd, RunningProgram, TestUser, run_as, slowness_factor};

use crate::oracle::{Depth, Oracle, Tool};
use crate::scene::{IsolationKind, Scene, Session};

/// How long a run beside the attack may take to be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Last line of ordinary work.
const DONE: &str = "WORK-DONE";
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What follows the attack.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// Another run, without the options.
    Later(&'static str),
    /// A run without the options that began before the attack and ends after it: it
    /// makes `go.ready`, and waits for `go`.
    Beside(&'static str),
    /// The attack makes `go.ready`, waits for `go`, and meanwhile the person does this.
    During(&'static str),
    /// The stages of the attack, and of these further runs, are committed. Without a
    /// sandbox there are none.
    Commit(&'static [&'static str]),
}

/// One attack.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub id: &'static str,
    /// What the person has in the workspace, which the attack does not choose freely.
    pub prepare: &'static str,
    /// The workspace of the runs, in the tree that the oracle walks.
    pub workspace: &'static str,
    /// Options of the attack's run.
    pub options: &'static [&'static str],
    /// What runs in the sandbox.
    pub attack: &'static str,
    /// What follows.
    pub then: Then,
    /// Which tools are asked.
    pub ask: &'static [Tool],
}

/// Rows of every class, for persistent sandboxes.
const KEPT: &[&str] = &[
    "cargo-link-last",
    "cargo-shipped-absolute",
    "cargo-shipped-sub",
    "cargo-shipped-moved",
    "cargo-shipped-way-exchanged",
    "cargo-directory-moved",
    "cargo-file-unnamed",
    "npm-written",
    "npm-shipped-sub",
    "npm-shipped-hard-link",
    "socket-through-link",
    "home-link-last",
    "home-moved",
    "bare-orders-moved",
    "bare-shipped-commondir",
    "commondir",
    "gitfile-shipped-commondir",
    "include-shipped",
    "hookspath-shipped-absolute",
    "hookspath-shipped-link",
    "global-hookspath-absolute",
    "global-linked",
    "hook-shipped-link-sub",
    "hookspath-user-home",
    "hookspath-link-parent",
    "alias-script",
    "alias-variable",
    "outside-hooks",
    "outside-hooks-link",
    "outside-repository",
    "outside-editor",
    "checked-set",
    "checked-moved",
    "checked-source-linked",
    "checked-source-open",
    "checked-race",
    "checked-new",
    "checked-new-hook",
    "checked-pointer",
    "checked-pointer-to-module",
    "checked-common-of-work-tree",
    "checked-hooks-of-work-tree",
    "checked-global-hooks-there",
    "checked-work-tree-beside",
    "checked-remote-hidden",
    "pushed-unsigned",
    "pushed-though-nothing",
    "way-link",
    "way-common-taken-away",
    "way-address-missing",
    "checked-index",
    "git-new",
    "git-own",
    "git-remote",
    "git-clone",
    "git-bisect",
    "git-worktree",
    "git-submodule",
    "git-code-left-out",
];

/// A row that asks nobody, to be filled in.
pub const ROW: Row =
    Row { id: "", prepare: "", workspace: "", options: &[], attack: "", then: Then::Nothing, ask: &[] };

impl Row {
    /// Whether it is played in persistent sandboxes as well.
    pub fn is_played_persistent(&self) -> bool {
        KEPT.contains(&self.id)
    }

    /// Runs it, sandboxed or as its control, and says what was planted.
    pub fn play(&self, session: &Session, user: TestUser, isolation: IsolationKind) -> Result<Vec<String>> {
        let mut scene = Scene::new(session, user, isolation)?;
        scene.prepare(self.prepare)?;
        scene.open()?;
        let before = Oracle::new(&scene, Depth::Settings).ask(&scene.directories(), self.ask)?;
        ensure!(before.is_empty(), "planted before the attack: {before:?}");
        match self.then {
            Then::Nothing => self.run(&scene, "attack", self.options, self.attack)?,
            Then::Later(text) => {
                self.run(&scene, "attack", self.options, self.attack)?;
                self.run(&scene, "later", &[], text)?;
            }
            Then::Beside(text) => self.run_beside(&scene, text)?,
            Then::During(text) => self.run_during(&scene, text)?,
            Then::Commit(further) => self.run_staged(&scene, further)?,
        }
        // A control must be seen by the tool that the row is about.
        let tools = if isolation.is_control() { &self.ask[..1] } else { self.ask };
        Oracle::new(&scene, Depth::Run).ask(&scene.directories(), tools)
    }

    /// Does it as ordinary work, and says how it failed.
    pub fn work(&self, session: &Session, user: TestUser, isolation: IsolationKind) -> Result<Vec<String>> {
        let mut scene = Scene::new(session, user, isolation)?;
        scene.prepare(self.prepare)?;
        scene.open()?;
        let text = format!("set -e; set -o pipefail\n{}\necho {DONE}", self.attack);
        let output = run_as(&scene.account, &scene.attack("work", self.workspace, self.options, &text)?)?;
        scene.require_ran("work", &output)?;
        if isolation.is_control() && self.id == "git-code-left-out" {
            return Ok(Vec::new());
        }
        let is_done = output.ended == ProgramEnd::Code(0) && output.stdout.contains(DONE);
        let failed = || format!("ordinary work failed: {:?} {}", output.ended, output.combined_text());
        Ok((!is_done).then(failed).into_iter().collect())
    }

    fn run(&self, scene: &Scene<'_>, tag: &str, options: &[&str], text: &str) -> Result<()> {
        let output = run_as(&scene.account, &scene.attack(tag, self.workspace, options, text)?)?;
        scene.require_ran(tag, &output)
    }

    fn run_beside(&self, scene: &Scene<'_>, text: &str) -> Result<()> {
        let beside = RunningProgram::start(&scene.account, &scene.attack("beside", self.workspace, &[], text)?)?;
        wait_until_ready(scene);
        let attacked = self.run(scene, "attack", self.options, self.attack);
        fs::write(scene.workspace().join("go"), "")?;
        let output = beside.wait_for_end()?;
        attacked?;
        scene.require_ran("beside", &output)
    }

    fn run_during(&self, scene: &Scene<'_>, text: &str) -> Result<()> {
        let attack = scene.attack("attack", self.workspace, self.options, self.attack)?;
        let attack = RunningProgram::start(&scene.account, &attack)?;
        wait_until_ready(scene);
        let prepared = scene.prepare(text);
        fs::write(scene.workspace().join("go"), "")?;
        let output = attack.wait_for_end()?;
        prepared?;
        scene.require_ran("attack", &output)
    }

    fn run_staged(&self, scene: &Scene<'_>, further: &[&str]) -> Result<()> {
        for (number, text) in std::iter::once(&self.attack).chain(further).enumerate() {
            let options: &[&str] = if !scene.isolation.is_control() { &["--stage"] } else { &[] };
            self.run(scene, &format!("staged{number}"), options, text)?;
            if !scene.isolation.is_control() {
                // Part of it may be refused: the rest is committed.
                let output =
                    run_as(&scene.account, &scene.command(scene.session.path("stockade")).args(["stage", "commit"]))?;
                ensure!(
                    matches!(output.ended, ProgramEnd::Code(0 | 1)),
                    "stage commit: {:?} {}",
                    output.ended,
                    output.combined_text()
                );
            }
        }
        Ok(())
    }
}

/// Waits, within bounds, until a script says that it is.
fn wait_until_ready(scene: &Scene<'_>) {
    let ready = scene.workspace().join("go.ready");
    let deadline = Instant::now() + READY_TIMEOUT * slowness_factor();
    while fs::symlink_metadata(&ready).is_err() && Instant::now() < deadline {
        thread::sleep(POLL_INTERVAL);
    }
}
