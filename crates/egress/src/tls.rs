//! TLS interception: the egress proxy is the server for the sandbox and the client outside, and
//! parses the requests in between.
//!
//! This module must not depend on the processing of requests.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use stockade_model::Host;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, join, split};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, client};

use crate::http::direct;
use crate::http::exchange::{HttpPeer, HttpRefusal};
use crate::http::stream::HttpReader;
use crate::interception::{InterceptionError, TlsInterceptor};
use crate::session::EgressSession;

/// Time-out for each side's handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);

/// Serves a connection that began with a client hello, which `held` contains completely.
pub(crate) async fn serve_connection(session: EgressSession, inside: TcpStream, held: Vec<u8>, outside: TcpStream) {
    let shared = Arc::clone(&session.shared);
    let Some(opening) = shared.interception.tls_interceptor() else {
        return session.record_refused("its traffic must be inspected, but TLS interception was not prepared");
    };
    let (reader, writer) = inside.into_split();
    let inside = match accept_client(opening, &session.target.host, join(Cursor::new(held).chain(reader), writer)).await
    {
        Ok(inside) => inside,
        Err(why) => {
            let why = format!("the program did not accept TLS interception: {why}; `inspect.except` exempts the host");
            return session.record_refused(&why);
        }
    };
    let mut inside = split_stream(inside);
    match connect_server(opening, &session.target.host, outside).await {
        Ok(outside) => direct::serve_requests(session, inside, split_stream(outside), true).await,
        Err(why) => {
            let why = format!("no encrypted connection to {}: {why}", session.target);
            HttpRefusal::new(502, why.as_str()).send_response(&mut inside.writer).await;
            session.record_unreached(&why);
        }
    }
}

fn split_stream<S: AsyncRead + AsyncWrite>(stream: S) -> HttpPeer<tokio::io::ReadHalf<S>, tokio::io::WriteHalf<S>> {
    let (reader, writer) = split(stream);
    HttpPeer { reader: HttpReader::new(reader, Vec::new()), writer }
}

async fn accept_client<S: AsyncRead + AsyncWrite + Unpin>(
    opening: &TlsInterceptor,
    host: &Host,
    inside: S,
) -> Result<tokio_rustls::server::TlsStream<S>, String> {
    let config = opening.authority.server_config(host).map_err(|error: InterceptionError| error.to_string())?;
    match timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(inside)).await {
        Ok(accepted) => accepted.map_err(|error| error.to_string()),
        Err(_) => Err("its handshake took too long".into()),
    }
}

async fn connect_server(
    opening: &TlsInterceptor,
    host: &Host,
    outside: TcpStream,
) -> Result<client::TlsStream<TcpStream>, String> {
    let name = match host {
        Host::Name(name) => ServerName::try_from(name.as_str().to_owned()).map_err(|error| error.to_string())?,
        Host::Address(address) => ServerName::IpAddress((*address).into()),
    };
    let connector = TlsConnector::from(Arc::clone(&opening.outside));
    match timeout(HANDSHAKE_TIMEOUT, connector.connect(name, outside)).await {
        Ok(connected) => connected.map_err(|error| error.to_string()),
        Err(_) => Err("the server's handshake took too long".into()),
    }
}
