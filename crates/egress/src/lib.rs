//! The door: the only way out of a sandbox.
//!
//! It answers names with addresses of its own, dials what was agreed to at
//! addresses it has checked, relays, counts and records. Must not know how a
//! sandbox is built, nor who decides: both stand behind traits of the seam.

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
