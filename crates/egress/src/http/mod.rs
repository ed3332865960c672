//! HTTP/1 as the door reads it: strictly, within bounds, every request on its
//! own.

pub(crate) mod admit;
pub(crate) mod direct;
mod effects;
pub(crate) mod exchange;
pub(crate) mod head;
pub(crate) mod stream;
