//! The host's end of a command's network access: the egress proxy. It decides by the plan and the
//! later grants, whatever the container sends.
//!
//! This module must not depend on the transport of the streams.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use rustix::io::Errno;
use stockade_backend_api::{AttemptEvent, AttemptEventSender, HeldAnswer, StartError, WeakEventSender};
use stockade_egress::{
    EgressCaller, EgressDecision, EgressEvent, EgressNamespace, EgressPermit, EgressPolicy, EgressProxy,
    EgressProxySetup, EgressRequest, NameLookupError, NameResolver, PreparedInterception, SystemResolver, TrustRoots,
};
use stockade_model::{
    AttemptPlan, Denial, DenialLayer, DenialResolution, DeniedOperation, EgressRules, Host, HostName, NetworkTarget,
    RawText,
};
use stockade_permissions::powers::PermissionRefusal;
use stockade_permissions::reachable_targets::EgressReach;
use tokio::sync::{Semaphore, oneshot};

use crate::egress_requests::{TunnelRequest, TunnelResponse, receive_request, send_answer};
use crate::lock_mutex;
use crate::multiplexer::{TUNNEL_STREAMS_MAX, violation};
use crate::tunnel_streams::forward_connection;

/// Time-out for resolving a name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Most different refusals by the host that are reported for one attempt.
const REPORTED_REFUSALS_MAX: usize = 256;

/// Network access of one command's container.
pub(crate) struct HostEgress {
    reach: EgressReach,
    rules: EgressRules,
    interception: Arc<PreparedInterception>,
    resolver: Arc<dyn NameResolver>,
    events: WeakEventSender,
    egress_proxy: Mutex<HostEgressState>,
    /// One for each connection or request.
    permits: Semaphore,
    reports: RefusalReports,
}

enum HostEgressState {
    /// Not needed yet.
    Shut,
    Open(EgressProxy),
    /// The command has ended.
    Over,
}

impl HostEgress {
    /// Creates it for a plan. Nothing is started before the first request.
    ///
    /// # Errors
    /// [`StartError`] if the plan requires that requests are read or secrets are injected.
    pub(crate) fn for_plan(
        plan: &AttemptPlan,
        resolver: Option<Arc<dyn NameResolver>>,
        events: &AttemptEventSender,
    ) -> Result<Self, StartError> {
        let rules = plan.profile.egress.clone();
        let interception = PreparedInterception::prepare_rules(&rules, &TrustRoots::System);
        let interception = interception.map_err(|error| StartError { what: error.to_string(), hint: None })?;
        if interception.bundle_pem().is_some() || interception.secret_placeholders().next().is_some() {
            let what = "a persistent sandbox does not support request inspection or secrets".to_owned();
            return Err(StartError { what, hint: Some("use `stockade run`, or a profile without secrets".to_owned()) });
        }
        Ok(Self {
            reach: EgressReach::from_plan(plan),
            rules,
            interception: Arc::new(interception),
            resolver: resolver.unwrap_or_else(|| Arc::<SystemResolver>::default()),
            events: events.downgrade(),
            egress_proxy: Mutex::new(HostEgressState::Shut),
            permits: Semaphore::new(TUNNEL_STREAMS_MAX),
            reports: RefusalReports::new(events.downgrade(), REPORTED_REFUSALS_MAX),
        })
    }

    /// Adds granted powers.
    pub(crate) fn apply_answer(&self, answer: &HeldAnswer) {
        if let HeldAnswer::Granted(grants) = answer {
            grants.iter().for_each(|grant| self.reach.add_grant(grant));
        }
    }

    /// Serves a stream from the container: one request, and the connection.
    ///
    /// # Errors
    /// [`io::Error`]: of kind `InvalidData` if the container violates the protocol, of another kind
    /// if the stream fails.
    pub(crate) async fn serve_tunnel(
        self: Arc<Self>,
        receiver: RecvStream,
        respond: SendResponse<Bytes>,
    ) -> io::Result<()> {
        let (request, mut receiver) = receive_request(receiver).await?;
        let Ok(_permit) = self.permits.try_acquire() else {
            let answer = TunnelResponse::from_errno(Errno::MFILE, "too many connections at once");
            return send_answer(respond, &answer).await.map(drop);
        };
        let answered = tokio::select! {
            answered = self.answer_request(request) => answered,
            early = receiver.data() => return match early {
                Some(Ok(_)) => Err(violation("bytes before they were expected")),
                // Cancelled: the answer is not needed.
                Some(Err(_)) | None => Ok(()),
            },
        };
        match answered {
            Ok(connection) => {
                let sender = send_answer(respond, &TunnelResponse::Connected).await?;
                forward_connection(connection, (sender, receiver), ()).await
            }
            Err(answer) => send_answer(respond, &answer).await.map(drop),
        }
    }

    /// Ends the network access after the command. Sends its remaining data, for a second at most,
    /// resets the connections, and reports the last records.
    pub(crate) fn shut_down(&self) {
        let state = std::mem::replace(&mut *lock_mutex(&self.egress_proxy), HostEgressState::Over);
        if let HostEgressState::Open(egress_proxy) = state {
            egress_proxy.stop();
        }
    }

    /// Returns the requested connection, or another answer.
    async fn answer_request(&self, request: TunnelRequest) -> Result<TcpStream, TunnelResponse> {
        match request {
            TunnelRequest::Connect { target, pid, program } => {
                self.connect_target(target, EgressCaller { pid, program }).await
            }
            TunnelRequest::LookUp { name } => Err(match name.parse() {
                Ok(Host::Name(name)) => self.look_up(name).await,
                Ok(Host::Address(_)) | Err(_) => TunnelResponse::NoSuchName,
            }),
        }
    }

    async fn connect_target(&self, target: NetworkTarget, caller: EgressCaller) -> Result<TcpStream, TunnelResponse> {
        let rule = self.reach.decide_target(&target).map_err(|refusal| {
            self.reports.report_refusal(&target.to_string(), &caller, &refusal);
            TunnelResponse::Refused { rule: refusal.rule }
        })?;
        let (tell, dial_result) = oneshot::channel();
        // The receiver is gone if the request was cancelled.
        let on_dialled = move |result| drop(tell.send(result));
        let over = |error: &dyn std::fmt::Display| TunnelResponse::from_errno(Errno::NETDOWN, &error.to_string());
        // Cancelled if the request is.
        let _dialling = self
            .with_proxy(|egress_proxy| egress_proxy.dial_for_tunnel(target, caller, EgressPermit { rule }, on_dialled))
            .map_err(|error| over(&error))?;
        let dial_result = dial_result.await.map_err(|_| over(&"the command is over"))?;
        dial_result.map_err(|failure| TunnelResponse::from_dial_error(&failure))
    }

    async fn look_up(&self, name: HostName) -> TunnelResponse {
        if !self.reach.allows_name(&name) {
            // No lookup is made outside, because it would carry data out.
            return TunnelResponse::Addresses(Err("no rule matches this name".to_owned()));
        }
        let resolver = Arc::clone(&self.resolver);
        let looked = tokio::task::spawn_blocking(move || resolver.resolve_name(&name));
        match tokio::time::timeout(LOOKUP_TIMEOUT, looked).await {
            Ok(Ok(Ok(addresses))) => TunnelResponse::from_addresses(addresses),
            Ok(Ok(Err(NameLookupError::NoSuchName))) => TunnelResponse::NoSuchName,
            Ok(Ok(Err(NameLookupError::Failed(why)))) => TunnelResponse::Addresses(Err(why)),
            Ok(Err(_)) | Err(_) => TunnelResponse::Addresses(Err("no answer in ten seconds".to_owned())),
        }
    }

    fn with_proxy<T>(&self, then: impl FnOnce(&EgressProxy) -> T) -> io::Result<T> {
        let mut state = lock_mutex(&self.egress_proxy);
        if let HostEgressState::Shut = &*state {
            *state = HostEgressState::Open(self.start_proxy()?);
        }
        match &*state {
            HostEgressState::Open(egress_proxy) => Ok(then(egress_proxy)),
            HostEgressState::Shut | HostEgressState::Over => Err(io::Error::other("the command is over")),
        }
    }

    fn start_proxy(&self) -> io::Result<EgressProxy> {
        let events = self.events.clone();
        let setup = EgressProxySetup {
            rules: self.rules.clone(),
            names: Arc::default(),
            dns: None,
            interception: Arc::clone(&self.interception),
            namespace: Arc::new(DisconnectedNamespace),
            policy: Arc::new(ApprovedTargetPolicy(self.reach.clone())),
            sink: Arc::new(move |event| {
                events.send_event(match event {
                    EgressEvent::Connection(record) => AttemptEvent::Connection(record),
                    EgressEvent::Denied(denial) => AttemptEvent::Denied(*denial),
                });
            }),
            resolver: Arc::clone(&self.resolver),
            connector: None,
        };
        EgressProxy::start(setup).map_err(io::Error::other)
    }
}

/// Receives a decision.
pub(crate) type DecisionCallback = Box<dyn FnOnce(EgressDecision) + Send>;

/// Converts a decision by permissions.
pub(crate) fn egress_decision(decided: Result<String, PermissionRefusal>) -> EgressDecision {
    match decided {
        Ok(rule) => EgressDecision::Allowed(EgressPermit { rule }),
        Err(PermissionRefusal { rule, grant }) => EgressDecision::Refused { rule, grant },
    }
}

/// Reports each refused request of an attempt once.
pub(crate) struct RefusalReports {
    events: WeakEventSender,
    max: usize,
    reported: Mutex<BTreeSet<String>>,
}

impl RefusalReports {
    /// At most so many different ones.
    pub(crate) fn new(events: WeakEventSender, max: usize) -> Self {
        Self { events, max, reported: Mutex::default() }
    }

    pub(crate) fn report_refusal(&self, object: &str, caller: &EgressCaller, refusal: &PermissionRefusal) {
        let mut reported = lock_mutex(&self.reported);
        if reported.len() < self.max && reported.insert(object.to_owned()) {
            drop(reported);
            let EgressCaller { pid, program } = caller.clone();
            self.events.send_event(AttemptEvent::Denied(Denial { pid, program, ..refusal_denial(object, refusal) }));
        }
    }
}

/// No network namespace: listeners are handed over, and nothing connects to them.
pub(crate) struct DisconnectedNamespace;

impl EgressNamespace for DisconnectedNamespace {
    fn listen_at(&self, _at: SocketAddr) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn connecting_socket(&self, _like: SocketAddr) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Returns the denial of a connection, by an unknown process.
pub(crate) fn refusal_denial(object: &str, refusal: &PermissionRefusal) -> Denial {
    Denial {
        operation: DeniedOperation::Connect,
        object: RawText::from(object),
        pid: None,
        program: None,
        layer: DenialLayer::Network,
        rule: refusal.rule.clone(),
        grant: refusal.grant.clone(),
        resolution: DenialResolution::Recorded,
        count: 1,
    }
}

/// Decides by the approved targets; questions are put by the other end in the container.
struct ApprovedTargetPolicy(EgressReach);

impl EgressPolicy for ApprovedTargetPolicy {
    fn decide_request(&self, egress_request: EgressRequest, _caller: &EgressCaller, answer: DecisionCallback) {
        let decided = match &egress_request {
            EgressRequest::Target(target) => self.0.decide_target(target),
            EgressRequest::Secret { secret, rule } => self.0.decide_secret(secret, rule),
            EgressRequest::Effect { effect, message, .. } => self.0.decide_effect(effect, message),
        };
        answer(egress_decision(decided));
    }

    fn is_agreed(&self, name: &HostName) -> bool {
        self.0.allows_name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{IpAddr, Ipv4Addr, TcpListener};
    use std::sync::mpsc::{Receiver, channel};

    use h2::SendStream;
    use h2::client::SendRequest;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use crate::egress_requests::{TUNNEL_PATH, send_request};
    use crate::multiplexer::{
        accept_streams, connect_streams, encode_message, finish_sending, open_stream, send_bytes,
    };

    use crate::shared_tests::plan;

    const TIMEOUT: Duration = Duration::from_secs(30);

    struct Loopback;

    impl NameResolver for Loopback {
        fn resolve_name(&self, name: &HostName) -> Result<Vec<IpAddr>, NameLookupError> {
            match name.as_str() {
                "nobody.test" => Err(NameLookupError::NoSuchName),
                _ => Ok(vec![Ipv4Addr::LOCALHOST.into()]),
            }
        }
    }

    /// The host's end, and the streams of the container.
    struct Host {
        outside: Arc<HostEgress>,
        requests: SendRequest<Bytes>,
        /// What ended the streams of the container.
        ends: Receiver<io::Result<()>>,
        reports: Receiver<AttemptEvent>,
        _events: AttemptEventSender,
        runtime: tokio::runtime::Runtime,
    }

    fn host(grants: &[String]) -> Host {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (teller, reports) = channel();
        let events = AttemptEventSender::new(move |event| drop(teller.send(event)));
        let outside = Arc::new(HostEgress::for_plan(&plan(grants), Some(Arc::new(Loopback)), &events).unwrap());
        let (tell, ends) = channel();
        let (inside, channel) = tokio::io::duplex(64 << 10);
        let served = Arc::clone(&outside);
        runtime.spawn(async move {
            let mut accepted = accept_streams(channel).await.unwrap();
            while let Some(Ok((request, respond))) = accepted.accept().await {
                let (served, tell) = (Arc::clone(&served), tell.clone());
                tokio::spawn(async move { tell.send(served.serve_tunnel(request.into_body(), respond).await) });
            }
        });
        let (requests, connection) = runtime.block_on(connect_streams(inside)).unwrap();
        runtime.spawn(connection);
        Host { outside, requests, ends, reports, _events: events, runtime }
    }

    type Stream = (SendStream<Bytes>, RecvStream);

    impl Host {
        fn open(&self, request: &TunnelRequest) -> (TunnelResponse, Stream) {
            let asked = send_request(&self.requests, request);
            self.runtime.block_on(async { tokio::time::timeout(TIMEOUT, asked).await.unwrap().unwrap() })
        }

        fn ask(&self, request: &TunnelRequest) -> TunnelResponse {
            self.open(request).0
        }

        /// Opens a stream with these bytes in place of a request, and returns its end.
        fn open_raw(&self, bytes: &[u8]) -> io::Result<()> {
            let (_response, _stream) = self.runtime.block_on(async {
                let (response, mut stream) = open_stream(&self.requests, TUNNEL_PATH, false).await.unwrap();
                send_bytes(&mut stream, Bytes::copy_from_slice(bytes)).await.unwrap();
                (response, stream)
            });
            self.ends.recv_timeout(TIMEOUT).unwrap()
        }
    }

    fn connect(target: &str) -> TunnelRequest {
        TunnelRequest::Connect { target: target.parse().unwrap(), pid: Some(1), program: None }
    }

    /// Sends "hello" to every client, and reads to the end.
    fn server() -> (u16, Receiver<String>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, client_texts) = channel();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let sender = sender.clone();
                std::thread::spawn(move || {
                    stream.write_all(b"hello").unwrap();
                    let mut text = String::new();
                    let _ = stream.read_to_string(&mut text);
                    let _ = sender.send(text);
                });
            }
        });
        (port, client_texts)
    }

    #[test]
    fn the_host_decides_whatever_the_inside_claims() {
        let (port, client_texts) = server();
        let host = host(&[format!("connect good.test:{port}")]);
        // Forged: the container has no permission for these.
        for target in [format!("evil.test:{port}"), format!("127.0.0.1:{port}"), "good.test:1".to_owned()] {
            let answer = host.ask(&connect(&target));
            assert!(matches!(answer, TunnelResponse::Refused { .. }), "{target}: {answer:?}");
            let AttemptEvent::Denied(denial) = host.reports.recv_timeout(TIMEOUT).unwrap() else { panic!("not told") };
            assert_eq!(denial.grant, Some(format!("connect {target}").parse().unwrap()));
        }
        assert!(client_texts.try_recv().is_err(), "somebody was reached");
        // Control: a granted target is reached.
        let (answer, (mut sender, mut receiver)) = host.open(&connect(&format!("good.test:{port}")));
        assert_eq!(answer, TunnelResponse::Connected);
        host.runtime.block_on(async {
            assert_eq!(receiver.data().await.unwrap().unwrap(), "hello");
            send_bytes(&mut sender, Bytes::from_static(b"and hello")).await.unwrap();
            finish_sending(&mut sender).unwrap();
        });
        assert_eq!(client_texts.recv_timeout(TIMEOUT).unwrap(), "and hello");
        host.outside.shut_down();
        let AttemptEvent::Connection(record) = host.reports.recv_timeout(TIMEOUT).unwrap() else { panic!("no record") };
        assert_eq!(
            (record.target.to_string(), record.bytes_up, record.bytes_down),
            (format!("good.test:{port}"), 9, 5)
        );
        // After the end there is no network access.
        assert!(matches!(host.ask(&connect(&format!("good.test:{port}"))), TunnelResponse::Failed { .. }));
    }

    #[test]
    fn later_grants_count_and_names_need_permission() {
        let (port, _client_texts) = server();
        let host = host(&[]);
        let target = format!("late.test:{port}");
        let look_up = |name: &str| TunnelRequest::LookUp { name: name.to_owned() };
        assert!(matches!(host.ask(&connect(&target)), TunnelResponse::Refused { .. }));
        assert!(matches!(host.ask(&look_up("late.test")), TunnelResponse::Addresses(Err(_))));
        host.outside.apply_answer(&HeldAnswer::Refused);
        assert!(matches!(host.ask(&connect(&target)), TunnelResponse::Refused { .. }));
        host.outside.apply_answer(&HeldAnswer::Granted(vec![format!("connect {target}").parse().unwrap()]));
        assert!(matches!(host.ask(&look_up("late.test")), TunnelResponse::Addresses(Ok(_))));
        assert!(matches!(host.ask(&look_up("secret-data.evil.test")), TunnelResponse::Addresses(Err(_))));
        assert_eq!(host.ask(&connect(&target)), TunnelResponse::Connected);
        host.outside.shut_down();
    }

    #[test]
    fn there_are_so_many_connections_at_most() {
        // Both ends of all connections are in this process, which needs more descriptors than the
        // default limit.
        let files = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).unwrap();
        let (port, _client_texts) = server();
        let target = format!("good.test:{port}");
        let host = host(&[format!("connect {target}")]);
        let mut streams = Vec::new();
        for number in 0..TUNNEL_STREAMS_MAX {
            let (answer, stream) = host.open(&connect(&target));
            assert_eq!(answer, TunnelResponse::Connected, "{number}");
            streams.push(stream);
        }
        let too_many = host.ask(&connect(&target));
        assert!(matches!(too_many, TunnelResponse::Failed { errno, .. } if errno == Errno::MFILE.raw_os_error()));
        // A connection that ends makes room.
        drop(streams.pop());
        let give_up = std::time::Instant::now() + TIMEOUT;
        while host.ask(&connect(&target)) != TunnelResponse::Connected {
            assert!(std::time::Instant::now() < give_up, "an ended connection makes no room");
        }
        host.outside.shut_down();
    }
    #[test]
    fn only_a_request_may_arrive_before_the_answer() {
        let host = host(&[]);
        let request = encode_message(&TunnelRequest::LookUp { name: "late.test".to_owned() }).unwrap();
        for (bytes, what) in [
            (&b"\x04\0\0\0what"[..], "a malformed request"),
            (b"\0\0\x01\0", "a message that is too long"),
            (&[&request[..], b"early"].concat(), "bytes before they were expected"),
        ] {
            let error = host.open_raw(bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert_eq!(error.to_string(), format!("the other side sent {what}"));
        }
        // Control: the other requests are answered.
        assert!(matches!(host.ask(&connect("late.test:1")), TunnelResponse::Refused { .. }));
    }
}
