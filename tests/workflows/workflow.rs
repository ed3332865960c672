//! A workflow, and what became of it.

use anyhow::{Context as _, Result};
use serde_json::Value;
use stockade_testkit::{ProgramEnd, ProgramOutput, TestUser};
use stockade_tests::Level;

use crate::docker::{Docker, Lazy, Sandbox};
use crate::way::Way;
use crate::world::{WorkspaceParent, World};

/// Work that a person does with a tool.
#[derive(Clone, Copy, Debug)]
pub struct Workflow {
    /// Its name.
    pub id: &'static str,
    /// Programs without which it cannot be run here.
    pub needs: &'static [&'static str],
    /// A shell script that makes ready what is worked on, without a sandbox.
    pub before: &'static str,
    /// The work, a shell script that fails at its first failure.
    pub work: &'static str,
    /// A shell script that looks at what was done, without a sandbox.
    pub after: &'static str,
    /// Why root cannot do it, without a sandbox either.
    pub not_as_root: Option<&'static str>,
    /// The ways in which it is refused, and why that must be so.
    pub refused: &'static [(Way, &'static str)],
    /// Whether it needs a power, which a first run says in its hints.
    pub hinted: bool,
    /// What the tool tries and goes on without: a part of the path of each.
    pub does_without: &'static [&'static str],
}

impl Workflow {
    /// Nothing yet; each row fills in what it has.
    pub const NEW: Self = Self {
        id: "",
        needs: &[],
        before: "",
        work: "",
        after: "",
        not_as_root: None,
        refused: &[],
        hinted: false,
        does_without: &[],
    };

    /// Plays it.
    ///
    /// # Errors
    /// Where nothing could be made ready.
    pub fn play(&self, user: TestUser, place: WorkspaceParent, way: Way, docker: &Lazy) -> Result<Became> {
        let world = World::new(user, place)?;
        if let Some(why) = self.why_not(&world, user, place, way) {
            return Ok(Became::NotRun(why));
        }
        let script = |text: &str| format!("set -eu\n{text}");
        let before = || -> Result<Option<Became>> {
            let before = world.bare(&script(self.before))?;
            Ok((before.ended != ProgramEnd::Code(0))
                .then(|| Became::Failed(format!("it cannot be made ready: {}", before.combined_text()))))
        };
        if way == Way::Docker {
            let docker = docker.docker()?;
            if let Some(missing) = self.needs.iter().find(|program| !docker.has(program)) {
                return Ok(Became::NotRun(format!("there is no {missing} in the image")));
            }
            return match before()? {
                Some(failed) => Ok(failed),
                None => self.contained(&world, docker, &script),
            };
        }
        if let Some(failed) = before()? {
            return Ok(failed);
        }
        let problem = match way {
            Way::Sandboxed(level) => self.sandboxed(&world, level, place, &script(self.work))?,
            Way::Peer(peer) => failure(&world.peer(peer, &script(self.work))?),
            Way::Bare | Way::Docker => failure(&world.bare(&script(self.work))?),
        };
        match problem {
            Some(problem) => Ok(self.hindered(way, problem)),
            None => Ok(done(&world.bare(&script(self.after))?)),
        }
    }

    /// Why it cannot be played here.
    fn why_not(&self, world: &World, user: TestUser, place: WorkspaceParent, way: Way) -> Option<String> {
        if let Some(missing) = self.needs.iter().find(|program| !world.has(program)) {
            return Some(format!("there is no {missing}"));
        }
        if let Some(why) = self.not_as_root.filter(|_| user == TestUser::Root) {
            return Some(why.to_owned());
        }
        // A run has a `/tmp` of its own, in which nothing lies beside its workspace.
        if self.hinted && place == WorkspaceParent::Temporary && way != Way::Bare && self.has_beside() {
            return Some("what runs write beside a workspace in /tmp is gone with them".to_owned());
        }
        match way {
            Way::Peer(peer) if peer.program().is_none() => Some(format!("{} is not installed", peer.word())),
            Way::Docker if !TestUser::available_users().contains(&TestUser::Root) => {
                Some("an engine of the suite's own needs root".to_owned())
            }
            _ => None,
        }
    }

    /// Whether something lies beside the workspace.
    fn has_beside(&self) -> bool {
        [self.work, self.before].concat().contains("../")
    }

    /// What becomes of it in a container. Its home is the sandbox's own, and looked at there.
    fn contained(&self, world: &World, docker: &Docker, script: &dyn Fn(&str) -> String) -> Result<Became> {
        let sandbox = Sandbox::create(docker, world, self.has_beside())?;
        let work = script(self.work);
        let first = sandbox.run(&[], &work)?;
        let problem = match self.hindrance(&first.output, &first.outcome) {
            Some(_) if self.hinted => match powers(&first.output) {
                Ok(powers) => {
                    let second = sandbox.run(&powers, &work)?;
                    self.hindrance(&second.output, &second.outcome)
                }
                Err(why) => Some(why),
            },
            problem => problem,
        };
        let became = match problem {
            Some(problem) => self.hindered(Way::Docker, problem),
            None => done(&world.bare_at(&sandbox.home(), &script(self.after))?),
        };
        sandbox.destroy()?;
        Ok(became)
    }

    fn hindered(&self, way: Way, problem: String) -> Became {
        match self.refused.iter().find(|(at, _)| *at == way) {
            Some((_, why)) => Became::Refused((*why).to_owned()),
            None => Became::Failed(problem),
        }
    }

    /// What hindered it in a sandbox of its own, if anything.
    fn sandboxed(&self, world: &World, level: Level, place: WorkspaceParent, script: &str) -> Result<Option<String>> {
        let grants = if self.hinted {
            match powers(&world.stockade_for_people(level, script)?) {
                Ok(powers) => powers,
                Err(why) => return Ok(Some(why)),
            }
        } else if place == WorkspaceParent::Temporary && self.has_beside() {
            vec![format!("read {}", world.around().display())]
        } else {
            Vec::new()
        };
        let output = world.stockade(level, &with("--grant", &grants), script)?;
        let outcome: Value =
            serde_json::from_str(&output.stdout).with_context(|| format!("no outcome: {}", output.combined_text()))?;
        Ok(self.hindrance(&output, &outcome))
    }

    /// A failure, or a power that was refused although it ended well.
    fn hindrance(&self, output: &ProgramOutput, outcome: &Value) -> Option<String> {
        let attempts = outcome["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
        let denials = attempts.iter().filter_map(|attempt| attempt["denials"].as_array()).flatten();
        let mut objects = denials.map(|denial| denial["object"].to_string());
        let refused = objects.any(|object| !self.does_without.iter().any(|part| object.contains(part)));
        if output.ended == ProgramEnd::Code(0) && !refused && attempts.len() == 1 {
            return None;
        }
        let printed: Vec<&str> = attempts
            .iter()
            .flat_map(|attempt| [&attempt["stdout"], &attempt["stderr"]])
            .filter_map(Value::as_str)
            .collect();
        Some(format!("{:?}\n{}\n{}", output.ended, output.stderr.trim(), printed.join("\n").trim()))
    }
}

/// What a command said that did not end well.
fn failure(output: &ProgramOutput) -> Option<String> {
    (output.ended != ProgramEnd::Code(0)).then(|| output.combined_text())
}

fn done(after: &ProgramOutput) -> Became {
    match failure(after) {
        None => Became::Passed,
        Some(problem) => Became::Failed(format!("it was not done: {problem}")),
    }
}

/// Hints of one run: more are nothing that a person follows.
const MAX_HINTS: usize = 5;

/// The powers that the hints of a run name, or why they help nobody.
fn powers(output: &ProgramOutput) -> Result<Vec<String>, String> {
    let lines = output.stderr.lines().filter_map(|line| line.trim_start().strip_prefix("hint: --request "));
    let unquoted = |power: &str| power.trim().trim_matches('\'').to_owned();
    let powers: Vec<String> = lines.flat_map(|line| line.split(" --request ")).map(unquoted).collect();
    let helps = output.ended != ProgramEnd::Code(0) && (1..=MAX_HINTS).contains(&powers.len());
    if helps {
        Ok(powers)
    } else {
        Err(format!("{:?} and these hints: {powers:?}\n{}", output.ended, output.combined_text()))
    }
}

/// Options that give each of these.
fn with(option: &str, values: &[String]) -> Vec<String> {
    values.iter().flat_map(|value| [option.to_owned(), value.clone()]).collect()
}

/// What became of a workflow.
#[derive(Debug)]
pub enum Became {
    Passed,
    Failed(String),
    /// This machine cannot.
    NotRun(String),
    /// As it says of itself.
    Refused(String),
}
