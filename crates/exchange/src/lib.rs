//! One HTTP exchange with an endpoint that the person's own configuration names: its
//! name looked up without the C library, its certificate checked, no redirect, no proxy,
//! and everything bounded. What leaves this machine besides what commands do leaves it
//! here.
//!
//! It must not know what is sent, nor why.

#![forbid(unsafe_code)]

mod file;
mod http;
mod names;

pub use file::read;
pub use http::{Authorities, ExchangeError, exchange};
