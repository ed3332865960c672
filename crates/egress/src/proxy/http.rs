//! HTTP proxy: CONNECT, and requests in absolute form.
//!
//! This module must not depend on the code that decides, or on how a target is dialled.

use std::sync::Arc;

use stockade_model::Target;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::{Unreached, reach};
use crate::dial::DialFailure;
use crate::door::Shared;
use crate::edge::Guard;
use crate::http::admit::Asked;
use crate::http::direct::{Fault, absolute, authority, check};
use crate::http::exchange::{After, Refusal, Side, exchange, tunnel};
use crate::http::head::{Framing, Request};
use crate::http::stream::{QUIET_TIME, Reader, Trouble};
use crate::relay::{Broken, Way, tune};
use crate::seam::Who;
use crate::session::Session;

type Client = Side<OwnedReadHalf, OwnedWriteHalf>;

/// Server of the last request.
struct Open {
    session: Session,
    server: Client,
}

/// Serves one connection of a program.
pub(crate) async fn serve(shared: Arc<Shared>, who: Who, inside: TcpStream) {
    tune(&inside);
    let (reader, writer) = inside.into_split();
    let mut client = Side { reader: Reader::new(reader, Vec::new()), writer };
    let mut open: Option<Open> = None;
    loop {
        let head = match &mut open {
            None => client.reader.head(QUIET_TIME).await,
            Some(server) => tokio::select! {
                head = client.reader.head(QUIET_TIME) => head,
                _ = server.server.reader.fill() => {
                    close(open.take());
                    continue;
                }
            },
        };
        let request = match head {
            Ok(None) => break,
            Ok(Some(head)) => Request::parse(&head).map_err(|why| Fault::of(why.into())),
            Err(trouble) => Err(Fault::of(trouble)),
        };
        let next = match request {
            Ok(request) if request.method == "CONNECT" => {
                close(open.take());
                return connect(&shared, &who, client, &request).await;
            }
            Ok(request) => one(&shared, &who, &mut client, &mut open, request).await,
            Err(fault) => Err(fault),
        };
        match next {
            Ok(After::Next) => {}
            Ok(After::Close | After::Tunnel) => break,
            Err(Fault::Refused(refusal)) => {
                refusal.send(&mut client.writer).await;
                break;
            }
            Err(Fault::Broken(_)) => break,
        }
    }
    close(open.take());
}

fn close(open: Option<Open>) {
    if let Some(open) = open {
        open.session.ended(Ok(()));
    }
}

/// Returns the answer for a target that was not reached.
fn refusal_of(target: &Target, unreached: Unreached) -> Refusal {
    match unreached {
        Unreached::Judged { rule, grant } => {
            Refusal::lacking(&format!("{target} may not be reached: {rule}"), grant.as_ref())
        }
        Unreached::Dialling(DialFailure::Refused { rule }) => {
            Refusal::new(403, format!("{target} may not be reached: {rule}"))
        }
        Unreached::Dialling(DialFailure::Failed { errno, why }) => {
            let status = if errno == rustix::io::Errno::TIMEDOUT { 504 } else { 502 };
            Refusal::new(status, format!("{target} could not be reached: {why}"))
        }
    }
}

/// Opens a tunnel, whose data is checked like any connection.
async fn connect(shared: &Arc<Shared>, who: &Who, mut client: Client, request: &Request) {
    let target = match authority(&request.target) {
        Some((host, Some(port))) if request.framing == Framing::None => Target { host, port },
        _ => return Refusal::new(400, "CONNECT wants HOST:PORT and no body").send(&mut client.writer).await,
    };
    let (session, dialled) = match reach(shared, &target, who).await {
        Ok(reached) => reached,
        Err(unreached) => return refusal_of(&target, unreached).send(&mut client.writer).await,
    };
    if let Err(error) = client.writer.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await {
        return session.ended(Err(Broken::Reset(error)));
    }
    let Reader { inner, held } = client.reader;
    match inner.reunite(client.writer) {
        Ok(inside) => session.carry(inside, held, dialled).await,
        Err(_) => session.deserted(),
    }
}

/// Forwards one request.
async fn one(
    shared: &Arc<Shared>,
    who: &Who,
    client: &mut Client,
    open: &mut Option<Open>,
    mut request: Request,
) -> Result<After, Fault> {
    let bad = |why: &str| Fault::Refused(Refusal::new(400, why));
    let asked = absolute(&request.target).and_then(|(text, _)| authority(text));
    let target = match asked {
        Some((host, port)) => Target { host, port: port.unwrap_or(80) },
        None => return Err(bad("a proxy is asked with `http://HOST/...`, or with CONNECT for all else")),
    };
    let guard = Guard::new(&shared.edge.secrets, &target, false);
    let guard = guard.as_ref();
    let asked = Asked { shared, target: &target, who, is_encrypted: false };
    asked.count().map_err(Fault::Refused)?;
    check(&mut request, &target, false).map_err(Fault::Refused)?;
    asked.check_upgrade(&request).map_err(Fault::Refused)?;
    request.remove("Proxy-Connection");
    request.remove("Proxy-Authorization");
    let permitted = match open.take() {
        // Each request needs a decision, also if the connection exists already.
        Some(there) if there.session.target == target => match super::judged(shared, &target, who).await {
            Ok(_) => Ok(there),
            Err(unreached) => {
                close(Some(there));
                Err(unreached)
            }
        },
        other => {
            close(other);
            reach(shared, &target, who).await.map(|(mut session, dialled)| {
                tune(&dialled.stream);
                session.recorder.dialled(dialled.address, dialled.note);
                let (reader, writer) = dialled.stream.into_split();
                Open { session, server: Side { reader: Reader::new(reader, Vec::new()), writer } }
            })
        }
    };
    let mut there = permitted.map_err(|unreached| Fault::Refused(refusal_of(&target, unreached)))?;
    let admitted = asked.admit(&mut request, &mut client.reader).await;
    if let Err(refusal) = asked.still_there(admitted, &mut there.server.reader).await {
        there.session.refused(&refusal.text);
        return Err(Fault::Refused(refusal));
    }
    let counts = Arc::clone(&there.session.recorder.counts);
    let way = Way { buffers: &shared.buffers, meter: &shared.meter, counts: &counts, guard };
    match exchange(client, &mut there.server, &request, &way).await {
        Ok(After::Next) => {
            *open = Some(there);
            Ok(After::Next)
        }
        Ok(After::Close) => {
            close(Some(there));
            Ok(After::Close)
        }
        Ok(After::Tunnel) => {
            let ended = tunnel(client, &mut there.server, &way).await;
            there.session.ended(ended);
            Ok(After::Tunnel)
        }
        Err(trouble) => {
            let broken = match trouble {
                Trouble::Broken(broken) => broken,
                Trouble::Malformed(why) => Broken::Reset(std::io::Error::other(why)),
                Trouble::Slow => Broken::Reset(std::io::ErrorKind::TimedOut.into()),
            };
            let again = Broken::Reset(std::io::ErrorKind::BrokenPipe.into());
            there.session.ended(Err(broken));
            Err(Fault::Broken(again))
        }
    }
}
