//! A connection that is over at a given time, whatever the other end does: every
//! connect, read and write waits for no longer than what is left.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use stockade_model::Endpoint;

use crate::dns::{ResolveError, resolve};

/// Addresses that are tried.
const MAX_TRIES: usize = 4;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("it did not answer in time")]
    TimedOut,
    #[error("it cannot be reached: {0}")]
    Unreachable(io::Error),
    #[error("this machine has no certificates to check it with")]
    NoRoots,
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
    #[error("its host is no name that a certificate can be for")]
    Name,
}

/// Whom certificates must come from.
#[derive(Clone, Debug, Default)]
pub(crate) enum Roots {
    /// Those that this machine trusts.
    #[default]
    System,
    /// These alone.
    #[cfg_attr(not(test), allow(dead_code, reason = "for tests, which have an authority of their own"))]
    Only(Vec<CertificateDer<'static>>),
}

/// A connection, encrypted or to this machine.
pub(crate) enum Connection {
    Plain(Timed),
    Encrypted(Box<StreamOwned<ClientConnection, Timed>>),
}

/// Connects before `deadline`. No proxy is used, whatever the environment says.
pub(crate) fn connect(endpoint: &Endpoint, roots: &Roots, deadline: Instant) -> Result<Connection, ConnectError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    // Without randomness the constant does: the name server is trusted with nothing.
    let random = || {
        let mut id = [0; 2];
        let _ = provider.secure_random.fill(&mut id);
        u16::from_be_bytes(id)
    };
    let mut addresses = resolve(endpoint.host(), deadline, random)?;
    if !endpoint.is_encrypted() {
        // `http` was accepted for this machine alone.
        addresses.retain(std::net::IpAddr::is_loopback);
    }
    let tls = match endpoint.is_encrypted() {
        true => Some(client(provider, roots)?),
        false => None,
    };
    let stream = reach(addresses.into_iter().map(|address| SocketAddr::new(address, endpoint.port())), deadline)?;
    let timed = Timed { stream, deadline };
    let Some(tls) = tls else { return Ok(Connection::Plain(timed)) };
    let name = ServerName::try_from(endpoint.host().to_owned()).map_err(|_| ConnectError::Name)?;
    let connection = ClientConnection::new(tls, name)?;
    Ok(Connection::Encrypted(Box::new(StreamOwned::new(connection, timed))))
}

/// The first address that answers; each gets its share of the time.
fn reach(addresses: impl Iterator<Item = SocketAddr>, deadline: Instant) -> Result<TcpStream, ConnectError> {
    let addresses: Vec<SocketAddr> = addresses.take(MAX_TRIES).collect();
    let mut last = ConnectError::TimedOut;
    for (tried, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(addresses.len() - tried).unwrap_or(1);
        if share.is_zero() {
            return Err(ConnectError::TimedOut);
        }
        match TcpStream::connect_timeout(address, share) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => last = ConnectError::TimedOut,
            Err(error) => last = ConnectError::Unreachable(error),
        }
    }
    Err(last)
}

fn client(provider: Arc<CryptoProvider>, roots: &Roots) -> Result<Arc<ClientConfig>, ConnectError> {
    let mut store = RootCertStore::empty();
    match roots {
        // A certificate that cannot be read is one that is not trusted.
        Roots::System => drop(store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        Roots::Only(certificates) => drop(store.add_parsable_certificates(certificates.iter().cloned())),
    }
    if store.is_empty() {
        return Err(ConnectError::NoRoots);
    }
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(config.with_root_certificates(store).with_no_client_auth()))
}

/// A stream with an end in time.
#[derive(Debug)]
pub(crate) struct Timed {
    stream: TcpStream,
    deadline: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

/// recv(2) and send(2) say EAGAIN when a time-out of the socket is over.
fn as_time_out(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer).map_err(as_time_out)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes).map_err(as_time_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Encrypted(stream) => stream.read(buffer),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Encrypted(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Encrypted(stream) => stream.flush(),
        }
    }
}
