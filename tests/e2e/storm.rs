//! More connections at once than a door may have: each attempt is answered, the
//! front bears it, and a neighbour does not notice.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use stockade_testkit::{Ended, Running};

use crate::world::{World, each_user};

const ATTEMPTS: u64 = 10_000;
/// Of these so many open at least: a run that opens few tests nothing.
const OPEN_MIN: u64 = 1_000;
/// Most memory that the front may ever have had resident.
const FRONT_MAX_KIB: u64 = 256 * 1024;
const PATIENCE: Duration = Duration::from_secs(100);

type Kept = Arc<Mutex<Vec<TcpStream>>>;

/// Greets whoever comes, and keeps the connection until it is taken from there.
fn server() -> (u16, Kept) {
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before }).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let kept = Kept::default();
    let keeps = Arc::clone(&kept);
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(b"hi");
            keeps.lock().unwrap().push(stream);
        }
    });
    (port, kept)
}

/// The most memory that a process ever had resident, in KiB.
fn peak_kib(running: &Running) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

/// The number behind each line that begins so, added up.
fn sum(text: &str, word: &str) -> u64 {
    let numbers =
        text.lines().filter_map(|line| line.strip_prefix(word)?.split_whitespace().next()?.parse::<u64>().ok());
    numbers.sum()
}

/// Refusals that are on record as what they are: a limit of the door.
fn limited(outcome: &Value) -> u64 {
    let denials = outcome["attempts"][0]["denials"].as_array().into_iter().flatten();
    let limits = denials.filter(|d| d["operation"] == "limit" && d["rule"] == "limit of connections at once");
    limits.map(|denial| denial["count"].as_u64().unwrap()).sum()
}

#[test]
fn ten_thousand_attempts_are_all_answered_and_hurt_nobody() {
    let (port, kept) = server();
    let grant = format!("connect 127.0.0.1:{port}");
    each_user(|world| {
        let program = world.file("ws/storm.py", include_str!("programs/storm.py")).display().to_string();
        let report = world.home().join("outcome.json");
        let json = format!("--json={}", report.display());
        let (port, attempts) = (port.to_string(), ATTEMPTS.to_string());
        let argv = ["/usr/bin/python3", &program, &port, &attempts];
        let storm = world.stockade(&["--grant", &grant, &json], &argv).timeout(PATIENCE);
        let running = Running::start(&world.account, &storm).unwrap();
        let is_held = exists_in_time(&world.workspace().join("held"));
        let peak_kib = peak_kib(&running);
        let neighbour = World::new(world.account.user);
        let greeted = "import socket, sys; print(socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(2))";
        let answered = neighbour.passes(&["--grant", &grant], &["/usr/bin/python3", "-c", greeted, &port]);
        kept.lock().unwrap().clear();
        world.file("ws/go", "");
        let output = running.finish().unwrap();
        let said = output.text();
        assert!(is_held && output.ended == Ended::Code(0), "{said}");
        assert_eq!(answered.stdout, "b'hi'\n", "{}", answered.text());
        let (open, refused) = (sum(&output.stdout, "OPEN "), sum(&output.stdout, "REFUSED "));
        assert!(open + refused == ATTEMPTS && open >= OPEN_MIN, "{said}");
        let outcome: Value = serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
        let all_refused = refused + sum(&output.stdout, "BEFORE THAT ");
        assert_eq!(limited(&outcome), all_refused, "{}\n{said}", outcome["attempts"][0]["denials"]);
        assert!(output.stdout.contains("\nWENT ON\nAGAIN\n"), "{said}");
        assert!(peak_kib <= FRONT_MAX_KIB, "the front had {peak_kib} KiB resident");
        eprintln!("{open} open, {refused} refused, {peak_kib} KiB");
    });
}

fn exists_in_time(path: &Path) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !path.exists() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(50));
    }
    path.exists()
}
