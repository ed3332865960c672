//! Holds a call or a request to the egress proxy that lacks a power, until the answer arrives. A
//! call is then carried out on the very objects that were shown to the approver.

use std::os::fd::AsFd;

use stockade_backend_api::{AttemptEvent, HeldAnswer, HoldId};
use stockade_model::{Denial, DenialLayer, DenialResolution, Grant, IsolationLevel};
use stockade_permissions::powers::PermissionRefusal;
use stockade_sys::Errno;
use stockade_sys::notify::NotificationAnswer;

use super::brokered_call::BrokeredCall;
use super::call_result::{CallFailure, CallProgress, CallReply};
use super::caller::CallingThread;
use super::denials::{CallerProcess, RefusedOperation};
use super::harmless_denials::ProgramLookup;
use super::holds::{BrokerQuestion, QuestionKey, QuestionTable, WaiterPlacement};
use super::requests::BrokeredRequest;
use super::service::BrokerService;
use super::view::PinnedObjects;

/// Most calls that wait at the same time, if there are enough descriptors.
const MAX_WAITERS: u64 = 4096;
/// Descriptors that a waiting call may hold: two directories, and the objects with the two names in
/// them.
const DESCRIPTORS_PER_WAITER: u64 = 4;
/// Descriptors reserved for all other uses.
const RESERVED_DESCRIPTORS: u64 = 256;
/// Most questions that one call may raise in sequence: both ends of a rename, and every protected
/// name in a moved directory.
const MAX_QUESTION_ROUNDS: u8 = 8;

/// A call or request that waits for an answer.
pub(super) struct Waiter {
    work: HeldWork,
    waiting_caller: CallerProcess,
    /// The refusal that raised the question.
    denied: RefusedOperation,
}

/// Work that continues after a grant.
enum HeldWork {
    Call(Box<HeldBrokerCall>),
    Request(BrokeredRequest),
}

/// A trapped call.
struct HeldBrokerCall {
    id: u64,
    broker_call: BrokeredCall,
    pins: PinnedObjects,
    round: u8,
}

impl HeldBrokerCall {
    fn fail_refused(&self, service: &BrokerService, caller: &CallerProcess) {
        service.fail_refused(self.id, &self.broker_call, &|| caller.program.clone());
    }
}

impl Waiter {
    /// Creates the waiter for a request to the egress proxy.
    pub fn for_request(request: BrokeredRequest, denied: RefusedOperation) -> Self {
        Self { waiting_caller: request.caller.clone(), work: HeldWork::Request(request), denied }
    }
}

/// Creates an empty table, sized by the descriptor limit of this process.
pub(super) fn new_question_table() -> QuestionTable<Waiter> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let room = limit.saturating_sub(RESERVED_DESCRIPTORS) / DESCRIPTORS_PER_WAITER;
    QuestionTable::new(usize::try_from(room.clamp(1, MAX_WAITERS)).unwrap_or(1))
}

impl BrokerService {
    /// Holds a refused call if an answer can help; else records and refuses it.
    pub(super) fn hold_or_refuse(
        &mut self,
        caller: &CallingThread,
        broker_call: Option<BrokeredCall>,
        mut denied: RefusedOperation,
    ) {
        let (id, program) = (caller.request.id, &|| caller.program_path());
        let Some(broker_call) = broker_call else {
            self.record_denial(caller, denied);
            return self.fail_call(id, Errno::ACCESS);
        };
        if let Some(step) = self.make_empty(&broker_call, program) {
            return self.finish_call(id, step);
        }
        let key = QuestionKey::from_refusal(&denied.refusal, &denied.object);
        let Some(key) = key.filter(|_| self.holds_calls) else {
            let done = self.leave_out(&broker_call, program);
            if done.is_some() {
                denied.refusal.rule.push_str(self.describe_omission(&broker_call));
            }
            self.record_denial(caller, denied);
            return self.end_refused(id, done);
        };
        if self.is_settled(&key) {
            return self.fail_refused(id, &broker_call, program);
        }
        match PinnedObjects::pin_objects(&broker_call) {
            Ok(pins) => {
                let waiting_caller = self.identify_caller(caller);
                // The data may be of another process if the caller is gone.
                if self.notifier.is_valid(id) {
                    let work = HeldWork::Call(Box::new(HeldBrokerCall { id, broker_call, pins, round: 1 }));
                    self.hold_waiter(key, Waiter { work, waiting_caller, denied });
                }
            }
            Err(errno) => self.fail_call(id, errno),
        }
    }

    /// Returns whether an earlier answer refused this already; counts the refusal then.
    pub(super) fn is_settled(&mut self, key: &QuestionKey) -> bool {
        let Some(denial) = self.holds.find_refusal(key) else { return false };
        self.lock_ledger().count_denial(denial, 1);
        true
    }

    pub(super) fn hold_waiter(&mut self, key: QuestionKey, waiter: Waiter) {
        let denial = waiter.denied.clone().into_denial(waiter.waiting_caller.clone());
        match self.holds.add_waiter(key, waiter, || denial.clone()) {
            WaiterPlacement::Asked(id) => self.lock_ledger().send_event(AttemptEvent::Held { id: HoldId(id), denial }),
            WaiterPlacement::Behind => {}
            WaiterPlacement::Full(Waiter { work, waiting_caller, mut denied }) => {
                denied.refusal.rule.push_str(", and too many calls are held already");
                self.refuse_waiter(work, waiting_caller, denied);
            }
        }
    }

    /// Handles an answer. Granted powers are added even if no call waits any more, because the
    /// audit log lists them as powers of the attempt.
    pub(super) fn handle_answer(&mut self, HoldId(id): HoldId, answer: HeldAnswer) {
        let hold = self.holds.take_question(id);
        let grants = match answer {
            HeldAnswer::Granted(grants) => grants,
            HeldAnswer::Refused => return hold.map_or((), |hold| self.refuse_all(hold)),
        };
        self.powers.extend(&grants, self.level);
        self.hold_roots(&grants);
        for waiter in hold.into_iter().flat_map(|hold| hold.waiters) {
            if let Some((waiter, denied)) = self.carry_out(waiter) {
                self.ask_again_or_refuse(waiter, denied);
            }
        }
        for id in self.holds.covered_by(&grants) {
            let Some(mut hold) = self.holds.take_question(id) else { continue };
            let waiters = std::mem::take(&mut hold.waiters);
            hold.waiters = waiters.into_iter().filter_map(|w| self.carry_out(w)).map(|(waiter, _)| waiter).collect();
            self.holds.put_back(id, hold);
        }
    }

    /// Refuses all held calls, and holds nothing from now on.
    pub(super) fn hold_nothing(&mut self) {
        self.holds_calls = false;
        for id in self.holds.question_ids() {
            self.handle_answer(HoldId(id), HeldAnswer::Refused);
        }
    }

    /// Opens the added roots, so that opens beneath them take the fast path.
    fn hold_roots(&self, grants: &[Grant]) {
        let Some(first) = &self.first else { return };
        let written = grants.iter().filter(|grant| matches!(grant, Grant::Write(_))).filter_map(Grant::path);
        let is_full = self.level == IsolationLevel::Full;
        for path in written.filter(|path| !is_full || !self.powers.is_seen_otherwise(path)) {
            let own = is_full && !self.powers.is_staged(path.as_os_str().as_encoded_bytes());
            first.roots.add_root(first.root.as_fd(), path, own);
        }
    }

    /// Raises the next question of a call, or refuses it. The answer may cover only a part of the
    /// call: a second name may lack a power of its own.
    fn ask_again_or_refuse(&mut self, mut waiter: Waiter, denied: RefusedOperation) {
        let key = QuestionKey::from_refusal(&denied.refusal, &denied.object);
        let is_new = denied.refusal.grant != waiter.denied.refusal.grant;
        match (key, &mut waiter.work) {
            (Some(key), HeldWork::Call(call)) if is_new && call.round < MAX_QUESTION_ROUNDS => {
                if self.is_settled(&key) {
                    return call.fail_refused(self, &waiter.waiting_caller);
                }
                call.round += 1;
                waiter.denied = denied;
                self.hold_waiter(key, waiter);
            }
            _ => self.refuse_waiter(waiter.work, waiter.waiting_caller, denied),
        }
    }

    /// Refuses a waiter and records that.
    fn refuse_waiter(&self, work: HeldWork, waiting_caller: CallerProcess, denied: RefusedOperation) {
        match work {
            HeldWork::Call(call) => {
                self.lock_ledger().record_denial(denied, || waiting_caller.clone());
                call.fail_refused(self, &waiting_caller);
            }
            HeldWork::Request(request) => self.refuse_request(request, denied),
        }
    }

    fn refuse_all(&mut self, hold: BrokerQuestion<Waiter>) {
        let denial = Denial { resolution: DenialResolution::Refused, ..hold.denial };
        self.lock_ledger().count_denial(&denial, hold.waiters.len() as u64);
        for waiter in hold.waiters {
            match waiter.work {
                HeldWork::Call(call) => call.fail_refused(self, &waiter.waiting_caller),
                HeldWork::Request(request) => request.send_refusal(denial.rule.clone(), denial.grant.clone()),
            }
        }
        self.holds.remember_refusal(hold.key, denial);
    }

    /// Carries a waiter out with the current powers. Returns it if they do not suffice.
    fn carry_out(&mut self, waiter: Waiter) -> Option<(Waiter, RefusedOperation)> {
        let Waiter { work, waiting_caller, denied } = waiter;
        let (work, lacked) = match work {
            HeldWork::Request(request) => {
                let (request, lacked) = self.grant_request(request)?;
                (HeldWork::Request(request), lacked)
            }
            HeldWork::Call(call) => {
                let lacked = self.carry_out_call(&call, &waiting_caller, &denied)?;
                (HeldWork::Call(call), lacked)
            }
        };
        Some((Waiter { work, waiting_caller, denied }, lacked))
    }

    /// Carries a held call out with the current powers. Returns the refusal if a power is still
    /// lacking.
    fn carry_out_call(
        &mut self,
        call: &HeldBrokerCall,
        waiting_caller: &CallerProcess,
        original_denial: &RefusedOperation,
    ) -> Option<RefusedOperation> {
        let id = call.id;
        if !self.notifier.is_valid(id) {
            return None;
        }
        if !call.pins.still_hold(&call.broker_call) {
            self.refuse_changed(id, waiting_caller, original_denial);
            return None;
        }
        match self.perform_call(id, &call.broker_call) {
            // Neither was shown to the approver: a name that became a link, or a call whose
            // arguments the kernel would read again.
            Ok(CallProgress::Done(CallReply::Continue)) if !matches!(call.broker_call, BrokeredCall::Run(_)) => {
                self.refuse_changed(id, waiting_caller, original_denial)
            }
            Ok(CallProgress::Link(_)) => self.refuse_changed(id, waiting_caller, original_denial),
            Ok(step) => {
                if let BrokeredCall::Run(start) = &call.broker_call {
                    self.report_execution(waiting_caller.pid, &start.object);
                }
                if let (Some(room), Some(pid)) = (&self.file_room, waiting_caller.pid) {
                    room.raise_size_limit(pid, &step);
                }
                self.finish_call(id, step);
            }
            Err(CallFailure::Native(Errno::STALE)) => self.refuse_changed(id, waiting_caller, original_denial),
            Err(CallFailure::Native(errno)) => self.fail_call(id, errno),
            Err(CallFailure::Refused(denied)) => return Some(denied),
        }
        None
    }

    /// Refuses a call whose objects changed since the question was raised.
    fn refuse_changed(&self, id: u64, waiting_caller: &CallerProcess, original_denial: &RefusedOperation) {
        let RefusedOperation { operation, object, .. } = original_denial.clone();
        let refusal = PermissionRefusal::without_grant("it changed while the question was open");
        let denied = RefusedOperation::new(operation, object, DenialLayer::Broker, refusal);
        self.lock_ledger().record_denial(denied, || waiting_caller.clone());
        self.fail_call(id, Errno::ACCESS);
    }

    /// Withdraws all open questions at the end of the run.
    pub(super) fn withdraw_all(&mut self) {
        for id in self.holds.sweep_all() {
            self.lock_ledger().send_event(AttemptEvent::Withdrawn(HoldId(id)));
        }
    }

    /// Drops waiters whose callers are gone.
    pub(super) fn look_after_holds(&mut self) {
        let notifier = self.notifier.clone();
        let waits = |waiter: &Waiter| match &waiter.work {
            HeldWork::Call(call) => notifier.is_valid(call.id),
            HeldWork::Request(request) => request.is_waiting(),
        };
        for id in self.holds.sweep_waiters(waits) {
            self.lock_ledger().send_event(AttemptEvent::Withdrawn(HoldId(id)));
        }
    }

    /// Ends a refused call: carries out the part that needs no power, if there is one.
    fn fail_refused(&self, id: u64, broker_call: &BrokeredCall, program: ProgramLookup<'_>) {
        let done = if self.notifier.is_valid(id) { self.leave_out(broker_call, program) } else { None };
        self.end_refused(id, done);
    }

    fn end_refused(&self, id: u64, done: Option<CallProgress>) {
        match done {
            // Fails only if the caller is gone.
            Some(CallProgress::Done(reply)) => drop(self.send_reply(id, reply)),
            _ => self.fail_call(id, Errno::ACCESS),
        }
    }

    /// Sends the result of a call to its caller.
    pub(super) fn send_reply(&self, id: u64, reply: CallReply) -> Result<(), Errno> {
        match reply {
            CallReply::Value(value) => self.notifier.answer_call(id, NotificationAnswer::Value(value)),
            CallReply::Continue => self.notifier.answer_call(id, NotificationAnswer::Continue),
            CallReply::Descriptor { fd, close_on_exec } => {
                match self.notifier.answer_with_descriptor(id, fd.as_fd(), close_on_exec) {
                    Err(errno) if errno != Errno::NOENT => {
                        self.notifier.answer_call(id, NotificationAnswer::Error(errno))
                    }
                    other => other,
                }
            }
        }
    }

    pub(super) fn fail_call(&self, id: u64, errno: Errno) {
        // Fails only if the caller is gone, so the error has no receiver.
        let _ = self.notifier.answer_call(id, NotificationAnswer::Error(errno));
    }
}
