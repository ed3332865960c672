//! `stockade policy check`, `table` and `groups`: checks configurations, prints decision matrices,
//! and lists the shipped groups of hosts.

use serde_json::json;
use stockade_policy::load::load;
use stockade_policy::{BUILT_IN_NOTICE, Settings, host_groups, table};

use super::{layer, layer_text, sources, workspace};
use crate::command::{Ended, print, remark};
use crate::exit;
use crate::failure::Failure;
use crate::policy_args::{PolicyCheckArgs, PolicyGroupsArgs, PolicyTableArgs};
use crate::render::{self, policy as text};

/// Checks the configuration in force, or files one by one.
///
/// # Errors
/// [`Failure`] if a location is not known. An invalid configuration is a negative result.
pub fn check(typed: &PolicyCheckArgs) -> Ended {
    let workspace = workspace(typed.workspace.as_deref())?;
    let sources = sources(&workspace)?;
    if typed.files.is_empty() {
        return match load(&sources) {
            Ok(settings) => {
                if settings.is_built_in() {
                    remark(&format!("{BUILT_IN_NOTICE}\n"));
                }
                print(&text::files(&settings))?;
                Ok(exit::SUCCESS)
            }
            Err(error) => no(Failure::from(error)),
        };
    }
    let mut sound = true;
    for path in &typed.files {
        let text = layer_text(layer(typed.layer), path)?;
        let checked = stockade_policy::load::load_with(&sources, vec![text]);
        match checked {
            Ok(settings) => print(&text::file(path, &settings))?,
            Err(error) => {
                sound = false;
                crate::complain(&Failure::from(error));
            }
        }
    }
    Ok(if sound { exit::SUCCESS } else { exit::NEGATIVE })
}

fn no(failure: Failure) -> Ended {
    crate::complain(&failure);
    Ok(exit::NEGATIVE)
}

/// Prints decision matrices.
///
/// # Errors
/// [`Failure`] if the configuration cannot be used, or if there is no such profile.
pub fn table(typed: &PolicyTableArgs) -> Ended {
    let settings = super::settings(&workspace(typed.workspace.as_deref())?, None)?;
    let names: Vec<&str> = settings.profiles().map(|(name, _)| name).collect();
    let wanted: Vec<&str> = match typed.profile.as_deref() {
        None => names,
        Some(name) if names.contains(&name) => vec![name],
        Some(name) => {
            let known = names.join(", ");
            return Err(Failure::new(format!(
                "there is no profile `{}`",
                stockade_model::RawText::from(name).escaped()
            ))
            .hint(format!("the profiles are {known}")));
        }
    };
    let tables: Vec<String> = wanted.iter().map(|name| table::table(&settings, name)).collect();
    print(&(tables.join("\n") + &rules(&settings)))?;
    Ok(exit::SUCCESS)
}

/// Returns the rules, which decide in addition to the matrix.
fn rules(settings: &Settings) -> String {
    if settings.rules().next().is_none() {
        return String::new();
    }
    format!("\n{}", render::policy::rules(settings))
}

/// Lists the shipped groups of hosts.
///
/// # Errors
/// [`Failure`] if standard output cannot be written.
pub fn groups(typed: &PolicyGroupsArgs) -> Ended {
    if !typed.json {
        print(&text::groups(host_groups(), crate::stdout_style()))?;
        return Ok(exit::SUCCESS);
    }
    for group in host_groups() {
        let (name, summary) = (&group.name, &group.summary);
        let (parts, hosts, source) = (&group.groups, &group.hosts, &group.source);
        let value = json!({ "name": name, "summary": summary, "groups": parts, "hosts": hosts, "source": source });
        print(&render::json::line(&value)?)?;
    }
    Ok(exit::SUCCESS)
}
