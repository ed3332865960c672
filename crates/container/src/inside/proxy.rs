//! Network access without supervised system calls: the egress proxy's HTTP proxy on the loopback,
//! which variables of the command name. A target without approval waits for an answer as a connect
//! does elsewhere. The requesting process is not known.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stockade_egress::{Door, Judge, Judgement, Namespace, Permit, Service, Setup, Wanted, Who};
use stockade_engine::{Attempt, AttemptEvent, Events, HeldAnswer, HoldId, StartError, WeakEvents};
use stockade_model::{
    Denial, Egress, EnforcementReport, HostName, Layer, Operation, Plan, RawText, Resolution, Target,
};
use stockade_native::powers::Refusal;
use stockade_native::proxy_variables;
use stockade_native::reach::Reach;

use super::lead::Leads;

/// Most targets that wait for an answer, and most requests that wait for one of them.
const WAITING_MAX: usize = 64;
/// Most different refusals that are reported.
const TOLD_MAX: usize = 1024;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Proxy of one command.
pub(super) struct Proxy {
    door: Mutex<Option<Door>>,
    asking: Arc<Asking>,
}

impl Proxy {
    /// Starts the proxy, and names it in the variables of the plan.
    pub(super) fn start(plan: &mut Plan, hold: bool, events: &Events, leads: &Arc<Leads>) -> io::Result<Self> {
        let asking =
            Arc::new(Asking { reach: Reach::of(plan), events: events.downgrade(), hold, state: Mutex::default() });
        let (resolver, lead, judge) = (Arc::clone(leads), Arc::clone(leads), Arc::clone(&asking));
        let door = Door::start(Setup {
            rules: Egress::default(),
            names: Arc::default(),
            dns: None,
            edge: Arc::default(),
            namespace: Arc::new(Loopback),
            judge,
            // The egress proxy at the other end of the tunnel reports the connections.
            sink: Arc::new(|_| {}),
            resolver,
            lead: Some(lead),
        })
        .map_err(io::Error::other)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let variables = proxy_variables(plan, listener.local_addr()?);
        door.offer(listener, Service::HttpProxy);
        plan.environment.extend(variables);
        Ok(Self { door: Mutex::new(Some(door)), asking })
    }

    /// Stops the proxy, because the command has ended.
    pub(super) fn close(&self) {
        lock(&self.asking.state).waiting.clear();
        if let Some(door) = lock(&self.door).take() {
            door.stop();
        }
    }
}

/// Namespace in which nothing is connected for a program.
struct Loopback;

impl Namespace for Loopback {
    fn listen(&self, _at: SocketAddr) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn socket(&self, _like: SocketAddr) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

type Answer = Box<dyn FnOnce(Judgement) + Send>;

/// Decides on requests to the proxy, or lets them wait.
struct Asking {
    reach: Reach,
    events: WeakEvents,
    hold: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// Targets that were refused.
    refused: BTreeSet<String>,
    told: BTreeSet<String>,
}

struct Waiting {
    target: Target,
    answers: Vec<Answer>,
}

impl Judge for Asking {
    fn judge(&self, wanted: Wanted, _who: &Who, answer: Answer) {
        let target = match wanted {
            Wanted::Target(target) => target,
            Wanted::Secret { rule, .. } => return answer(Judgement::Refused { rule, grant: None }),
            Wanted::Effect { effect, request, message } => {
                return match self.reach.decide_effect(&effect, message) {
                    Ok(rule) => answer(Judgement::Allowed(Permit { rule })),
                    // Only targets are requested here.
                    Err(refusal) => self.refuse(&request, Refusal { grant: None, ..refusal }, answer),
                };
            }
        };
        match self.reach.decide(&target) {
            Ok(rule) => answer(Judgement::Allowed(Permit { rule })),
            Err(refusal) if self.hold && refusal.grant.is_some() => self.wait(target, refusal, answer),
            Err(refusal) => self.refuse(&target.to_string(), refusal, answer),
        }
    }

    fn is_agreed(&self, name: &HostName) -> bool {
        self.reach.knows(name)
    }
}

impl Asking {
    fn wait(&self, target: Target, refusal: Refusal, answer: Answer) {
        let mut state = lock(&self.state);
        let may_ask = state.waiting.len() < WAITING_MAX && !state.refused.contains(&target.to_string());
        let known = state.waiting.values_mut().find(|waiting| waiting.target == target);
        match known {
            Some(waiting) if waiting.answers.len() < WAITING_MAX => return waiting.answers.push(answer),
            None if may_ask => {}
            Some(_) | None => {
                drop(state);
                return self.refuse(&target.to_string(), refusal, answer);
            }
        }
        state.last += 1;
        let id = state.last;
        let denial = denial(&target.to_string(), refusal);
        state.waiting.insert(id, Waiting { target, answers: vec![answer] });
        drop(state);
        self.events.tell(AttemptEvent::Held { id: HoldId(id), denial });
    }

    fn refuse(&self, object: &str, refusal: Refusal, answer: Answer) {
        let mut state = lock(&self.state);
        let is_new = state.told.len() < TOLD_MAX && state.told.insert(object.to_owned());
        drop(state);
        if is_new {
            self.events.tell(AttemptEvent::Denied(denial(object, refusal.clone())));
        }
        answer(Judgement::Refused { rule: refusal.rule, grant: refusal.grant });
    }

    fn answered(&self, HoldId(id): HoldId, answer: &HeldAnswer) {
        let mut state = lock(&self.state);
        let waiting = state.waiting.remove(&id);
        match (answer, &waiting) {
            (HeldAnswer::Granted(grants), _) => grants.iter().for_each(|grant| self.reach.add(grant)),
            (HeldAnswer::Refused, Some(waiting)) if state.refused.len() < TOLD_MAX => {
                state.refused.insert(waiting.target.to_string());
            }
            (HeldAnswer::Refused, _) => {}
        }
        drop(state);
        let Some(Waiting { target, answers }) = waiting else { return };
        for answer in answers {
            answer(match self.reach.decide(&target) {
                Ok(rule) => Judgement::Allowed(Permit { rule }),
                Err(Refusal { rule, grant }) => Judgement::Refused { rule, grant },
            });
        }
    }
}

fn denial(object: &str, refusal: Refusal) -> Denial {
    Denial {
        operation: Operation::Connect,
        object: RawText::from(object),
        pid: None,
        program: None,
        layer: Layer::Network,
        rule: refusal.rule,
        grant: refusal.grant,
        resolution: Resolution::Recorded,
        count: 1,
    }
}

/// Attempt whose held requests come from the proxy.
pub(super) struct Proxied {
    pub(super) attempt: Box<dyn Attempt>,
    pub(super) proxy: Arc<Proxy>,
}

impl Attempt for Proxied {
    fn enforced(&self) -> &EnforcementReport {
        self.attempt.enforced()
    }

    fn release(&mut self) -> Result<(), StartError> {
        self.attempt.release()
    }

    fn signal(&self, signal: i32) {
        self.attempt.signal(signal);
    }

    fn kill(&self) {
        self.attempt.kill();
    }

    fn stand_still(&self, limit: &Denial) -> bool {
        self.attempt.stand_still(limit)
    }

    fn answer(&self, hold: HoldId, answer: HeldAnswer) {
        self.proxy.asking.answered(hold, &answer);
        self.attempt.answer(hold, answer);
    }
}
