//! Common parts of `run` and `check`: the configuration in force and the policy engine that applies
//! it.

use std::path::Path;
use std::sync::Arc;

use stockade_engine::adapters::RulePolicyEngine;
use stockade_model::{RequestId, RunRequest};
use stockade_policy::PolicySettings;
use stockade_policy::load::{ConfigSources, load_settings};

use super::read_variable;
use crate::failure::CliError;
use crate::locations;
use crate::resolved_args::{self, ResolvedArgs};

/// Configuration in force for a workspace.
pub struct WorkspaceConfig {
    /// All layers, merged.
    pub settings: Arc<PolicySettings>,
    /// Locations of the configuration and of the state, which may not exist yet.
    pub sources: ConfigSources,
}

/// Reads the configuration of the system, the user and the workspace.
///
/// # Errors
/// [`CliError`] if one cannot be used: nothing runs then.
pub fn load_config(workspace: &Path) -> Result<WorkspaceConfig, CliError> {
    let sources = locations::locate_sources(Some(workspace), &read_variable)?;
    let settings = load_settings(&sources)?;
    Ok(WorkspaceConfig { settings: Arc::new(settings), sources })
}

impl WorkspaceConfig {
    /// Removes the mounts, for commands of a persistent sandbox, which has its own.
    #[must_use]
    pub fn without_mounts(self) -> Self {
        Self { settings: Arc::new(Arc::unwrap_or_clone(self.settings).without_mounts()), ..self }
    }

    /// Builds the request from the resolved arguments and the configuration.
    pub fn build_request(&self, request_args: &ResolvedArgs, id: RequestId) -> RunRequest {
        request_args.build_request(id, resolved_args::collect_environment(std::env::vars_os()), &self.settings)
    }

    /// Checks that the named profile exists. A wrong name is an error of the command line, not a
    /// refusal.
    ///
    /// # Errors
    /// Lists the names of the profiles.
    pub fn require_profile(&self, named: Option<&str>) -> Result<(), CliError> {
        Ok(named.map_or(Ok(()), |name| stockade_policy::require_profile(&self.settings, name))?)
    }

    /// Returns the policy engine for a user's own command line.
    pub fn policy_engine(&self) -> RulePolicyEngine {
        RulePolicyEngine::new(Arc::clone(&self.settings), true)
    }
}
