//! What `run` and `check` have in common: the configuration in force and the
//! judge that applies it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stockade_model::{Assessment, Command, Decision, Request, RequestId};
use stockade_policy::load::{Sources, load as load_settings};
use stockade_policy::{Settings, decide};
use stockade_shell::Context;

use super::variable;
use crate::failure::Failure;
use crate::meaning::{self, Meant};
use crate::places;

/// The configuration in force for a workspace.
pub struct Setting {
    /// All layers, merged.
    pub settings: Arc<Settings>,
    /// The state directory, not yet made.
    pub state: PathBuf,
}

/// Reads the configuration: the system's, the person's, the workspace's.
///
/// # Errors
/// When there is one that cannot be used: nothing runs then.
pub fn load(workspace: &Path) -> Result<Setting, Failure> {
    let home = places::home(&variable)?;
    let home = home.canonicalize().unwrap_or(home);
    let base = |name| variable(name).map(PathBuf::from);
    let (config, state) = (base("XDG_CONFIG_HOME"), base("XDG_STATE_HOME"));
    let sources = Sources::standard(&home, config.as_deref(), state.as_deref(), Some(workspace));
    let settings = load_settings(&sources)?;
    Ok(Setting { settings: Arc::new(settings), state: sources.state_directory })
}

impl Setting {
    /// The request that was meant, with what is configured put in.
    pub fn request(&self, meant: &Meant, id: RequestId) -> Request {
        meant.request(id, meaning::environment(std::env::vars_os()), &self.settings)
    }

    /// What the request's text shows, and what the rules say of it.
    pub fn judge(&self, request: &Request) -> (Assessment, Decision) {
        let context = Context {
            cwd: request.cwd.clone(),
            home: self.settings.home().into(),
            workspace: request.workspace.clone(),
            neutralised: false,
        };
        let assessment = match &request.command {
            Command::Script(script) => stockade_shell::assess_script(script.as_bytes(), &context),
            Command::Argv(words) => stockade_shell::assess_argv(words, &context),
        };
        let decision = decide(&self.settings, request, &assessment, true);
        (assessment, decision)
    }
}
