//! A server outside, a client inside, and what is answered to its questions.
#![allow(dead_code)]

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use stockade_backend_api::{
    AttemptEnd, AttemptEvent, AttemptEventSender, Backend, CommandEnd, HeldAnswer, HoldId, StartError, StdioMode,
};
use stockade_egress::{NameLookupError, NameResolver};
use stockade_model::{AttemptPlan, ConnectionRecord, Denial, DeniedOperation, HostName, IsolationLevel};
use stockade_native::{NativeBackend, NativeOptions};
use tempfile::TempDir;

use super::support::{TIMEOUT, plan, workspace};

/// Says "hello" to whoever connects to it on the host's loopback.
pub struct Server {
    port: u16,
    accepted: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
}

impl Server {
    pub fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (accepted, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end) = (Arc::clone(&accepted), Arc::clone(&over));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                count.fetch_add(1, Ordering::SeqCst);
                let _ = stream.write_all(b"hello\n");
            }
        });
        Self { port, accepted, over }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // Wakes it, and waits until it no longer listens.
        while std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok() {}
    }
}

/// Every name of `.test` but one is this machine.
struct Table;

impl NameResolver for Table {
    fn resolve_name(&self, name: &HostName) -> Result<Vec<IpAddr>, NameLookupError> {
        match name.as_str() {
            "nobody.test" => Err(NameLookupError::NoSuchName),
            name if name.ends_with(".test") => Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]),
            _ => Err(NameLookupError::NoSuchName),
        }
    }
}

/// A client in Python: connects to `HOST:PORT`, with a time-out of Python's or
/// `None`, in a family or in any (`0`), and prints what it reads, or the error.
pub fn dial(target: &str, timeout: &str, family: &str) -> String {
    let (host, port) = target.rsplit_once(':').unwrap();
    let host = host.trim_matches(['[', ']']);
    format!(
        "import socket,errno\n\
         try:\n  \
           a = socket.getaddrinfo('{host}', {port}, {family}, socket.SOCK_STREAM)[0]\n  \
           s = socket.socket(a[0]); s.settimeout({timeout}); s.connect(a[4]); assert s.getpeername()[1]\n  \
           print(s.makefile().readline().strip(), flush=True)\n\
         except socket.gaierror as e: print('gaierror', e)\n\
         except OSError as e: print(errno.errorcode.get(e.errno, e), flush=True)"
    )
}

/// A question that was put while something was held.
pub struct Question {
    pub id: HoldId,
    pub denial: Denial,
}

/// What is answered; nothing leaves it open.
pub type React = Box<dyn FnMut(&Question) -> Option<HeldAnswer>>;

pub fn yes() -> React {
    Box::new(|question| Some(HeldAnswer::Granted(question.denial.grant.iter().cloned().collect())))
}

pub fn no() -> React {
    Box::new(|_| Some(HeldAnswer::Refused))
}

/// A run of a Python program.
pub struct Trip {
    pub plan: AttemptPlan,
    workspace: TempDir,
}

/// What came of it.
pub struct Ran {
    pub end: AttemptEnd,
    pub stdout: String,
    pub denials: Vec<Denial>,
    pub questions: Vec<Question>,
    pub withdrawn: usize,
    pub connections: Vec<ConnectionRecord>,
}

impl Trip {
    pub fn new(level: IsolationLevel, script: &str) -> Self {
        let workspace = workspace();
        let mut plan = plan(level, workspace.path(), &["/usr/bin/python3", "-c", script]);
        plan.profile.egress.special = ["127.0.0.0/8", "::1"].map(|p| p.parse().unwrap()).into();
        Self { plan, workspace }
    }

    pub fn grant(&mut self, grant: &str) {
        self.plan.grants.push(grant.parse().unwrap());
    }

    pub fn workspace(&self) -> PathBuf {
        self.workspace.path().canonicalize().unwrap()
    }

    /// Why it cannot be started.
    #[track_caller]
    pub fn fails(self) -> StartError {
        let io = StdioMode::Capture { limit_bytes: 0 };
        NativeBackend::default()
            .prepare_attempt(&self.plan, &io, false, AttemptEventSender::new(|_| {}))
            .err()
            .expect("it cannot be started")
    }

    /// Runs it; calls are held where there is somebody to answer.
    #[track_caller]
    pub fn run(self, react: Option<React>) -> Ran {
        self.run_watching(react, |_| {})
    }

    #[track_caller]
    pub fn run_watching(self, react: Option<React>, mut on_withdrawn: impl FnMut(HoldId)) -> Ran {
        let (sender, events) = channel();
        let tell = AttemptEventSender::new(move |event| drop(sender.send(event)));
        let backend = NativeBackend::with_options(
            None,
            NativeOptions { resolver: Some(Arc::new(Table)), ..NativeOptions::default() },
        );
        let io = StdioMode::Capture { limit_bytes: 1 << 20 };
        let mut attempt = backend.prepare_attempt(&self.plan, &io, react.is_some(), tell).unwrap();
        attempt.release_command().unwrap();
        let (mut denials, mut questions, mut withdrawn, mut connections) = (Vec::new(), Vec::new(), 0, Vec::new());
        let mut react = react;
        loop {
            match events.recv_timeout(TIMEOUT).expect("the attempt goes on") {
                AttemptEvent::Denied(denial) | AttemptEvent::Breached(denial) => denials.push(denial),
                AttemptEvent::Connection(connection) => connections.push(*connection),
                AttemptEvent::Executed { .. } | AttemptEvent::Stopped(_) | AttemptEvent::Signed { .. } => {}
                AttemptEvent::Held { id, denial } => {
                    let question = Question { id, denial };
                    if let Some(answer) = react.as_mut().expect("it was told to hold")(&question) {
                        attempt.answer_call(id, answer);
                    }
                    questions.push(question);
                }
                AttemptEvent::Withdrawn(id) => {
                    withdrawn += 1;
                    on_withdrawn(id);
                }
                AttemptEvent::Ended(end) => {
                    let text = |out: &Option<stockade_model::RawText>| {
                        String::from_utf8_lossy(out.as_ref().unwrap().as_bytes()).into_owned()
                    };
                    assert_eq!(end.end, CommandEnd::Exited(0), "{} {}", text(&end.stdout), text(&end.stderr));
                    let stdout = text(&end.stdout);
                    return Ran { end, stdout, denials, questions, withdrawn, connections };
                }
            }
        }
    }
}

impl Ran {
    /// The denials as text: operation, object, grant; each once. Without those of
    /// datagram sockets at level restricted, which every lookup of a name tries.
    pub fn denied(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.denials.iter().filter(|denial| denial.operation != DeniedOperation::Socket).map(shown).collect();
        all.dedup();
        all
    }

    /// The questions as text.
    pub fn asked(&self) -> Vec<String> {
        self.questions.iter().map(|q| shown(&q.denial)).collect()
    }
}

pub fn shown(denial: &Denial) -> String {
    let grant = denial.grant.as_ref().map_or("-".to_owned(), ToString::to_string);
    format!("{:?} {} [{grant}]", denial.operation, denial.object.to_escaped())
}
