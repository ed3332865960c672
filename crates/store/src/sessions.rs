//! Warm sessions: a private directory each, in which its supervisor says what it
//! is and listens. Open as long as the supervisor lives; what its directory says
//! after that is that it was killed.
//!
//! Absent on purpose: what a session runs, how it is talked to, clocks.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stockade_model::{RawText, SessionId};

use crate::held;
use crate::place::{PlaceError, private_directory, system};

const ABOUT: &str = "session.json";

/// What a session is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Which.
    pub id: SessionId,
    /// The directory that its commands may write.
    pub workspace: RawText,
    /// The profile's name, where one was named.
    pub profile: Option<String>,
    /// When it was begun, in milliseconds since the epoch.
    pub started_ms: u64,
    /// The process that watches over it; may be another's number once it is over.
    pub supervisor: u32,
}

/// All sessions of a user.
#[derive(Clone, Debug)]
pub struct Sessions {
    root: PathBuf,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    id: SessionId,
    path: PathBuf,
}

/// A session that this process watches over. Its directory goes when it is
/// [closed](Self::close); one that is not was killed.
#[derive(Debug)]
pub struct Watched {
    session: Session,
    lock: File,
}

/// Why a session cannot be begun.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// There is one.
    #[error("there is a session `{0}`\nhint: `stockade session end {0}`, or another --name")]
    Open(SessionId),
    /// Its directory cannot be had.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

impl Sessions {
    /// Those in this directory, which is made with the first of them.
    pub fn of(root: PathBuf) -> Self {
        Self { root }
    }

    /// Begins one. What is left of killed ones is forgotten.
    ///
    /// # Errors
    /// When there is one of that name, or its directory cannot be made.
    pub fn begin(&self, about: &About) -> Result<Watched, BeginError> {
        let path = private_directory(&self.root.join(about.id.as_str()))?;
        for lost in self.all()?.into_iter().filter(|session| !session.is_open()) {
            lost.remove()?;
        }
        if path.exists() {
            return Err(BeginError::Open(about.id.clone()));
        }
        let lock = held::begin(&path, |directory| held::write(directory, ABOUT, about))?;
        Ok(Watched { session: Session { id: about.id.clone(), path }, lock })
    }

    /// All that are known, in no order.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn all(&self) -> Result<Vec<Session>, PlaceError> {
        Ok(held::all(&self.root)?.map(|(id, path)| Session { id, path }).collect())
    }

    /// The one with this id.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn find(&self, id: &SessionId) -> Result<Option<Session>, PlaceError> {
        Ok(self.all()?.into_iter().find(|session| session.id == *id))
    }
}

impl Session {
    /// Its id.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it is.
    pub fn about(&self) -> Option<About> {
        held::read(&self.path, ABOUT)
    }

    /// Whether somebody watches over it.
    pub fn is_open(&self) -> bool {
        held::is_held(&self.path)
    }

    /// Forgets it.
    ///
    /// # Errors
    /// When its directory cannot be removed.
    pub fn remove(&self) -> Result<(), PlaceError> {
        fs::remove_dir_all(&self.path).map_err(system("remove", &self.path))
    }
}

impl Watched {
    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Gives up watching without an end of the session: for a process that
    /// another one goes on for.
    pub fn leave(self) {
        drop(self.lock);
    }

    /// Forgets the session: it is over.
    ///
    /// # Errors
    /// When its directory cannot be removed.
    pub fn close(self) -> Result<(), PlaceError> {
        self.session.remove()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(name: &str) -> About {
        About {
            id: SessionId::try_from(format!("ses_{name}")).unwrap(),
            workspace: "/w".into(),
            profile: None,
            started_ms: 7,
            supervisor: 1,
        }
    }

    #[test]
    fn a_session_is_open_while_somebody_watches_over_it_and_forgotten_when_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Sessions::of(dir.path().join("sessions"));
        assert_eq!(sessions.all().unwrap(), []);
        let watched = sessions.begin(&about("one")).unwrap();
        let found = sessions.find(&about("one").id).unwrap().unwrap();
        assert_eq!((found.is_open(), found.about()), (true, Some(about("one"))));
        assert!(matches!(sessions.begin(&about("one")), Err(BeginError::Open(_))));
        let other = sessions.begin(&about("other")).unwrap();
        watched.close().unwrap();
        assert_eq!(sessions.all().unwrap(), [other.session().clone()]);
    }

    #[test]
    fn one_that_was_killed_is_told_of_until_the_next_begins() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Sessions::of(dir.path().join("sessions"));
        sessions.begin(&about("killed")).unwrap().leave();
        let killed = sessions.find(&about("killed").id).unwrap().unwrap();
        assert!(!killed.is_open());
        let again = sessions.begin(&about("killed")).unwrap();
        assert_eq!(sessions.all().unwrap().len(), 1);
        assert!(again.session().is_open());
    }
}
