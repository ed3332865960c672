//! Tunnel from the container: the launcher's own egress proxy forwards its requests to the host's,
//! over the frames. It makes no decision that counts outside.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use stockade_egress::{DialError, EgressCaller, NameLookupError, NameResolver, TunnelConnector, connected_pair};
use stockade_model::{HostName, NetworkTarget};
use tokio::runtime::{Builder, Handle};

use super::EngineChannel;
use crate::egress_requests::{TunnelRequest, TunnelResponse};
use crate::frames::{ChannelFrame, FrameError};
use crate::lock_mutex;
use crate::tunnel_streams::{TUNNEL_STREAMS_MAX, TunnelFrameSender, TunnelStreamTable};

/// Time-out for the host to resolve a name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(12);
/// Time-out for sending data that programs wrote before they ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

type ConnectCallback = Box<dyn FnOnce(Result<TcpStream, DialError>) + Send>;

/// Caller that waits for an answer.
enum TunnelWaiter {
    Connection(ConnectCallback),
    Lookup(SyncSender<TunnelResponse>),
}

/// Tunnel to the host's egress proxy.
pub(super) struct HostTunnel {
    engine_channel: Arc<EngineChannel>,
    stream_table: TunnelStreamTable,
    table: Mutex<TunnelRequestTable>,
    runtime: Mutex<Option<Handle>>,
}

#[derive(Default)]
struct TunnelRequestTable {
    last: u32,
    waiting: HashMap<u32, TunnelWaiter>,
}

impl HostTunnel {
    pub(super) fn new(engine_channel: &Arc<EngineChannel>) -> Self {
        let sender = Arc::clone(engine_channel);
        // The host reads frames at any time, so this blocks only on a full pipe.
        let frame_sender: TunnelFrameSender = Arc::new(move |frame| {
            let sent = sender.send_frame(&frame).is_ok();
            Box::pin(std::future::ready(sent))
        });
        Self {
            engine_channel: Arc::clone(engine_channel),
            stream_table: TunnelStreamTable::new(frame_sender),
            table: Mutex::default(),
            runtime: Mutex::default(),
        }
    }

    /// Processes a frame of the host's egress proxy.
    pub(super) fn handle_frame(&self, frame: ChannelFrame) -> Result<(), FrameError> {
        match frame {
            ChannelFrame::Answered(id, answer) => {
                let answer: TunnelResponse =
                    serde_json::from_slice(&answer).map_err(|_| FrameError::MALFORMED_REQUEST)?;
                let waiting = lock_mutex(&self.table).waiting.remove(&id);
                match waiting {
                    Some(TunnelWaiter::Connection(connects)) => connects(self.connect_stream(id, answer)),
                    Some(TunnelWaiter::Lookup(looked)) => drop(looked.try_send(answer)),
                    None => {}
                }
                Ok(())
            }
            ChannelFrame::Asked(..) => Err(FrameError::WRONG_DIRECTION),
            frame => self.stream_table.handle_frame(frame),
        }
    }

    /// Waits until the data of the ended programs is sent.
    pub(super) fn wait_until_drained(&self) {
        self.stream_table.all_quiet(DRAIN_TIMEOUT);
    }

    /// Resets everything, because the host does not read any more.
    pub(super) fn reset_all(&self) {
        lock_mutex(&self.table).waiting.clear();
        self.stream_table.break_off();
    }

    fn connect_stream(&self, id: u32, answer: TunnelResponse) -> Result<TcpStream, DialError> {
        if answer != TunnelResponse::Connected {
            return Err(answer.into_failure());
        }
        let begun = self.runtime_handle().and_then(|runtime| {
            let (carried, other_end) = connected_pair()?;
            self.stream_table.start_stream(id, (carried, None), &runtime).map(|()| other_end)
        });
        begun.map_err(|error| {
            let _ = self.engine_channel.send_frame(&ChannelFrame::Broken(id));
            DialError::Failed { errno: Errno::NETDOWN, why: error.to_string() }
        })
    }

    /// Started by the first connection, because most commands have none.
    fn runtime_handle(&self) -> io::Result<Handle> {
        let mut started = lock_mutex(&self.runtime);
        if let Some(handle) = &*started {
            return Ok(handle.clone());
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let carry = move || runtime.block_on(std::future::pending::<()>());
        thread::Builder::new().name("stockade-passages".to_owned()).spawn(carry)?;
        Ok(started.insert(handle).clone())
    }

    fn send_request(&self, question: &TunnelRequest, waiting: TunnelWaiter) -> Result<u32, TunnelWaiter> {
        let mut table = lock_mutex(&self.table);
        if table.waiting.len() + self.stream_table.stream_count() >= TUNNEL_STREAMS_MAX {
            return Err(waiting);
        }
        table.last = table.last.wrapping_add(1);
        let id = table.last;
        table.waiting.insert(id, waiting);
        drop(table);
        if self.engine_channel.send_frame(&question.to_frame(id)).is_ok() {
            return Ok(id);
        }
        let waiting = lock_mutex(&self.table).waiting.remove(&id);
        waiting.map_or(Ok(id), Err)
    }
}

impl TunnelConnector for HostTunnel {
    fn connect_target(&self, target: &NetworkTarget, caller: &EgressCaller, answer: ConnectCallback) {
        let question =
            TunnelRequest::Connect { target: target.clone(), pid: caller.pid, program: caller.program.clone() };
        if let Err(TunnelWaiter::Connection(answer)) = self.send_request(&question, TunnelWaiter::Connection(answer)) {
            let why = "too many connections at once".to_owned();
            answer(Err(DialError::Failed { errno: Errno::MFILE, why }));
        }
    }
}

impl NameResolver for HostTunnel {
    fn resolve_name(&self, name: &HostName) -> Result<Vec<IpAddr>, NameLookupError> {
        let (looked, answer) = sync_channel(1);
        let failed = |why: &str| NameLookupError::Failed(why.to_owned());
        let question = TunnelRequest::LookUp { name: name.as_str().to_owned() };
        let id = self
            .send_request(&question, TunnelWaiter::Lookup(looked))
            .map_err(|_| failed("the egress proxy is busy or has ended"))?;
        let answer = answer.recv_timeout(LOOKUP_TIMEOUT);
        lock_mutex(&self.table).waiting.remove(&id);
        match answer {
            Ok(TunnelResponse::Addresses(found)) => found.map_err(NameLookupError::Failed),
            Ok(TunnelResponse::NoSuchName) => Err(NameLookupError::NoSuchName),
            Ok(_) | Err(_) => Err(failed("the egress proxy of the host did not answer")),
        }
    }
}
