//! Connection from its decision to its end.
//!
//! This module must not depend on how a connection is announced, or on the code that decides.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use stockade_model::{ConnectionEnd, Operation, SecretUse, Target};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use crate::dial::{DialFailure, Dialled};
use crate::door::Shared;
use crate::edge::{Guard, Stray};
use crate::events::Recorder;
use crate::http::direct;
use crate::http::exchange::Side;
use crate::http::stream::Reader;
use crate::limits::{Place, Reached};
use crate::relay::{Broken, Watch, Way, break_off, tune};
use crate::seam::Who;
use crate::sniff::{First, NOT_READ, look, watch};
use crate::speakers::Speaking;
use crate::tls;

/// First byte of a TLS record.
const TLS: u8 = 22;
/// Time-out for a client hello, or a first line on port 80, from its first byte.
const HELLO_TIME: Duration = Duration::from_secs(5);
/// Time to wait for a first line before its pieces are forwarded.
const LINE_TIME: Duration = Duration::from_millis(50);

/// Approved connection.
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) target: Target,
    pub(crate) who: Who,
    pub(crate) recorder: Recorder,
    /// Present until the program has sent everything.
    pub(crate) speaking: Option<Speaking>,
    pub(crate) _place: Place,
}

impl Session {
    /// Records that dialling failed.
    pub(crate) fn failed(self, failure: &DialFailure) {
        let end = match failure {
            DialFailure::Refused { rule } => {
                self.shared.events.denied(Operation::Connect, self.target.to_string(), &self.who, rule, None);
                ConnectionEnd::Refused
            }
            DialFailure::Failed { .. } => ConnectionEnd::Failed,
        };
        self.recorder.finish(end, Some(failure.to_string()));
    }

    /// Records that the program did not connect.
    pub(crate) fn deserted(self) {
        self.recorder.finish(ConnectionEnd::Failed, Some("the program went away".into()));
    }

    /// Carries the connection until it ends. `held`: bytes already read from the program.
    pub(crate) async fn carry(mut self, inside: TcpStream, held: Vec<u8>, dialled: Dialled) {
        let Dialled { stream: outside, address, note } = dialled;
        self.recorder.dialled(address, note);
        tune(&inside);
        tune(&outside);
        if self.shared.lead.is_some() {
            return self.carry_unseen(inside, held, outside).await;
        }
        let (first, held) = match self.first(&inside, &outside, held).await {
            Ok(first) => first,
            Err(error) => return self.ended(Err(Broken::Reset(error))),
        };
        match &first {
            First::Http => {
                let (reader, writer) = inside.into_split();
                let client = Side { reader: Reader::new(reader, held), writer };
                let (reader, writer) = outside.into_split();
                let server = Side { reader: Reader::new(reader, Vec::new()), writer };
                return direct::serve(self, client, server, false).await;
            }
            First::Refused(rule) => {
                break_off(&inside);
                break_off(&outside);
                self.shared.events.denied(Operation::Connect, self.target.to_string(), &self.who, rule, None);
                return self.refused(rule);
            }
            First::Tls(hello) => {
                if let Some(name) = &hello.server_name {
                    self.recorder.tls_name(name.as_slice().into());
                }
                if self.is_read() {
                    return tls::serve(self, inside, held, outside).await;
                }
            }
            First::Opaque | First::Undecided => {}
        }
        let counts = Arc::clone(&self.recorder.counts);
        let guard = match first {
            First::Tls(_) => None,
            _ => Guard::new(&self.shared.edge.secrets, &self.target, false),
        };
        let guard = guard.as_ref();
        let way = Way { buffers: &self.shared.buffers, meter: &self.shared.meter, counts: &counts, guard };
        let is_open = first == First::Undecided && !held.is_empty();
        let speaking = self.speaking.take();
        let is_counted = self.is_counted();
        let check = |said: &[u8]| if is_open { watch(said, &self.target, is_counted) } else { Watch::Done };
        let ended = way.relay(&inside, &outside, held, check, speaking).await;
        self.ended(ended);
    }

    /// Carries a connection that another egress proxy checks.
    async fn carry_unseen(mut self, inside: TcpStream, held: Vec<u8>, outside: TcpStream) {
        let counts = Arc::clone(&self.recorder.counts);
        let way = Way { buffers: &self.shared.buffers, meter: &self.shared.meter, counts: &counts, guard: None };
        let speaking = self.speaking.take();
        let ended = way.relay(&inside, &outside, held, |_| Watch::Done, speaking).await;
        self.ended(ended);
    }

    /// Returns whether requests are parsed, encrypted or not; then no other protocol may pass.
    fn is_read(&self) -> bool {
        self.shared.rules.inspects(&self.target)
    }

    /// Returns whether requests are counted.
    fn is_counted(&self) -> bool {
        self.shared.rules.limits.requests_per_minute.is_some()
    }

    /// Waits for the first bytes of the program and examines them. If the server sends first, the
    /// protocol does not name a server.
    async fn first(&self, inside: &TcpStream, outside: &TcpStream, mut held: Vec<u8>) -> io::Result<(First, Vec<u8>)> {
        let mut deadline = None;
        let is_read = self.is_read();
        let other = || if is_read { First::Refused(NOT_READ.into()) } else { First::Opaque };
        let waits = |held: &[u8]| is_read || held.starts_with(&[TLS]) || self.target.port == 80;
        loop {
            let look = |held: &[u8]| look(held, &self.target, is_read, self.is_counted());
            let seen = if held.is_empty() { First::Undecided } else { look(&held) };
            if seen != First::Undecided {
                return Ok((seen, held));
            }
            if !held.is_empty() {
                let time = if waits(&held) { HELLO_TIME } else { LINE_TIME };
                deadline.get_or_insert_with(|| Instant::now() + time);
            }
            let too_slow = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            // Received bytes are the evidence. Behind a proxy the socket was read already, and
            // stays readable until a read finds nothing.
            let mut word = [0];
            tokio::select! {
                biased;
                ready = inside.readable() => ready?,
                spoken = outside.peek(&mut word), if held.is_empty() => {
                    spoken?;
                    return Ok((other(), held));
                }
                // A line that may become a request is forwarded, and watched.
                () = too_slow => {
                    let late = First::Refused("its first message did not come in time".into());
                    return Ok((if waits(&held) { late } else { First::Undecided }, held));
                }
            }
            let mut bytes = [0; 4096];
            match inside.try_read(&mut bytes) {
                Ok(0) if held.is_empty() => return Ok((First::Opaque, held)),
                Ok(0) if held.starts_with(&[TLS]) => {
                    return Ok((First::Refused("its client hello was cut off".into()), held));
                }
                // Half a line is no request.
                Ok(0) => return Ok((other(), held)),
                Ok(count) => held.extend_from_slice(&bytes[..count]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Records that no connection was made.
    pub(crate) fn unreached(self, why: &str) {
        self.recorder.finish(ConnectionEnd::Failed, Some(why.to_owned()));
    }

    /// Records that the egress proxy closed the connection.
    pub(crate) fn refused(self, why: &str) {
        self.recorder.finish(ConnectionEnd::Refused, Some(why.to_owned()));
    }

    /// Records how the connection ended.
    pub(crate) fn ended(self, ended: Result<(), Broken>) {
        match ended {
            Ok(()) => self.recorder.finish(ConnectionEnd::Closed, None),
            Err(Broken::Reset(error)) => self.recorder.finish(ConnectionEnd::Reset, Some(error.to_string())),
            Err(Broken::Rule(rule)) => {
                self.shared.events.denied(Operation::Connect, self.target.to_string(), &self.who, &rule, None);
                self.refused(&rule);
            }
            Err(Broken::Stray(Stray { rule, secret })) => {
                let grant = secret.map(SecretUse::into_grant);
                self.shared.events.denied(Operation::Secret, self.target.to_string(), &self.who, &rule, grant);
                self.refused(&rule);
            }
            Err(Broken::Limit(reached)) => {
                limit(&self.shared, &self.target, &self.who, reached);
                self.recorder.finish(ConnectionEnd::Refused, Some(reached.to_string()));
            }
        }
    }
}

/// Reports that a limit was reached.
pub(crate) fn limit(shared: &Shared, target: &Target, who: &Who, reached: Reached) {
    shared.events.denied(Operation::Limit, target.to_string(), who, &reached.to_string(), None);
}

/// Resets the inner side, because its dialling failed after it was connected.
pub(crate) fn refuse(inside: TcpStream) {
    break_off(&inside);
}
