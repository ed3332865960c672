//! Tunnels between two egress proxies. A program may be in an environment without network, so that
//! its egress proxy has no network access either. Another egress proxy elsewhere dials instead.
//!
//! This module must not depend on the transport between the two.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use stockade_model::NetworkTarget;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::accept::{accept_next, async_listener};
use crate::dial::{DIAL_TIMEOUT, DialError, OutgoingConnection};
use crate::egress_proxy::ProxyShared;
use crate::ports::{EgressCaller, EgressPermit, ProxyService, TunnelConnector};
use crate::relay::break_off;

/// Time beyond the dial time-out that the other egress proxy may take to answer.
const ANSWER_GRACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most foreign connections that are accepted and dropped before the expected one.
const FOREIGN_CONNECTIONS_MAX: usize = 256;
/// Time-out for connecting the two ends of a socket pair.
const PAIR_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to a target through the tunnel.
pub(crate) async fn connect_through_tunnel(
    connector: &dyn TunnelConnector,
    target: &NetworkTarget,
    caller: &EgressCaller,
) -> Result<OutgoingConnection, DialError> {
    let (sender, receiver) = oneshot::channel();
    let answer = Box::new(move |dial_result| {
        let _ = sender.send(dial_result);
    });
    connector.connect_target(target, caller, answer);
    let lost = |why: &str| DialError::Failed { errno: Errno::NETDOWN, why: why.to_owned() };
    let dial_result = timeout(DIAL_TIMEOUT + ANSWER_GRACE_TIMEOUT, receiver).await;
    let stream = dial_result
        .map_err(|_| lost("the egress proxy does not answer"))?
        .map_err(|_| lost("the egress proxy has ended"))??;
    let wrap_stream = || {
        stream.set_nonblocking(true)?;
        let stream = TcpStream::from_std(stream)?;
        Ok::<_, io::Error>(OutgoingConnection { address: stream.peer_addr()?.ip(), stream, note: None })
    };
    wrap_stream().map_err(|error| lost(&error.to_string()))
}

/// Dials for another egress proxy, and carries the connection.
pub(crate) async fn from(
    shared: Arc<ProxyShared>,
    (target, caller, permit): (NetworkTarget, EgressCaller, EgressPermit),
    done: impl FnOnce(Result<std::net::TcpStream, DialError>),
) {
    let session = match shared.create_session(&target, &caller, &permit) {
        Ok(session) => session,
        Err(failure) => return done(Err(failure)),
    };
    let dialled = match shared.dial_target(&target, &caller).await {
        Ok(dialled) => dialled,
        Err(failure) => {
            session.record_dial_error(&failure);
            return done(Err(failure));
        }
    };
    match async_connected_pair().await {
        Ok((inside, other_end)) => {
            done(Ok(other_end));
            // A task of its own, because this one ends if the dialling is cancelled.
            tokio::spawn(session.carry_connection(inside, Vec::new(), dialled));
        }
        Err(error) => {
            let errno = error.raw_os_error().map_or(Errno::NETDOWN, Errno::from_raw_os_error);
            let failure = DialError::Failed { errno, why: format!("cannot open a local connection: {error}") };
            session.record_dial_error(&failure);
            done(Err(failure));
        }
    }
}

/// Returns two connected sockets over the loopback. A connection of another process is not accepted
/// as one of them.
///
/// # Errors
/// [`io::Error`] if the kernel has no port or descriptor for it.
pub fn connected_pair() -> io::Result<(std::net::TcpStream, std::net::TcpStream)> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let other_end = std::net::TcpStream::connect_timeout(&listener.local_addr()?, PAIR_CONNECT_TIMEOUT)?;
    let own = other_end.local_addr()?;
    for _ in 0..FOREIGN_CONNECTIONS_MAX {
        let (inside, peer) = listener.accept()?;
        if peer == own {
            return Ok((inside, other_end));
        }
    }
    Err(io::ErrorKind::ConnectionAborted.into())
}

/// Does the same without blocking.
async fn async_connected_pair() -> io::Result<(TcpStream, std::net::TcpStream)> {
    let (inside, other_end) = tokio::task::spawn_blocking(connected_pair).await.map_err(io::Error::other)??;
    inside.set_nonblocking(true)?;
    Ok((TcpStream::from_std(inside)?, other_end))
}

/// Serves every connection at the listener.
pub(crate) async fn serve_listener(
    shared: Arc<ProxyShared>,
    listener: std::net::TcpListener,
    service: ProxyService,
) -> io::Result<()> {
    let listener = async_listener(listener)?;
    loop {
        let (stream, _) = accept_next(&listener).await;
        let Ok(slot) = shared.meter.acquire_slot() else {
            break_off(&stream);
            continue;
        };
        let serving = Arc::clone(&shared).serve_client(service, EgressCaller::default(), stream);
        tokio::spawn(async move {
            let _slot = slot;
            serving.await;
        });
    }
}
