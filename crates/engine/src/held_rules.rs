//! What the rules about files and hosts say of a power that a held call lacks, and
//! what no rule and nobody gives.
//!
//! A power is one thing: `write` changes, creates and removes, so a rule that
//! denies any of these denies the power, and only rules that allow all of them
//! give it. Must not know modes beyond what the rules make of them, nor who is
//! asked.

use std::path::Path;

use stockade_model::{Decision, Denial, Grant, HostPattern, Plan, Request, SecretUse, TargetPattern, Verdict};
use stockade_policy::{Act, Circumstances, FileOperation, Rule, Settings, Stage, complete_grants};

use crate::seams::HeldRule;

/// What `write` is.
const WRITES: &[FileOperation] = &[FileOperation::Write, FileOperation::Create, FileOperation::Delete];

/// What the rules say of a held call and the powers it needs.
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
            let within = power.path().is_some_and(|path| object != path && object.starts_with(path));
            let inner = within.then(|| with_path(power, object)).flatten();
            let all: Vec<_> =
                acts(power).chain(inner.iter().flat_map(acts)).map(|act| by(settings, request, &act, around)).collect();
            all
        })
        .collect();
    let decision = combined(said)?;
    let powers = if decision.verdict == Verdict::Allow { powers } else { Vec::new() };
    Some(HeldRule { decision, powers })
}

/// Refuses what nobody can agree to.
pub fn governed(settings: &Settings, request: &Request, power: &Grant) -> Option<Decision> {
    settings.decide_governed(request.workspace.as_path(), power)
}

/// Whether a rule denies this power, or nobody can agree to it.
pub fn denies(settings: &Settings, request: &Request, power: &Grant, around: &Circumstances) -> bool {
    let denied = |said: Option<Decision>| said.is_some_and(|said| said.verdict == Verdict::Deny);
    let of_secret = |wanted: &SecretUse| settings.decide_secret_by_rule(wanted, &stage(request), around);
    governed(settings, request, power).is_some()
        || settings.rules().next().is_some()
            && (acts(power).any(|act| denied(by(settings, request, &act, around)))
                || power.secret().is_some_and(|wanted| denied(of_secret(wanted))))
}

/// Whether some rule may give powers to held calls.
pub fn give(settings: &Settings) -> bool {
    settings.rules().any(Rule::gives_powers)
}

/// The strictest of them; `allow` only where nothing is left open.
fn combined(said: Vec<Option<Decision>>) -> Option<Decision> {
    let open = said.contains(&None) || said.is_empty();
    let strictest = said.into_iter().flatten().max_by_key(|decision| decision.verdict)?;
    (strictest.verdict != Verdict::Allow || !open).then_some(strictest)
}

fn by(settings: &Settings, request: &Request, act: &Act<'_>, around: &Circumstances) -> Option<Decision> {
    settings.decide_by_rule(*act, &stage(request), around)
}

/// Where the acts of a request happen, and with what powers.
pub fn stage(request: &Request) -> Stage<'_> {
    Stage {
        cwd: request.cwd.as_path(),
        workspace: request.workspace.as_path(),
        session: request.session.as_ref(),
        profile: &request.profile,
        approval_mode: request.approval_mode,
    }
}

/// What a power lets a call do, as far as rules can speak of it.
fn acts(power: &Grant) -> impl Iterator<Item = Act<'_>> {
    let (files, host) = match power {
        Grant::Write(path) => (Some((path.as_path(), WRITES)), None),
        Grant::Read(path) => (Some((path.as_path(), &[FileOperation::Read][..])), None),
        Grant::Connect(targets) => (None, exact(targets)),
        // What allows a host says nothing of secrets; what denies it does.
        Grant::Secret(_) => (None, None),
        Grant::Listen(_) | Grant::Socket(_) | Grant::Exec(_) | Grant::Env(_) | Grant::Limit(..) => (None, None),
    };
    let of_file = |(path, operations): (_, &'static [FileOperation])| {
        operations.iter().map(move |&operation| Act::File { path, operation })
    };
    files.into_iter().flat_map(of_file).chain(host)
}

/// The one host of a power. Patterns are not asked about here: what they name
/// and a rule refuses is refused by the profile.
fn exact(targets: &TargetPattern) -> Option<Act<'_>> {
    let port = targets.target()?.port;
    match targets.host() {
        HostPattern::Exactly(host) => Some(Act::Network { host, port: Some(port) }),
        _ => None,
    }
}

/// The same power over another path.
fn with_path(power: &Grant, path: &Path) -> Option<Grant> {
    match power {
        Grant::Write(_) => Some(Grant::Write(path.to_owned())),
        Grant::Read(_) => Some(Grant::Read(path.to_owned())),
        _ => None,
    }
}
