//! `stockade policy`: checks, explains, tests, formats, replays, imports, suggests and amends
//! policy. Runs no command.

mod check;
pub mod explain;
mod import;
mod learn;
pub mod remembered_rules;
mod replay;
mod test;
pub mod write;

use std::io::Read;
use std::path::{Path, PathBuf};

use stockade_engine::adapters::user_name;
use stockade_policy::load::{self, ConfigSources};
use stockade_policy::{ConfigLayer, LayerText, PolicySettings, RequestContext};

use super::{CommandResult, now_ms, read_variable};
use crate::failure::{CliError, quote_path};
use crate::locations;
use crate::policy_args::PolicyCommand;

/// Largest file that is read, in bytes: larger than any configuration.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Dispatches to the subcommand.
///
/// # Errors
/// [`CliError`] if a file cannot be read, or if the configuration cannot be used.
pub fn dispatch_policy(typed: PolicyCommand) -> CommandResult {
    match typed {
        PolicyCommand::Check(typed) => check::check_configuration(&typed),
        PolicyCommand::Explain(typed) => explain::explain_policy(typed),
        PolicyCommand::Test(typed) => test::test(&typed),
        PolicyCommand::Fmt(typed) => write::format_files(&typed),
        PolicyCommand::Table(typed) => check::print_decision_tables(&typed),
        PolicyCommand::Groups(typed) => check::list_host_groups(&typed),
        PolicyCommand::Replay(typed) => replay::replay_decisions(&typed),
        PolicyCommand::Import(typed) => import::import_rules(&typed),
        PolicyCommand::Suggest(typed) => learn::suggest_profile(&typed),
        PolicyCommand::Amend(typed) => write::amend_policy(typed),
    }
}

/// Returns the named workspace, or the current directory.
fn resolve_workspace(typed: Option<&Path>) -> Result<PathBuf, CliError> {
    match typed {
        None => locations::current_directory(),
        Some(dir) => locations::real_directory(dir, "the workspace"),
    }
}

fn locate_policy_sources(workspace: &Path) -> Result<ConfigSources, CliError> {
    locations::locate_sources(Some(workspace), &read_variable)
}

/// Loads the configuration in force. The file `instead` replaces the user's own, if it is named.
fn load_settings(workspace: &Path, instead: Option<&Path>) -> Result<PolicySettings, CliError> {
    let sources = locate_policy_sources(workspace)?;
    Ok(match instead {
        None => load::load_settings(&sources)?,
        Some(path) => load::load_with(&sources, vec![layer_text(ConfigLayer::User, path)?])?,
    })
}

fn layer_text(layer: ConfigLayer, path: &Path) -> Result<LayerText, CliError> {
    Ok(LayerText { layer, path: path.to_owned(), source: read_text_file(path)? })
}

/// Reads a whole text file; `-` is standard input.
fn read_text_file(path: &Path) -> Result<String, CliError> {
    let wrong = |e: std::io::Error| CliError::new(format!("cannot read {}: {e}", quote_path(path)));
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().lock().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(wrong)?;
    } else {
        let file = std::fs::File::open(path).map_err(wrong)?;
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(wrong)?;
    }
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(CliError::new(format!("{} is larger than 4 MiB", quote_path(path))));
    }
    String::from_utf8(bytes).map_err(|_| CliError::new(format!("{} is not UTF-8", quote_path(path))))
}

/// Returns the circumstances of a request that a user makes now.
fn build_circumstances(tool: Option<&str>) -> RequestContext {
    RequestContext { user: user_name(), tool: tool.map(str::to_owned), time_ms: Some(now_ms()), keeps_changes: None }
}
