//! Requests that the egress proxy cannot decide. Such a request has a target that no rule permits,
//! sends a secret to other hosts than its own, or has an effect that needs a grant. Each is
//! decided, held and answered like a connect.

use stockade_egress::{EgressCaller, EgressDecision, EgressPermit, EgressPolicy, EgressRequest};
use stockade_model::{DenialLayer, DeniedOperation, Grant, HostName};
use stockade_permissions::powers::PermissionRefusal;
use stockade_permissions::reachable_targets::EgressReach;

use super::connects::deny_target;
use super::denials::RefusedOperation;
use super::holding::Waiter;
use super::holds::QuestionKey;
use super::service::BrokerService;
use super::{AnswerSender, BrokerOrder};

/// Policy check for the egress proxy. A request that is not permitted yet is decided on the broker's thread.
pub(crate) struct BrokerEgressPolicy {
    answers: AnswerSender,
    reach: EgressReach,
}

impl BrokerEgressPolicy {
    pub(super) fn new(answers: AnswerSender, reach: EgressReach) -> Self {
        Self { answers, reach }
    }
}

impl EgressPolicy for BrokerEgressPolicy {
    fn decide_request(
        &self,
        egress_request: EgressRequest,
        caller: &EgressCaller,
        answer: Box<dyn FnOnce(EgressDecision) + Send>,
    ) {
        match decide_request(&self.reach, &egress_request) {
            Ok(rule) => answer(EgressDecision::Allowed(EgressPermit { rule })),
            Err(_) => self.answers.send_order(BrokerOrder::Check(BrokeredRequest {
                egress_request,
                caller: caller.clone(),
                answer,
            })),
        }
    }

    fn is_agreed(&self, name: &HostName) -> bool {
        self.reach.allows_name(name)
    }
}

fn decide_request(reach: &EgressReach, egress_request: &EgressRequest) -> Result<String, RefusedOperation> {
    match egress_request {
        EgressRequest::Target(target) => reach.decide_target(target).map_err(|refusal| deny_target(target, refusal)),
        EgressRequest::Secret { secret, rule } => {
            let object = secret.targets().to_string();
            reach.decide_secret(secret, rule).map_err(|refusal| {
                RefusedOperation::new(DeniedOperation::Secret, object, DenialLayer::Network, refusal)
            })
        }
        EgressRequest::Effect { effect, request, message } => reach.decide_effect(effect, message).map_err(|refusal| {
            RefusedOperation::new(DeniedOperation::Connect, request.clone(), DenialLayer::Network, refusal)
        }),
    }
}

/// A request to the egress proxy.
pub(super) struct BrokeredRequest {
    egress_request: EgressRequest,
    pub caller: EgressCaller,
    answer: Box<dyn FnOnce(EgressDecision) + Send>,
}

impl BrokeredRequest {
    pub fn send_refusal(self, rule: String, grant: Option<Grant>) {
        (self.answer)(EgressDecision::Refused { rule, grant });
    }

    /// Returns whether the calling process still exists; true if the process is unknown.
    pub fn is_waiting(&self) -> bool {
        let pid = self.caller.pid.and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?));
        pid.is_none_or(|pid| rustix::process::test_kill_process(pid) != Err(stockade_sys::Errno::SRCH))
    }
}

impl BrokerService {
    /// Decides on a request, or holds it until an answer arrives.
    pub(super) fn decide_or_hold(&mut self, request: BrokeredRequest) {
        let Some((request, denied)) = self.grant_request(request) else { return };
        let key = QuestionKey::from_refusal(&denied.refusal, &denied.object).filter(|_| self.holds_calls);
        match key {
            Some(key) if self.is_settled(&key) => request.send_refusal(denied.refusal.rule, denied.refusal.grant),
            Some(key) => self.hold_waiter(key, Waiter::for_request(request, denied)),
            None => self.refuse_request(request, denied),
        }
    }

    /// Answers a request that the current powers permit; else returns it.
    pub(super) fn grant_request(&self, request: BrokeredRequest) -> Option<(BrokeredRequest, RefusedOperation)> {
        match decide_request(&self.powers.reach, &request.egress_request) {
            Ok(rule) => {
                (request.answer)(EgressDecision::Allowed(EgressPermit { rule }));
                None
            }
            Err(denied) => Some((request, denied)),
        }
    }

    /// Refuses a request and records that.
    pub(super) fn refuse_request(&self, request: BrokeredRequest, denied: RefusedOperation) {
        let PermissionRefusal { rule, grant } = denied.refusal.clone();
        self.lock_ledger().record_denial(denied, || request.caller.clone());
        request.send_refusal(rule, grant);
    }
}
