//! What a configuration file may say of the network, as types. Every doc
//! comment here is read by users.
//!
//! Must not know layers, nor read a secret.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;
use stockade_model::{RequestPattern, SecretKind, Target, TargetPattern, UpstreamKind};

use crate::hosts::HostEntry;
use crate::text::{Bytes, ConfigPath, TextError, VariableName, fail, parsed_unshown, text_form};

/// What a run may reach through the door, and how. Deny outweighs ask, ask
/// outweighs allow; what no list names is asked about, or refused where nobody
/// can be asked.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EgressSection {
    /// What may be reached, e.g. `["@pypi", "api.example.com:443"]`. Not in
    /// project configuration.
    pub allow: Vec<HostEntry>,
    /// What is asked about although `allow` names it, unless it was granted.
    pub ask: Vec<HostEntry>,
    /// What is refused, whatever allows or grants it.
    pub deny: Vec<HostEntry>,
    /// Addresses of private networks, loopback and the like that names may lead
    /// to, e.g. `["10.0.0.0/8:443"]`; without an entry a name that leads there
    /// is refused. Not in project configuration.
    pub special: Vec<TargetPattern>,
    /// Limits of all connections of a sandbox together. A project may only lower
    /// them.
    pub limits: EgressLimitsSection,
    /// What of the traffic is looked into.
    pub inspect: InspectSection,
    /// Credentials that a run uses and never has, by name. Inside stands a
    /// placeholder; the door puts the value in. Not in project configuration.
    pub secrets: BTreeMap<String, SecretSection>,
    /// The proxy that leads outside. Not in project configuration.
    pub upstream: Option<UpstreamSection>,
}

/// Limits of all connections of a sandbox together.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EgressLimitsSection {
    /// HTTP requests in a minute, where requests are seen: in plain HTTP and where
    /// traffic is looked into.
    #[schemars(range(min = 1))]
    pub requests_per_minute: Option<u64>,
    /// New connections in a second.
    #[schemars(range(min = 1))]
    pub connections_per_second: Option<u64>,
    /// Connections open at once.
    #[schemars(range(min = 1))]
    pub connections: Option<u64>,
    /// Out of the sandbox in a second, e.g. `1MiB`.
    pub up_per_second: Option<Bytes>,
    /// Into the sandbox in a second, e.g. `10MiB`.
    pub down_per_second: Option<Bytes>,
    /// In both directions, from first to last, e.g. `2GiB`.
    pub total: Option<Bytes>,
}

/// What of the traffic is looked into. Encrypted traffic is opened with an
/// authority of the sandbox's own; programs that know their server's
/// certificate refuse that: name their hosts in `except`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct InspectSection {
    /// Whose traffic is opened and read.
    pub hosts: Vec<HostEntry>,
    /// Whose traffic is never opened. Not in project configuration.
    pub except: Vec<HostEntry>,
    /// Requests that pass, e.g. `["GET https://api.example.com/v1/*"]`. A host
    /// that one of these names gets no others. Not in project configuration.
    pub allow: Vec<RequestPattern>,
    /// Requests that are refused, also where `allow` names them, in upper and lower
    /// case.
    pub deny: Vec<RequestPattern>,
    /// Hosts that may change the protocol of a connection that is read, e.g. to
    /// WebSocket: nothing but secrets is looked for in it afterwards. Not in project
    /// configuration.
    pub upgrade: Vec<HostEntry>,
}

/// A credential that a run uses and never has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretSection {
    /// Where its value is read on the host when a run starts: `env NAME` or
    /// `file PATH`.
    pub from: SecretPlace,
    /// Where it may go.
    pub hosts: Vec<HostEntry>,
    /// How it stands in a request: `bearer`, `basic`, `aws`, or `header NAME`.
    pub kind: SecretForm,
    /// Where its placeholder stands inside: `env NAME` or `file PATH`. Default:
    /// as `from`.
    pub inside: Option<SecretPlace>,
}

/// The proxy that leads outside, where it is not the network itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpstreamSection {
    /// Where it is and how it is spoken to: `http://HOST:PORT` or
    /// `socks5://HOST:PORT`.
    pub proxy: UpstreamAddress,
    /// Where `USER:PASSWORD` is read, where it wants to know: `env NAME` or
    /// `file PATH`.
    pub credentials: Option<SecretPlace>,
    /// What is reached without it.
    #[serde(default)]
    pub except: Vec<HostEntry>,
}

/// Where a value is read: `env NAME` or `file PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretPlace {
    /// This variable.
    Env(VariableName),
    /// This file.
    File(ConfigPath),
}

impl fmt::Display for SecretPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env {}", name.0),
            Self::File(path) => write!(f, "file {path}"),
        }
    }
}

impl FromStr for SecretPlace {
    type Err = TextError;
    fn from_str(text: &str) -> Result<Self, TextError> {
        match text.split_once(' ') {
            Some(("env", name)) => name.parse().map(Self::Env),
            Some(("file", path)) => path.parse().map(Self::File),
            _ => fail("a place is `env NAME` or `file PATH`, never the value itself"),
        }
    }
}
text_form!(SecretPlace, "^(env|file) .+$", "`env NAME` or `file PATH`.", parsed_unshown);

/// How a credential stands in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretForm(pub(crate) SecretKind);

/// Headers that say how a request is to be read or routed; none carries a
/// credential, and a value put in there could change what the others mean
/// (RFC 9110, 7; RFC 9112, 6).
const NO_SECRET_HEADERS: &[&str] =
    &["connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];

impl fmt::Display for SecretForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            SecretKind::Bearer => f.write_str("bearer"),
            SecretKind::Basic => f.write_str("basic"),
            SecretKind::Aws => f.write_str("aws"),
            SecretKind::Header(name) => write!(f, "header {name}"),
        }
    }
}

impl FromStr for SecretForm {
    type Err = TextError;
    fn from_str(text: &str) -> Result<Self, TextError> {
        let kind = match text {
            "bearer" => SecretKind::Bearer,
            "basic" => SecretKind::Basic,
            "aws" => SecretKind::Aws,
            _ => match text.strip_prefix("header ").map(str::to_ascii_lowercase) {
                Some(name) if is_header(&name) => SecretKind::Header(name),
                _ => return fail("a kind is `bearer`, `basic`, `aws`, or `header NAME`, e.g. `header x-api-key`"),
            },
        };
        Ok(Self(kind))
    }
}
text_form!(SecretForm, "^(bearer|basic|aws|header [A-Za-z0-9-]+)$", "`bearer`, `basic`, `aws`, or `header NAME`.");

fn is_header(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(fits) && !NO_SECRET_HEADERS.contains(&name)
}

/// A proxy: how it is spoken to, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamAddress {
    pub(crate) kind: UpstreamKind,
    pub(crate) target: Target,
}

impl fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.kind {
            UpstreamKind::Http => "http",
            UpstreamKind::Socks5 => "socks5",
        };
        write!(f, "{scheme}://{}", self.target)
    }
}

impl FromStr for UpstreamAddress {
    type Err = TextError;
    fn from_str(text: &str) -> Result<Self, TextError> {
        const FORM: &str = "a proxy is `http://HOST:PORT` or `socks5://HOST:PORT`; a password has a key of its own";
        let (kind, rest) = match text.split_once("://") {
            Some(("http", rest)) => (UpstreamKind::Http, rest),
            Some(("socks5" | "socks5h", rest)) => (UpstreamKind::Socks5, rest),
            _ => return fail(FORM),
        };
        let target = rest.strip_suffix('/').unwrap_or(rest).parse::<Target>();
        target.map(|target| Self { kind, target }).map_err(|_| TextError::new(FORM))
    }
}
text_form!(
    UpstreamAddress,
    "^(http|socks5h?)://[^/@ ]+:[0-9]+/?$",
    "`http://HOST:PORT` or `socks5://HOST:PORT`.",
    parsed_unshown
);

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: FromStr<Err = TextError> + fmt::Display>(text: &str, shown: Option<&str>) {
        assert_eq!(text.parse::<T>().ok().map(|value| value.to_string()).as_deref(), shown, "{text:?}");
    }

    #[test]
    fn places_of_secrets() {
        check::<SecretPlace>("env GITHUB_TOKEN", Some("env GITHUB_TOKEN"));
        check::<SecretPlace>("file ~/.config/token", Some("file ~/.config/token"));
        for bad in ["", "env", "env ", "GITHUB_TOKEN", "env A B", "file token", "sk-123", "env 1A", "file ~/.."] {
            check::<SecretPlace>(bad, None);
        }
    }

    #[test]
    fn forms_of_secrets() {
        check::<SecretForm>("bearer", Some("bearer"));
        check::<SecretForm>("header X-Api-Key", Some("header x-api-key"));
        for bad in
            ["", "Bearer", "header", "header ", "header a b", "header a:b", "header Host", "header content-length"]
        {
            check::<SecretForm>(bad, None);
        }
    }

    #[test]
    fn addresses_of_proxies() {
        check::<UpstreamAddress>("http://Proxy.corp:3128/", Some("http://proxy.corp:3128"));
        check::<UpstreamAddress>("socks5h://[::1]:1080", Some("socks5://[::1]:1080"));
        for bad in [
            "",
            "proxy:3128",
            "http://proxy",
            "https://proxy:1",
            "http://u:p@proxy:1",
            "http://proxy:0",
            "http://a:1/x",
        ] {
            check::<UpstreamAddress>(bad, None);
        }
    }
}
