//! What the rules that apply want of a run beyond a verdict: a profile, powers,
//! limits. They change with what powers it runs, never whether it has a sandbox
//! (L1).
//!
//! Must not know questions: that powers of a rule that asks are asked about is
//! `decide`'s.

use stockade_model::{Grant, Limits, Profile, Request, Verdict};

use crate::rules::{Findings, Rule};
use crate::settings::Settings;

/// What the rules want of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obligations {
    /// The profile to run with, where it is another than the one asked for.
    pub profile: Option<String>,
    /// Powers to add, beyond those asked for.
    pub grants: Vec<Grant>,
    /// Limits that hold where they are lower than the profile's.
    pub limits: Limits,
}

impl Obligations {
    /// Of `allow` rules only where together they cover the whole command.
    pub(crate) fn of(settings: &Settings, request: &Request, found: &Findings<'_>) -> Self {
        // A rule that refuses wants nothing of the run.
        let raised = found.raised.iter().map(|(rule, _)| *rule).filter(|rule| rule.effect == Verdict::Ask);
        let speaking: Vec<&Rule> = raised.chain(found.allowed.iter().copied()).collect();
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
            all.grants.extend(grant.resolve(&settings.home, workspace));
        }
        all.grants.sort();
        all.grants.dedup();
        all.grants.retain(|grant| !request.grants.contains(grant));
        all
    }

    /// True where nothing is wanted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The request with profile and powers put in.
    pub fn request(&self, request: &Request) -> Request {
        if self.profile.is_none() && self.grants.is_empty() {
            return request.clone();
        }
        let mut wanted = request.clone();
        wanted.profile = self.profile.clone().unwrap_or(wanted.profile);
        wanted.grants.extend(self.grants.iter().cloned());
        wanted
    }

    /// Lowers the limits of a profile to those wanted.
    pub fn narrow(&self, profile: &mut Profile) {
        profile.limits.lower_to(&self.limits);
    }
}

/// The narrowest profile that the rules name; the first of those of which
/// neither is wider. It takes the place of the configured profile; one that was
/// asked for by name is only narrowed.
fn profile_of(settings: &Settings, request: &Request, rules: &[&Rule]) -> Option<String> {
    let spec = |name: &str| settings.profiles.get(name);
    let mut chosen: Option<&str> = None;
    // A project's word counts only where it narrows what the person's rules say.
    let mut named: Vec<&Rule> = rules.iter().copied().filter(|rule| rule.profile.is_some()).collect();
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
        (Some(own), Some(asked)) => own.wider_than(asked).is_none(),
        _ => false,
    };
    (is_default || narrows()).then(|| name.to_owned())
}
