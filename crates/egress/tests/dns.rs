//! Questions for names, as resolvers send them.

#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod support;

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use stockade_model::{UpstreamKind, UpstreamProxy};
use support::{Options, World};

fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut out = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        out.push(label.len() as u8);
        out.extend(label.as_bytes());
    }
    out.push(0);
    out.extend(kind.to_be_bytes());
    out.extend([0, 1]);
    out
}

/// The answer's code, number of records, and last bytes.
fn ask(server: SocketAddr, name: &str, kind: u16) -> (u8, u8, Vec<u8>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    // A connected socket takes answers from the address asked alone.
    socket.connect(server).unwrap();
    socket.send(&query(name, kind)).unwrap();
    let mut buffer = [0; 2048];
    let count = socket.recv(&mut buffer).unwrap();
    assert_eq!(buffer[..2], [0xab, 0xcd]);
    (buffer[3] & 15, buffer[7], buffer[count - 4..count].to_vec())
}

const A: u16 = 1;
const PTR: u16 = 12;
const AAAA: u16 = 28;
const HTTPS: u16 = 65;

#[test]
fn every_name_has_an_address_without_a_query_outside() {
    let world = World::new(Options::default());
    assert_eq!(ask(world.dns, "a.test", A), (0, 1, vec![198, 18, 0, 2]));
    assert_eq!(ask(world.dns, "b.test", A), (0, 1, vec![198, 18, 0, 3]));
    assert_eq!(ask(world.dns, "A.TEST", A), (0, 1, vec![198, 18, 0, 2]));
    assert_eq!(ask(world.dns, "a.test", AAAA), (0, 1, vec![0, 0, 0, 2]));
    assert_eq!(ask(world.dns, "a.test", HTTPS).1, 0);
    assert_eq!(ask(world.dns, "2.0.18.198.in-addr.arpa", PTR).1, 1);
    assert_eq!(ask(world.dns, "8.8.8.8.in-addr.arpa", PTR).0, 3);
    for number in ["127.1", "2130706433", "0x7f.1", "10.0.0.1"] {
        assert_eq!(ask(world.dns, number, A).0, 3, "{number}");
    }
    assert_eq!(ask(world.dns, "x.localhost", A), (0, 1, vec![127, 0, 0, 1]));
    assert!(world.table.queries.lock().unwrap().is_empty());
}

#[test]
fn answers_come_from_the_address_that_was_asked() {
    let world = World::new(Options::default());
    for server in ["127.0.0.53", "127.8.8.8"] {
        let server = SocketAddr::new(server.parse().unwrap(), world.dns.port());
        assert_eq!(ask(server, "a.test", A).1, 1);
    }
}

#[test]
fn reachable_names_get_true_answers() {
    let names = vec![("v4.test", "192.0.2.1"), ("v6.test", "2001:db8::1")];
    let world = World::new(Options { names, allow: vec!["v4.test:1", "v6.test", "none.test"], ..Options::default() });
    assert_eq!(ask(world.dns, "v4.test", A).1, 1);
    assert_eq!(ask(world.dns, "v4.test", AAAA), (0, 0, vec![0, 28, 0, 1]));
    assert_eq!(ask(world.dns, "v6.test", A).1, 0);
    assert_eq!(ask(world.dns, "v6.test", AAAA).1, 1);
    assert_eq!(ask(world.dns, "none.test", A).0, 3);
    assert_eq!(ask(world.dns, "secret.other.test", A).0, 0);
    assert_eq!(*world.table.queries.lock().unwrap(), ["v4.test", "v6.test", "none.test"]);
}

#[test]
fn behind_a_proxy_only_directly_reached_hosts_are_resolved() {
    let names = vec![("here.test", "192.0.2.1")];
    let options = Options { names, allow: vec!["*"], ..Options::default() };
    let world = World::with(options, |setup| {
        setup.rules.upstream = Some(UpstreamProxy {
            kind: UpstreamKind::Http,
            proxy: "proxy.test:3128".parse().unwrap(),
            credentials: None,
            except: vec!["here.test".parse().unwrap(), "gone.test".parse().unwrap(), "far.test:22".parse().unwrap()],
        });
    });
    assert_eq!(ask(world.dns, "here.test", A).1, 1);
    assert_eq!(ask(world.dns, "gone.test", A).0, 3);
    assert_eq!(ask(world.dns, "far.test", A).1, 1);
    assert_eq!(*world.table.queries.lock().unwrap(), ["here.test", "gone.test"]);
}

#[test]
fn garbage_does_not_stop_it() {
    let world = World::new(Options::default());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for length in 0..200 {
        socket.send_to(&vec![0xff; length], world.dns).unwrap();
        socket.send_to(&vec![0; length], world.dns).unwrap();
        if length % 20 == 0 {
            // Within what the kernel keeps for a reader.
            assert_eq!(ask(world.dns, "a.test", A).1, 1);
        }
    }
    assert_eq!(ask(world.dns, "a.test", A).1, 1);
}
