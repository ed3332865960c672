//! Common parts of `run` and `check`: the configuration in force and the policy engine that applies
//! it.

use std::path::Path;
use std::sync::Arc;

use stockade_engine::real::RuleJudge;
use stockade_model::{Request, RequestId};
use stockade_policy::Settings;
use stockade_policy::load::{Sources, load as load_settings};

use super::variable;
use crate::failure::Failure;
use crate::meaning::{self, Meant};
use crate::places;

/// Configuration in force for a workspace.
pub struct Setting {
    /// All layers, merged.
    pub settings: Arc<Settings>,
    /// Locations of the configuration and of the state, which may not exist yet.
    pub sources: Sources,
}

/// Reads the configuration of the system, the user and the workspace.
///
/// # Errors
/// [`Failure`] if one cannot be used: nothing runs then.
pub fn load(workspace: &Path) -> Result<Setting, Failure> {
    let sources = places::sources(Some(workspace), &variable)?;
    let settings = load_settings(&sources)?;
    Ok(Setting { settings: Arc::new(settings), sources })
}

impl Setting {
    /// Removes the mounts, for commands of a persistent sandbox, which has its own.
    #[must_use]
    pub fn without_mounts(self) -> Self {
        Self { settings: Arc::new(Arc::unwrap_or_clone(self.settings).without_mounts()), ..self }
    }

    /// Builds the request from the resolved arguments and the configuration.
    pub fn request(&self, meant: &Meant, id: RequestId) -> Request {
        meant.request(id, meaning::environment(std::env::vars_os()), &self.settings)
    }

    /// Checks that the named profile exists. A wrong name is an error of the command line, not a
    /// refusal.
    ///
    /// # Errors
    /// Lists the names of the profiles.
    pub fn require_profile(&self, named: Option<&str>) -> Result<(), Failure> {
        Ok(named.map_or(Ok(()), |name| stockade_policy::require_profile(&self.settings, name))?)
    }

    /// Returns the policy engine for a user's own command line.
    pub fn judge(&self) -> RuleJudge {
        RuleJudge::new(Arc::clone(&self.settings), true)
    }
}
