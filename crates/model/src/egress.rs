//! Rules of the egress proxy: the lists of targets, the limits, the inspected traffic, the secrets that are
//! injected, and the upstream proxy.
//!
//! Must not know how names are resolved, nor the values of secrets: only where they are read.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Grant, Host, InspectionRules, NetworkTarget, RawText, TargetPattern, special_address};

/// The targets that a run may connect to. Deny wins, whatever the order; a target that no list names may be
/// asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EgressRules {
    /// Allowed targets. A target is allowed only if it is listed here or granted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<TargetPattern>,
    /// Exceptions to `allow`, so that they may be asked about; a grant allows them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ask: Vec<TargetPattern>,
    /// Targets that are refused without a question, even if another entry allows them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<TargetPattern>,
    /// Special addresses (private, loopback, link-local, ...) that names may resolve to. A target that is
    /// given as an address does not need this list, but an entry or a grant that addresses it specifically;
    /// see [`TargetPattern::can_allow`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub special: Vec<TargetPattern>,
    /// Limits of a sandbox.
    #[serde(skip_serializing_if = "is_default")]
    pub limits: EgressLimits,
    /// Encrypted traffic that is inspected.
    #[serde(skip_serializing_if = "InspectionRules::is_empty")]
    pub inspect: InspectionRules,
    /// Credentials that the egress proxy injects and that do not exist inside the sandbox.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<EgressSecret>,
    /// The upstream proxy, if the network is not reached directly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<UpstreamProxy>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Limits of all connections of a sandbox together. An absent value sets no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EgressLimits {
    /// HTTP requests per minute. Only visible requests are counted: those to the proxy and those in
    /// inspected traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u64>,
    /// New connections per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_per_second: Option<u64>,
    /// Open connections at one time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// Bytes out of the sandbox per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_bytes_per_second: Option<u64>,
    /// Bytes into the sandbox per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_bytes_per_second: Option<u64>,
    /// Bytes in both directions, in total.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
}

/// Source of a value on the host, read when a run needs it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SecretSource {
    /// This variable of Stockade's own environment.
    Env(String),
    /// This file, an absolute path; one final line feed is not part of the value.
    File(RawText),
}

/// Form of a credential in a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SecretKind {
    /// `authorization: Bearer SECRET`, or `token SECRET`.
    Bearer,
    /// `authorization: Basic`, as user name or password.
    Basic,
    /// In this header, in lower case; the whole value or a part of it.
    Header(String),
    /// The secret access key that signs requests (AWS Signature Version 4): the request is signed again.
    Aws,
}

/// A credential that a run uses but never sees: the sandbox holds a placeholder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EgressSecret {
    /// Name of the secret in the audit log.
    pub name: String,
    /// Source of the value.
    pub from: SecretSource,
    /// Hosts that may receive the secret.
    pub hosts: Vec<TargetPattern>,
    /// Form of the secret in a request.
    pub kind: SecretKind,
    /// Location of the placeholder in the sandbox: a variable, or a file.
    pub inside: SecretSource,
}

/// Protocol of an upstream proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UpstreamKind {
    /// HTTP CONNECT.
    Http,
    /// SOCKS5, with names.
    Socks5,
}

/// An upstream proxy. The proxy resolves names, so its targets can only be checked by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpstreamProxy {
    /// Protocol of the proxy.
    pub kind: UpstreamKind,
    /// Address of the proxy.
    pub proxy: NetworkTarget,
    /// Source of `USER:PASSWORD`, if the proxy requires authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<SecretSource>,
    /// Targets that are reached without the proxy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<TargetPattern>,
}

/// Result of a look-up of a target in the lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetListing {
    /// An entry of `deny` names the target.
    Denied(TargetPattern),
    /// An entry of `allow` names the target, and none of `deny`.
    Allowed(TargetPattern),
    /// A grant names the target, and no entry does.
    Granted(TargetPattern),
    /// No entry and no grant names the target.
    Not,
}

impl EgressRules {
    /// Returns whether all fields have their defaults.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Looks the target up in the lists.
    pub fn look_up_target(&self, target: &NetworkTarget) -> TargetListing {
        self.listed_with(&[], target)
    }

    /// Looks the target up in the lists and these grants: deny outweighs ask, ask outweighs allow. Entries
    /// of `deny` and `ask` name more targets than those that allow: a wide allowing entry, `*` or
    /// `0.0.0.0/0`, does not include special addresses.
    pub fn listed_with<'a>(
        &self,
        grants: impl IntoIterator<Item = &'a Grant>,
        target: &NetworkTarget,
    ) -> TargetListing {
        if let Some(pattern) = self.deny.iter().find(|pattern| pattern.matches_target(target)) {
            return TargetListing::Denied(pattern.clone());
        }
        let must_ask = self.ask.iter().any(|pattern| pattern.matches_target(target));
        if let Some(pattern) = self.allow.iter().find(|pattern| !must_ask && pattern.can_allow(target)) {
            return TargetListing::Allowed(pattern.clone());
        }
        let granted = grants.into_iter().filter_map(Grant::targets).find(|pattern| pattern.can_allow(target));
        granted.map_or(TargetListing::Not, |pattern| TargetListing::Granted(pattern.clone()))
    }

    /// Returns whether a name may resolve to this special address, on this port.
    pub fn lists_special(&self, address: IpAddr, port: u16) -> bool {
        let target = NetworkTarget { host: Host::from_address(address), port };
        self.special.iter().any(|pattern| pattern.matches_target(&target))
    }

    /// Checks whether this address may be dialled for an allowed target.
    ///
    /// # Errors
    /// The kind of the address, if the address is special and not listed.
    pub fn may_dial(&self, target: &NetworkTarget, address: IpAddr) -> Result<(), &'static str> {
        // The rule that allowed an address names it explicitly.
        if target.host == Host::from_address(address) {
            return Ok(());
        }
        match special_address(address) {
            Some(what) if !self.lists_special(address, target.port) => Err(what),
            _ => Ok(()),
        }
    }

    /// Returns whether traffic of this target is decrypted and read. The target must be listed, have rules
    /// about requests, or receive a secret, and must not be excepted.
    pub fn requires_inspection(&self, target: &NetworkTarget) -> bool {
        let secret =
            || self.secrets.iter().flat_map(|secret| &secret.hosts).any(|pattern| pattern.matches_target(target));
        !self.inspect.is_excepted(target) && (self.inspect.requires_decryption(target) || secret())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deny_wins_and_nothing_is_allowed_unsaid() {
        let egress = EgressRules {
            allow: vec!["*".parse().unwrap(), "a:1".parse().unwrap()],
            deny: vec!["a:1".parse().unwrap()],
            ..EgressRules::default()
        };
        let grant = ["connect a:1".parse().unwrap(), "connect c:2".parse().unwrap()];
        assert!(matches!(egress.listed_with(&grant, &"a:1".parse().unwrap()), TargetListing::Denied(_)));
        assert!(matches!(egress.look_up_target(&"b:1".parse().unwrap()), TargetListing::Allowed(_)));
        assert_eq!(EgressRules::default().look_up_target(&"b:1".parse().unwrap()), TargetListing::Not);
        assert!(matches!(
            EgressRules::default().listed_with(&grant, &"c:2".parse().unwrap()),
            TargetListing::Granted(_)
        ));
        assert_eq!(EgressRules::default().listed_with(&grant, &"c:3".parse().unwrap()), TargetListing::Not);
    }

    #[test]
    fn powers_that_need_a_question_need_an_explicit_grant() {
        let egress = EgressRules {
            allow: vec!["*".parse().unwrap()],
            ask: vec!["**.a:443".parse().unwrap()],
            ..EgressRules::default()
        };
        let target: NetworkTarget = "x.a:443".parse().unwrap();
        assert_eq!(egress.look_up_target(&target), TargetListing::Not);
        assert!(matches!(egress.look_up_target(&"x.a:80".parse().unwrap()), TargetListing::Allowed(_)));
        let grant = ["connect x.a:443".parse().unwrap()];
        assert!(matches!(egress.listed_with(&grant, &target), TargetListing::Granted(_)));
    }

    #[test]
    fn special_addresses_are_reached_where_they_are_named() {
        let egress = EgressRules { special: vec!["10.0.0.0/8:443".parse().unwrap()], ..EgressRules::default() };
        let named: NetworkTarget = "intranet:443".parse().unwrap();
        assert_eq!(egress.may_dial(&named, "10.1.1.1".parse().unwrap()), Ok(()));
        assert!(egress.may_dial(&named, "192.168.1.1".parse().unwrap()).is_err());
        assert!(egress.may_dial(&"intranet:80".parse().unwrap(), "10.1.1.1".parse().unwrap()).is_err());
        assert!(egress.may_dial(&named, "::ffff:192.168.1.1".parse().unwrap()).is_err());
        assert_eq!(egress.may_dial(&named, "1.1.1.1".parse().unwrap()), Ok(()));
        let address: NetworkTarget = "192.168.1.1:443".parse().unwrap();
        assert_eq!(egress.may_dial(&address, "192.168.1.1".parse().unwrap()), Ok(()));
        assert!(egress.may_dial(&address, "192.168.1.2".parse().unwrap()).is_err());
        assert_eq!(egress.look_up_target(&address), TargetListing::Not);
    }

    #[test]
    fn secrets_and_rules_open_traffic() {
        let egress = EgressRules {
            inspect: InspectionRules {
                hosts: vec!["a".parse().unwrap()],
                except: vec!["x.a".parse().unwrap()],
                allow: vec!["GET https://b/*".parse().unwrap()],
                deny: vec![],
                upgrade: vec![],
            },
            secrets: vec![EgressSecret {
                name: "s".into(),
                from: SecretSource::Env("S".into()),
                hosts: vec!["c:443".parse().unwrap(), "x.a".parse().unwrap()],
                kind: SecretKind::Bearer,
                inside: SecretSource::Env("S".into()),
            }],
            ..EgressRules::default()
        };
        for (target, expected) in
            [("a:443", true), ("b:443", true), ("b:80", false), ("c:443", true), ("c:444", false), ("x.a:443", false)]
        {
            assert_eq!(egress.requires_inspection(&target.parse().unwrap()), expected, "{target}");
        }
    }
}
