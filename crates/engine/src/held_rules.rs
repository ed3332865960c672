//! Applies the rules about files and hosts to a power that a held call lacks, and finds powers that
//! cannot be approved at all.
//!
//! A power is indivisible: `write` changes, creates and removes. A rule that denies any of these
//! denies the power, and only rules that allow all of them give it. This module must not interpret
//! approval modes beyond their effect on the rules, nor know the approver.

use std::path::Path;

use stockade_model::{AttemptPlan, Decision, Denial, Grant, PolicyVerdict, RunRequest};
use stockade_policy::{
    ActContext, PolicyRule, PolicySettings, RequestContext, acts_of_power, complete_grants, find_strictest,
};

use crate::ports::HeldRule;

/// Returns the result of the rules for a held call and the powers it needs.
pub fn rule_held_call(
    settings: &PolicySettings,
    request: &RunRequest,
    plan: &AttemptPlan,
    denial: &Denial,
    around: &RequestContext,
) -> Option<HeldRule> {
    let powers = complete_grants(&plan.profile, std::slice::from_ref(denial.grant.as_ref()?));
    if let Some(decision) = powers.iter().find_map(|power| governed_refusal(settings, request, power)) {
        return Some(HeldRule { decision, powers: Vec::new() });
    }
    // Most configurations have no rules.
    settings.rules().next()?;
    let object = denial.object.as_path();
    let inner = |power: &Grant| {
        power.path().filter(|path| object != *path && object.starts_with(path)).and_then(|_| with_path(power, object))
    };
    let ruling: Vec<Option<Decision>> = powers
        .iter()
        .flat_map(|power| [Some(power.clone()), inner(power)])
        .flatten()
        .flat_map(|power| rule_power(settings, request, &power, around).collect::<Vec<_>>())
        .collect();
    let decision = find_strictest(ruling.into_iter())?;
    let powers = if decision.verdict == PolicyVerdict::Allow { powers } else { Vec::new() };
    Some(HeldRule { decision, powers })
}

/// Returns a refusal of a power that cannot be approved.
pub fn governed_refusal(settings: &PolicySettings, request: &RunRequest, power: &Grant) -> Option<Decision> {
    settings.decide_governed(request.workspace.as_path(), power)
}

/// Returns whether a rule denies this power, or it cannot be approved.
pub fn is_power_denied(
    settings: &PolicySettings,
    request: &RunRequest,
    power: &Grant,
    around: &RequestContext,
) -> bool {
    let is_denial = |ruling: Option<Decision>| ruling.is_some_and(|ruling| ruling.verdict == PolicyVerdict::Deny);
    governed_refusal(settings, request, power).is_some()
        || settings.rules().next().is_some() && rule_power(settings, request, power, around).any(is_denial)
}

/// Returns whether some rule may give powers to held calls.
pub fn can_give_powers(settings: &PolicySettings) -> bool {
    settings.rules().any(PolicyRule::gives_powers)
}

/// Returns the result of the rules for each use of a power.
fn rule_power<'a>(
    settings: &'a PolicySettings,
    request: &'a RunRequest,
    power: &'a Grant,
    around: &'a RequestContext,
) -> impl Iterator<Item = Option<Decision>> {
    let context = act_context(request);
    let secret = power.secret().map(|secret_use| settings.decide_secret_by_rule(secret_use, &context, around));
    let signing = power.sign_use().map(|sign_use| settings.decide_signing_by_rule(sign_use, &context, around));
    let acts = acts_of_power(power).map(move |act| settings.decide_by_rule(act, &context, around));
    secret.into_iter().chain(signing).chain(acts)
}

/// Returns the location of a request's acts, and their powers.
pub fn act_context(request: &RunRequest) -> ActContext<'_> {
    ActContext {
        cwd: request.cwd.as_path(),
        workspace: request.workspace.as_path(),
        session: request.session.as_ref(),
        profile: &request.profile,
        approval_mode: request.approval_mode,
    }
}

/// Returns the same power for another path.
fn with_path(power: &Grant, path: &Path) -> Option<Grant> {
    match power {
        Grant::Write(_) => Some(Grant::Write(path.to_owned())),
        Grant::Read(_) => Some(Grant::Read(path.to_owned())),
        _ => None,
    }
}
