//! Connection from its decision to its end.
//!
//! This module must not depend on how a connection is announced, or on the code that decides.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use stockade_model::{ConnectionEnd, DeniedOperation, Grant, NetworkTarget, SecretUse};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use crate::dial::{DialError, OutgoingConnection};
use crate::drain_guard::DrainGuard;
use crate::egress_proxy::ProxyShared;
use crate::events::ConnectionRecorder;
use crate::http::direct;
use crate::http::exchange::HttpPeer;
use crate::http::stream::HttpReader;
use crate::interception::{ConnectionGuard, SecretLeak};
use crate::limits::{ConnectionSlot, EgressLimitReached};
use crate::ports::EgressCaller;
use crate::relay::{FirstLineDecision, RelayContext, RelayError, break_off, set_tcp_options};
use crate::sniff::{FirstBytesDecision, UNREADABLE_REFUSAL, examine_first_bytes, examine_first_line};
use crate::tls;

/// First byte of a TLS record.
const TLS_RECORD_BYTE: u8 = 22;
/// Time-out for a client hello, or a first line on port 80, from its first byte.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to wait for a first line before its pieces are forwarded.
const FIRST_LINE_TIMEOUT: Duration = Duration::from_millis(50);

/// Approved connection.
pub(crate) struct EgressSession {
    pub(crate) shared: Arc<ProxyShared>,
    pub(crate) target: NetworkTarget,
    pub(crate) caller: EgressCaller,
    pub(crate) recorder: ConnectionRecorder,
    /// Present until the program has sent everything.
    pub(crate) speaking: Option<DrainGuard>,
    pub(crate) _slot: ConnectionSlot,
}

impl EgressSession {
    fn report_denial(&self, operation: DeniedOperation, rule: &str, grant: Option<Grant>) {
        self.shared.events.report_denial(operation, self.target.to_string(), &self.caller, rule, grant);
    }

    /// Records that dialling failed.
    pub(crate) fn record_dial_error(self, failure: &DialError) {
        let end = match failure {
            DialError::Refused { rule } => {
                self.report_denial(DeniedOperation::Connect, rule, None);
                ConnectionEnd::Refused
            }
            DialError::Failed { .. } => ConnectionEnd::Failed,
        };
        self.recorder.finish(end, Some(failure.to_string()));
    }

    /// Records that the program did not connect.
    pub(crate) fn record_no_client(self) {
        self.recorder.finish(ConnectionEnd::Failed, Some("the program closed the connection".into()));
    }

    /// Carries the connection until it ends. `held`: bytes already read from the program.
    pub(crate) async fn carry_connection(mut self, inside: TcpStream, held: Vec<u8>, dialled: OutgoingConnection) {
        let OutgoingConnection { stream: outside, address, note } = dialled;
        self.recorder.set_remote_address(address, note);
        set_tcp_options(&inside);
        set_tcp_options(&outside);
        // Otherwise another egress proxy checks the connection.
        let is_checked = self.shared.connector.is_none();
        let first = match is_checked {
            true => self.read_first_bytes(&inside, &outside, held).await,
            false => Ok((FirstBytesDecision::Opaque, held)),
        };
        let (first, held) = match first {
            Ok(first) => first,
            Err(error) => return self.record_end(Err(RelayError::Reset(error))),
        };
        match &first {
            FirstBytesDecision::Http => {
                let (reader, writer) = inside.into_split();
                let client = HttpPeer { reader: HttpReader::new(reader, held), writer };
                let (reader, writer) = outside.into_split();
                let server = HttpPeer { reader: HttpReader::new(reader, Vec::new()), writer };
                return direct::serve_requests(self, client, server, false).await;
            }
            FirstBytesDecision::Refused(rule) => {
                break_off(&inside);
                break_off(&outside);
                self.report_denial(DeniedOperation::Connect, rule, None);
                return self.record_refused(rule);
            }
            FirstBytesDecision::Tls(hello) => {
                if let Some(name) = &hello.server_name {
                    self.recorder.tls_name(name.as_slice().into());
                }
                if self.is_read() {
                    return tls::serve_connection(self, inside, held, outside).await;
                }
            }
            FirstBytesDecision::Opaque | FirstBytesDecision::Undecided => {}
        }
        let counts = Arc::clone(&self.recorder.counts);
        let guard = match first {
            FirstBytesDecision::Tls(_) => None,
            _ if !is_checked => None,
            _ => ConnectionGuard::new(&self.shared.interception.secrets, &self.target, false),
        };
        let guard = guard.as_ref();
        let context = RelayContext { buffers: &self.shared.buffers, meter: &self.shared.meter, counts: &counts, guard };
        let is_open = first == FirstBytesDecision::Undecided && !held.is_empty();
        let speaking = self.speaking.take();
        let is_counted = self.is_counted();
        let check = |first_bytes: &[u8]| {
            if is_open { examine_first_line(first_bytes, &self.target, is_counted) } else { FirstLineDecision::Done }
        };
        let ended = context.relay_streams(&inside, &outside, held, check, speaking).await;
        self.record_end(ended);
    }

    /// Returns whether requests are parsed, encrypted or not; then no other protocol may pass.
    fn is_read(&self) -> bool {
        self.shared.rules.requires_inspection(&self.target)
    }

    /// Returns whether requests are counted.
    fn is_counted(&self) -> bool {
        self.shared.rules.limits.requests_per_minute.is_some()
    }

    /// Waits for the first bytes of the program and examines them. If the server sends first, the
    /// protocol does not name a server.
    async fn read_first_bytes(
        &self,
        inside: &TcpStream,
        outside: &TcpStream,
        mut held: Vec<u8>,
    ) -> io::Result<(FirstBytesDecision, Vec<u8>)> {
        let mut deadline = None;
        let is_read = self.is_read();
        let other = || {
            if is_read { FirstBytesDecision::Refused(UNREADABLE_REFUSAL.into()) } else { FirstBytesDecision::Opaque }
        };
        let waits = |held: &[u8]| is_read || held.starts_with(&[TLS_RECORD_BYTE]) || self.target.port == 80;
        loop {
            let look = |held: &[u8]| examine_first_bytes(held, &self.target, is_read, self.is_counted());
            let seen = if held.is_empty() { FirstBytesDecision::Undecided } else { look(&held) };
            if seen != FirstBytesDecision::Undecided {
                return Ok((seen, held));
            }
            if !held.is_empty() {
                let time = if waits(&held) { HELLO_TIMEOUT } else { FIRST_LINE_TIMEOUT };
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
                    let late = FirstBytesDecision::Refused("its first message did not come in time".into());
                    return Ok((if waits(&held) { late } else { FirstBytesDecision::Undecided }, held));
                }
            }
            let mut bytes = [0; 4096];
            match inside.try_read(&mut bytes) {
                Ok(0) if held.is_empty() => return Ok((FirstBytesDecision::Opaque, held)),
                Ok(0) if held.starts_with(&[TLS_RECORD_BYTE]) => {
                    return Ok((FirstBytesDecision::Refused("its client hello was cut off".into()), held));
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
    pub(crate) fn record_unreached(self, why: &str) {
        self.recorder.finish(ConnectionEnd::Failed, Some(why.to_owned()));
    }

    /// Records that the egress proxy closed the connection.
    pub(crate) fn record_refused(self, why: &str) {
        self.recorder.finish(ConnectionEnd::Refused, Some(why.to_owned()));
    }

    /// Records how the connection ended.
    pub(crate) fn record_end(self, ended: Result<(), RelayError>) {
        match ended {
            Ok(()) => self.recorder.finish(ConnectionEnd::Closed, None),
            Err(RelayError::Reset(error)) => self.recorder.finish(ConnectionEnd::Reset, Some(error.to_string())),
            Err(RelayError::Rule(rule)) => {
                self.report_denial(DeniedOperation::Connect, &rule, None);
                self.record_refused(&rule);
            }
            Err(RelayError::Stray(SecretLeak { rule, secret })) => {
                let grant = secret.map(SecretUse::into_grant);
                self.report_denial(DeniedOperation::Secret, &rule, grant);
                self.record_refused(&rule);
            }
            Err(RelayError::Limit(reached)) => {
                report_limit(&self.shared, &self.target, &self.caller, reached);
                self.recorder.finish(ConnectionEnd::Refused, Some(reached.to_string()));
            }
        }
    }
}

/// Reports that a limit was reached.
pub(crate) fn report_limit(
    shared: &ProxyShared,
    target: &NetworkTarget,
    caller: &EgressCaller,
    reached: EgressLimitReached,
) {
    shared.events.report_denial(DeniedOperation::Limit, target.to_string(), caller, &reached.to_string(), None);
}
