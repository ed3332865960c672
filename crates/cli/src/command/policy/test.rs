//! `stockade policy test`: checks files of examples against the configuration in force, and reports
//! the rules that they reach.

use std::sync::Arc;

use stockade_engine::adapters::RulePolicyEngine;
use stockade_policy::examples::{ExampleReport, run_examples};

use super::{load_settings, read_text_file, resolve_workspace};
use crate::command::{CommandResult, print_output};
use crate::exit;
use crate::policy_args::PolicyTestArgs;
use crate::render::policy as text;

/// Runs the examples.
///
/// # Errors
/// [`CliError`](crate::failure::CliError) if the configuration or a file of examples cannot be used.
pub fn test(typed: &PolicyTestArgs) -> CommandResult {
    let workspace = resolve_workspace(typed.workspace.as_deref())?;
    let settings = load_settings(&workspace, typed.policy.as_deref())?;
    let engine = RulePolicyEngine::new(Arc::new(settings.clone()), true);
    let mut report = ExampleReport { results: Vec::new(), spoken: vec![0; settings.rules().count()] };
    let mut shown = String::new();
    for path in &typed.files {
        let own = run_examples(&settings, path, &read_text_file(path)?, &workspace, &|request| {
            engine.assess_request(request)
        })?;
        shown += &text::failed_examples(path, &own);
        report.merge_results(own);
    }
    let reached = report.spoken.iter().filter(|count| **count > 0).count();
    let percent = (reached * 100).checked_div(report.spoken.len()).unwrap_or(100);
    shown += &text::format_coverage(&settings, &report, percent);
    print_output(&shown)?;
    let failed = report.failed_results().next().is_some();
    let uncovered = typed.coverage.is_some_and(|min_percent| percent < usize::from(min_percent));
    Ok(if failed || uncovered { exit::NEGATIVE_RESULT } else { exit::SUCCESS })
}
