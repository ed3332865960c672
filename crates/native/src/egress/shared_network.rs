//! Network namespace that all commands of a sandbox share. Each command has an egress proxy with
//! its own powers and its own audit log. The commands share the addresses that names were given, so
//! that a name has the same address for all of them. Each of the proxies can therefore answer any
//! DNS request.
//!
//! This module must not know any other part of a sandbox.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use stockade_backend_api::StartError;
use stockade_egress::{EgressNamespace, HostNameTable};
use stockade_launch::NetworkSockets;

use super::networks::NamespaceNetwork;
use super::{LostDatagrams, RunEgress, RunEgressOptions};

/// The egress of a command, and the reporter of lost datagrams if its network has one.
pub(crate) type CommandEgress = (Arc<RunEgress>, Option<LostDatagrams>);

/// Shared network namespace of a sandbox.
pub(crate) struct CommonNetwork {
    names: Arc<HostNameTable>,
    namespace: Arc<dyn EgressNamespace>,
    dns_udp_socket: OwnedFd,
    /// Raw sockets that receive messages about datagrams without a receiver.
    raw_sockets: Vec<OwnedFd>,
}

impl CommonNetwork {
    pub(crate) fn from_ends(ends: NetworkSockets) -> Self {
        let has_ipv6 = ends.has_ipv6();
        Self {
            names: Arc::default(),
            namespace: Arc::new(NamespaceNetwork::new(ends.sockets, has_ipv6)),
            dns_udp_socket: ends.names,
            raw_sockets: ends.unreachable,
        }
    }

    /// Returns an egress in this network for one command, and a reporter of datagrams without a
    /// receiver. The kernel does not report the sender, so any one of the running commands reports
    /// each datagram.
    pub(crate) fn open_egress(&self, egress_options: RunEgressOptions) -> Result<CommandEgress, StartError> {
        let duplicate = |socket: &OwnedFd| {
            let what = |error| format!("cannot make a descriptor: {error}");
            socket.try_clone().map_err(|error| StartError { what: what(error), hint: None })
        };
        let (names, namespace) = (Arc::clone(&self.names), Arc::clone(&self.namespace));
        let lost = LostDatagrams::new(
            self.raw_sockets.iter().map(duplicate).collect::<Result<_, _>>()?,
            Arc::clone(&self.names),
        );
        let run_egress = RunEgress::new(names, namespace, Some(duplicate(&self.dns_udp_socket)?), egress_options);
        Ok((Arc::new(run_egress), Some(lost)))
    }
}
