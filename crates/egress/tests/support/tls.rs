//! A server and a client that speak TLS, each trusting whom it is told to.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::serve;

/// A server whose certificate names these, and what it was asked.
pub struct Origin {
    pub port: u16,
    /// Its certificate, for who is to trust it.
    pub pem: String,
    requests: Arc<Mutex<Vec<String>>>,
}

/// The server's side of one connection.
pub type Server = StreamOwned<ServerConnection, TcpStream>;

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

impl Origin {
    /// Answers each request with what this makes of it.
    pub fn new(names: &[&str], answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let request_log = Arc::clone(&requests);
        Self { requests, ..Self::serving(names, move |stream| answer_requests(stream, &request_log, &answer)) }
    }

    /// Does this with each connection.
    pub fn serving(names: &[&str], each: impl Fn(Server) + Send + Sync + 'static) -> Self {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let pem = format!(
            "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
            data_encoding::BASE64.encode(certificate.der())
        );
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![CertificateDer::from(certificate)], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let config = Arc::new(config);
        let port = serve(move |stream| {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            each(StreamOwned::new(connection, stream));
        });
        Self { port, pem, requests: Arc::default() }
    }

    /// What it was asked so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// Reads requests, bodies by their length, and answers them.
pub fn answer_requests(
    mut stream: impl Read + Write,
    request_log: &Mutex<Vec<String>>,
    answer: &impl Fn(&str) -> String,
) {
    let mut held = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&held).into_owned();
        if let Some(end) = text.find("\r\n\r\n") {
            let content_length = text[..end]
                .lines()
                .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            let whole = end + 4 + content_length.unwrap_or(0);
            if held.len() >= whole {
                let request = String::from_utf8_lossy(&held[..whole]).into_owned();
                held.drain(..whole);
                let reply = answer(&request);
                request_log.lock().unwrap().push(request);
                if stream.write_all(reply.as_bytes()).and_then(|()| stream.flush()).is_err() {
                    return;
                }
                continue;
            }
        }
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => held.extend_from_slice(&buffer[..count]),
            _ => return,
        }
    }
}

/// An answer with this body.
pub fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

pub type Client = StreamOwned<ClientConnection, TcpStream>;

/// A client that trusts these certificates, for this name.
///
/// # Errors
/// What its handshake came to.
pub fn client(stream: TcpStream, name: &str, trusted: &str, protocols: &[&str]) -> io::Result<Client> {
    let mut roots = RootCertStore::empty();
    let trusted: Vec<_> = CertificateDer::pem_slice_iter(trusted.as_bytes()).map(Result::unwrap).collect();
    roots.add_parsable_certificates(trusted);
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut client = StreamOwned::new(connection, stream);
    while client.conn.is_handshaking() {
        client.conn.complete_io(&mut client.sock)?;
    }
    Ok(client)
}

/// Sends this and reads one answer with a length.
pub fn ask(stream: &mut (impl Read + Write), request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    stream.flush().unwrap();
    let mut held = Vec::new();
    let mut byte = [0];
    while !held.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&held));
        held.push(byte[0]);
    }
    let head = String::from_utf8(held).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    head + &String::from_utf8(body).unwrap()
}
