//! Refusals of one attempt: each is kept once, with a count, and their number is limited.

use std::collections::HashMap;

use stockade_model::{Denial, Layer, Operation, RawText, Resolution};

use super::BrokerEvent;
use crate::powers::Refusal;

/// Most different refusals that are kept of one attempt. A program that tries everything must not
/// fill the memory of its supervisor.
const MAX_DENIALS: usize = 1000;

/// A refusal without its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Denied {
    pub operation: Operation,
    pub object: Vec<u8>,
    pub layer: Layer,
    pub refusal: Refusal,
}

impl Denied {
    /// Returns the complete refusal, with the caller.
    pub fn into_denial(self, actor: Actor) -> Denial {
        Denial {
            operation: self.operation,
            object: RawText::from(self.object.as_slice()),
            pid: actor.pid,
            program: actor.program.map(RawText::from),
            layer: self.layer,
            rule: self.refusal.rule,
            grant: self.refusal.grant,
            resolution: Resolution::Recorded,
            count: 1,
        }
    }
}

/// The caller of a call.
#[derive(Clone, Debug, Default)]
pub(super) struct Actor {
    pub pid: Option<u32>,
    pub program: Option<Vec<u8>>,
}

/// The refusals of one attempt.
pub(super) struct Ledger {
    known: HashMap<(Operation, Vec<u8>, String), usize>,
    denials: Vec<Denial>,
    beyond: u64,
    /// Events that are sent after the call was answered, because waking the receiver takes longer
    /// than answering.
    later: Vec<BrokerEvent>,
    sink: Box<dyn Fn(BrokerEvent) + Send>,
}

impl Ledger {
    pub fn new(sink: Box<dyn Fn(BrokerEvent) + Send>) -> Self {
        Self { known: HashMap::new(), denials: Vec::new(), beyond: 0, later: Vec::new(), sink }
    }

    /// Counts a refusal. The first of its kind is sent at once.
    pub fn record(&mut self, denied: Denied, who: impl FnOnce() -> Actor) {
        let key = (denied.operation, denied.object.clone(), denied.refusal.rule.clone());
        if let Some(at) = self.known.get(&key) {
            self.denials[*at].count += 1;
        } else if self.denials.len() >= MAX_DENIALS {
            self.beyond += 1;
        } else {
            let denial = denied.into_denial(who());
            self.known.insert(key, self.denials.len());
            self.denials.push(denial.clone());
            self.tell(BrokerEvent::Denied(denial));
        }
    }

    /// Counts a refusal that was already sent as a question, `times` times.
    pub fn count(&mut self, denial: &Denial, times: u64) {
        let key = (denial.operation, denial.object.as_bytes().to_vec(), denial.rule.clone());
        if let Some(at) = self.known.get(&key) {
            self.denials[*at].count += times;
        } else if self.denials.len() >= MAX_DENIALS {
            self.beyond += times;
        } else {
            self.known.insert(key, self.denials.len());
            self.denials.push(Denial { count: times, ..denial.clone() });
        }
    }

    /// Sends an event, after the deferred ones.
    pub fn tell(&mut self, event: BrokerEvent) {
        self.tell_rest();
        (self.sink)(event);
    }

    /// Notes that a program was started, to be [sent](Self::tell_rest) later.
    pub fn executed(&mut self, pid: u32, program: Vec<u8>) {
        self.later.push(BrokerEvent::Executed { pid, program: RawText::from(program) });
    }

    /// Sends the deferred events.
    pub fn tell_rest(&mut self) {
        for event in self.later.drain(..) {
            (self.sink)(event);
        }
    }

    /// Returns the refusals with their counts, and the number of those past the limit.
    pub fn take(&mut self) -> (Vec<Denial>, u64) {
        self.tell_rest();
        (std::mem::take(&mut self.denials), self.beyond)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn denied(object: &str) -> Denied {
        let refusal = Refusal { rule: "outside".to_owned(), grant: None };
        Denied { operation: Operation::Write, object: object.as_bytes().to_vec(), layer: Layer::Broker, refusal }
    }

    #[test]
    fn equal_refusals_are_told_once_and_counted_and_the_rest_is_bounded() {
        let (sender, receiver) = channel();
        let mut ledger = Ledger::new(Box::new(move |event| {
            let _ = sender.send(event);
        }));
        for _ in 0..3 {
            ledger.record(denied("/a"), Actor::default);
        }
        for i in 0..MAX_DENIALS + 4 {
            ledger.record(denied(&format!("/{i}")), Actor::default);
        }
        let (denials, beyond) = ledger.take();
        assert_eq!((denials.len(), denials[0].count, beyond), (MAX_DENIALS, 3, 5));
        assert_eq!(receiver.try_iter().count(), MAX_DENIALS);
    }
}
