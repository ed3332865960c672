//! Network namespace that all commands of a sandbox share. Each command has an egress proxy with
//! its own powers and its own audit log. The commands share the addresses that names were given, so
//! that a name has the same address for all of them. Each of the proxies can therefore answer any
//! DNS request.
//!
//! This module must not know any other part of a sandbox.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use stockade_egress::{EgressNamespace, HostNameTable};
use stockade_launch::NetworkSockets;

use super::networks::NamespaceNetwork;
use super::{LostDatagrams, RunEgress, RunEgressOptions};

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

    /// Returns an egress in this network, for one command.
    pub(crate) fn open_egress(&self, egress_options: RunEgressOptions) -> std::io::Result<RunEgress> {
        let dns_udp_socket = self.dns_udp_socket.try_clone()?;
        Ok(RunEgress::new(Arc::clone(&self.namespace), Some(dns_udp_socket), egress_options)
            .with_names(Arc::clone(&self.names)))
    }

    /// Returns a reporter of datagrams without a receiver. The kernel does not report the sender,
    /// so any one of the running commands reports each datagram.
    pub(crate) fn lost_datagrams(&self) -> std::io::Result<LostDatagrams> {
        let raw_sockets = self.raw_sockets.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>()?;
        Ok(LostDatagrams::new(raw_sockets, Arc::clone(&self.names)))
    }
}
