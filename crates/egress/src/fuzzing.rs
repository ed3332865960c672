//! Parsers of hostile bytes, for the fuzz targets in `fuzz/`.

pub use hickory_resolver::proto::op::{Message, ResponseCode};
pub use rustls::server::Acceptor;

pub use crate::dns::message::{DnsQuestion, pointer_to};
pub use crate::hello::{ClientHello, FirstBytesKind, parse_first_bytes};
pub use crate::http::direct::check_target;
pub use crate::http::head::{RequestHead, ResponseHead, check_trailer, end_of_head, field_values};
pub use crate::interception::{PeerMasks, StreamKind, StreamMask};
pub use crate::proxy::socks::parse_request;
