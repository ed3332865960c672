//! The decision on each message to the agent of a run. Pure: the user's agent is called through a
//! trait, and events are returned.
//!
//! This module must not know sockets, nor threads.

use std::sync::atomic::{AtomicU32, Ordering};

use stockade_model::{KeyFingerprint, SignPurpose, SignUse};

use crate::host_key::{compute_fingerprint, is_signed, read_key_kind};
use crate::known_hosts::KnownHosts;
use crate::statement::{ServerAuthentication, SigningPayload};
use crate::upstream::AgentIdentity;
use crate::wire::{SshWireReader, put_string};

/// Messages of the protocol (draft-miller-ssh-agent, section 6.1).
pub(crate) mod message {
    pub(crate) const FAILURE: u8 = 5;
    pub(crate) const SUCCESS: u8 = 6;
    pub(crate) const REQUEST_IDENTITIES: u8 = 11;
    pub(crate) const IDENTITIES_ANSWER: u8 = 12;
    pub(crate) const SIGN_REQUEST: u8 = 13;
    pub(crate) const SIGN_RESPONSE: u8 = 14;
    pub(crate) const EXTENSION: u8 = 27;
}

const SESSION_BIND: &[u8] = b"session-bind@openssh.com";
/// Known flags of a request: RSA with SHA-256, with SHA-512.
const KNOWN_FLAGS: u32 = 2 | 4;
/// Most signatures of a run. Each is an event of the audit log, which has that limit for a run.
pub(crate) const MAX_SIGNATURES: u32 = 1000;

/// Keys of the user's agent.
pub trait AgentKeys {
    /// Signs `data`; `None` if the agent does not sign.
    fn sign_data(&self, key: &[u8], data: &[u8], flags: u32) -> Option<Vec<u8>>;
}

/// Grants with their resolved keys: public keys, and public keys of servers.
#[derive(Clone, Debug, Default)]
pub struct SigningRules {
    granted: Vec<GrantedKey>,
    /// All keys of the user's agent, by fingerprint.
    present: Vec<KeyFingerprint>,
    known: KnownHosts,
}

#[derive(Clone, Debug)]
struct GrantedKey {
    key_use: SignUse,
    key: Vec<u8>,
    host_keys: Vec<Vec<u8>>,
}

/// Reason why a grant cannot be fulfilled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnmetGrantError {
    /// The user's agent does not have the key.
    Key(SignUse),
    /// No key of the server is known.
    Server(SignUse),
}

/// One connection to the agent.
#[derive(Debug, Default)]
pub struct AgentConnection {
    bound: Option<BoundSession>,
    /// True if the agent is forwarded, so that another machine is at the other end.
    is_forwarded: bool,
}

#[derive(Debug)]
struct BoundSession {
    session: Vec<u8>,
    host_key: Vec<u8>,
}

/// A signature that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSignature {
    /// The grant that allowed it.
    pub key_use: SignUse,
    /// The signed object.
    pub object: Vec<u8>,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningRefusal {
    /// The requested object.
    pub object: String,
    /// The rule that refuses it.
    pub rule: String,
    /// The grant that would allow it, if one can.
    pub key_use: Option<SignUse>,
}

/// The agent of one run.
#[derive(Debug)]
pub struct AgentFilter {
    rules: SigningRules,
    remaining: AtomicU32,
}

/// Answer to a message, with its event.
type FilterReply = (Vec<u8>, Option<Result<AgentSignature, SigningRefusal>>);

impl SigningRules {
    /// Resolves these grants with the keys of the user's agent.
    pub(crate) fn new(
        uses: &[SignUse],
        identities: &[AgentIdentity],
        known: KnownHosts,
    ) -> Result<Self, UnmetGrantError> {
        let mut granted = Vec::with_capacity(uses.len());
        for key_use in uses {
            let identity = identities.iter().find(|identity| identity.fingerprint == *key_use.key());
            let key = identity.ok_or_else(|| UnmetGrantError::Key(key_use.clone()))?.key.clone();
            let host_keys = key_use.target().map(|target| known.keys_of(target)).unwrap_or_default();
            if key_use.target().is_some() && host_keys.is_empty() {
                return Err(UnmetGrantError::Server(key_use.clone()));
            }
            granted.push(GrantedKey { key_use: key_use.clone(), key, host_keys });
        }
        let present = identities.iter().map(|identity| identity.fingerprint.clone()).collect();
        Ok(Self { granted, present, known })
    }

    /// Returns the public key that signs for git, if there is only one.
    pub(crate) fn git_key(&self) -> Option<&[u8]> {
        let mut keys = self.granted.iter().filter(|granted| *granted.key_use.purpose() == SignPurpose::Git);
        let key = keys.next()?;
        keys.next().is_none().then_some(&key.key)
    }

    fn collect_granted_keys(&self) -> Vec<&[u8]> {
        let mut keys: Vec<&[u8]> = self.granted.iter().map(|granted| &granted.key[..]).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

impl AgentFilter {
    /// Creates an agent with these rules.
    pub fn new(rules: SigningRules) -> Self {
        Self { rules, remaining: AtomicU32::new(MAX_SIGNATURES) }
    }

    /// Answers one message.
    pub fn answer_message(
        &self,
        connection: &mut AgentConnection,
        message: &[u8],
        keys: &dyn AgentKeys,
    ) -> FilterReply {
        let Some((&kind, body)) = message.split_first().filter(|_| !connection.is_forwarded) else {
            return failure_reply();
        };
        match kind {
            message::REQUEST_IDENTITIES if body.is_empty() => (self.encode_identities(), None),
            message::SIGN_REQUEST => match self.answer_sign_request(connection, body, keys) {
                Ok((answer, signed)) => (answer, Some(Ok(signed))),
                Err(refused) => (failure_reply().0, refused.map(Err)),
            },
            message::EXTENSION => bind_session(connection, body),
            message::REQUEST_IDENTITIES => failure_reply(),
            other => (
                failure_reply().0,
                Some(Err(new_refusal(&format!("message {other} of the agent protocol"), OTHER_MESSAGES_RULE))),
            ),
        }
    }

    fn encode_identities(&self) -> Vec<u8> {
        let keys = self.rules.collect_granted_keys();
        let mut answer = vec![message::IDENTITIES_ANSWER];
        answer.extend_from_slice(&u32::try_from(keys.len()).unwrap_or(0).to_be_bytes());
        for key in keys {
            put_string(&mut answer, key);
            // The user's comment of the key is not revealed.
            put_string(&mut answer, b"");
        }
        answer
    }

    fn answer_sign_request(
        &self,
        connection: &AgentConnection,
        body: &[u8],
        keys: &dyn AgentKeys,
    ) -> Result<(Vec<u8>, AgentSignature), Option<SigningRefusal>> {
        let (key, data, flags) = sign_request(body).ok_or(None)?;
        let fingerprint = compute_fingerprint(key).ok_or(None)?;
        let signed = self.decide_signature(connection, (key, &fingerprint), data).map_err(Some)?;
        if flags & !KNOWN_FLAGS != 0 || read_key_kind(key) == Some("ssh-rsa") && flags == 0 {
            let rule = "a signature by RSA with SHA-1, or of an unknown kind";
            return Err(Some(new_refusal(fingerprint.as_str(), rule)));
        }
        let counted =
            self.remaining.fetch_update(Ordering::AcqRel, Ordering::Acquire, |remaining| remaining.checked_sub(1));
        if counted.is_err() {
            return Err(Some(new_refusal(
                fingerprint.as_str(),
                &format!("no more than {MAX_SIGNATURES} signatures a run"),
            )));
        }
        let signature = keys.sign_data(key, data, flags).ok_or_else(|| {
            Some(new_refusal(
                fingerprint.as_str(),
                "the user's ssh agent made no signature: it is locked, declined or has ended",
            ))
        })?;
        let mut answer = vec![message::SIGN_RESPONSE];
        put_string(&mut answer, &signature);
        Ok((answer, signed))
    }

    fn decide_signature(
        &self,
        connection: &AgentConnection,
        (key, fingerprint): (&[u8], &KeyFingerprint),
        data: &[u8],
    ) -> Result<AgentSignature, SigningRefusal> {
        let granted = self.rules.granted.iter().filter(|granted| granted.key == key);
        match SigningPayload::parse_payload(data) {
            Some(SigningPayload::Git { algorithm, digest }) => {
                let object = format!("{algorithm}:{}", data_encoding::HEXLOWER.encode(digest)).into_bytes();
                let found =
                    granted.map(|granted| &granted.key_use).find(|key_use| *key_use.purpose() == SignPurpose::Git);
                found.map(|key_use| AgentSignature { key_use: key_use.clone(), object }).ok_or_else(|| SigningRefusal {
                    key_use: self.suggest_use(fingerprint, SignPurpose::Git),
                    ..new_refusal(fingerprint.as_str(), "this key may not sign for git")
                })
            }
            Some(SigningPayload::Authentication(authentication)) => {
                let bound = bound_for(connection, &authentication, key)
                    .map_err(|rule| new_refusal(fingerprint.as_str(), rule))?;
                let found = granted.filter(|granted| granted.host_keys.contains(&bound.host_key)).find_map(|granted| {
                    let target = granted.key_use.target()?;
                    let object = [authentication.user, b"@", target.to_string().as_bytes()].concat();
                    Some(AgentSignature { key_use: granted.key_use.clone(), object })
                });
                found.ok_or_else(|| {
                    let server = self.rules.known.server_with(&bound.host_key);
                    SigningRefusal {
                        key_use: server.and_then(|target| self.suggest_use(fingerprint, SignPurpose::Host(target))),
                        ..new_refusal(fingerprint.as_str(), "this key may not authenticate to this server")
                    }
                })
            }
            None => {
                let rule = "neither a signature of git nor the authentication to a server";
                Err(new_refusal(fingerprint.as_str(), rule))
            }
        }
    }

    /// Returns a use that the user could approve: of a key that their agent has.
    fn suggest_use(&self, key: &KeyFingerprint, purpose: SignPurpose) -> Option<SignUse> {
        self.rules.present.contains(key).then(|| SignUse::new(key.clone(), purpose))
    }
}

/// Rule for all other messages.
const OTHER_MESSAGES_RULE: &str = "the ssh agent of a run only lists granted keys and signs with them";

fn failure_reply() -> FilterReply {
    (vec![message::FAILURE], None)
}

fn new_refusal(object: &str, rule: &str) -> SigningRefusal {
    SigningRefusal { object: object.to_owned(), rule: rule.to_owned(), key_use: None }
}

fn sign_request(body: &[u8]) -> Option<(&[u8], &[u8], u32)> {
    let mut reader = SshWireReader::new(body);
    let request = (reader.read_string()?, reader.read_string()?, reader.read_number()?);
    reader.expect_end()?;
    Some(request)
}

/// Binds a connection to a session with a server, which has signed it (OpenSSH, PROTOCOL.agent,
/// section 1). Only once, because a second session would belong to another server.
fn bind_session(connection: &mut AgentConnection, body: &[u8]) -> FilterReply {
    let mut reader = SshWireReader::new(body);
    if reader.read_string() != Some(SESSION_BIND) {
        return failure_reply();
    }
    let mut parts = || Some((reader.read_string()?, reader.read_string()?, reader.read_string()?, reader.read_byte()?));
    let Some((host_key, session, signature, is_forwarding)) = parts() else { return failure_reply() };
    let object = compute_fingerprint(host_key).map_or_else(|| "a server".to_owned(), |key| format!("server {key}"));
    let refuse = |rule| (failure_reply().0, Some(Err(new_refusal(&object, rule))));
    if reader.expect_end().is_none() || session.is_empty() {
        return failure_reply();
    }
    if is_forwarding != 0 {
        connection.is_forwarded = true;
        return refuse("the ssh agent of a run is not forwarded");
    }
    if connection.bound.is_some() {
        return refuse("a connection to the ssh agent serves one session");
    }
    if !is_signed(host_key, session, signature) {
        return refuse("the session is not signed by the server's key");
    }
    connection.bound = Some(BoundSession { session: session.to_vec(), host_key: host_key.to_vec() });
    (vec![message::SUCCESS], None)
}

/// Returns the session of an authentication.
fn bound_for<'a>(
    connection: &'a AgentConnection,
    authentication: &ServerAuthentication<'_>,
    key: &[u8],
) -> Result<&'a BoundSession, &'static str> {
    let bound = connection
        .bound
        .as_ref()
        .ok_or("the client does not name the server: this needs ssh of OpenSSH 8.9 or later")?;
    let is_its = bound.session == authentication.session
        && authentication.key == key
        && authentication.host_key.is_none_or(|host_key| host_key == bound.host_key);
    if is_its { Ok(bound) } else { Err("an authentication for another session, server or key") }
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
