//! Looks names up as the host does: its files, its name servers.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};

use stockade_model::HostName;

use crate::seam::{LookupError, Resolve};

/// The resolver of the host's C library (`getaddrinfo`), which reads `/etc/hosts`
/// and whatever else the host is configured for.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: &HostName) -> Result<Vec<IpAddr>, LookupError> {
        match (name.as_str(), 0).to_socket_addrs() {
            Ok(found) => Ok(found.map(|address| address.ip()).collect()),
            Err(error) => Err(kind_of(&error)),
        }
    }
}

/// The library's words are all that the standard library passes on.
fn kind_of(error: &io::Error) -> LookupError {
    let text = error.to_string();
    let none = ["Name or service not known", "No address associated with hostname", "nodename nor servname"];
    if none.iter().any(|words| text.contains(words)) { LookupError::NoSuchName } else { LookupError::Failed(text) }
}
