//! Table of held calls: the open questions and the waiters behind each. There is one question per
//! object. A caller that needs the same right on the same object waits behind the first, and a
//! right that was refused once is refused without a question.
//!
//! Pure: the table makes no system calls, and its waiters are opaque. All sizes are limited.

use std::collections::{BTreeMap, HashMap};
use std::mem::{Discriminant, discriminant};

use stockade_model::{Denial, Grant};

use stockade_permissions::powers::PermissionRefusal;

/// Most questions that may be open at the same time.
const MAX_OPEN_QUESTIONS: usize = 1000;
/// Most objects that are refused without a question. After that many refusals no new question is
/// asked, because such a program tries everything.
const MAX_REFUSED_OBJECTS: usize = 1000;
/// Waiters that are checked in one round. The kernel is asked about each, which takes time in
/// proportion to their number.
const SWEEP_BATCH_SIZE: usize = 256;

/// Subject of a question.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct QuestionKey {
    /// The kind of the grant that would answer.
    kind: Discriminant<Grant>,
    is_effect: bool,
    object: Vec<u8>,
}

impl QuestionKey {
    /// Returns the question about `object` that the grant of `refusal` would answer, if the power
    /// can be added to a running sandbox. Hidden files stay hidden until another attempt.
    pub fn from_refusal(refusal: &PermissionRefusal, object: &[u8]) -> Option<Self> {
        let (grant, mut object) = (refusal.grant.as_ref()?, object.to_vec());
        match grant {
            Grant::Write(_) | Grant::Socket(_) | Grant::Connect(_) => {}
            // Several rules may be about one program: a refusal of `git push` does not concern
            // `git commit`.
            Grant::Exec(_) => {
                object.push(0);
                object.extend_from_slice(refusal.rule.as_bytes());
            }
            // A program that does it twice raises one question, with any arguments.
            Grant::Effect(needed) => object = needed.to_string().into_bytes(),
            // Each secret has a question of its own, for any destination.
            Grant::Secret(needed) => {
                object.push(0);
                object.extend_from_slice(needed.name().as_bytes());
            }
            Grant::Read(_) | Grant::Sign(_) | Grant::Listen(_) | Grant::Env(_) | Grant::Limit(..) => return None,
        }
        Some(Self { kind: discriminant(grant), is_effect: matches!(grant, Grant::Effect(_)), object })
    }
}

/// An open question.
pub(super) struct BrokerQuestion<W> {
    pub key: QuestionKey,
    /// The refusal as it was reported.
    pub denial: Denial,
    /// The waiters, in order of arrival.
    pub waiters: Vec<W>,
}

/// Result of adding a waiter.
pub(super) enum WaiterPlacement<W> {
    /// The waiter is the first: ask the question with this number.
    Asked(u64),
    /// Another waiter waits for the same answer already.
    Behind,
    /// The table is full; the waiter is returned.
    Full(W),
}

/// The open questions.
pub(super) struct QuestionTable<W> {
    max_waiters: usize,
    last: u64,
    open: BTreeMap<u64, BrokerQuestion<W>>,
    by_key: HashMap<QuestionKey, u64>,
    refused: HashMap<QuestionKey, Denial>,
    waiters: usize,
    swept: u64,
}

impl<W> QuestionTable<W> {
    /// Creates a table with room for `max_waiters`.
    pub fn new(max_waiters: usize) -> Self {
        Self {
            max_waiters,
            last: 0,
            open: BTreeMap::new(),
            by_key: HashMap::new(),
            refused: HashMap::new(),
            waiters: 0,
            swept: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the refusal that answered this question before.
    pub fn find_refusal(&self, key: &QuestionKey) -> Option<&Denial> {
        self.refused.get(key)
    }

    /// Adds a waiter to the question for `key`, or opens the question; `denial` is its content.
    pub fn add_waiter(&mut self, key: QuestionKey, waiter: W, denial: impl FnOnce() -> Denial) -> WaiterPlacement<W> {
        if self.waiters >= self.max_waiters {
            return WaiterPlacement::Full(waiter);
        }
        if let Some(hold) = self.by_key.get(&key).and_then(|id| self.open.get_mut(id)) {
            hold.waiters.push(waiter);
            self.waiters += 1;
            return WaiterPlacement::Behind;
        }
        // Effects are few, and the user would not learn of one without a question.
        let tries_everything = self.refused.len() >= MAX_REFUSED_OBJECTS && !key.is_effect;
        if self.open.len() >= MAX_OPEN_QUESTIONS || tries_everything {
            return WaiterPlacement::Full(waiter);
        }
        self.last += 1;
        self.insert(self.last, BrokerQuestion { key, denial: denial(), waiters: vec![waiter] });
        WaiterPlacement::Asked(self.last)
    }

    /// Removes a question with all its waiters.
    pub fn take_question(&mut self, id: u64) -> Option<BrokerQuestion<W>> {
        let hold = self.open.remove(&id)?;
        self.by_key.remove(&hold.key);
        self.waiters -= hold.waiters.len();
        Some(hold)
    }

    /// Puts back a question that was taken and is not settled.
    pub fn put_back(&mut self, id: u64, hold: BrokerQuestion<W>) {
        if !hold.waiters.is_empty() {
            self.insert(id, hold);
        }
    }

    /// Remembers a refusal.
    pub fn remember_refusal(&mut self, key: QuestionKey, denial: Denial) {
        self.refused.insert(key, denial);
    }

    /// Returns the open questions that `grants` may have settled.
    pub fn covered_by(&self, grants: &[Grant]) -> Vec<u64> {
        let settles = |hold: &BrokerQuestion<W>| {
            hold.denial
                .grant
                .as_ref()
                .is_some_and(|needed| grants.iter().any(|granted| may_cover_grant(granted, needed)))
        };
        self.open.iter().filter(|(_, hold)| settles(hold)).map(|(id, _)| *id).collect()
    }

    /// Drops waiters for which `waits` returns false; each call checks some of them. Returns the
    /// questions that have no waiter any more.
    pub fn sweep_waiters(&mut self, waits: impl Fn(&W) -> bool) -> Vec<u64> {
        let mut looked = 0;
        let mut empty = Vec::new();
        let round: Vec<u64> =
            self.open.range(self.swept + 1..).chain(self.open.range(..=self.swept)).map(|(id, _)| *id).collect();
        for id in round {
            if looked >= SWEEP_BATCH_SIZE {
                break;
            }
            let Some(hold) = self.open.get_mut(&id) else { continue };
            let before = hold.waiters.len();
            hold.waiters.retain(&waits);
            self.waiters -= before - hold.waiters.len();
            if hold.waiters.is_empty() {
                empty.push(id);
            }
            looked += before;
            self.swept = id;
        }
        for id in &empty {
            self.take_question(*id);
        }
        empty
    }

    /// Returns the open questions.
    pub fn question_ids(&self) -> Vec<u64> {
        self.open.keys().copied().collect()
    }

    /// Removes all questions and returns them.
    pub fn sweep_all(&mut self) -> Vec<u64> {
        self.question_ids().into_iter().filter(|id| self.take_question(*id).is_some()).collect()
    }

    fn insert(&mut self, id: u64, hold: BrokerQuestion<W>) {
        self.by_key.insert(hold.key.clone(), id);
        self.waiters += hold.waiters.len();
        self.open.insert(id, hold);
    }
}

/// Returns whether a granted power may be the wanted one.
fn may_cover_grant(granted: &Grant, needed: &Grant) -> bool {
    match (granted, needed) {
        (Grant::Connect(granted), Grant::Connect(needed)) => granted.covers(needed),
        (Grant::Secret(granted), Grant::Secret(needed)) => granted.covers(needed),
        (Grant::Effect(granted), Grant::Effect(needed)) => granted.covers(needed),
        _ => granted.path().zip(needed.path()).is_some_and(|(granted, needed)| needed.starts_with(granted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_model::{DenialLayer, DenialResolution, DeniedOperation, RawText};

    fn denial(object: &str) -> Denial {
        Denial {
            operation: DeniedOperation::Create,
            object: RawText::from(object),
            pid: None,
            program: None,
            layer: DenialLayer::Broker,
            rule: "outside".to_owned(),
            grant: Some(Grant::Write(object.into())),
            resolution: DenialResolution::Recorded,
            count: 1,
        }
    }

    fn key(object: &str) -> QuestionKey {
        of(&format!("write {object}"), "outside", object).unwrap()
    }

    fn of(grant: &str, rule: &str, object: &str) -> Option<QuestionKey> {
        QuestionKey::from_refusal(
            &PermissionRefusal { rule: rule.to_owned(), grant: grant.parse().ok() },
            object.as_bytes(),
        )
    }

    fn put(holds: &mut QuestionTable<u64>, object: &str, waiter: u64) -> Option<u64> {
        match holds.add_waiter(key(object), waiter, || denial(object)) {
            WaiterPlacement::Asked(id) => Some(id),
            WaiterPlacement::Behind => Some(0),
            WaiterPlacement::Full(_) => None,
        }
    }

    #[test]
    fn equal_calls_wait_behind_the_first_and_the_number_is_bounded() {
        let mut holds = QuestionTable::new(5);
        assert_eq!(put(&mut holds, "/a", 1), Some(1));
        assert_eq!(put(&mut holds, "/a", 2), Some(0));
        assert_eq!(put(&mut holds, "/b", 3), Some(2));
        assert_eq!(holds.covered_by(&[Grant::Write("/a".into())]), [1]);
        assert_eq!(holds.covered_by(&[Grant::Write("/".into())]), [1, 2]);
        let hold = holds.take_question(1).unwrap();
        assert_eq!(hold.waiters, [1, 2]);
        assert_eq!(put(&mut holds, "/a", 4), Some(3), "answered: a new question");
        for (n, expected) in [(5, Some(0)), (6, Some(0)), (7, Some(0)), (8, None)] {
            assert_eq!(put(&mut holds, "/a", n), expected);
        }
    }

    #[test]
    fn too_many_questions_or_refusals_are_no_questions() {
        let mut holds = QuestionTable::new(usize::MAX);
        for n in 0..MAX_OPEN_QUESTIONS as u64 {
            assert!(put(&mut holds, &format!("/{n}"), n).is_some());
        }
        assert_eq!(put(&mut holds, "/more", 0), None);
        let mut holds = QuestionTable::new(usize::MAX);
        for n in 0..MAX_REFUSED_OBJECTS as u64 {
            let id = put(&mut holds, &format!("/{n}"), n).unwrap();
            let hold = holds.take_question(id).unwrap();
            holds.remember_refusal(hold.key, hold.denial);
        }
        assert!(holds.find_refusal(&key("/7")).is_some());
        assert_eq!(put(&mut holds, "/more", 0), None);
    }

    #[test]
    fn the_last_waiter_takes_its_question_along() {
        let mut holds = QuestionTable::new(1000);
        for n in 0..600 {
            put(&mut holds, &format!("/{}", n / 2), n);
        }
        let is_gone = |id: &u64| !(100..105).contains(id);
        let mut withdrawn = Vec::new();
        for _ in 0..3 {
            withdrawn.extend(holds.sweep_waiters(is_gone));
        }
        assert_eq!(withdrawn, [51, 52]);
        assert_eq!(holds.take_question(53).unwrap().waiters, [105]);
        assert!(!holds.is_empty());
    }

    #[test]
    fn one_target_is_one_question_and_a_wider_grant_settles_it() {
        let mut holds = QuestionTable::new(9);
        for (target, expected) in [("a.b:1", Some(1)), ("a.b:1", Some(0)), ("c.b:1", Some(2)), ("a.b:2", Some(3))] {
            let grant = format!("connect {target}");
            let denial = || Denial { grant: grant.parse().ok(), ..denial(target) };
            let placed = holds.add_waiter(of(&grant, "outside", target).unwrap(), 7, denial);
            let id = match placed {
                WaiterPlacement::Asked(id) => Some(id),
                WaiterPlacement::Behind => Some(0),
                WaiterPlacement::Full(_) => None,
            };
            assert_eq!(id, expected, "{target}");
        }
        for (granted, settled) in [("*.b:1", vec![1, 2]), ("a.b", vec![1, 3]), ("*.c", vec![])] {
            assert_eq!(holds.covered_by(&[format!("connect {granted}").parse().unwrap()]), settled, "{granted}");
        }
    }

    #[test]
    fn only_powers_that_can_be_added_in_place_are_asked() {
        for grant in ["read /a", "listen 1", "env A", "none"] {
            assert_eq!(of(grant, "rule", "/a"), None);
        }
        assert_ne!(Some(key("/a")), of("socket /a", "outside", "/a"));
        assert_ne!(of("secret a to b:1", "outside", "b:1"), of("secret c to b:1", "outside", "b:1"));
        assert_ne!(of("secret a to b:1", "outside", "b:1"), of("connect b:1", "outside", "b:1"));
        assert_ne!(of("exec /a", "program: a b", "/a"), of("exec /a", "program: a c", "/a"));
    }
}
