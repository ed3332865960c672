//! Addresses of names. Each name gets one address of each family, so that the name is known when a
//! program connects. An address is not given to another name in the same run.
//!
//! This module must not depend on sockets or on the permitted targets.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stockade_model::{Host, HostName, NetworkTarget};

use crate::ports::{EgressDestination, ProxyService};

/// Own address of the egress proxy. Its proxies listen there, and it makes resolvers believe that
/// IPv4 works. Second address of the block for benchmarks (RFC 2544), which is not routed.
pub const PROXY_ADDRESS_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The same for IPv6, from a block of unique local addresses of Stockade's own.
pub const PROXY_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd5d, 0x0057, 0x0c4a, 0xde00, 0, 0, 0, 1);
/// Port of the HTTP proxy on [`PROXY_ADDRESS_V4`].
pub const HTTP_PROXY_PORT: u16 = 3128;
/// Port of the SOCKS proxy on [`PROXY_ADDRESS_V4`].
pub const SOCKS_PORT: u16 = 1080;

/// Most names of a sandbox. A program that asks for more gets "server failure".
pub const NAMES_MAX: usize = 65_536;
/// Index of the first name: 198.18.0.0 and .1 are reserved.
const FIRST_NAME_INDEX: u32 = 2;

/// Table of names and their addresses.
#[derive(Debug, Default)]
pub struct HostNameTable {
    table: Mutex<NameTableEntries>,
}

#[derive(Debug, Default)]
struct NameTableEntries {
    by_name: HashMap<HostName, u32>,
    by_index: Vec<HostName>,
}

/// Addresses of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPair {
    /// IPv4.
    pub v4: Ipv4Addr,
    /// IPv6.
    pub v6: Ipv6Addr,
}

impl HostNameTable {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock_entries(&self) -> MutexGuard<'_, NameTableEntries> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the addresses of a name, and assigns them if it had none; `None` if the table is
    /// full.
    pub fn assign_addresses(&self, name: &HostName) -> Option<AddressPair> {
        let mut table = self.lock_entries();
        let index = match table.by_name.get(name) {
            Some(index) => *index,
            None if table.by_index.len() >= NAMES_MAX => return None,
            None => {
                let index = FIRST_NAME_INDEX + table.by_index.len() as u32;
                table.by_index.push(name.clone());
                table.by_name.insert(name.clone(), index);
                index
            }
        };
        Some(AddressPair {
            v4: Ipv4Addr::from_bits(u32::from_be_bytes([198, 18, 0, 0]) + index),
            v6: Ipv6Addr::from_bits(PROXY_ADDRESS_V6.to_bits() - 1 + u128::from(index)),
        })
    }

    /// Returns the name of an address.
    pub fn find_name(&self, address: IpAddr) -> Option<HostName> {
        let index = index_of(address.to_canonical())?.checked_sub(FIRST_NAME_INDEX)?;
        self.lock_entries().by_index.get(index as usize).cloned()
    }

    /// Returns the destination of a program that connects to this address.
    pub fn resolve_destination(&self, dialled: SocketAddr) -> EgressDestination {
        let address = dialled.ip().to_canonical();
        let port = dialled.port();
        if address == PROXY_ADDRESS_V4 || address == PROXY_ADDRESS_V6 {
            return match port {
                HTTP_PROXY_PORT => EgressDestination::Service(ProxyService::HttpProxy),
                SOCKS_PORT => EgressDestination::Service(ProxyService::Socks),
                53 => EgressDestination::Service(ProxyService::NameServer),
                _ => EgressDestination::Nobody,
            };
        }
        if port == 0 {
            return EgressDestination::Nobody;
        }
        let host = match (is_ours(address), self.find_name(address)) {
            (true, None) => return EgressDestination::Nobody,
            (true, Some(name)) => Host::Name(name),
            (false, _) => Host::from_address(address),
        };
        EgressDestination::Target(NetworkTarget { host, port })
    }
}

/// Returns whether this address is in a block that addresses of names come from.
pub fn is_ours(address: IpAddr) -> bool {
    index_of(address.to_canonical()).is_some()
}

fn index_of(address: IpAddr) -> Option<u32> {
    match address {
        IpAddr::V4(v4) => {
            let index = v4.to_bits().wrapping_sub(u32::from_be_bytes([198, 18, 0, 0]));
            (index < 1 << 17).then_some(index)
        }
        IpAddr::V6(v6) => {
            let same = v6.to_bits() >> 32 == PROXY_ADDRESS_V6.to_bits() >> 32;
            same.then_some(v6.to_bits() as u32)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        text.parse::<Host>().unwrap().name().unwrap().clone()
    }

    #[test]
    fn a_name_keeps_its_addresses_and_they_lead_back() {
        let names = HostNameTable::new();
        let first = names.assign_addresses(&name("pypi.org")).unwrap();
        let other = names.assign_addresses(&name("a.b")).unwrap();
        assert_eq!(names.assign_addresses(&name("PyPI.org.")), Some(first));
        assert_eq!(first.v4, Ipv4Addr::new(198, 18, 0, 2));
        for (address, port, host) in [
            (IpAddr::V4(first.v4), 443, "pypi.org"),
            (IpAddr::V6(first.v6), 80, "pypi.org"),
            (IpAddr::V6(first.v4.to_ipv6_mapped()), 1, "pypi.org"),
            (IpAddr::V4(other.v4), 22, "a.b"),
            ("8.8.8.8".parse().unwrap(), 53, "8.8.8.8"),
        ] {
            let expected_target = NetworkTarget { host: host.parse().unwrap(), port };
            assert_eq!(names.resolve_destination((address, port).into()), EgressDestination::Target(expected_target));
        }
    }

    #[test]
    fn addresses_of_ours_without_a_name_are_nobodys() {
        let names = HostNameTable::new();
        names.assign_addresses(&name("a")).unwrap();
        for nobody in ["198.18.0.0:80", "198.18.0.3:80", "198.19.255.255:80", "198.18.0.1:80", "198.18.0.2:0"] {
            assert_eq!(names.resolve_destination(nobody.parse().unwrap()), EgressDestination::Nobody, "{nobody}");
        }
        let http = names.resolve_destination("198.18.0.1:3128".parse().unwrap());
        assert_eq!(http, EgressDestination::Service(ProxyService::HttpProxy));
        assert!(!is_ours("198.20.0.0".parse().unwrap()) && !is_ours("198.17.255.255".parse().unwrap()));
    }

    #[test]
    fn the_table_is_bounded() {
        let names = HostNameTable::new();
        for n in 0..NAMES_MAX {
            let addresses = names.assign_addresses(&name(&format!("n{n}.test"))).unwrap();
            assert!(is_ours(addresses.v4.into()));
        }
        assert_eq!(names.assign_addresses(&name("one.more")), None);
        assert!(names.assign_addresses(&name("n7.test")).is_some());
    }
}
