//! `stockade policy check`, `table` and `groups`: checks configurations, prints decision matrices,
//! and lists the shipped groups of hosts.

use serde_json::json;
use stockade_policy::load::load_settings;
use stockade_policy::{BUILT_IN_NOTICE, PolicySettings, host_groups, table};

use super::{layer_from_arg, layer_text, locate_policy_sources, resolve_workspace};
use crate::command::{CommandResult, print_output, print_remark};
use crate::exit;
use crate::failure::CliError;
use crate::policy_args::{PolicyCheckArgs, PolicyGroupsArgs, PolicyTableArgs};
use crate::render::{self, policy as text};

/// Checks the configuration in force, or files one by one.
///
/// # Errors
/// [`CliError`] if a location is not known. An invalid configuration is a negative result.
pub fn check_configuration(typed: &PolicyCheckArgs) -> CommandResult {
    let workspace = resolve_workspace(typed.workspace.as_deref())?;
    let sources = locate_policy_sources(&workspace)?;
    if typed.files.is_empty() {
        return match load_settings(&sources) {
            Ok(settings) => {
                if settings.is_built_in() {
                    print_remark(&format!("{BUILT_IN_NOTICE}\n"));
                }
                print_output(&text::format_files(&settings))?;
                Ok(exit::SUCCESS)
            }
            Err(error) => report_negative(CliError::from(error)),
        };
    }
    let mut sound = true;
    for path in &typed.files {
        let text = layer_text(layer_from_arg(typed.layer), path)?;
        let checked = stockade_policy::load::load_with(&sources, vec![text]);
        match checked {
            Ok(settings) => print_output(&text::format_file(path, &settings))?,
            Err(error) => {
                sound = false;
                crate::print_error(&CliError::from(error));
            }
        }
    }
    Ok(if sound { exit::SUCCESS } else { exit::NEGATIVE_RESULT })
}

fn report_negative(failure: CliError) -> CommandResult {
    crate::print_error(&failure);
    Ok(exit::NEGATIVE_RESULT)
}

/// Prints decision matrices.
///
/// # Errors
/// [`CliError`] if the configuration cannot be used, or if there is no such profile.
pub fn print_decision_tables(typed: &PolicyTableArgs) -> CommandResult {
    let settings = super::load_settings(&resolve_workspace(typed.workspace.as_deref())?, None)?;
    let names: Vec<&str> = settings.profiles().map(|(name, _)| name).collect();
    let profile_names: Vec<&str> = match typed.profile.as_deref() {
        None => names,
        Some(name) if names.contains(&name) => vec![name],
        Some(name) => {
            let known = names.join(", ");
            return Err(CliError::new(format!(
                "there is no profile `{}`",
                stockade_model::RawText::from(name).to_escaped()
            ))
            .with_hint(format!("the profiles are {known}")));
        }
    };
    let tables: Vec<String> = profile_names.iter().map(|name| table::format_table(&settings, name)).collect();
    print_output(&(tables.join("\n") + &describe_rules(&settings)))?;
    Ok(exit::SUCCESS)
}

/// Returns the rules, which decide in addition to the matrix.
fn describe_rules(settings: &PolicySettings) -> String {
    if settings.rules().next().is_none() {
        return String::new();
    }
    format!("\n{}", render::policy::format_rules(settings))
}

/// Lists the shipped groups of hosts.
///
/// # Errors
/// [`CliError`] if standard output cannot be written.
pub fn list_host_groups(typed: &PolicyGroupsArgs) -> CommandResult {
    if !typed.json {
        print_output(&text::format_groups(host_groups(), crate::stdout_style()))?;
        return Ok(exit::SUCCESS);
    }
    for group in host_groups() {
        let (name, summary) = (&group.name, &group.summary);
        let (parts, hosts, source) = (&group.groups, &group.hosts, &group.source);
        let value = json!({ "name": name, "summary": summary, "groups": parts, "hosts": hosts, "source": source });
        print_output(&render::json::to_json_line(&value)?)?;
    }
    Ok(exit::SUCCESS)
}
