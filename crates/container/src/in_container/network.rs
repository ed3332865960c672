//! Network of a container, examined from within, because an engine that was asked for no network
//! could create one anyway.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

/// The loopback device.
const LOOPBACK_DEVICE: &str = "lo";

/// Returns the number of this process's network namespace (namespaces(7)). Two processes of one
/// kernel have the same number if they share it.
///
/// # Errors
/// [`io::Error`] if it cannot be read.
pub(crate) fn namespace_number() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/net")?.ino())
}

/// Returns a device with a route, other than the loopback, if there is one.
///
/// # Errors
/// [`io::Error`] if the routes cannot be read.
pub(super) fn find_routed_device() -> io::Result<Option<String>> {
    let routes = fs::read_to_string("/proc/net/route")?;
    // The file is missing if the kernel has no IPv6.
    let newer = match fs::read_to_string("/proc/net/ipv6_route") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    Ok(beside_loopback(&routes, &newer))
}

/// In one table the device is the first column, after a line of titles; in the other it is the last
/// column.
fn beside_loopback(routes: &str, newer: &str) -> Option<String> {
    let devices = routes.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let devices = devices.chain(newer.lines().filter_map(|line| line.split_whitespace().next_back()));
    devices.into_iter().find(|device| *device != LOOPBACK_DEVICE).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TITLES: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
    const OWN: &str = "00000000000000000000000000000001 80 00000000000000000000000000000000 00 \
        00000000000000000000000000000000 00000000 00000002 00000000 80200001       lo\n\
        00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
        00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n";

    #[test]
    fn the_loopback_alone_is_no_network() {
        assert_eq!(beside_loopback(TITLES, OWN), None);
        assert_eq!(
            beside_loopback(&format!("{TITLES}lo\t0000007F\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n"), ""),
            None
        );
        assert_eq!(beside_loopback("", ""), None);
    }

    #[test]
    fn a_route_to_another_device_is_found_in_either_table() {
        let routed = format!("{TITLES}eth0\t00000000\t0104A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n");
        assert_eq!(beside_loopback(&routed, OWN).as_deref(), Some("eth0"));
        let newer = OWN.replacen("lo\n", "wlan0\n", 1);
        assert_eq!(beside_loopback(TITLES, &newer).as_deref(), Some("wlan0"));
    }
}
