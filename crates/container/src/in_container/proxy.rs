//! Network access without supervised system calls: the egress proxy's HTTP proxy on the loopback,
//! which variables of the command name. A target without approval waits for an answer as a connect
//! does elsewhere. The requesting process is not known.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};

use stockade_backend_api::{Attempt, AttemptEvent, AttemptEventSender, HeldAnswer, HoldId, WeakEventSender};
use stockade_egress::{
    EgressCaller, EgressDecision, EgressPolicy, EgressProxy, EgressProxySetup, EgressRequest, ProxyService,
};
use stockade_model::{AttemptPlan, EgressRules, HostName, NetworkTarget};
use stockade_native::proxy_variables;
use stockade_permissions::powers::PermissionRefusal;
use stockade_permissions::reachable_targets::EgressReach;

use super::tunnel::HostTunnel;
use crate::host_egress::{DecisionCallback, DisconnectedNamespace, RefusalReports, egress_decision, refusal_denial};
use crate::lock_mutex;
use crate::observed_attempt::ObservedAttempt;

/// Most targets that wait for an answer, and most requests that wait for one of them.
const WAITING_MAX: usize = 64;
/// Most different refusals that are reported.
const REPORTED_REFUSALS_MAX: usize = 1024;

/// Proxy of one command.
pub(super) struct CommandProxy {
    egress_proxy: Mutex<Option<EgressProxy>>,
    asking: Arc<ProxyPolicy>,
}

impl CommandProxy {
    /// Starts the proxy, and names it in the variables of the plan.
    pub(super) fn start_proxy(
        plan: &mut AttemptPlan,
        hold: bool,
        events: &AttemptEventSender,
        leads: &Arc<HostTunnel>,
    ) -> io::Result<Self> {
        let asking = Arc::new(ProxyPolicy {
            reach: EgressReach::from_plan(plan),
            events: events.downgrade(),
            reports: RefusalReports::new(events.downgrade(), REPORTED_REFUSALS_MAX),
            hold,
            state: Mutex::default(),
        });
        let (resolver, connector, policy) = (Arc::clone(leads), Arc::clone(leads), Arc::clone(&asking));
        let egress_proxy = EgressProxy::start(EgressProxySetup {
            rules: EgressRules::default(),
            names: Arc::default(),
            dns: None,
            interception: Arc::default(),
            namespace: Arc::new(DisconnectedNamespace),
            policy,
            // The egress proxy at the other end of the tunnel reports the connections.
            sink: Arc::new(|_| {}),
            resolver,
            connector: Some(connector),
        })
        .map_err(io::Error::other)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let variables = proxy_variables(plan, listener.local_addr()?);
        egress_proxy.serve_listener(listener, ProxyService::HttpProxy);
        plan.environment.extend(variables);
        Ok(Self { egress_proxy: Mutex::new(Some(egress_proxy)), asking })
    }

    /// Returns the attempt, with the requests that the proxy holds.
    pub(super) fn observe_attempt(&self, attempt: Box<dyn Attempt>) -> Box<dyn Attempt> {
        let asking = Arc::clone(&self.asking);
        let enforced = attempt.enforcement_report().clone();
        let on_answer = Box::new(move |hold, answer: &HeldAnswer| asking.settle_hold(hold, answer));
        Box::new(ObservedAttempt { attempt, enforced, on_answer })
    }

    /// Stops the proxy, because the command has ended.
    pub(super) fn stop_proxy(&self) {
        lock_mutex(&self.asking.state).waiting.clear();
        if let Some(egress_proxy) = lock_mutex(&self.egress_proxy).take() {
            egress_proxy.stop();
        }
    }
}

/// Decides on requests to the proxy, or lets them wait.
struct ProxyPolicy {
    reach: EgressReach,
    events: WeakEventSender,
    reports: RefusalReports,
    hold: bool,
    state: Mutex<ProxyPolicyState>,
}

#[derive(Default)]
struct ProxyPolicyState {
    last: u64,
    waiting: BTreeMap<u64, HeldTarget>,
    /// Targets that were refused.
    refused: BTreeSet<String>,
}

struct HeldTarget {
    target: NetworkTarget,
    answers: Vec<DecisionCallback>,
}

impl EgressPolicy for ProxyPolicy {
    fn decide_request(&self, egress_request: EgressRequest, _caller: &EgressCaller, answer: DecisionCallback) {
        let target = match egress_request {
            EgressRequest::Target(target) => target,
            EgressRequest::Secret { rule, .. } => return answer(EgressDecision::Refused { rule, grant: None }),
            EgressRequest::Effect { effect, request, message } => {
                return match self.reach.decide_effect(&effect, message) {
                    // Only targets are requested here.
                    Err(refusal) => self.refuse_request(&request, PermissionRefusal { grant: None, ..refusal }, answer),
                    allowed => answer(egress_decision(allowed)),
                };
            }
        };
        match self.reach.decide_target(&target) {
            Err(refusal) if self.hold && refusal.grant.is_some() => self.hold_target(target, refusal, answer),
            Err(refusal) => self.refuse_request(&target.to_string(), refusal, answer),
            allowed => answer(egress_decision(allowed)),
        }
    }

    fn is_agreed(&self, name: &HostName) -> bool {
        self.reach.allows_name(name)
    }
}

impl ProxyPolicy {
    fn hold_target(&self, target: NetworkTarget, refusal: PermissionRefusal, answer: DecisionCallback) {
        let mut state = lock_mutex(&self.state);
        let may_ask = state.waiting.len() < WAITING_MAX && !state.refused.contains(&target.to_string());
        let known = state.waiting.values_mut().find(|waiting| waiting.target == target);
        match known {
            Some(waiting) if waiting.answers.len() < WAITING_MAX => return waiting.answers.push(answer),
            None if may_ask => {}
            Some(_) | None => {
                drop(state);
                return self.refuse_request(&target.to_string(), refusal, answer);
            }
        }
        state.last += 1;
        let id = state.last;
        let denial = refusal_denial(&target.to_string(), &refusal);
        state.waiting.insert(id, HeldTarget { target, answers: vec![answer] });
        drop(state);
        self.events.send_event(AttemptEvent::Held { id: HoldId(id), denial });
    }

    fn refuse_request(&self, object: &str, refusal: PermissionRefusal, answer: DecisionCallback) {
        self.reports.report_refusal(object, &EgressCaller::default(), &refusal);
        answer(egress_decision(Err(refusal)));
    }

    fn settle_hold(&self, HoldId(id): HoldId, answer: &HeldAnswer) {
        let mut state = lock_mutex(&self.state);
        let waiting = state.waiting.remove(&id);
        match (answer, &waiting) {
            (HeldAnswer::Granted(grants), _) => grants.iter().for_each(|grant| self.reach.add_grant(grant)),
            (HeldAnswer::Refused, Some(waiting)) if state.refused.len() < REPORTED_REFUSALS_MAX => {
                state.refused.insert(waiting.target.to_string());
            }
            (HeldAnswer::Refused, _) => {}
        }
        drop(state);
        let Some(HeldTarget { target, answers }) = waiting else { return };
        for answer in answers {
            answer(egress_decision(self.reach.decide_target(&target)));
        }
    }
}
