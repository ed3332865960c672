//! Special-purpose addresses: those of the user's own machine and network, and those with a special meaning.
//!
//! The list follows the IANA registries of special-purpose addresses (RFC 6890 and its successors), and the
//! cloud providers' documentation of the addresses that serve credentials. Must not know the caller.
//!
//! The blocks for documentation (RFC 5737, 3849, 9637) are not listed: they belong to no network, except
//! for test networks that publish them on purpose.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// First address, number of bits, kind of the addresses.
const SPECIAL_V4_BLOCKS: &[(Ipv4Addr, u32, &str)] = &[
    // More specific blocks come before the blocks that contain them.
    (Ipv4Addr::new(169, 254, 169, 254), 32, METADATA_KIND),
    (Ipv4Addr::new(169, 254, 170, 2), 32, METADATA_KIND),
    (Ipv4Addr::new(169, 254, 170, 23), 32, METADATA_KIND),
    (Ipv4Addr::new(168, 63, 129, 16), 32, METADATA_KIND),
    (Ipv4Addr::new(100, 100, 100, 200), 32, METADATA_KIND),
    (Ipv4Addr::new(192, 0, 0, 192), 32, METADATA_KIND),
    (Ipv4Addr::new(255, 255, 255, 255), 32, "the broadcast address"),
    (Ipv4Addr::new(0, 0, 0, 0), 8, "this machine"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, PRIVATE_KIND),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "a carrier's shared network"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, LOOPBACK_KIND),
    (Ipv4Addr::new(169, 254, 0, 0), 16, LINK_LOCAL_KIND),
    (Ipv4Addr::new(172, 16, 0, 0), 12, PRIVATE_KIND),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "a protocol's own"),
    (Ipv4Addr::new(192, 31, 196, 0), 24, REVERSE_NAME_KIND),
    (Ipv4Addr::new(192, 52, 193, 0), 24, TUNNEL_KIND),
    (Ipv4Addr::new(192, 88, 99, 0), 24, TUNNEL_KIND),
    (Ipv4Addr::new(192, 168, 0, 0), 16, PRIVATE_KIND),
    (Ipv4Addr::new(192, 175, 48, 0), 24, REVERSE_NAME_KIND),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "for measurements"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, MULTICAST_KIND),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved"),
];

const SPECIAL_V6_BLOCKS: &[(Ipv6Addr, u32, &str)] = &[
    (Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254), 128, METADATA_KIND),
    (Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254), 128, METADATA_KIND),
    (Ipv6Addr::UNSPECIFIED, 128, "this machine"),
    (Ipv6Addr::LOCALHOST, 128, LOOPBACK_KIND),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 96, TUNNEL_KIND),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48, PRIVATE_KIND),
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 32, "a place to discard"),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, TUNNEL_KIND),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "a protocol's own"),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, TUNNEL_KIND),
    (Ipv6Addr::new(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0), 48, REVERSE_NAME_KIND),
    (Ipv6Addr::new(0x5f00, 0, 0, 0, 0, 0, 0, 0), 16, "a protocol's own"),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, PRIVATE_KIND),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, LINK_LOCAL_KIND),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, PRIVATE_KIND),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, MULTICAST_KIND),
];

/// NAT64 (RFC 6052): the last 32 bits are the IPv4 address of the destination.
const NAT64_PREFIX: (Ipv6Addr, u32) = (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);

const METADATA_KIND: &str = "a cloud's metadata service";
const PRIVATE_KIND: &str = "a private network";
const LOOPBACK_KIND: &str = "the machine's loopback";
const LINK_LOCAL_KIND: &str = "the local link";
const MULTICAST_KIND: &str = "many at once";
const TUNNEL_KIND: &str = "a tunnel";
const REVERSE_NAME_KIND: &str = "for reverse names of private addresses";

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
    SPECIAL_V4_BLOCKS.iter().find(|(first, bits, _)| begins(*first, *bits)).map(|(.., what)| *what)
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    let begins = |first: Ipv6Addr, bits: u32| (address.to_bits() ^ first.to_bits()).leading_zeros() >= bits;
    if begins(NAT64_PREFIX.0, NAT64_PREFIX.1) {
        let [.., a, b, c, d] = address.octets();
        return special_v4(Ipv4Addr::new(a, b, c, d));
    }
    if let Some((.., what)) = SPECIAL_V6_BLOCKS.iter().find(|(first, bits, _)| begins(*first, *bits)) {
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
            ("127.0.0.1", LOOPBACK_KIND),
            ("127.255.255.254", LOOPBACK_KIND),
            ("::1", LOOPBACK_KIND),
            ("::ffff:127.0.0.1", LOOPBACK_KIND),
            ("64:ff9b::7f00:1", LOOPBACK_KIND),
            ("0.0.0.0", "this machine"),
            ("::", "this machine"),
            ("10.0.0.0", PRIVATE_KIND),
            ("10.255.255.255", PRIVATE_KIND),
            ("172.16.0.0", PRIVATE_KIND),
            ("172.31.255.255", PRIVATE_KIND),
            ("192.168.1.1", PRIVATE_KIND),
            ("fd12::1", PRIVATE_KIND),
            ("fec0::1", PRIVATE_KIND),
            ("64:ff9b:1::1", PRIVATE_KIND),
            ("64:ff9b::a9fe:a9fe", METADATA_KIND),
            ("::ffff:169.254.169.254", METADATA_KIND),
            ("169.254.169.254", METADATA_KIND),
            ("fd00:ec2::254", METADATA_KIND),
            ("169.254.0.1", LINK_LOCAL_KIND),
            ("fe80::1", LINK_LOCAL_KIND),
            ("100.64.0.1", "a carrier's shared network"),
            ("100.127.255.255", "a carrier's shared network"),
            ("198.18.0.1", "for measurements"),
            ("198.19.255.255", "for measurements"),
            ("224.0.0.1", MULTICAST_KIND),
            ("ff02::1", MULTICAST_KIND),
            ("255.255.255.255", "the broadcast address"),
            ("255.255.255.254", "reserved"),
            ("2002:7f00:1::", TUNNEL_KIND),
            ("2001:0:1::", TUNNEL_KIND),
            ("::7f00:1", TUNNEL_KIND),
            ("::ffff:0:127.0.0.1", "not given out"),
            ("4000::1", "not given out"),
            ("2001:470::5efe:10.0.0.1", PRIVATE_KIND),
            ("2620:4f:8000::1", REVERSE_NAME_KIND),
            ("192.175.48.1", REVERSE_NAME_KIND),
        ] {
            assert_eq!(special_address(address.parse().unwrap()), Some(what), "{address}");
        }
    }

    #[test]
    fn the_edges_of_each_block() {
        for (first, bits, what) in SPECIAL_V4_BLOCKS {
            let last = first.to_bits() | u32::MAX.checked_shr(*bits).unwrap_or(0);
            assert!(special_v4(*first).is_some() && special_v4(Ipv4Addr::from_bits(last)).is_some(), "{first} {what}");
        }
        for (first, bits, what) in SPECIAL_V6_BLOCKS {
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
