//! Cache warm-up: a worker runs the steps of a command before a client sends one, as far as they
//! have no effects. The first access to memory and code costs a page fault each, and no client
//! waits for it yet.
//!
//! The results are not used: each command is assessed and planned by itself, with the configuration
//! at that time.

use rustix::process::chdir;
use stockade_engine::real::RuleJudge;
use stockade_engine::seams::Judge;
use stockade_native::launch::Blueprint;

use super::super::{setting, variable};
use crate::args::{RunArgs, Subject, Terms};
use crate::meaning::{self, Meant};

/// Runs the steps for a command with these options.
pub fn rehearse(terms: &Terms) {
    // A failure here occurs again for the command, and is reported then.
    let _ = go_through(terms);
}

fn go_through(terms: &Terms) -> Option<()> {
    chdir(terms.workspace.as_deref()?).ok()?;
    let meant = Meant::run(of_terms(terms), &variable).ok()?;
    let setting = setting::load(&meant.workspace).ok()?;
    let request = setting.request(&meant, meaning::request_id().ok()?);
    let judge = RuleJudge { stage: meant.stage, undo: meant.undo, trace: meant.trace, ..setting.judge() };
    let assessment = judge.assess(&request);
    judge.rule(&request, &assessment);
    judge.policy(&request);
    let planned = judge.plan(&request, 1, &request.grants).ok()?;
    Blueprint::prepare(&planned.plan).ok().map(drop)
}

/// Returns the command line of a harmless command with these options.
pub fn of_terms(terms: &Terms) -> RunArgs {
    RunArgs {
        terms: terms.clone(),
        session: None,
        detach: false,
        interactive: false,
        tty: false,
        timings: false,
        json: None,
        subject: Subject { script: None, words: vec!["true".into()] },
    }
}
