//! Holds a call or a request to the egress proxy that lacks a power, until the answer arrives. A
//! call is then carried out on the very objects that were shown to the approver.

use std::os::fd::AsFd;

use stockade_engine::{HeldAnswer, HoldId};
use stockade_model::{Denial, Grant, Layer, Level, Resolution};
use stockade_sys::Errno;
use stockade_sys::notify::Answer;

use super::BrokerEvent;
use super::caller::Caller;
use super::deed::{Deed, Step};
use super::holds::{Hold, Holds, Key, Placed};
use super::ledger::{Actor, Denied};
use super::left_out::ProgramOf;
use super::requests::Request;
use super::service::{Failure, Reply, Service};
use super::view::Pins;
use crate::powers::Refusal;

/// Most calls that wait at the same time, if there are enough descriptors.
const MAX_WAITERS: u64 = 4096;
/// Descriptors that a waiting call may hold: two directories, and the objects with the two names in
/// them.
const DESCRIPTORS_OF_WAITER: u64 = 4;
/// Descriptors reserved for all other uses.
const OTHER_DESCRIPTORS: u64 = 256;
/// Most questions that one call may raise in sequence: both ends of a rename, and every protected
/// name in a moved directory.
const MAX_ROUNDS: u8 = 8;

/// A call or request that waits for an answer.
pub(super) struct Waiter {
    wanted: Wanted,
    who: Actor,
    /// The refusal that raised the question.
    denied: Denied,
}

/// Work that continues after a grant.
enum Wanted {
    Call(Box<Call>),
    Request(Request),
}

/// A trapped call.
struct Call {
    id: u64,
    deed: Deed,
    pins: Pins,
    round: u8,
}

impl Waiter {
    /// Creates the waiter for a request to the egress proxy.
    pub fn request(request: Request, denied: Denied) -> Self {
        Self { who: request.actor(), wanted: Wanted::Request(request), denied }
    }
}

/// Creates an empty table, sized by the descriptor limit of this process.
pub(super) fn table() -> Holds<Waiter> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let room = limit.saturating_sub(OTHER_DESCRIPTORS) / DESCRIPTORS_OF_WAITER;
    Holds::new(usize::try_from(room.clamp(1, MAX_WAITERS)).unwrap_or(1))
}

impl Service {
    /// Holds a refused call if an answer can help; else records and refuses it.
    pub(super) fn refuse(&mut self, caller: &Caller, deed: Option<Deed>, mut denied: Denied) {
        let id = caller.request.id;
        if let Some(step) = deed.as_ref().and_then(|deed| self.make_empty(deed, &|| caller.program())) {
            return self.finish(id, step);
        }
        let key = Key::of(&denied.refusal, &denied.object);
        let Some(key) = key.filter(|_| self.holds_calls && deed.is_some()) else {
            let done = deed.as_ref().and_then(|deed| self.leave_out(deed, &|| caller.program()));
            if done.is_some() {
                denied.refusal.rule.push_str(self.told_of(deed.as_ref()));
            }
            self.record(caller, denied);
            return self.end_refused(id, done);
        };
        let Some(deed) = deed else { return };
        if self.is_settled(&key) {
            return self.fail_refused(id, Some(&deed), &|| caller.program());
        }
        match Pins::of(&deed) {
            Ok(pins) => {
                let who = self.actor(caller);
                // The data may be of another process if the caller is gone.
                if self.notifier.is_valid(id) {
                    let wanted = Wanted::Call(Box::new(Call { id, deed, pins, round: 1 }));
                    self.hold(key, Waiter { wanted, who, denied });
                }
            }
            Err(errno) => self.fail(id, errno),
        }
    }

    /// Returns whether an earlier answer refused this already; counts the refusal then.
    pub(super) fn is_settled(&mut self, key: &Key) -> bool {
        let Some(denial) = self.holds.refused(key) else { return false };
        self.ledger().count(denial, 1);
        true
    }

    pub(super) fn hold(&mut self, key: Key, waiter: Waiter) {
        let told = || waiter.denied.clone().into_denial(waiter.who.clone());
        let denial = told();
        match self.holds.place(key, waiter, || denial.clone()) {
            Placed::Asked(id) => self.ledger().tell(BrokerEvent::Held { id: HoldId(id), denial }),
            Placed::Behind => {}
            Placed::Full(Waiter { wanted, who, mut denied }) => {
                denied.refusal.rule.push_str(", and too many calls are held already");
                self.refuse_waiter(wanted, who, denied);
            }
        }
    }

    /// Handles an answer. Granted powers are added even if no call waits any more, because the
    /// audit log lists them as powers of the attempt.
    pub(super) fn answered(&mut self, HoldId(id): HoldId, answer: HeldAnswer) {
        let hold = self.holds.take(id);
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
            let Some(mut hold) = self.holds.take(id) else { continue };
            let waiters = std::mem::take(&mut hold.waiters);
            hold.waiters = waiters.into_iter().filter_map(|w| self.carry_out(w)).map(|(waiter, _)| waiter).collect();
            self.holds.put_back(id, hold);
        }
    }

    /// Refuses all held calls, and holds nothing from now on.
    pub(super) fn hold_nothing(&mut self) {
        self.holds_calls = false;
        for id in self.holds.ids() {
            self.answered(HoldId(id), HeldAnswer::Refused);
        }
    }

    /// Opens the added roots, so that opens beneath them take the fast path.
    fn hold_roots(&self, grants: &[Grant]) {
        let Some(first) = &self.first else { return };
        let written = grants.iter().filter(|grant| matches!(grant, Grant::Write(_))).filter_map(Grant::path);
        let is_full = self.level == Level::Full;
        for path in written.filter(|path| !is_full || !self.powers.is_seen_otherwise(path)) {
            let own = is_full && !self.powers.is_staged(path.as_os_str().as_encoded_bytes());
            first.roots.add(first.root.as_fd(), path, own);
        }
    }

    /// Raises the next question of a call, or refuses it. The answer may cover only a part of the
    /// call: a second name may lack a power of its own.
    fn ask_again_or_refuse(&mut self, mut waiter: Waiter, denied: Denied) {
        let key = Key::of(&denied.refusal, &denied.object);
        let is_new = denied.refusal.grant != waiter.denied.refusal.grant;
        match (key, &mut waiter.wanted) {
            (Some(key), Wanted::Call(call)) if is_new && call.round < MAX_ROUNDS => {
                if self.is_settled(&key) {
                    return self.fail_refused(call.id, Some(&call.deed), &|| waiter.who.program.clone());
                }
                call.round += 1;
                waiter.denied = denied;
                self.hold(key, waiter);
            }
            _ => self.refuse_waiter(waiter.wanted, waiter.who, denied),
        }
    }

    /// Refuses a waiter and records that.
    fn refuse_waiter(&self, wanted: Wanted, who: Actor, denied: Denied) {
        match wanted {
            Wanted::Call(call) => {
                self.ledger().record(denied, || who.clone());
                self.fail_refused(call.id, Some(&call.deed), &|| who.program.clone());
            }
            Wanted::Request(request) => self.refuse_request(request, denied),
        }
    }

    fn refuse_all(&mut self, hold: Hold<Waiter>) {
        let denial = Denial { resolution: Resolution::Refused, ..hold.denial };
        self.ledger().count(&denial, hold.waiters.len() as u64);
        for waiter in hold.waiters {
            match waiter.wanted {
                Wanted::Call(call) => self.fail_refused(call.id, Some(&call.deed), &|| waiter.who.program.clone()),
                Wanted::Request(request) => request.refuse(denial.rule.clone(), denial.grant.clone()),
            }
        }
        self.holds.refuse(hold.key, denial);
    }

    /// Carries a waiter out with the current powers. Returns it if they do not suffice.
    fn carry_out(&mut self, waiter: Waiter) -> Option<(Waiter, Denied)> {
        let Waiter { wanted, who, denied } = waiter;
        let (wanted, lacked) = match wanted {
            Wanted::Request(request) => {
                let (request, lacked) = self.grant_request(request)?;
                (Wanted::Request(request), lacked)
            }
            Wanted::Call(call) => {
                let lacked = self.carry_out_call(&call, &who, &denied)?;
                (Wanted::Call(call), lacked)
            }
        };
        Some((Waiter { wanted, who, denied }, lacked))
    }

    /// Carries a held call out with the current powers. Returns the refusal if a power is still
    /// lacking.
    fn carry_out_call(&mut self, call: &Call, who: &Actor, asked: &Denied) -> Option<Denied> {
        let id = call.id;
        if !self.notifier.is_valid(id) {
            return None;
        }
        if call.pins.still_hold(&call.deed).is_err() {
            self.refuse_changed(id, who, asked);
            return None;
        }
        match self.perform(id, &call.deed) {
            // Neither was shown to the approver: a name that became a link, or a call whose
            // arguments the kernel would read again.
            Ok(Step::Done(Reply::Continue)) if !matches!(call.deed, Deed::Run(_)) => {
                self.refuse_changed(id, who, asked)
            }
            Ok(Step::Link(_)) => self.refuse_changed(id, who, asked),
            Ok(step) => {
                if let Deed::Run(start) = &call.deed {
                    self.executed(who.pid, &start.object);
                }
                if let (Some(room), Some(pid)) = (&self.file_room, who.pid) {
                    room.make(pid, &step);
                }
                self.finish(id, step);
            }
            Err(Failure::Native(Errno::STALE)) => self.refuse_changed(id, who, asked),
            Err(Failure::Native(errno)) => self.fail(id, errno),
            Err(Failure::Refused(denied)) => return Some(denied),
        }
        None
    }

    /// Refuses a call whose objects changed since the question was raised.
    fn refuse_changed(&self, id: u64, who: &Actor, asked: &Denied) {
        let Denied { operation, object, .. } = asked.clone();
        let refusal = Refusal { rule: "it changed while the question stood".to_owned(), grant: None };
        self.ledger().record(Denied { operation, object, layer: Layer::Broker, refusal }, || who.clone());
        self.fail(id, Errno::ACCESS);
    }

    /// Withdraws all open questions at the end of the run.
    pub(super) fn withdraw_all(&mut self) {
        for id in self.holds.sweep_all() {
            self.ledger().tell(BrokerEvent::Withdrawn(HoldId(id)));
        }
    }

    /// Drops waiters whose callers are gone.
    pub(super) fn look_after_holds(&mut self) {
        let notifier = self.notifier.clone();
        let waits = |waiter: &Waiter| match &waiter.wanted {
            Wanted::Call(call) => notifier.is_valid(call.id),
            Wanted::Request(request) => request.is_waiting(),
        };
        for id in self.holds.sweep(waits) {
            self.ledger().tell(BrokerEvent::Withdrawn(HoldId(id)));
        }
    }

    /// Ends a refused call: carries out the part that needs no power, if there is one.
    fn fail_refused(&self, id: u64, deed: Option<&Deed>, program: ProgramOf<'_>) {
        let done = deed.filter(|_| self.notifier.is_valid(id)).and_then(|deed| self.leave_out(deed, program));
        self.end_refused(id, done);
    }

    fn end_refused(&self, id: u64, done: Option<Step>) {
        match done {
            // Fails only if the caller is gone.
            Some(Step::Done(reply)) => drop(self.reply(id, reply)),
            _ => self.fail(id, Errno::ACCESS),
        }
    }

    /// Sends the result of a call to its caller.
    pub(super) fn reply(&self, id: u64, reply: Reply) -> Result<(), Errno> {
        match reply {
            Reply::Value(value) => self.notifier.answer(id, Answer::Value(value)),
            Reply::Continue => self.notifier.answer(id, Answer::Continue),
            Reply::Descriptor { fd, close_on_exec } => {
                match self.notifier.answer_with_descriptor(id, fd.as_fd(), close_on_exec) {
                    Err(errno) if errno != Errno::NOENT => self.notifier.answer(id, Answer::Error(errno)),
                    other => other,
                }
            }
        }
    }

    pub(super) fn fail(&self, id: u64, errno: Errno) {
        // Fails only if the caller is gone, so the error has no receiver.
        let _ = self.notifier.answer(id, Answer::Error(errno));
    }
}
