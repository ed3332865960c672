//! Tunnel from the container: the launcher's own egress proxy forwards its requests to the host's,
//! over the frames. It makes no decision that counts outside.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use stockade_egress::{DialFailure, Lead, LookupError, Resolve, Who, connected_pair};
use stockade_model::{HostName, Target};
use tokio::runtime::{Builder, Handle};

use super::Way;
use crate::frames::{Frame, FrameError};
use crate::passages::{PASSAGES_MAX, Passages, Post};
use crate::question::{Answer, Question};

/// Time-out for the host to resolve a name.
const LOOKUP_MAX: Duration = Duration::from_secs(12);
/// Time-out for sending data that programs wrote before they ended.
const SAID_WITHIN: Duration = Duration::from_secs(1);

type Connects = Box<dyn FnOnce(Result<TcpStream, DialFailure>) + Send>;

/// Caller that waits for an answer.
enum Waiting {
    Connection(Connects),
    Lookup(SyncSender<Answer>),
}

/// Tunnel to the host's egress proxy.
pub(super) struct Leads {
    way: Arc<Way>,
    passages: Passages,
    table: Mutex<Table>,
    runtime: Mutex<Option<Handle>>,
}

#[derive(Default)]
struct Table {
    last: u32,
    waiting: HashMap<u32, Waiting>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Leads {
    pub(super) fn new(way: &Arc<Way>) -> Self {
        let sender = Arc::clone(way);
        // The host reads frames at any time, so this blocks only on a full pipe.
        let post: Post = Arc::new(move |frame| {
            let sent = sender.send(&frame).is_ok();
            Box::pin(std::future::ready(sent))
        });
        Self { way: Arc::clone(way), passages: Passages::new(post), table: Mutex::default(), runtime: Mutex::default() }
    }

    /// Processes a frame of the host's egress proxy.
    pub(super) fn take(&self, frame: Frame) -> Result<(), FrameError> {
        match frame {
            Frame::Answered(id, answer) => {
                let answer: Answer = serde_json::from_slice(&answer).map_err(|_| FrameError::NO_QUESTION)?;
                let waiting = lock(&self.table).waiting.remove(&id);
                match waiting {
                    Some(Waiting::Connection(connects)) => connects(self.connect(id, answer)),
                    Some(Waiting::Lookup(looked)) => drop(looked.try_send(answer)),
                    None => {}
                }
                Ok(())
            }
            Frame::Asked(..) => Err(FrameError::WRONG_WAY),
            frame => self.passages.take(frame),
        }
    }

    /// Waits until the data of the ended programs is sent.
    pub(super) fn finish(&self) {
        self.passages.all_quiet(SAID_WITHIN);
    }

    /// Resets everything, because the host does not read any more.
    pub(super) fn close(&self) {
        lock(&self.table).waiting.clear();
        self.passages.break_off();
    }

    fn connect(&self, id: u32, answer: Answer) -> Result<TcpStream, DialFailure> {
        if answer != Answer::Connected {
            return Err(answer.into_failure());
        }
        let begun = self.runtime().and_then(|runtime| {
            let (carried, given) = connected_pair()?;
            self.passages.begin(id, (carried, None), &runtime).map(|()| given)
        });
        begun.map_err(|error| {
            let _ = self.way.send(&Frame::Broken(id));
            DialFailure::Failed { errno: Errno::NETDOWN, why: error.to_string() }
        })
    }

    /// Started by the first connection, because most commands have none.
    fn runtime(&self) -> io::Result<Handle> {
        let mut started = lock(&self.runtime);
        if let Some(handle) = &*started {
            return Ok(handle.clone());
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let carry = move || runtime.block_on(std::future::pending::<()>());
        thread::Builder::new().name("stockade-passages".to_owned()).spawn(carry)?;
        Ok(started.insert(handle).clone())
    }

    fn ask(&self, question: &Question, waiting: Waiting) -> Result<u32, Waiting> {
        let mut table = lock(&self.table);
        if table.waiting.len() + self.passages.count() >= PASSAGES_MAX {
            return Err(waiting);
        }
        table.last = table.last.wrapping_add(1);
        let id = table.last;
        table.waiting.insert(id, waiting);
        drop(table);
        if self.way.send(&question.to_frame(id)).is_ok() {
            return Ok(id);
        }
        let waiting = lock(&self.table).waiting.remove(&id);
        waiting.map_or(Ok(id), Err)
    }
}

impl Lead for Leads {
    fn lead(&self, target: &Target, who: &Who, answer: Connects) {
        let question = Question::Connect { target: target.clone(), pid: who.pid, program: who.program.clone() };
        if let Err(Waiting::Connection(answer)) = self.ask(&question, Waiting::Connection(answer)) {
            let why = "too many connections at once".to_owned();
            answer(Err(DialFailure::Failed { errno: Errno::MFILE, why }));
        }
    }
}

impl Resolve for Leads {
    fn resolve(&self, name: &HostName) -> Result<Vec<IpAddr>, LookupError> {
        let (looked, answer) = sync_channel(1);
        let failed = |why: &str| LookupError::Failed(why.to_owned());
        let question = Question::LookUp { name: name.as_str().to_owned() };
        let id = self.ask(&question, Waiting::Lookup(looked)).map_err(|_| failed("the way out is full or gone"))?;
        let answer = answer.recv_timeout(LOOKUP_MAX);
        lock(&self.table).waiting.remove(&id);
        match answer {
            Ok(Answer::Addresses(found)) => found.map_err(LookupError::Failed),
            Ok(Answer::NoSuchName) => Err(LookupError::NoSuchName),
            Ok(_) | Err(_) => Err(failed("the host's door did not answer")),
        }
    }
}
