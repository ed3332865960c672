//! One connection from its decision to its end.
//!
//! Must not know: how a connection is announced, who decided.

use std::sync::Arc;

use stockade_model::{ConnectionEnd, Operation, Target};
use tokio::net::TcpStream;

use crate::dial::{DialFailure, Dialled};
use crate::door::Shared;
use crate::events::Recorder;
use crate::limits::{Place, Reached};
use crate::relay::{Broken, Way, break_off, tune};
use crate::seam::Who;

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

    /// Carries the connection until it ends.
    pub(crate) async fn carry(mut self, inside: TcpStream, dialled: Dialled) {
        let Dialled { stream: outside, address, note } = dialled;
        self.recorder.dialled(address, note);
        tune(&inside);
        tune(&outside);
        let counts = Arc::clone(&self.recorder.counts);
        let way = Way { buffers: &self.shared.buffers, meter: &self.shared.meter, counts: &counts };
        let ended = way.relay(&inside, &outside).await;
        self.ended(ended);
    }

    /// Notes how it ended.
    pub(crate) fn ended(self, ended: Result<(), Broken>) {
        match ended {
            Ok(()) => self.recorder.finish(ConnectionEnd::Closed, None),
            Err(Broken::Reset(error)) => self.recorder.finish(ConnectionEnd::Reset, Some(error.to_string())),
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
