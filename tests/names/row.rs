//! One row: what a repository ships, what a run does to it, and who is asked then.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use stockade_testkit::{Ended, Running, User, run_as, slowness};
use stockade_tests::Level;

use crate::oracle::{Depth, Oracle, Tool};
use crate::scene::{Scene, Session};

/// How long a run beside the attack may take to be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
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

/// A row that asks nobody, to be filled in.
pub const ROW: Row =
    Row { id: "", prepare: "", workspace: "", options: &[], attack: "", then: Then::Nothing, ask: &[] };

impl Row {
    /// Runs it, sandboxed or as its control, and says what was planted.
    pub fn play(&self, session: &Session, user: User, level: Option<Level>) -> Result<Vec<String>> {
        let scene = Scene::new(session, user)?;
        scene.prepare(self.prepare)?;
        let before = Oracle::new(&scene, Depth::Settings).ask(&scene.directories(), self.ask)?;
        ensure!(before.is_empty(), "planted before the attack: {before:?}");
        match self.then {
            Then::Nothing => self.run(&scene, level, "attack", self.options, self.attack)?,
            Then::Later(text) => {
                self.run(&scene, level, "attack", self.options, self.attack)?;
                self.run(&scene, level, "later", &[], text)?;
            }
            Then::Beside(text) => self.run_beside(&scene, level, text)?,
            Then::Commit(further) => self.run_staged(&scene, level, further)?,
        }
        // A control must be seen by the tool that the row is about.
        let asked = if level.is_none() { &self.ask[..1] } else { self.ask };
        Oracle::new(&scene, Depth::Run).ask(&scene.directories(), asked)
    }

    fn run(&self, scene: &Scene<'_>, level: Option<Level>, tag: &str, options: &[&str], text: &str) -> Result<()> {
        let output = run_as(&scene.account, &scene.attack(level, tag, self.workspace, options, text)?)?;
        scene.require_ran(level, tag, &output)
    }

    fn run_beside(&self, scene: &Scene<'_>, level: Option<Level>, text: &str) -> Result<()> {
        let beside = Running::start(&scene.account, &scene.attack(level, "beside", self.workspace, &[], text)?)?;
        let ready = scene.workspace().join("go.ready");
        let deadline = Instant::now() + READY_TIMEOUT * slowness();
        while fs::symlink_metadata(&ready).is_err() && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        let attacked = self.run(scene, level, "attack", self.options, self.attack);
        fs::write(scene.workspace().join("go"), "")?;
        let output = beside.finish()?;
        attacked?;
        scene.require_ran(level, "beside", &output)
    }

    fn run_staged(&self, scene: &Scene<'_>, level: Option<Level>, further: &[&str]) -> Result<()> {
        for (number, text) in std::iter::once(&self.attack).chain(further).enumerate() {
            let options: &[&str] = if level.is_some() { &["--stage"] } else { &[] };
            self.run(scene, level, &format!("staged{number}"), options, text)?;
            if level.is_some() {
                // Part of it may be refused: the rest is committed.
                let output =
                    run_as(&scene.account, &scene.command(scene.session.path("stockade")).args(["stage", "commit"]))?;
                ensure!(
                    matches!(output.ended, Ended::Code(0 | 1)),
                    "stage commit: {:?} {}",
                    output.ended,
                    output.text()
                );
            }
        }
        Ok(())
    }
}
