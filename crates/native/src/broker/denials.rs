//! Refusals of one attempt: each is kept once, with a count, and their number is limited.

use std::collections::HashMap;

use stockade_model::{Denial, DenialLayer, DeniedOperation, RawText};

use stockade_backend_api::AttemptEvent;
use stockade_egress::EgressCaller;
use stockade_permissions::powers::PermissionRefusal;

/// Most different refusals that are kept of one attempt. A program that tries everything must not
/// fill the memory of its supervisor.
const MAX_DENIALS: usize = 1000;

/// A refusal without its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RefusedOperation {
    pub operation: DeniedOperation,
    pub object: Vec<u8>,
    pub layer: DenialLayer,
    pub refusal: PermissionRefusal,
}

impl RefusedOperation {
    pub fn new(
        operation: DeniedOperation,
        object: impl Into<Vec<u8>>,
        layer: DenialLayer,
        refusal: PermissionRefusal,
    ) -> Self {
        Self { operation, object: object.into(), layer, refusal }
    }

    /// Returns the complete refusal, with the caller.
    pub fn into_denial(self, actor: CallerProcess) -> Denial {
        let (object, PermissionRefusal { rule, grant }) = (RawText::from(self.object), self.refusal);
        let unknown = Denial::of_unknown_process(self.operation, object, self.layer, rule, grant);
        Denial { pid: actor.pid, program: actor.program, ..unknown }
    }
}

/// The caller of a call, as the egress proxy knows it too.
pub(super) type CallerProcess = EgressCaller;

/// Operation, object and rule of a refusal.
type DenialKind = (DeniedOperation, Vec<u8>, String);

/// The refusals of one attempt.
pub(super) struct DenialLedger {
    known: HashMap<DenialKind, usize>,
    denials: Vec<Denial>,
    beyond: u64,
    /// Events that are sent after the call was answered, because waking the receiver takes longer
    /// than answering.
    later: Vec<AttemptEvent>,
    sink: Box<dyn Fn(AttemptEvent) + Send>,
}

impl DenialLedger {
    pub fn new(sink: Box<dyn Fn(AttemptEvent) + Send>) -> Self {
        Self { known: HashMap::new(), denials: Vec::new(), beyond: 0, later: Vec::new(), sink }
    }

    /// Counts a refusal. The first of its kind is sent at once.
    pub fn record_denial(&mut self, denied: RefusedOperation, find_caller: impl FnOnce() -> CallerProcess) {
        if self.is_new((denied.operation, denied.object.clone(), denied.refusal.rule.clone()), 1) {
            let denial = denied.into_denial(find_caller());
            self.denials.push(denial.clone());
            self.send_event(AttemptEvent::Denied(denial));
        }
    }

    /// Counts a refusal that was already sent as a question, `times` times.
    pub fn count_denial(&mut self, denial: &Denial, times: u64) {
        if self.is_new((denial.operation, denial.object.as_bytes().to_vec(), denial.rule.clone()), times) {
            self.denials.push(Denial { count: times, ..denial.clone() });
        }
    }

    /// Counts refusals of one kind. Returns whether the kind is the next to be added.
    fn is_new(&mut self, kind: DenialKind, times: u64) -> bool {
        if let Some(at) = self.known.get(&kind) {
            self.denials[*at].count += times;
        } else if self.denials.len() >= MAX_DENIALS {
            self.beyond += times;
        } else {
            self.known.insert(kind, self.denials.len());
            return true;
        }
        false
    }

    /// Sends an event, after the deferred ones.
    pub fn send_event(&mut self, event: AttemptEvent) {
        self.tell_rest();
        (self.sink)(event);
    }

    /// Notes that a program was started, to be [sent](Self::tell_rest) later.
    pub fn note_execution(&mut self, pid: u32, program: Vec<u8>) {
        self.later.push(AttemptEvent::Executed { pid, program: RawText::from(program) });
    }

    /// Sends the deferred events.
    pub fn tell_rest(&mut self) {
        for event in self.later.drain(..) {
            (self.sink)(event);
        }
    }

    /// Returns the refusals with their counts, and the number of those past the limit.
    pub fn take_denials(&mut self) -> (Vec<Denial>, u64) {
        self.tell_rest();
        (std::mem::take(&mut self.denials), self.beyond)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn denied(object: &str) -> RefusedOperation {
        let refusal = PermissionRefusal::without_grant("outside");
        RefusedOperation {
            operation: DeniedOperation::Write,
            object: object.as_bytes().to_vec(),
            layer: DenialLayer::Broker,
            refusal,
        }
    }

    #[test]
    fn equal_refusals_are_reported_once_and_counted_and_the_rest_is_bounded() {
        let (sender, receiver) = channel();
        let mut ledger = DenialLedger::new(Box::new(move |event| {
            let _ = sender.send(event);
        }));
        for _ in 0..3 {
            ledger.record_denial(denied("/a"), CallerProcess::default);
        }
        for i in 0..MAX_DENIALS + 4 {
            ledger.record_denial(denied(&format!("/{i}")), CallerProcess::default);
        }
        let (denials, beyond) = ledger.take_denials();
        assert_eq!((denials.len(), denials[0].count, beyond), (MAX_DENIALS, 3, 5));
        assert_eq!(receiver.try_iter().count(), MAX_DENIALS);
    }
}
