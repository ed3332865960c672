//! A door on the host's loopback: a namespace that listens there, names from a
//! table, and a judge that allows what it is told to.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod tls;

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use stockade_egress::{
    AnnouncedConnection, ConnectOrder, DialError, DnsSockets, EgressCaller, EgressDecision, EgressEvent,
    EgressNamespace, EgressPermit, EgressPolicy, EgressProxy, EgressProxySetup, EgressRequest, HostNameTable,
    NameLookupError, NameResolver, PendingDial, PreparedInterception, ProxyService, TrustRoots,
};
use stockade_model::{
    ConnectionRecord, Denial, EgressLimits, EgressRules, Grant, Host, HostName, NetworkTarget, SecretUse, TargetPattern,
};

/// Longer than dialling takes.
const CONNECT_WAIT_TIMEOUT: Duration = Duration::from_secs(60);

type ConnectAnswer = Result<AnnouncedConnection, DialError>;

/// Connects, and waits for the answer, at most a minute.
pub trait ConnectAndWait {
    fn connect_and_wait(&self, order: ConnectOrder) -> ConnectAnswer;
    fn connect_service_and_wait(
        &self,
        service: ProxyService,
        dialled: SocketAddr,
        caller: EgressCaller,
    ) -> ConnectAnswer;
}

impl ConnectAndWait for EgressProxy {
    fn connect_and_wait(&self, order: ConnectOrder) -> ConnectAnswer {
        wait_for_answer(|done| self.connect_target(order, done))
    }
    fn connect_service_and_wait(
        &self,
        service: ProxyService,
        dialled: SocketAddr,
        caller: EgressCaller,
    ) -> ConnectAnswer {
        wait_for_answer(|done| self.connect_service(service, dialled, caller, done))
    }
}

fn wait_for_answer(start: impl FnOnce(Box<dyn FnOnce(ConnectAnswer) + Send>) -> PendingDial) -> ConnectAnswer {
    let (sender, receiver) = mpsc::sync_channel(1);
    let _dialling = start(Box::new(move |answer| {
        let _ = sender.try_send(answer);
    }));
    let late = |_| Err(DialError::Failed { errno: rustix::io::Errno::TIMEDOUT, why: "the door did not answer".into() });
    receiver.recv_timeout(CONNECT_WAIT_TIMEOUT).unwrap_or_else(late)
}

/// Listens on the host's loopback, wherever it is asked to.
#[derive(Default)]
pub struct Loopback {
    pub listeners: AtomicUsize,
}

impl EgressNamespace for Loopback {
    fn listen_at(&self, _: SocketAddr) -> io::Result<OwnedFd> {
        self.listeners.fetch_add(1, Ordering::SeqCst);
        let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)?;
        rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        rustix::net::listen(&socket, 4096)?;
        Ok(socket)
    }
    fn connecting_socket(&self, _: SocketAddr) -> io::Result<OwnedFd> {
        Ok(rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)?)
    }
}

/// Names and their addresses; others do not exist. Counts who is asked for.
#[derive(Default)]
pub struct Table {
    pub names: Mutex<HashMap<String, Vec<IpAddr>>>,
    pub queries: Mutex<Vec<String>>,
}

impl NameResolver for Table {
    fn resolve_name(&self, name: &HostName) -> Result<Vec<IpAddr>, NameLookupError> {
        self.queries.lock().unwrap().push(name.to_string());
        match self.names.lock().unwrap().get(name.as_str()) {
            Some(found) => Ok(found.clone()),
            None => Err(NameLookupError::NoSuchName),
        }
    }
}

/// Allows what is on the list, and writes down what it was asked.
#[derive(Default)]
pub struct Listed {
    pub allow: Mutex<Vec<TargetPattern>>,
    pub queries: Mutex<Vec<String>>,
    /// Secrets and where they may be taken.
    pub lends: Mutex<Vec<String>>,
    /// How long a question about a secret waits.
    pub thinks: Mutex<Duration>,
}

impl Listed {
    fn decide_secret(&self, secret: SecretUse, rule: String, answer: Box<dyn FnOnce(EgressDecision) + Send>) {
        self.queries.lock().unwrap().push(format!("secret {secret}"));
        let is_approved = self.lends.lock().unwrap().contains(&secret.to_string());
        let thinks = *self.thinks.lock().unwrap();
        std::thread::spawn(move || {
            std::thread::sleep(thinks);
            answer(if is_approved {
                EgressDecision::Allowed(EgressPermit { rule: format!("grant secret {secret}") })
            } else {
                EgressDecision::Refused { rule, grant: Some(secret.into_grant()) }
            });
        });
    }
}

impl EgressPolicy for Listed {
    fn decide_request(&self, request: EgressRequest, _: &EgressCaller, answer: Box<dyn FnOnce(EgressDecision) + Send>) {
        let target = match request {
            EgressRequest::Target(target) => target,
            EgressRequest::Secret { secret, rule } => return self.decide_secret(secret, rule, answer),
            EgressRequest::Effect { message, .. } => {
                return answer(EgressDecision::Refused { rule: message.to_owned(), grant: None });
            }
        };
        self.queries.lock().unwrap().push(target.to_string());
        let found = self.allow.lock().unwrap().iter().find(|p| p.can_allow(&target)).cloned();
        answer(match found {
            Some(pattern) => EgressDecision::Allowed(EgressPermit { rule: format!("allow {pattern}") }),
            None => {
                let rule = "no entry of allow names it".into();
                let grant = (target.host.to_string() != "never.test").then(|| Grant::connect_to(&target));
                EgressDecision::Refused { rule, grant }
            }
        });
    }
    fn is_agreed(&self, name: &HostName) -> bool {
        let host = Host::Name(name.clone());
        self.allow.lock().unwrap().iter().any(|p| p.host().matches_host(&host))
    }
}

pub struct World {
    pub egress_proxy: Option<EgressProxy>,
    pub names: Arc<HostNameTable>,
    pub namespace: Arc<Loopback>,
    pub table: Arc<Table>,
    pub policy: Arc<Listed>,
    pub events: Arc<Mutex<Vec<EgressEvent>>>,
    pub dns: SocketAddr,
}

/// What a test changes of the ordinary door.
#[derive(Default)]
pub struct Options {
    pub limits: EgressLimits,
    pub allow: Vec<&'static str>,
    /// No special addresses but these; `None`: all of loopback.
    pub special: Option<Vec<&'static str>>,
    pub names: Vec<(&'static str, &'static str)>,
}

impl World {
    pub fn new(options: Options) -> Self {
        Self::with(options, |_| {})
    }

    pub fn with(options: Options, change: impl FnOnce(&mut EgressProxySetup)) -> Self {
        let special = options.special.unwrap_or_else(|| vec!["127.0.0.0/8", "::1"]);
        let patterns = |list: &[&str]| list.iter().map(|p| p.parse().unwrap()).collect::<Vec<TargetPattern>>();
        let table = Arc::new(Table::default());
        for (name, address) in &options.names {
            let addresses = address.split(' ').map(|a| a.parse().unwrap()).collect();
            table.names.lock().unwrap().insert((*name).into(), addresses);
        }
        let policy = Arc::new(Listed { allow: Mutex::new(patterns(&options.allow)), ..Listed::default() });
        let events = Arc::new(Mutex::new(Vec::new()));
        let event_log = Arc::clone(&events);
        let names = Arc::new(HostNameTable::new());
        let namespace = Arc::new(Loopback::default());
        let (udp, tcp) = dns_sockets();
        let dns = SocketAddr::from((Ipv4Addr::LOCALHOST, udp.local_addr().unwrap().port()));
        let mut setup = EgressProxySetup {
            connector: None,
            rules: EgressRules { special: patterns(&special), limits: options.limits, ..EgressRules::default() },
            names: Arc::clone(&names),
            dns: Some(DnsSockets { udp: udp.into(), tcp: tcp.into() }),
            interception: Arc::default(),
            namespace: namespace.clone(),
            policy: policy.clone(),
            sink: Arc::new(move |event| event_log.lock().unwrap().push(event)),
            resolver: table.clone(),
        };
        change(&mut setup);
        let egress_proxy = Some(EgressProxy::start(setup).unwrap());
        Self { egress_proxy, names, namespace, table, policy, events, dns }
    }

    /// A door that looks into traffic, puts secrets in and trusts these
    /// certificates, and what was made ready for it.
    pub fn looking(
        options: Options,
        trusted: &str,
        change: impl FnOnce(&mut EgressRules),
    ) -> (Self, Arc<PreparedInterception>) {
        let mut prepared = None;
        let world = Self::with(options, |setup| {
            change(&mut setup.rules);
            let interception =
                Arc::new(PreparedInterception::prepare_rules(&setup.rules, &TrustRoots::Pem(trusted.into())).unwrap());
            setup.interception = Arc::clone(&interception);
            prepared = Some(interception);
        });
        (world, prepared.unwrap())
    }

    pub fn egress_proxy(&self) -> &EgressProxy {
        self.egress_proxy.as_ref().unwrap()
    }

    pub fn order(&self, target: &str) -> ConnectOrder {
        let target: NetworkTarget = target.parse().unwrap();
        let address: IpAddr = match &target.host {
            Host::Name(name) => self.names.assign_addresses(name).unwrap().v4.into(),
            Host::Address(address) => *address,
        };
        ConnectOrder {
            dialled: SocketAddr::new(address, target.port),
            target,
            caller: EgressCaller { pid: Some(7), program: Some("/usr/bin/test".into()) },
            permit: EgressPermit { rule: "grant".into() },
            connect_timeout: None,
        }
    }

    /// What the broker does: announce, connect on behalf, tell from where.
    pub fn connect(&self, target: &str) -> Result<TcpStream, DialError> {
        self.egress_proxy().connect_and_wait(self.order(target)).map(arrive)
    }

    pub fn stop(&mut self) {
        if let Some(egress_proxy) = self.egress_proxy.take() {
            egress_proxy.stop();
        }
    }

    pub fn records(&self) -> Vec<ConnectionRecord> {
        let events = self.events.lock().unwrap();
        let record = |e: &EgressEvent| match e {
            EgressEvent::Connection(record) => Some((**record).clone()),
            EgressEvent::Denied(_) => None,
        };
        events.iter().filter_map(record).collect()
    }

    /// How many of them there are.
    pub fn recorded(&self) -> usize {
        let events = self.events.lock().unwrap();
        events.iter().filter(|event| matches!(event, EgressEvent::Connection(_))).count()
    }

    pub fn denials(&self) -> Vec<Denial> {
        let events = self.events.lock().unwrap();
        let denial = |e: &EgressEvent| match e {
            EgressEvent::Denied(denial) => Some((**denial).clone()),
            EgressEvent::Connection(_) => None,
        };
        events.iter().filter_map(denial).collect()
    }

    /// The one record, once it is there.
    pub fn record(&self) -> ConnectionRecord {
        wait_for(|| !self.records().is_empty());
        let mut records = self.records();
        assert_eq!(records.len(), 1, "{records:?}");
        records.remove(0)
    }
}

/// Both on one port, which may be taken for the other protocol.
fn dns_sockets() -> (UdpSocket, TcpListener) {
    let pair = |_| {
        let udp = UdpSocket::bind("[::]:0").unwrap();
        let tcp = TcpListener::bind(("::", udp.local_addr().unwrap().port()));
        tcp.ok().map(|tcp| (udp, tcp))
    };
    (0..100).find_map(pair).unwrap()
}

pub fn arrive(announced: AnnouncedConnection) -> TcpStream {
    let stream = TcpStream::connect(announced.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    announced.report_connected(stream.local_addr().unwrap());
    stream
}

#[track_caller]
pub fn wait_for(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < end, "it did not come about in thirty seconds");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A server on the host's loopback that does this with each connection.
pub fn serve(each: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    serve_at(Ipv4Addr::LOCALHOST.into(), each)
}

pub fn serve_at(address: IpAddr, each: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let each = Arc::new(each);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let each = Arc::clone(&each);
            std::thread::spawn(move || each(stream));
        }
    });
    port
}

/// Sends back what it gets.
pub fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

/// A port where nobody listens.
pub fn closed_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

pub fn is_reset(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    matches!(stream.read(&mut byte), Err(e) if e.kind() == io::ErrorKind::ConnectionReset)
}
