//! Requests that the egress proxy cannot decide. Such a request has a target that no rule permits,
//! sends a secret to other hosts than its own, or has an effect that needs a grant. Each is
//! decided, held and answered like a connect.

use stockade_egress::{Judge, Judgement, Permit, Wanted, Who};
use stockade_model::{Grant, HostName, Layer, Operation};

use super::connects::unreached;
use super::holding::Waiter;
use super::holds::Key;
use super::ledger::{Actor, Denied};
use super::service::Service;
use super::{Answers, Order};
use crate::powers::Refusal;
use crate::reach::Reach;

/// Judge for the egress proxy. A request that is not permitted yet is decided on the broker's thread.
pub(crate) struct Referee {
    answers: Answers,
    reach: Reach,
}

impl Referee {
    pub(super) fn new(answers: Answers, reach: Reach) -> Self {
        Self { answers, reach }
    }
}

impl Judge for Referee {
    fn judge(&self, wanted: Wanted, who: &Who, answer: Box<dyn FnOnce(Judgement) + Send>) {
        match decide(&self.reach, &wanted) {
            Ok(rule) => answer(Judgement::Allowed(Permit { rule })),
            Err(_) => self.answers.order(Order::Judge(Request { wanted, who: who.clone(), answer })),
        }
    }

    fn is_agreed(&self, name: &HostName) -> bool {
        self.reach.knows(name)
    }
}

fn decide(reach: &Reach, wanted: &Wanted) -> Result<String, Denied> {
    match wanted {
        Wanted::Target(target) => reach.decide(target).map_err(|refusal| unreached(target, refusal)),
        Wanted::Secret { secret, rule } => reach.decide_secret(secret, rule).map_err(|refusal| Denied {
            operation: Operation::Secret,
            object: secret.targets().to_string().into_bytes(),
            layer: Layer::Network,
            refusal,
        }),
        Wanted::Effect { effect, request, message } => reach.decide_effect(effect, message).map_err(|refusal| Denied {
            operation: Operation::Connect,
            object: request.clone().into_bytes(),
            layer: Layer::Network,
            refusal,
        }),
    }
}

/// A request to the egress proxy.
pub(super) struct Request {
    wanted: Wanted,
    who: Who,
    answer: Box<dyn FnOnce(Judgement) + Send>,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

impl Request {
    pub fn refuse(self, rule: String, grant: Option<Grant>) {
        (self.answer)(Judgement::Refused { rule, grant });
    }

    /// Returns the caller, as the audit log knows it.
    pub fn actor(&self) -> Actor {
        Actor { pid: self.who.pid, program: self.who.program.as_ref().map(|p| p.as_bytes().to_vec()) }
    }

    /// Returns whether the calling process still exists; true if the process is unknown.
    pub fn is_waiting(&self) -> bool {
        let pid = self.who.pid.and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?));
        pid.is_none_or(|pid| rustix::process::test_kill_process(pid) != Err(stockade_sys::Errno::SRCH))
    }
}

impl Service {
    /// Decides on a request, or holds it until an answer arrives.
    pub(super) fn judge(&mut self, request: Request) {
        let Some((request, denied)) = self.grant_request(request) else { return };
        let key = Key::of(&denied.refusal, &denied.object).filter(|_| self.holds_calls);
        match key {
            Some(key) if self.is_settled(&key) => request.refuse(denied.refusal.rule, denied.refusal.grant),
            Some(key) => self.hold(key, Waiter::request(request, denied)),
            None => self.refuse_request(request, denied),
        }
    }

    /// Answers a request that the current powers permit; else returns it.
    pub(super) fn grant_request(&self, request: Request) -> Option<(Request, Denied)> {
        match decide(&self.powers.reach, &request.wanted) {
            Ok(rule) => {
                (request.answer)(Judgement::Allowed(Permit { rule }));
                None
            }
            Err(denied) => Some((request, denied)),
        }
    }

    /// Refuses a request and records that.
    pub(super) fn refuse_request(&self, request: Request, denied: Denied) {
        let Refusal { rule, grant } = denied.refusal.clone();
        self.ledger().record(denied, || request.actor());
        request.refuse(rule, grant);
    }
}
