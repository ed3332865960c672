//! What a run may reach: patterns of targets, in two lists and no order.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::network::HostError;
use crate::{Host, HostName, Target};

/// Which hosts a pattern names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// `*`: each.
    Any,
    /// This one.
    Exactly(Host),
    /// `*.NAME`: the names with one label more.
    Beneath(HostName),
    /// `**.NAME`: the names with one label more, or several.
    AnywhereBeneath(HostName),
    /// `ADDRESS/BITS`: the addresses that begin so.
    Block {
        /// The first of them.
        first: IpAddr,
        /// How many bits they share.
        bits: u8,
    },
}

/// Which targets: `HOST`, `HOST:PORT`, `HOST:80,443,8000-8100`, with a pattern
/// for the host. No ports means each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TargetPattern {
    host: HostPattern,
    ports: Vec<(u16, u16)>,
}

/// Most ports or ranges of them in one pattern.
const MAX_PORTS: usize = 64;

impl HostPattern {
    /// Whether this host is one of them.
    pub fn names(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Exactly(wanted), host) => wanted == host,
            (Self::Beneath(parent), Host::Name(name)) => head(parent, name).is_some_and(|head| !head.contains('.')),
            (Self::AnywhereBeneath(parent), Host::Name(name)) => head(parent, name).is_some(),
            (Self::Block { first, bits }, Host::Address(address)) => shares(*first, *address, *bits),
            (Self::Beneath(_) | Self::AnywhereBeneath(_), Host::Address(_)) | (Self::Block { .. }, Host::Name(_)) => {
                false
            }
        }
    }
}

/// What stands before `.parent` in `name`.
fn head<'a>(parent: &HostName, name: &'a HostName) -> Option<&'a str> {
    name.as_str().strip_suffix(parent.as_str())?.strip_suffix('.').filter(|head| !head.is_empty())
}

fn shares(first: IpAddr, address: IpAddr, bits: u8) -> bool {
    match (first, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= u32::from(bits),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= u32::from(bits),
        _ => false,
    }
}

impl TargetPattern {
    /// Exactly this target.
    pub fn exactly(target: &Target) -> Self {
        Self { host: HostPattern::Exactly(target.host.clone()), ports: vec![(target.port, target.port)] }
    }

    /// The hosts.
    pub fn host(&self) -> &HostPattern {
        &self.host
    }

    /// The ports, in order; none means each.
    pub fn ports(&self) -> impl Iterator<Item = RangeInclusive<u16>> {
        self.ports.iter().map(|(first, last)| *first..=*last)
    }

    /// Whether this target is one of them.
    pub fn names(&self, target: &Target) -> bool {
        let has_port = self.ports.is_empty() || self.ports().any(|ports| ports.contains(&target.port));
        has_port && self.host.names(&target.host)
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Exactly(Host::Address(address @ IpAddr::V6(_))) => write!(f, "[{address}]"),
            Self::Exactly(host) => host.fmt(f),
            Self::Beneath(name) => write!(f, "*.{name}"),
            Self::AnywhereBeneath(name) => write!(f, "**.{name}"),
            Self::Block { first: IpAddr::V6(first), bits } => write!(f, "[{first}/{bits}]"),
            Self::Block { first, bits } => write!(f, "{first}/{bits}"),
        }
    }
}

impl fmt::Display for TargetPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(f)?;
        for (index, (first, last)) in self.ports.iter().enumerate() {
            f.write_str(if index == 0 { ":" } else { "," })?;
            if first == last { write!(f, "{first}")? } else { write!(f, "{first}-{last}")? }
        }
        Ok(())
    }
}

impl FromStr for HostPattern {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let fail = |why| Err(HostError::new(text, "host pattern", why));
        let name_of = |rest: &str| match rest.parse()? {
            Host::Name(name) => Ok(name),
            Host::Address(_) => Err(HostError::new(text, "host pattern", "before an address stands no `*`")),
        };
        if text == "*" {
            return Ok(Self::Any);
        }
        if let Some(rest) = text.strip_prefix("**.") {
            return name_of(rest).map(Self::AnywhereBeneath);
        }
        if let Some(rest) = text.strip_prefix("*.") {
            return name_of(rest).map(Self::Beneath);
        }
        let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        let Some((first, bits)) = inner.split_once('/') else { return text.parse().map(Self::Exactly) };
        let Ok(first) = first.parse::<IpAddr>() else { return fail("before `/` stands an address") };
        let length = if first.is_ipv4() { 32 } else { 128 };
        let digits = Some(bits).filter(|bits| bits.bytes().all(|b| b.is_ascii_digit()));
        match digits.and_then(|bits| bits.parse().ok()) {
            Some(bits) if bits <= length && begins(first, bits) => Ok(Self::Block { first, bits }),
            Some(bits) if bits <= length => fail("an address of a block ends in zeroes, e.g. `10.1.0.0/16`"),
            _ => fail("after `/` stands the number of bits, at most 32 or 128"),
        }
    }
}

/// Whether all bits after the first `bits` are zero.
fn begins(first: IpAddr, bits: u8) -> bool {
    let zeroes = match first {
        IpAddr::V4(address) => 32 - address.to_bits().trailing_zeros(),
        IpAddr::V6(address) => 128 - address.to_bits().trailing_zeros(),
    };
    zeroes <= u32::from(bits)
}

impl FromStr for TargetPattern {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let bracket = text.rfind(']').map_or(0, |at| at + 1);
        let (host, ports) = match text[bracket..].split_once(':') {
            // A bare IPv6 address or block.
            Some((_, tail)) if bracket == 0 && tail.contains(':') => (text, None),
            Some((head, ports)) => (&text[..bracket + head.len()], Some(ports)),
            None => (text, None),
        };
        let ports = ports.map_or(Ok(Vec::new()), |ports| ports_of(text, ports))?;
        Ok(Self { host: host.parse()?, ports })
    }
}

fn ports_of(text: &str, list: &str) -> Result<Vec<(u16, u16)>, HostError> {
    let fail = |why| HostError::new(text, "target pattern", why);
    let one = |port: &str| {
        let digits = Some(port).filter(|p| p.bytes().all(|b| b.is_ascii_digit()));
        let port = digits.and_then(|p| p.parse().ok()).filter(|p| *p != 0_u16);
        port.ok_or_else(|| fail("a port is a number from 1 to 65535"))
    };
    let range = |item: &str| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        Ok((one(first)?, one(last)?))
    };
    let mut ports = list.split(',').take(MAX_PORTS + 1).map(range).collect::<Result<Vec<_>, _>>()?;
    if ports.len() > MAX_PORTS || ports.iter().any(|(first, last)| first > last) {
        return Err(fail("ports are at most 64 numbers or ranges, the lower first: `80,443,8000-8100`"));
    }
    ports.sort_unstable();
    ports.dedup();
    Ok(ports)
}

impl From<TargetPattern> for String {
    fn from(pattern: TargetPattern) -> Self {
        pattern.to_string()
    }
}

impl TryFrom<String> for TargetPattern {
    type Error = HostError;
    fn try_from(text: String) -> Result<Self, HostError> {
        text.parse()
    }
}

impl JsonSchema for TargetPattern {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TargetPattern".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Hosts and ports: `example.com:443`, `*.example.com` (one label), `**.example.com` (any depth), an address, a block `10.0.0.0/8`, `*`; ports `:80,443,8000-8100` may follow.",
            "type": "string",
            "pattern": r"^[^\s@]+$"
        })
    }
}

/// What a run may reach. Deny wins, whatever the order; what no list names may
/// be asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Egress {
    /// What may be reached. Nothing is allowed that is not here or granted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<TargetPattern>,
    /// What is refused without asking, also where something else allows it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<TargetPattern>,
    /// Special addresses (private, loopback, link-local, ...) that may be
    /// dialled where a name leads to them. An address that is asked for as an
    /// address needs its own entry in `allow` as well.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub special: Vec<TargetPattern>,
}

/// What the lists say of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// An entry of `deny` names it.
    Denied(TargetPattern),
    /// An entry of `allow` names it, and none of `deny`.
    Allowed(TargetPattern),
    /// No entry names it.
    Not,
}

impl Egress {
    /// True where nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What the lists say.
    pub fn listed(&self, target: &Target) -> Listed {
        let naming = |list: &[TargetPattern]| list.iter().find(|pattern| pattern.names(target)).cloned();
        match (naming(&self.deny), naming(&self.allow)) {
            (Some(pattern), _) => Listed::Denied(pattern),
            (None, Some(pattern)) => Listed::Allowed(pattern),
            (None, None) => Listed::Not,
        }
    }

    /// Whether this special address may be dialled on this port.
    pub fn lists_special(&self, address: IpAddr, port: u16) -> bool {
        let target = Target { host: Host::of(address), port };
        self.special.iter().any(|pattern| pattern.names(&target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, names: &[&str], others: &[&str]) {
        let parsed: TargetPattern = pattern.parse().unwrap();
        assert_eq!(parsed.to_string().parse::<TargetPattern>().unwrap(), parsed);
        for (targets, expected) in [(names, true), (others, false)] {
            for target in targets {
                assert_eq!(parsed.names(&target.parse().unwrap()), expected, "{pattern} {target}");
            }
        }
    }

    #[test]
    fn patterns() {
        check("Example.com", &["example.com:1", "EXAMPLE.com.:443"], &["a.example.com:1", "xexample.com:1"]);
        check("example.com:443", &["example.com:443"], &["example.com:80"]);
        check("*.example.com", &["a.example.com:1"], &["example.com:1", "a.b.example.com:1", "xexample.com:1"]);
        check("**.example.com:80,443", &["a.b.example.com:80"], &["example.com:80", "a.example.com:81"]);
        check("a:80,8000-8100", &["a:8050", "a:80"], &["a:8101", "a:79"]);
        check("10.0.0.0/8", &["10.1.2.3:1", "[::ffff:10.0.0.1]:1"], &["11.0.0.1:1", "a:1", "[::1]:1"]);
        check("[fd00::/8]:443", &["[fd12::1]:443"], &["[fd12::1]:80", "[fe80::1]:443"]);
        check("::1", &["[::1]:80"], &["127.0.0.1:80"]);
        check("[::1]:80", &["[::1]:80"], &["[::1]:81"]);
        check("*:443", &["a:443", "10.0.0.1:443"], &["a:80"]);
        check("0.0.0.0/0", &["1.2.3.4:1"], &["a:1"]);
    }

    #[test]
    fn what_is_unclear_is_refused() {
        for bad in [
            "",
            ":",
            "a:",
            "a:0",
            "a:65536",
            "a:90-80",
            "a:1,",
            "a:+1",
            "a b",
            "*a.b",
            "a.*",
            "*.",
            "**.",
            "*.*.a",
            "*.1.2.3.4",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "a/8",
            "http://a",
            "[a]:1",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "a:b:c",
        ] {
            assert!(bad.parse::<TargetPattern>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn deny_wins_and_nothing_is_allowed_unsaid() {
        let egress = Egress {
            allow: vec!["*".parse().unwrap(), "a:1".parse().unwrap()],
            deny: vec!["a:1".parse().unwrap()],
            special: vec![],
        };
        assert!(matches!(egress.listed(&"a:1".parse().unwrap()), Listed::Denied(_)));
        assert!(matches!(egress.listed(&"b:1".parse().unwrap()), Listed::Allowed(_)));
        assert_eq!(Egress::default().listed(&"b:1".parse().unwrap()), Listed::Not);
    }
}
