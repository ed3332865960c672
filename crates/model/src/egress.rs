//! What a run may reach through the door, and how: the lists, the limits, what
//! is looked into, which secrets are put in on the way, and through whom.
//!
//! Must not know how names are resolved, nor the values of secrets: only where
//! they are read.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Grant, Host, Inspection, RawText, Target, TargetPattern, special_address};

/// What a run may reach. Deny wins, whatever the order; what no list names may
/// be asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Egress {
    /// What may be reached. Nothing is allowed that is not here or granted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<TargetPattern>,
    /// What is not allowed by `allow`, so that it may be asked about; a grant
    /// gives it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ask: Vec<TargetPattern>,
    /// What is refused without asking, also where something else allows it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<TargetPattern>,
    /// Special addresses (private, loopback, link-local, ...) that names may
    /// lead to. An address that is asked for as an address needs none of these,
    /// but an entry or a grant that speaks of it; see [`TargetPattern::admits`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub special: Vec<TargetPattern>,
    /// Limits of a sandbox.
    #[serde(skip_serializing_if = "is_default")]
    pub limits: EgressLimits,
    /// What of the encrypted traffic is looked into.
    #[serde(skip_serializing_if = "Inspection::is_empty")]
    pub inspect: Inspection,
    /// Credentials that are put in at the door and are not inside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// The proxy that leads outside, where it is not the network itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Upstream>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Limits of a sandbox's connections, all together. Absent means no limit of
/// ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EgressLimits {
    /// HTTP requests in a minute, where requests are seen: through the proxy
    /// and where traffic is looked into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u64>,
    /// New connections in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_per_second: Option<u64>,
    /// Connections open at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// Bytes out of the sandbox in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_bytes_per_second: Option<u64>,
    /// Bytes into the sandbox in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_bytes_per_second: Option<u64>,
    /// Bytes in both directions, from first to last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
}

/// Where a value is read, on the host, when a run needs it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SecretSource {
    /// This variable of Stockade's own environment.
    Env(String),
    /// This file, an absolute path; one final line feed is not part of it.
    File(RawText),
}

/// How a credential stands in a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SecretKind {
    /// `authorization: Bearer SECRET`, or `token SECRET`.
    Bearer,
    /// `authorization: Basic`, as user name or password.
    Basic,
    /// In this header, in lower case; its value or a part of it.
    Header(String),
    /// The secret access key that signs requests (AWS Signature Version 4): the
    /// request is signed anew.
    Aws,
}

/// A credential that a run uses and never has: inside stands a placeholder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Secret {
    /// What it is called in the record.
    pub name: String,
    /// Where its value is read.
    pub from: SecretSource,
    /// Where it may go.
    pub hosts: Vec<TargetPattern>,
    /// How it stands in a request.
    pub kind: SecretKind,
    /// Where its placeholder stands inside: a variable, or a file.
    pub inside: SecretSource,
}

/// How to speak to a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UpstreamKind {
    /// HTTP CONNECT.
    Http,
    /// SOCKS5, with names.
    Socks5,
}

/// A proxy on the way outside. Names are resolved there; what it reaches can
/// only be checked by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Upstream {
    /// How to speak to it.
    pub kind: UpstreamKind,
    /// Where it is.
    pub proxy: Target,
    /// Where `USER:PASSWORD` is read, where it wants to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<SecretSource>,
    /// What is reached without it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<TargetPattern>,
}

/// What the lists say of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// An entry of `deny` names it.
    Denied(TargetPattern),
    /// An entry of `allow` names it, and none of `deny`.
    Allowed(TargetPattern),
    /// A grant names it, and no entry.
    Granted(TargetPattern),
    /// Nothing names it.
    Not,
}

impl Egress {
    /// True where nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What the lists say.
    pub fn listed(&self, target: &Target) -> Listed {
        self.listed_with(&[], target)
    }

    /// What the lists and these grants say: deny outweighs ask, ask outweighs
    /// allow. Entries of `deny` and `ask` name more than those that allow: a wide
    /// one of these, `*` or `0.0.0.0/0`, does not reach special addresses.
    pub fn listed_with<'a>(&self, grants: impl IntoIterator<Item = &'a Grant>, target: &Target) -> Listed {
        if let Some(pattern) = self.deny.iter().find(|pattern| pattern.names(target)) {
            return Listed::Denied(pattern.clone());
        }
        let asked = self.ask.iter().any(|pattern| pattern.names(target));
        if let Some(pattern) = self.allow.iter().find(|pattern| !asked && pattern.admits(target)) {
            return Listed::Allowed(pattern.clone());
        }
        let granted = grants.into_iter().filter_map(Grant::targets).find(|pattern| pattern.admits(target));
        granted.map_or(Listed::Not, |pattern| Listed::Granted(pattern.clone()))
    }

    /// Whether a name may lead to this special address, on this port.
    pub fn lists_special(&self, address: IpAddr, port: u16) -> bool {
        let target = Target { host: Host::of(address), port };
        self.special.iter().any(|pattern| pattern.names(&target))
    }

    /// Whether this address may be dialled for a target that may be reached.
    ///
    /// # Errors
    /// What the address is, where it is special and not listed.
    pub fn may_dial(&self, target: &Target, address: IpAddr) -> Result<(), &'static str> {
        // Whoever let an address pass knew what it is.
        if target.host == Host::of(address) {
            return Ok(());
        }
        match special_address(address) {
            Some(what) if !self.lists_special(address, target.port) => Err(what),
            _ => Ok(()),
        }
    }

    /// Whether traffic of this target is opened and read: it is listed, it has
    /// rules about requests, or a secret goes there; and it is not excepted.
    pub fn inspects(&self, target: &Target) -> bool {
        let secret = || self.secrets.iter().flat_map(|secret| &secret.hosts).any(|pattern| pattern.names(target));
        !self.inspect.excepts(target) && (self.inspect.opens(target) || secret())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deny_wins_and_nothing_is_allowed_unsaid() {
        let egress = Egress {
            allow: vec!["*".parse().unwrap(), "a:1".parse().unwrap()],
            deny: vec!["a:1".parse().unwrap()],
            ..Egress::default()
        };
        let grant = ["connect a:1".parse().unwrap(), "connect c:2".parse().unwrap()];
        assert!(matches!(egress.listed_with(&grant, &"a:1".parse().unwrap()), Listed::Denied(_)));
        assert!(matches!(egress.listed(&"b:1".parse().unwrap()), Listed::Allowed(_)));
        assert_eq!(Egress::default().listed(&"b:1".parse().unwrap()), Listed::Not);
        assert!(matches!(Egress::default().listed_with(&grant, &"c:2".parse().unwrap()), Listed::Granted(_)));
        assert_eq!(Egress::default().listed_with(&grant, &"c:3".parse().unwrap()), Listed::Not);
    }

    #[test]
    fn what_is_asked_about_is_given_by_a_grant_alone() {
        let egress =
            Egress { allow: vec!["*".parse().unwrap()], ask: vec!["**.a:443".parse().unwrap()], ..Egress::default() };
        let target: Target = "x.a:443".parse().unwrap();
        assert_eq!(egress.listed(&target), Listed::Not);
        assert!(matches!(egress.listed(&"x.a:80".parse().unwrap()), Listed::Allowed(_)));
        let grant = ["connect x.a:443".parse().unwrap()];
        assert!(matches!(egress.listed_with(&grant, &target), Listed::Granted(_)));
    }

    #[test]
    fn special_addresses_are_reached_where_they_are_named() {
        let egress = Egress { special: vec!["10.0.0.0/8:443".parse().unwrap()], ..Egress::default() };
        let named: Target = "intranet:443".parse().unwrap();
        assert_eq!(egress.may_dial(&named, "10.1.1.1".parse().unwrap()), Ok(()));
        assert!(egress.may_dial(&named, "192.168.1.1".parse().unwrap()).is_err());
        assert!(egress.may_dial(&"intranet:80".parse().unwrap(), "10.1.1.1".parse().unwrap()).is_err());
        assert!(egress.may_dial(&named, "::ffff:192.168.1.1".parse().unwrap()).is_err());
        assert_eq!(egress.may_dial(&named, "1.1.1.1".parse().unwrap()), Ok(()));
        let address: Target = "192.168.1.1:443".parse().unwrap();
        assert_eq!(egress.may_dial(&address, "192.168.1.1".parse().unwrap()), Ok(()));
        assert!(egress.may_dial(&address, "192.168.1.2".parse().unwrap()).is_err());
        assert_eq!(egress.listed(&address), Listed::Not);
    }

    #[test]
    fn secrets_and_rules_open_traffic() {
        let egress = Egress {
            inspect: Inspection {
                hosts: vec!["a".parse().unwrap()],
                except: vec!["x.a".parse().unwrap()],
                allow: vec!["GET https://b/*".parse().unwrap()],
                deny: vec![],
                upgrade: vec![],
            },
            secrets: vec![Secret {
                name: "s".into(),
                from: SecretSource::Env("S".into()),
                hosts: vec!["c:443".parse().unwrap(), "x.a".parse().unwrap()],
                kind: SecretKind::Bearer,
                inside: SecretSource::Env("S".into()),
            }],
            ..Egress::default()
        };
        for (target, expected) in
            [("a:443", true), ("b:443", true), ("b:80", false), ("c:443", true), ("c:444", false), ("x.a:443", false)]
        {
            assert_eq!(egress.inspects(&target.parse().unwrap()), expected, "{target}");
        }
    }
}
