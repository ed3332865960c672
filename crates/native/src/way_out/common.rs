//! Network namespace that all commands of a sandbox share. Each command has an egress proxy with
//! its own powers and its own audit log. The commands share the addresses that names were given, so
//! that a name has the same address for all of them. Each of the proxies can therefore answer any
//! DNS request.
//!
//! This module must not know any other part of a sandbox.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use stockade_egress::{Names, Namespace};

use super::places::Inside;
use super::{LostDatagrams, Terms, WayOut};
use crate::launch::NetworkEnds;

/// Shared network namespace of a sandbox.
pub(crate) struct CommonNetwork {
    names: Arc<Names>,
    namespace: Arc<dyn Namespace>,
    asked: OwnedFd,
    /// Raw sockets that receive messages about datagrams without a receiver.
    heard: Vec<OwnedFd>,
}

impl CommonNetwork {
    pub(crate) fn of(ends: NetworkEnds) -> Self {
        let has_ipv6 = ends.has_ipv6();
        Self {
            names: Arc::default(),
            namespace: Arc::new(Inside::new(ends.sockets, has_ipv6)),
            asked: ends.names,
            heard: ends.unreachable,
        }
    }

    /// Returns an egress in this network, for one command.
    pub(crate) fn way(&self, terms: Terms) -> std::io::Result<WayOut> {
        let asked = self.asked.try_clone()?;
        Ok(WayOut::new(Arc::clone(&self.namespace), Some(asked), terms).naming(Arc::clone(&self.names)))
    }

    /// Returns a reporter of datagrams without a receiver. The kernel does not report the sender,
    /// so any one of the running commands reports each datagram.
    pub(crate) fn lost(&self) -> std::io::Result<LostDatagrams> {
        let heard = self.heard.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>()?;
        Ok(LostDatagrams::new(heard, Arc::clone(&self.names)))
    }
}
