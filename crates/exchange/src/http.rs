//! One HTTP exchange: one request, one response, then the connection is closed. Follows no
//! redirects, uses no proxy and stores nothing. One time-out covers it all, from the name lookup to
//! the last byte.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use stockade_model::{HttpEndpoint, RawText};
use ureq::http::{HeaderValue, Response, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body};

use crate::file;
use crate::names::{EndpointLookupError, EndpointResolver};

/// Longest head of a response, in bytes.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Longest body of a response, in bytes.
const MAX_BODY_BYTES: u64 = 64 * 1024;
/// Largest part of a file of certificates that is read, in bytes.
const MAX_AUTHORITIES_BYTES: u64 = 1 << 20;

/// Certificate authorities for the endpoint's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CertificateAuthorities {
    /// The authorities that this machine trusts.
    #[default]
    Machine,
    /// Only those in this file, as PEM.
    File(PathBuf),
}

/// Reason for a missing response. Its message contains no text of the other end but the names in
/// its certificate.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The name does not exist.
    #[error("there is no host of this name")]
    NoSuchHost,
    /// The name servers did not answer the query.
    #[error("its name cannot be looked up: {0}")]
    Lookup(String),
    /// The time-out expired.
    #[error("it did not answer in time")]
    TimedOut,
    /// There are no trusted authorities.
    #[error("this machine has no certificates to check it with")]
    NoAuthorities,
    /// A file of certificates cannot be read.
    #[error("the certificates in {} cannot be read: {why}", RawText::from(.path.as_path()).to_escaped())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The certificate is not accepted.
    #[error("its certificate is not accepted: {0}")]
    Certificate(rustls::CertificateError),
    /// Another error of TLS.
    #[error("the TLS handshake failed: {0}")]
    Tls(rustls::Error),
    /// An error of TCP.
    #[error("it cannot be reached: {0}")]
    Connection(io::ErrorKind),
    /// The response ended too early.
    #[error("its answer was cut off")]
    CutOff,
    /// The response is longer than the limit.
    #[error("its answer is too long")]
    TooLong,
    /// The response is not HTTP, or has an encoding that was not offered.
    #[error("its answer is not valid HTTP")]
    Malformed,
    /// The status is not a success.
    #[error("it answered with status {status}{}", describe_status(*status))]
    Status {
        /// The status code.
        status: u16,
        /// The body of the response, for the audit log.
        body: Vec<u8>,
    },
}

fn describe_status(status: u16) -> &'static str {
    match status {
        300..=399 => ": redirects are not followed",
        401 | 403 => ": the key is not accepted",
        404 => ": there is nothing of this name",
        429 => ": too many requests",
        _ => "",
    }
}

/// Sends the JSON text `body`, and receives the body of the response. Marks header values as
/// sensitive, so that they are not logged.
///
/// # Errors
/// [`ExchangeError`] if there is no response, or if its status is not a success.
pub fn send_json(
    endpoint: &HttpEndpoint,
    authorities: &CertificateAuthorities,
    headers: Vec<(&'static str, String)>,
    body: &[u8],
    within: Duration,
) -> Result<Vec<u8>, ExchangeError> {
    let mut request = build_agent(endpoint, authorities, within)?.post(endpoint.to_string());
    request = request.header(header::CONTENT_TYPE, "application/json");
    for (name, value) in headers {
        let mut value = HeaderValue::try_from(value).map_err(|_| ExchangeError::Malformed)?;
        value.set_sensitive(true);
        request = request.header(name, value);
    }
    let mut response = request.send(body)?;
    let status = response.status().as_u16();
    let body = receive_body(&mut response);
    match status {
        200..=299 => body,
        // The body may contain the reason, if it can be read.
        status => Err(ExchangeError::Status { status, body: body.unwrap_or_default() }),
    }
}

fn receive_body(response: &mut Response<Body>) -> Result<Vec<u8>, ExchangeError> {
    // The encoding was not offered, and the decoded length would have no limit.
    if response.headers().get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(ExchangeError::Malformed);
    }
    Ok(response.body_mut().with_config().limit(MAX_BODY_BYTES).read_to_vec()?)
}

fn build_agent(
    endpoint: &HttpEndpoint,
    authorities: &CertificateAuthorities,
    within: Duration,
) -> Result<Agent, ExchangeError> {
    let roots = if endpoint.is_encrypted() { load_root_certificates(authorities)? } else { Vec::new() };
    let tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(aws_lc_rs::default_provider()))
        .root_certs(RootCerts::from(roots))
        .build();
    let config = Agent::config_builder()
        .timeout_global(Some(within))
        .proxy(None)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .max_response_header_size(MAX_HEAD_BYTES)
        .max_idle_connections(0)
        .user_agent("stockade")
        .accept("application/json")
        .accept_encoding("identity")
        .tls_config(tls)
        .build();
    Ok(Agent::with_parts(config, DefaultConnector::default(), EndpointResolver(endpoint.clone())))
}

fn load_root_certificates(authorities: &CertificateAuthorities) -> Result<Vec<Certificate<'static>>, ExchangeError> {
    let trusted = match authorities {
        // An unreadable certificate is not trusted.
        CertificateAuthorities::Machine => rustls_native_certs::load_native_certs().certs,
        CertificateAuthorities::File(path) => {
            let unreadable = |why: String| ExchangeError::Authorities { path: path.clone(), why };
            let (pem, _) = file::read_bounded_file(path, MAX_AUTHORITIES_BYTES).map_err(unreadable)?;
            let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>();
            certificates.map_err(|_| unreadable("it is no PEM".to_owned()))?
        }
    };
    match trusted.is_empty() {
        true => Err(ExchangeError::NoAuthorities),
        false => Ok(trusted.iter().map(|der| Certificate::from_der(der).to_owned()).collect()),
    }
}

impl From<ureq::Error> for ExchangeError {
    fn from(error: ureq::Error) -> Self {
        match error {
            ureq::Error::Timeout(_) => Self::TimedOut,
            ureq::Error::HostNotFound => Self::NoSuchHost,
            ureq::Error::Io(error) => error.into(),
            ureq::Error::Rustls(error) => error.into(),
            ureq::Error::BodyExceedsLimit(_) | ureq::Error::LargeResponseHeader(..) => Self::TooLong,
            ureq::Error::Other(error) => match error.downcast::<EndpointLookupError>() {
                Ok(error) => Self::Lookup(error.0),
                Err(_) => Self::Malformed,
            },
            _ => Self::Malformed,
        }
    }
}

impl From<io::Error> for ExchangeError {
    fn from(error: io::Error) -> Self {
        match (error.kind(), error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>())) {
            (_, Some(tls)) => tls.clone().into(),
            (io::ErrorKind::TimedOut, _) => Self::TimedOut,
            (io::ErrorKind::UnexpectedEof, _) => Self::CutOff,
            (kind, _) => Self::Connection(kind),
        }
    }
}

impl From<rustls::Error> for ExchangeError {
    fn from(error: rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(why) => Self::Certificate(why),
            error => Self::Tls(error),
        }
    }
}
