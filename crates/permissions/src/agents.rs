//! Sockets of ssh agents, as far as the broker must recognize them.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Path at which a run finds its agent. No file exists there: the broker knows the path.
pub const AGENT_PATH: &str = "/run/stockade/ssh-agent";

/// Agent sockets that the broker knows.
#[derive(Clone, Debug, Default)]
pub struct AgentSockets {
    /// The socket of the run's own agent.
    pub own: Option<Arc<OwnedFd>>,
    /// The path of the user's agent.
    persons: Option<PathBuf>,
    /// Device and inode of that socket at the start.
    persons_object: Option<(u64, u64)>,
}

impl AgentSockets {
    /// Returns the sockets: the path of the user's agent, and the socket of the run's own.
    pub fn new(persons: Option<PathBuf>, own: Option<Arc<OwnedFd>>) -> Self {
        let found = persons.as_deref().and_then(|path| path.metadata().ok());
        Self { own, persons_object: found.map(|found| (found.dev(), found.ino())), persons }
    }

    /// Returns whether a socket is that of the user's agent, under any name.
    pub fn is_persons(&self, path: &Path, object: (u64, u64)) -> bool {
        self.persons_object == Some(object) || self.persons.as_deref() == Some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_of_the_person_is_known_under_any_name() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("agent"), directory.path().join("link"));
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let found = path.metadata().unwrap();
        let object = (found.dev(), found.ino());
        let sockets = AgentSockets::new(Some(link.clone()), None);
        assert!(sockets.is_persons(&path, object) && sockets.is_persons(&link, (0, 0)));
        assert!(!sockets.is_persons(&path, (0, 0)));
        assert!(!AgentSockets::default().is_persons(&path, object));
    }
}
