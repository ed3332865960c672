//! Targets that an attempt may reach: the lists of its profile, its initial grants, and the grants
//! added since. The broker decides by them and adds to them. The egress proxy asks which names are
//! permitted.
//!
//! This module must not know sockets or its callers.

use std::sync::{Arc, PoisonError, RwLock};

use stockade_model::{
    AttemptPlan, EffectUse, EgressRules, Grant, Host, HostName, HostPattern, NetworkTarget, SecretUse, TargetListing,
    TargetPattern, special_address,
};
use stockade_sys::net::is_own_address;

use crate::powers::PermissionRefusal;

/// The reachable targets. All copies belong to the same attempt and share added grants.
#[derive(Clone, Debug, Default)]
pub struct EgressReach {
    lists: Arc<EgressRules>,
    granted: Arc<RwLock<Vec<Grant>>>,
}

impl EgressReach {
    /// Returns the targets that a plan lets its attempt reach.
    pub fn from_plan(plan: &AttemptPlan) -> Self {
        let reach = Self { lists: Arc::new(plan.profile.egress.clone()), granted: Arc::default() };
        plan.grants.iter().chain(&plan.effects).for_each(|grant| reach.add_grant(grant));
        reach
    }

    /// Adds a grant if it concerns targets, secrets for them, or effects.
    pub fn add_grant(&self, grant: &Grant) {
        let mut granted = self.granted.write().unwrap_or_else(PoisonError::into_inner);
        let is_known = granted.contains(grant);
        if matches!(grant, Grant::Connect(_) | Grant::Secret(_) | Grant::Effect(_)) && !is_known {
            granted.push(grant.clone());
        }
    }

    /// Returns the rule that lets this target be reached.
    ///
    /// # Errors
    /// [`PermissionRefusal`] with the refusing rule and the sufficient grant.
    pub fn decide_target(&self, target: &NetworkTarget) -> Result<String, PermissionRefusal> {
        let granted = self.granted.read().unwrap_or_else(PoisonError::into_inner);
        match self.lists.listed_with(granted.iter(), target) {
            TargetListing::Allowed(pattern) | TargetListing::Granted(pattern) if self.is_unmeant(&granted, target) => {
                let rule = format!("{target} is this machine itself, which `{pattern}` does not match");
                Err(PermissionRefusal::until(Grant::connect_to(target), rule))
            }
            TargetListing::Allowed(pattern) => Ok(format!("allow {pattern}")),
            TargetListing::Granted(pattern) => Ok(format!("grant connect {pattern}")),
            TargetListing::Denied(pattern) => Err(PermissionRefusal::without_grant(format!("deny {pattern}"))),
            TargetListing::Not => Err(PermissionRefusal::until(Grant::connect_to(target), "not among the targets")),
        }
    }

    /// Returns the grant that lets a secret be sent to a target that the secret's own hosts do not
    /// include. The decision whether the target may be reached at all is separate.
    ///
    /// # Errors
    /// [`PermissionRefusal`] with the refusing rule and the sufficient grant. `rule` is the egress proxy's
    /// text.
    pub fn decide_secret(&self, requested_use: &SecretUse, rule: &str) -> Result<String, PermissionRefusal> {
        if let Some(pattern) = self.lists.deny.iter().find(|pattern| pattern.overlaps(requested_use.targets())) {
            return Err(PermissionRefusal::without_grant(format!("deny {pattern}")));
        }
        let granted = self.granted.read().unwrap_or_else(PoisonError::into_inner);
        match granted.iter().filter_map(Grant::secret).find(|own| own.covers(requested_use)) {
            Some(own) => Ok(format!("grant secret {own}")),
            None => Err(PermissionRefusal::until(requested_use.clone().into_grant(), rule)),
        }
    }

    /// Returns the approval that lets a request have this outside effect. An approval covers the
    /// same effect of any process. The decision whether its target may be reached at all is
    /// separate.
    ///
    /// # Errors
    /// [`PermissionRefusal`] with the missing approval and the sufficient grant. `message` is the egress
    /// proxy's text.
    pub fn decide_effect(&self, requested_use: &EffectUse, message: &str) -> Result<String, PermissionRefusal> {
        let granted = self.granted.read().unwrap_or_else(PoisonError::into_inner);
        match granted.iter().filter_map(Grant::effect).find(|own| own.covers(requested_use)) {
            Some(own) => Ok(format!("effect {own}")),
            None => Err(PermissionRefusal::until(requested_use.clone().into_grant(), message)),
        }
    }

    /// Returns whether the target is this machine at an ordinary address that no pattern names
    /// exactly. Servers that listen on every address are not intended for runs that may reach the
    /// internet.
    fn is_unmeant(&self, granted: &[Grant], target: &NetworkTarget) -> bool {
        let Host::Address(address) = target.host else { return false };
        let is_named = |pattern: &TargetPattern| {
            matches!(pattern.host(), HostPattern::Exactly(host) if *host == target.host)
                && pattern.matches_target(target)
        };
        let mut patterns = granted.iter().filter_map(Grant::targets).chain(&self.lists.allow);
        special_address(address).is_none() && !patterns.any(is_named) && is_own_address(address)
    }

    /// Returns whether some port of this name may be reached.
    pub fn allows_name(&self, name: &HostName) -> bool {
        let host = Host::Name(name.clone());
        let names = |pattern: &HostPattern| pattern.matches_host(&host);
        let denied = self.lists.deny.iter().any(|p| p.ports().next().is_none() && names(p.host()));
        let granted = self.granted.read().unwrap_or_else(PoisonError::into_inner);
        let agreed = granted.iter().filter_map(Grant::targets).chain(&self.lists.allow).any(|p| names(p.host()));
        agreed && !denied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(allow: &[&str], deny: &[&str], grants: &[&str]) -> EgressReach {
        let all = |list: &[&str]| list.iter().map(|p| p.parse().unwrap()).collect();
        let lists = EgressRules { allow: all(allow), deny: all(deny), ..EgressRules::default() };
        let reach = EgressReach { lists: Arc::new(lists), ..EgressReach::default() };
        grants.iter().for_each(|grant| reach.add_grant(&grant.parse().unwrap()));
        reach
    }

    #[test]
    fn lists_and_grants_decide_and_name_the_rule() {
        let reach = reach(&["a.b:443", "*.c"], &["x.c"], &["connect d:1", "connect x.c:1", "write /a"]);
        for (target, expected) in [
            ("a.b:443", Ok("allow a.b:443")),
            ("y.c:1", Ok("allow *.c")),
            ("d:1", Ok("grant connect d:1")),
            ("x.c:1", Err(("deny x.c", None))),
            ("a.b:80", Err(("not among the targets", Some("connect a.b:80")))),
            ("127.0.0.1:80", Err(("not among the targets", Some("connect 127.0.0.1:80")))),
        ] {
            let result = reach.decide_target(&target.parse().unwrap());
            let result = result.map_err(|r| (r.rule, r.grant.map(|g| g.to_string())));
            let expected = expected.map(str::to_owned);
            assert_eq!(result, expected.map_err(|(r, g): (&str, Option<&str>)| (r.into(), g.map(str::to_owned))));
        }
    }

    #[test]
    fn a_secret_is_sent_only_to_its_granted_and_reachable_hosts() {
        let reach = reach(&["a.b"], &["x.c"], &["secret s to a.b:443", "secret s to x.c", "connect d:1"]);
        for (requested_use, expected) in [
            ("s to a.b:443", Ok("grant secret s to a.b:443")),
            ("s to a.b:80", Err(("stray", Some("secret s to a.b:80")))),
            ("t to a.b:443", Err(("stray", Some("secret t to a.b:443")))),
            ("s to d:1", Err(("stray", Some("secret s to d:1")))),
            ("s to x.c:1", Err(("deny x.c", None))),
        ] {
            let requested_use: SecretUse = requested_use.parse().unwrap();
            let result = reach.decide_secret(&requested_use, "stray");
            let result = result.map_err(|r| (r.rule, r.grant.map(|g| g.to_string())));
            let expected = expected.map_err(|(r, g): (&str, Option<&str>)| (r.into(), g.map(str::to_owned)));
            assert_eq!(result, expected.map(str::to_owned));
        }
        // A grant to send a secret to a target does not permit the connection itself.
        assert!(self::reach(&[], &[], &["secret s to a.b:443"]).decide_target(&"a.b:443".parse().unwrap()).is_err());
    }

    #[test]
    fn copies_learn_of_each_others_grants_and_only_agreed_names_are_known() {
        let reach = reach(&["a.b:443"], &["no", "part:80"], &["connect no", "connect part"]);
        let copy = reach.clone();
        copy.add_grant(&"connect late:1".parse().unwrap());
        for (name, expected) in [("a.b", true), ("late", true), ("no", false), ("part", true), ("other", false)] {
            let host: Host = name.parse().unwrap();
            assert_eq!(reach.allows_name(host.name().unwrap()), expected, "{name}");
        }
    }
}
