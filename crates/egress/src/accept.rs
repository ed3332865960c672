//! Accepts connections.
//!
//! This module must not depend on the purpose of a connection.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// Prepares a listener for the event loop.
pub(crate) fn async_listener(listener: impl Into<std::net::TcpListener>) -> io::Result<TcpListener> {
    let listener = listener.into();
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Returns the next connection, and the address of its other end.
pub(crate) async fn accept_next(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // Usually out of descriptors: the next attempt may succeed.
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}
