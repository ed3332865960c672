//! Targets of connections: hosts, targets, and the record of each connection.
//!
//! A host is parsed once, strictly, and compared as a value afterwards. So the check of a name and the
//! dialling use the same value. Must not know how names are resolved.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RawText;
use crate::text_form::{display_as_text, text_form};

/// Longest host name, in letters, without a final dot (RFC 1035, 2.3.4).
const MAX_NAME_BYTES: usize = 253;
/// Longest label of a host name (RFC 1035, 2.3.4).
const MAX_LABEL_BYTES: usize = 63;

/// A host: a name, or an address. A name is in lower case and has no final dot; an IPv4-mapped IPv6 address
/// becomes the IPv4 address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Host {
    /// A name that a resolver must resolve.
    Name(HostName),
    /// An address.
    Address(IpAddr),
}

/// The name of a host: see [`Host`]. Only [`Host::from_str`] makes one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

/// Reason why a text is not a host, a target or a pattern of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid {what}: {why}")]
pub struct HostError {
    text: String,
    what: &'static str,
    why: &'static str,
}

impl HostError {
    pub(crate) fn new(text: &str, what: &'static str, why: &'static str) -> Self {
        Self { text: text.escape_default().take(MAX_NAME_BYTES * 2).collect(), what, why }
    }

    /// Returns the reason, without the text.
    pub fn reason(&self) -> &'static str {
        self.why
    }
}

display_as_text!(HostName);

impl Host {
    /// Returns the host for an address.
    pub fn from_address(address: IpAddr) -> Self {
        Self::Address(address.to_canonical())
    }

    /// Returns the name of the host, if it has one.
    pub fn name(&self) -> Option<&HostName> {
        match self {
            Self::Name(name) => Some(name),
            Self::Address(_) => None,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl FromStr for Host {
    type Err = HostError;

    /// Parses a bare host: no port, and brackets around an IPv6 address only.
    fn from_str(text: &str) -> Result<Self, HostError> {
        let fail = |why| Err(HostError::new(text, "host", why));
        let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(inner) = inner {
            return match inner.parse::<Ipv6Addr>() {
                Ok(address) => Ok(Self::from_address(address.into())),
                Err(_) => fail("only an IPv6 address may be in brackets"),
            };
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::from_address(address));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return fail("a name has 1 to 253 characters");
        }
        for label in name.split('.') {
            let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
            if label.is_empty() || label.len() > MAX_LABEL_BYTES {
                return fail("each part between dots has 1 to 63 characters");
            }
            if !label.bytes().all(fits) || label.starts_with('-') || label.ends_with('-') {
                return fail("a part between dots has letters, digits, `_` and `-`; `-` is neither first nor last");
            }
        }
        // Resolvers parse such a text as an address, each in a different way.
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_number = last.bytes().all(|b| b.is_ascii_digit())
            || last.strip_prefix("0x").is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        if is_number {
            return fail("it ends in a number but is not an address: write four decimal numbers, e.g. `127.0.0.1`");
        }
        Ok(Self::Name(HostName(name)))
    }
}

text_form!(Host, { "description": "A host name in lower case, or an address.", "type": "string", "maxLength": MAX_NAME_BYTES });

/// Target of one connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkTarget {
    /// The host.
    pub host: Host,
    /// TCP port, never 0.
    pub port: u16,
}

impl fmt::Display for NetworkTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(address @ IpAddr::V6(_)) => write!(f, "[{address}]:{}", self.port),
            host => write!(f, "{host}:{}", self.port),
        }
    }
}

impl FromStr for NetworkTarget {
    type Err = HostError;

    /// Parses `HOST:PORT` or `[V6]:PORT`.
    fn from_str(text: &str) -> Result<Self, HostError> {
        let fail = |why| HostError::new(text, "target", why);
        let (host, port) = text.rsplit_once(':').ok_or_else(|| fail("a port must follow the host: `pypi.org:443`"))?;
        if host.contains(':') && !host.starts_with('[') {
            return Err(fail("write an IPv6 address in brackets: `[::1]:443`"));
        }
        let port = parse_port(port).ok_or_else(|| fail("a port is a number from 1 to 65535"))?;
        Ok(Self { host: host.parse()?, port })
    }
}

/// Parses a port in decimal digits; `None` for 0 and every other text.
pub(crate) fn parse_port(text: &str) -> Option<u16> {
    let digits = Some(text).filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    digits.and_then(|text| text.parse().ok()).filter(|port| *port != 0)
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionEnd {
    /// Either side closed it.
    Closed,
    /// Either side reset it.
    Reset,
    /// The connection failed: refused, unreachable, timed out, or no such name.
    Failed,
    /// The egress proxy ended it because of a rule or a limit.
    Refused,
    /// The connection was open when the run ended.
    RunEnded,
}

/// One connection through the egress proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionRecord {
    /// Process id as the host sees it, if known.
    pub pid: Option<u32>,
    /// The resolved executable of that process, if known.
    pub program: Option<RawText>,
    /// The requested target.
    pub target: NetworkTarget,
    /// The dialled address.
    pub address: Option<IpAddr>,
    /// The rule or grant that allowed or refused the connection.
    pub rule: String,
    /// The server name of the TLS client hello, if there was one.
    pub tls_name: Option<RawText>,
    /// Bytes out of the sandbox.
    pub bytes_up: u64,
    /// Bytes into the sandbox.
    pub bytes_down: u64,
    /// Time from the dialling to the end, in milliseconds.
    pub duration_ms: u64,
    /// How the connection ended.
    pub end: ConnectionEnd,
    /// The reason, if the connection failed or was refused.
    pub why: Option<String>,
}

/// Connections of one attempt to one target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostUse {
    /// The target.
    pub target: NetworkTarget,
    /// Number of established connections.
    pub connections: u64,
    /// Number of failed connections: refused by the host, unreachable, timed out, or no such name.
    pub failed: u64,
    /// Number of connections that the egress proxy refused or ended.
    pub refused: u64,
    /// Bytes out of the sandbox.
    pub bytes_up: u64,
    /// Bytes into the sandbox.
    pub bytes_down: u64,
}

impl HostUse {
    /// Adds a connection to the counts. Connections to more than `limit` different targets are counted in
    /// `left_out`.
    pub fn count_connection(uses: &mut Vec<Self>, left_out: &mut u64, limit: usize, record: &ConnectionRecord) {
        let at = match uses.iter().position(|known| known.target == record.target) {
            Some(at) => at,
            None if uses.len() >= limit => {
                *left_out += 1;
                return;
            }
            None => {
                let target = record.target.clone();
                uses.push(Self { target, connections: 0, failed: 0, refused: 0, bytes_up: 0, bytes_down: 0 });
                uses.len() - 1
            }
        };
        let known = &mut uses[at];
        match record.end {
            ConnectionEnd::Failed => known.failed += 1,
            ConnectionEnd::Refused => known.refused += 1,
            ConnectionEnd::Closed | ConnectionEnd::Reset | ConnectionEnd::RunEnded => known.connections += 1,
        }
        known.bytes_up = known.bytes_up.saturating_add(record.bytes_up);
        known.bytes_down = known.bytes_down.saturating_add(record.bytes_down);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_once_and_strictly() {
        for (text, shown) in [
            ("PyPI.org.", "pypi.org"),
            ("a_b.example", "a_b.example"),
            ("localhost", "localhost"),
            ("127.0.0.1", "127.0.0.1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("[::1]", "::1"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ] {
            let host: Host = text.parse().unwrap();
            assert_eq!(host.to_string(), shown);
            assert_eq!(shown.parse::<Host>().unwrap(), host);
        }
        let long = "a".repeat(64);
        for bad in [
            "",
            ".",
            "a..b",
            ".a",
            "a b",
            "a\0b",
            "a%00b",
            "a\nb",
            "a/b",
            "a@b",
            "bücher.example",
            "-a.b",
            "a-.b",
            "2130706433",
            "0x7f000001",
            "127.1",
            "0177.0.0.1",
            "1.2.3.4.5",
            "a.0x1",
            "127.0.0.1.",
            "[127.0.0.1]",
            "[::1",
            "::1]",
            &long,
        ] {
            assert!(bad.parse::<Host>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn targets() {
        for (text, shown) in [("A.b:443", "a.b:443"), ("[::1]:1", "[::1]:1"), ("10.0.0.1:80", "10.0.0.1:80")] {
            assert_eq!(text.parse::<NetworkTarget>().unwrap().to_string(), shown);
        }
        for bad in ["a", "a:0", "a:65536", "a:443abc", "a:+1", "::1:80", "a:", ":80", "a:1:2"] {
            assert!(bad.parse::<NetworkTarget>().is_err(), "{bad:?}");
        }
    }
}
