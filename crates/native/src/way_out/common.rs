//! The network that all commands of a sandbox have in common. Each has a way out of
//! its own, with its own powers and its own record; they share the addresses that
//! names were given, so that a name means the same to all of them, and whichever of
//! their doors is asked for a name answers for all.
//!
//! It must not know what a sandbox is besides.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use stockade_egress::{Names, Namespace};

use super::places::Inside;
use super::{LostDatagrams, Terms, WayOut};
use crate::launch::NetworkEnds;

/// See the module.
pub(crate) struct CommonNetwork {
    names: Arc<Names>,
    namespace: Arc<dyn Namespace>,
    asked: OwnedFd,
    /// Raw sockets that hear of datagrams which reached nobody.
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

    /// A way out of it, for one command.
    pub(crate) fn way(&self, terms: Terms) -> std::io::Result<WayOut> {
        let asked = self.asked.try_clone()?;
        Ok(WayOut::new(Arc::clone(&self.namespace), Some(asked), terms).naming(Arc::clone(&self.names)))
    }

    /// Tells of datagrams that reached nobody. The kernel does not say whose they
    /// were: one of the commands that run hears of each.
    pub(crate) fn lost(&self) -> std::io::Result<LostDatagrams> {
        let heard = self.heard.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>()?;
        Ok(LostDatagrams::new(heard, Arc::clone(&self.names)))
    }
}
