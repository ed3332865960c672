//! Ten thousand connections open at once through the doors of two runs, and more
//! attempts than one door may have where the machine's limit of descriptors is
//! lower than that: each attempt is answered, the front bears it, and a neighbour
//! does not notice.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use stockade_testkit::{ProgramEnd, RunningProgram};

use crate::world::{World, each_user};

const ATTEMPTS: u64 = 10_000;
/// Attempts of the neighbour, while all of the first run's are open.
const NEIGHBOURS: u64 = 1_000;
/// Most memory that the front may ever have had resident.
const SUPERVISOR_MAX_KIB: u64 = 256 * 1024;
const TIMEOUT: Duration = Duration::from_secs(300);

type Kept = Arc<Mutex<Vec<TcpStream>>>;

/// Greets whoever comes, and keeps the connection until it is taken from there.
fn server() -> (u16, Kept) {
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before }).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Kept::default();
    let shared_connections = Arc::clone(&connections);
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut connections = shared_connections.lock().unwrap();
            let _ = stream.write_all(b"hi");
            connections.push(stream);
        }
    });
    (port, connections)
}

/// The most memory that a process ever had resident, in KiB.
fn peak_kib(running: &RunningProgram) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

/// Refusals that are on record as what they are: a limit of the door.
fn limited(outcome: &Value) -> u64 {
    let denials = outcome["attempts"][0]["denials"].as_array().into_iter().flatten();
    let limits = denials.filter(|d| d["operation"] == "limit" && d["rule"] == "limit of connections at once");
    limits.map(|denial| denial["count"].as_u64().unwrap()).sum()
}

/// A run that has opened what it could, and keeps it open.
struct Storm<'a> {
    world: &'a World,
    running: RunningProgram,
    report: PathBuf,
}

/// What became of its attempts.
struct StormReport {
    open: u64,
    refused: u64,
    peak_kib: u64,
}

impl<'a> Storm<'a> {
    fn begin(world: &'a World, port: u16, attempts: u64) -> Self {
        let program = world.file("ws/storm.py", include_str!("programs/storm.py")).display().to_string();
        let report = world.home().join("outcome.json");
        let (grant, json) = (format!("connect 127.0.0.1:{port}"), format!("--json={}", report.display()));
        let argv = ["/usr/bin/python3", &program, &port.to_string(), &attempts.to_string()];
        let storm = world.stockade(&["--grant", &grant, &json], &argv).timeout(TIMEOUT);
        let running = RunningProgram::start(&world.account, &storm).unwrap();
        assert!(exists_in_time(&world.workspace().join("held")), "{}", running.wait_for_end().unwrap().combined_text());
        Self { world, running, report }
    }

    /// Lets it close all, and checks that its word, the record and the door agree.
    fn end(self, attempts: u64) -> StormReport {
        let peak_kib = peak_kib(&self.running);
        self.world.file("ws/go", "");
        let output = self.running.wait_for_end().unwrap();
        let output_text = output.combined_text();
        assert_eq!(output.ended, ProgramEnd::Code(0), "{output_text}");
        let (open, refused) = (sum(&output.stdout, "OPEN "), sum(&output.stdout, "REFUSED "));
        assert_eq!(open + refused, attempts, "{output_text}");
        let outcome: Value = serde_json::from_str(&fs::read_to_string(&self.report).unwrap()).unwrap();
        let all_refused = refused + sum(&output.stdout, "BEFORE THAT ");
        assert_eq!(limited(&outcome), all_refused, "{}\n{output_text}", outcome["attempts"][0]["denials"]);
        assert!(output.stdout.contains("\nWENT ON\nAGAIN\n"), "{output_text}");
        assert!(peak_kib <= SUPERVISOR_MAX_KIB, "the front had {peak_kib} KiB resident");
        StormReport { open, refused, peak_kib }
    }
}

/// The number behind each line that begins so, added up.
fn sum(text: &str, word: &str) -> u64 {
    let numbers =
        text.lines().filter_map(|line| line.strip_prefix(word)?.split_whitespace().next()?.parse::<u64>().ok());
    numbers.sum()
}

#[test]
fn ten_thousand_open_connections_do_no_harm_and_every_attempt_is_answered() {
    each_user(|world| {
        let (port, connections) = server();
        let neighbour = World::new(world.account.user);
        let storm = Storm::begin(world, port, ATTEMPTS);
        let beside = Storm::begin(&neighbour, port, NEIGHBOURS);
        let open_at_once = connections.lock().unwrap().len() as u64;
        // What a door may have open: both ends of each, and a part for the rest.
        let descriptors = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let possible = ((descriptors - descriptors / 16) / 2).min(ATTEMPTS);
        connections.lock().unwrap().clear();
        let (first, second) = (storm.end(ATTEMPTS), beside.end(NEIGHBOURS));
        assert_eq!((first.open, second.open), (possible, NEIGHBOURS));
        assert_eq!(open_at_once, first.open + second.open);
        let StormReport { open, refused, peak_kib } = first;
        eprintln!("{open} open, {refused} refused, {peak_kib} KiB, {open_at_once} open with the neighbour's");
    });
}

fn exists_in_time(path: &Path) -> bool {
    let deadline = Instant::now() + TIMEOUT;
    while !path.exists() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(50));
    }
    path.exists()
}
