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
pub fn warm_up_caches(options: &RunOptions) {
    // A failure here occurs again for the command, and is reported then.
    let _ = run_warm_up(options);
}

fn run_warm_up(options: &RunOptions) -> Option<()> {
    chdir(options.workspace.as_deref()?).ok()?;
    let request_args = ResolvedArgs::from_run_args(build_run_args(options), &read_variable).ok()?;
    let setting = configuration::load_config(&request_args.workspace).ok()?;
    let request = setting.build_request(&request_args, resolved_args::request_id().ok()?);
    let engine = RulePolicyEngine {
        stage: request_args.options.stage,
        undo: request_args.options.undo,
        trace: request_args.options.trace,
        ..setting.policy_engine()
    };
    let assessment = engine.assess_request(&request);
    engine.apply_rules(&request, &assessment);
    engine.policy_digest(&request);
    let planned = engine.make_plan(&request, 1, &request.grants).ok()?;
    Blueprint::prepare(&planned.plan).ok().map(drop)
}

/// Returns the command line of a harmless command with these options.
pub fn build_run_args(options: &RunOptions) -> RunArgs {
    RunArgs {
        options: options.clone(),
        subject: CommandArgs { script: None, words: vec!["true".into()] },
        ..RunArgs::default()
    }
}
