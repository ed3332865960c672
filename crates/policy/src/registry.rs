//! The policies of sessions: one configuration for all, narrowed by the text of a session.
//!
//! Must not know the creators of sessions. Contains merged settings only; a text that cannot be used
//! registers no session.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use stockade_model::SessionId;

use crate::error::ConfigError;
use crate::settings::PolicySettings;

/// Most sessions with a policy of their own.
pub const MAX_SESSIONS: usize = 10_000;

/// Reason why a session has no policy of its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The text contains an invalid or a widening value.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There are too many sessions.
    #[error("{MAX_SESSIONS} sessions have a policy of their own\nhint: end some")]
    Full,
}

/// Settings by session.
#[derive(Clone, Debug)]
pub struct PolicyRegistry {
    base: Arc<PolicySettings>,
    sessions: BTreeMap<SessionId, Arc<PolicySettings>>,
    notice_sent: bool,
}

impl PolicyRegistry {
    /// Returns a registry with one policy for every session.
    pub fn new(base: Arc<PolicySettings>) -> Self {
        Self { base, sessions: BTreeMap::new(), notice_sent: false }
    }

    /// Returns the settings that apply to a session.
    pub fn settings_for(&self, session: Option<&SessionId>) -> &Arc<PolicySettings> {
        session.and_then(|session| self.sessions.get(session)).unwrap_or(&self.base)
    }

    /// Gives a session a text of its own, which may only tighten. The text replaces an earlier one.
    ///
    /// # Errors
    /// See [`RegisterError`]; then nothing is changed.
    pub fn register_session(&mut self, session: &SessionId, source: &str) -> Result<(), RegisterError> {
        if !self.sessions.contains_key(session) && self.sessions.len() >= MAX_SESSIONS {
            return Err(RegisterError::Full);
        }
        let name = format!("session {session}");
        let settings = self.base.with_session(Path::new(&name), source)?;
        self.sessions.insert(session.clone(), Arc::new(settings));
        Ok(())
    }

    /// Removes a session's own policy.
    pub fn remove_session(&mut self, session: &SessionId) {
        self.sessions.remove(session);
    }

    /// Returns the notice about the built-in policy: once, if nothing is configured, and `None` after that.
    pub fn take_notice(&mut self) -> Option<&'static str> {
        (self.base.is_built_in() && !std::mem::replace(&mut self.notice_sent, true)).then_some(BUILT_IN_NOTICE)
    }
}

/// Notice that is shown once if no policy is configured.
pub const BUILT_IN_NOTICE: &str =
    "no policy is configured: the built-in policy applies (`stockade policy table` shows it)";
