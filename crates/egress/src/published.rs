//! Ports of the run that are published on the host's loopback. Connections to them are forwarded to
//! the listener in the sandbox.
//!
//! This module must not depend on the data or on the approver of the port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::accept::{accept_next, async_listener};
use crate::egress_proxy::ProxyShared;
use crate::events::ByteCounts;
use crate::ports::EgressNamespace;
use crate::relay::{FirstLineDecision, RelayContext, break_off, set_tcp_options};

/// Time-out for a program in the sandbox to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Addresses at which a program in the sandbox may listen, by preference.
const LOOPBACK_ADDRESSES: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Forwards every connection at `listener` to `port` in the sandbox, until the egress proxy is
/// stopped.
pub(crate) async fn serve_listener(
    shared: Arc<ProxyShared>,
    listener: std::net::TcpListener,
    port: u16,
) -> io::Result<()> {
    let listener = async_listener(listener)?;
    loop {
        let (stream, _) = accept_next(&listener).await;
        tokio::spawn(forward_connection(Arc::clone(&shared), stream, port));
    }
}

/// Forwards one connection into the sandbox. The limits of outgoing connections apply to it.
async fn forward_connection(shared: Arc<ProxyShared>, outside: TcpStream, port: u16) {
    let Ok(_slot) = shared.meter.acquire_slot() else { return break_off(&outside) };
    let namespace = shared.arrivals.namespace();
    let Ok(Ok(inside)) = timeout(CONNECT_TIMEOUT, dial_inside(namespace, port)).await else {
        return break_off(&outside);
    };
    set_tcp_options(&inside);
    set_tcp_options(&outside);
    let counts = ByteCounts::default();
    let context = RelayContext { buffers: &shared.buffers, meter: &shared.meter, counts: &counts, guard: None };
    // A reset is passed to the other side; no other report is needed.
    let speaking = shared.drain_tracker.start_guard();
    let _ = context.relay_streams(&inside, &outside, Vec::new(), |_| FirstLineDecision::Done, Some(speaking)).await;
}

async fn dial_inside(namespace: &Arc<dyn EgressNamespace>, port: u16) -> io::Result<TcpStream> {
    let mut refused = io::Error::from(Errno::CONNREFUSED);
    for ip in LOOPBACK_ADDRESSES {
        let at = SocketAddr::new(ip, port);
        let namespace = Arc::clone(namespace);
        let made =
            tokio::task::spawn_blocking(move || namespace.connecting_socket(at)).await.map_err(io::Error::other)?;
        let connected = match made {
            Ok(socket) => {
                let socket = std::net::TcpStream::from(socket);
                socket.set_nonblocking(true)?;
                TcpSocket::from_std_stream(socket).connect(at).await
            }
            Err(error) => Err(error),
        };
        match connected {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}
