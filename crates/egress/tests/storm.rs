//! Peers that are slow, silent, gone or many: what they cost is bounded, and the
//! doors of other sandboxes do not notice. Costs are read from outside: resident
//! memory and open descriptors of this process, so the tests take turns.

#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stockade_egress::{EgressCaller, PROXY_ADDRESS_V4, ProxyService};
use stockade_model::{ConnectionEnd, EgressLimits};
use support::{ConnectAndWait, Options, World, arrive, echo, serve, wait_for};

/// One test at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let guard = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    guard
}

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn world(limits: EgressLimits) -> World {
    World::new(Options { names: vec![("a.test", "127.0.0.1")], limits, allow: vec!["a.test"], ..Options::default() })
}

/// A server that takes connections and does nothing with them.
fn silent() -> (u16, Arc<Mutex<Vec<TcpStream>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    rustix::net::listen(&listener, 4096).unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepted_streams = Arc::new(Mutex::new(Vec::new()));
    let stream_log = Arc::clone(&accepted_streams);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            stream_log.lock().unwrap().push(stream);
        }
    });
    (port, accepted_streams)
}

/// One exchange through a door.
struct Neighbour {
    world: World,
    target: String,
}

impl Neighbour {
    fn new() -> Self {
        Self { world: world(EgressLimits::default()), target: format!("a.test:{}", serve(echo)) }
    }
    fn is_served(&self) {
        let mut stream = self.world.connect(&self.target).unwrap();
        stream.write_all(b"hello\n").unwrap();
        stream.read_exact(&mut [0; 6]).unwrap();
    }
}

fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

#[test]
fn thousands_of_open_connections_cost_little_each() {
    let _turn = turn();
    let neighbour = Neighbour::new();
    let world = world(EgressLimits::default());
    let (port, accepted_streams) = silent();
    // Four descriptors of a connection are in this process: the program's, the
    // door's two, the server's.
    let possible = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(400) / 4;
    let count = usize::try_from(possible).unwrap().min(10_000);
    let connect = || {
        let mut stream = world.connect(&format!("a.test:{port}")).unwrap();
        stream.write_all(b"\x01").unwrap();
        stream
    };
    // What is needed once is not counted.
    let mut open: Vec<TcpStream> = (0..50).map(|_| connect()).collect();
    let before = resident_bytes();
    open.extend((50..count).map(|_| connect()));
    wait_for(|| accepted_streams.lock().unwrap().len() == count);
    neighbour.is_served();
    let each = resident_bytes().saturating_sub(before) / (count - 50);
    assert!(each < 16 << 10, "{each} bytes for each of {count}");
    // All of them work.
    for (stream, byte) in accepted_streams.lock().unwrap().iter_mut().zip(0u8..=255) {
        stream.write_all(&[byte]).unwrap();
    }
    let mut first = [0];
    open[0].read_exact(&mut first).unwrap();
    drop(open);
    accepted_streams.lock().unwrap().clear();
    wait_for(|| world.recorded() == count);
}

#[test]
fn resets_by_the_thousand_leave_nothing() {
    let _turn = turn();
    let neighbour = Neighbour::new();
    let world = world(EgressLimits::default());
    let (port, accepted_streams) = silent();
    let storm = |count: usize| {
        for n in 0..count {
            let mut stream = world.connect(&format!("a.test:{port}")).unwrap();
            if n % 2 == 0 {
                let _ = stream.write_all(b"\x01 half a word");
            }
            reset(stream);
            if n % 100 == 0 {
                neighbour.is_served();
            }
        }
        wait_for(|| world.recorded() == count && accepted_streams.lock().unwrap().len() == count);
        accepted_streams.lock().unwrap().clear();
        world.events.lock().unwrap().clear();
    };
    storm(200);
    let (memory, open) = (resident_bytes(), descriptors());
    storm(2_000);
    wait_for(|| descriptors() <= open + 4);
    let grown = resident_bytes().saturating_sub(memory);
    assert!(grown < 8 << 20, "{grown} bytes more");
}

#[test]
fn failed_and_half_closed_connections_release_their_slots() {
    let _turn = turn();
    let world = world(EgressLimits { connections: Some(300), ..EgressLimits::default() });
    let (port, accepted_streams) = silent();
    let target = format!("a.test:{port}");
    let open = descriptors();
    // Announced, dialled, and nobody comes.
    for _ in 0..1_000 {
        drop(world.egress_proxy().connect_and_wait(world.order(&target)).unwrap());
    }
    wait_for(|| world.recorded() == 1_000 && accepted_streams.lock().unwrap().len() == 1_000);
    accepted_streams.lock().unwrap().clear();
    // Half-closed: the server may still answer, so they stand; no more than the
    // limit of them.
    let half: Vec<TcpStream> = (0..300).map(|_| world.connect(&target).unwrap()).collect();
    half.iter().for_each(|stream| stream.shutdown(Shutdown::Write).unwrap());
    assert_eq!(world.connect(&target).unwrap_err().to_string(), "limit of connections at once");
    // The door has passed the ends on when the server reads them.
    wait_for(|| accepted_streams.lock().unwrap().len() == 300);
    for stream in accepted_streams.lock().unwrap().iter_mut() {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    half.into_iter().for_each(reset);
    wait_for(|| world.recorded() == 1_300);
    assert!(world.records()[1_000..].iter().all(|r| r.end == ConnectionEnd::Reset));
    accepted_streams.lock().unwrap().clear();
    wait_for(|| descriptors() <= open + 8);
}

#[test]
fn slow_requests_hold_a_slot_for_a_moment_only() {
    let _turn = turn();
    let neighbour = Neighbour::new();
    let world = world(EgressLimits { connections: Some(200), ..EgressLimits::default() });
    let proxy = || {
        let service = world.egress_proxy().connect_service_and_wait(
            ProxyService::HttpProxy,
            (PROXY_ADDRESS_V4, 3128).into(),
            EgressCaller::default(),
        );
        service.map(arrive)
    };
    let mut slow: Vec<TcpStream> = (0..200).map(|_| proxy().unwrap()).collect();
    slow.iter_mut().for_each(|stream| stream.write_all(b"GET http://a.test/ HTTP/1.1\r\nX: ").unwrap());
    proxy().unwrap_err();
    let start = Instant::now();
    while proxy().is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "the slow ones still hold their places");
        for stream in &mut slow {
            let _ = stream.write_all(b"a");
        }
        neighbour.is_served();
        std::thread::sleep(Duration::from_millis(300));
    }
    let mut answer = String::new();
    let _ = slow[0].read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[test]
fn peers_that_never_read_hold_a_bounded_amount() {
    let _turn = turn();
    let neighbour = Neighbour::new();
    let world = world(EgressLimits::default());
    let endless = serve(|mut stream| while stream.write_all(&[7; 65536]).is_ok() {});
    let stuck = |count: usize| -> Vec<TcpStream> {
        (0..count).map(|_| world.connect(&format!("a.test:{endless}")).unwrap()).collect()
    };
    let first = stuck(300);
    neighbour.is_served();
    let before = resident_bytes();
    let more = stuck(700);
    neighbour.is_served();
    let each = resident_bytes().saturating_sub(before) / more.len();
    // A thread of the server each, and a small buffer of the door.
    assert!(each < 40 << 10, "{each} bytes each");
    drop((first, more));
    wait_for(|| world.recorded() == 1_000);
}
