//! Secrets that come back: every form of an answer, every border between its pieces,
//! and every other connection of the run.

#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use stockade_egress::{EgressCaller, PROXY_ADDRESS_V4, PreparedInterception, ProxyService};
use stockade_model::{EgressSecret, SecretKind, SecretSource};
use support::tls::{Origin, client};
use support::{ConnectAndWait, Options, World, arrive, serve};

const TOKEN: &str = "sk-proj-RealRealRealRealRealRealRealReal";
const STARS: &str = "****************************************";
/// Two halves of the token.
const FIRST: &str = "sk-proj-RealReal";
const SECOND: &str = "RealRealRealRealRealReal";
const PASSWORD: &str = "correct horse battery";

/// What a server sends, in pieces with pauses between.
type Pieces = Arc<Mutex<Vec<Vec<u8>>>>;

struct Scene {
    world: World,
    interception: Arc<PreparedInterception>,
    /// Speaks TLS for `own.test` and `other.test`.
    origin: Origin,
    /// The same in the clear.
    plain: u16,
    /// Says its pieces at once.
    speaker: u16,
    pieces: Pieces,
    requests: Arc<Mutex<Vec<String>>>,
    _files: tempfile::TempDir,
}

fn send(stream: &mut impl Write, pieces: &Pieces) {
    for piece in pieces.lock().unwrap().clone() {
        if stream.write_all(&piece).and_then(|()| stream.flush()).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(15));
    }
}

/// Answers one request with the pieces and closes.
fn answer(stream: &mut (impl Read + Write), pieces: &Pieces, requests: &Mutex<Vec<String>>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    requests.lock().unwrap().push(String::from_utf8(head).unwrap());
    send(stream, pieces);
}

fn scene() -> Scene {
    let (pieces, requests) = (Pieces::default(), Arc::new(Mutex::new(Vec::new())));
    let sent = || (Arc::clone(&pieces), Arc::clone(&requests));
    let (own, request_log) = sent();
    let origin = Origin::serving(&["own.test", "other.test"], move |mut stream| {
        answer(&mut stream, &own, &request_log);
        stream.conn.send_close_notify();
        let _ = stream.flush();
    });
    let (own, request_log) = sent();
    let plain = serve(move |mut stream| answer(&mut stream, &own, &request_log));
    let own = Arc::clone(&pieces);
    let speaker = serve(move |mut stream| send(&mut stream, &own));
    let files = tempfile::tempdir().unwrap();
    let secret = |name: &str, value: &str, hosts: &[String], kind: SecretKind| {
        let path = files.path().join(name);
        std::fs::write(&path, value).unwrap();
        let hosts = hosts.iter().map(|host| host.parse().unwrap()).collect();
        let from = SecretSource::File(path.as_path().into());
        EgressSecret { name: name.into(), from, hosts, kind, inside: SecretSource::Env(name.into()) }
    };
    let names = ["own.test", "other.test", "relay.test"].map(|name| (name, "127.0.0.1")).into();
    let options = Options { names, allow: vec!["*.test"], ..Options::default() };
    let (world, interception) = World::looking(options, &origin.pem, |rules| {
        rules.inspect.hosts = vec![format!("other.test:{}", origin.port).parse().unwrap()];
        let hosts = [format!("own.test:{}", origin.port), format!("own.test:{plain}")];
        rules.secrets = vec![
            secret("token", TOKEN, &hosts, SecretKind::Bearer),
            secret("basic", PASSWORD, &hosts, SecretKind::Basic),
        ];
    });
    Scene { world, interception, origin, plain, speaker, pieces, requests, _files: files }
}

fn whole(mut stream: impl Read) -> String {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

impl Scene {
    fn placeholder(&self, name: &str) -> String {
        let inside = SecretSource::Env(name.into());
        self.interception.secret_placeholders().find(|(mount, _)| **mount == inside).unwrap().1.to_owned()
    }

    fn bearer(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.placeholder("token"))
    }

    fn answers(&self, pieces: &[&[u8]]) {
        *self.pieces.lock().unwrap() = pieces.iter().map(|piece| piece.to_vec()).collect();
    }

    /// One request over TLS, and all that comes back.
    fn tls(&self, host: &str, fields: &str) -> String {
        let stream = self.world.connect(&format!("{host}:{}", self.origin.port)).unwrap();
        let mut stream = client(stream, host, self.interception.authority_pem().unwrap(), &[]).unwrap();
        stream.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n").as_bytes()).unwrap();
        stream.flush().unwrap();
        whole(stream)
    }

    fn clear(&self, host: &str, fields: &str) -> String {
        let mut stream = self.world.connect(&format!("{host}:{}", self.plain)).unwrap();
        stream.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n").as_bytes()).unwrap();
        whole(stream)
    }

    fn proxied(&self, host: &str, fields: &str) -> String {
        let connect_answer = self.world.egress_proxy().connect_service_and_wait(
            ProxyService::HttpProxy,
            (PROXY_ADDRESS_V4, 3128).into(),
            EgressCaller::default(),
        );
        let mut stream = arrive(connect_answer.unwrap());
        let host = format!("{host}:{}", self.plain);
        let fields = format!("Host: {host}\r\nConnection: close\r\n{fields}");
        stream.write_all(format!("GET http://{host}/ HTTP/1.1\r\n{fields}\r\n").as_bytes()).unwrap();
        whole(stream)
    }

    /// A protocol that nobody reads.
    fn relayed(&self) -> String {
        whole(self.world.connect(&format!("relay.test:{}", self.speaker)).unwrap())
    }

    /// Puts the token into one request.
    fn give(&self) {
        self.answers(&[b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]);
        assert!(self.tls("own.test", &self.bearer()).starts_with("HTTP/1.1 200"));
        assert!(self.requests.lock().unwrap().pop().unwrap().contains(TOKEN));
    }
}

/// The body of an answer in chunks, and what follows it.
fn unchunked(answer: &str) -> String {
    let (head, mut rest) = answer.split_once("\r\n\r\n").unwrap();
    let mut body = format!("{head}\n\n");
    loop {
        let (size, after) = rest.split_once("\r\n").unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return body + "|" + after;
        }
        body.push_str(&after[..size]);
        rest = after[size..].strip_prefix("\r\n").unwrap();
    }
}

fn chunk(text: &str, extension: &str) -> Vec<u8> {
    format!("{:x}{extension}\r\n{text}\r\n", text.len()).into_bytes()
}

/// Answers that hold the token, in pieces.
fn forms() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let chunked = |head: &str| format!("HTTP/1.1 200 OK\r\n{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    let single: Vec<Vec<u8>> = TOKEN.chars().map(|letter| chunk(&letter.to_string(), "")).collect();
    let bytes: Vec<Vec<u8>> = TOKEN.bytes().map(|byte| vec![byte]).collect();
    let length = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", TOKEN.len() + 2).into_bytes();
    let large = "x".repeat((1 << 20) - 20);
    let large_length = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", large.len() + TOKEN.len());
    let close = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
    let last = || b"0\r\n\r\n".to_vec();
    let head = |line: &str| vec![format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n").into_bytes()];
    vec![
        ("reason", head(&format!("200 {TOKEN}"))),
        ("value", head(&format!("200 OK\r\nX: a {TOKEN}b"))),
        ("name", head(&format!("200 OK\r\nX-{TOKEN}: b"))),
        ("early", [vec![format!("HTTP/1.1 103 Early\r\nLink: {TOKEN}\r\n\r\n").into_bytes()], head("200 OK")].concat()),
        ("no length", vec![format!("HTTP/1.1 204 No\r\nContent-Length: {TOKEN}\r\n\r\n").into_bytes()]),
        ("length", vec![length.clone(), format!("[{FIRST}").into(), format!("{SECOND}]").into()]),
        ("bytes", [vec![length, b"[".to_vec()], bytes.clone(), vec![b"]".to_vec()]].concat()),
        ("large", vec![large_length.into(), large.clone().into(), FIRST.into(), SECOND.into()]),
        ("chunks", vec![chunked(""), chunk(FIRST, ""), chunk(SECOND, ""), last()]),
        ("single", [vec![chunked("")], single, vec![last()]].concat()),
        ("in one", vec![[chunked(""), chunk(FIRST, ""), chunk(SECOND, ""), last()].concat()]),
        ("extension", vec![chunked(""), chunk("a", &format!(";x={TOKEN}")), format!("0;y=\"{TOKEN}\"\r\n\r\n").into()]),
        ("trailer", vec![chunked(""), chunk("a", ""), format!("0\r\nX-Sum: {TOKEN}\r\n\r\n").into()]),
        ("trailer name", vec![chunked(""), format!("0\r\nX-{TOKEN}: y\r\n\r\n").into()]),
        ("close", vec![close.clone(), FIRST.into(), SECOND.into()]),
        ("close bytes", [vec![close.clone()], bytes].concat()),
        ("large close", vec![close, large.into(), TOKEN.into(), TOKEN.into(), b"yy".to_vec()]),
    ]
}

/// How an answer reads when nothing was cut or framed.
fn read(answer: &str) -> String {
    if answer.contains("Transfer-Encoding: chunked") { unchunked(answer) } else { answer.to_owned() }
}

/// An answer of this form, sent by each host in each way, before and after the token was
/// put into a request.
fn play(name: &str, pieces: &[Vec<u8>]) {
    let scene = scene();
    let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
    scene.answers(&pieces);
    // Nothing was given to anybody yet: what comes is what was sent.
    let control = read(&scene.tls("own.test", ""));
    assert!(name == "extension" || control.contains(TOKEN), "{name}: {control:.300}");
    let masked = control.replace(TOKEN, STARS);
    for (transport, answer) in [
        ("given", scene.tls("own.test", &scene.bearer())),
        ("later", scene.tls("own.test", "")),
        ("clear", scene.clear("own.test", "")),
        ("proxied", scene.proxied("own.test", "")),
        ("other", scene.tls("other.test", "")),
        ("other, clear", scene.clear("other.test", "")),
        ("other, proxied", scene.proxied("other.test", "")),
    ] {
        assert!(!answer.contains(TOKEN), "{name}, {transport}: {answer:.300}");
        assert_eq!(read(&answer), masked, "{name}, {transport}");
    }
}

#[test]
fn an_answer_in_any_form_does_not_bring_a_secret_back() {
    std::thread::scope(|threads| {
        for (name, pieces) in forms() {
            threads.spawn(move || play(name, &pieces));
        }
    });
}

#[test]
fn other_protocols_do_not_bring_it_back_either() {
    let scene = scene();
    let text = format!("220 {TOKEN} ready\r\n{TOKEN}{TOKEN}\0{FIRST}");
    scene.answers(&[text.as_bytes()]);
    assert_eq!(scene.relayed(), text, "nothing was given yet");
    // A connection from before, too.
    let slow = Arc::new(Mutex::new(false));
    let waits = Arc::clone(&slow);
    let payload = text.clone();
    let port = serve(move |mut stream: TcpStream| {
        stream.write_all(b"220 hello\r\n").unwrap();
        while !*waits.lock().unwrap() {
            std::thread::sleep(Duration::from_millis(5));
        }
        stream.write_all(payload.as_bytes()).unwrap();
    });
    let mut early = scene.world.connect(&format!("relay.test:{port}")).unwrap();
    early.read_exact(&mut [0; 11]).unwrap();
    scene.give();
    *slow.lock().unwrap() = true;
    let masked = text.replace(TOKEN, STARS);
    assert_eq!(whole(early), masked);
    scene.answers(&[text.as_bytes()]);
    assert_eq!(scene.relayed(), masked);
    // In two pieces far apart: what is not sent yet is covered.
    scene.answers(&[FIRST.as_bytes(), SECOND.as_bytes()]);
    let far_apart = scene.relayed();
    assert!(far_apart.ends_with(&STARS[FIRST.len()..]), "{far_apart}");
}

#[test]
fn a_credential_is_masked_in_each_form_that_was_sent() {
    let scene = scene();
    let real = BASE64.encode(format!("me:{PASSWORD}").as_bytes());
    let payload = BASE64.encode(format!("me:{}", scene.placeholder("basic")).as_bytes());
    let (front, back) = real.split_at(9);
    let (first, second) = PASSWORD.split_at(4);
    let length = real.len() + PASSWORD.len();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{front}");
    scene.answers(&[head.as_bytes(), format!("{back}{first}").as_bytes(), second.as_bytes()]);
    let answer = scene.tls("own.test", &format!("Authorization: Basic {payload}\r\n"));
    assert!(answer.ends_with(&format!("\r\n\r\n{}", "*".repeat(length))), "{answer}");
    assert!(scene.requests.lock().unwrap()[0].contains(&real));
    assert!(scene.clear("other.test", "").ends_with(&format!("\r\n\r\n{}", "*".repeat(length))));
    // As many forms as are looked for; one more is refused.
    scene.answers(&[b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]);
    let mut statuses = (0..80).map(|n| {
        let payload = BASE64.encode(format!("user{n}:{}", scene.placeholder("basic")).as_bytes());
        scene.clear("own.test", &format!("Authorization: Basic {payload}\r\n"))
    });
    let refused = statuses.find(|answer| !answer.starts_with("HTTP/1.1 200")).unwrap();
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("different user names"), "{refused}");
}

#[test]
fn files_that_are_recreated_are_not_packed() {
    let scene = scene();
    scene.give();
    scene.answers(&[b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]);
    scene.tls("own.test", "Accept-Encoding: gzip\r\n");
    let request = scene.requests.lock().unwrap().pop().unwrap();
    assert!(request.contains("Accept-Encoding: identity\r\n") && !request.contains("gzip"), "{request}");
}

/// How long it takes until so many bytes are there.
fn time_until(stream: &mut TcpStream, count: usize) -> Duration {
    let start = Instant::now();
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    start.elapsed()
}

/// A server that has no right to a secret sends a guess of its beginning and waits. What
/// the program sees must not tell whether the guess was right.
#[test]
fn another_host_cannot_guess_a_secret_letter_by_letter() {
    let scene = scene();
    scene.give();
    let guess = Arc::new(Mutex::new(String::new()));
    let sent = Arc::clone(&guess);
    let port = serve(move |mut stream: TcpStream| {
        let _ = stream.read(&mut [0; 4096]);
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
        let _ = stream.write_all(format!("{head}{}", sent.lock().unwrap()).as_bytes());
        let _ = stream.read(&mut [0; 1]);
    });
    let mut times = Vec::new();
    for text in [FIRST, "sk-proj-RealReaX", "xxxxxxxxxxxxxxxx"] {
        text.clone_into(&mut guess.lock().unwrap());
        let mut stream = scene.world.connect(&format!("other.test:{port}")).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n").unwrap();
        time_until(&mut stream, 41);
        times.push(time_until(&mut stream, text.len()));
    }
    assert!(times.iter().all(|time| (500..8000).contains(&time.as_millis())), "{times:?}");
}
