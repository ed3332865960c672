//! Cache warm-up: a worker runs the steps of a command before a client sends one, as far as they
//! have no effects. The first access to memory and code costs a page fault each, and no client
//! waits for it yet.
//!
//! The results are not used: each command is assessed and planned by itself, with the configuration
//! at that time.

use rustix::process::chdir;
use stockade_engine::adapters::RulePolicyEngine;
use stockade_engine::ports::PolicyEngine;
use stockade_launch::Blueprint;

use super::super::{configuration, read_variable};
use crate::args::{CommandArgs, RunArgs, RunOptions};
use crate::resolved_args::{self, ResolvedArgs};

/// Runs the steps for a command with these options.
pub fn warm_up_caches(terms: &RunOptions) {
    // A failure here occurs again for the command, and is reported then.
    let _ = go_through(terms);
}

fn go_through(terms: &RunOptions) -> Option<()> {
    chdir(terms.workspace.as_deref()?).ok()?;
    let meant = ResolvedArgs::from_run_args(of_terms(terms), &read_variable).ok()?;
    let setting = configuration::load_config(&meant.workspace).ok()?;
    let request = setting.build_request(&meant, resolved_args::request_id().ok()?);
    let judge = RulePolicyEngine {
        stage: meant.terms.stage,
        undo: meant.terms.undo,
        trace: meant.terms.trace,
        ..setting.policy_engine()
    };
    let assessment = judge.assess_request(&request);
    judge.apply_rules(&request, &assessment);
    judge.policy_digest(&request);
    let planned = judge.make_plan(&request, 1, &request.grants).ok()?;
    Blueprint::prepare(&planned.plan).ok().map(drop)
}

/// Returns the command line of a harmless command with these options.
pub fn of_terms(terms: &RunOptions) -> RunArgs {
    RunArgs {
        terms: terms.clone(),
        subject: CommandArgs { script: None, words: vec!["true".into()] },
        ..RunArgs::default()
    }
}
