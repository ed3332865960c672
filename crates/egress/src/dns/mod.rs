//! Name server in the sandbox: it gives every name an address of Stockade's own.

pub(crate) mod message;
mod server;

pub(crate) use server::NameServer;
