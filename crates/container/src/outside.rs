//! The host's end of a command's network access: the egress proxy. It decides by the plan and the
//! later grants, whatever the container sends.
//!
//! This module must not depend on the transport of the frames.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use stockade_egress::{
    DialFailure, Dialling, Door, DoorEvent, Edge, Judge, Judgement, LookupError, Namespace, Permit, Resolve, Setup,
    SystemResolver, Trust, Wanted, Who,
};
use stockade_engine::{AttemptEvent, Events, HeldAnswer, StartError, WeakEvents};
use stockade_model::{Denial, Egress, Grant, Host, HostName, Layer, Operation, Plan, RawText, Resolution, Target};
use stockade_native::reach::Reach;
use tokio::runtime::Handle;

use crate::frames::{Frame, FrameError};
use crate::passages::{PASSAGES_MAX, Passages, Post};
use crate::question::{Answer, Question};

/// Time-out for resolving a name.
const LOOKUP_MAX: Duration = Duration::from_secs(10);
/// Most different refusals by the host that are reported for one attempt.
const TOLD_MAX: usize = 256;

/// Network access of one command's container.
pub(crate) struct Outside {
    reach: Reach,
    rules: Egress,
    edge: Arc<Edge>,
    resolver: Arc<dyn Resolve>,
    events: WeakEvents,
    runtime: Handle,
    post: Post,
    passages: OnceLock<Passages>,
    door: Mutex<State>,
    /// Requests without an answer, and the dialling of some.
    open: Mutex<Vec<(u32, Option<Dialling>)>>,
    told: Mutex<BTreeSet<String>>,
}

enum State {
    /// Not needed yet.
    Shut,
    Open(Door),
    /// The command has ended.
    Over,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Outside {
    /// Creates it for a plan. Nothing is started before the first request.
    ///
    /// # Errors
    /// [`StartError`] if the plan requires that requests are read or secrets are injected.
    pub(crate) fn of(
        plan: &Plan,
        resolver: Option<Arc<dyn Resolve>>,
        events: &Events,
        (runtime, post): (Handle, Post),
    ) -> Result<Self, StartError> {
        let rules = plan.profile.egress.clone();
        let edge = Edge::prepare(&rules, &Trust::System);
        let edge = edge.map_err(|error| StartError { what: error.to_string(), hint: None })?;
        if edge.bundle_pem().is_some() || edge.placeholders().next().is_some() {
            let what = "in a sandbox that lasts no request is read and no secret put in".to_owned();
            return Err(StartError { what, hint: Some("use `stockade run`, or a profile without secrets".to_owned()) });
        }
        Ok(Self {
            reach: Reach::of(plan),
            rules,
            edge: Arc::new(edge),
            resolver: resolver.unwrap_or_else(|| Arc::<SystemResolver>::default()),
            events: events.downgrade(),
            runtime,
            post,
            passages: OnceLock::new(),
            door: Mutex::new(State::Shut),
            open: Mutex::default(),
            told: Mutex::default(),
        })
    }

    /// Adds granted powers.
    pub(crate) fn agree(&self, answer: &HeldAnswer) {
        if let HeldAnswer::Granted(grants) = answer {
            grants.iter().for_each(|grant| self.reach.add(grant));
        }
    }

    /// Processes a frame from the container that is about network access.
    ///
    /// # Errors
    /// [`FrameError`] if the container may not send it.
    pub(crate) fn take(self: &Arc<Self>, frame: Frame) -> Result<(), FrameError> {
        match frame {
            Frame::Asked(id, question) => self.asked(id, &question),
            Frame::Answered(..) => Err(FrameError::WRONG_WAY),
            Frame::Broken(id) => {
                // Cancelled: the answer is not needed.
                lock(&self.open).retain(|(open, _)| *open != id);
                self.passages().take(Frame::Broken(id))
            }
            frame => self.passages().take(frame),
        }
    }

    /// Ends the network access after the command. Sends its remaining data, for a second at most,
    /// and reports the last records.
    pub(crate) fn close(&self) {
        let state = std::mem::replace(&mut *lock(&self.door), State::Over);
        lock(&self.open).clear();
        if let State::Open(door) = state {
            door.stop();
        }
        self.passages().break_off();
    }

    fn passages(&self) -> &Passages {
        self.passages.get_or_init(|| Passages::new(Arc::clone(&self.post)))
    }

    fn asked(self: &Arc<Self>, id: u32, question: &[u8]) -> Result<(), FrameError> {
        let question: Question = serde_json::from_slice(question).map_err(|_| FrameError::NO_QUESTION)?;
        let mut open = lock(&self.open);
        if open.iter().any(|(other, _)| *other == id) {
            return Err(FrameError::TAKEN_NUMBER);
        }
        if open.len() + self.passages().count() >= PASSAGES_MAX {
            drop(open);
            self.answer(id, Answer::failed(rustix::io::Errno::MFILE, "too many connections at once"));
            return Ok(());
        }
        open.push((id, None));
        drop(open);
        match question {
            Question::Connect { target, pid, program } => self.connect(id, target, Who { pid, program }),
            Question::LookUp { name } => match name.parse() {
                Ok(Host::Name(name)) => self.look_up(id, name),
                Ok(Host::Address(_)) | Err(_) => self.settle(id, Answer::NoSuchName),
            },
        }
        Ok(())
    }

    fn connect(self: &Arc<Self>, id: u32, target: Target, who: Who) {
        let rule = match self.reach.decide(&target) {
            Ok(rule) => rule,
            Err(refusal) => {
                self.tell_refused(&target, &who, &refusal.rule, refusal.grant);
                return self.settle(id, Answer::Refused { rule: refusal.rule });
            }
        };
        // Weak, because the egress proxy must not keep its owner alive.
        let own = Arc::downgrade(self);
        let led = move |led| {
            if let Some(own) = own.upgrade() {
                own.led(id, led);
            }
        };
        let dialling = self.with_door(|door| door.lead(target, who, Permit { rule }, led));
        match dialling {
            Ok(dialling) => {
                let mut open = lock(&self.open);
                match open.iter_mut().find(|(other, _)| *other == id) {
                    Some(entry) => entry.1 = Some(dialling),
                    // Answered already.
                    None => dialling.detach(),
                }
            }
            Err(error) => self.settle(id, Answer::failed(rustix::io::Errno::NETDOWN, &error.to_string())),
        }
    }

    /// Handles the result of dialling, on the proxy's thread.
    fn led(self: &Arc<Self>, id: u32, led: Result<TcpStream, DialFailure>) {
        let stream = match led {
            Ok(stream) => stream,
            Err(failure) => return self.settle(id, Answer::of(&failure)),
        };
        // Under one lock, because it counts either as a request or as a connection.
        let mut open = lock(&self.open);
        if taken(&mut open, id).is_none() {
            return;
        }
        let begun = self.passages().begin(id, (stream, Some(Answer::Connected.to_frame(id))), &self.runtime);
        drop(open);
        if let Err(error) = begun {
            self.answer(id, Answer::failed(rustix::io::Errno::NETDOWN, &error.to_string()));
        }
    }

    fn look_up(self: &Arc<Self>, id: u32, name: HostName) {
        if !self.reach.knows(&name) {
            // No lookup is made outside, because it would carry data out.
            return self.settle(id, Answer::Addresses(Err("no rule speaks of this name".to_owned())));
        }
        let own = Arc::clone(self);
        self.runtime.spawn(async move {
            let resolver = Arc::clone(&own.resolver);
            let looked = tokio::task::spawn_blocking(move || resolver.resolve(&name));
            let answer = match tokio::time::timeout(LOOKUP_MAX, looked).await {
                Ok(Ok(Ok(addresses))) => Answer::addresses(addresses),
                Ok(Ok(Err(LookupError::NoSuchName))) => Answer::NoSuchName,
                Ok(Ok(Err(LookupError::Failed(why)))) => Answer::Addresses(Err(why)),
                Ok(Err(_)) | Err(_) => Answer::Addresses(Err("no answer in ten seconds".to_owned())),
            };
            own.settle(id, answer);
        });
    }

    /// Answers a request, unless it was cancelled.
    fn settle(&self, id: u32, answer: Answer) {
        let settled = taken(&mut lock(&self.open), id);
        if settled.is_some() {
            self.answer(id, answer);
        }
    }

    fn answer(&self, id: u32, answer: Answer) {
        let posted = (self.post)(answer.to_frame(id));
        self.runtime.spawn(async move {
            posted.await;
        });
    }

    fn with_door<T>(&self, then: impl FnOnce(&Door) -> T) -> io::Result<T> {
        let mut state = lock(&self.door);
        if let State::Shut = &*state {
            *state = State::Open(self.start()?);
        }
        match &*state {
            State::Open(door) => Ok(then(door)),
            State::Shut | State::Over => Err(io::Error::other("the command is over")),
        }
    }

    fn start(&self) -> io::Result<Door> {
        let events = self.events.clone();
        let setup = Setup {
            rules: self.rules.clone(),
            names: Arc::default(),
            dns: None,
            edge: Arc::clone(&self.edge),
            namespace: Arc::new(Nowhere),
            judge: Arc::new(ByReach(self.reach.clone())),
            sink: Arc::new(move |event| {
                events.tell(match event {
                    DoorEvent::Connection(record) => AttemptEvent::Connection(record),
                    DoorEvent::Denied(denial) => AttemptEvent::Denied(*denial),
                });
            }),
            resolver: Arc::clone(&self.resolver),
            lead: None,
        };
        Door::start(setup).map_err(io::Error::other)
    }

    /// Reports a request that the container made without permission.
    fn tell_refused(&self, target: &Target, who: &Who, rule: &str, grant: Option<Grant>) {
        let mut told = lock(&self.told);
        let object = target.to_string();
        if told.len() >= TOLD_MAX || !told.insert(object.clone()) {
            return;
        }
        self.events.tell(AttemptEvent::Denied(Denial {
            operation: Operation::Connect,
            object: RawText::from(object),
            pid: who.pid,
            program: who.program.clone(),
            layer: Layer::Network,
            rule: rule.to_owned(),
            grant,
            resolution: Resolution::Recorded,
            count: 1,
        }));
    }
}

/// Removes a request, and detaches its dialling.
fn taken(open: &mut Vec<(u32, Option<Dialling>)>, id: u32) -> Option<()> {
    let at = open.iter().position(|(other, _)| *other == id)?;
    if let (_, Some(dialling)) = open.swap_remove(at) {
        dialling.detach();
    }
    Some(())
}

/// Namespace of the egress proxy, in which no program connects to it.
struct Nowhere;

impl Namespace for Nowhere {
    fn listen(&self, _at: SocketAddr) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn socket(&self, _like: SocketAddr) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Decides by the approved targets; questions are put by the other end in the container.
struct ByReach(Reach);

impl Judge for ByReach {
    fn judge(&self, wanted: Wanted, _who: &Who, answer: Box<dyn FnOnce(Judgement) + Send>) {
        let decided = match &wanted {
            Wanted::Target(target) => self.0.decide(target),
            Wanted::Secret { secret, rule } => self.0.decide_secret(secret, rule),
            Wanted::Effect { effect, message, .. } => self.0.decide_effect(effect, message),
        };
        answer(match decided {
            Ok(rule) => Judgement::Allowed(Permit { rule }),
            Err(refusal) => Judgement::Refused { rule: refusal.rule, grant: refusal.grant },
        });
    }

    fn is_agreed(&self, name: &HostName) -> bool {
        self.0.knows(name)
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
    use stockade_model::{Environment, ExecRules, Filesystem, Level, Limits, Network, Profile, RequestId, SandboxId};

    const PATIENCE: Duration = Duration::from_secs(30);

    struct Loopback;

    impl Resolve for Loopback {
        fn resolve(&self, name: &HostName) -> Result<Vec<IpAddr>, LookupError> {
            match name.as_str() {
                "nobody.test" => Err(LookupError::NoSuchName),
                _ => Ok(vec![Ipv4Addr::LOCALHOST.into()]),
            }
        }
    }

    /// The host's end, with its output.
    struct Host {
        outside: Arc<Outside>,
        posted: Receiver<Frame>,
        told: Receiver<AttemptEvent>,
        _events: Events,
        _runtime: tokio::runtime::Runtime,
    }

    fn plan(grants: &[String]) -> Plan {
        let special = ["127.0.0.0/8".parse().unwrap()].into();
        Plan {
            request: RequestId::from_random([1; 16]),
            attempt: 1,
            argv: vec!["true".into()],
            environment: BTreeMap::new(),
            cwd: "/workspace".into(),
            workspace: "/workspace".into(),
            profile: Profile {
                name: SandboxId::from_random([1; 16]).to_string(),
                sandboxed: true,
                filesystem: Filesystem::default(),
                exec: ExecRules::default(),
                network: Network::None,
                egress: Egress { special, ..Egress::default() },
                environment: Environment::default(),
                limits: Limits::default(),
            },
            grants: grants.iter().map(|grant| grant.parse().unwrap()).collect(),
            effects: Vec::new(),
            level: Level::Full,
            backend: "docker".to_owned(),
        }
    }

    fn host(grants: &[String]) -> Host {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, posted) = channel();
        let post: Post = Arc::new(move |frame| Box::pin(std::future::ready(sender.send(frame).is_ok())));
        let (teller, told) = channel();
        let events = Events::new(move |event| drop(teller.send(event)));
        let around = (runtime.handle().clone(), post);
        let outside = Outside::of(&plan(grants), Some(Arc::new(Loopback)), &events, around).unwrap();
        Host { outside: Arc::new(outside), posted, told, _events: events, _runtime: runtime }
    }

    impl Host {
        fn ask(&self, id: u32, question: &Question) -> Answer {
            self.outside.take(question.to_frame(id)).unwrap();
            loop {
                match self.posted.recv_timeout(PATIENCE).unwrap() {
                    Frame::Answered(to, answer) if to == id => return serde_json::from_slice(&answer).unwrap(),
                    _ => {}
                }
            }
        }
    }

    fn connect(target: &str) -> Question {
        Question::Connect { target: target.parse().unwrap(), pid: Some(1), program: None }
    }

    /// Sends "hello" to every client, and reads to the end.
    fn server() -> (u16, Receiver<String>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, heard) = channel();
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
        (port, heard)
    }

    #[test]
    fn the_host_judges_whatever_the_inside_claims() {
        let (port, heard) = server();
        let host = host(&[format!("connect good.test:{port}")]);
        // Forged: the container has no permission for these.
        for (id, target) in
            [(1, format!("evil.test:{port}")), (2, format!("127.0.0.1:{port}")), (3, "good.test:1".to_owned())]
        {
            let answer = host.ask(id, &connect(&target));
            assert!(matches!(answer, Answer::Refused { .. }), "{target}: {answer:?}");
            let AttemptEvent::Denied(denial) = host.told.recv_timeout(PATIENCE).unwrap() else { panic!("not told") };
            assert_eq!(denial.grant, Some(format!("connect {target}").parse().unwrap()));
        }
        assert!(heard.try_recv().is_err(), "somebody was reached");
        // Control: a granted target is reached.
        assert_eq!(host.ask(4, &connect(&format!("good.test:{port}"))), Answer::Connected);
        let Frame::Piece(4, hello) = host.posted.recv_timeout(PATIENCE).unwrap() else { panic!("no bytes") };
        assert_eq!(hello, b"hello");
        host.outside.take(Frame::Piece(4, b"and hello".to_vec())).unwrap();
        host.outside.take(Frame::Piece(4, Vec::new())).unwrap();
        assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), "and hello");
        host.outside.close();
        let AttemptEvent::Connection(record) = host.told.recv_timeout(PATIENCE).unwrap() else { panic!("no record") };
        assert_eq!(
            (record.target.to_string(), record.bytes_up, record.bytes_down),
            (format!("good.test:{port}"), 9, 5)
        );
        // After the end there is no network access.
        assert!(matches!(host.ask(5, &connect(&format!("good.test:{port}"))), Answer::Failed { .. }));
    }

    #[test]
    fn what_is_agreed_to_meanwhile_counts_and_names_are_asked_for_by_leave_alone() {
        let (port, _heard) = server();
        let host = host(&[]);
        let target = format!("late.test:{port}");
        let look_up = |name: &str| Question::LookUp { name: name.to_owned() };
        assert!(matches!(host.ask(1, &connect(&target)), Answer::Refused { .. }));
        assert!(matches!(host.ask(2, &look_up("late.test")), Answer::Addresses(Err(_))));
        host.outside.agree(&HeldAnswer::Refused);
        assert!(matches!(host.ask(3, &connect(&target)), Answer::Refused { .. }));
        host.outside.agree(&HeldAnswer::Granted(vec![format!("connect {target}").parse().unwrap()]));
        assert!(matches!(host.ask(4, &look_up("late.test")), Answer::Addresses(Ok(_))));
        assert!(matches!(host.ask(5, &look_up("secret-data.evil.test")), Answer::Addresses(Err(_))));
        assert_eq!(host.ask(6, &connect(&target)), Answer::Connected);
        host.outside.close();
    }

    #[test]
    fn there_are_so_many_connections_at_most() {
        // Both ends of all connections are in this process, which needs more descriptors than the
        // default limit.
        let files = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).unwrap();
        let (port, _heard) = server();
        let target = format!("good.test:{port}");
        let host = host(&[format!("connect {target}")]);
        let stands = |id: u32| host.ask(id, &connect(&target)) == Answer::Connected;
        for id in 0..PASSAGES_MAX as u32 {
            assert!(stands(id), "{id}");
        }
        assert!(!stands(1000));
        assert_eq!(host.outside.take(Frame::Answered(1, Vec::new())), Err(FrameError::WRONG_WAY));
        assert_eq!(host.outside.take(Frame::Asked(1001, b"what".to_vec())), Err(FrameError::NO_QUESTION));
        // A connection that ends makes room.
        host.outside.take(Frame::Broken(7)).unwrap();
        let give_up = std::time::Instant::now() + PATIENCE;
        while host.outside.passages().count() == PASSAGES_MAX && std::time::Instant::now() < give_up {
            std::thread::yield_now();
        }
        assert!(stands(1002));
        host.outside.close();
    }
}
