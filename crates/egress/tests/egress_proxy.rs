//! Connections through the door: announced, dialled, relayed, recorded.

#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use rustix::io::Errno;
use stockade_egress::{DialError, EgressCaller, NameLookupError, NameResolver, ProxyService};
use stockade_model::{ConnectionEnd, DenialLayer, DeniedOperation, EgressLimits, HostName};
use support::{ConnectAndWait, Options, World, arrive, closed_port, echo, is_reset, serve, wait_for};

fn world() -> World {
    World::new(Options { names: vec![("echo.test", "127.0.0.1")], ..Options::default() })
}

#[test]
fn bytes_flow_both_ways_and_are_recorded() {
    let world = world();
    let port = serve(echo);
    let mut stream = world.connect(&format!("echo.test:{port}")).unwrap();
    let sent: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
    let mut writer = stream.try_clone().unwrap();
    let copy = sent.clone();
    let thread = std::thread::spawn(move || {
        writer.write_all(&copy).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut echoed_bytes = Vec::new();
    stream.read_to_end(&mut echoed_bytes).unwrap();
    thread.join().unwrap();
    assert_eq!(echoed_bytes, sent);
    let record = world.record();
    assert_eq!((record.bytes_up, record.bytes_down), (300_000, 300_000));
    assert_eq!((record.end, record.why.as_deref()), (ConnectionEnd::Closed, None));
    assert_eq!(record.address, Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    assert_eq!((record.pid, record.rule.as_str()), (Some(7), "grant"));
    assert_eq!(record.target.to_string(), format!("echo.test:{port}"));
    assert_eq!(*world.table.queries.lock().unwrap(), ["echo.test"], "one lookup a connect");
}

#[test]
fn the_listener_inside_is_kept() {
    let world = world();
    let port = serve(echo);
    for _ in 0..20 {
        let mut stream = world.connect(&format!("echo.test:{port}")).unwrap();
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    assert_eq!(world.namespace.listeners.load(Ordering::SeqCst), 1);
}

#[test]
fn a_connection_may_be_accepted_before_it_is_announced() {
    let world = world();
    let port = serve(echo);
    let announced = world.egress_proxy().connect_and_wait(world.order(&format!("echo.test:{port}"))).unwrap();
    let mut stream = TcpStream::connect(announced.address()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    announced.report_connected(stream.local_addr().unwrap());
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

#[test]
fn an_unannounced_connection_is_reset() {
    let world = world();
    let port = serve(echo);
    let target = format!("echo.test:{port}");
    let announced = world.egress_proxy().connect_and_wait(world.order(&target)).unwrap();
    let address = announced.address();
    let mut thief = TcpStream::connect(address).unwrap();
    let mut stream = arrive(announced);
    assert!(is_reset(&mut thief));
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    // With nothing announced it is broken off at once.
    assert!(is_reset(&mut TcpStream::connect(address).unwrap()));
}

#[track_caller]
fn fails(world: &World, target: &str, errno: Errno, end: ConnectionEnd) {
    let failure = world.connect(target).unwrap_err();
    assert_eq!(failure.errno(), errno, "{failure}");
    let record = world.record();
    assert_eq!(record.end, end);
    assert_eq!(record.why, Some(failure.to_string()));
    world.events.lock().unwrap().clear();
}

#[test]
fn failures_carry_the_errno_of_a_connect_of_ones_own() {
    let names = vec![("echo.test", "127.0.0.1"), ("private.test", "10.0.0.1 fd00:ec2::254"), ("own.test", "127.0.0.9")];
    let world = World::new(Options { names, special: Some(vec!["127.0.0.1"]), ..Options::default() });
    fails(&world, &format!("echo.test:{}", closed_port()), Errno::CONNREFUSED, ConnectionEnd::Failed);
    fails(&world, "missing.test:80", Errno::HOSTUNREACH, ConnectionEnd::Failed);
    for target in ["private.test:80", "own.test:80"] {
        let failure = world.connect(target).unwrap_err();
        assert!(matches!(&failure, DialError::Refused { rule } if rule.contains("special address")), "{failure}");
        let denials = world.denials();
        assert_eq!(denials.len(), 1);
        assert_eq!((denials[0].operation, denials[0].layer), (DeniedOperation::Connect, DenialLayer::Network));
        world.events.lock().unwrap().clear();
    }
}

#[test]
fn a_repeated_refusal_is_reported_once_and_counted() {
    let mut world = World::new(Options { names: vec![("p.test", "10.0.0.1")], ..Options::default() });
    for _ in 0..5 {
        world.connect("p.test:80").unwrap_err();
    }
    assert_eq!(world.denials().len(), 1);
    world.stop();
    let counts: Vec<u64> = world.denials().iter().map(|d| d.count).collect();
    assert_eq!(counts, [1, 5], "the whole count, as the broker tells it");
}

/// Finds this machine, when it is told to.
struct Slow(Mutex<mpsc::Receiver<()>>);

impl NameResolver for Slow {
    fn resolve_name(&self, _: &HostName) -> Result<Vec<IpAddr>, NameLookupError> {
        self.0.lock().unwrap().recv().map_err(|_| NameLookupError::NoSuchName)?;
        Ok(vec![Ipv4Addr::LOCALHOST.into()])
    }
}

#[test]
fn whose_patience_ends_is_connected_before_the_target_is_dialled() {
    let (go, wait) = mpsc::channel();
    let world = World::with(Options::default(), |setup| setup.resolver = Arc::new(Slow(Mutex::new(wait))));
    let port = serve(echo);
    let mut order = world.order(&format!("echo.test:{port}"));
    order.connect_timeout = Some(Duration::ZERO);
    let mut stream = arrive(world.egress_proxy().connect_and_wait(order).unwrap());
    stream.write_all(b"x").unwrap();
    go.send(()).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    drop(stream);
    wait_for(|| world.records().len() == 1);
    let mut order = world.order(&format!("echo.test:{}", closed_port()));
    order.connect_timeout = Some(Duration::ZERO);
    let mut stream = arrive(world.egress_proxy().connect_and_wait(order.clone()).unwrap());
    go.send(()).unwrap();
    assert!(is_reset(&mut stream));
    wait_for(|| world.records().len() == 2);
    assert_eq!(world.records()[1].end, ConnectionEnd::Failed);
    // Who has patience is told the truth.
    order.connect_timeout = None;
    go.send(()).unwrap();
    let refused = world.egress_proxy().connect_and_wait(order).map(drop).unwrap_err();
    assert_eq!(refused.errno(), Errno::CONNREFUSED);
}

#[test]
fn a_leaving_client_leaves_nothing_behind() {
    let world = world();
    let (sender, accepted) = mpsc::channel();
    let port = serve(move |mut stream| {
        let _ = sender.send(stream.read(&mut [0]).map_or(0, |n| n));
    });
    // The announcement is dropped: the connection outside ends.
    drop(world.egress_proxy().connect_and_wait(world.order(&format!("echo.test:{port}"))).unwrap());
    assert_eq!(accepted.recv_timeout(Duration::from_secs(10)), Ok(0));
    assert_eq!(world.record().why.as_deref(), Some("the program closed the connection"));
    world.events.lock().unwrap().clear();
    // The connect is given up while it is dialled.
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialling =
        world.egress_proxy().connect_target(world.order("[2001:4860::1]:80"), |_| panic!("nobody waits for it"));
    drop(dialling);
    drop(full);
    wait_for(|| world.records().len() <= 1);
}

#[test]
fn the_end_of_the_run_ends_connections_and_reports_it() {
    let mut world = world();
    let port = serve(echo);
    let mut stream = world.connect(&format!("echo.test:{port}")).unwrap();
    stream.write_all(b"abc").unwrap();
    stream.read_exact(&mut [0; 3]).unwrap();
    // A program that is still there is not waited for without end.
    world.stop();
    let record = world.record();
    assert_eq!((record.end, record.bytes_up, record.bytes_down), (ConnectionEnd::RunEnded, 3, 3));
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn half_a_close_is_passed_on_and_a_reset_is_a_reset() {
    let world = world();
    let port = serve(|mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(format!("{} bytes", all.len()).as_bytes()).unwrap();
    });
    let mut stream = world.connect(&format!("echo.test:{port}")).unwrap();
    stream.write_all(&[1; 1000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "1000 bytes");
    let port = serve(|mut stream| {
        stream.read_exact(&mut [0]).unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    });
    let mut stream = world.connect(&format!("echo.test:{port}")).unwrap();
    stream.write_all(b"x").unwrap();
    assert!(is_reset(&mut stream));
    wait_for(|| world.records().len() == 2);
    assert_eq!(world.records()[1].end, ConnectionEnd::Reset);
}

#[test]
fn limits_are_enforced_and_reported() {
    let limits = EgressLimits { connections: Some(2), total_bytes: Some(100_000), ..EgressLimits::default() };
    let world = World::new(Options { names: vec![("echo.test", "127.0.0.1")], limits, ..Options::default() });
    let target = format!("echo.test:{}", serve(echo));
    let mut first = world.connect(&target).unwrap();
    let second = world.connect(&target).unwrap();
    let failure = world.connect(&target).unwrap_err();
    assert_eq!(failure.to_string(), "limit of connections at once");
    assert_eq!(world.denials()[0].operation, DeniedOperation::Limit);
    drop(second);
    let _ = first.write_all(&[0; 60_000]);
    let mut buffer = Vec::new();
    let _ = first.read_to_end(&mut buffer);
    assert!(buffer.len() <= 40_000);
    wait_for(|| world.records().iter().any(|r| r.end == ConnectionEnd::Refused));
    wait_for(|| world.connect(&target).is_err_and(|f| f.to_string() == "limit of bytes in a run"));
}

#[test]
fn the_name_server_serves_connections_too() {
    let world = world();
    let dns_address = (stockade_egress::PROXY_ADDRESS_V4, 53).into();
    let announced = world
        .egress_proxy()
        .connect_service_and_wait(ProxyService::NameServer, dns_address, EgressCaller::default())
        .unwrap();
    let mut stream = arrive(announced);
    let query = b"\0\x1b\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\x04test\0\0\x01\0\x01";
    let mut framed = query.to_vec();
    framed[1] = (query.len() - 2) as u8;
    stream.write_all(&framed).unwrap();
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).unwrap();
    let mut message = vec![0; usize::from(u16::from_be_bytes(answer))];
    stream.read_exact(&mut message).unwrap();
    assert_eq!(message[message.len() - 4..], [198, 18, 0, 2]);
}
