//! Credentials that a run uses but never gets. The sandbox contains a placeholder. In requests to
//! the bound hosts, at the bound position, the egress proxy replaces it by the real value. Neither
//! is sent anywhere else.
//!
//! This module must not depend on sockets or on the code that decides. No value is part of any
//! message.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use aws_lc_rs::rand;
use data_encoding::BASE64;
use stockade_model::{EgressSecret, NameList, NetworkTarget, SecretKind, SecretSource, SecretUse, TargetPattern};

use super::InterceptionError;
use super::aws::{self, AwsSignature};
use super::mask::PeerMasks;
use super::scan::{SearchWords, SplitWordScanner};
use super::secret_value::SecretValue;
use crate::http::head::{HeaderField, RequestHead};

/// Most secrets of a run.
const SECRETS_MAX: usize = 64;
/// Shortest secret: a shorter one would match unrelated text.
const SECRET_MIN_BYTES: usize = 8;
/// Most forms in which one secret is sent in a run; each is masked in all received data.
const SENT_FORMS_MAX: usize = 64;
/// Length of a placeholder whose secret is shorter than this.
const PLACEHOLDER_MIN_BYTES: usize = 24;
/// Prefixes of keys that programs check.
const KEY_PREFIXES: NameList = NameList::new(include_str!("../../data/key_prefixes.txt"));

#[derive(Debug)]
struct LoadedSecret {
    name: String,
    kind: SecretKind,
    hosts: Vec<TargetPattern>,
    inside: SecretSource,
    placeholder: String,
    value: SecretValue,
}

/// Text that was put into a request of this run, and that no answer may send back.
#[derive(PartialEq, Eq)]
struct SentSecretForm {
    /// Index of the secret in `held`.
    secret: usize,
    text: Vec<u8>,
}

/// All secrets of a run.
#[derive(Default)]
pub(crate) struct SecretStore {
    held: Vec<LoadedSecret>,
    /// Further permitted uses, approved since the run began.
    approved_uses: RwLock<Vec<SecretUse>>,
    sent_forms: RwLock<Vec<SentSecretForm>>,
    /// Counts changes of `approved_uses` and `sent_forms`.
    changes: AtomicU64,
    /// In the order of `held`.
    values: SearchWords,
    placeholders: SearchWords,
}

impl fmt::Debug for SecretStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.held.iter().map(|held| &held.name)).finish()
    }
}

/// Data that must not leave: a secret or a placeholder.
#[derive(Debug)]
pub(crate) struct SecretLeak {
    /// The secret and its target, in the words of a policy.
    pub(crate) rule: String,
    /// The use that would permit it; `None` if nothing would.
    pub(crate) secret: Option<SecretUse>,
}

impl SecretLeak {
    /// Creates one that nothing can permit.
    fn for_good(rule: String) -> Self {
        Self { rule, secret: None }
    }
}

/// Returns a random text of the same kind: of the same length and alphabet, with the prefix that
/// programs check.
fn random_placeholder(value: &[u8]) -> Result<String, InterceptionError> {
    const ALPHANUMERICS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let beginning = KEY_PREFIXES.names().find(|prefix| value.starts_with(prefix.as_bytes())).unwrap_or_default();
    let is_hex = value.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let letters = if is_hex { &ALPHANUMERICS[..16] } else { &ALPHANUMERICS[..] };
    let length = value.len().clamp(PLACEHOLDER_MIN_BYTES, 256).max(beginning.len() + PLACEHOLDER_MIN_BYTES);
    let mut text = beginning.to_owned();
    while text.len() < length {
        let mut random = [0; 64];
        rand::fill(&mut random).map_err(|error| InterceptionError::Tls(error.to_string()))?;
        // Every letter among these is equally likely.
        let fair = random.iter().map(|byte| usize::from(*byte & 63)).filter(|at| *at < letters.len());
        text.extend(fair.take(length - text.len()).map(|at| char::from(letters[at])));
    }
    Ok(text)
}

impl SecretStore {
    pub(super) fn load_secrets(egress_secrets: &[EgressSecret]) -> Result<Self, InterceptionError> {
        let mut held: Vec<LoadedSecret> = Vec::new();
        for secret in egress_secrets {
            let fail = |why: &str| Err(InterceptionError::Secret { name: secret.name.clone(), why: why.into() });
            if held.len() == SECRETS_MAX {
                return fail("there are too many");
            }
            if held.iter().any(|other| other.inside == secret.inside || other.name == secret.name) {
                return fail("its name or its path inside is already used by another secret");
            }
            let value = SecretValue::read_secret(&secret.name, &secret.from, SECRET_MIN_BYTES)?;
            held.push(LoadedSecret {
                name: secret.name.clone(),
                kind: secret.kind.clone(),
                hosts: secret.hosts.clone(),
                inside: secret.inside.clone(),
                placeholder: random_placeholder(value.as_bytes())?,
                value,
            });
        }
        let values = SearchWords::new(held.iter().map(|secret| secret.value.as_bytes()));
        let placeholders = SearchWords::new(held.iter().map(|secret| secret.placeholder.as_bytes()));
        Ok(Self { held, values, placeholders, ..Self::default() })
    }

    pub(super) fn secret_placeholders(&self) -> impl Iterator<Item = (&SecretSource, &str)> {
        self.held.iter().map(|secret| (&secret.inside, secret.placeholder.as_str()))
    }

    pub(super) fn has_secret(&self, name: &str) -> bool {
        self.held.iter().any(|secret| secret.name == name)
    }

    /// Returns whether there are no secrets.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Permits an approved use of a secret for the rest of the run.
    pub(crate) fn permit_use(&self, agreed: &SecretUse) {
        let mut approved_uses = self.approved_uses.write().unwrap_or_else(PoisonError::into_inner);
        if !approved_uses.contains(agreed) {
            approved_uses.push(agreed.clone());
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns a number that changes whenever [`peer_masks`](Self::peer_masks) may change.
    pub(super) fn masks_version(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Returns the texts that a target must not send back. `None` if no secret was sent.
    pub(super) fn peer_masks(&self, target: &NetworkTarget, is_encrypted: bool) -> Option<PeerMasks> {
        let sent_forms = self.sent_forms.read().unwrap_or_else(PoisonError::into_inner);
        let (mut known, mut foreign) = (Vec::new(), Vec::new());
        for form in sent_forms.iter() {
            let is_known = self.is_bound(&self.held[form.secret], target, is_encrypted);
            if is_known { &mut known } else { &mut foreign }.push(form.text.as_slice());
        }
        (!sent_forms.is_empty()).then(|| PeerMasks::from_texts(&known, &foreign))
    }

    /// Returns whether a target has a secret that it could send back.
    pub(crate) fn may_come_back(&self, target: &NetworkTarget, is_encrypted: bool) -> bool {
        let sent_forms = self.sent_forms.read().unwrap_or_else(PoisonError::into_inner);
        sent_forms.iter().any(|form| self.is_bound(&self.held[form.secret], target, is_encrypted))
    }

    /// Records texts that are about to be sent.
    fn record_sent_forms(&self, forms: Vec<SentSecretForm>) -> Result<(), SecretLeak> {
        let mut sent_forms = self.sent_forms.write().unwrap_or_else(PoisonError::into_inner);
        for form in forms {
            if sent_forms.contains(&form) {
                continue;
            }
            if sent_forms.iter().filter(|other| other.secret == form.secret).count() >= SENT_FORMS_MAX {
                let name = &self.held[form.secret].name;
                return Err(SecretLeak::for_good(format!(
                    "the secret `{name}` was injected with more than {SENT_FORMS_MAX} different user names in this run"
                )));
            }
            sent_forms.push(form);
            self.changes.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Returns the secrets that may be sent to a target, with their indexes in `held`.
    fn secrets_for_target<'a>(
        &'a self,
        target: &'a NetworkTarget,
        is_encrypted: bool,
    ) -> impl Iterator<Item = (usize, &'a LoadedSecret)> {
        self.held.iter().enumerate().filter(move |(_, secret)| self.is_bound(secret, target, is_encrypted))
    }

    /// Returns whether a secret may be sent to a target. Without encryption the network can read
    /// it, so the entry must name the port.
    fn is_bound(&self, secret: &LoadedSecret, target: &NetworkTarget, is_encrypted: bool) -> bool {
        let fits = |pattern: &TargetPattern| {
            pattern.matches_target(target) && (is_encrypted || pattern.ports().next().is_some())
        };
        let is_approved = || {
            let approved_uses = self.approved_uses.read().unwrap_or_else(PoisonError::into_inner);
            approved_uses.iter().any(|agreed| agreed.name() == secret.name && fits(agreed.targets()))
        };
        secret.hosts.iter().any(fits) || is_approved()
    }

    /// Returns whether a request is signed with a placeholder and its body is needed to sign it
    /// again.
    pub(crate) fn wants_body(&self, request: &RequestHead, target: &NetworkTarget, is_encrypted: bool) -> bool {
        let signs = self.secrets_for_target(target, is_encrypted).any(|(_, secret)| secret.kind == SecretKind::Aws);
        signs && AwsSignature::from_request(request).is_some() && !aws::tells_payload(request)
    }

    /// Injects the secrets of a request. `body`: the body that [`wants_body`](Self::wants_body)
    /// asked for.
    ///
    /// # Errors
    /// [`SecretLeak`] with a secret or placeholder that may not be sent there; the request is unchanged.
    pub(crate) fn put_in(
        &self,
        request: &mut RequestHead,
        target: &NetworkTarget,
        is_encrypted: bool,
        body: &[u8],
    ) -> Result<(), SecretLeak> {
        if self.is_empty() {
            return Ok(());
        }
        if let Some(at) = self.find_in_head(request, &self.values) {
            return Err(self.value_leak(at, target));
        }
        let signed = self.find_signature(request, target, is_encrypted, body)?;
        let mut put = request.clone();
        let mut forms: Vec<SentSecretForm> = Vec::new();
        for field in &mut put.fields {
            let bound = self.secrets_for_target(target, is_encrypted);
            let mut found = bound.filter_map(|(at, secret)| Some((at, secret, secret.put_in(field)?)));
            if let Some((secret, held, whole)) = found.next() {
                let encoded =
                    decode_basic_credentials(&whole).map(|(scheme, _)| whole[scheme.len()..].trim_ascii().to_vec());
                let texts = std::iter::once(held.value.as_bytes().to_vec()).chain(encoded);
                forms.extend(texts.map(|text| SentSecretForm { secret, text }));
                field.value = whole;
            }
        }
        if let Some(at) = self.find_in_head(&put, &self.placeholders) {
            let is_use = self.is_all_use(at, request);
            return Err(self.placeholder_leak(at, target, is_encrypted, is_use));
        }
        if let Some((secret, signed)) = signed {
            signed.sign_request(&mut put, secret.value.as_bytes());
        }
        self.record_sent_forms(forms)?;
        *request = put;
        Ok(())
    }

    /// Returns the signature of a request, if it was made with a placeholder.
    fn find_signature<'a>(
        &'a self,
        request: &RequestHead,
        target: &'a NetworkTarget,
        is_encrypted: bool,
        body: &[u8],
    ) -> Result<Option<(&'a LoadedSecret, AwsSignature)>, SecretLeak> {
        let Some(signed) = AwsSignature::from_request(request) else { return Ok(None) };
        let all = self.held.iter().filter(|secret| secret.kind == SecretKind::Aws);
        for secret in all {
            let Some(signed) = signed.clone().made_with(request, secret.placeholder.as_bytes(), body) else { continue };
            let name = &secret.name;
            if aws::signs_chunks(request) {
                return Err(SecretLeak::for_good(format!(
                    "a request signed with `{name}` signs each chunk of its body, which cannot be signed again"
                )));
            }
            if !self.is_bound(secret, target, is_encrypted) {
                let rule = format!("a request signed with the placeholder of `{name}` is for {target}");
                return Err(SecretLeak { rule, secret: SecretUse::new(name, target) });
            }
            return Ok(Some((secret, signed)));
        }
        Ok(None)
    }

    fn value_leak(&self, at: usize, target: &NetworkTarget) -> SecretLeak {
        let name = &self.held[at].name;
        SecretLeak::for_good(format!("the request sends the secret `{name}` itself to {target}, which no grant allows"))
    }

    /// Returns the error for a found placeholder. `is_use`: the placeholder is where the secret
    /// would be injected, or where nothing is injected and it may pass.
    fn placeholder_leak(&self, at: usize, target: &NetworkTarget, is_encrypted: bool, is_use: bool) -> SecretLeak {
        let secret = &self.held[at];
        let name = &secret.name;
        let rule = if self.is_bound(secret, target, is_encrypted) {
            return SecretLeak::for_good(format!(
                "the placeholder of `{name}` is at a position where that secret is not allowed in a request"
            ));
        } else if self.is_bound(secret, target, true) {
            format!("the secret `{name}` would be sent to {target} unencrypted, and no entry names that port")
        } else {
            format!("the placeholder of `{name}` is on its way to {target}, and no entry of its hosts names that")
        };
        if is_use {
            SecretLeak { rule, secret: SecretUse::new(name, target) }
        } else {
            SecretLeak::for_good(format!("{rule}; it stands where no grant replaces it"))
        }
    }

    /// Returns whether every placeholder in a head is at a position where the secret is injected.
    fn is_all_use(&self, at: usize, request: &RequestHead) -> bool {
        let secret = &self.held[at];
        let mut put = request.clone();
        for field in &mut put.fields {
            if let Some(whole) = secret.put_in(field) {
                field.value = whole;
            }
        }
        self.find_in_head(&put, &SearchWords::new([secret.placeholder.as_bytes()])).is_none()
    }

    /// Returns which of these words a head contains, also in encoded text.
    fn find_in_head(&self, request: &RequestHead, words: &SearchWords) -> Option<usize> {
        let fields = || request.fields.iter();
        let plain = words.find_word(request.target.as_bytes()).or_else(|| words.find_word(request.method.as_bytes()));
        let named = || fields().find_map(|field| words.find_word(field.name.as_bytes()));
        let valued = || fields().find_map(|field| words.find_word(&field.value));
        let encoded = || fields().find_map(|field| words.find_word(&decode_basic_credentials(&field.value)?.1));
        plain.or_else(named).or_else(valued).or_else(encoded)
    }

    /// See [`ConnectionGuard::check_outgoing`](super::ConnectionGuard::check_outgoing).
    pub(super) fn check_outgoing(
        &self,
        target: &NetworkTarget,
        is_encrypted: bool,
        [values, placeholders]: &mut [SplitWordScanner; 2],
        bytes: &[u8],
    ) -> Result<(), SecretLeak> {
        if let Some(at) = values.find_word(&self.values, bytes) {
            return Err(self.value_leak(at, target));
        }
        match placeholders.find_word(&self.placeholders, bytes) {
            Some(at) if !self.is_bound(&self.held[at], target, is_encrypted) => {
                Err(self.placeholder_leak(at, target, is_encrypted, true))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the scheme of basic credentials, and their decoded text.
fn decode_basic_credentials(value: &[u8]) -> Option<(&[u8], Vec<u8>)> {
    let at = value.iter().position(|byte| *byte == b' ')?;
    let (scheme, rest) = value.split_at(at);
    let encoded = rest.trim_ascii();
    scheme.eq_ignore_ascii_case(b"basic").then_some(())?;
    Some((scheme, BASE64.decode(encoded).ok()?))
}

impl LoadedSecret {
    /// Returns the field's value with the secret injected; `None` if it does not belong there.
    fn put_in(&self, field: &HeaderField) -> Option<Vec<u8>> {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        let word = self.placeholder.as_bytes();
        match &self.kind {
            SecretKind::Bearer if is("authorization") => {
                let at = field.value.iter().position(|byte| *byte == b' ')?;
                let (scheme, rest) = field.value.split_at(at);
                let known = [&b"bearer"[..], b"token"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
                (known && rest.trim_ascii() == word).then(|| [scheme, b" ", self.value.as_bytes()].concat())
            }
            SecretKind::Basic if is("authorization") => {
                let (scheme, credentials) = decode_basic_credentials(&field.value)?;
                let at = credentials.iter().position(|byte| *byte == b':')?;
                let (user, password) = (&credentials[..at], &credentials[at + 1..]);
                let real = |part: &[u8]| if part == word { self.value.as_bytes().to_vec() } else { part.to_vec() };
                let put = [real(user), real(password)].join(&b':');
                (put != credentials).then(|| [scheme, b" ", BASE64.encode(&put).as_bytes()].concat())
            }
            SecretKind::Header(name) if is(name) => {
                let at = memchr::memmem::find(&field.value, word)?;
                Some([&field.value[..at], self.value.as_bytes(), &field.value[at + word.len()..]].concat())
            }
            SecretKind::Bearer | SecretKind::Basic | SecretKind::Header(_) | SecretKind::Aws => None,
        }
    }
}
