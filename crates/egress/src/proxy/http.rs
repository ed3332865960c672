//! HTTP proxy: CONNECT, and requests in absolute form.
//!
//! This module must not depend on the code that decides, or on how a target is dialled.

use std::sync::Arc;

use stockade_model::NetworkTarget;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::{UnreachedTarget, reach_target};
use crate::dial::DialError;
use crate::egress_proxy::ProxyShared;
use crate::http::admit::RequestAdmission;
use crate::http::direct::{ConnectionFault, check_target, parse_authority, split_absolute_target};
use crate::http::exchange::{ExchangeOutcome, HttpPeer, HttpRefusal, forward_exchange, relay_upgraded};
use crate::http::head::{BodyFraming, RequestHead};
use crate::http::stream::HttpReader;
use crate::interception::ConnectionGuard;
use crate::ports::EgressCaller;
use crate::relay::{RelayContext, RelayError, set_tcp_options};
use crate::session::EgressSession;

type ProxyClient = HttpPeer<OwnedReadHalf, OwnedWriteHalf>;

/// Server of the last request.
struct OpenUpstream {
    session: EgressSession,
    server: ProxyClient,
}

/// Serves one connection of a program.
pub(crate) async fn serve_connection(shared: Arc<ProxyShared>, caller: EgressCaller, inside: TcpStream) {
    set_tcp_options(&inside);
    let (reader, writer) = inside.into_split();
    let mut client = HttpPeer { reader: HttpReader::new(reader, Vec::new()), writer };
    let mut open: Option<OpenUpstream> = None;
    loop {
        let request = match &mut open {
            None => client.reader.read_request().await,
            Some(server) => tokio::select! {
                request = client.reader.read_request() => request,
                _ = server.server.reader.fill_buffer() => {
                    close_upstream(open.take());
                    continue;
                }
            },
        };
        let next = match request {
            Ok(None) => break,
            Ok(Some(request)) if request.method == "CONNECT" => {
                close_upstream(open.take());
                return open_tunnel(&shared, &caller, client, &request).await;
            }
            Ok(Some(request)) => forward_request(&shared, &caller, &mut client, &mut open, request).await,
            Err(trouble) => Err(trouble.into()),
        };
        match next {
            Ok(ExchangeOutcome::Next) => {}
            Ok(ExchangeOutcome::Close | ExchangeOutcome::Tunnel) => break,
            Err(ConnectionFault::Refused(refusal)) => {
                refusal.send_response(&mut client.writer).await;
                break;
            }
            Err(ConnectionFault::Broken(_)) => break,
        }
    }
    close_upstream(open.take());
}

fn close_upstream(open: Option<OpenUpstream>) {
    if let Some(open) = open {
        open.session.record_end(Ok(()));
    }
}

/// Returns the answer for a target that was not reached.
fn refusal_of(target: &NetworkTarget, unreached: UnreachedTarget) -> HttpRefusal {
    match unreached {
        UnreachedTarget::Checked { rule, grant } => {
            HttpRefusal::for_missing_grant(&format!("{target} may not be reached: {rule}"), grant.as_ref())
        }
        UnreachedTarget::Dialling(DialError::Refused { rule }) => {
            HttpRefusal::new(403, format!("{target} may not be reached: {rule}"))
        }
        UnreachedTarget::Dialling(DialError::Failed { errno, why }) => {
            let status = if errno == rustix::io::Errno::TIMEDOUT { 504 } else { 502 };
            HttpRefusal::new(status, format!("{target} could not be reached: {why}"))
        }
    }
}

/// Opens a tunnel, whose data is checked like any connection.
async fn open_tunnel(shared: &Arc<ProxyShared>, caller: &EgressCaller, mut client: ProxyClient, request: &RequestHead) {
    let target = match parse_authority(&request.target) {
        Some((host, Some(port))) if request.framing == BodyFraming::None => NetworkTarget { host, port },
        _ => {
            return HttpRefusal::new(400, "CONNECT needs HOST:PORT and no body")
                .send_response(&mut client.writer)
                .await;
        }
    };
    let (session, dialled) = match reach_target(shared, &target, caller).await {
        Ok(reached) => reached,
        Err(unreached) => return refusal_of(&target, unreached).send_response(&mut client.writer).await,
    };
    if let Err(error) = client.writer.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await {
        return session.record_end(Err(RelayError::Reset(error)));
    }
    let HttpReader { inner, held } = client.reader;
    match inner.reunite(client.writer) {
        Ok(inside) => session.carry_connection(inside, held, dialled).await,
        Err(_) => session.record_no_client(),
    }
}

/// Forwards one request.
async fn forward_request(
    shared: &Arc<ProxyShared>,
    caller: &EgressCaller,
    client: &mut ProxyClient,
    open: &mut Option<OpenUpstream>,
    mut request: RequestHead,
) -> Result<ExchangeOutcome, ConnectionFault> {
    let authority = split_absolute_target(&request.target).and_then(|(text, _)| parse_authority(text));
    let Some((host, port)) = authority else {
        let why = "a proxy request needs `http://HOST/...`, or CONNECT for everything else";
        return Err(HttpRefusal::new(400, why).into());
    };
    let target = NetworkTarget { host, port: port.unwrap_or(80) };
    let guard = ConnectionGuard::new(&shared.interception.secrets, &target, false);
    let guard = guard.as_ref();
    let admission = RequestAdmission { shared, target: &target, caller, is_encrypted: false };
    admission.count_request()?;
    check_target(&mut request, &target, false)?;
    admission.check_upgrade(&request)?;
    request.remove("Proxy-Connection");
    request.remove("Proxy-Authorization");
    let permitted = match open.take() {
        // Each request needs a decision, also if the connection exists already.
        Some(there) if there.session.target == target => match super::request_permit(shared, &target, caller).await {
            Ok(_) => Ok(there),
            Err(unreached) => {
                close_upstream(Some(there));
                Err(unreached)
            }
        },
        other => {
            close_upstream(other);
            reach_target(shared, &target, caller).await.map(|(mut session, dialled)| {
                set_tcp_options(&dialled.stream);
                session.recorder.set_remote_address(dialled.address, dialled.note);
                let (reader, writer) = dialled.stream.into_split();
                OpenUpstream { session, server: HttpPeer { reader: HttpReader::new(reader, Vec::new()), writer } }
            })
        }
    };
    let mut there = permitted.map_err(|unreached| refusal_of(&target, unreached))?;
    let admitted = admission.admit_request(&mut request, &mut client.reader).await;
    if let Err(refusal) = admission.still_there(admitted, &mut there.server.reader).await {
        there.session.record_refused(&refusal.text);
        return Err(refusal.into());
    }
    let counts = Arc::clone(&there.session.recorder.counts);
    let context = RelayContext { buffers: &shared.buffers, meter: &shared.meter, counts: &counts, guard };
    match forward_exchange(client, &mut there.server, &request, &context).await {
        Ok(ExchangeOutcome::Next) => {
            *open = Some(there);
            Ok(ExchangeOutcome::Next)
        }
        Ok(ExchangeOutcome::Close) => {
            close_upstream(Some(there));
            Ok(ExchangeOutcome::Close)
        }
        Ok(ExchangeOutcome::Tunnel) => {
            let ended = relay_upgraded(client, &mut there.server, &context).await;
            there.session.record_end(ended);
            Ok(ExchangeOutcome::Tunnel)
        }
        Err(trouble) => {
            let reset_error = RelayError::Reset(std::io::ErrorKind::BrokenPipe.into());
            there.session.record_end(Err(trouble.into_relay_error()));
            Err(ConnectionFault::Broken(reset_error))
        }
    }
}
