//! Patterns of hosts and of targets. A pattern is parsed once, strictly, and means the same in a profile, a
//! rule and a grant.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::network::{HostError, parse_port};
use crate::special::{last_of, shares_prefix, special_address};
use crate::text_form::text_form;
use crate::{Host, HostName, NetworkTarget};

/// Pattern of hosts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// `*`: every host.
    Any,
    /// This host. `localhost` also matches 127.0.0.1 and `::1`.
    Exactly(Host),
    /// `*.NAME`: names with one more label.
    Beneath(HostName),
    /// `**.NAME`: names with one or more labels more.
    AnywhereBeneath(HostName),
    /// `ADDRESS/BITS`: addresses that share a prefix.
    Block {
        /// The first address of the block.
        first: IpAddr,
        /// Length of the prefix, in bits.
        bits: u8,
    },
}

/// Pattern of targets: `HOST`, `HOST:PORT`, `HOST:80,443,8000-8100`, with a pattern for the host. No ports
/// means every port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TargetPattern {
    host: HostPattern,
    ports: Vec<(u16, u16)>,
}

/// Most ports or port ranges in one pattern.
const MAX_PORTS: usize = 64;

impl HostPattern {
    /// Returns whether the pattern matches this host.
    pub fn matches_host(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            // Programs themselves resolve this name (RFC 6761).
            (Self::Exactly(Host::Name(name)), Host::Address(address)) => {
                name.as_str() == "localhost" && is_localhost(*address)
            }
            (Self::Exactly(exact), host) => exact == host,
            (Self::Beneath(parent), Host::Name(name)) => {
                strip_parent(parent, name).is_some_and(|head| !head.contains('.'))
            }
            (Self::AnywhereBeneath(parent), Host::Name(name)) => strip_parent(parent, name).is_some(),
            (Self::Block { first, bits }, Host::Address(address)) => shares_prefix(*first, *address, *bits),
            (Self::Beneath(_) | Self::AnywhereBeneath(_), Host::Address(_)) | (Self::Block { .. }, Host::Name(_)) => {
                false
            }
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => true,
            (Self::Exactly(a), Self::Exactly(b)) => self.matches_host(b) || other.matches_host(a),
            (Self::Exactly(host), pattern) | (pattern, Self::Exactly(host)) => pattern.matches_host(host),
            (Self::Block { first: a, bits: x }, Self::Block { first: b, bits: y }) => {
                shares_prefix(*a, *b, (*x).min(*y))
            }
            (Self::Block { .. }, _) | (_, Self::Block { .. }) => false,
            (Self::Beneath(a), Self::Beneath(b)) => a == b,
            // A name of one label more than `a` is beneath `b` if `a` is `b` or beneath it.
            (Self::Beneath(a), Self::AnywhereBeneath(b)) | (Self::AnywhereBeneath(b), Self::Beneath(a)) => {
                a == b || strip_parent(b, a).is_some()
            }
            (Self::AnywhereBeneath(a), Self::AnywhereBeneath(b)) => {
                a == b || strip_parent(a, b).is_some() || strip_parent(b, a).is_some()
            }
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (pattern, Self::Exactly(host)) => pattern.matches_host(host),
            (Self::Block { first: a, bits: x }, Self::Block { first: b, bits: y }) => {
                x <= y && shares_prefix(*a, *b, *x)
            }
            (Self::Beneath(a), Self::Beneath(b)) => a == b,
            (Self::AnywhereBeneath(a), Self::Beneath(b) | Self::AnywhereBeneath(b)) => {
                a == b || strip_parent(a, b).is_some()
            }
            _ => false,
        }
    }
}

/// Returns whether `localhost` means this address.
pub fn is_localhost(address: IpAddr) -> bool {
    [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)].contains(&address)
}

/// Returns the part of `name` before `.parent`.
fn strip_parent<'a>(parent: &HostName, name: &'a HostName) -> Option<&'a str> {
    name.as_str().strip_suffix(parent.as_str())?.strip_suffix('.').filter(|head| !head.is_empty())
}

impl HostPattern {
    /// Returns the name beneath which the hosts of `*.NAME` and `**.NAME` are.
    pub fn parent(&self) -> Option<&HostName> {
        match self {
            Self::Beneath(parent) | Self::AnywhereBeneath(parent) => Some(parent),
            Self::Any | Self::Exactly(_) | Self::Block { .. } => None,
        }
    }

    /// Returns a block; an IPv4-mapped one becomes the block of IPv4 addresses.
    fn from_block(first: IpAddr, bits: u8) -> Self {
        match (first.to_canonical(), bits.checked_sub(96)) {
            (canonical @ IpAddr::V4(_), Some(bits)) if first.is_ipv6() => Self::Block { first: canonical, bits },
            _ => Self::Block { first, bits },
        }
    }

    /// Returns whether the pattern addresses special addresses explicitly: `*` and `0.0.0.0/0` do not
    /// address private networks, `10.0.0.0/8` and `10.0.0.1` do.
    fn speaks_of_special(&self) -> bool {
        match self {
            Self::Exactly(_) => true,
            Self::Block { first, bits } => {
                let kind = special_address(*first);
                kind.is_some() && kind == special_address(last_of(*first, *bits))
            }
            Self::Any | Self::Beneath(_) | Self::AnywhereBeneath(_) => false,
        }
    }
}

impl TargetPattern {
    /// Returns the pattern of these hosts on these ports; no ports means every port.
    pub fn new(host: HostPattern, ports: impl IntoIterator<Item = u16>) -> Self {
        let mut ports: Vec<_> = ports.into_iter().map(|port| (port, port)).collect();
        ports.sort_unstable();
        ports.dedup();
        Self { host, ports }
    }

    /// Returns the target of the pattern, if the pattern names exactly one.
    pub fn target(&self) -> Option<NetworkTarget> {
        match (&self.host, self.ports.as_slice()) {
            (HostPattern::Exactly(host), [(first, last)]) if first == last => {
                Some(NetworkTarget { host: host.clone(), port: *first })
            }
            _ => None,
        }
    }

    /// Returns whether the pattern may allow this target. The pattern must match the target, and must
    /// address special addresses explicitly if the target is one.
    pub fn can_allow(&self, target: &NetworkTarget) -> bool {
        let special = matches!(target.host, Host::Address(address) if special_address(address).is_some());
        self.matches_target(target) && (!special || self.host.speaks_of_special())
    }

    /// Returns whether some target may match both patterns.
    pub fn overlaps(&self, other: &Self) -> bool {
        let ports = self.ports.is_empty()
            || other.ports.is_empty()
            || self.ports.iter().any(|a| other.ports.iter().any(|b| a.0 <= b.1 && b.0 <= a.1));
        ports && self.host.overlaps(&other.host)
    }

    /// Returns whether this pattern matches each target of `other`; in doubt, returns false.
    pub fn covers(&self, other: &Self) -> bool {
        let ports = self.ports.is_empty()
            || (!other.ports.is_empty()
                && other.ports.iter().all(|b| self.ports.iter().any(|a| a.0 <= b.0 && b.1 <= a.1)));
        ports && self.host.covers(&other.host)
    }

    /// Returns whether this pattern admits each target that `other` admits; in doubt, returns false.
    pub fn admits_all(&self, other: &Self) -> bool {
        let special = match &other.host {
            HostPattern::Exactly(Host::Address(address)) => special_address(*address).is_some(),
            HostPattern::Block { .. } => other.host.speaks_of_special(),
            HostPattern::Exactly(Host::Name(_))
            | HostPattern::Any
            | HostPattern::Beneath(_)
            | HostPattern::AnywhereBeneath(_) => false,
        };
        self.covers(other) && (!special || self.host.speaks_of_special())
    }

    /// Returns whether the pattern names addresses only.
    pub fn is_of_addresses(&self) -> bool {
        matches!(self.host, HostPattern::Exactly(Host::Address(_)) | HostPattern::Block { .. })
    }

    /// Returns whether the pattern names every host, on any ports.
    pub fn is_any_host(&self) -> bool {
        self.host == HostPattern::Any
    }

    /// Returns the pattern for exactly this target.
    pub fn for_target(target: &NetworkTarget) -> Self {
        Self { host: HostPattern::Exactly(target.host.clone()), ports: vec![(target.port, target.port)] }
    }

    /// Returns the pattern of the hosts.
    pub fn host(&self) -> &HostPattern {
        &self.host
    }

    /// Returns the ports, in order; none means every port.
    pub fn ports(&self) -> impl Iterator<Item = RangeInclusive<u16>> {
        self.ports.iter().map(|(first, last)| *first..=*last)
    }

    /// Returns whether the pattern matches this target.
    pub fn matches_target(&self, target: &NetworkTarget) -> bool {
        let has_port = self.ports.is_empty() || self.ports().any(|ports| ports.contains(&target.port));
        has_port && self.host.matches_host(&target.host)
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
            Host::Address(_) => Err(HostError::new(text, "host pattern", "`*` must not precede an address")),
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
        let Ok(first) = first.parse::<IpAddr>() else { return fail("an address must precede `/`") };
        let length = if first.is_ipv4() { 32 } else { 128 };
        let digits = Some(bits).filter(|bits| bits.bytes().all(|b| b.is_ascii_digit()));
        match digits.and_then(|bits| bits.parse().ok()) {
            Some(bits) if bits <= length && is_block_start(first, bits) => Ok(Self::from_block(first, bits)),
            Some(bits) if bits <= length => fail("the host bits of a block must be zero, e.g. `10.1.0.0/16`"),
            _ => fail("the number of bits must follow `/`: at most 32 or 128"),
        }
    }
}

/// Returns whether all bits after the first `bits` are zero.
fn is_block_start(first: IpAddr, bits: u8) -> bool {
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
    let one = |port: &str| parse_port(port).ok_or_else(|| fail("a port is a number from 1 to 65535"));
    let range = |item: &str| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        Ok((one(first)?, one(last)?))
    };
    let mut ports = list.split(',').take(MAX_PORTS + 1).map(range).collect::<Result<Vec<_>, _>>()?;
    if ports.len() > MAX_PORTS || ports.iter().any(|(first, last)| first > last) {
        return Err(fail("give at most 64 ports or ranges, the lower port first: `80,443,8000-8100`"));
    }
    ports.sort_unstable();
    ports.dedup();
    Ok(ports)
}

text_form!(TargetPattern, {
    "description": "Hosts and ports: `example.com:443`, `*.example.com` (one label), `**.example.com` (any depth), an address, a block `10.0.0.0/8`, `*`; ports `:80,443,8000-8100` may follow.",
    "type": "string",
    "pattern": r"^[^\s@]+$"
});

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, names: &[&str], others: &[&str]) {
        let parsed: TargetPattern = pattern.parse().unwrap();
        assert_eq!(parsed.to_string().parse::<TargetPattern>().unwrap(), parsed);
        for (targets, expected) in [(names, true), (others, false)] {
            for target in targets {
                assert_eq!(parsed.matches_target(&target.parse().unwrap()), expected, "{pattern} {target}");
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
        check(
            "localhost:80",
            &["localhost:80", "127.0.0.1:80", "[::1]:80"],
            &["127.0.0.2:80", "[::1]:81", "a.localhost:80"],
        );
        check("[::1]:80", &["[::1]:80"], &["[::1]:81"]);
        check("*:443", &["a:443", "10.0.0.1:443"], &["a:80"]);
        check("0.0.0.0/0", &["1.2.3.4:1"], &["a:1"]);
        check("[::ffff:10.0.0.0/104]", &["10.1.2.3:1", "[::ffff:10.0.0.1]:1"], &["11.0.0.1:1"]);
    }

    #[test]
    fn unclear_input_is_refused() {
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

    /// Targets of every kind that patterns distinguish.
    const TARGETS: &[&str] = &[
        "example.com:1",
        "a.example.com:1",
        "a.b.example.com:443",
        "b.example.com:80",
        "other.org:443",
        "10.0.0.1:1",
        "10.1.0.1:443",
        "8.8.8.8:443",
        "[::1]:1",
        "[2606::1]:443",
    ];
    const PATTERNS: &[&str] = &[
        "*",
        "*:443",
        "example.com",
        "example.com:1",
        "*.example.com",
        "**.example.com",
        "**.example.com:1-100",
        "*.b.example.com",
        "**.b.example.com",
        "*.a.b.example.com",
        "10.0.0.0/8",
        "10.1.0.0/16:443",
        "10.0.0.1",
        "0.0.0.0/0",
        "[::/0]",
        "8.8.8.8:443,80",
        "**.com",
        "*.com",
    ];

    /// `covers` and `overlaps` agree with the comparison of single targets.
    #[test]
    fn comparing_patterns_agrees_with_their_targets() {
        let patterns: Vec<TargetPattern> = PATTERNS.iter().map(|text| text.parse().unwrap()).collect();
        let targets: Vec<NetworkTarget> = TARGETS.iter().map(|text| text.parse().unwrap()).collect();
        for a in &patterns {
            assert!(a.covers(a) && a.overlaps(a), "{a}");
            for b in &patterns {
                assert_eq!(a.overlaps(b), b.overlaps(a), "{a} {b}");
                for target in &targets {
                    if a.covers(b) && b.matches_target(target) {
                        assert!(a.matches_target(target), "{a} covers {b} and not {target}");
                    }
                    if a.admits_all(b) && b.can_allow(target) {
                        assert!(a.can_allow(target), "{a} admits all of {b} and not {target}");
                    }
                    if a.matches_target(target) && b.matches_target(target) {
                        assert!(a.overlaps(b), "{a} and {b} both name {target}");
                    }
                }
            }
        }
    }

    #[test]
    fn wide_patterns_exclude_special_addresses() {
        for (pattern, target, expected) in [
            ("*", "example.com:1", true),
            ("*", "8.8.8.8:53", true),
            ("*", "127.0.0.1:1", false),
            ("0.0.0.0/0", "10.0.0.1:1", false),
            ("0.0.0.0/0", "8.8.8.8:1", true),
            ("8.0.0.0/6", "10.0.0.1:1", false),
            ("10.0.0.0/8", "10.0.0.1:1", true),
            ("10.0.0.0/8:80", "10.0.0.1:81", false),
            ("169.254.0.0/16", "169.254.169.254:80", true),
            ("169.254.169.254", "169.254.169.254:80", true),
            ("[::/0]", "[::1]:80", false),
            ("[fd00::/8]", "[fd00::1]:80", true),
            ("[::ffff:10.0.0.1]", "10.0.0.1:80", true),
        ] {
            let parsed: TargetPattern = pattern.parse().unwrap();
            assert_eq!(parsed.can_allow(&target.parse().unwrap()), expected, "{pattern} {target}");
        }
        for (pattern, other, expected) in [
            ("*", "example.com:443", true),
            ("*", "8.8.8.8:53", true),
            ("*", "10.0.0.1:80", false),
            ("*", "10.0.0.0/8", false),
            ("10.0.0.0/8", "10.0.0.1:80", true),
            ("**.example.com", "a.example.com:1", true),
            ("a:80", "a:80-81", false),
        ] {
            let (parsed, other): (TargetPattern, TargetPattern) = (pattern.parse().unwrap(), other.parse().unwrap());
            assert_eq!(parsed.admits_all(&other), expected, "{pattern} {other}");
        }
    }
}
