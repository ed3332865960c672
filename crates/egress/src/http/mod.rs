//! HTTP/1 in the egress proxy: parsed strictly, within limits, each request separately.

pub(crate) mod admit;
pub(crate) mod direct;
mod effects;
pub(crate) mod exchange;
pub(crate) mod head;
pub(crate) mod stream;
