//! Ports of the egress proxy: the sandbox's network, and the code that decides.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use stockade_model::{
    ConnectionRecord, Denial, EffectUse, EgressRules, Grant, HostName, NetworkTarget, RawText, SecretUse,
};

use crate::dial::DialError;
use crate::interception::PreparedInterception;
use crate::names::HostNameTable;

/// Port for the network namespace of the egress proxy.
pub trait EgressNamespace: Send + Sync {
    /// Returns a TCP socket of the namespace that listens on this address, which need not be
    /// assigned. If there is no namespace (level restricted), returns a listener on the host's
    /// loopback, on a port that the kernel chooses.
    ///
    /// # Errors
    /// EADDRINUSE if a program in the sandbox listens there; otherwise the kernel's error.
    fn listen_at(&self, at: SocketAddr) -> io::Result<OwnedFd>;

    /// Returns a TCP socket of the namespace, to connect to a listener in the sandbox.
    ///
    /// # Errors
    /// The kernel's error.
    fn connecting_socket(&self, like: SocketAddr) -> io::Result<OwnedFd>;
}

/// Process that made a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressCaller {
    /// Process id as the host sees it, if known.
    pub pid: Option<u32>,
    /// The resolved executable of that process, if known.
    pub program: Option<RawText>,
}

/// Permission to reach a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressPermit {
    /// The rule or grant that permits it.
    pub rule: String,
}

/// Request from the sandbox that the egress proxy cannot decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EgressRequest {
    /// To reach this target.
    Target(NetworkTarget),
    /// To send a secret to a target that the secret's own hosts do not name.
    Secret {
        /// The secret and the exact target.
        secret: SecretUse,
        /// Reason why this needs a question, in the words of a policy.
        rule: String,
    },
    /// To cause an irreversible effect outside.
    Effect {
        /// The effect and the host.
        effect: EffectUse,
        /// The request, in the form to show.
        request: String,
        /// Sentence about the effect.
        message: &'static str,
    },
}

/// Decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EgressDecision {
    /// The target may be reached.
    Allowed(EgressPermit),
    /// The target may not be reached.
    Refused {
        /// Reason, in the words of a policy.
        rule: String,
        /// The grant that would permit it; `None` if nothing would.
        grant: Option<Grant>,
    },
}

/// Port that decides which targets may be reached, and which secrets may be sent there.
pub trait EgressPolicy: Send + Sync {
    /// Answers once, perhaps after a question to a person. At the end of the run, `answer` may be
    /// dropped instead. Called on the proxy's thread, so it must not block. `answer` may be called
    /// at once, and on any thread. The implementation also reports its refusals.
    fn decide_request(
        &self,
        egress_request: EgressRequest,
        caller: &EgressCaller,
        answer: Box<dyn FnOnce(EgressDecision) + Send>,
    );

    /// Returns whether some port of this name may be reached now, without a question. Such a name
    /// is resolved on request, so that "no such name" is correct. Every other name is answered
    /// without a lookup, because lookups would carry data out.
    fn is_agreed(&self, name: &HostName) -> bool;
}

/// Port that resolves names outside the sandbox.
pub trait NameResolver: Send + Sync {
    /// Returns the addresses of a name, best first. May block: it is called on threads of its own,
    /// with a time-out of ten seconds.
    ///
    /// # Errors
    /// See [`NameLookupError`].
    fn resolve_name(&self, name: &HostName) -> Result<Vec<IpAddr>, NameLookupError>;
}

/// Error of a lookup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameLookupError {
    /// The name does not exist.
    #[error("no such name")]
    NoSuchName,
    /// The lookup failed.
    #[error("the name could not be looked up: {0}")]
    Failed(String),
}

/// Port that makes outgoing connections for an egress proxy in an environment without network. The
/// data is checked, counted and recorded at the other end of the tunnel.
pub trait TunnelConnector: Send + Sync {
    /// Connects to an approved target. Answers once, within a bounded time, with the connection.
    /// Called on the proxy's thread, so it must not block.
    fn connect_target(
        &self,
        target: &NetworkTarget,
        caller: &EgressCaller,
        answer: Box<dyn FnOnce(Result<TcpStream, DialError>) + Send>,
    );
}

/// Event of the egress proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EgressEvent {
    /// A connection was closed, or could not be made.
    Connection(Box<ConnectionRecord>),
    /// The egress proxy itself refused an operation.
    Denied(Box<Denial>),
}

/// Sockets of the name server, bound to port 53 of every address.
#[derive(Debug)]
pub struct DnsSockets {
    /// Datagram socket. The egress proxy sets its options for the destination address.
    pub udp: OwnedFd,
    /// Listening socket.
    pub tcp: OwnedFd,
}

/// Parameters to start the egress proxy.
pub struct EgressProxySetup {
    /// Special addresses that names may resolve to, the limits, and the targets to intercept. The
    /// [`EgressPolicy`] has the lists of targets.
    pub rules: EgressRules,
    /// The assigned names, which outlive the proxy.
    pub names: Arc<HostNameTable>,
    /// Sockets of the name server; `None` if only [`ProxyService::NameServer`] answers.
    pub dns: Option<DnsSockets>,
    /// State prepared for these rules.
    pub interception: Arc<PreparedInterception>,
    /// The sandbox's network.
    pub namespace: Arc<dyn EgressNamespace>,
    /// Decides on requests to the proxies.
    pub policy: Arc<dyn EgressPolicy>,
    /// Sink for events. Called on the proxy's thread, so it must not block.
    pub sink: Arc<dyn Fn(EgressEvent) + Send + Sync>,
    /// Resolves names: [`SystemResolver`](crate::SystemResolver), except in tests.
    pub resolver: Arc<dyn NameResolver>,
    /// Tunnel to targets; `None` if they are dialled.
    pub connector: Option<Arc<dyn TunnelConnector>>,
}

/// Meaning of an address that a program connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EgressDestination {
    /// A target outside: by the name of a generated address, or by its address.
    Target(NetworkTarget),
    /// The egress proxy's own proxy or name server. Always permitted, because requests to it are
    /// decided there.
    Service(ProxyService),
    /// A generated address without a name.
    Nobody,
}

/// Service of the egress proxy in the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProxyService {
    /// CONNECT and absolute-form requests.
    HttpProxy,
    /// SOCKS5 with names.
    Socks,
    /// DNS over TCP, for programs that cannot use datagrams.
    NameServer,
}

/// Returns whether this is a name of the machine itself: `localhost` or a name beneath it (RFC
/// 6761, 6.3).
pub(crate) fn is_localhost(host: &str) -> bool {
    host == "localhost" || host.ends_with(".localhost")
}
