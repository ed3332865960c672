//! The door's proxies: each request decided on its own target.

#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use stockade_egress::{EgressCaller, PROXY_ADDRESS_V4, ProxyService};
use stockade_model::ConnectionEnd;
use support::{ConnectAndWait, Options, World, arrive, echo, serve, wait_for};

struct Scene {
    world: World,
    /// The origin of `allowed.test`, and what it got.
    port: u16,
    hits: Arc<AtomicUsize>,
}

fn scene() -> Scene {
    let hits = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&hits);
    let port = serve(move |mut stream| {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            counter.fetch_add(1, Ordering::SeqCst);
            let input = String::from_utf8_lossy(&buffer[..count]).replace("\r\n", "|");
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{input}", input.len());
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    let allow: &'static str = format!("allowed.test:{port}").leak();
    let names = vec![("allowed.test", "127.0.0.1"), ("denied.test", "127.0.0.1"), ("private.test", "10.0.0.1")];
    Scene { world: World::new(Options { names, allow: vec![allow, "private.test"], ..Options::default() }), port, hits }
}

impl Scene {
    fn open(&self, service: ProxyService) -> TcpStream {
        let port = if service == ProxyService::Socks { 1080 } else { 3128 };
        let caller = EgressCaller { pid: Some(9), program: None };
        let stream = arrive(
            self.world
                .egress_proxy()
                .connect_service_and_wait(service, (PROXY_ADDRESS_V4, port).into(), caller)
                .unwrap(),
        );
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        stream
    }

    fn http(&self, text: &str) -> String {
        let mut stream = self.open(ProxyService::HttpProxy);
        let text = text.replace("PORT", &self.port.to_string());
        stream.write_all(text.as_bytes()).unwrap();
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    }

    fn socks(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.open(ProxyService::Socks);
        let _ = stream.write_all(bytes);
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        all
    }
}

#[test]
fn requests_in_absolute_form() {
    let scene = scene();
    let answer = scene.http(
        "GET http://ALLOWED.test.:PORT/a?b HTTP/1.1\r\nHost: allowed.test:PORT\r\nProxy-Connection: x\r\nProxy-Authorization: y\r\n\r\n",
    );
    let sent = format!("GET /a?b HTTP/1.1|Host: allowed.test:{}||", scene.port);
    assert!(answer.ends_with(&sent), "{answer}");
    let record = {
        wait_for(|| scene.world.records().len() == 1);
        scene.world.records().remove(0)
    };
    assert_eq!((record.pid, record.end), (Some(9), ConnectionEnd::Closed));
    assert!(record.rule.starts_with("allow allowed.test"));
}

#[track_caller]
fn status(scene: &Scene, text: &str, expected: u16) {
    let before = scene.hits.load(Ordering::SeqCst);
    let answer = scene.http(text);
    let line = format!("HTTP/1.1 {expected} ");
    assert!(answer.starts_with(&line), "{text:?}: {answer}");
    assert_eq!(scene.hits.load(Ordering::SeqCst), before, "{text:?}");
}

#[test]
fn refusals_name_host_port_and_grant() {
    let scene = scene();
    let answer = scene.http("GET http://denied.test/ HTTP/1.1\r\nHost: denied.test\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(answer.ends_with("denied.test:80 may not be reached: no entry of allow names it\nhint: it needs the grant `connect denied.test:80`\n"), "{answer}");
    let answer = scene.http("GET http://never.test/ HTTP/1.1\r\nHost: never.test\r\n\r\n");
    assert!(answer.ends_with("never.test:80 may not be reached: no entry of allow names it\n"), "{answer}");
    assert!(scene.world.table.queries.lock().unwrap().is_empty(), "a refused name is not looked up");
    for (text, expected) in [
        ("GET http://evilallowed.test:PORT/ HTTP/1.1\r\nHost: evilallowed.test:PORT\r\n\r\n", 403),
        ("GET http://allowed.test.attacker.test:PORT/ HTTP/1.1\r\nHost: allowed.test.attacker.test:PORT\r\n\r\n", 403),
        ("GET http://127.0.0.1:PORT/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", 403),
        ("GET http://[::ffff:127.0.0.1]:PORT/ HTTP/1.1\r\nHost: [::ffff:127.0.0.1]:PORT\r\n\r\n", 403),
        ("GET http://private.test/ HTTP/1.1\r\nHost: private.test\r\n\r\n", 403),
        ("GET http://2130706433:PORT/ HTTP/1.1\r\nHost: 2130706433:PORT\r\n\r\n", 400),
        ("GET http://0x7f.1:PORT/ HTTP/1.1\r\nHost: 0x7f.1:PORT\r\n\r\n", 400),
        ("GET http://127.1:PORT/ HTTP/1.1\r\nHost: 127.1:PORT\r\n\r\n", 400),
        ("GET http://allowed.test:PORT/ HTTP/1.1\r\nHost: denied.test\r\n\r\n", 403),
        ("GET http://x@allowed.test:PORT/ HTTP/1.1\r\nHost: allowed.test:PORT\r\n\r\n", 400),
        ("GET http://allowed.test%00.b:PORT/ HTTP/1.1\r\nHost: allowed.test:PORT\r\n\r\n", 400),
        ("GET https://allowed.test:PORT/ HTTP/1.1\r\nHost: allowed.test:PORT\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: allowed.test:PORT\r\n\r\n", 400),
        ("GET http://allowed.test:PORT/\r\nHost: x HTTP/1.1\r\n\r\n", 400),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        ("CONNECT denied.test:443 HTTP/1.1\r\nHost: denied.test\r\n\r\n", 403),
        ("CONNECT 127.0.0.1:PORT HTTP/1.1\r\n\r\n", 403),
        ("CONNECT [::1]:PORT HTTP/1.1\r\n\r\n", 403),
        ("CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n", 403),
        ("CONNECT private.test:80 HTTP/1.1\r\n\r\n", 403),
        ("CONNECT allowed.test:22 HTTP/1.1\r\n\r\n", 403),
        ("CONNECT allowed.test:0 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT allowed.test:65536 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT allowed.test:443abc HTTP/1.1\r\n\r\n", 400),
        ("CONNECT allowed.test HTTP/1.1\r\n\r\n", 400),
        ("CONNECT allowed.test#x:443 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT a/allowed.test:443 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT a\\allowed.test:443 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT a@allowed.test:443 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT a;allowed.test:443 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT ällowed.test:443 HTTP/1.1\r\n\r\n", 400),
        ("CONNECT allowed.test:PORT HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 400),
    ] {
        status(&scene, text, expected);
    }
    let long = format!("CONNECT {}.test:443 HTTP/1.1\r\n\r\n", "a".repeat(300));
    status(&scene, &long, 400);
}

#[test]
fn each_request_of_a_connection_is_decided() {
    let scene = scene();
    let answer = scene.http(
        "GET http://allowed.test:PORT/1 HTTP/1.1\r\nHost: allowed.test:PORT\r\n\r\nGET http://denied.test/ HTTP/1.1\r\nHost: denied.test\r\n\r\n",
    );
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("HTTP/1.1 403"), "{answer}");
    let good = "GET http://allowed.test:PORT/1 HTTP/1.1\r\nHost: allowed.test:PORT\r\n\r\n";
    let mut stream = scene.open(ProxyService::HttpProxy);
    let text = good.replace("PORT", &scene.port.to_string());
    let mut buffer = [0; 4096];
    stream.write_all(text.as_bytes()).unwrap();
    let mut input = Vec::new();
    while !input.ends_with(b"||") {
        let count = stream.read(&mut buffer).unwrap();
        input.extend_from_slice(&buffer[..count]);
    }
    // What was allowed a moment ago is asked again.
    scene.world.policy.allow.lock().unwrap().clear();
    stream.write_all(text.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let count = stream.read(&mut buffer).unwrap();
    assert!(buffer[..count].starts_with(b"HTTP/1.1 403"));
}

#[test]
fn tunnels_carry_and_are_looked_at() {
    let scene = scene();
    let answer = scene.http("CONNECT allowed.test:PORT HTTP/1.1\r\n\r\n\x05raw bytes");
    assert!(answer.starts_with("HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK"), "{answer}");
    assert!(answer.ends_with("\x05raw bytes"), "{answer}");
    let before = scene.hits.load(Ordering::SeqCst);
    let answer = scene.http("CONNECT allowed.test:PORT HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: denied.test\r\n\r\n");
    assert!(answer.contains("HTTP/1.1 403"), "{answer}");
    assert_eq!(scene.hits.load(Ordering::SeqCst), before);
}

fn named(name: &[u8], port: u16) -> Vec<u8> {
    let mut out = vec![5, 1, 0, 5, 1, 0, 3, name.len() as u8];
    out.extend(name);
    out.extend(port.to_be_bytes());
    out
}

#[test]
fn socks_with_names() {
    let scene = scene();
    let mut bytes = named(b"allowed.test", scene.port);
    bytes.extend(b"\x01hello");
    let back = scene.socks(&bytes);
    assert_eq!(back[..12], [5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert!(back.ends_with(b"\x01hello"));
    for (bytes, reply) in [
        (named(b"denied.test", scene.port), 2),
        (named(b"private.test", 80), 2),
        (named(b"denied.test\0.allowed.test", scene.port), 1),
        (named(b"127.0.0.1", scene.port), 2),
        (named(b"2130706433", scene.port), 1),
        (vec![5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, 0, 80], 2),
        (vec![5, 1, 0, 5, 2, 0, 1, 127, 0, 0, 1, 0, 80], 7),
        (vec![5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0], 7),
    ] {
        assert_eq!(scene.socks(&bytes).get(3), Some(&reply), "{bytes:?}");
    }
    assert_eq!(scene.socks(&[5, 1, 2]), [5, 0xff]);
    assert_eq!(scene.socks(&[4, 1, 0, 80, 127, 0, 0, 1, 0]), [0; 0]);
}

#[test]
fn a_name_that_changes_its_answer_is_checked_each_time() {
    let scene = scene();
    let text = "CONNECT allowed.test:PORT HTTP/1.1\r\n\r\n";
    assert!(scene.http(text).starts_with("HTTP/1.1 200"));
    let private: IpAddr = Ipv4Addr::new(192, 168, 0, 1).into();
    scene.world.table.names.lock().unwrap().insert("allowed.test".into(), vec![private]);
    let answer = scene.http(text);
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("192.168.0.1"), "{answer}");
    assert_eq!(scene.world.table.queries.lock().unwrap().len(), 2, "one lookup a connection");
}

#[test]
fn a_head_that_drips_is_given_up_and_others_go_on() {
    let scene = scene();
    let mut slow = scene.open(ProxyService::HttpProxy);
    slow.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    slow.write_all(b"GET http://allowed.test/ HT").unwrap();
    let port = serve(echo);
    let answer = scene.http(&format!("CONNECT denied.test:{port} HTTP/1.1\r\n\r\n"));
    assert!(answer.starts_with("HTTP/1.1 403"));
    let mut answer = String::new();
    let _ = slow.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}
