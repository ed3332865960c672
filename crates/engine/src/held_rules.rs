//! Applies the rules about files and hosts to a power that a held call lacks, and finds powers that
//! cannot be approved at all.
//!
//! A power is indivisible: `write` changes, creates and removes. A rule that denies any of these
//! denies the power, and only rules that allow all of them give it. This module must not interpret
//! approval modes beyond their effect on the rules, nor know the approver.

use std::path::Path;

use stockade_model::{Decision, Denial, Grant, Plan, Request, SecretUse, SignUse, Verdict};
use stockade_policy::{Act, Circumstances, Rule, Settings, Stage, acts_of_power, complete_grants, strictest};

use crate::seams::HeldRule;

/// Returns the result of the rules for a held call and the powers it needs.
pub fn of(
    settings: &Settings,
    request: &Request,
    plan: &Plan,
    denial: &Denial,
    around: &Circumstances,
) -> Option<HeldRule> {
    let powers = complete_grants(&plan.profile, std::slice::from_ref(denial.grant.as_ref()?));
    if let Some(decision) = powers.iter().find_map(|power| governed(settings, request, power)) {
        return Some(HeldRule { decision, powers: Vec::new() });
    }
    // Most configurations have no rules.
    settings.rules().next()?;
    let object = denial.object.as_path();
    let said: Vec<Option<Decision>> = powers
        .iter()
        .flat_map(|power| {
            if let Grant::Secret(wanted) = power {
                return vec![settings.decide_secret_by_rule(wanted, &stage(request), around)];
            }
            if let Grant::Sign(wanted) = power {
                return vec![settings.decide_signing_by_rule(wanted, &stage(request), around)];
            }
            let within = power.path().is_some_and(|path| object != path && object.starts_with(path));
            let inner = within.then(|| with_path(power, object)).flatten();
            let all: Vec<_> = acts_of_power(power)
                .chain(inner.iter().flat_map(acts_of_power))
                .map(|act| by(settings, request, &act, around))
                .collect();
            all
        })
        .collect();
    let decision = strictest(said.into_iter())?;
    let powers = if decision.verdict == Verdict::Allow { powers } else { Vec::new() };
    Some(HeldRule { decision, powers })
}

/// Returns a refusal of a power that cannot be approved.
pub fn governed(settings: &Settings, request: &Request, power: &Grant) -> Option<Decision> {
    settings.decide_governed(request.workspace.as_path(), power)
}

/// Returns whether a rule denies this power, or it cannot be approved.
pub fn denies(settings: &Settings, request: &Request, power: &Grant, around: &Circumstances) -> bool {
    let denied = |said: Option<Decision>| said.is_some_and(|said| said.verdict == Verdict::Deny);
    let of_signing = |wanted: &SignUse| settings.decide_signing_by_rule(wanted, &stage(request), around);
    let of_secret = |wanted: &SecretUse| settings.decide_secret_by_rule(wanted, &stage(request), around);
    governed(settings, request, power).is_some()
        || settings.rules().next().is_some()
            && (acts_of_power(power).any(|act| denied(by(settings, request, &act, around)))
                || power.secret().is_some_and(|wanted| denied(of_secret(wanted)))
                || power.sign_use().is_some_and(|wanted| denied(of_signing(wanted))))
}

/// Returns whether some rule may give powers to held calls.
pub fn give(settings: &Settings) -> bool {
    settings.rules().any(Rule::gives_powers)
}

fn by(settings: &Settings, request: &Request, act: &Act<'_>, around: &Circumstances) -> Option<Decision> {
    settings.decide_by_rule(*act, &stage(request), around)
}

/// Returns the location of a request's acts, and their powers.
pub fn stage(request: &Request) -> Stage<'_> {
    Stage {
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
