//! The way outside through another proxy: HTTP CONNECT and SOCKS5.

#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::{Arc, Mutex};

use data_encoding::BASE64;
use rustix::io::Errno;
use stockade_egress::DialError;
use stockade_model::{NetworkTarget, SecretSource, UpstreamKind, UpstreamProxy};
use support::tls::{Origin, ask, client, ok};
use support::{Options, World, closed_port, echo, serve};

const CREDENTIALS: &str = "corp\\someone:pass word:42";

/// A proxy, and what it was asked for.
struct Proxy {
    port: u16,
    queries: Arc<Mutex<Vec<String>>>,
}

/// Whatever the name, the proxy's network has it on loopback.
fn join(inside: TcpStream, port: u16, yes: &[u8]) {
    let outside = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut first = [0; 64];
    outside.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
    // What the server says first comes together with the answer.
    let count = (&outside).read(&mut first).unwrap_or(0);
    outside.set_read_timeout(None).unwrap();
    (&inside).write_all(&[yes, &first[..count]].concat()).unwrap();
    let (mut from, mut to) = (inside.try_clone().unwrap(), outside.try_clone().unwrap());
    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    let _ = std::io::copy(&mut &outside, &mut &inside);
}

fn read_head(mut stream: &TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn http(credentials: Option<&'static str>) -> Proxy {
    let queries = Arc::new(Mutex::new(Vec::new()));
    let request_log = Arc::clone(&queries);
    let port = serve(move |stream| {
        let head = read_head(&stream);
        let target: NetworkTarget = head.split(' ').nth(1).unwrap().parse().unwrap();
        request_log.lock().unwrap().push(head.clone());
        let expected_auth =
            credentials.map(|c| format!("Proxy-Authorization: Basic {}\r\n", BASE64.encode(c.as_bytes())));
        match target.host.to_string().as_str() {
            _ if expected_auth.is_some_and(|expected_auth| !head.contains(&expected_auth)) => {
                (&stream)
                    .write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                    .unwrap();
            }
            "denied.test" => (&stream).write_all(b"HTTP/1.1 403 Not today\r\nContent-Length: 0\r\n\r\n").unwrap(),
            "odd.test" => (&stream).write_all(b"SSH-2.0-no proxy at all\r\n\r\n").unwrap(),
            "endless.test" => while (&stream).write_all(b"X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n").is_ok() {},
            "cut.test" => (&stream).write_all(b"HTTP/1.1 200").unwrap(),
            _ => join(stream, target.port, b"HTTP/1.1 200 OK\r\nX-Cache: none\r\n\r\n"),
        }
    });
    Proxy { port, queries }
}

fn socks(credentials: Option<&'static str>) -> Proxy {
    let queries = Arc::new(Mutex::new(Vec::new()));
    let request_log = Arc::clone(&queries);
    let port = serve(move |stream| {
        let read = |count: usize| {
            let mut bytes = vec![0; count];
            (&stream).read_exact(&mut bytes).unwrap();
            bytes
        };
        let count = usize::from(read(2)[1]);
        let methods = read(count);
        match credentials {
            Some(expected_auth) if methods.contains(&2) => {
                (&stream).write_all(&[5, 2]).unwrap();
                let user = usize::from(read(2)[1]);
                let user = String::from_utf8(read(user)).unwrap();
                let password = usize::from(read(1)[0]);
                let password = String::from_utf8(read(password)).unwrap();
                let is_right = format!("{user}:{password}") == expected_auth;
                (&stream).write_all(&[1, u8::from(!is_right)]).unwrap();
                if !is_right {
                    return;
                }
            }
            Some(_) => return (&stream).write_all(&[5, 255]).unwrap(),
            None => (&stream).write_all(&[5, 0]).unwrap(),
        }
        let host = match read(4)[3] {
            1 => Ipv4Addr::from(<[u8; 4]>::try_from(read(4)).unwrap()).to_string(),
            3 => {
                let length = usize::from(read(1)[0]);
                String::from_utf8(read(length)).unwrap()
            }
            kind => panic!("{kind}"),
        };
        let port = u16::from_be_bytes(read(2).try_into().unwrap());
        request_log.lock().unwrap().push(format!("{host}:{port}"));
        match host.as_str() {
            "denied.test" => (&stream).write_all(&[5, 2, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap(),
            // The address that it bound, as a name.
            _ => join(stream, port, &[5, 0, 0, 3, 2, b'm', b'e', 9, 9]),
        }
    });
    Proxy { port, queries }
}

fn world(kind: UpstreamKind, proxy: u16, credentials: Option<&str>, trusted: &str) -> World {
    let file = tempfile::NamedTempFile::new().unwrap();
    let source = credentials.map(|text| {
        std::fs::write(file.path(), format!("{text}\n")).unwrap();
        SecretSource::File(file.path().into())
    });
    let options = Options {
        names: vec![("proxy.corp.test", "127.0.0.1"), ("direct.test", "127.0.0.1")],
        // The proxy is reached because the configuration names it.
        special: Some(vec!["127.0.0.1:1"]),
        ..Options::default()
    };
    let (world, _) = World::looking(options, trusted, |rules| {
        rules.upstream = Some(UpstreamProxy {
            kind,
            proxy: format!("proxy.corp.test:{proxy}").parse().unwrap(),
            credentials: source,
            except: vec!["direct.test".parse().unwrap()],
        });
    });
    world
}

fn speaks_first() -> u16 {
    serve(|mut stream| {
        stream.write_all(b"220 hello\r\n").unwrap();
        echo(stream);
    })
}

#[test]
fn names_go_to_the_proxy_with_credentials_and_nothing_is_lost() {
    for (kind, proxy) in
        [(UpstreamKind::Http, http(Some(CREDENTIALS))), (UpstreamKind::Socks5, socks(Some(CREDENTIALS)))]
    {
        let world = world(kind, proxy.port, Some(CREDENTIALS), "");
        let port = speaks_first();
        for host in ["far.test", "8.8.8.8"] {
            let mut stream = world.connect(&format!("{host}:{port}")).unwrap();
            let mut banner = [0; 11];
            stream.read_exact(&mut banner).unwrap();
            assert_eq!(&banner, b"220 hello\r\n");
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut [0]).unwrap();
            assert!(proxy.queries.lock().unwrap().last().unwrap().contains(&format!("{host}:{port}")));
        }
        assert_eq!(*world.table.queries.lock().unwrap(), ["proxy.corp.test", "proxy.corp.test"], "never the target");
        drop(world);
    }
}

#[test]
fn the_record_names_the_proxy_and_never_its_password() {
    let proxy = http(Some(CREDENTIALS));
    let mut world = world(UpstreamKind::Http, proxy.port, Some(CREDENTIALS), "");
    drop(world.connect(&format!("far.test:{}", speaks_first())).unwrap());
    world.connect("denied.test:443").unwrap_err();
    world.stop();
    let event_text = format!("{:?}", world.events.lock().unwrap());
    assert!(event_text.contains(&format!("through the proxy proxy.corp.test:{}", proxy.port)), "{event_text}");
    assert!(
        !event_text.contains("pass word") && !event_text.contains(&BASE64.encode(CREDENTIALS.as_bytes())),
        "{event_text}"
    );
}

#[test]
fn exceptions_are_dialled_and_checked_here() {
    let proxy = http(None);
    let world = world(UpstreamKind::Http, proxy.port, None, "");
    let failure = world.connect(&format!("direct.test:{}", serve(echo))).unwrap_err();
    assert!(matches!(&failure, DialError::Refused { rule } if rule.contains("special address 127.0.0.1")), "{failure}");
    let failure = world.connect("localhost:80").unwrap_err();
    assert!(matches!(&failure, DialError::Refused { rule } if rule.contains("the proxy's own machine")), "{failure}");
    assert!(proxy.queries.lock().unwrap().is_empty());
}

#[track_caller]
fn fails(world: &World, target: &str, errno: Errno, part: &str) {
    let failure = world.connect(target).unwrap_err();
    assert!(failure.errno() == errno && failure.to_string().contains(part), "{failure:?}");
}

#[test]
fn refusals_and_malformed_answers_of_a_proxy_are_reported() {
    let http_world = world(UpstreamKind::Http, http(None).port, None, "");
    fails(&http_world, "denied.test:443", Errno::ACCESS, "answered 403 Not today");
    fails(&http_world, "odd.test:443", Errno::HOSTUNREACH, "not well formed");
    fails(&http_world, "endless.test:443", Errno::HOSTUNREACH, "the head is too long");
    fails(&http_world, "cut.test:443", Errno::HOSTUNREACH, "end of file");
    let wrong = world(UpstreamKind::Http, http(Some(CREDENTIALS)).port, Some("someone:else"), "");
    fails(&wrong, "far.test:443", Errno::ACCESS, "answered 407");
    let wrong = world(UpstreamKind::Socks5, socks(Some(CREDENTIALS)).port, Some("someone:else"), "");
    fails(&wrong, "far.test:443", Errno::ACCESS, "does not take these credentials");
    let none = world(UpstreamKind::Socks5, socks(Some(CREDENTIALS)).port, None, "");
    fails(&none, "far.test:443", Errno::ACCESS, "another authentication method");
    fails(
        &world(UpstreamKind::Socks5, socks(None).port, None, ""),
        "denied.test:1",
        Errno::ACCESS,
        "does not allow it",
    );
    let unreachable_world = world(UpstreamKind::Socks5, closed_port(), None, "");
    fails(&unreachable_world, "far.test:443", Errno::CONNREFUSED, "the proxy proxy.corp.test");
}

#[test]
fn traffic_is_opened_behind_a_proxy_too() {
    let origin = Origin::new(&["api.test"], |_| ok("fine"));
    let proxy = socks(None);
    let options = Options { names: vec![("proxy.test", "127.0.0.1")], ..Options::default() };
    let (world, interception) = World::looking(options, &origin.pem, |rules| {
        rules.inspect.hosts = vec!["api.test".parse().unwrap()];
        let target = format!("proxy.test:{}", proxy.port).parse().unwrap();
        rules.upstream =
            Some(UpstreamProxy { kind: UpstreamKind::Socks5, proxy: target, credentials: None, except: vec![] });
    });
    let stream = world.connect(&format!("api.test:{}", origin.port)).unwrap();
    let mut inside = client(stream, "api.test", interception.authority_pem().unwrap(), &[]).unwrap();
    assert!(ask(&mut inside, "GET / HTTP/1.1\r\nHost: api.test\r\n\r\n").ends_with("fine"));
    assert_eq!(*proxy.queries.lock().unwrap(), [format!("api.test:{}", origin.port)]);
}

/// What the proxy answered is no word of the server: a program that speaks late is
/// checked like any other.
#[test]
fn a_late_hello_behind_a_proxy_is_checked() {
    for kind in [UpstreamKind::Http, UpstreamKind::Socks5] {
        let origin = Origin::new(&["api.test", "other.test"], |_| ok("fine"));
        let proxy = if kind == UpstreamKind::Http { http(None) } else { socks(None) };
        let mut world = world(kind, proxy.port, None, "");
        for (name, passes) in [("api.test", true), ("other.test", false)] {
            let stream = world.connect(&format!("api.test:{}", origin.port)).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(100));
            assert_eq!(client(stream, name, &origin.pem, &[]).is_ok(), passes, "{kind:?} {name}");
        }
        world.stop();
        let why: Vec<_> = world.records().into_iter().filter_map(|record| record.why).collect();
        assert!(why.iter().any(|why| why.contains("asks for other.test")), "{why:?}");
    }
}
