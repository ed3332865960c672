//! The measurements of `bench/egress_proxy.py`: a server, and clients that reach it
//! directly, through the egress proxy, through a plain relay or through another proxy.
//!
//!     routes serve
//!     routes relay PORT
//!     routes measure PORT direct|egress-proxy|relay:PORT|connect:PORT MIB CONNECTS
//!     routes egress-proxies PORT COUNT MIB
//!
//! Prints one JSON object.

#![allow(clippy::unwrap_used, reason = "a measurement stops at the first error")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use support::{Options, World};

const BUFFER: usize = 256 << 10;
const NAME: &str = "server.test";

/// Sends a request to the server: a kind and a number of bytes. No protocol that the
/// egress proxy knows begins like this.
fn send_request(stream: &mut TcpStream, kind: u8, count: u64) {
    let [a, b, c, d, e, f, g, h] = count.to_be_bytes();
    stream.write_all(&[kind, a, b, c, d, e, f, g, h]).unwrap();
}

const DOWN: u8 = 1;
const UP: u8 = 2;
const ECHO: u8 = 3;

fn serve_one(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let [kind, count @ ..] = head;
        let mut remaining = u64::from_be_bytes(count);
        while remaining > 0 {
            let piece = usize::try_from(remaining).unwrap_or(BUFFER).min(BUFFER);
            remaining -= match kind {
                DOWN => stream.write(&buffer[..piece])?,
                _ => match stream.read(&mut buffer[..piece])? {
                    0 => return Ok(()),
                    count => count,
                },
            } as u64;
        }
        if kind != DOWN {
            stream.write_all(&[kind])?;
        }
    }
}

fn serve() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    rustix::net::listen(&listener, 4096).unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    for stream in listener.incoming().map_while(Result::ok) {
        std::thread::spawn(move || serve_one(stream));
    }
}

/// Relays with two threads and one buffer each.
fn relay(server: u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    rustix::net::listen(&listener, 4096).unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    for inside in listener.incoming().map_while(Result::ok) {
        std::thread::spawn(move || {
            let outside = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).unwrap();
            let other = (inside.try_clone().unwrap(), outside.try_clone().unwrap());
            std::thread::spawn(move || copy(&other.1, &other.0));
            copy(&inside, &outside);
        });
    }
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    to.set_nodelay(true).unwrap();
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

/// A route to the server.
enum Route {
    Direct(u16),
    EgressProxy(Box<World>, String),
    /// A proxy that requires a CONNECT first, and the target.
    Connect(u16, String),
}

fn start_proxy_route(server: u16) -> Route {
    let world = World::new(Options { names: vec![(NAME, "127.0.0.1")], ..Options::default() });
    Route::EgressProxy(Box::new(world), format!("{NAME}:{server}"))
}

impl Route {
    fn parse(text: &str, server: u16) -> Self {
        match text.split_once(':') {
            Some(("relay", port)) => Self::Direct(port.parse().unwrap()),
            Some(("connect", port)) => Self::Connect(port.parse().unwrap(), format!("localhost:{server}")),
            _ if text == "egress-proxy" => start_proxy_route(server),
            _ => Self::Direct(server),
        }
    }

    fn open(&self) -> TcpStream {
        let stream = match self {
            Self::Direct(port) => TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).unwrap(),
            Self::EgressProxy(world, target) => world.connect(target).unwrap(),
            Self::Connect(port, target) => {
                let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).unwrap();
                write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    head.push(byte[0]);
                }
                assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
                stream
            }
        };
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream
    }

    /// Returns MiB a second.
    fn down(&self, mib: u64) -> f64 {
        let mut stream = self.open();
        let mut buffer = vec![0; BUFFER];
        let start = Instant::now();
        send_request(&mut stream, DOWN, mib << 20);
        let mut remaining = mib << 20;
        while remaining > 0 {
            remaining -= stream.read(&mut buffer).unwrap() as u64;
        }
        mib as f64 / start.elapsed().as_secs_f64()
    }

    fn up(&self, mib: u64) -> f64 {
        let mut stream = self.open();
        let buffer = vec![0; BUFFER];
        let start = Instant::now();
        send_request(&mut stream, UP, mib << 20);
        for _ in 0..(mib << 20) / BUFFER as u64 {
            stream.write_all(&buffer).unwrap();
        }
        stream.read_exact(&mut [0]).unwrap();
        mib as f64 / start.elapsed().as_secs_f64()
    }

    /// Returns the times from connect to the first byte back in microseconds, sorted.
    fn connects(&self, count: usize) -> Vec<f64> {
        let one = |_| {
            let start = Instant::now();
            let mut stream = self.open();
            send_request(&mut stream, ECHO, 1);
            stream.write_all(&[0]).unwrap();
            stream.read_exact(&mut [0]).unwrap();
            start.elapsed().as_secs_f64() * 1e6
        };
        let mut took: Vec<f64> = (0..count).map(one).collect();
        took.sort_by(f64::total_cmp);
        took
    }
}

fn measure(route: &Route, mib: u64, connects: usize) {
    route.connects(connects / 10);
    let start = Instant::now();
    let took = route.connects(connects);
    let per_second = connects as f64 / start.elapsed().as_secs_f64();
    println!(
        r#"{{"down_mib_s": {:.0}, "up_mib_s": {:.0}, "connects_s": {per_second:.0}, "p50_us": {:.0}, "p99_us": {:.0}}}"#,
        route.down(mib),
        route.up(mib),
        took[connects / 2],
        took[connects * 99 / 100]
    );
}

fn resident_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64 / 1024
}

/// Measures many egress proxies at once, each with one client.
fn measure_many_proxies(server: u16, count: usize, mib: u64) {
    let before = resident_kib();
    let all: Vec<Route> = (0..count).map(|_| start_proxy_route(server)).collect();
    let idle = (resident_kib() - before) / count as u64;
    let share = mib / count as u64;
    let start = Instant::now();
    std::thread::scope(|scope| {
        for route in &all {
            scope.spawn(move || route.down(share));
        }
    });
    let rate = (share * count as u64) as f64 / start.elapsed().as_secs_f64();
    println!(r#"{{"egress_proxies": {count}, "idle_kib_each": {idle}, "all_down_mib_s": {rate:.0}}}"#);
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args[at].parse::<u64>().unwrap();
    match args[0].as_str() {
        "serve" => serve(),
        "relay" => relay(u16::try_from(number(1)).unwrap()),
        "measure" => {
            let port = u16::try_from(number(1)).unwrap();
            measure(&Route::parse(&args[2], port), number(3), number(4) as usize);
        }
        "egress-proxies" => measure_many_proxies(u16::try_from(number(1)).unwrap(), number(2) as usize, number(3)),
        other => panic!("serve, relay, measure or egress-proxies, not {other}"),
    }
}
