//! Egress proxy: the only network access of a sandbox.
//!
//! The proxy resolves names to addresses of its own, dials approved targets at addresses that it
//! has checked, relays, counts and records. It must not depend on the construction of a sandbox,
//! nor on the code that decides: traits of `ports` separate both.

#![forbid(unsafe_code)]

mod accept;
mod arrivals;
mod dial;
mod dns;
mod drain_guard;
mod egress_proxy;
mod events;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hello;
mod http;
mod interception;
mod limits;
mod names;
mod ports;
mod proxy;
mod published;
mod relay;
mod session;
mod sniff;
mod system;
mod tls;
mod tunnel;
mod upstream;

pub use arrivals::AnnouncedConnection;
pub use dial::DialError;
pub use egress_proxy::{ConnectOrder, EgressProxy, EgressProxyError, PendingDial};
pub use interception::{InterceptionError, PreparedInterception, TRUST_VARIABLES, TrustRoots};
pub use limits::EgressLimitReached;
pub use names::{
    AddressPair, HTTP_PROXY_PORT, HostNameTable, NAMES_MAX, PROXY_ADDRESS_V4, PROXY_ADDRESS_V6, SOCKS_PORT, is_ours,
};
pub use ports::{
    DnsSockets, EgressCaller, EgressDecision, EgressDestination, EgressEvent, EgressNamespace, EgressPermit,
    EgressPolicy, EgressProxySetup, EgressRequest, NameLookupError, NameResolver, ProxyService, TunnelConnector,
};
pub use system::SystemResolver;
pub use tunnel::connected_pair;
