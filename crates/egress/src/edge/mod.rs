//! What the door does to traffic on its way: it opens what is to be looked into,
//! and puts credentials in. All that this needs is read and made before the run,
//! so that what is missing stops it before it starts; the key of the authority
//! and the values of secrets never leave this process's memory.
//!
//! Must not know: sockets, who decides.

mod authority;
mod aws;
mod guard;
mod mask;
mod scan;
mod secrets;
mod trust;
mod value;

use std::fmt;
use std::sync::Arc;

use rustls::ClientConfig;
use stockade_model::{Egress, SecretSource};

use value::Value;

pub(crate) use authority::Authority;
pub(crate) use guard::{Guard, MaskedStream};
pub(crate) use mask::StreamKind;
#[cfg(feature = "fuzzing")]
pub(crate) use mask::{Masks, StreamMask};
pub(crate) use secrets::{Secrets, Stray};
pub use trust::{TRUST_VARIABLES, Trust};

/// Why traffic cannot be opened or a credential cannot be put in.
#[derive(Debug, thiserror::Error)]
pub enum EdgeError {
    /// The value of a secret, which is never part of the message.
    #[error("the secret `{name}` cannot be used: {why}")]
    Secret {
        /// Which.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Certificates or keys.
    #[error("encrypted traffic cannot be opened: {0}")]
    Tls(String),
}

/// What was made ready for the rules of one run.
#[derive(Default)]
pub struct Edge {
    opening: Option<Opening>,
    pub(crate) secrets: Secrets,
    credentials: Option<Value>,
}

/// What it takes to open encrypted traffic.
pub(crate) struct Opening {
    /// Whom programs inside are told to trust.
    pub(crate) authority: Authority,
    /// Whom the door itself trusts, outside.
    pub(crate) outside: Arc<ClientConfig>,
    bundle: String,
}

impl fmt::Debug for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Edge").field("opens", &self.opening.is_some()).field("secrets", &self.secrets).finish()
    }
}

impl Edge {
    /// Reads and makes what these rules need; nothing where they need nothing.
    ///
    /// # Errors
    /// See [`EdgeError`].
    pub fn prepare(rules: &Egress, trust: &Trust) -> Result<Self, EdgeError> {
        let secrets = Secrets::read(&rules.secrets)?;
        let opening = if opens(rules) { Some(Opening::make(trust)?) } else { None };
        let credentials = rules.upstream.as_ref().and_then(|upstream| upstream.credentials.as_ref());
        let credentials = credentials.map(|from| Value::read("credentials of the proxy", from, 1)).transpose()?;
        Ok(Self { opening, secrets, credentials })
    }

    /// Certificates in PEM for programs inside: those that the host trusts, and
    /// the authority of this run. Where its path stands in
    /// [`TRUST_VARIABLES`], most programs believe it. `None`: nothing is opened.
    pub fn bundle_pem(&self) -> Option<&str> {
        self.opening.as_ref().map(|opening| opening.bundle.as_str())
    }

    /// The certificate of this run's authority alone, in PEM, for a trust store
    /// that is added to.
    pub fn authority_pem(&self) -> Option<&str> {
        self.opening.as_ref().map(|opening| opening.authority.pem())
    }

    /// What stands inside in the place of each secret, and where.
    pub fn placeholders(&self) -> impl Iterator<Item = (&SecretSource, &str)> {
        self.secrets.placeholders()
    }

    /// `USER:PASSWORD` for the proxy on the way outside.
    pub(crate) fn credentials(&self) -> Option<&[u8]> {
        self.credentials.as_ref().map(Value::bytes)
    }

    pub(crate) fn opening(&self) -> Option<&Opening> {
        self.opening.as_ref()
    }

    /// Whether it was made for rules like these.
    pub(crate) fn serves(&self, rules: &Egress) -> bool {
        let wants_credentials = rules.upstream.as_ref().is_some_and(|upstream| upstream.credentials.is_some());
        (self.opening.is_some() || !opens(rules))
            && (self.credentials.is_some() || !wants_credentials)
            && rules.secrets.iter().all(|secret| self.secrets.knows(&secret.name))
    }
}

/// Whether these rules want traffic opened.
fn opens(rules: &Egress) -> bool {
    !rules.inspect.is_empty() || !rules.secrets.is_empty()
}

impl Opening {
    fn make(trust: &Trust) -> Result<Self, EdgeError> {
        let roots = trust.load()?;
        let authority = Authority::make()?;
        let bundle = trust::bundle(&roots, authority.pem());
        Ok(Self { outside: trust::outside(roots)?, authority, bundle })
    }
}
