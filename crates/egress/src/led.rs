//! Tunnels between two egress proxies. A program may be in an environment without network, so that
//! its egress proxy has no network access either. Another egress proxy elsewhere dials instead.
//!
//! This module must not depend on the transport between the two.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use stockade_model::Target;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::dial::{DIAL_MAX, DialFailure, Dialled};
use crate::door::Shared;
use crate::published::next;
use crate::relay::break_off;
use crate::seam::{Lead, Permit, Service, Who};

/// Time beyond the dial time-out that the other egress proxy may take to answer.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// Most foreign connections that are accepted and dropped before the expected one.
const STRANGERS_MAX: usize = 256;
/// Time-out for connecting the two ends of a socket pair.
const MEET_WITHIN: Duration = Duration::from_secs(5);

/// Connects to a target through the tunnel.
pub(crate) async fn to(lead: &dyn Lead, target: &Target, who: &Who) -> Result<Dialled, DialFailure> {
    let (sender, receiver) = oneshot::channel();
    let answer = Box::new(move |led| {
        let _ = sender.send(led);
    });
    lead.lead(target, who, answer);
    let lost = |why: &str| DialFailure::Failed { errno: Errno::NETDOWN, why: why.to_owned() };
    let led = timeout(DIAL_MAX + SILENT_MAX, receiver).await;
    let stream = led.map_err(|_| lost("the way out is silent"))?.map_err(|_| lost("the way out is gone"))??;
    let taken = || {
        stream.set_nonblocking(true)?;
        let stream = TcpStream::from_std(stream)?;
        Ok::<_, io::Error>(Dialled { address: stream.peer_addr()?.ip(), stream, note: None })
    };
    taken().map_err(|error| lost(&error.to_string()))
}

/// Dials for another egress proxy, and carries the connection.
pub(crate) async fn from(
    shared: Arc<Shared>,
    (target, who, permit): (Target, Who, Permit),
    done: impl FnOnce(Result<std::net::TcpStream, DialFailure>),
) {
    let session = match shared.session(&target, &who, &permit) {
        Ok(session) => session,
        Err(failure) => return done(Err(failure)),
    };
    let dialled = match shared.dial(&target, &who).await {
        Ok(dialled) => dialled,
        Err(failure) => {
            session.failed(&failure);
            return done(Err(failure));
        }
    };
    match pair().await {
        Ok((inside, given)) => {
            done(Ok(given));
            // A task of its own, because this one ends if the dialling is cancelled.
            tokio::spawn(session.carry(inside, Vec::new(), dialled));
        }
        Err(error) => {
            let errno = error.raw_os_error().map_or(Errno::NETDOWN, Errno::from_raw_os_error);
            let failure = DialFailure::Failed { errno, why: format!("no connection of our own: {error}") };
            session.failed(&failure);
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
    let given = std::net::TcpStream::connect_timeout(&listener.local_addr()?, MEET_WITHIN)?;
    let own = given.local_addr()?;
    for _ in 0..STRANGERS_MAX {
        let (inside, peer) = listener.accept()?;
        if peer == own {
            return Ok((inside, given));
        }
    }
    Err(io::ErrorKind::ConnectionAborted.into())
}

/// Does the same without blocking.
async fn pair() -> io::Result<(TcpStream, std::net::TcpStream)> {
    let (inside, given) = tokio::task::spawn_blocking(connected_pair).await.map_err(io::Error::other)??;
    inside.set_nonblocking(true)?;
    Ok((TcpStream::from_std(inside)?, given))
}

/// Serves every connection at the listener.
pub(crate) async fn offer(shared: Arc<Shared>, listener: std::net::TcpListener, service: Service) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    loop {
        let stream = next(&listener).await;
        let Ok(place) = shared.meter.place() else {
            break_off(&stream);
            continue;
        };
        let serving = Arc::clone(&shared).serve(service, Who::default(), stream);
        tokio::spawn(async move {
            let _place = place;
            serving.await;
        });
    }
}
