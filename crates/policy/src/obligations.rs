//! Requirements of the applicable rules for a run, besides the verdict: a profile, powers, limits. They
//! change the powers of the run, never its sandbox (L1).
//!
//! Must not know questions: `decide` asks about the powers of a rule that asks.

use stockade_model::{Grant, Limits, PolicyVerdict, Profile, RunRequest};

use crate::rules::{MatchedRules, PolicyRule};
use crate::settings::PolicySettings;

/// Requirements of the rules for a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obligations {
    /// The profile to run with, if it is not the requested one.
    pub profile: Option<String>,
    /// Powers to add to the requested ones.
    pub grants: Vec<Grant>,
    /// Limits that apply if they are lower than the profile's.
    pub limits: Limits,
}

impl Obligations {
    /// Collects the requirements. `allow` rules count only if together they cover the whole command.
    pub(crate) fn from_rules(settings: &PolicySettings, request: &RunRequest, found: &MatchedRules<'_>) -> Self {
        // A rule that refuses has no requirements.
        let raised = found.raised.iter().map(|(rule, _)| *rule).filter(|rule| rule.effect == PolicyVerdict::Ask);
        let speaking: Vec<&PolicyRule> = raised.chain(found.allowed.iter().copied()).collect();
        let mut all = Self::default();
        if speaking.is_empty() {
            return all;
        }
        for rule in &speaking {
            all.limits.lower_to(&rule.limits);
        }
        all.profile = profile_of(settings, request, &speaking);
        let workspace = request.workspace.as_path();
        for grant in speaking.iter().flat_map(|rule| &rule.grants) {
            all.grants.extend(grant.resolve_grant(&settings.home, workspace));
        }
        all.grants.sort();
        all.grants.dedup();
        all.grants.retain(|grant| !request.grants.contains(grant));
        all
    }

    /// Returns whether there are no requirements.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the request with the required profile and powers.
    pub fn apply_to_request(&self, request: &RunRequest) -> RunRequest {
        if self.profile.is_none() && self.grants.is_empty() {
            return request.clone();
        }
        let mut effective_request = request.clone();
        effective_request.profile = self.profile.clone().unwrap_or(effective_request.profile);
        effective_request.grants.extend(self.grants.iter().cloned());
        effective_request
    }

    /// Lowers the limits of a profile to the required ones.
    pub fn lower_limits(&self, profile: &mut Profile) {
        profile.limits.lower_to(&self.limits);
    }
}

/// Returns the narrowest profile that the rules name; the first one if neither is wider. This profile
/// replaces the configured one; a profile that was requested by name is only narrowed.
fn profile_of(settings: &PolicySettings, request: &RunRequest, rules: &[&PolicyRule]) -> Option<String> {
    let spec = |name: &str| settings.profiles.get(name);
    let mut chosen: Option<&str> = None;
    // A project's rule counts only if it narrows the user's rules.
    let mut named: Vec<&PolicyRule> = rules.iter().copied().filter(|rule| rule.profile.is_some()).collect();
    named.sort_by_key(|rule| rule.origin.layer());
    for name in named.iter().filter_map(|rule| rule.profile.as_deref()) {
        let narrower = match chosen.and_then(spec) {
            None => true,
            Some(current) => {
                spec(name).is_some_and(|own| own.wider_than(current).is_none() && current.wider_than(own).is_some())
            }
        };
        if narrower {
            chosen = Some(name);
        }
    }
    let name = chosen.filter(|name| *name != request.profile)?;
    let is_default = request.profile == settings.profile.value;
    let narrows = || match (spec(name), spec(&request.profile)) {
        (Some(own), Some(requested_spec)) => own.wider_than(requested_spec).is_none(),
        _ => false,
    };
    (is_default || narrows()).then(|| name.to_owned())
}
