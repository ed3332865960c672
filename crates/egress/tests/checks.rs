//! What is said on a connection must fit the name that it was opened for: server
//! names of TLS, hosts of plain HTTP.

#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stockade_model::{ConnectionEnd, EgressLimits};
use support::{Options, World, echo, is_reset, serve, wait_for};

/// An origin that answers each request and keeps what it got.
struct Origin {
    port: u16,
    requests: Arc<Mutex<Vec<u8>>>,
}

impl Origin {
    fn new(answer: &'static str) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let byte_log = Arc::clone(&requests);
        let port = serve(move |mut stream| {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                byte_log.lock().unwrap().extend_from_slice(&buffer[..count]);
                if byte_log.lock().unwrap().ends_with(b"\r\n\r\n") && stream.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        });
        Self { port, requests }
    }
    fn requests(&self) -> String {
        String::from_utf8(self.requests.lock().unwrap().clone()).unwrap()
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

fn world() -> World {
    World::new(Options { names: vec![("a.test", "127.0.0.1")], ..Options::default() })
}

/// What comes back for these bytes, until the door or the origin closes.
fn say(world: &World, port: u16, bytes: &[u8]) -> String {
    let mut stream = world.connect(&format!("a.test:{port}")).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn requests_for_the_name_pass_and_others_do_not() {
    let world = world();
    let origin = Origin::new(OK);
    let answer = say(&world, origin.port, b"GET /x HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!(answer, OK);
    assert_eq!(origin.requests(), "GET /x HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let two = b"GET /1 HTTP/1.1\r\nHost: a.test\r\n\r\nGET /2 HTTP/1.1\r\nHost: b.test\r\n\r\n";
    origin.requests.lock().unwrap().clear();
    let answer = say(&world, origin.port, two);
    assert!(answer.starts_with(OK) && answer[OK.len()..].starts_with("HTTP/1.1 403"), "{answer}");
    assert!(answer.contains("a request on a connection to a.test"), "{answer}");
    assert_eq!(origin.requests(), "GET /1 HTTP/1.1\r\nHost: a.test\r\n\r\n");
    wait_for(|| world.records().len() == 2);
    assert_eq!(world.records()[1].end, ConnectionEnd::Refused);
    assert_eq!(world.denials().len(), 1);
}

#[test]
fn smuggled_requests_reach_no_server() {
    let world = world();
    let origin = Origin::new(OK);
    let long = format!("GET / HTTP/1.1\r\nHost: a.test\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    for bad in [
        "GET / HTTP/1.1\nHost: a.test\n\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\n X: y\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\nX: a\0b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\nX: a\rb\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n",
        "\nGET / HTTP/1.1\r\nHost: b.test\r\n\r\n",
        &long,
    ] {
        let answer = say(&world, origin.port, bad.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.1 431"), "{bad:.80?} {answer}");
    }
    assert_eq!(origin.requests(), "");
    let chunked =
        "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloGET / HTTP/1.1\r\n\r\n";
    say(&world, origin.port, chunked.as_bytes());
    assert!(!origin.requests().contains("GET"), "{}", origin.requests());
}

#[test]
fn a_request_in_pieces_is_a_request() {
    let world = world();
    let origin = Origin::new(OK);
    let mut stream = world.connect(&format!("a.test:{}", origin.port)).unwrap();
    for piece in [&b"GET / HT"[..], b"TP/1.1\r", b"\nHost: b", b".test\r\n\r\n"] {
        stream.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    // Too slow to be held back: broken off before its line is whole.
    let mut stream = world.connect(&format!("a.test:{}", origin.port)).unwrap();
    for piece in [&b"GET / HT"[..], b"TP/1.1\r\nHost: b.test\r\n\r\n"] {
        stream.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(400));
    }
    assert!(is_reset(&mut stream));
    assert!(!origin.requests().contains("Host"), "{}", origin.requests());
}

#[test]
fn bodies_uploads_and_other_protocols_work() {
    let world = world();
    // Reads an upload of a million bytes, then answers in chunks and closes.
    let port = serve(|mut stream| {
        let mut all = Vec::new();
        let mut buffer = [0; 65536];
        while all.len() < 1_000_000 || !all.ends_with(b"0\r\n\r\n") {
            let count = stream.read(&mut buffer).unwrap();
            all.extend_from_slice(&buffer[..count]);
        }
        stream
            .write_all(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            .unwrap();
        stream.write_all(b"3\r\nabc\r\n0\r\n\r\n").unwrap();
    });
    let mut body = b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\nf4240\r\n".to_vec();
    body.extend(vec![b'x'; 1_000_000]);
    body.extend(b"\r\n0\r\n\r\n");
    let answer = say(&world, port, &body);
    assert!(answer.starts_with("HTTP/1.1 100") && answer.ends_with("\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), "{answer}");
    // After a change of protocol everything passes.
    let port = serve(|mut stream| {
        let mut buffer = [0; 4096];
        let _ = stream.read(&mut buffer).unwrap();
        stream.write_all(b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n").unwrap();
        echo(stream);
    });
    let mut stream = world.connect(&format!("a.test:{port}")).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\n\r\n").unwrap();
    let mut head = [0; 46];
    stream.read_exact(&mut head).unwrap();
    stream.write_all(b"\x81\x00GET / HTTP/1.1\r\n").unwrap();
    let mut back = [0; 18];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"\x81\x00GET / HTTP/1.1\r\n");
}

#[test]
fn a_server_that_speaks_first_and_protocols_of_other_kinds_pass() {
    let world = world();
    let port = serve(|mut stream| {
        stream.write_all(b"SSH-2.0-server\r\n").unwrap();
        echo(stream);
    });
    let mut stream = world.connect(&format!("a.test:{port}")).unwrap();
    let mut hello = [0; 16];
    stream.read_exact(&mut hello).unwrap();
    stream.write_all(b"SSH-2.0-client\r\n").unwrap();
    stream.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"SSH-2.0-client\r\n");
    // A word without an end goes on after a moment.
    let mut stream = world.connect(&format!("a.test:{}", serve(echo))).unwrap();
    stream.write_all(b"word").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    stream.write_all(b" more\n").unwrap();
    stream.read_exact(&mut [0; 6]).unwrap();
}

fn hello(name: Option<&str>) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    let mut extension = Vec::new();
    if let Some(name) = name {
        let length = name.len() as u16;
        extension.extend([0, 0]);
        extension.extend((length + 5).to_be_bytes());
        extension.extend((length + 3).to_be_bytes());
        extension.push(0);
        extension.extend(length.to_be_bytes());
        extension.extend(name.as_bytes());
    }
    body.extend((extension.len() as u16).to_be_bytes());
    body.extend(extension);
    let mut record = vec![22, 3, 1];
    record.extend((body.len() as u16 + 4).to_be_bytes());
    record.extend([1, 0]);
    record.extend((body.len() as u16).to_be_bytes());
    record.extend(body);
    record
}

#[test]
fn the_server_name_is_checked_and_recorded() {
    let world = world();
    let port = serve(echo);
    let good = hello(Some("a.test"));
    let mut stream = world.connect(&format!("a.test:{port}")).unwrap();
    for piece in good.chunks(9) {
        stream.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut back = vec![0; good.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, good);
    drop(stream);
    assert_eq!(world.record().tls_name.unwrap().to_str(), Some("a.test"));
    world.events.lock().unwrap().clear();
    for (name, part) in [(Some("b.test"), "asks for b.test"), (None, "names no server")] {
        let mut stream = world.connect(&format!("a.test:{port}")).unwrap();
        stream.write_all(&hello(name)).unwrap();
        assert!(is_reset(&mut stream));
        wait_for(|| world.denials().iter().any(|d| d.rule.contains(part)));
        assert!(world.records().last().unwrap().why.as_ref().unwrap().contains(part));
    }
    // Who agreed to an address agreed to all it serves.
    let mut stream = world.connect(&format!("127.0.0.1:{port}")).unwrap();
    stream.write_all(&hello(Some("b.test"))).unwrap();
    stream.read_exact(&mut [0; 20]).unwrap();
}

#[test]
fn a_hello_that_does_not_come_is_not_waited_for() {
    let world = world();
    let port = serve(echo);
    let mut stream = world.connect(&format!("a.test:{port}")).unwrap();
    stream.write_all(&hello(Some("a.test"))[..10]).unwrap();
    assert!(is_reset(&mut stream));
    assert!(world.denials()[0].rule.contains("did not come in time"));
}

#[test]
fn requests_a_minute_are_limited() {
    let limits = EgressLimits { requests_per_minute: Some(3), ..EgressLimits::default() };
    let world = World::new(Options { names: vec![("a.test", "127.0.0.1")], limits, ..Options::default() });
    let origin = Origin::new(OK);
    let one = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let answer = say(&world, origin.port, one.repeat(5).as_bytes());
    assert_eq!(answer.matches("200 OK").count(), 3, "{answer}");
    assert!(answer.contains("429 Too Many") && answer.contains("limit of requests a minute"), "{answer}");
}

/// Each request counts, however it is sent, on one connection that the server keeps.
#[test]
fn requests_in_every_form_are_counted() {
    let limits = EgressLimits { requests_per_minute: Some(3), ..EgressLimits::default() };
    let server = || {
        serve(|mut stream| {
            // Answers a request where its last bytes are there: none is split here.
            let mut buffer = [0; 4096];
            let mut held = Vec::new();
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                held.extend_from_slice(&buffer[..count]);
                while let Some(at) = held.windows(4).position(|window| window == b"END\n") {
                    let head = held.drain(..at + 4).collect::<Vec<u8>>();
                    let body = if head.starts_with(b"HEAD") { "" } else { "hi" };
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{body}");
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            }
        })
    };
    let chunked =
        "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n4\r\nEND\n\r\n0\r\n\r\n";
    let length = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\n\r\nEND\n";
    let expect = "POST / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nEND\n";
    let head = "HEAD / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\n\r\nEND\n";
    let old = "POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\nEND\n";
    for request in [chunked, length, expect, head, old] {
        for is_pipelined in [true, false] {
            let names = vec![("a.test", "127.0.0.1")];
            let world = World::new(Options { names, limits, ..Options::default() });
            let mut stream = world.connect(&format!("a.test:{}", server())).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            let mut all = Vec::new();
            if is_pipelined {
                stream.write_all(request.repeat(6).as_bytes()).unwrap();
                let _ = stream.read_to_end(&mut all);
            }
            let answer = if request.starts_with("HEAD") { 38 } else { 40 };
            for _ in 0..if is_pipelined { 0 } else { 3 } {
                stream.write_all(request.as_bytes()).unwrap();
                let mut bytes = vec![0; answer];
                stream.read_exact(&mut bytes).unwrap();
                all.extend(bytes);
            }
            if !is_pipelined {
                stream.write_all(request.as_bytes()).unwrap();
                let _ = stream.read_to_end(&mut all);
            }
            let all = String::from_utf8_lossy(&all).into_owned();
            assert_eq!(all.matches("200 OK").count(), 3, "{request} {is_pipelined} {all}");
            assert!(all.contains("429 Too Many") && world.denials().len() == 1, "{request} {is_pipelined} {all}");
        }
    }
}

/// Fields that some servers take for those by which a message ends, and none of them
/// reaches one, by name and by address.
#[test]
fn misspelt_fields_are_refused() {
    let limits = EgressLimits { requests_per_minute: Some(1000), ..EgressLimits::default() };
    let world = World::new(Options { names: vec![("a.test", "127.0.0.1")], limits, ..Options::default() });
    let origin = Origin::new(OK);
    for field in [
        "Transfer_Encoding: chunked",
        "Transfer.Encoding: chunked",
        "transfer_encoding: chunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding\t: chunked",
        " Transfer-Encoding: chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Content_Length: 5",
        "Content-Length : 5",
        "Content Length: 5",
        "Proxy_Connection: close",
        "Keep_Alive: x",
        "X_Original_URL: /x",
    ] {
        for target in ["a.test", "127.0.0.1"] {
            let mut stream = world.connect(&format!("{target}:{}", origin.port)).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
            let request = format!("POST / HTTP/1.1\r\nHost: a.test\r\n{field}\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.starts_with(b"HTTP/1.1 400"), "{field} {target} {}", answer.escape_ascii());
        }
    }
    assert_eq!(origin.requests(), "");
}

/// By address as well, where requests are not held to a name, on one connection or many.
#[test]
fn requests_to_an_address_are_counted_too() {
    let limits = EgressLimits { requests_per_minute: Some(5), ..EgressLimits::default() };
    for (limits, passed) in [(limits, 5), (EgressLimits::default(), 8)] {
        let world = World::new(Options { limits, ..Options::default() });
        let origin = Origin::new(OK);
        let all: String = (0..8)
            .map(|_| {
                let mut stream = world.connect(&format!("127.0.0.1:{}", origin.port)).unwrap();
                stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
                stream.write_all(b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n").unwrap();
                let mut answer_bytes = Vec::new();
                let _ = stream.read_to_end(&mut answer_bytes);
                String::from_utf8_lossy(&answer_bytes).into_owned()
            })
            .collect();
        assert_eq!(all.matches("200 OK").count(), passed, "{all}");
        assert_eq!(all.matches("429 Too Many").count(), 8 - passed, "{all}");
    }
}

#[test]
fn a_proxy_with_a_peer_that_never_reads_still_serves_others() {
    let world = world();
    let endless = serve(|mut stream| while stream.write_all(&[7; 65536]).is_ok() {});
    let stuck: Vec<TcpStream> = (0..50).map(|_| world.connect(&format!("a.test:{endless}")).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(300));
    let origin = Origin::new(OK);
    assert_eq!(say(&world, origin.port, b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"), OK);
    drop(stuck);
    wait_for(|| world.records().len() == 51);
}

#[test]
fn servers_that_do_not_answer_do_not_block_the_proxy() {
    let world = world();
    // Accepts and says nothing.
    let quiet = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = quiet.local_addr().unwrap().port();
    let mut waiting = world.connect(&format!("a.test:{port}")).unwrap();
    waiting.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap();
    // The client goes away: the exchange ends with it.
    rustix::net::sockopt::set_socket_linger(&waiting, Some(Duration::ZERO)).unwrap();
    drop(waiting);
    assert_eq!(world.record().end, ConnectionEnd::Reset);
}
