//! Addresses that a name may not lead to unless configuration lists them: what is
//! not the public Internet. One table; an address that carries another inside it
//! (mapped, translated, tunnelled) is looked at as that one too.
//!
//! Facts: IANA special-purpose address registries; RFC 6890, 6052, 8215, 3056,
//! 4380; the metadata addresses of the large clouds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 blocks: first address, bits, what it is.
const V4: &[([u8; 4], u8, &str)] = &[
    ([0, 0, 0, 0], 8, "this host"),
    ([10, 0, 0, 0], 8, "private"),
    ([100, 64, 0, 0], 10, "shared by a carrier's customers"),
    ([127, 0, 0, 0], 8, "loopback"),
    ([169, 254, 169, 254], 32, "metadata of a cloud"),
    ([169, 254, 0, 0], 16, "link-local"),
    ([172, 16, 0, 0], 12, "private"),
    ([192, 0, 0, 0], 24, "protocol assignments"),
    ([192, 0, 2, 0], 24, "for documentation"),
    ([192, 31, 196, 0], 24, "reserved for AS112"),
    ([192, 52, 193, 0], 24, "automatic multicast tunnels"),
    ([192, 88, 99, 0], 24, "6to4 relays"),
    ([192, 168, 0, 0], 16, "private"),
    ([192, 175, 48, 0], 24, "reserved for AS112"),
    ([198, 18, 0, 0], 15, "for benchmarks"),
    ([198, 51, 100, 0], 24, "for documentation"),
    ([203, 0, 113, 0], 24, "for documentation"),
    ([224, 0, 0, 0], 4, "multicast"),
    ([255, 255, 255, 255], 32, "broadcast"),
    ([240, 0, 0, 0], 4, "reserved"),
    // Answers on every Azure host to the machine's own agent.
    ([168, 63, 129, 16], 32, "metadata of a cloud"),
];

/// IPv6 blocks: first address, bits, what it is.
const V6: &[([u16; 8], u8, &str)] = &[
    ([0, 0, 0, 0, 0, 0, 0, 0], 128, "unspecified"),
    ([0, 0, 0, 0, 0, 0, 0, 1], 128, "loopback"),
    ([0, 0, 0, 0, 0, 0, 0, 0], 96, "IPv4-compatible"),
    ([0, 0, 0, 0, 0, 0xffff, 0, 0], 96, "IPv4-mapped"),
    ([0, 0, 0, 0, 0xffff, 0, 0, 0], 96, "IPv4-translated"),
    ([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48, "translation to IPv4 of a site"),
    ([0x100, 0, 0, 0, 0, 0, 0, 0], 64, "discarded"),
    ([0x100, 0, 0, 1, 0, 0, 0, 0], 64, "placeholder"),
    ([0x2001, 2, 0, 0, 0, 0, 0, 0], 48, "for benchmarks"),
    ([0x2001, 0x10, 0, 0, 0, 0, 0, 0], 28, "cryptographic identifiers"),
    ([0x2001, 0x20, 0, 0, 0, 0, 0, 0], 28, "cryptographic identifiers"),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, "for documentation"),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, "protocol assignments"),
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16, "6to4"),
    ([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48, "reserved for AS112"),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, "for documentation"),
    ([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16, "segment routing"),
    ([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128, "metadata of a cloud"),
    ([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128, "metadata of a cloud"),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, "unique local"),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, "link-local"),
    ([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, "site-local"),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, "multicast"),
];

/// NAT64's well-known prefix: public, but for the address inside it.
const NAT64: u128 = 0x0064_ff9b_0000_0000_0000_0000;

/// What is special about an address; `None` for a public one.
pub fn special(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => special_v4(v4),
        IpAddr::V6(v6) => special_v6(v6),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let inside = |first: [u8; 4], bits: u8| (address.to_bits() ^ u32::from_be_bytes(first)) >> (32 - bits) == 0;
    V4.iter().find(|(first, bits, _)| inside(*first, *bits)).map(|(_, _, what)| *what)
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    // The address inside says more than its wrapping.
    if let Some(what) = carried(address).and_then(special_v4) {
        return Some(what);
    }
    let inside = |first: [u16; 8], bits: u8| (address.to_bits() ^ Ipv6Addr::from(first).to_bits()) >> (128 - bits) == 0;
    if let Some((_, _, what)) = V6.iter().find(|(first, bits, _)| inside(*first, *bits)) {
        return Some(what);
    }
    // Only 2000::/3 is given out for the Internet, and NAT64 beside it.
    let is_global = address.segments()[0] >> 13 == 1 || address.to_bits() >> 32 == NAT64;
    (!is_global).then_some("not given out")
}

/// The IPv4 address that an IPv6 one leads to.
fn carried(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = address.to_bits();
    let low = Ipv4Addr::from_bits(bits as u32);
    let segments = address.segments();
    match segments {
        // Mapped, translated, compatible; unspecified and loopback are themselves.
        [0, 0, 0, 0, 0, 0xffff, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] => Some(low),
        [0, 0, 0, 0, 0, 0, _, _] if bits > 1 => Some(low),
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] | [0x64, 0xff9b, 1, ..] => Some(low),
        [0x2002, ..] => Some(Ipv4Addr::from_bits((bits >> 80) as u32)),
        // Teredo: the client's address, inverted.
        [0x2001, 0, ..] => Some(Ipv4Addr::from_bits(!(bits as u32))),
        // ISATAP: an interface identifier that ends in an IPv4 address.
        [_, _, _, _, 0 | 0x200, 0x5efe, _, _] => Some(low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(address: &str, what: Option<&str>) {
        assert_eq!(special(address.parse().unwrap()), what, "{address}");
    }

    #[test]
    fn the_edges_of_each_block() {
        for (first, bits, what) in V4 {
            let first = u32::from_be_bytes(*first);
            let last = first | u32::MAX.checked_shr(u32::from(*bits)).unwrap_or(0);
            for edge in [first, last] {
                assert!(special(Ipv4Addr::from_bits(edge).into()).is_some(), "{what}");
            }
        }
        for (first, bits, what) in V6 {
            let first = Ipv6Addr::from(*first).to_bits();
            let last = first | u128::MAX.checked_shr(u32::from(*bits)).unwrap_or(0);
            for edge in [first, last] {
                assert!(special(Ipv6Addr::from_bits(edge).into()).is_some(), "{what}");
            }
        }
    }

    #[test]
    fn neighbours_of_blocks_are_public() {
        for public in [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "168.63.129.15",
            "2606:4700::1111",
            "2a00:1450::1",
            "2001:4860:4860::8888",
            "2003::1",
            "64:ff9b::8.8.8.8",
            "2001:200::1",
        ] {
            check(public, None);
        }
    }

    #[test]
    fn an_address_inside_an_address_decides() {
        check("::ffff:10.0.0.1", Some("private"));
        check("::ffff:8.8.8.8", Some("IPv4-mapped"));
        check("::ffff:0:127.0.0.1", Some("loopback"));
        check("::127.0.0.1", Some("loopback"));
        check("64:ff9b::169.254.169.254", Some("metadata of a cloud"));
        check("64:ff9b::192.168.1.1", Some("private"));
        check("64:ff9b:1::8.8.8.8", Some("translation to IPv4 of a site"));
        check("2002:7f00:1::", Some("loopback"));
        check("2002:808:808::", Some("6to4"));
        check("2001:0:1:2:3:4:f5ff:fffe", Some("private"));
        check("2001:470::5efe:10.0.0.1", Some("private"));
        check("2001:470::200:5efe:8.8.8.8", None);
    }

    #[test]
    fn what_is_named_in_policies() {
        check("169.254.169.254", Some("metadata of a cloud"));
        check("fd00:ec2::254", Some("metadata of a cloud"));
        check("169.254.170.2", Some("link-local"));
        check("fd12::1", Some("unique local"));
        check("::", Some("unspecified"));
        check("::1", Some("loopback"));
        check("255.255.255.255", Some("broadcast"));
        check("4000::1", Some("not given out"));
    }
}
