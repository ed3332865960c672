//! Warm sessions: each has a private directory, in which its supervisor stores its description and
//! listens. A session is open as long as the supervisor runs. A directory without a supervisor
//! means that the supervisor was killed.
//!
//! This module does not know on purpose the commands of a session, its protocol, or the time.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stockade_model::{RawText, SessionId};

use crate::database_path::{StoreFileError, private_directory};
use crate::live_directories::{self, LiveDirectory, SupervisedDirectory};

const DESCRIPTION_FILE: &str = "session.json";

/// Description of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionDescription {
    /// Identifier of the session.
    pub id: SessionId,
    /// The directory that its commands may write.
    pub workspace: RawText,
    /// The profile's name, if one was given.
    pub profile: Option<String>,
    /// Start time, in milliseconds since the epoch.
    pub started_ms: u64,
    /// Process id of its supervisor; may belong to another process after the session.
    pub supervisor: u32,
}

/// All sessions of a user.
#[derive(Clone, Debug)]
pub struct SessionStore {
    root: PathBuf,
}

/// Session of a user. It is open as long as its directory is supervised.
pub type WarmSession = LiveDirectory<SessionId>;

/// Session that this process supervises. Its directory is removed at its end; a directory that was
/// not removed belongs to a killed supervisor.
pub type SupervisedSession = SupervisedDirectory<SessionId>;

/// Error if a session cannot be begun.
#[derive(Debug, thiserror::Error)]
pub enum SessionBeginError {
    /// The session exists.
    #[error("a session `{0}` already exists\nhint: `stockade session end {0}`, or another --name")]
    Open(SessionId),
    /// The directory is unavailable.
    #[error(transparent)]
    StoreFile(#[from] StoreFileError),
}

impl SessionStore {
    /// Returns the sessions in this directory, which is created for the first session.
    pub fn at_root(root: PathBuf) -> Self {
        Self { root }
    }

    /// Begins a session. Removes the directories of killed ones.
    ///
    /// # Errors
    /// [`SessionBeginError`] if the name is in use, or its directory cannot be created.
    pub fn begin_session(&self, about: &SessionDescription) -> Result<SupervisedSession, SessionBeginError> {
        let path = private_directory(&self.root.join(about.id.as_str()))?;
        for lost in self.list_sessions()?.into_iter().filter(|session| !session.is_supervised()) {
            lost.remove()?;
        }
        if path.exists() {
            return Err(SessionBeginError::Open(about.id.clone()));
        }
        Ok(live_directories::create_supervised(about.id.clone(), path, |directory| {
            live_directories::write_json(directory, DESCRIPTION_FILE, about)
        })?)
    }

    /// Returns all known sessions, in no order.
    ///
    /// # Errors
    /// [`StoreFileError`] if the directory cannot be read.
    pub fn list_sessions(&self) -> Result<Vec<WarmSession>, StoreFileError> {
        live_directories::list_directories(&self.root)
    }

    /// Returns the session with this id.
    ///
    /// # Errors
    /// [`StoreFileError`] if the directory cannot be read.
    pub fn find_session(&self, id: &SessionId) -> Result<Option<WarmSession>, StoreFileError> {
        Ok(self.list_sessions()?.into_iter().find(|session| session.id() == id))
    }
}

impl WarmSession {
    /// Returns its description.
    pub fn read_description(&self) -> Option<SessionDescription> {
        live_directories::read_json(self.path(), DESCRIPTION_FILE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(name: &str) -> SessionDescription {
        SessionDescription {
            id: SessionId::try_from(format!("ses_{name}")).unwrap(),
            workspace: "/w".into(),
            profile: None,
            started_ms: 7,
            supervisor: 1,
        }
    }

    #[test]
    fn a_session_is_open_while_a_supervisor_lives_and_forgotten_when_closed() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = SessionStore::at_root(dir.path().join("sessions"));
        assert_eq!(sessions.list_sessions().unwrap(), []);
        let watched = sessions.begin_session(&about("one")).unwrap();
        let found = sessions.find_session(&about("one").id).unwrap().unwrap();
        assert_eq!((found.is_supervised(), found.read_description()), (true, Some(about("one"))));
        assert!(matches!(sessions.begin_session(&about("one")), Err(SessionBeginError::Open(_))));
        let other = sessions.begin_session(&about("other")).unwrap();
        watched.remove().unwrap();
        assert_eq!(sessions.list_sessions().unwrap(), [(*other).clone()]);
    }

    #[test]
    fn a_killed_run_is_reported_until_the_next_starts() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = SessionStore::at_root(dir.path().join("sessions"));
        drop(sessions.begin_session(&about("killed")).unwrap());
        let killed = sessions.find_session(&about("killed").id).unwrap().unwrap();
        assert!(!killed.is_supervised());
        let second_session = sessions.begin_session(&about("killed")).unwrap();
        assert_eq!(sessions.list_sessions().unwrap().len(), 1);
        assert!(second_session.is_supervised());
    }
}
