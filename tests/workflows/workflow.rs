//! A workflow, and what became of it.

use anyhow::{Context as _, Result};
use serde_json::Value;
use stockade_testkit::{Ended, User};
use stockade_tests::Level;

use crate::way::Way;
use crate::world::{Place, World};

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
    /// Where it is refused, and why that must be so.
    pub refused: Option<(Level, &'static str)>,
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
        refused: None,
        hinted: false,
        does_without: &[],
    };

    /// Plays it.
    ///
    /// # Errors
    /// Where nothing could be made ready.
    pub fn play(&self, user: User, place: Place, way: Way) -> Result<Became> {
        let world = World::new(user, place)?;
        if let Some(missing) = self.needs.iter().find(|program| !world.has(program)) {
            return Ok(Became::NotRun(format!("there is no {missing}")));
        }
        if let Some(why) = self.not_as_root.filter(|_| user == User::Root) {
            return Ok(Became::NotRun(why.to_owned()));
        }
        // A run has a `/tmp` of its own, in which nothing lies beside its workspace.
        let is_apart =
            place == Place::Temporary && way != Way::Bare && [self.work, self.before].concat().contains("../");
        if is_apart && self.hinted {
            return Ok(Became::NotRun("what runs write beside a workspace in /tmp is gone with them".to_owned()));
        }
        let script = |text: &str| format!("set -eu\n{text}");
        let before = world.bare(&script(self.before))?;
        if before.ended != Ended::Code(0) {
            return Ok(Became::Failed(format!("it cannot be made ready: {}", before.text())));
        }
        let told = match way {
            Way::Bare => {
                let output = world.bare(&script(self.work))?;
                (output.ended != Ended::Code(0)).then(|| output.text())
            }
            Way::Peer(peer) if peer.program().is_none() => {
                return Ok(Became::NotRun(format!("{} is not installed", peer.word())));
            }
            Way::Peer(peer) => {
                let output = world.peer(peer, &script(self.work))?;
                (output.ended != Ended::Code(0)).then(|| output.text())
            }
            Way::Sandboxed(level) => {
                let grants = match (self.hinted, is_apart) {
                    (true, _) => hinted(&world, level, &script(self.work))?,
                    (false, true) => Ok(vec![format!("read {}", world.around().display())]),
                    (false, false) => Ok(Vec::new()),
                };
                match grants {
                    Ok(grants) => self.sandboxed(&world, level, &grants, &script(self.work))?,
                    Err(why) => Some(why),
                }
            }
        };
        if let Some(told) = told {
            return Ok(match self.refused {
                Some((at, why)) if Some(at) == way.level() => Became::Refused(why.to_owned()),
                _ => Became::Failed(told),
            });
        }
        let after = world.bare(&script(self.after))?;
        Ok(match after.ended {
            Ended::Code(0) => Became::Passed,
            _ => Became::Failed(format!("it was not done: {}", after.text())),
        })
    }

    /// What hindered it, if anything: a failure, or a power that was refused although it ended well.
    fn sandboxed(&self, world: &World, level: Level, grants: &[String], script: &str) -> Result<Option<String>> {
        let output = world.stockade(level, &with("--grant", grants), script)?;
        let outcome: Value =
            serde_json::from_str(&output.stdout).with_context(|| format!("no outcome: {}", output.text()))?;
        let attempts = outcome["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
        let denials = attempts.iter().filter_map(|attempt| attempt["denials"].as_array()).flatten();
        let mut objects = denials.map(|denial| denial["object"].to_string());
        let refused = objects.any(|object| !self.does_without.iter().any(|part| object.contains(part)));
        if output.ended == Ended::Code(0) && !refused && attempts.len() == 1 {
            return Ok(None);
        }
        let printed: Vec<&str> = attempts
            .iter()
            .flat_map(|attempt| [&attempt["stdout"], &attempt["stderr"]])
            .filter_map(Value::as_str)
            .collect();
        Ok(Some(format!("{:?}\n{}\n{}", output.ended, output.stderr.trim(), printed.join("\n").trim())))
    }
}

/// Hints of one run: more are nothing that a person follows.
const MAX_HINTS: usize = 5;

/// The powers that the hints of a run name, or why they help nobody.
fn hinted(world: &World, level: Level, script: &str) -> Result<Result<Vec<String>, String>> {
    let output = world.stockade_for_people(level, script)?;
    let lines = output.stderr.lines().filter_map(|line| line.trim_start().strip_prefix("hint: --request "));
    let lines: Vec<&str> = lines.collect();
    let unquoted = |power: &str| power.trim().trim_matches('\'').to_owned();
    let powers: Vec<String> = lines.iter().flat_map(|line| line.split(" --request ")).map(unquoted).collect();
    let helps = output.ended != Ended::Code(0) && (1..=MAX_HINTS).contains(&powers.len());
    Ok(if helps {
        Ok(powers)
    } else {
        Err(format!("{:?} and these hints: {powers:?}\n{}", output.ended, output.text()))
    })
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
