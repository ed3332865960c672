//! Egress proxy: the only network access of a sandbox.
//!
//! The proxy resolves names to addresses of its own, dials approved targets at addresses that it
//! has checked, relays, counts and records. It must not depend on the construction of a sandbox,
//! nor on the code that decides: traits of `seam` separate both.

#![forbid(unsafe_code)]

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

pub use arrivals::Announced;
pub use dial::{DialFailure, is_own};
pub use door::{Dialling, Door, DoorError, Order};
pub use edge::{Edge, EdgeError, TRUST_VARIABLES, Trust};
pub use led::connected_pair;
pub use limits::Reached;
pub use names::{DOOR_V4, DOOR_V6, HTTP_PROXY_PORT, NAMES_MAX, Names, Pair, SOCKS_PORT, is_ours};
pub use seam::{
    Destination, DnsSockets, DoorEvent, Judge, Judgement, Lead, LookupError, Namespace, Permit, Resolve, Service,
    Setup, Wanted, Who,
};
pub use system::SystemResolver;
