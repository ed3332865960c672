//! What answers what (L1, L9), and for how long.

use stockade_model::{ApprovalScope, Digest, RawText};
use stockade_store::{ApprovalNamespace, ApprovalRecord, ApprovalStore, Consent, RememberError};

use crate::{answer, database_location, digest, id, session};
use Consent::{Approved, Denied};

/// Which of `remembered` answers the question `d` in session `s` at 2,000 ms.
#[track_caller]
fn check(remembered: &[ApprovalRecord], expected: Option<&str>) {
    let (_root, path) = database_location();
    let store = ApprovalStore::open(&path).unwrap();
    remembered.iter().for_each(|r| store.remember_answer(r).unwrap());
    let found = store.look_up_answer(ApprovalNamespace::Run, &digest("d"), Some(&session("s")), 2_000).unwrap();
    assert_eq!(found.map(|r| r.id), expected.map(id));
}

#[test]
fn precedence() {
    let all = |consent| {
        [
            answer("times", consent, ApprovalScope::Times(1)),
            answer("until", consent, ApprovalScope::Until(3_000)),
            answer("session", consent, ApprovalScope::Session),
            answer("always", consent, ApprovalScope::Always),
        ]
    };
    check(&[], None);
    // What is not used up answers first.
    check(&all(Approved), Some("always"));
    check(&all(Approved)[..3], Some("session"));
    check(&all(Approved)[..2], Some("until"));
    check(&all(Approved)[..1], Some("times"));
    // A refusal of any reach beats an approval of any reach, in any order.
    for denied in all(Denied).map(|r| ApprovalRecord { id: id("no"), ..r }) {
        let mut both = all(Approved).to_vec();
        both.push(denied.clone());
        check(&both, Some("no"));
        both.rotate_right(1);
        check(&both, Some("no"));
    }
}

#[test]
fn an_answer_answers_its_own_question_only() {
    let (_root, path) = database_location();
    let store = ApprovalStore::open(&path).unwrap();
    let namespaces =
        [ApprovalNamespace::Run, ApprovalNamespace::Grant, ApprovalNamespace::Escalate, ApprovalNamespace::Unsandboxed];
    for namespace in namespaces {
        let own: Digest = digest(namespace.as_str());
        store
            .remember_answer(&ApprovalRecord {
                id: id(namespace.as_str()),
                namespace,
                digest: own,
                ..answer("x", Approved, ApprovalScope::Always)
            })
            .unwrap();
    }
    for queried_namespace in namespaces {
        for of in namespaces {
            let found = store.look_up_answer(queried_namespace, &digest(of.as_str()), None, 0).unwrap();
            assert_eq!(found.is_some(), queried_namespace == of, "{queried_namespace} answered by {of}");
        }
    }
    assert_eq!(store.look_up_answer(ApprovalNamespace::Run, &digest("other"), None, 0).unwrap(), None);
}

#[test]
fn a_session_answer_ends_with_its_session() {
    let (_root, path) = database_location();
    let store = ApprovalStore::open(&path).unwrap();
    store.remember_answer(&answer("a", Approved, ApprovalScope::Session)).unwrap();
    store.remember_answer(&answer("always", Approved, ApprovalScope::Always)).unwrap();
    store.revoke_answer(&id("always"), 1).unwrap();
    let found = |name: Option<&str>| {
        store.look_up_answer(ApprovalNamespace::Run, &digest("d"), name.map(session).as_ref(), 2_000).unwrap().is_some()
    };
    assert!(found(Some("s")));
    assert!(!found(Some("other")));
    assert!(!found(None));
    assert_eq!(store.end_session(&session("other"), 5).unwrap(), 0);
    assert!(found(Some("s")));
    assert_eq!(store.end_session(&session("s"), 5).unwrap(), 1);
    assert!(!found(Some("s")));
    assert_eq!(store.find_answer(&id("a")).unwrap().unwrap().ended_ms, Some(5));
    assert_eq!(store.find_answer(&id("always")).unwrap().unwrap().ended_ms, None);
}

#[test]
fn expiry_is_exact() {
    let (_root, path) = database_location();
    let store = ApprovalStore::open(&path).unwrap();
    store.remember_answer(&answer("a", Approved, ApprovalScope::Until(3_000))).unwrap();
    let found = |now_ms| store.look_up_answer(ApprovalNamespace::Run, &digest("d"), None, now_ms).unwrap();
    assert!(found(2_999).is_some_and(|r| r.in_force(2_999)));
    for now_ms in [3_000, 3_001, u64::MAX] {
        assert!(found(now_ms).is_none());
        assert!(!answer("a", Approved, ApprovalScope::Until(3_000)).in_force(now_ms));
    }
    store.remember_answer(&answer("far", Denied, ApprovalScope::Until(u64::MAX))).unwrap();
    assert_eq!(found(3_000).unwrap().id, id("far"));
}

#[test]
fn uses_are_counted() {
    let (_root, path) = database_location();
    let store = ApprovalStore::open(&path).unwrap();
    store.remember_answer(&answer("a", Approved, ApprovalScope::Times(3))).unwrap();
    let take = || store.look_up_answer(ApprovalNamespace::Run, &digest("d"), None, 0).unwrap().map(|r| r.scope);
    assert_eq!(take(), Some(ApprovalScope::Times(2)));
    // Another answer that is not used up spares it.
    store.remember_answer(&answer("b", Approved, ApprovalScope::Always)).unwrap();
    assert_eq!(take(), Some(ApprovalScope::Always));
    store.revoke_answer(&id("b"), 1).unwrap();
    assert_eq!(take(), Some(ApprovalScope::Times(1)));
    assert_eq!(take(), Some(ApprovalScope::Times(0)));
    assert_eq!(take(), None);
    assert_eq!(store.find_answer(&id("a")).unwrap().unwrap().scope, ApprovalScope::Times(0));
}

#[test]
fn revoked_answers_answer_nothing() {
    let (_root, path) = database_location();
    let store = ApprovalStore::open(&path).unwrap();
    store.remember_answer(&answer("a", Approved, ApprovalScope::Always)).unwrap();
    assert!(store.revoke_answer(&id("a"), 7).unwrap());
    assert!(!store.revoke_answer(&id("a"), 8).unwrap(), "twice");
    assert!(!store.revoke_answer(&id("none"), 8).unwrap());
    assert_eq!(store.look_up_answer(ApprovalNamespace::Run, &digest("d"), Some(&session("s")), 9).unwrap(), None);
    let shown = store.find_answer(&id("a")).unwrap().unwrap();
    assert_eq!(shown.revoked_ms, Some(7));
    assert!(!shown.in_force(9));
}

#[test]
fn one_time_answers_are_not_remembered() {
    let (_root, path) = database_location();
    let store = ApprovalStore::open(&path).unwrap();
    let error = |r: ApprovalRecord| store.remember_answer(&r).unwrap_err();
    assert!(matches!(error(answer("a", Approved, ApprovalScope::Once)), RememberError::NothingLeft));
    assert!(matches!(error(answer("a", Denied, ApprovalScope::Times(0))), RememberError::NothingLeft));
    let homeless = ApprovalRecord { session: None, ..answer("a", Approved, ApprovalScope::Session) };
    assert!(matches!(error(homeless), RememberError::NoSession));
    let long = ApprovalRecord {
        question: RawText::from(vec![b'x'; (1 << 20) + 1]),
        ..answer("a", Approved, ApprovalScope::Always)
    };
    assert!(matches!(error(long), RememberError::TooLarge { .. }));
    store.remember_answer(&answer("a", Approved, ApprovalScope::Always)).unwrap();
    assert!(matches!(error(answer("a", Denied, ApprovalScope::Always)), RememberError::Duplicate(_)));
    assert_eq!(store.list_answers().unwrap().len(), 1);
}

#[test]
fn everything_comes_back_as_it_was() {
    let (_root, path) = database_location();
    let mut all = vec![
        answer("1", Approved, ApprovalScope::Session),
        ApprovalRecord {
            question: RawText::from(&b"\xff\0raw"[..]),
            grants: vec![],
            ..answer("2", Denied, ApprovalScope::Times(9))
        },
        ApprovalRecord { session: None, ..answer("3", Approved, ApprovalScope::Until(i64::MAX as u64)) },
        ApprovalRecord { created_ms: 0, by: "caller: é".into(), ..answer("4", Denied, ApprovalScope::Always) },
    ];
    {
        let store = ApprovalStore::open(&path).unwrap();
        all.iter().for_each(|r| store.remember_answer(r).unwrap());
    }
    // Another process would see the same: nothing is kept but the file.
    let store = ApprovalStore::open(&path).unwrap();
    let mut listed = store.list_answers().unwrap();
    listed.sort_by(|a, b| a.id.cmp(&b.id));
    all.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(listed, all);
    for r in &all {
        assert_eq!(store.find_answer(&r.id).unwrap().as_ref(), Some(r));
    }
    store.check_integrity().unwrap();
}

#[test]
fn pruning_forgets_only_unused_answers() {
    let (_root, path) = database_location();
    let store = ApprovalStore::open(&path).unwrap();
    for (name, scope) in [
        ("expired", ApprovalScope::Until(3_000)),
        ("valid", ApprovalScope::Until(9_000)),
        ("revoked", ApprovalScope::Always),
        ("always", ApprovalScope::Always),
        ("used", ApprovalScope::Times(1)),
        ("unused", ApprovalScope::Times(1)),
        ("session", ApprovalScope::Session),
    ] {
        store.remember_answer(&ApprovalRecord { digest: digest(name), ..answer(name, Approved, scope) }).unwrap();
    }
    store.revoke_answer(&id("revoked"), 3_000).unwrap();
    store.look_up_answer(ApprovalNamespace::Run, &digest("used"), None, 0).unwrap().unwrap();
    assert_eq!(store.prune_answers(500).unwrap(), 0);
    assert_eq!(store.prune_answers(5_000).unwrap(), 3);
    let mut answer_ids: Vec<String> = store.list_answers().unwrap().into_iter().map(|r| r.id.to_string()).collect();
    answer_ids.sort();
    assert_eq!(answer_ids, ["apr_always", "apr_session", "apr_unused", "apr_valid"]);
}
