//! What `run` and `check` have in common: the configuration in force and the
//! judge that applies it.

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

/// The configuration in force for a workspace.
pub struct Setting {
    /// All layers, merged.
    pub settings: Arc<Settings>,
    /// Where it was read, and where state is, which may not be made yet.
    pub sources: Sources,
}

/// Reads the configuration: the system's, the person's, the workspace's.
///
/// # Errors
/// When there is one that cannot be used: nothing runs then.
pub fn load(workspace: &Path) -> Result<Setting, Failure> {
    let sources = places::sources(Some(workspace), &variable)?;
    let settings = load_settings(&sources)?;
    Ok(Setting { settings: Arc::new(settings), sources })
}

impl Setting {
    /// For commands of a persistent sandbox, which has its own mounts.
    #[must_use]
    pub fn without_mounts(self) -> Self {
        Self { settings: Arc::new(Arc::unwrap_or_clone(self.settings).without_mounts()), ..self }
    }

    /// The request that was meant, with what is configured put in.
    pub fn request(&self, meant: &Meant, id: RequestId) -> Request {
        meant.request(id, meaning::environment(std::env::vars_os()), &self.settings)
    }

    /// Fails where the named profile does not exist: that is a mistake of the command
    /// line, and no refusal.
    ///
    /// # Errors
    /// The names that there are.
    pub fn require_profile(&self, named: Option<&str>) -> Result<(), Failure> {
        Ok(named.map_or(Ok(()), |name| stockade_policy::require_profile(&self.settings, name))?)
    }

    /// The judge of a person's own command line.
    pub fn judge(&self) -> RuleJudge {
        RuleJudge::new(Arc::clone(&self.settings), true)
    }
}
