//! Rules about hosts, applied to the lists of a profile. The verdict of a rule to refuse or ask applies
//! although a list or a grant names the host (L9).
//!
//! Must not know connections: the lists of a run are made once, before any connection.

use std::net::Ipv4Addr;

use stockade_model::{Host, NetworkTarget, PolicyVerdict, Profile, TargetPattern};

use crate::act::{ActContext, build_act_input};
use crate::file::CombiningAlgorithm;
use crate::groups::{HostGroup, groups_with};
use crate::hosts::{HostEntry, widen_to_siblings};
use crate::rules::{Act, PolicyRule, RequestContext, RuleKind, RuleMatch};
use crate::settings::PolicySettings;

impl PolicySettings {
    /// Returns the hosts beneath one domain that may be granted instead of one of them, once several are
    /// requested: `*.PARENT` on the same port. The parent must have an owner, and no entry may refuse or
    /// ask about any of the hosts. The profile is that of a run, with the rules in it.
    pub fn grantable_siblings(&self, profile: &Profile, targets: &TargetPattern) -> Option<TargetPattern> {
        let around = widen_to_siblings(targets)?;
        let egress = &profile.egress;
        let is_restricted = egress.deny.iter().chain(&egress.ask).any(|entry| entry.overlaps(&around));
        (!is_restricted).then_some(around)
    }

    /// Returns the smallest shipped group that lists this target among others, if no entry refuses or asks
    /// about any of its hosts. The profile is that of a run, with the rules in it.
    pub fn grantable_group(&self, profile: &Profile, target: &NetworkTarget) -> Option<&'static HostGroup> {
        let egress = &profile.egress;
        let is_restricted =
            |host: &TargetPattern| egress.deny.iter().chain(&egress.ask).any(|entry| entry.overlaps(host));
        groups_with(target).into_iter().find(|group| group.hosts.len() > 1 && !group.hosts.iter().any(is_restricted))
    }

    /// Adds the rules that refuse or ask about hosts, for this run, to the lists of its profile. A rule
    /// that only may apply becomes an entry of `ask`, and so does one that an earlier rule of its file may
    /// outweigh. The rules then decide in detail.
    pub fn bind_host_rules(&self, profile: &mut Profile, stage: &ActContext<'_>, around: &RequestContext) {
        let about_hosts = |rule: &&PolicyRule| rule.raises_caution() && rule.kind == RuleKind::Host;
        if !self.rules().any(|rule| about_hosts(&rule)) {
            return;
        }
        // The directory, user and time conditions of a rule do not depend on the host.
        let host = Host::from_address(Ipv4Addr::UNSPECIFIED.into());
        let scene = build_act_input(self, Act::Network { host: &host, port: None }, stage, around);
        for set in self.rules.sets() {
            for rule in set.rules.iter().filter(about_hosts) {
                let list = match (rule.match_conditions(&scene), rule.effect) {
                    (RuleMatch::No, _) => continue,
                    (RuleMatch::Certain, PolicyVerdict::Deny)
                        if set.combining != CombiningAlgorithm::FirstApplicable =>
                    {
                        &mut profile.egress.deny
                    }
                    _ => &mut profile.egress.ask,
                };
                add_patterns(list, rule.section.hosts.iter().flat_map(HostEntry::patterns));
            }
        }
    }
}

fn add_patterns<'a>(list: &mut Vec<TargetPattern>, patterns: impl Iterator<Item = &'a TargetPattern>) {
    for pattern in patterns {
        if !list.contains(pattern) {
            list.push(pattern.clone());
        }
    }
}
