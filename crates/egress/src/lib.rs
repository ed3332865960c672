//! Egress proxy: the only network access of a sandbox.
//!
//! The proxy resolves names to addresses of its own, dials approved targets at addresses that it
//! has checked, relays, counts and records. It must not depend on the construction of a sandbox,
//! nor on the code that decides: traits of `seam` separate both.

#![forbid(unsafe_code)]

mod accept;
mod arrivals;
mod dial;
mod dns;
mod door;
mod edge;
mod events;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hello;
mod http;
mod led;
mod limits;
mod names;
mod proxy;
mod published;
mod relay;
mod seam;
mod session;
mod sniff;
mod speakers;
mod system;
mod tls;
mod upstream;

pub use arrivals::AnnouncedConnection;
pub use dial::{DialError, is_own};
pub use door::{ConnectOrder, EgressProxy, EgressProxyError, PendingDial};
pub use edge::{InterceptionError, PreparedInterception, TRUST_VARIABLES, TrustRoots};
pub use led::connected_pair;
pub use limits::EgressLimitReached;
pub use names::{
    AddressPair, HTTP_PROXY_PORT, HostNameTable, NAMES_MAX, PROXY_ADDRESS_V4, PROXY_ADDRESS_V6, SOCKS_PORT, is_ours,
};
pub use seam::{
    DnsSockets, EgressCaller, EgressDecision, EgressDestination, EgressEvent, EgressNamespace, EgressPermit,
    EgressPolicy, EgressProxySetup, EgressRequest, NameLookupError, NameResolver, ProxyService, TunnelConnector,
};
pub use system::SystemResolver;
