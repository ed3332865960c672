//! The name server inside: every name has an address of ours.

pub(crate) mod message;
mod server;

pub(crate) use server::NameServer;
