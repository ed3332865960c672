//! What was refused, each thing once with a count, bounded.

use std::collections::HashMap;

use stockade_model::{Denial, Layer, Operation, RawText, Resolution};

use super::BrokerEvent;
use crate::powers::Refusal;

/// Different refusals kept of one attempt: a program that tries everything must
/// not fill the memory of its supervisor.
const MAX_DENIALS: usize = 1000;

/// A refusal before it is known who made the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Denied {
    pub operation: Operation,
    pub object: Vec<u8>,
    pub layer: Layer,
    pub refusal: Refusal,
}

/// Who made the call.
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
    sink: Box<dyn Fn(BrokerEvent) + Send>,
}

impl Ledger {
    pub fn new(sink: Box<dyn Fn(BrokerEvent) + Send>) -> Self {
        Self { known: HashMap::new(), denials: Vec::new(), beyond: 0, sink }
    }

    /// Counts a refusal; the first of its kind is told at once.
    pub fn record(&mut self, denied: Denied, who: impl FnOnce() -> Actor) {
        let Denied { operation, object, layer, refusal } = denied;
        let key = (operation, object, refusal.rule);
        if let Some(at) = self.known.get(&key) {
            self.denials[*at].count += 1;
            return;
        }
        if self.denials.len() >= MAX_DENIALS {
            self.beyond += 1;
            return;
        }
        let actor = who();
        let denial = Denial {
            operation,
            object: RawText::from(key.1.as_slice()),
            pid: actor.pid,
            program: actor.program.map(RawText::from),
            layer,
            rule: key.2.clone(),
            grant: refusal.grant,
            resolution: Resolution::Recorded,
            count: 1,
        };
        self.known.insert(key, self.denials.len());
        self.denials.push(denial.clone());
        (self.sink)(BrokerEvent::Denied(denial));
    }

    /// Tells that a program was started.
    pub fn executed(&self, pid: u32, program: Vec<u8>) {
        (self.sink)(BrokerEvent::Executed { pid, program: RawText::from(program) });
    }

    /// The refusals with their counts, and how many more there were.
    pub fn take(&mut self) -> (Vec<Denial>, u64) {
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
