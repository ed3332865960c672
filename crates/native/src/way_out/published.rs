//! Ports that a grant publishes. The ports are bound on the host's loopback before the run starts,
//! and forwarded into the run as long as it lasts.

use std::net::{Ipv4Addr, TcpListener};

use stockade_egress::EgressProxy;
use stockade_engine::StartError;
use stockade_model::{AttemptPlan, Grant};

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
            listener.map(|listener| (listener, port)).map_err(|error| StartError {
                what: format!("port {port} cannot be published on 127.0.0.1: {error}"),
                hint: Some(format!("end what listens there, or leave `listen {port}` out")),
            })
        };
        ports.map(listen).collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether no port is published.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn lead_in(self, door: &EgressProxy) {
        for (listener, port) in self.0 {
            door.publish_port(listener, port);
        }
    }
}
