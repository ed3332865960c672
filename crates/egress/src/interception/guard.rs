//! Checks one connection with readable bytes: data that must not leave on it, and data that must
//! not come back.
//!
//! This module must not depend on the transport of the bytes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stockade_model::NetworkTarget;

use super::mask::{PeerMasks, StreamKind, StreamMask};
use super::scan::SplitWordScanner;
use super::secrets::{SecretLeak, SecretStore};

/// Masks, and the version of the secrets that they were made from.
type VersionedMasks = (u64, Option<Arc<PeerMasks>>);

/// Filter for the data of one connection.
pub(crate) struct ConnectionGuard<'a> {
    secrets: &'a SecretStore,
    target: &'a NetworkTarget,
    is_encrypted: bool,
    passing: Mutex<[SplitWordScanner; 2]>,
    masks: Mutex<VersionedMasks>,
}

impl<'a> ConnectionGuard<'a> {
    /// Creates the filter; `None` if there are no secrets to look for.
    pub(crate) fn new(secrets: &'a SecretStore, target: &'a NetworkTarget, is_encrypted: bool) -> Option<Self> {
        let (passing, masks) = (Mutex::default(), Mutex::default());
        (!secrets.is_empty()).then_some(Self { secrets, target, is_encrypted, passing, masks })
    }

    /// Checks bytes of a body, or of a connection with another protocol. A placeholder may not be
    /// sent to a target that it is not bound to, and a secret may not be sent at all.
    ///
    /// # Errors
    /// [`SecretLeak`] with the secret.
    pub(crate) fn check_outgoing(&self, bytes: &[u8]) -> Result<(), SecretLeak> {
        let mut passing = self.passing.lock().unwrap_or_else(PoisonError::into_inner);
        self.secrets.check_outgoing(self.target, self.is_encrypted, &mut passing, bytes)
    }

    /// Returns the texts that this peer must not send back now. `None` if no secret was sent in
    /// this run.
    fn current_masks(&self) -> Option<Arc<PeerMasks>> {
        let version = self.secrets.masks_version();
        let mut made = self.masks.lock().unwrap_or_else(PoisonError::into_inner);
        if made.0 != version {
            *made = (version, self.secrets.peer_masks(self.target, self.is_encrypted).map(Arc::new));
        }
        made.1.clone()
    }

    /// Masks secrets in a complete part of an answer.
    pub(crate) fn mask_bytes(&self, bytes: &mut [u8]) {
        if let Some(masks) = self.current_masks() {
            masks.cover_all(bytes);
        }
    }

    /// Creates a masked stream from this peer.
    pub(crate) fn masked_stream(&self, kind: StreamKind) -> MaskedStream<'_> {
        MaskedStream { guard: self, stream: StreamMask::new(kind) }
    }
}

/// Stream from one peer, masked with all secrets sent in the run so far.
pub(crate) struct MaskedStream<'a> {
    guard: &'a ConnectionGuard<'a>,
    stream: StreamMask,
}

impl MaskedStream<'_> {
    /// See [`StreamMask::push`].
    pub(crate) fn push(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        match self.guard.current_masks() {
            Some(masks) => self.stream.push(&bytes, &masks),
            None => bytes,
        }
    }

    /// See [`StreamMask::flush_delay`].
    pub(crate) fn flush_delay(&self) -> Option<Duration> {
        self.stream.flush_delay()
    }

    /// See [`StreamMask::release_held`].
    pub(crate) fn release_held(&mut self) -> Vec<u8> {
        self.stream.release_held()
    }

    /// See [`StreamMask::finish`].
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        self.stream.finish()
    }
}
