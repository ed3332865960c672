//! One connection from its decision to its end.
//!
//! Must not know: how a connection is announced, who decided.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use stockade_model::{ConnectionEnd, Operation, Target};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use crate::dial::{DialFailure, Dialled};
use crate::door::Shared;
use crate::events::Recorder;
use crate::hello::Hello;
use crate::http::direct;
use crate::limits::{Place, Reached};
use crate::relay::{Broken, Watch, Way, break_off, tune};
use crate::seam::Who;
use crate::sniff::{First, look, watch};

/// First byte of a TLS record.
const TLS: u8 = 22;
/// How long a client hello, or a first line on port 80, may take from its first
/// byte on.
const HELLO_TIME: Duration = Duration::from_secs(5);
/// How long a first line is waited for before it goes on in pieces.
const LINE_TIME: Duration = Duration::from_millis(50);

/// A connection that was agreed to.
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) target: Target,
    pub(crate) who: Who,
    pub(crate) recorder: Recorder,
    pub(crate) _place: Place,
}

impl Session {
    /// Notes that dialling failed.
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

    /// Nobody came.
    pub(crate) fn deserted(self) {
        self.recorder.finish(ConnectionEnd::Failed, Some("the program went away".into()));
    }

    /// Carries the connection until it ends. `held`: what was read of the program
    /// already.
    pub(crate) async fn carry(mut self, inside: TcpStream, held: Vec<u8>, dialled: Dialled) {
        let Dialled { stream: outside, address, note } = dialled;
        self.recorder.dialled(address, note);
        tune(&inside);
        tune(&outside);
        let (first, held) = match self.first(&inside, &outside, held).await {
            Ok(first) => first,
            Err(error) => return self.ended(Err(Broken::Reset(error))),
        };
        match &first {
            First::Http => return direct::serve(self, inside, held, outside).await,
            First::Refused(rule) => {
                break_off(&inside);
                break_off(&outside);
                self.shared.events.denied(Operation::Connect, self.target.to_string(), &self.who, rule, None);
                return self.refused(rule);
            }
            First::Tls(Hello { server_name: Some(name), .. }) => self.recorder.tls_name(name.as_slice().into()),
            First::Tls(_) | First::Opaque | First::Undecided => {}
        }
        let counts = Arc::clone(&self.recorder.counts);
        let way = Way { buffers: &self.shared.buffers, meter: &self.shared.meter, counts: &counts };
        let is_open = first == First::Undecided && !held.is_empty();
        let ended =
            way.relay(&inside, &outside, held, |said| if is_open { watch(said, &self.target) } else { Watch::Done });
        let ended = ended.await;
        self.ended(ended);
    }

    /// Waits for the first bytes of the program and looks at them. Where the
    /// server speaks first, the protocol is none that names a server.
    async fn first(&self, inside: &TcpStream, outside: &TcpStream, mut held: Vec<u8>) -> io::Result<(First, Vec<u8>)> {
        let mut deadline = None;
        loop {
            let seen = if held.is_empty() { First::Undecided } else { look(&held, &self.target) };
            if seen != First::Undecided {
                return Ok((seen, held));
            }
            if !held.is_empty() {
                let is_strict = held.starts_with(&[TLS]) || self.target.port == 80;
                let time = if is_strict { HELLO_TIME } else { LINE_TIME };
                deadline.get_or_insert_with(|| Instant::now() + time);
            }
            let too_slow = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                ready = inside.readable() => ready?,
                ready = outside.readable(), if held.is_empty() => {
                    ready?;
                    return Ok((First::Opaque, held));
                }
                // A line that may become a request goes on, and is watched.
                () = too_slow => {
                    let is_line = !held.starts_with(&[TLS]) && self.target.port != 80;
                    let late = First::Refused("its first message did not come in time".into());
                    return Ok((if is_line { First::Undecided } else { late }, held));
                }
            }
            let mut bytes = [0; 4096];
            match inside.try_read(&mut bytes) {
                Ok(0) if held.is_empty() => return Ok((First::Opaque, held)),
                Ok(0) if held.starts_with(&[TLS]) => {
                    return Ok((First::Refused("its client hello was cut off".into()), held));
                }
                // Half a line is no request.
                Ok(0) => return Ok((First::Opaque, held)),
                Ok(count) => held.extend_from_slice(&bytes[..count]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Notes that the door broke it off.
    pub(crate) fn refused(self, why: &str) {
        self.recorder.finish(ConnectionEnd::Refused, Some(why.to_owned()));
    }

    /// Notes how it ended.
    pub(crate) fn ended(self, ended: Result<(), Broken>) {
        match ended {
            Ok(()) => self.recorder.finish(ConnectionEnd::Closed, None),
            Err(Broken::Reset(error)) => self.recorder.finish(ConnectionEnd::Reset, Some(error.to_string())),
            Err(Broken::Rule(rule)) => {
                self.shared.events.denied(Operation::Connect, self.target.to_string(), &self.who, &rule, None);
                self.refused(&rule);
            }
            Err(Broken::Limit(reached)) => {
                limit(&self.shared, &self.target, &self.who, reached);
                self.recorder.finish(ConnectionEnd::Refused, Some(reached.to_string()));
            }
        }
    }
}

/// Tells that a limit was reached.
pub(crate) fn limit(shared: &Shared, target: &Target, who: &Who, reached: Reached) {
    shared.events.denied(Operation::Limit, target.to_string(), who, &reached.to_string(), None);
}

/// Breaks the inner side off: its dialling failed after it was connected.
pub(crate) fn refuse(inside: TcpStream) {
    break_off(&inside);
}
