//! Special-purpose addresses: those of the user's own machine and network, and those with a special meaning.
//!
//! `data/special_addresses.txt` lists them. Must not know the caller.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use crate::data::table_rows;

/// First address, number of bits, kind of the addresses.
static SPECIAL_BLOCKS: LazyLock<Vec<(IpAddr, u8, &str)>> =
    LazyLock::new(|| table_rows(include_str!("../data/special_addresses.txt")).filter_map(parse_block).collect());

fn parse_block(row: &'static str) -> Option<(IpAddr, u8, &'static str)> {
    let (block, kind) = row.split_once(' ')?;
    let (first, bits) = block.split_once('/')?;
    Some((first.parse().ok()?, bits.parse().ok()?, kind))
}

/// NAT64 (RFC 6052): the last 32 bits are the IPv4 address of the destination.
const NAT64_PREFIX: (Ipv6Addr, u8) = (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);

/// Returns the kind of an address that is not an ordinary host of the internet: `a private network`. An
/// address that embeds an IPv4 address (mapped, NAT64) has the kind of that address.
pub fn special_address(address: IpAddr) -> Option<&'static str> {
    match address.to_canonical() {
        IpAddr::V6(address) => special_v6(address),
        address => block_kind(address),
    }
}

fn block_kind(address: IpAddr) -> Option<&'static str> {
    SPECIAL_BLOCKS.iter().find(|(first, bits, _)| shares_prefix(*first, address, *bits)).map(|(.., kind)| *kind)
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    if shares_prefix(NAT64_PREFIX.0.into(), address.into(), NAT64_PREFIX.1) {
        let [.., a, b, c, d] = address.octets();
        return block_kind(Ipv4Addr::new(a, b, c, d).into());
    }
    if let Some(kind) = block_kind(address.into()) {
        return Some(kind);
    }
    match address.segments() {
        // A site-local tunnel (ISATAP, RFC 5214): the last 32 bits are the IPv4 address.
        [_, _, _, _, 0 | 0x200, 0x5efe, a, b] => {
            let [a, b, c, d] = (u32::from(a) << 16 | u32::from(b)).to_be_bytes();
            block_kind(Ipv4Addr::new(a, b, c, d).into())
        }
        // Of all other addresses, only 2000::/3 is allocated.
        [first, ..] if first >> 13 != 1 => Some("not given out"),
        _ => None,
    }
}

/// Returns whether two addresses of one family share their first `bits` bits.
pub(crate) fn shares_prefix(first: IpAddr, address: IpAddr, bits: u8) -> bool {
    match (first, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= u32::from(bits),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= u32::from(bits),
        _ => false,
    }
}

/// Returns the last address of a block.
pub(crate) fn last_of(first: IpAddr, bits: u8) -> IpAddr {
    match first {
        IpAddr::V4(first) => {
            Ipv4Addr::from_bits(first.to_bits() | u32::MAX.checked_shr(bits.into()).unwrap_or(0)).into()
        }
        IpAddr::V6(first) => {
            Ipv6Addr::from_bits(first.to_bits() | u128::MAX.checked_shr(bits.into()).unwrap_or(0)).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA_KIND: &str = "a cloud's metadata service";
    const PRIVATE_KIND: &str = "a private network";
    const LOOPBACK_KIND: &str = "the machine's loopback";
    const LINK_LOCAL_KIND: &str = "the local link";
    const MULTICAST_KIND: &str = "many at once";
    const TUNNEL_KIND: &str = "a tunnel";
    const REVERSE_NAME_KIND: &str = "for reverse names of private addresses";

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
    fn every_row_of_the_table_is_a_block() {
        let rows = table_rows(include_str!("../data/special_addresses.txt")).count();
        assert_eq!((rows, SPECIAL_BLOCKS.len()), (38, 38));
    }

    #[test]
    fn the_edges_of_each_block() {
        for (first, bits, what) in SPECIAL_BLOCKS.iter() {
            let last = last_of(*first, *bits);
            assert!(special_address(*first).is_some() && special_address(last).is_some(), "{first} {what}");
            assert!(block_kind(*first).is_some() && block_kind(last).is_some(), "{first} {what}");
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
