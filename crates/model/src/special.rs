//! Special-purpose addresses: those of the user's own machine and network, and those with a special meaning.
//!
//! The list follows the IANA registries of special-purpose addresses (RFC 6890 and its successors), and the
//! cloud providers' documentation of the addresses that serve credentials. Must not know the caller.
//!
//! The blocks for documentation (RFC 5737, 3849, 9637) are not listed: they belong to no network, except
//! for test networks that publish them on purpose.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// First address, number of bits, kind of the addresses.
const V4: &[(Ipv4Addr, u32, &str)] = &[
    // More specific blocks come before the blocks that contain them.
    (Ipv4Addr::new(169, 254, 169, 254), 32, METADATA),
    (Ipv4Addr::new(169, 254, 170, 2), 32, METADATA),
    (Ipv4Addr::new(169, 254, 170, 23), 32, METADATA),
    (Ipv4Addr::new(168, 63, 129, 16), 32, METADATA),
    (Ipv4Addr::new(100, 100, 100, 200), 32, METADATA),
    (Ipv4Addr::new(192, 0, 0, 192), 32, METADATA),
    (Ipv4Addr::new(255, 255, 255, 255), 32, "the broadcast address"),
    (Ipv4Addr::new(0, 0, 0, 0), 8, "this machine"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, PRIVATE),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "a carrier's shared network"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, LOOPBACK),
    (Ipv4Addr::new(169, 254, 0, 0), 16, LINK),
    (Ipv4Addr::new(172, 16, 0, 0), 12, PRIVATE),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "a protocol's own"),
    (Ipv4Addr::new(192, 31, 196, 0), 24, REVERSE),
    (Ipv4Addr::new(192, 52, 193, 0), 24, TUNNEL),
    (Ipv4Addr::new(192, 88, 99, 0), 24, TUNNEL),
    (Ipv4Addr::new(192, 168, 0, 0), 16, PRIVATE),
    (Ipv4Addr::new(192, 175, 48, 0), 24, REVERSE),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "for measurements"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, MULTICAST),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved"),
];

const V6: &[(Ipv6Addr, u32, &str)] = &[
    (Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254), 128, METADATA),
    (Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254), 128, METADATA),
    (Ipv6Addr::UNSPECIFIED, 128, "this machine"),
    (Ipv6Addr::LOCALHOST, 128, LOOPBACK),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 96, TUNNEL),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48, PRIVATE),
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 32, "a place to discard"),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, TUNNEL),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "a protocol's own"),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, TUNNEL),
    (Ipv6Addr::new(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0), 48, REVERSE),
    (Ipv6Addr::new(0x5f00, 0, 0, 0, 0, 0, 0, 0), 16, "a protocol's own"),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, PRIVATE),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, LINK),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, PRIVATE),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, MULTICAST),
];

/// NAT64 (RFC 6052): the last 32 bits are the IPv4 address of the destination.
const NAT64: (Ipv6Addr, u32) = (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);

const METADATA: &str = "a cloud's metadata service";
const PRIVATE: &str = "a private network";
const LOOPBACK: &str = "the machine's loopback";
const LINK: &str = "the local link";
const MULTICAST: &str = "many at once";
const TUNNEL: &str = "a tunnel";
const REVERSE: &str = "for reverse names of private addresses";

/// Returns the kind of an address that is not an ordinary host of the internet: `a private network`. An
/// address that embeds an IPv4 address (mapped, NAT64) has the kind of that address.
pub fn special_address(address: IpAddr) -> Option<&'static str> {
    match address.to_canonical() {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let begins = |first: Ipv4Addr, bits: u32| (address.to_bits() ^ first.to_bits()).leading_zeros() >= bits;
    V4.iter().find(|(first, bits, _)| begins(*first, *bits)).map(|(.., what)| *what)
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    let begins = |first: Ipv6Addr, bits: u32| (address.to_bits() ^ first.to_bits()).leading_zeros() >= bits;
    if begins(NAT64.0, NAT64.1) {
        let [.., a, b, c, d] = address.octets();
        return special_v4(Ipv4Addr::new(a, b, c, d));
    }
    if let Some((.., what)) = V6.iter().find(|(first, bits, _)| begins(*first, *bits)) {
        return Some(what);
    }
    match address.segments() {
        // A site-local tunnel (ISATAP, RFC 5214): the last 32 bits are the IPv4 address.
        [_, _, _, _, 0 | 0x200, 0x5efe, a, b] => {
            let [a, b, c, d] = (u32::from(a) << 16 | u32::from(b)).to_be_bytes();
            special_v4(Ipv4Addr::new(a, b, c, d))
        }
        // Of all other addresses, only 2000::/3 is allocated.
        [first, ..] if first >> 13 != 1 => Some("not given out"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses() {
        for (address, what) in [
            ("127.0.0.1", LOOPBACK),
            ("127.255.255.254", LOOPBACK),
            ("::1", LOOPBACK),
            ("::ffff:127.0.0.1", LOOPBACK),
            ("64:ff9b::7f00:1", LOOPBACK),
            ("0.0.0.0", "this machine"),
            ("::", "this machine"),
            ("10.0.0.0", PRIVATE),
            ("10.255.255.255", PRIVATE),
            ("172.16.0.0", PRIVATE),
            ("172.31.255.255", PRIVATE),
            ("192.168.1.1", PRIVATE),
            ("fd12::1", PRIVATE),
            ("fec0::1", PRIVATE),
            ("64:ff9b:1::1", PRIVATE),
            ("64:ff9b::a9fe:a9fe", METADATA),
            ("::ffff:169.254.169.254", METADATA),
            ("169.254.169.254", METADATA),
            ("fd00:ec2::254", METADATA),
            ("169.254.0.1", LINK),
            ("fe80::1", LINK),
            ("100.64.0.1", "a carrier's shared network"),
            ("100.127.255.255", "a carrier's shared network"),
            ("198.18.0.1", "for measurements"),
            ("198.19.255.255", "for measurements"),
            ("224.0.0.1", MULTICAST),
            ("ff02::1", MULTICAST),
            ("255.255.255.255", "the broadcast address"),
            ("255.255.255.254", "reserved"),
            ("2002:7f00:1::", TUNNEL),
            ("2001:0:1::", TUNNEL),
            ("::7f00:1", TUNNEL),
            ("::ffff:0:127.0.0.1", "not given out"),
            ("4000::1", "not given out"),
            ("2001:470::5efe:10.0.0.1", PRIVATE),
            ("2620:4f:8000::1", REVERSE),
            ("192.175.48.1", REVERSE),
        ] {
            assert_eq!(special_address(address.parse().unwrap()), Some(what), "{address}");
        }
    }

    #[test]
    fn the_edges_of_each_block() {
        for (first, bits, what) in V4 {
            let last = first.to_bits() | u32::MAX.checked_shr(*bits).unwrap_or(0);
            assert!(special_v4(*first).is_some() && special_v4(Ipv4Addr::from_bits(last)).is_some(), "{first} {what}");
        }
        for (first, bits, what) in V6 {
            let last = first.to_bits() | u128::MAX.checked_shr(*bits).unwrap_or(0);
            assert!(special_v6(*first).is_some() && special_v6(Ipv6Addr::from_bits(last)).is_some(), "{first} {what}");
        }
    }

    #[test]
    fn ordinary_addresses() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "2001:4860:4860::8888",
            "64:ff9b::101:101",
            "2001:470::200:5efe:8.8.8.8",
            "2001:200::1",
            "2003::1",
            // Blocks for documentation belong to no network, so they are not internal.
            "203.0.113.80",
            "2001:db8::1",
        ] {
            assert_eq!(special_address(address.parse().unwrap()), None, "{address}");
        }
    }
}
