//! One HTTP exchange with an endpoint that the user's own configuration names. Resolves the name
//! without the C library, checks the certificate, follows no redirect, uses no proxy, and limits
//! every size. All requests of Stockade itself to other machines use this crate.
//!
//! This crate must not know the content of a request, nor its reason.

#![forbid(unsafe_code)]

mod file;
mod http;
mod names;

pub use file::read_bounded_file;
pub use http::{CertificateAuthorities, ExchangeError, send_json};
