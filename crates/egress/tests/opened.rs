//! Encrypted traffic that is looked into: rules about requests, whom programs
//! and the door trust, and what stays closed.

#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod support;

use std::io::{Read, Write};
use std::sync::Arc;

use stockade_egress::{
    EgressCaller, EgressProxy, EgressProxyError, EgressProxySetup, PROXY_ADDRESS_V4, PreparedInterception,
    ProxyService, TrustRoots,
};
use stockade_model::{ConnectionEnd, EgressLimits, EgressRules};
use support::tls::{Origin, ask, client, ok};
use support::{ConnectAndWait, Options, World, arrive, echo, is_reset, serve, wait_for};

struct Scene {
    world: World,
    interception: Arc<PreparedInterception>,
    origin: Origin,
    /// `api.test:PORT`.
    target: String,
}

/// A door that looks into `api.test`, with rules for it.
fn scene_with(change: impl FnOnce(&mut EgressRules, u16), limits: EgressLimits) -> Scene {
    let origin = Origin::new(&["api.test", "closed.test", "127.0.0.1"], |_| ok("fine"));
    let names = vec![("api.test", "127.0.0.1"), ("closed.test", "127.0.0.1"), ("other.test", "127.0.0.1")];
    let allow = vec!["api.test"];
    let (world, interception) =
        World::looking(Options { names, limits, allow, ..Options::default() }, &origin.pem, |rules| {
            rules.inspect.hosts =
                ["api.test", "other.test", "closed.test", "127.0.0.1"].map(|h| h.parse().unwrap()).into();
            rules.inspect.except = vec!["closed.test".parse().unwrap()];
            change(rules, origin.port);
        });
    let target = format!("api.test:{}", origin.port);
    Scene { world, interception, origin, target }
}

fn scene() -> Scene {
    let rules = |rules: &mut EgressRules, port: u16| {
        rules.inspect.allow = vec![format!("GET,POST https://api.test:{port}/v1/*").parse().unwrap()];
        rules.inspect.deny = vec![format!("* https://api.test:{port}/v1/admin*").parse().unwrap()];
    };
    scene_with(rules, EgressLimits::default())
}

impl Scene {
    fn client(&self) -> support::tls::Client {
        let stream = self.world.connect(&self.target).unwrap();
        client(stream, "api.test", self.interception.authority_pem().unwrap(), &["h2", "http/1.1"]).unwrap()
    }
}

#[test]
fn requests_that_rules_name_pass_and_others_do_not() {
    let scene = scene();
    let mut client = scene.client();
    assert_eq!(client.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    for n in 0..3 {
        let answer = ask(&mut client, &format!("GET /v1/{n}?q HTTP/1.1\r\nHost: api.test\r\n\r\n"));
        assert!(answer.ends_with("fine"), "{answer}");
    }
    for (request, part) in [
        ("GET /v2 HTTP/1.1\r\nHost: api.test\r\n", "no rule about requests to this host allows it"),
        ("DELETE /v1/x HTTP/1.1\r\nHost: api.test\r\n", "no rule about requests to this host allows it"),
        ("GET /v1/admin/x HTTP/1.1\r\nHost: api.test\r\n", "the rule `* https://api.test:"),
        ("GET /v1/../v2 HTTP/1.1\r\nHost: api.test\r\n", "more than one way"),
        ("GET /v1/%2e%2e/v2 HTTP/1.1\r\nHost: api.test\r\n", "more than one way"),
        ("GET /v1/x HTTP/1.1\r\nHost: other.test\r\n", "is for other.test"),
    ] {
        let answer = ask(&mut scene.client(), &format!("{request}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains(part), "{answer}");
        wait_for(|| scene.world.denials().iter().any(|denial| denial.rule.contains(part)));
    }
    assert_eq!(scene.origin.requests().len(), 3);
    let shown = format!("DELETE https://{}/v1/x", scene.target);
    assert!(scene.world.denials().iter().any(|denial| denial.object.to_str() == Some(shown.as_str())));
    drop(client);
    wait_for(|| scene.world.records().iter().any(|r| r.end == ConnectionEnd::Closed && r.bytes_down > 30));
    assert_eq!(scene.world.records()[0].tls_name.as_ref().unwrap().to_str(), Some("api.test"));
}

/// Paths, methods and fields that servers read in different ways; the model's table has
/// more of them.
#[test]
fn ambiguous_requests_are_refused() {
    let scene = scene();
    for (line, fields, part) in [
        ("GET /v1/%c0%ae%c0%ae/v2", "", "more than one way"),
        ("GET /v1/..%c0%afv2", "", "more than one way"),
        ("GET /v1/%ef%bc%8e%ef%bc%8e/v2", "", "more than one way"),
        ("GET /v1/\u{c0}\u{af}", "", "more than one way"),
        ("GET /v1/\u{ff0f}v2", "", "more than one way"),
        ("GET /v1/%2f..%2fv2", "", "more than one way"),
        ("GET /v1/%5c..%5cv2", "", "more than one way"),
        ("GET /v1/%252e%252e/v2", "", "more than one way"),
        ("GET /v1/%00", "", "more than one way"),
        ("GET /v1/%0d%0aX:%20y", "", "more than one way"),
        ("GET /v1/x;y=z", "", "more than one way"),
        ("GET /v1/..;/v2", "", "more than one way"),
        ("GET /v1//x", "", "more than one way"),
        ("GET /v1/admin%20", "", "more than one way"),
        ("GET /v1/ADMIN", "", "the rule `* https://api.test:"),
        ("GET /v1/%41dmin", "", "more than one way"),
        ("get /v1/x", "", "no rule about requests to this host allows it"),
        ("POST /v1/x", "X-HTTP-Method-Override: DELETE\r\n", "its field X-HTTP-Method-Override"),
        ("GET /v1/x", "x-original-url: /v1/admin\r\n", "its field X-Original-URL"),
        ("GET /v1/x", "X-Rewrite-URL: /v1/admin\r\n", "its field X-Rewrite-URL"),
        ("CONNECT api.test:443", "", "a request on a connection to api.test"),
        ("connect api.test:443", "", "a request on a connection to api.test"),
    ] {
        let answer = ask(&mut scene.client(), &format!("{line} HTTP/1.1\r\nHost: api.test\r\n{fields}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains(part), "{line} {fields}{answer}");
        wait_for(|| scene.world.denials().iter().any(|denial| denial.rule.contains(part)));
    }
    // Bytes that are no text, or no path, do not make a head.
    for line in [&b"GET /v1/\xc0\xaf"[..], b"GET /v1/\x01", b"GET /v1/\\x", b"GET /v1/a b"] {
        let mut client = scene.client();
        let mut answer = Vec::new();
        client.write_all(&[line, b" HTTP/1.1\r\nHost: api.test\r\n\r\n"].concat()).unwrap();
        client.flush().unwrap();
        let _ = client.read_to_end(&mut answer);
        assert!(answer.starts_with(b"HTTP/1.1 400"), "{} {}", line.escape_ascii(), answer.escape_ascii());
    }
    assert_eq!(scene.origin.requests(), Vec::<String>::new());
    assert!(ask(&mut scene.client(), "GET /v1/%C3%A9 HTTP/1.1\r\nHost: api.test\r\n\r\n").ends_with("fine"));
}

/// Changes the protocol whatever it is asked, and then echoes.
fn switch(mut stream: impl Read + Write) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let _ = stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n");
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

/// What comes back of a request and of one behind it that the rules refuse, through a
/// server that has changed the protocol.
fn behind_a_change(upgrade: bool, fields: &str) -> (String, Vec<String>) {
    let origin = Origin::serving(&["api.test"], switch);
    let target = format!("api.test:{}", origin.port);
    let options = Options { names: vec![("api.test", "127.0.0.1")], allow: vec!["api.test"], ..Options::default() };
    let (world, interception) = World::looking(options, &origin.pem, |rules| {
        rules.inspect.deny = vec![format!("* https://{target}/admin*").parse().unwrap()];
        if upgrade {
            rules.inspect.upgrade = vec![target.parse().unwrap()];
        }
    });
    let stream = world.connect(&target).unwrap();
    let mut inside = client(stream, "api.test", interception.authority_pem().unwrap(), &[]).unwrap();
    inside.sock.set_read_timeout(Some(std::time::Duration::from_millis(700))).unwrap();
    let request = format!("GET /live HTTP/1.1\r\nHost: api.test\r\n{fields}\r\nGET /admin HTTP/1.1\r\n\r\n");
    inside.write_all(request.as_bytes()).unwrap();
    inside.flush().unwrap();
    let mut answer = Vec::new();
    let _ = inside.read_to_end(&mut answer);
    let rules = world.denials().into_iter().map(|denial| denial.rule).collect();
    (String::from_utf8_lossy(&answer).into_owned(), rules)
}

#[test]
fn where_requests_are_read_the_protocol_does_not_change() {
    let websocket = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    for fields in [
        websocket,
        "Upgrade: websocket\r\n",
        "connection: keep-alive, UPGRADE\r\n",
        "Upgrade: foo, websocket\r\n",
        "Upgrade:\r\nConnection: Upgrade\r\n",
        "HTTP2-Settings: AA\r\n",
    ] {
        let (answer, rules) = behind_a_change(false, fields);
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("`inspect.upgrade`"), "{fields}{answer}");
        assert!(rules.len() == 1 && rules[0].contains("asks for another protocol"), "{rules:?}");
    }
    // Nothing asked for it, or only for what is never taken up.
    for fields in ["", "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AA\r\n"] {
        let (answer, rules) = behind_a_change(false, fields);
        assert_eq!(answer, "", "{fields}");
        assert!(rules.len() == 1 && rules[0].contains("although no request asked for it"), "{rules:?}");
    }
    // The control: with the profile's leave what follows is not read.
    let (answer, rules) = behind_a_change(true, websocket);
    assert!(answer.starts_with("HTTP/1.1 101") && answer.ends_with("GET /admin HTTP/1.1\r\n\r\n"), "{answer}");
    assert!(rules.is_empty(), "{rules:?}");
    let (answer, rules) = behind_a_change(true, "");
    assert!(answer.is_empty() && rules.len() == 1, "{answer} {rules:?}");
}

/// In plain HTTP to a host that is otherwise left closed the rules hold too.
#[test]
fn an_excepted_host_with_rules_does_not_change_the_protocol_either() {
    let port = serve(switch);
    for (rule, status) in [("* http://api.test:PORT/admin*", "403"), ("* http://api.test:1/admin*", "101")] {
        let options = Options { names: vec![("api.test", "127.0.0.1")], ..Options::default() };
        let (world, _) = World::looking(options, &Origin::new(&["api.test"], |_| ok("")).pem, |rules| {
            rules.inspect.deny = vec![rule.replace("PORT", &port.to_string()).parse().unwrap()];
            rules.inspect.except = vec!["api.test".parse().unwrap()];
        });
        let mut stream = world.connect(&format!("api.test:{port}")).unwrap();
        let answer = ask(&mut stream, "GET / HTTP/1.1\r\nHost: api.test\r\nUpgrade: websocket\r\n\r\n");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{rule} {answer}");
    }
}

#[test]
fn unencrypted_requests_do_not_bypass_the_rules() {
    let scene = scene();
    let mut stream = scene.world.connect(&scene.target).unwrap();
    let mut answer = String::new();
    stream.write_all(b"GET /v2 HTTP/1.1\r\nHost: api.test\r\n\r\n").unwrap();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("the other scheme (http or https)"), "{answer}");
    // Neither TLS nor HTTP, whoever speaks first.
    let port = serve(echo);
    let mut stream = scene.world.connect(&format!("other.test:{port}")).unwrap();
    stream.write_all(b"SSH-2.0-x\r\n").unwrap();
    assert!(is_reset(&mut stream));
    let port = serve(|mut stream| stream.write_all(b"220 ready\r\n").unwrap());
    assert!(is_reset(&mut scene.world.connect(&format!("other.test:{port}")).unwrap()));
    wait_for(|| scene.world.denials().iter().filter(|d| d.rule.contains("neither TLS nor HTTP/1")).count() == 2);
}

#[test]
fn excepted_paths_stay_closed() {
    let scene = scene();
    let target = format!("closed.test:{}", scene.origin.port);
    // The server's own certificate, which the authority's trust does not cover.
    let stream = scene.world.connect(&target).unwrap();
    client(stream, "closed.test", scene.interception.authority_pem().unwrap(), &[]).unwrap_err();
    let stream = scene.world.connect(&target).unwrap();
    let mut closed = client(stream, "closed.test", &scene.origin.pem, &["h2"]).unwrap();
    assert_eq!(closed.conn.alpn_protocol(), Some(&b"h2"[..]));
    assert!(ask(&mut closed, "DELETE /anything HTTP/1.1\r\nHost: closed.test\r\n\r\n").ends_with("fine"));
}

#[test]
fn the_bundle_contains_both_and_programs_that_trust_neither_are_named() {
    let scene = scene();
    let bundle = scene.interception.bundle_pem().unwrap();
    assert!(bundle.contains(scene.interception.authority_pem().unwrap()));
    for (target, name) in [(&scene.target, "api.test"), (&format!("closed.test:{}", scene.origin.port), "closed.test")]
    {
        client(scene.world.connect(target).unwrap(), name, bundle, &[]).unwrap();
    }
    let pinned = client(scene.world.connect(&scene.target).unwrap(), "api.test", &scene.origin.pem, &[]);
    pinned.unwrap_err();
    let why = |part: &str| scene.world.records().iter().any(|r| r.why.as_ref().is_some_and(|why| why.contains(part)));
    wait_for(|| why("did not accept TLS interception"));
    // HTTP/2 alone cannot be read.
    client(scene.world.connect(&scene.target).unwrap(), "api.test", bundle, &["h2"]).unwrap_err();
}

#[test]
fn a_server_that_the_proxy_does_not_trust_gets_no_request() {
    let scene = scene_with(|_, _| {}, EgressLimits::default());
    let stranger = Origin::new(&["api.test"], |_| ok("stolen"));
    let stream = scene.world.connect(&format!("api.test:{}", stranger.port)).unwrap();
    let mut inside = client(stream, "api.test", scene.interception.authority_pem().unwrap(), &[]).unwrap();
    let answer = ask(&mut inside, "GET / HTTP/1.1\r\nHost: api.test\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("no encrypted connection to api.test"), "{answer}");
    assert!(stranger.requests().is_empty());
    // A certificate for another name.
    let stream = scene.world.connect(&format!("other.test:{}", scene.origin.port)).unwrap();
    let mut inside = client(stream, "other.test", scene.interception.authority_pem().unwrap(), &[]).unwrap();
    let answer = ask(&mut inside, "GET / HTTP/1.1\r\nHost: other.test\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    assert!(scene.origin.requests().is_empty());
    wait_for(|| scene.world.records().iter().filter(|r| r.end == ConnectionEnd::Failed).count() == 2);
}

#[test]
fn addresses_tunnels_and_limits() {
    let limits = EgressLimits { requests_per_minute: Some(2), ..EgressLimits::default() };
    let scene = scene_with(|_, _| {}, limits);
    // By address, without a server name.
    let stream = scene.world.connect(&format!("127.0.0.1:{}", scene.origin.port)).unwrap();
    let mut inside = client(stream, "127.0.0.1", scene.interception.authority_pem().unwrap(), &[]).unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n", scene.origin.port);
    assert!(ask(&mut inside, &request).ends_with("fine"));
    // Through a tunnel of the proxy.
    let egress_proxy = scene.world.egress_proxy();
    let connect_answer = egress_proxy.connect_service_and_wait(
        ProxyService::HttpProxy,
        (PROXY_ADDRESS_V4, 3128).into(),
        EgressCaller::default(),
    );
    let mut stream = arrive(connect_answer.unwrap());
    let tunnel = ask(&mut stream, &format!("CONNECT {} HTTP/1.1\r\n\r\n", scene.target));
    assert!(tunnel.starts_with("HTTP/1.1 200"), "{tunnel}");
    let mut inside = client(stream, "api.test", scene.interception.authority_pem().unwrap(), &[]).unwrap();
    let request = "GET / HTTP/1.1\r\nHost: api.test\r\n\r\n";
    assert!(ask(&mut inside, request).ends_with("fine"));
    assert!(ask(&mut inside, request).starts_with("HTTP/1.1 429"));
    assert_eq!(scene.origin.requests().len(), 2);
}

#[test]
fn a_proxy_does_not_start_without_the_requirements_of_its_rules() {
    let mut failed = None;
    let mut setup_of = |setup: &mut EgressProxySetup| {
        let mut rules = EgressRules::default();
        rules.inspect.hosts = vec!["a.test".parse().unwrap()];
        let other = EgressProxySetup {
            connector: None,
            rules,
            names: Arc::default(),
            dns: None,
            interception: Arc::default(),
            namespace: Arc::clone(&setup.namespace),
            policy: Arc::clone(&setup.policy),
            sink: Arc::clone(&setup.sink),
            resolver: Arc::clone(&setup.resolver),
        };
        failed = EgressProxy::start(other).err();
    };
    World::with(Options::default(), &mut setup_of);
    assert!(matches!(failed, Some(EgressProxyError::Unprepared)));
    let nothing =
        PreparedInterception::prepare_rules(&EgressRules::default(), &TrustRoots::Pem(String::new())).unwrap();
    assert!(nothing.bundle_pem().is_none() && nothing.secret_placeholders().next().is_none());
}
