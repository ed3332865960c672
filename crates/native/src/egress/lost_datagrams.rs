//! Evidence of datagrams without a receiver. In the network namespace of a run only the run itself
//! and its name server receive datagrams. The kernel reports other datagrams as unreachable (ICMP),
//! but not the sending process.
//!
//! This module must not know the receiver of the reports.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{RecvFlags, recv};
use stockade_egress::HostNameTable;
use stockade_model::{Denial, DenialLayer, DeniedOperation, RawText};

/// Most distinct targets that are reported of one attempt.
const MAX_REPORTED_TARGETS: usize = 256;
/// Most messages that one call reads of a socket, so that a flood does not block it.
const MAX_MESSAGES_PER_CALL: usize = 512;
/// Length of the longest headers of IPv4 and ICMP, the same of the datagram, and its ports.
const MAX_MESSAGE_BYTES: usize = 60 + 8 + 60 + 8;
/// `IPPROTO_UDP`.
const UDP_PROTOCOL: u8 = 17;

/// Reports the targets of datagrams without a receiver.
pub(crate) struct LostDatagrams {
    /// Raw sockets that receive only such messages, IPv4 first.
    raw_sockets: Vec<OwnedFd>,
    names: Arc<HostNameTable>,
    reported_targets: BTreeSet<SocketAddr>,
}

impl LostDatagrams {
    pub(super) fn new(raw_sockets: Vec<OwnedFd>, names: Arc<HostNameTable>) -> Self {
        Self { raw_sockets, names, reported_targets: BTreeSet::new() }
    }

    /// Returns descriptors that are readable when a datagram was lost.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.raw_sockets.iter().map(OwnedFd::as_fd)
    }

    /// Returns refusals for the datagrams lost since the last call, each target once per attempt.
    pub(crate) fn take_denials(&mut self) -> Vec<Denial> {
        let mut lost = Vec::new();
        for (socket, target) in self.raw_sockets.iter().zip([target_v4, target_v6]) {
            let mut message = [0; MAX_MESSAGE_BYTES];
            for _ in 0..MAX_MESSAGES_PER_CALL {
                let Ok((_, length)) = recv(socket, &mut message, RecvFlags::DONTWAIT | RecvFlags::TRUNC) else { break };
                lost.extend(target(&message[..length.min(MAX_MESSAGE_BYTES)]));
            }
        }
        let mut denials = Vec::new();
        for target in lost.into_iter().filter(|target| !target.ip().is_loopback()) {
            if self.reported_targets.len() < MAX_REPORTED_TARGETS && self.reported_targets.insert(target) {
                denials.push(self.make_denial(target));
            }
        }
        denials
    }

    fn make_denial(&self, target: SocketAddr) -> Denial {
        let shown = match self.names.find_name(target.ip()) {
            Some(name) => format!("{name}:{}", target.port()),
            None => target.to_string(),
        };
        let object = RawText::from(format!("{shown} over UDP"));
        let rule = "UDP reaches only the run's own name server".to_owned();
        Denial::of_unknown_process(DeniedOperation::Connect, object, DenialLayer::Network, rule, None)
    }
}

/// Returns the target in an IPv4 packet with an ICMP message about a datagram.
fn target_v4(packet: &[u8]) -> Option<SocketAddr> {
    let about = packet.get(header_v4(packet)? + 8..)?;
    let ports = about.get(header_v4(about)?..)?;
    let ip = about.get(16..20)?.first_chunk::<4>()?;
    let is_udp = *about.get(9)? == UDP_PROTOCOL;
    is_udp.then_some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(*ip)), destination_port(ports)?))
}

/// Returns the length of an IPv4 header.
fn header_v4(packet: &[u8]) -> Option<usize> {
    Some(usize::from(packet.first()? & 0x0f) * 4)
}

/// Returns the target in an ICMPv6 message about a datagram; the kernel omits the IPv6 header.
fn target_v6(message: &[u8]) -> Option<SocketAddr> {
    let about = message.get(8..)?;
    let ip = about.get(24..40)?.first_chunk::<16>()?;
    let is_udp = *about.get(6)? == UDP_PROTOCOL;
    is_udp.then_some(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(*ip)), destination_port(about.get(40..)?)?))
}

/// Returns the second of two ports.
fn destination_port(ports: &[u8]) -> Option<u16> {
    ports.get(2..4)?.first_chunk::<2>().map(|port| u16::from_be_bytes(*port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about_v4(protocol: u8) -> Vec<u8> {
        let mut packet = vec![0; 20 + 8 + 20 + 8];
        packet[0] = 0x45;
        packet[28] = 0x45;
        packet[28 + 9] = protocol;
        packet[28 + 16..28 + 20].copy_from_slice(&[8, 8, 4, 4]);
        packet[48 + 2..48 + 4].copy_from_slice(&443_u16.to_be_bytes());
        packet
    }

    #[test]
    fn the_target_of_a_lost_datagram_is_read_within_bounds() {
        let whole = about_v4(UDP_PROTOCOL);
        assert_eq!(target_v4(&whole), "8.8.4.4:443".parse().ok());
        assert_eq!(target_v4(&about_v4(6)), None);
        let mut six = vec![0; 8 + 40 + 8];
        six[8 + 6] = UDP_PROTOCOL;
        six[8 + 39] = 1;
        six[8 + 40 + 3] = 7;
        assert_eq!(target_v6(&six), "[::1]:7".parse().ok());
        for end in 0..52 {
            assert_eq!(target_v4(&whole[..end.min(51)]), None);
            assert_eq!(target_v6(&six[..end.min(51)]), None);
        }
        let odd = [vec![0x4f], vec![0xff; 100]].concat();
        assert_eq!(target_v4(&odd), None);
    }
}
