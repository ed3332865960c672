//! Tunnel from the container: the launcher's own egress proxy forwards its requests to the host's,
//! over streams. It makes no decision that counts outside.

use std::io;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use rustix::io::Errno;
use stockade_egress::{DialError, EgressCaller, NameLookupError, NameResolver, TunnelConnector, connected_pair};
use stockade_model::{HostName, NetworkTarget};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::host_connection::HostConnection;
use crate::egress_requests::{TunnelRequest, TunnelResponse, send_request};
use crate::multiplexer::TUNNEL_STREAMS_MAX;
use crate::tunnel_streams::forward_connection;

/// Time-out for the host to resolve a name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(12);
/// Time-out for sending data that programs wrote before they ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

type ConnectCallback = Box<dyn FnOnce(Result<TcpStream, DialError>) + Send>;

/// Tunnel to the host's egress proxy.
pub(super) struct HostTunnel {
    host: HostConnection,
    /// One for each connection or request.
    permits: Arc<Semaphore>,
    /// One for each connection that has not sent everything yet.
    speaking: Arc<Semaphore>,
}

impl HostTunnel {
    pub(super) fn new(host: HostConnection) -> Self {
        let all = || Arc::new(Semaphore::new(TUNNEL_STREAMS_MAX));
        Self { host, permits: all(), speaking: all() }
    }

    /// Waits until the data of the ended programs is sent.
    pub(super) fn wait_until_drained(&self) {
        let all_sent = self.speaking.acquire_many(TUNNEL_STREAMS_MAX as u32);
        let _ = self.host.runtime.block_on(async { timeout(DRAIN_TIMEOUT, all_sent).await.is_ok() });
    }
}

/// Requests a connection. Returns its stream, and the program's end.
async fn open_connection(
    host: &HostConnection,
    request: &TunnelRequest,
) -> Result<((SendStream<Bytes>, RecvStream), TcpStream, TcpStream), DialError> {
    let failed = |error: io::Error| DialError::Failed { errno: Errno::NETDOWN, why: error.to_string() };
    let (answer, stream) = send_request(&host.requests, request).await.map_err(failed)?;
    if answer != TunnelResponse::Connected {
        return Err(answer.into_failure());
    }
    let (carried, other_end) = connected_pair().map_err(failed)?;
    Ok((stream, carried, other_end))
}

impl TunnelConnector for HostTunnel {
    fn connect_target(&self, target: &NetworkTarget, caller: &EgressCaller, answer: ConnectCallback) {
        let permits = [&self.permits, &self.speaking].map(|all| Arc::clone(all).try_acquire_owned());
        let [Ok(permit), Ok(speaking)] = permits else {
            let why = "too many connections at once".to_owned();
            return answer(Err(DialError::Failed { errno: Errno::MFILE, why }));
        };
        let request =
            TunnelRequest::Connect { target: target.clone(), pid: caller.pid, program: caller.program.clone() };
        let host = self.host.clone();
        self.host.runtime.spawn(async move {
            let _permit = permit;
            match open_connection(&host, &request).await {
                Ok((stream, carried, other_end)) => {
                    answer(Ok(other_end));
                    // Its failure is reported by the reset of the connection.
                    let _ = forward_connection(carried, stream, speaking).await;
                }
                Err(failure) => answer(Err(failure)),
            }
        });
    }
}

impl NameResolver for HostTunnel {
    fn resolve_name(&self, name: &HostName) -> Result<Vec<IpAddr>, NameLookupError> {
        let failed = |why: &str| NameLookupError::Failed(why.to_owned());
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            return Err(failed("the egress proxy is busy or has ended"));
        };
        let (looked, answer) = sync_channel(1);
        let (host, request) = (self.host.clone(), TunnelRequest::LookUp { name: name.as_str().to_owned() });
        self.host.runtime.spawn(async move {
            let _permit = permit;
            let answered = timeout(LOOKUP_TIMEOUT, send_request(&host.requests, &request)).await;
            // The caller has stopped waiting if this fails.
            let _ = looked.try_send(answered.ok().and_then(|answered| Some(answered.ok()?.0)));
        });
        match answer.recv_timeout(LOOKUP_TIMEOUT).ok().flatten() {
            Some(TunnelResponse::Addresses(found)) => found.map_err(NameLookupError::Failed),
            Some(TunnelResponse::NoSuchName) => Err(NameLookupError::NoSuchName),
            _ => Err(failed("the egress proxy of the host did not answer")),
        }
    }
}
