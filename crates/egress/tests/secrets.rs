//! Secrets that are put in on the way: the program has a placeholder, the right
//! host gets the real one, and nobody else gets either.

#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use data_encoding::{BASE64, HEXLOWER};
use stockade_egress::{
    EgressCaller, InterceptionError, PROXY_ADDRESS_V4, PreparedInterception, ProxyService, TrustRoots,
};
use stockade_model::{Denial, DeniedOperation, EgressRules, EgressSecret, SecretKind, SecretSource};
use support::tls::{Origin, answer_requests, ask, client, ok};
use support::{ConnectAndWait, Options, World, arrive, echo, is_reset, serve, wait_for};

const GITHUB: &str = "ghp_R3alR3alR3alR3alR3alR3alR3alR3alR3al";
const OPENAI: &str = "sk-proj-realrealrealrealrealrealrealrealreal";
const PASSWORD: &str = "correct horse battery staple";
const AWS: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const NAMES: [&str; 4] = ["github.test", "openai.test", "basic.test", "aws.test"];

struct Scene {
    world: World,
    interception: Arc<PreparedInterception>,
    origin: Origin,
    /// Answers in the clear what it was asked.
    plain: u16,
    plain_requests: Arc<Mutex<Vec<String>>>,
    _files: tempfile::TempDir,
}

fn secret(dir: &Path, name: &str, value: &str, hosts: &[&str], kind: SecretKind) -> EgressSecret {
    let path = dir.join(name);
    std::fs::write(&path, format!("{value}\n")).unwrap();
    EgressSecret {
        name: name.into(),
        from: SecretSource::File(path.as_path().into()),
        hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
        kind,
        inside: SecretSource::Env(name.to_uppercase()),
    }
}

fn scene() -> Scene {
    // Brings back whatever it was asked, head and body.
    let origin = Origin::new(&["github.test", "openai.test", "basic.test", "aws.test", "other.test"], ok);
    let plain_requests = Arc::new(Mutex::new(Vec::new()));
    let request_log = Arc::clone(&plain_requests);
    let plain = serve(move |stream| answer_requests(stream, &request_log, &ok));
    let files = tempfile::tempdir().unwrap();
    let names = NAMES.into_iter().chain(["other.test", "tunnel.test"]).map(|name| (name, "127.0.0.1")).collect();
    let allow = vec!["*.test"];
    let (world, interception) = World::looking(Options { names, allow, ..Options::default() }, &origin.pem, |rules| {
        let dir = files.path();
        let plain = format!("basic.test:{plain}");
        rules.inspect.hosts = vec!["other.test".parse().unwrap()];
        rules.secrets = vec![
            secret(dir, "github", GITHUB, &["github.test"], SecretKind::Bearer),
            secret(dir, "openai", OPENAI, &["openai.test"], SecretKind::Header("x-api-key".into())),
            secret(dir, "basic", PASSWORD, &["basic.test", &plain], SecretKind::Basic),
            secret(dir, "aws", AWS, &["aws.test"], SecretKind::Aws),
        ];
    });
    Scene { world, interception, origin, plain, plain_requests, _files: files }
}

impl Scene {
    fn placeholder(&self, name: &str) -> String {
        let inside = SecretSource::Env(name.to_uppercase());
        self.interception.secret_placeholders().find(|(mount, _)| **mount == inside).unwrap().1.to_owned()
    }

    /// Asks over TLS, with words in braces replaced by placeholders.
    fn tls(&self, host: &str, request: &str) -> String {
        let stream = self.world.connect(&format!("{host}:{}", self.origin.port)).unwrap();
        let mut stream = client(stream, host, self.interception.authority_pem().unwrap(), &[]).unwrap();
        ask(&mut stream, &self.filled(host, request))
    }

    fn clear(&self, host: &str, request: &str) -> String {
        let mut stream = self.world.connect(&format!("{host}:{}", self.plain)).unwrap();
        ask(&mut stream, &self.filled(host, request))
    }

    fn filled(&self, host: &str, request: &str) -> String {
        let mut text = request.replace("HOST", host);
        for name in ["github", "openai", "basic", "aws"] {
            let placeholder = self.placeholder(name);
            let encoded = BASE64.encode(format!("user:{placeholder}").as_bytes());
            text = text.replace(&format!("{{{name}:basic}}"), &encoded).replace(&format!("{{{name}}}"), &placeholder);
        }
        text
    }

    /// That nothing the door says holds a value, and the run has none.
    fn is_silent(&self) {
        let debug_text = format!("{:?} {:?}", self.world.events.lock().unwrap(), self.interception);
        for value in [GITHUB, OPENAI, PASSWORD, AWS] {
            assert!(!debug_text.contains(value), "{debug_text}");
            assert!(
                self.interception.secret_placeholders().all(|(_, text)| !text.contains(value) && !value.contains(text))
            );
        }
    }
}

#[test]
fn each_kind_is_put_in_where_it_belongs_and_does_not_come_back() {
    let scene = scene();
    for (host, line, sent) in [
        ("github.test", "Authorization: Bearer {github}", format!("Authorization: Bearer {GITHUB}\r\n")),
        ("github.test", "authorization: token {github}", format!("authorization: token {GITHUB}\r\n")),
        ("openai.test", "X-API-Key: {openai}", format!("X-API-Key: {OPENAI}\r\n")),
        ("openai.test", "x-api-key: Key={openai};v=1", format!("x-api-key: Key={OPENAI};v=1\r\n")),
        (
            "basic.test",
            "Authorization: Basic {basic:basic}",
            format!("Authorization: Basic {}\r\n", BASE64.encode(format!("user:{PASSWORD}").as_bytes())),
        ),
    ] {
        let answer =
            scene.tls(host, &format!("GET / HTTP/1.1\r\nHost: HOST\r\nAccept-Encoding: gzip\r\n{line}\r\n\r\n"));
        let requests = scene.origin.requests().pop().unwrap();
        assert!(requests.contains(&sent), "{requests}");
        assert!(requests.contains("Accept-Encoding: identity\r\n") && !requests.contains("gzip"), "{requests}");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(!answer.contains(&sent) && answer.contains("*****"), "{answer}");
    }
    assert!(scene.world.denials().is_empty());
    scene.is_silent();
}

#[test]
fn placeholders_look_like_their_secrets() {
    let scene = scene();
    let github = scene.placeholder("github");
    assert!(github.starts_with("ghp_") && github.len() == GITHUB.len(), "{github}");
    assert!(scene.placeholder("openai").starts_with("sk-proj-"));
    assert_ne!(self::scene().placeholder("github"), github);
}

/// Refused by the door, for good.
#[track_caller]
fn refused(scene: &Scene, answer: &str, part: &str) {
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains(part) && !answer.contains("hint"), "{answer}");
    let is_reported = |denial: &Denial| denial.rule.contains(part) && denial.grant.is_none();
    wait_for(|| scene.world.denials().iter().any(is_reported));
    assert!(scene.world.denials().iter().all(|denial| denial.operation == DeniedOperation::Secret));
    scene.is_silent();
}

/// Refused by whoever was asked, who tells of it; the grant would do.
#[track_caller]
fn lacking(scene: &Scene, answer: &str, part: &str, grant: &str) {
    let hint = format!("hint: it needs the grant `{grant}`");
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains(part) && answer.contains(&hint), "{answer}");
    let query = scene.world.policy.queries.lock().unwrap().pop();
    assert_eq!(query.as_deref(), Some(grant));
    assert!(scene.world.denials().is_empty(), "{:?}", scene.world.denials());
    scene.is_silent();
}

#[test]
fn placeholders_and_secrets_go_nowhere_else() {
    let scene = scene();
    let head = "GET / HTTP/1.1\r\nHost: HOST\r\n";
    let elsewhere = "the placeholder of `github` is on its way to other.test";
    let bearer = format!("{head}Authorization: Bearer {{github}}\r\n\r\n");
    for host in ["other.test", "openai.test"] {
        let grant = format!("secret github to {host}:{}", scene.origin.port);
        lacking(&scene, &scene.tls(host, &bearer), &format!("is on its way to {host}"), &grant);
    }
    let misplaced = "is at a position where that secret is not allowed";
    for (host, request, part) in [
        ("other.test", format!("{head}Authorization: Basic {{github:basic}}\r\n\r\n"), elsewhere),
        ("other.test", "GET /{github} HTTP/1.1\r\nHost: HOST\r\n\r\n".into(), elsewhere),
        ("other.test", "GET /?k={github} HTTP/1.1\r\nHost: HOST\r\n\r\n".into(), elsewhere),
        ("other.test", format!("{head}Authorization: Bearer x{{github}}\r\n\r\n"), "where no grant replaces it"),
        ("other.test", bearer.replace("\r\n\r\n", "\r\nX: {github}\r\n\r\n"), "where no grant replaces it"),
        ("github.test", format!("{head}X-Other: {{github}}\r\n\r\n"), misplaced),
        ("github.test", "GET /{github} HTTP/1.1\r\nHost: HOST\r\n\r\n".into(), misplaced),
        ("github.test", format!("{head}Authorization: Bearer x{{github}}\r\n\r\n"), misplaced),
        ("github.test", format!("{head}Authorization: Bearer {GITHUB}\r\n\r\n"), "the secret `github` itself"),
        ("other.test", format!("{head}X: {OPENAI}\r\n\r\n"), "the secret `openai` itself"),
    ] {
        refused(&scene, &scene.tls(host, &request), part);
    }
    assert!(scene.origin.requests().is_empty(), "{:?}", scene.origin.requests());
    // The same in the clear, on a connection of its own and through the proxy.
    refused(&scene, &scene.clear("other.test", &format!("{head}X: {{github}}\r\n\r\n")), elsewhere);
    let egress_proxy = scene.world.egress_proxy();
    let connect_answer = egress_proxy.connect_service_and_wait(
        ProxyService::HttpProxy,
        (PROXY_ADDRESS_V4, 3128).into(),
        EgressCaller::default(),
    );
    let request = format!("GET http://HOST:{0}/ HTTP/1.1\r\nHost: HOST:{0}\r\nX: {{github}}\r\n\r\n", scene.plain);
    refused(&scene, &ask(&mut arrive(connect_answer.unwrap()), &scene.filled("other.test", &request)), elsewhere);
    assert!(scene.plain_requests.lock().unwrap().is_empty());
}

#[test]
fn in_the_clear_only_where_the_port_is_named() {
    let scene = scene();
    let basic = "GET / HTTP/1.1\r\nHost: HOST\r\nAuthorization: Basic {basic:basic}\r\n\r\n";
    let answer = scene.clear("basic.test", basic);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let sent = BASE64.encode(format!("user:{PASSWORD}").as_bytes());
    assert!(scene.plain_requests.lock().unwrap()[0].contains(&sent));
    let bearer = "GET / HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer {github}\r\n\r\n";
    let grant = format!("secret github to github.test:{}", scene.plain);
    lacking(&scene, &scene.clear("github.test", bearer), "unencrypted, and no entry names that port", &grant);
    assert_eq!(scene.plain_requests.lock().unwrap().len(), 1);
}

#[test]
fn a_request_waits_for_the_answer_and_continues_in_place() {
    let scene = scene();
    let policy = &scene.world.policy;
    *policy.lends.lock().unwrap() =
        ["github", "aws"].map(|name| format!("{name} to other.test:{}", scene.origin.port)).into();
    *policy.thinks.lock().unwrap() = Duration::from_millis(300);
    let bearer = "POST / HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer {github}\r\nContent-Length: 3\r\n\r\nabc";
    let answer = scene.tls("other.test", bearer);
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains(GITHUB) && answer.contains("*****"), "{answer}");
    let requests = scene.origin.requests().pop().unwrap();
    assert!(
        requests.contains(&format!("Authorization: Bearer {GITHUB}\r\n")) && requests.ends_with("\r\n\r\nabc"),
        "{requests}"
    );
    // Again it is not asked about; elsewhere, and in the clear, it is.
    assert!(scene.tls("other.test", bearer).starts_with("HTTP/1.1 200"));
    let query_count = || policy.queries.lock().unwrap().len();
    assert_eq!((query_count(), scene.origin.requests().len()), (1, 2));
    assert!(scene.tls("openai.test", bearer).starts_with("HTTP/1.1 403"));
    assert!(scene.clear("other.test", bearer).starts_with("HTTP/1.1 403"));
    assert_eq!((query_count(), scene.origin.requests().len()), (3, 2));
    // Two secrets in one request are two questions; what is signed is signed anew.
    let placeholder = scene.placeholder("aws");
    let answer = scene.tls("other.test", &aws_request(&placeholder, "other.test", ""));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let expected = aws_signature(AWS, "other.test", "POST", "/t/x%2520y", "");
    assert!(scene.origin.requests().pop().unwrap().contains(&format!("Signature={expected}\r\n")));
    assert!(scene.world.denials().is_empty());
    scene.is_silent();
}

#[test]
fn all_calls_waiting_for_one_answer_continue() {
    let scene = scene();
    *scene.world.policy.lends.lock().unwrap() = vec![format!("github to other.test:{}", scene.origin.port)];
    *scene.world.policy.thinks.lock().unwrap() = Duration::from_millis(300);
    let bearer = "GET / HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer {github}\r\n\r\n";
    std::thread::scope(|threads| {
        let ask = || assert!(scene.tls("other.test", bearer).starts_with("HTTP/1.1 200"));
        for _ in 0..4 {
            threads.spawn(ask);
        }
    });
    assert_eq!(scene.origin.requests().len(), 4);
}

#[test]
fn a_server_that_did_not_wait_for_the_answer_is_reported_as_such() {
    let scene = scene();
    let impatient = serve(|stream| {
        std::thread::sleep(Duration::from_millis(50));
        drop(stream);
    });
    *scene.world.policy.lends.lock().unwrap() = vec![format!("github to other.test:{impatient}")];
    *scene.world.policy.thinks.lock().unwrap() = Duration::from_millis(500);
    let request = scene.filled("HOST", "GET / HTTP/1.1\r\nHost: other.test\r\nAuthorization: Bearer {github}\r\n\r\n");
    let mut stream = scene.world.connect(&format!("other.test:{impatient}")).unwrap();
    let answer = ask(&mut stream, &request);
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("closed the connection before"), "{answer}");
}

/// What comes back of these pieces until the door breaks the connection off.
fn until_broken(scene: &Scene, mut stream: TcpStream, pieces: &[&[u8]]) -> Vec<u8> {
    let before = scene.world.denials().len();
    for piece in pieces {
        stream.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    wait_for(|| scene.world.denials().len() > before);
    rest
}

#[test]
fn bodies_and_other_protocols_do_not_carry_them_out() {
    let scene = scene();
    let placeholder = scene.placeholder("github");
    let (front, back) = placeholder.as_bytes().split_at(11);
    let head = format!("POST / HTTP/1.1\r\nHost: other.test\r\nContent-Length: {}\r\n\r\nkey=", placeholder.len() + 4);
    let plain = format!("other.test:{}", scene.plain);
    let stream = scene.world.connect(&plain).unwrap();
    assert_eq!(until_broken(&scene, stream, &[head.as_bytes(), front, back]), b"");
    assert!(scene.plain_requests.lock().unwrap().is_empty());
    // To its own host a body may bear the placeholder: it is none there.
    let body =
        format!("POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: {}\r\n\r\nkey={{github}}", placeholder.len() + 4);
    assert!(scene.tls("github.test", &body).starts_with("HTTP/1.1 200"));
    let stream = scene.world.connect(&format!("tunnel.test:{}", serve(echo))).unwrap();
    let back = until_broken(&scene, stream, &[b"\x01\x02", front, back]);
    assert!(back.ends_with(front), "the first part was none yet");
    let mut stream = scene.world.connect(&format!("tunnel.test:{}", serve(echo))).unwrap();
    stream.write_all(&[b"\x01", OPENAI.as_bytes()].concat()).unwrap();
    assert!(is_reset(&mut stream));
    scene.is_silent();
}

/// Signs as the documentation says, for a request without a query.
fn aws_signature(key: &str, host: &str, method: &str, path: &str, body: &str) -> String {
    use aws_lc_rs::{digest, hmac};
    let hash = |bytes: &[u8]| HEXLOWER.encode(digest::digest(&digest::SHA256, bytes).as_ref());
    let sign =
        |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec();
    let canonical = format!(
        "{method}\n{path}\n\nhost:{host}\nx-amz-date:20260101T000000Z\n\nhost;x-amz-date\n{}",
        hash(body.as_bytes())
    );
    let scope = "20260101/eu-west-1/dynamodb/aws4_request";
    let text = format!("AWS4-HMAC-SHA256\n20260101T000000Z\n{scope}\n{}", hash(canonical.as_bytes()));
    let key = scope.split('/').fold(format!("AWS4{key}").into_bytes(), |key, part| sign(&key, part));
    HEXLOWER.encode(&sign(&key, &text))
}

fn aws_request(key: &str, host: &str, body: &str) -> String {
    let signature = aws_signature(key, host, "POST", "/t/x%2520y", body);
    format!(
        "POST /t/x%20y HTTP/1.1\r\nHost: {host}\r\nX-Amz-Date: 20260101T000000Z\r\nAuthorization: AWS4-HMAC-SHA256 Credential=AKID/20260101/eu-west-1/dynamodb/aws4_request, SignedHeaders=host;x-amz-date, Signature={signature}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn requests_are_signed_anew_with_the_key_that_is_not_inside() {
    let scene = scene();
    let placeholder = scene.placeholder("aws");
    let body = "{\"TableName\": \"t\"}";
    let answer = scene.tls("aws.test", &aws_request(&placeholder, "aws.test", body));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let requests = scene.origin.requests().pop().unwrap();
    let expected = aws_signature(AWS, "aws.test", "POST", "/t/x%2520y", body);
    assert!(requests.contains(&format!("Signature={expected}\r\n")) && requests.ends_with(body), "{requests}");
    // Signed with another key: it is somebody else's, and stays as it is.
    let request = aws_request("a key of the run's own", "aws.test", body);
    scene.tls("aws.test", &request);
    assert_eq!(scene.origin.requests().pop().unwrap(), request);
    let count = scene.origin.requests().len();
    let elsewhere = scene.tls("other.test", &aws_request(&placeholder, "other.test", ""));
    let grant = format!("secret aws to other.test:{}", scene.origin.port);
    lacking(&scene, &elsewhere, "signed with the placeholder of `aws` is for other.test", &grant);
    assert_eq!(scene.origin.requests().len(), count);
    let long = "POST / HTTP/1.1\r\nHost: HOST\r\nX-Amz-Date: 20260101T000000Z\r\nAuthorization: AWS4-HMAC-SHA256 Credential=A/1/e/s/aws4_request, SignedHeaders=host, Signature=0\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = scene.tls("aws.test", long);
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    scene.is_silent();
}

#[test]
fn an_impossible_secret_stops_the_run() {
    let files = tempfile::tempdir().unwrap();
    let prepare = |secrets: Vec<EgressSecret>| {
        let rules = EgressRules { secrets, ..EgressRules::default() };
        match PreparedInterception::prepare_rules(&rules, &TrustRoots::System) {
            Err(InterceptionError::Secret { name, why }) => format!("{name}: {why}"),
            other => panic!("{other:?}"),
        }
    };
    let make = |name: &str, value: &str| secret(files.path(), name, value, &["a.test"], SecretKind::Bearer);
    assert_eq!(prepare(vec![make("short", "1234567")]), "short: it has fewer than 8 bytes");
    assert_eq!(prepare(vec![make("odd", "12345678\r\nX: y")]), "odd: it holds control bytes");
    assert!(prepare(vec![make("long", &"x".repeat(9000))]).starts_with("long: it has more than"));
    let twice = vec![make("one", "12345678"), make("one", "12345678")];
    assert!(prepare(twice).contains("already used by another secret"));
    let missing = EgressSecret { from: SecretSource::File("/nowhere/at/all".into()), ..make("gone", "12345678") };
    assert!(prepare(vec![missing]).contains("/nowhere/at/all: No such file"));
    let pipe = files.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    let waits = EgressSecret { from: SecretSource::File(pipe.as_path().into()), ..make("waits", "12345678") };
    assert!(prepare(vec![waits]).ends_with("it is not a regular file"));
    let unset = EgressSecret { from: SecretSource::Env("STOCKADE_TEST_NOT_SET".into()), ..make("unset", "12345678") };
    assert_eq!(prepare(vec![unset]), "unset: the variable STOCKADE_TEST_NOT_SET is not set");
}
