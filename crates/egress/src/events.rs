//! Events of the egress proxy: records of connections and refusals, each reported once.
//!
//! This module must not depend on the receiver.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use stockade_model::{
    ConnectionEnd, ConnectionRecord, Denial, DenialLayer, DenialResolution, DeniedOperation, Grant, NetworkTarget,
    RawText,
};

use crate::limits::TrafficDirection;
use crate::ports::{EgressCaller, EgressEvent};

/// Most different refusals that are reported; the rest are counted together.
const DENIALS_MAX: usize = 1024;

/// Sink for the events.
pub(crate) struct EgressEventSink {
    sink: Arc<dyn Fn(EgressEvent) + Send + Sync>,
    repeated: Mutex<HashMap<(RawText, String), Denial>>,
    /// True when the run ends: connections that are open then did not end by themselves.
    pub(crate) stopping: AtomicBool,
}

impl EgressEventSink {
    pub(crate) fn new(sink: Arc<dyn Fn(EgressEvent) + Send + Sync>) -> Self {
        Self { sink, repeated: Mutex::default(), stopping: AtomicBool::new(false) }
    }

    /// Reports a refusal the first time, and counts it afterwards.
    pub(crate) fn report_denial(
        &self,
        operation: DeniedOperation,
        object: String,
        caller: &EgressCaller,
        rule: &str,
        grant: Option<Grant>,
    ) {
        let object = RawText::from(object);
        let denial = Denial {
            operation,
            object: object.clone(),
            pid: caller.pid,
            program: caller.program.clone(),
            layer: if operation == DeniedOperation::Limit { DenialLayer::Limits } else { DenialLayer::Network },
            rule: rule.to_owned(),
            grant,
            resolution: DenialResolution::Recorded,
            count: 1,
        };
        let key = (object, rule.to_owned());
        let mut repeated = self.repeated.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = repeated.get_mut(&key) {
            known.count = known.count.saturating_add(1);
            return;
        }
        if repeated.len() < DENIALS_MAX {
            repeated.insert(key, denial.clone());
            drop(repeated);
            (self.sink)(EgressEvent::Denied(Box::new(denial)));
        }
    }

    /// Reports repeated refusals once more, with the total count.
    pub(crate) fn flush(&self) {
        let repeated = std::mem::take(&mut *self.repeated.lock().unwrap_or_else(PoisonError::into_inner));
        for denial in repeated.into_values().filter(|d| d.count > 1) {
            (self.sink)(EgressEvent::Denied(Box::new(denial)));
        }
    }
}

/// Bytes of one connection.
#[derive(Debug, Default)]
pub(crate) struct ByteCounts {
    up: AtomicU64,
    down: AtomicU64,
}

impl ByteCounts {
    pub(crate) fn add_bytes(&self, direction: TrafficDirection, count: usize) {
        let counter = match direction {
            TrafficDirection::Up => &self.up,
            TrafficDirection::Down => &self.down,
        };
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Unfinished record of a connection; reported when dropped.
pub(crate) struct ConnectionRecorder {
    events: Arc<EgressEventSink>,
    record: Option<Box<ConnectionRecord>>,
    started: Instant,
    pub(crate) counts: Arc<ByteCounts>,
}

impl ConnectionRecorder {
    pub(crate) fn new(
        events: &Arc<EgressEventSink>,
        caller: &EgressCaller,
        target: &NetworkTarget,
        rule: &str,
    ) -> Self {
        let record = ConnectionRecord {
            pid: caller.pid,
            program: caller.program.clone(),
            target: target.clone(),
            address: None,
            rule: rule.to_owned(),
            tls_name: None,
            bytes_up: 0,
            bytes_down: 0,
            duration_ms: 0,
            end: ConnectionEnd::Failed,
            why: None,
        };
        Self {
            events: Arc::clone(events),
            record: Some(Box::new(record)),
            started: Instant::now(),
            counts: Arc::default(),
        }
    }

    /// Sets the address that was dialled.
    pub(crate) fn set_remote_address(&mut self, address: IpAddr, note: Option<String>) {
        if let Some(record) = &mut self.record {
            record.address = Some(address);
            if let Some(note) = note {
                record.rule = format!("{}; {note}", record.rule);
            }
        }
    }

    /// Sets the server name of the client hello.
    pub(crate) fn tls_name(&mut self, name: RawText) {
        if let Some(record) = &mut self.record {
            record.tls_name = Some(name);
        }
    }

    /// Finishes and reports the record.
    pub(crate) fn finish(mut self, end: ConnectionEnd, why: Option<String>) {
        self.report_record(end, why);
    }

    fn report_record(&mut self, end: ConnectionEnd, why: Option<String>) {
        if let Some(mut record) = self.record.take() {
            record.bytes_up = self.counts.up.load(Ordering::Relaxed);
            record.bytes_down = self.counts.down.load(Ordering::Relaxed);
            record.duration_ms = self.started.elapsed().as_millis() as u64;
            record.end = end;
            record.why = why;
            (self.events.sink)(EgressEvent::Connection(record));
        }
    }
}

impl Drop for ConnectionRecorder {
    fn drop(&mut self) {
        if self.events.stopping.load(Ordering::Relaxed) {
            self.report_record(ConnectionEnd::RunEnded, None);
        } else {
            self.report_record(ConnectionEnd::Failed, Some("the program closed the connection".into()));
        }
    }
}
