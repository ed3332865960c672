//! The host's end of a command's network access: the egress proxy. It decides by the plan and the
//! later grants, whatever the container sends.
//!
//! This module must not depend on the transport of the frames.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use stockade_backend_api::{AttemptEvent, AttemptEventSender, HeldAnswer, StartError, WeakEventSender};
use stockade_egress::{
    DialError, EgressCaller, EgressDecision, EgressEvent, EgressNamespace, EgressPermit, EgressPolicy, EgressProxy,
    EgressProxySetup, EgressRequest, NameLookupError, NameResolver, PendingDial, PreparedInterception, SystemResolver,
    TrustRoots,
};
use stockade_model::{
    AttemptPlan, Denial, DenialLayer, DenialResolution, DeniedOperation, EgressRules, Host, HostName, NetworkTarget,
    RawText,
};
use stockade_permissions::powers::PermissionRefusal;
use stockade_permissions::reachable_targets::EgressReach;
use tokio::runtime::Handle;

use crate::egress_requests::{TunnelRequest, TunnelResponse};
use crate::frames::{ChannelFrame, FrameError};
use crate::lock_mutex;
use crate::tunnel_streams::{TUNNEL_STREAMS_MAX, TunnelFrameSender, TunnelStreamTable};

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
    runtime: Handle,
    frame_sender: TunnelFrameSender,
    stream_table: OnceLock<TunnelStreamTable>,
    egress_proxy: Mutex<HostEgressState>,
    /// Requests without an answer, and the dialling of some.
    open: Mutex<Vec<(u32, Option<PendingDial>)>>,
    reports: Mutex<BTreeSet<String>>,
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
        (runtime, frame_sender): (Handle, TunnelFrameSender),
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
            runtime,
            frame_sender,
            stream_table: OnceLock::new(),
            egress_proxy: Mutex::new(HostEgressState::Shut),
            open: Mutex::default(),
            reports: Mutex::default(),
        })
    }

    /// Adds granted powers.
    pub(crate) fn apply_answer(&self, answer: &HeldAnswer) {
        if let HeldAnswer::Granted(grants) = answer {
            grants.iter().for_each(|grant| self.reach.add_grant(grant));
        }
    }

    /// Processes a frame from the container that is about network access.
    ///
    /// # Errors
    /// [`FrameError`] if the container may not send it.
    pub(crate) fn handle_frame(self: &Arc<Self>, frame: ChannelFrame) -> Result<(), FrameError> {
        match frame {
            ChannelFrame::Asked(id, question) => self.handle_request(id, &question),
            ChannelFrame::Answered(..) => Err(FrameError::WRONG_DIRECTION),
            ChannelFrame::Broken(id) => {
                // Cancelled: the answer is not needed.
                lock_mutex(&self.open).retain(|(open, _)| *open != id);
                self.tunnel_streams().handle_frame(ChannelFrame::Broken(id))
            }
            frame => self.tunnel_streams().handle_frame(frame),
        }
    }

    /// Ends the network access after the command. Sends its remaining data, for a second at most,
    /// and reports the last records.
    pub(crate) fn shut_down(&self) {
        let state = std::mem::replace(&mut *lock_mutex(&self.egress_proxy), HostEgressState::Over);
        lock_mutex(&self.open).clear();
        if let HostEgressState::Open(egress_proxy) = state {
            egress_proxy.stop();
        }
        self.tunnel_streams().break_off();
    }

    fn tunnel_streams(&self) -> &TunnelStreamTable {
        self.stream_table.get_or_init(|| TunnelStreamTable::new(Arc::clone(&self.frame_sender)))
    }

    fn handle_request(self: &Arc<Self>, id: u32, question: &[u8]) -> Result<(), FrameError> {
        let question: TunnelRequest = serde_json::from_slice(question).map_err(|_| FrameError::MALFORMED_REQUEST)?;
        let mut open = lock_mutex(&self.open);
        if open.iter().any(|(other, _)| *other == id) {
            return Err(FrameError::NUMBER_IN_USE);
        }
        if open.len() + self.tunnel_streams().stream_count() >= TUNNEL_STREAMS_MAX {
            drop(open);
            self.send_answer(id, TunnelResponse::from_errno(rustix::io::Errno::MFILE, "too many connections at once"));
            return Ok(());
        }
        open.push((id, None));
        drop(open);
        match question {
            TunnelRequest::Connect { target, pid, program } => {
                self.connect_target(id, target, EgressCaller { pid, program })
            }
            TunnelRequest::LookUp { name } => match name.parse() {
                Ok(Host::Name(name)) => self.look_up(id, name),
                Ok(Host::Address(_)) | Err(_) => self.answer_pending(id, TunnelResponse::NoSuchName),
            },
        }
        Ok(())
    }

    fn connect_target(self: &Arc<Self>, id: u32, target: NetworkTarget, caller: EgressCaller) {
        let rule = match self.reach.decide_target(&target) {
            Ok(rule) => rule,
            Err(refusal) => {
                self.tell_refused(&target, &caller, &refusal);
                return self.answer_pending(id, TunnelResponse::Refused { rule: refusal.rule });
            }
        };
        // Weak, because the egress proxy must not keep its owner alive.
        let own = Arc::downgrade(self);
        let on_dialled = move |dial_result| {
            if let Some(own) = own.upgrade() {
                own.handle_dial_result(id, dial_result);
            }
        };
        let dialling = self
            .with_proxy(|egress_proxy| egress_proxy.dial_for_tunnel(target, caller, EgressPermit { rule }, on_dialled));
        match dialling {
            Ok(dialling) => {
                let mut open = lock_mutex(&self.open);
                match open.iter_mut().find(|(other, _)| *other == id) {
                    Some(entry) => entry.1 = Some(dialling),
                    // Answered already.
                    None => dialling.detach(),
                }
            }
            Err(error) => {
                self.answer_pending(id, TunnelResponse::from_errno(rustix::io::Errno::NETDOWN, &error.to_string()))
            }
        }
    }

    /// Handles the result of dialling, on the proxy's thread.
    fn handle_dial_result(self: &Arc<Self>, id: u32, dial_result: Result<TcpStream, DialError>) {
        let stream = match dial_result {
            Ok(stream) => stream,
            Err(failure) => return self.answer_pending(id, TunnelResponse::from_dial_error(&failure)),
        };
        // Under one lock, because it counts either as a request or as a connection.
        let mut open = lock_mutex(&self.open);
        if remove_request(&mut open, id).is_none() {
            return;
        }
        let begun = self.tunnel_streams().start_stream(
            id,
            (stream, Some(TunnelResponse::Connected.to_frame(id))),
            &self.runtime,
        );
        drop(open);
        if let Err(error) = begun {
            self.send_answer(id, TunnelResponse::from_errno(rustix::io::Errno::NETDOWN, &error.to_string()));
        }
    }

    fn look_up(self: &Arc<Self>, id: u32, name: HostName) {
        if !self.reach.allows_name(&name) {
            // No lookup is made outside, because it would carry data out.
            return self.answer_pending(id, TunnelResponse::Addresses(Err("no rule matches this name".to_owned())));
        }
        let own = Arc::clone(self);
        self.runtime.spawn(async move {
            let resolver = Arc::clone(&own.resolver);
            let looked = tokio::task::spawn_blocking(move || resolver.resolve_name(&name));
            let answer = match tokio::time::timeout(LOOKUP_TIMEOUT, looked).await {
                Ok(Ok(Ok(addresses))) => TunnelResponse::from_addresses(addresses),
                Ok(Ok(Err(NameLookupError::NoSuchName))) => TunnelResponse::NoSuchName,
                Ok(Ok(Err(NameLookupError::Failed(why)))) => TunnelResponse::Addresses(Err(why)),
                Ok(Err(_)) | Err(_) => TunnelResponse::Addresses(Err("no answer in ten seconds".to_owned())),
            };
            own.answer_pending(id, answer);
        });
    }

    /// Answers a request, unless it was cancelled.
    fn answer_pending(&self, id: u32, answer: TunnelResponse) {
        let settled = remove_request(&mut lock_mutex(&self.open), id);
        if settled.is_some() {
            self.send_answer(id, answer);
        }
    }

    fn send_answer(&self, id: u32, answer: TunnelResponse) {
        let posted = (self.frame_sender)(answer.to_frame(id));
        self.runtime.spawn(async move {
            posted.await;
        });
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

    /// Reports a request that the container made without permission.
    fn tell_refused(&self, target: &NetworkTarget, caller: &EgressCaller, refusal: &PermissionRefusal) {
        let mut reports = lock_mutex(&self.reports);
        let object = target.to_string();
        if reports.len() >= REPORTED_REFUSALS_MAX || !reports.insert(object.clone()) {
            return;
        }
        let denial = refusal_denial(&object, refusal);
        self.events.send_event(AttemptEvent::Denied(Denial {
            pid: caller.pid,
            program: caller.program.clone(),
            ..denial
        }));
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

/// Removes a request, and detaches its dialling.
fn remove_request(open: &mut Vec<(u32, Option<PendingDial>)>, id: u32) -> Option<()> {
    let at = open.iter().position(|(other, _)| *other == id)?;
    if let (_, Some(dialling)) = open.swap_remove(at) {
        dialling.detach();
    }
    Some(())
}

/// Decides by the approved targets; questions are put by the other end in the container.
struct ApprovedTargetPolicy(EgressReach);

impl EgressPolicy for ApprovedTargetPolicy {
    fn decide_request(
        &self,
        egress_request: EgressRequest,
        _caller: &EgressCaller,
        answer: Box<dyn FnOnce(EgressDecision) + Send>,
    ) {
        let decided = match &egress_request {
            EgressRequest::Target(target) => self.0.decide_target(target),
            EgressRequest::Secret { secret, rule } => self.0.decide_secret(secret, rule),
            EgressRequest::Effect { effect, message, .. } => self.0.decide_effect(effect, message),
        };
        answer(match decided {
            Ok(rule) => EgressDecision::Allowed(EgressPermit { rule }),
            Err(refusal) => EgressDecision::Refused { rule: refusal.rule, grant: refusal.grant },
        });
    }

    fn is_agreed(&self, name: &HostName) -> bool {
        self.0.allows_name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::{Read as _, Write as _};
    use std::net::{IpAddr, Ipv4Addr, TcpListener};
    use std::sync::mpsc::{Receiver, channel};

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use stockade_model::{
        EnvironmentRules, ExecRules, FilesystemAccess, IsolationLevel, Limits, NetworkAccess, Profile, RequestId,
        SandboxId,
    };

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

    /// The host's end, with its output.
    struct Host {
        outside: Arc<HostEgress>,
        posted: Receiver<ChannelFrame>,
        reports: Receiver<AttemptEvent>,
        _events: AttemptEventSender,
        _runtime: tokio::runtime::Runtime,
    }

    fn plan(grants: &[String]) -> AttemptPlan {
        let special = ["127.0.0.0/8".parse().unwrap()].into();
        AttemptPlan {
            request: RequestId::from_random([1; 16]),
            attempt: 1,
            argv: vec!["true".into()],
            environment: BTreeMap::new(),
            cwd: "/workspace".into(),
            workspace: "/workspace".into(),
            profile: Profile {
                name: SandboxId::from_random([1; 16]).to_string(),
                sandboxed: true,
                filesystem: FilesystemAccess::default(),
                exec: ExecRules::default(),
                network: NetworkAccess::None,
                egress: EgressRules { special, ..EgressRules::default() },
                environment: EnvironmentRules::default(),
                limits: Limits::default(),
            },
            grants: grants.iter().map(|grant| grant.parse().unwrap()).collect(),
            effects: Vec::new(),
            level: IsolationLevel::Full,
            backend: "docker".to_owned(),
        }
    }

    fn host(grants: &[String]) -> Host {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, posted) = channel();
        let frame_sender: TunnelFrameSender =
            Arc::new(move |frame| Box::pin(std::future::ready(sender.send(frame).is_ok())));
        let (teller, reports) = channel();
        let events = AttemptEventSender::new(move |event| drop(teller.send(event)));
        let around = (runtime.handle().clone(), frame_sender);
        let outside = HostEgress::for_plan(&plan(grants), Some(Arc::new(Loopback)), &events, around).unwrap();
        Host { outside: Arc::new(outside), posted, reports, _events: events, _runtime: runtime }
    }

    impl Host {
        fn ask(&self, id: u32, question: &TunnelRequest) -> TunnelResponse {
            self.outside.handle_frame(question.to_frame(id)).unwrap();
            loop {
                match self.posted.recv_timeout(TIMEOUT).unwrap() {
                    ChannelFrame::Answered(to, answer) if to == id => return serde_json::from_slice(&answer).unwrap(),
                    _ => {}
                }
            }
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
        for (id, target) in
            [(1, format!("evil.test:{port}")), (2, format!("127.0.0.1:{port}")), (3, "good.test:1".to_owned())]
        {
            let answer = host.ask(id, &connect(&target));
            assert!(matches!(answer, TunnelResponse::Refused { .. }), "{target}: {answer:?}");
            let AttemptEvent::Denied(denial) = host.reports.recv_timeout(TIMEOUT).unwrap() else { panic!("not told") };
            assert_eq!(denial.grant, Some(format!("connect {target}").parse().unwrap()));
        }
        assert!(client_texts.try_recv().is_err(), "somebody was reached");
        // Control: a granted target is reached.
        assert_eq!(host.ask(4, &connect(&format!("good.test:{port}"))), TunnelResponse::Connected);
        let ChannelFrame::Piece(4, hello) = host.posted.recv_timeout(TIMEOUT).unwrap() else { panic!("no bytes") };
        assert_eq!(hello, b"hello");
        host.outside.handle_frame(ChannelFrame::Piece(4, b"and hello".to_vec())).unwrap();
        host.outside.handle_frame(ChannelFrame::Piece(4, Vec::new())).unwrap();
        assert_eq!(client_texts.recv_timeout(TIMEOUT).unwrap(), "and hello");
        host.outside.shut_down();
        let AttemptEvent::Connection(record) = host.reports.recv_timeout(TIMEOUT).unwrap() else { panic!("no record") };
        assert_eq!(
            (record.target.to_string(), record.bytes_up, record.bytes_down),
            (format!("good.test:{port}"), 9, 5)
        );
        // After the end there is no network access.
        assert!(matches!(host.ask(5, &connect(&format!("good.test:{port}"))), TunnelResponse::Failed { .. }));
    }

    #[test]
    fn later_grants_count_and_names_need_permission() {
        let (port, _client_texts) = server();
        let host = host(&[]);
        let target = format!("late.test:{port}");
        let look_up = |name: &str| TunnelRequest::LookUp { name: name.to_owned() };
        assert!(matches!(host.ask(1, &connect(&target)), TunnelResponse::Refused { .. }));
        assert!(matches!(host.ask(2, &look_up("late.test")), TunnelResponse::Addresses(Err(_))));
        host.outside.apply_answer(&HeldAnswer::Refused);
        assert!(matches!(host.ask(3, &connect(&target)), TunnelResponse::Refused { .. }));
        host.outside.apply_answer(&HeldAnswer::Granted(vec![format!("connect {target}").parse().unwrap()]));
        assert!(matches!(host.ask(4, &look_up("late.test")), TunnelResponse::Addresses(Ok(_))));
        assert!(matches!(host.ask(5, &look_up("secret-data.evil.test")), TunnelResponse::Addresses(Err(_))));
        assert_eq!(host.ask(6, &connect(&target)), TunnelResponse::Connected);
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
        let stands = |id: u32| host.ask(id, &connect(&target)) == TunnelResponse::Connected;
        for id in 0..TUNNEL_STREAMS_MAX as u32 {
            assert!(stands(id), "{id}");
        }
        assert!(!stands(1000));
        assert_eq!(host.outside.handle_frame(ChannelFrame::Answered(1, Vec::new())), Err(FrameError::WRONG_DIRECTION));
        assert_eq!(
            host.outside.handle_frame(ChannelFrame::Asked(1001, b"what".to_vec())),
            Err(FrameError::MALFORMED_REQUEST)
        );
        // A connection that ends makes room.
        host.outside.handle_frame(ChannelFrame::Broken(7)).unwrap();
        let give_up = std::time::Instant::now() + TIMEOUT;
        while host.outside.tunnel_streams().stream_count() == TUNNEL_STREAMS_MAX && std::time::Instant::now() < give_up
        {
            std::thread::yield_now();
        }
        assert!(stands(1002));
        host.outside.shut_down();
    }
}
