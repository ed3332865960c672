//! Ports that a grant publishes. The ports are bound on the host's loopback before the run starts,
//! and forwarded into the run as long as it lasts.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use stockade_backend_api::StartError;
use stockade_egress::EgressProxy;
use stockade_model::{AttemptPlan, Grant};

/// First port that every user may bind, unless the host is configured otherwise (ip(7)).
const FIRST_ORDINARY_PORT: u16 = 1024;

/// Listeners on the host's loopback, each with the run's port that it forwards to.
#[derive(Debug, Default)]
pub(crate) struct PublishedPorts(Vec<(TcpListener, u16)>);

impl PublishedPorts {
    /// Binds the ports that the grants of `plan` name.
    ///
    /// # Errors
    /// [`StartError`] if a port is in use, or this user may not bind it.
    pub(crate) fn from_plan(plan: &AttemptPlan) -> Result<Self, StartError> {
        let ports = plan.grants.iter().filter_map(|grant| match grant {
            Grant::Listen(port) => Some(*port),
            _ => None,
        });
        let listen = |port: u16| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
            let listener = listener.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
            listener
                .map(|listener| (listener, port))
                .map_err(|error| StartError { what: unpublished(port, &error), hint: Some(hint(port, &error)) })
        };
        ports.map(listen).collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn publish_ports(self, egress_proxy: &EgressProxy) {
        for (listener, port) in self.0 {
            egress_proxy.publish_port(listener, port);
        }
    }
}

fn is_reserved(port: u16, error: &io::Error) -> bool {
    port < FIRST_ORDINARY_PORT && error.kind() == io::ErrorKind::PermissionDenied
}

fn unpublished(port: u16, error: &io::Error) -> String {
    let reserved = if is_reserved(port, error) { "; ports below 1024 need root" } else { "" };
    format!("port {port} cannot be published on 127.0.0.1: {error}{reserved}")
}

fn hint(port: u16, error: &io::Error) -> String {
    if is_reserved(port, error) {
        return format!("listen on a port from {FIRST_ORDINARY_PORT}");
    }
    format!("end the program that listens there, or leave `listen {port}` out")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_is_no_port_in_use() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(unpublished(443, &denied).ends_with("; ports below 1024 need root"));
        assert_eq!(hint(443, &denied), "listen on a port from 1024");
        let used = io::Error::from(io::ErrorKind::AddrInUse);
        assert_eq!(unpublished(443, &used), format!("port 443 cannot be published on 127.0.0.1: {used}"));
        assert_eq!(hint(443, &used), "end the program that listens there, or leave `listen 443` out");
    }
}
