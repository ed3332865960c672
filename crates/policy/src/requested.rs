//! Decisions of the rules about a power that a request asks for before it runs.
//!
//! A power allows more than one act: `write` changes, creates and removes, and a path includes everything
//! beneath it. A rule that denies any of these acts denies the power, and only rules that allow all of them
//! give it. Must not know modes beyond the verdicts of rules, nor approvers.

use stockade_model::{Decision, Grant, HostPattern, PolicyVerdict, TargetPattern};

use crate::act::ActContext;
use crate::file::FileOperation;
use crate::rules::{Act, PolicyRule, RequestContext};
use crate::settings::PolicySettings;

/// The operations that `write` allows.
const WRITE_OPERATIONS: &[FileOperation] = &[FileOperation::Write, FileOperation::Create, FileOperation::Delete];
/// A path that no rule names explicitly. A rule allows it only if the rule allows everything beneath its
/// directory.
const ANY_CHILD_PATH: &str = "stockade-any-name/stockade-any-name";

impl PolicySettings {
    /// Returns the decision of the rules alone about a power that a request asks for; `None` if no rules
    /// cover all of it.
    pub fn decide_power_by_rule(
        &self,
        power: &Grant,
        stage: &ActContext<'_>,
        around: &RequestContext,
    ) -> Option<Decision> {
        if let Some(decision) = self.decide_governed(stage.workspace, power) {
            return Some(decision);
        }
        // Most configurations have no rules.
        self.rules().next()?;
        if let Grant::Secret(grant_use) = power {
            return self.decide_secret_by_rule(grant_use, stage, around);
        }
        if let Grant::Sign(grant_use) = power {
            return self.decide_signing_by_rule(grant_use, stage, around);
        }
        let by_rule = |act: Act<'_>| self.decide_by_rule(act, stage, around);
        let whole: Vec<_> = acts_of_power(power).map(by_rule).collect();
        let child = power.path().map(|path| path.join(ANY_CHILD_PATH));
        let beneath: Vec<_> = match (power, &child) {
            (Grant::Write(_), Some(path)) => WRITE_OPERATIONS.iter().map(|&operation| (path, operation)).collect(),
            (Grant::Read(_), Some(path)) => vec![(path, FileOperation::Read)],
            _ => Vec::new(),
        };
        let beneath = beneath.into_iter().map(|(path, operation)| by_rule(Act::File { path, operation }));
        let decision = find_strictest(whole.into_iter().chain(beneath))?;
        // A rule may refuse a name beneath the path, which is not visible here.
        let is_narrowed = power.path().is_some() && self.rules().any(PolicyRule::guards_files);
        (decision.verdict != PolicyVerdict::Allow || !is_narrowed).then_some(decision)
    }
}

/// Returns the acts that a power allows, as far as rules can be about them.
pub fn acts_of_power(power: &Grant) -> impl Iterator<Item = Act<'_>> {
    let (files, host) = match power {
        Grant::Write(path) => (Some((path.as_path(), WRITE_OPERATIONS)), None),
        Grant::Read(path) => (Some((path.as_path(), &[FileOperation::Read][..])), None),
        Grant::Connect(targets) => (None, one_host(targets)),
        // A rule that allows a host does not allow secrets and signatures; one that denies it does deny them.
        Grant::Secret(_) | Grant::Sign(_) => (None, None),
        Grant::Listen(_) | Grant::Socket(_) | Grant::Exec(_) | Grant::Env(_) | Grant::Limit(..) => (None, None),
        Grant::Effect(_) => (None, None),
    };
    let of_file = |(path, operations): (_, &'static [FileOperation])| {
        operations.iter().map(move |&operation| Act::File { path, operation })
    };
    files.into_iter().flat_map(of_file).chain(host)
}

/// Returns the one host of a power. Patterns are not decided here: the profile of the run refuses the part
/// of a pattern that a rule refuses.
fn one_host(targets: &TargetPattern) -> Option<Act<'_>> {
    let port = targets.target()?.port;
    match targets.host() {
        HostPattern::Exactly(host) => Some(Act::Network { host, port: Some(port) }),
        _ => None,
    }
}

/// Returns the strictest decision; `allow` only if every act has a decision.
pub fn find_strictest(decisions: impl Iterator<Item = Option<Decision>>) -> Option<Decision> {
    let decisions: Vec<_> = decisions.collect();
    let open = decisions.contains(&None) || decisions.is_empty();
    let strictest = decisions.into_iter().flatten().max_by_key(|decision| decision.verdict)?;
    (strictest.verdict != PolicyVerdict::Allow || !open).then_some(strictest)
}
