//! Watches one connection whose bytes can be read: what must not leave on it, and
//! what must not come back.
//!
//! Must not know: what carries the bytes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stockade_model::Target;

use super::mask::{Masks, StreamKind, StreamMask};
use super::scan::Passing;
use super::secrets::{Secrets, Stray};

/// Masks, and the version of the secrets that they were made from.
type VersionedMasks = (u64, Option<Arc<Masks>>);

/// Watches what passes on one connection.
pub(crate) struct Guard<'a> {
    secrets: &'a Secrets,
    target: &'a Target,
    is_encrypted: bool,
    passing: Mutex<[Passing; 2]>,
    masks: Mutex<VersionedMasks>,
}

impl<'a> Guard<'a> {
    /// `None`: there is nothing to look for.
    pub(crate) fn new(secrets: &'a Secrets, target: &'a Target, is_encrypted: bool) -> Option<Self> {
        let (passing, masks) = (Mutex::default(), Mutex::default());
        (!secrets.is_empty()).then_some(Self { secrets, target, is_encrypted, passing, masks })
    }

    /// What must not pass in a body or on a connection of another protocol: a
    /// placeholder on its way to who is not bound to it, a secret to anybody.
    ///
    /// # Errors
    /// Which.
    pub(crate) fn pass(&self, bytes: &[u8]) -> Result<(), Stray> {
        let mut passing = self.passing.lock().unwrap_or_else(PoisonError::into_inner);
        self.secrets.pass(self.target, self.is_encrypted, &mut passing, bytes)
    }

    /// What this peer must not bring back by now. `None`: nothing was given to
    /// anybody in this run.
    fn masks(&self) -> Option<Arc<Masks>> {
        let version = self.secrets.version();
        let mut made = self.masks.lock().unwrap_or_else(PoisonError::into_inner);
        if made.0 != version {
            *made = (version, self.secrets.masks(self.target, self.is_encrypted).map(Arc::new));
        }
        made.1.clone()
    }

    /// Covers secrets in a part of an answer that is complete.
    pub(crate) fn mask(&self, bytes: &mut [u8]) {
        if let Some(masks) = self.masks() {
            masks.cover_all(bytes);
        }
    }

    /// A stream from this peer.
    pub(crate) fn masked(&self, kind: StreamKind) -> MaskedStream<'_> {
        MaskedStream { guard: self, stream: StreamMask::new(kind) }
    }
}

/// A stream from one peer, masked with what was given away in the run so far.
pub(crate) struct MaskedStream<'a> {
    guard: &'a Guard<'a>,
    stream: StreamMask,
}

impl MaskedStream<'_> {
    /// See [`StreamMask::push`].
    pub(crate) fn push(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        match self.guard.masks() {
            Some(masks) => self.stream.push(&bytes, &masks),
            None => bytes,
        }
    }

    /// See [`StreamMask::pause`].
    pub(crate) fn pause(&self) -> Option<Duration> {
        self.stream.pause()
    }

    /// See [`StreamMask::release`].
    pub(crate) fn release(&mut self) -> Vec<u8> {
        self.stream.release()
    }

    /// See [`StreamMask::finish`].
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        self.stream.finish()
    }
}
