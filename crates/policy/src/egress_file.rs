//! The network part of a configuration file, as types. Every doc comment here is read by users.
//!
//! Must not know layers, nor read a secret.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;
use stockade_model::{NetworkTarget, RequestPattern, SecretKind, TargetPattern, UpstreamKind};

use crate::hosts::HostEntry;
use crate::text::{ConfigBytes, ConfigPath, TextError, VariableName, parsed_unshown, text_error, text_form};

/// Rules for connections through the egress proxy. Deny outweighs ask, ask outweighs allow. A target that
/// no list names is asked about, or refused if no approver can be asked.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EgressSection {
    /// Allowed targets, e.g. `["@pypi", "api.example.com:443"]`. Not in project configuration.
    pub allow: Vec<HostEntry>,
    /// Targets that are asked about although `allow` names them, unless they were granted.
    pub ask: Vec<HostEntry>,
    /// Targets that are refused, even if another entry or a grant allows them.
    pub deny: Vec<HostEntry>,
    /// Addresses of private networks, loopback and the like that names may resolve to, e.g.
    /// `["10.0.0.0/8:443"]`. Without an entry, a name that resolves to such an address is refused. Not in
    /// project configuration.
    pub special: Vec<TargetPattern>,
    /// Limits of all connections of a sandbox together. A project may only lower them.
    pub limits: EgressLimitsSection,
    /// Traffic that is inspected.
    pub inspect: InspectSection,
    /// Credentials that a run uses but never sees, by name. The sandbox holds a placeholder; the egress
    /// proxy injects the value. Not in project configuration.
    pub secrets: BTreeMap<String, SecretSection>,
    /// The upstream proxy. Not in project configuration.
    pub upstream: Option<UpstreamSection>,
}

/// Limits of all connections of a sandbox together.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EgressLimitsSection {
    /// HTTP requests per minute. Only visible requests are counted: plain HTTP and requests in inspected
    /// traffic.
    #[schemars(range(min = 1))]
    pub requests_per_minute: Option<u64>,
    /// New connections per second.
    #[schemars(range(min = 1))]
    pub connections_per_second: Option<u64>,
    /// Open connections at one time.
    #[schemars(range(min = 1))]
    pub connections: Option<u64>,
    /// Bytes out of the sandbox per second, e.g. `1MiB`.
    pub up_per_second: Option<ConfigBytes>,
    /// Bytes into the sandbox per second, e.g. `10MiB`.
    pub down_per_second: Option<ConfigBytes>,
    /// Bytes in both directions, in total, e.g. `2GiB`.
    pub total: Option<ConfigBytes>,
}

/// Traffic that is inspected. Encrypted traffic is decrypted with a certificate authority of the sandbox.
/// Programs that pin their server's certificate refuse this: name their hosts in `except`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct InspectSection {
    /// Hosts whose traffic is decrypted and read.
    pub hosts: Vec<HostEntry>,
    /// Hosts whose traffic is never decrypted. Not in project configuration.
    pub except: Vec<HostEntry>,
    /// Allowed requests, e.g. `["GET https://api.example.com/v1/*"]`. A host that an entry names gets no
    /// other requests. Not in project configuration.
    pub allow: Vec<RequestPattern>,
    /// Requests that are refused, even if `allow` names them, in upper and lower case.
    pub deny: Vec<RequestPattern>,
    /// Hosts that may change the protocol of an inspected connection, e.g. to WebSocket. After the change
    /// the traffic is only searched for secrets. Not in project configuration.
    pub upgrade: Vec<HostEntry>,
}

/// A credential that a run uses but never sees.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretSection {
    /// Source of the value on the host, read when a run starts: `env NAME` or `file PATH`.
    pub from: SecretSourceText,
    /// Hosts that may receive the secret.
    pub hosts: Vec<HostEntry>,
    /// Form of the secret in a request: `bearer`, `basic`, `aws`, or `header NAME`.
    pub kind: SecretForm,
    /// Location of the placeholder in the sandbox: `env NAME` or `file PATH`. Default: same as `from`.
    pub inside: Option<SecretSourceText>,
}

/// The upstream proxy, if the network is not reached directly.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpstreamSection {
    /// Protocol and address of the proxy: `http://HOST:PORT` or `socks5://HOST:PORT`.
    pub proxy: UpstreamAddress,
    /// Source of `USER:PASSWORD`, if the proxy requires authentication: `env NAME` or `file PATH`.
    pub credentials: Option<SecretSourceText>,
    /// Hosts that are reached without the proxy.
    #[serde(default)]
    pub except: Vec<HostEntry>,
}

/// Source of a value: `env NAME` or `file PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSourceText {
    /// This variable.
    Env(VariableName),
    /// This file.
    File(ConfigPath),
}

impl fmt::Display for SecretSourceText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env {}", name.0),
            Self::File(path) => write!(f, "file {path}"),
        }
    }
}

impl FromStr for SecretSourceText {
    type Err = TextError;
    fn from_str(text: &str) -> Result<Self, TextError> {
        match text.split_once(' ') {
            Some(("env", name)) => name.parse().map(Self::Env),
            Some(("file", path)) => path.parse().map(Self::File),
            _ => text_error("give `env NAME` or `file PATH`, never the value itself"),
        }
    }
}
text_form!(SecretSourceText, "^(env|file) .+$", "`env NAME` or `file PATH`.", parsed_unshown);

/// Form of a credential in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretForm(pub(crate) SecretKind);

/// Headers that control how a request is parsed or routed. None carries a credential, and a value inserted
/// there could change the meaning of the other headers (RFC 9110, 7; RFC 9112, 6).
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
                _ => {
                    return text_error("a kind is `bearer`, `basic`, `aws`, or `header NAME`, e.g. `header x-api-key`");
                }
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

/// A proxy: its protocol and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamAddress {
    pub(crate) kind: UpstreamKind,
    pub(crate) target: NetworkTarget,
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
        const PROXY_FORM: &str = "a proxy is `http://HOST:PORT` or `socks5://HOST:PORT`; set a password in its own key";
        let (kind, rest) = match text.split_once("://") {
            Some(("http", rest)) => (UpstreamKind::Http, rest),
            Some(("socks5" | "socks5h", rest)) => (UpstreamKind::Socks5, rest),
            _ => return text_error(PROXY_FORM),
        };
        let target = rest.strip_suffix('/').unwrap_or(rest).parse::<NetworkTarget>();
        target.map(|target| Self { kind, target }).map_err(|_| TextError::new(PROXY_FORM))
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
    fn headers_of_secrets() {
        check::<SecretSourceText>("env GITHUB_TOKEN", Some("env GITHUB_TOKEN"));
        check::<SecretSourceText>("file ~/.config/token", Some("file ~/.config/token"));
        for bad in ["", "env", "env ", "GITHUB_TOKEN", "env A B", "file token", "sk-123", "env 1A", "file ~/.."] {
            check::<SecretSourceText>(bad, None);
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
