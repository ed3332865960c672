//! A front goes the way of a command before there is one, as far as that changes
//! nothing: memory and code that are touched for the first time cost a visit of
//! the kernel each, and nobody waits for it yet.
//!
//! Nothing that comes of it is used: a command is judged and planned by itself,
//! by the configuration of then.

use rustix::process::chdir;
use stockade_engine::real::RuleJudge;
use stockade_engine::seams::Judge;
use stockade_native::launch::Blueprint;

use super::super::{setting, variable};
use crate::args::{RunArgs, Subject, Terms};
use crate::meaning::{self, Meant};

/// Rehearses a command of these terms.
pub fn rehearse(terms: &Terms) {
    // What fails here fails again where somebody is told.
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

/// The command line of a harmless command under these terms.
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
