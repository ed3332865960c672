//! `stockade policy check`, `table` and `groups`: checks configurations, prints decision matrices,
//! and lists the shipped groups of hosts.

use serde_json::json;
use stockade_policy::load::load_settings;
use stockade_policy::{BUILT_IN_NOTICE, HostGroup, host_groups, table};

use super::{layer_text, locate_policy_sources, resolve_workspace};
use crate::command::{CommandResult, print_each, print_output, print_remark, report_negative};
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
                print_output(&text::format_files(&settings))
            }
            Err(error) => report_negative(&error.into()),
        };
    }
    let mut code = exit::SUCCESS;
    for path in &typed.files {
        let text = layer_text(typed.layer, path)?;
        code = code.max(match stockade_policy::load::load_with(&sources, vec![text]) {
            Ok(settings) => print_output(&text::format_file(path, &settings))?,
            Err(error) => report_negative(&error.into())?,
        });
    }
    Ok(code)
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
            let what = format!("there is no profile `{}`", render::escape_text(name));
            return Err(CliError::new(what).with_hint(format!("the profiles are {known}")));
        }
    };
    let tables: Vec<String> = profile_names.iter().map(|name| table::format_table(&settings, name)).collect();
    // The rules decide in addition to the matrix.
    let has_rules = settings.rules().next().is_some();
    let rules = if has_rules { format!("\n{}", text::format_rules(&settings)) } else { String::new() };
    print_output(&(tables.join("\n") + &rules))
}

/// Lists the shipped groups of hosts.
///
/// # Errors
/// [`CliError`] if standard output cannot be written.
pub fn list_host_groups(typed: &PolicyGroupsArgs) -> CommandResult {
    if !typed.json {
        return print_output(&text::format_groups(host_groups(), crate::stdout_style()));
    }
    let group_json = |group: &HostGroup| {
        let (name, summary) = (&group.name, &group.summary);
        let (parts, hosts, source) = (&group.groups, &group.hosts, &group.source);
        json!({ "name": name, "summary": summary, "groups": parts, "hosts": hosts, "source": source })
    };
    print_each(host_groups(), true, (group_json, |_| String::new()), "")
}
