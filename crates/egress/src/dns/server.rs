//! Answers questions for names with generated addresses. No question leaves the machine, except for
//! names that may already be reached. Those names are resolved, so that "no such name" is correct.
//!
//! This module must not depend on the resolver or on the use of an address.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{RData, RecordType};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use stockade_model::{DeniedOperation, Host, HostName, UpstreamProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use super::message::{DnsQuestion, MAX_MESSAGE_BYTES, parse_reverse_name, pointer_to};
use crate::accept::{accept_next, async_listener};
use crate::dial::look_up;
use crate::events::EgressEventSink;
use crate::names::{HostNameTable, is_ours};
use crate::ports::{EgressCaller, EgressPolicy, EgressProxySetup, NameLookupError, NameResolver, is_localhost};
use crate::upstream::is_looked_up_here;

/// Most questions resolved at once; further ones get "server failure".
const LOOKUPS_MAX: usize = 64;
/// Most connections for questions at once.
const CONNECTIONS_MAX: usize = 64;
/// Time after which a connection without a question is closed.
const CONNECTION_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a resolved answer is cached.
const CACHE_LIFETIME: Duration = Duration::from_secs(30);
/// Most cached answers.
const CACHED_ANSWERS_MAX: usize = 1024;
/// Bytes of one read: several datagrams may arrive together.
const READ_BYTES: usize = 64 << 10;

/// Address families that a name really has.
type AddressFamilies = Result<(bool, bool), NameLookupError>;

/// Name server of the sandbox.
pub(crate) struct NameServer {
    names: Arc<HostNameTable>,
    policy: Arc<dyn EgressPolicy>,
    resolver: Arc<dyn NameResolver>,
    events: Arc<EgressEventSink>,
    known: Mutex<HashMap<HostName, (Instant, AddressFamilies)>>,
    lookups: Semaphore,
    connections: Semaphore,
    has_v6: bool,
    /// Upstream proxy that resolves names instead.
    upstream: Option<UpstreamProxy>,
}

impl NameServer {
    pub(crate) fn new(setup: &EgressProxySetup, events: Arc<EgressEventSink>, has_v6: bool) -> Self {
        Self {
            names: Arc::clone(&setup.names),
            policy: Arc::clone(&setup.policy),
            resolver: Arc::clone(&setup.resolver),
            events,
            known: Mutex::default(),
            lookups: Semaphore::new(LOOKUPS_MAX),
            connections: Semaphore::new(CONNECTIONS_MAX),
            has_v6,
            upstream: setup.rules.upstream.clone(),
        }
    }

    /// Returns the answer to a message; `None` if no answer must be sent.
    async fn answer_message(&self, message: &[u8]) -> Option<Vec<u8>> {
        let question = match DnsQuestion::parse_query(message) {
            Ok(question) => question,
            Err(unanswerable) => return unanswerable.answer,
        };
        let (code, records) = self.answer_question(&question).await;
        question.encode_answer(code, records)
    }

    async fn answer_question(&self, question: &DnsQuestion) -> (ResponseCode, Vec<RData>) {
        const NONE: (ResponseCode, Vec<RData>) = (ResponseCode::NXDomain, Vec::new());
        let Some(name) = question.name.as_deref() else { return NONE };
        if question.kind == RecordType::PTR {
            return self.name_of(name);
        }
        // Browsers ask for the last one, and use the given resolver if it does not exist.
        if name.ends_with(".arpa") || name == "use-application-dns.net" {
            return NONE;
        }
        let Ok(Host::Name(host)) = name.parse::<Host>() else { return NONE };
        let wants_v4 = match question.kind {
            RecordType::A => true,
            RecordType::AAAA => false,
            // Also for HTTPS and SVCB: clients then use addresses.
            _ => return (ResponseCode::NoError, Vec::new()),
        };
        if is_localhost(host.as_str()) {
            let own: IpAddr = if wants_v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
            return (ResponseCode::NoError, vec![own.into()]);
        }
        let is_resolvable = self.policy.is_agreed(&host) && is_looked_up_here(self.upstream.as_ref(), &host);
        let families = if is_resolvable { self.lookup_families(&host).await } else { Ok((true, true)) };
        let has = match families {
            Ok((v4, v6)) => {
                if wants_v4 {
                    v4
                } else {
                    v6 && self.has_v6
                }
            }
            Err(NameLookupError::NoSuchName) => return NONE,
            Err(NameLookupError::Failed(_)) => return (ResponseCode::ServFail, Vec::new()),
        };
        match self.names.assign_addresses(&host) {
            Some(_) if !has => (ResponseCode::NoError, Vec::new()),
            Some(pair) => {
                let address: IpAddr = if wants_v4 { pair.v4.into() } else { pair.v6.into() };
                (ResponseCode::NoError, vec![address.into()])
            }
            None => {
                let rule = "too many names were requested";
                self.events.report_denial(DeniedOperation::Limit, "names".into(), &EgressCaller::default(), rule, None);
                (ResponseCode::ServFail, Vec::new())
            }
        }
    }

    fn name_of(&self, reverse_name: &str) -> (ResponseCode, Vec<RData>) {
        let address = parse_reverse_name(reverse_name);
        let name = match address {
            Some(address) if address.is_loopback() => Some("localhost".to_owned()),
            Some(address) if is_ours(address) => self.names.find_name(address).map(|name| name.to_string()),
            _ => None,
        };
        match name.and_then(|name| pointer_to(&name)) {
            Some(pointer) => (ResponseCode::NoError, vec![pointer]),
            None => (ResponseCode::NXDomain, Vec::new()),
        }
    }

    /// Returns the address families of a name that may be reached.
    async fn lookup_families(&self, name: &HostName) -> AddressFamilies {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some((since, families)) = known
            && since.elapsed() < CACHE_LIFETIME
        {
            return families;
        }
        let Ok(_slot) = self.lookups.try_acquire() else {
            return Err(NameLookupError::Failed("too many lookups at once".into()));
        };
        let found = look_up(&self.resolver, name).await;
        let families = found.and_then(|found| {
            let v4 = found.iter().any(|a| a.to_canonical().is_ipv4());
            let v6 = found.iter().any(|a| a.to_canonical().is_ipv6());
            if v4 || v6 { Ok((v4, v6)) } else { Err(NameLookupError::NoSuchName) }
        });
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= CACHED_ANSWERS_MAX {
            known.clear();
        }
        known.insert(name.clone(), (Instant::now(), families.clone()));
        families
    }

    /// Answers datagrams, each from the address that it was sent to, because resolvers reject an
    /// answer from another address.
    pub(crate) async fn serve_datagrams(self: Arc<Self>, socket: OwnedFd) -> io::Result<()> {
        let socket = std::net::UdpSocket::from(socket);
        socket.set_nonblocking(true)?;
        let socket = Arc::new(UdpSocket::from_std(socket)?);
        let state = Arc::new(UdpSocketState::new((&*socket).into())?);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            socket.readable().await?;
            let mut meta = [RecvMeta::default()];
            let read = socket.try_io(Interest::READABLE, || {
                state.recv((&*socket).into(), &mut [io::IoSliceMut::new(&mut buffer)], &mut meta)
            });
            let [meta] = meta;
            match read {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => {
                    sleep(Duration::from_millis(10)).await;
                    continue;
                }
            }
            for message in buffer[..meta.len.min(READ_BYTES)].chunks(meta.stride.max(1)) {
                let (server, socket, state) = (Arc::clone(&self), Arc::clone(&socket), Arc::clone(&state));
                let message = message.to_vec();
                // A task of its own, because the lookup of one name must not delay others.
                tokio::spawn(async move {
                    if let Some(answer) = server.answer_message(&message).await {
                        let transmit = Transmit {
                            destination: meta.addr,
                            ecn: None,
                            contents: &answer,
                            segment_size: None,
                            src_ip: meta.dst_ip,
                        };
                        // Like any datagram, the answer may be lost.
                        let _ = state.try_send((&*socket).into(), &transmit);
                    }
                });
            }
            tokio::task::yield_now().await;
        }
    }

    /// Answers questions on connections.
    pub(crate) async fn serve_connections(self: Arc<Self>, listener: OwnedFd) -> io::Result<()> {
        let listener = async_listener(listener)?;
        loop {
            let (server, stream) = (Arc::clone(&self), accept_next(&listener).await.0);
            tokio::spawn(async move { server.serve_stream(stream).await });
        }
    }

    /// Answers the questions of one connection in order.
    pub(crate) async fn serve_stream(&self, mut stream: TcpStream) {
        let Ok(_slot) = self.connections.try_acquire() else { return };
        loop {
            let read = async {
                let length = usize::from(stream.read_u16().await?);
                let mut message = vec![0; length.min(MAX_MESSAGE_BYTES)];
                stream.read_exact(&mut message).await?;
                Ok::<_, io::Error>((length <= MAX_MESSAGE_BYTES).then_some(message))
            };
            let Ok(Ok(Some(message))) = timeout(CONNECTION_IDLE_TIMEOUT, read).await else { return };
            let Some(answer) = self.answer_message(&message).await else { return };
            let mut framed = (answer.len() as u16).to_be_bytes().to_vec();
            framed.extend(answer);
            if !matches!(timeout(CONNECTION_IDLE_TIMEOUT, stream.write_all(&framed)).await, Ok(Ok(()))) {
                return;
            }
        }
    }
}
