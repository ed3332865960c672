//! Each message that a run may send, without sockets.

use super::*;
use crate::host_key::public_key_text;
use crate::host_key::tests::TestKey;
use crate::statement::tests::{authentication_text, git_text};

/// User's agent that signs everything.
struct Willing;

impl AgentKeys for Willing {
    fn sign_data(&self, _: &[u8], data: &[u8], _: u32) -> Option<Vec<u8>> {
        Some([b"signed ", data].concat())
    }
}

fn key(seed: u8) -> Vec<u8> {
    TestKey::new(seed).public_key_bytes()
}

fn identity(seed: u8) -> AgentIdentity {
    AgentIdentity {
        fingerprint: compute_fingerprint(&key(seed)).unwrap(),
        key: key(seed),
        comment: "somebody's".to_owned(),
    }
}

fn used(seed: u8, purpose: &str) -> SignUse {
    format!("{} {purpose}", compute_fingerprint(&key(seed)).unwrap()).parse().unwrap()
}

/// Keys 1 and 2 belong to the user, 10 to a.example, 11 to b.example.
fn filter(uses: &[SignUse]) -> AgentFilter {
    let line = |name: &str, seed| format!("{name} {}\n", public_key_text(&key(seed)).unwrap());
    let known = KnownHosts::parse_text(&(line("a.example", 10) + &line("b.example", 11)));
    AgentFilter::new(SigningRules::new(uses, &[identity(1), identity(2)], known).unwrap())
}

fn sign_message(seed: u8, data: &[u8]) -> Vec<u8> {
    let mut out = vec![message::SIGN_REQUEST];
    put_string(&mut out, &key(seed));
    put_string(&mut out, data);
    out.extend_from_slice(&[0; 4]);
    out
}

fn bind_message(host: &TestKey, session: &[u8], signature: &[u8], is_forwarding: u8) -> Vec<u8> {
    let mut out = vec![message::EXTENSION];
    for part in [SESSION_BIND, &host.public_key_bytes(), session, signature] {
        put_string(&mut out, part);
    }
    out.push(is_forwarding);
    out
}

/// Returns the answer to the last of these messages, and the rule if it was refused.
fn last(filter: &AgentFilter, messages: &[Vec<u8>]) -> (u8, String) {
    let mut connection = AgentConnection::default();
    let mut last = (0, String::new());
    for message in messages {
        let (answer, outcome) = filter.answer_message(&mut connection, message, &Willing);
        let rule = match outcome {
            Some(Err(refused)) => format!(
                "{}{}",
                refused.rule,
                refused.key_use.map(|key_use| format!(" | {}", key_use.into_grant())).unwrap_or_default()
            ),
            Some(Ok(signed)) => format!("signed {}", String::from_utf8_lossy(&signed.object)),
            None => String::new(),
        };
        last = (answer[0], rule);
    }
    last
}

#[test]
fn only_granted_keys_are_listed() {
    let (answer, _) = filter(&[used(1, "for git"), used(1, "to a.example")]).answer_message(
        &mut AgentConnection::default(),
        &[message::REQUEST_IDENTITIES],
        &Willing,
    );
    let mut reader = SshWireReader::new(&answer[1..]);
    assert_eq!((reader.read_number(), reader.read_string()), (Some(1), Some(&key(1)[..])));
    assert_eq!(reader.read_string(), Some(&b""[..]));
    assert_eq!(reader.expect_end(), Some(()));
}

#[test]
fn a_key_for_git_signs_for_git_alone() {
    let filter = filter(&[used(1, "for git")]);
    let git = git_text(b"git", b"", b"sha256", &[0xab; 32]);
    let (kind, reply_text) = last(&filter, &[sign_message(1, &git)]);
    assert_eq!((kind, reply_text), (message::SIGN_RESPONSE, format!("signed sha256:{}", "ab".repeat(32))));
    let neither = "neither a signature of git nor the authentication to a server";
    for data in [git_text(b"file", b"", b"sha256", &[1; 32]), b"anything".to_vec(), Vec::new()] {
        assert_eq!(last(&filter, &[sign_message(1, &data)]), (message::FAILURE, neither.to_owned()));
    }
    let other = compute_fingerprint(&key(2)).unwrap();
    let reply_text = format!("this key may not sign for git | sign {other} for git");
    assert_eq!(last(&filter, &[sign_message(2, &git)]), (message::FAILURE, reply_text));
    // A key that the user does not have is not suggested.
    assert_eq!(last(&filter, &[sign_message(3, &git)]), (message::FAILURE, "this key may not sign for git".to_owned()));
}

#[test]
fn a_key_to_a_host_authenticates_there_alone() {
    let filter = filter(&[used(1, "to a.example")]);
    let (a, b) = (TestKey::new(10), TestKey::new(11));
    let bind = |host: &TestKey, session: &[u8]| bind_message(host, session, &host.sign_data(session), 0);
    for host_key in [None, Some(&a.public_key_bytes()[..])] {
        let messages = [bind(&a, b"s1"), sign_message(1, &authentication_text(b"s1", &key(1), host_key))];
        assert_eq!(last(&filter, &messages), (message::SIGN_RESPONSE, "signed user@a.example:22".to_owned()));
    }
    let plain = authentication_text(b"s1", &key(1), None);
    let unbound = "the client does not name the server: this needs ssh of OpenSSH 8.9 or later";
    let stray = "an authentication for another session, server or key";
    let here = "this key may not authenticate to this server";
    let own = compute_fingerprint(&key(1)).unwrap();
    let other = compute_fingerprint(&key(2)).unwrap();
    for (messages, rule) in [
        (vec![sign_message(1, &plain)], unbound.to_owned()),
        (vec![bind(&b, b"s1"), sign_message(1, &plain)], format!("{here} | sign {own} to b.example")),
        (vec![bind(&TestKey::new(12), b"s1"), sign_message(1, &plain)], here.to_owned()),
        (vec![bind(&a, b"s2"), sign_message(1, &plain)], stray.to_owned()),
        (vec![bind_message(&a, b"s1", &b.sign_data(b"s1"), 0), sign_message(1, &plain)], unbound.to_owned()),
        (vec![bind_message(&a, b"s1", &a.sign_data(b"s2"), 0), sign_message(1, &plain)], unbound.to_owned()),
        (vec![bind_message(&a, b"s1", &a.sign_data(b"s1"), 1), sign_message(1, &plain)], String::new()),
        (
            vec![bind_message(&a, b"s1", &a.sign_data(b"s1"), 1), bind(&a, b"s1"), sign_message(1, &plain)],
            String::new(),
        ),
        // Only the first session counts.
        (vec![bind(&a, b"s2"), bind(&a, b"s1"), sign_message(1, &plain)], stray.to_owned()),
        (
            vec![bind(&a, b"s1"), sign_message(1, &authentication_text(b"s1", &key(1), Some(&b.public_key_bytes())))],
            stray.to_owned(),
        ),
        (vec![bind(&a, b"s1"), sign_message(1, &authentication_text(b"s1", &key(2), None))], stray.to_owned()),
        (
            vec![bind(&a, b"s1"), sign_message(2, &authentication_text(b"s1", &key(2), None))],
            format!("{here} | sign {other} to a.example"),
        ),
        (
            vec![bind(&a, b"s1"), sign_message(1, &git_text(b"git", b"", b"sha256", &[1; 32]))],
            format!("this key may not sign for git | sign {own} for git"),
        ),
    ] {
        assert_eq!(last(&filter, &messages), (message::FAILURE, rule));
    }
}

#[test]
fn another_machine_gets_nothing() {
    let filter = filter(&[used(1, "for git"), used(1, "to a.example")]);
    let a = TestKey::new(10);
    let forwarded = bind_message(&a, b"s1", &a.sign_data(b"s1"), 1);
    let git = sign_message(1, &git_text(b"git", b"", b"sha256", &[1; 32]));
    for message in [git, vec![message::REQUEST_IDENTITIES]] {
        assert_eq!(last(&filter, &[forwarded.clone(), message]).0, message::FAILURE);
    }
}

proptest::proptest! {
    #[test]
    fn no_bytes_are_answered_with_more_than_a_failure(
        mut message in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400),
        kind in 0_u8..30,
    ) {
        if let Some(first) = message.first_mut() {
            *first = kind;
        }
        let (answer, _) = filter(&[used(1, "for git"), used(1, "to a.example")])
            .answer_message(&mut AgentConnection::default(), &message, &Willing);
        let is_list = message == [message::REQUEST_IDENTITIES];
        assert!(answer == [message::FAILURE] || is_list);
    }
}

#[test]
fn nothing_else_of_the_protocol_is_answered() {
    let filter = filter(&[used(1, "for git")]);
    for kind in 0..=u8::MAX {
        let (answer, _) = filter.answer_message(&mut AgentConnection::default(), &[kind, 0], &Willing);
        assert_eq!(answer, [message::FAILURE], "{kind}");
    }
    assert_eq!(filter.answer_message(&mut AgentConnection::default(), &[], &Willing).0, [message::FAILURE]);
}

#[test]
fn signatures_of_a_run_are_bounded() {
    let filter = filter(&[used(1, "for git")]);
    let request = sign_message(1, &git_text(b"git", b"", b"sha256", &[1; 32]));
    let made =
        (0..MAX_SIGNATURES + 5).filter(|_| last(&filter, std::slice::from_ref(&request)).0 == message::SIGN_RESPONSE);
    assert_eq!(made.count(), MAX_SIGNATURES as usize);
}

#[test]
fn unavailable_layers_are_missing() {
    let known = KnownHosts::default();
    let missing = |key_use: SignUse| SigningRules::new(&[key_use], &[identity(1)], known.clone()).unwrap_err();
    assert_eq!(missing(used(2, "for git")), UnmetGrantError::Key(used(2, "for git")));
    assert_eq!(missing(used(1, "to a.example")), UnmetGrantError::Server(used(1, "to a.example")));
}
