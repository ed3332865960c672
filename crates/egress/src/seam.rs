//! What the door needs of a sandbox, and of whoever decides.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use stockade_model::{ConnectionRecord, Denial, EffectUse, Egress, Grant, HostName, RawText, SecretUse, Target};

use crate::dial::DialFailure;
use crate::edge::Edge;
use crate::names::Names;

/// The network namespace that the door stands in.
pub trait Namespace: Send + Sync {
    /// A TCP socket of the namespace that listens on this address, which need
    /// not be anybody's. Where there is no namespace (level restricted): a
    /// listener on the host's loopback, on a port of the kernel's choice.
    ///
    /// # Errors
    /// EADDRINUSE where a program inside listens there; else what the kernel
    /// says.
    fn listen(&self, at: SocketAddr) -> io::Result<OwnedFd>;

    /// A TCP socket of the namespace, to connect to what listens inside.
    ///
    /// # Errors
    /// What the kernel says.
    fn socket(&self, like: SocketAddr) -> io::Result<OwnedFd>;
}

/// Whose connection it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// Process id as the host sees it, where known.
    pub pid: Option<u32>,
    /// The resolved executable of that process, where known.
    pub program: Option<RawText>,
}

/// Why something may be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permit {
    /// The rule or grant that says so.
    pub rule: String,
}

/// What somebody inside wants, and the door cannot decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// To reach this.
    Target(Target),
    /// To take a secret to a target that its own hosts do not name.
    Secret {
        /// Which, and exactly where to.
        secret: SecretUse,
        /// Why it is not taken there unasked, in words of a policy.
        rule: String,
    },
    /// To do something outside that nobody takes back.
    Effect {
        /// What, and at which host.
        effect: EffectUse,
        /// The request, as it is shown.
        request: String,
        /// One sentence of it.
        message: &'static str,
    },
}

/// What became of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It may be reached.
    Allowed(Permit),
    /// It may not.
    Refused {
        /// Why, in words of a policy.
        rule: String,
        /// The grant that would do; none where nothing would.
        grant: Option<Grant>,
    },
}

/// Whoever decides what may be reached, and which secrets may be taken there.
pub trait Judge: Send + Sync {
    /// Answers once, perhaps after a person's thought; at the end of the run
    /// `answer` may be dropped instead. Called on the door's thread: it must not
    /// wait. `answer` may be called at once, and on any thread.
    /// Whoever refuses also tells of it.
    fn judge(&self, wanted: Wanted, who: &Who, answer: Box<dyn FnOnce(Judgement) + Send>);

    /// Whether some port of this name may be reached by now, without asking
    /// anybody. Such a name is looked up when it is asked for, so that "no such
    /// name" is true; every other is answered without looking, or questions
    /// would carry data out.
    fn is_agreed(&self, name: &HostName) -> bool;
}

/// Looks names up outside the sandbox.
pub trait Resolve: Send + Sync {
    /// The addresses of a name, best first. It may block: it is called on threads
    /// of its own, and is not waited for longer than ten seconds.
    ///
    /// # Errors
    /// See [`LookupError`].
    fn resolve(&self, name: &HostName) -> Result<Vec<IpAddr>, LookupError>;
}

/// Why a name has no addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// There is none.
    #[error("no such name")]
    NoSuchName,
    /// It could not be found out.
    #[error("the name could not be looked up: {0}")]
    Failed(String),
}

/// Leads to what is outside where nothing but this does: for a door in a place that has
/// no network. What passes is looked at, counted and recorded where it leads to.
pub trait Lead: Send + Sync {
    /// Leads to a target that was agreed to. Answers once, in bounded time, with a
    /// connection to it. Called on the door's thread: it must not wait.
    fn lead(&self, target: &Target, who: &Who, answer: Box<dyn FnOnce(Result<TcpStream, DialFailure>) + Send>);
}

/// What the door has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DoorEvent {
    /// A connection is over, or never came about.
    Connection(Box<ConnectionRecord>),
    /// The door itself refused something.
    Denied(Box<Denial>),
}

/// The sockets on which names are asked for: bound to port 53 of every address.
#[derive(Debug)]
pub struct DnsSockets {
    /// Datagrams. Options for the address asked are set by the door.
    pub udp: OwnedFd,
    /// A listener.
    pub tcp: OwnedFd,
}

/// What the door is started with.
pub struct Setup {
    /// The special addresses that names may lead to, the limits, what is looked
    /// into. The lists of targets are the judge's.
    pub rules: Egress,
    /// The names given out, which outlive the door.
    pub names: Arc<Names>,
    /// Where names are asked for; `None`: only by [`Service::NameServer`].
    pub dns: Option<DnsSockets>,
    /// What was made ready for these rules.
    pub edge: Arc<Edge>,
    /// The sandbox's network.
    pub namespace: Arc<dyn Namespace>,
    /// Who decides on requests to the door's proxies.
    pub judge: Arc<dyn Judge>,
    /// Where events go. Called on the door's thread: it must not wait.
    pub sink: Arc<dyn Fn(DoorEvent) + Send + Sync>,
    /// Looks names up: [`SystemResolver`](crate::SystemResolver) but in tests.
    pub resolver: Arc<dyn Resolve>,
    /// Leads to targets; `None`: they are dialled.
    pub lead: Option<Arc<dyn Lead>>,
}

/// What an address that a program connects to stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Somebody outside: by the name behind an address of ours, or by address.
    Target(Target),
    /// The door's own proxy or name server. Always allowed: what is asked of it
    /// is decided there.
    Service(Service),
    /// An address of ours that stands for nothing.
    Nobody,
}

/// What the door itself offers inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Service {
    /// CONNECT and absolute-form requests.
    HttpProxy,
    /// SOCKS5 with names.
    Socks,
    /// DNS over TCP, for programs that cannot be given datagrams.
    NameServer,
}

/// Is this the name of the machine itself: `localhost` and what is beneath it
/// (RFC 6761, 6.3)?
pub(crate) fn is_localhost(host: &str) -> bool {
    host == "localhost" || host.ends_with(".localhost")
}
