//! Processing of traffic in the egress proxy: TLS interception and injection of credentials.
//! Everything it needs is read and made before the run, so that a missing value prevents the start.
//! The key of the authority and the values of secrets never leave this process's memory.
//!
//! This module must not depend on sockets or on the code that decides.

mod authority;
mod aws;
mod guard;
mod mask;
mod scan;
mod secret_value;
mod secrets;
mod trust;

use std::fmt;
use std::sync::Arc;

use rustls::ClientConfig;
use stockade_model::{EgressRules, SecretSource};

use secret_value::SecretValue;

pub(crate) use authority::CertificateAuthority;
pub(crate) use guard::{ConnectionGuard, MaskedStream};
pub use mask::StreamKind;
#[cfg(feature = "fuzzing")]
pub use mask::{PeerMasks, StreamMask};
pub(crate) use secrets::{SecretLeak, SecretStore};
pub use trust::{TRUST_VARIABLES, TrustRoots};

/// Error if traffic cannot be intercepted or a credential cannot be injected.
#[derive(Debug, thiserror::Error)]
pub enum InterceptionError {
    /// The value of a secret is unusable. The value is never part of the message.
    #[error("the secret `{name}` cannot be used: {why}")]
    Secret {
        /// Name of the secret.
        name: String,
        /// Reason.
        why: String,
    },
    /// Certificates or keys failed.
    #[error("encrypted traffic cannot be opened: {0}")]
    Tls(String),
}

/// Prepared state for the rules of one run.
#[derive(Default)]
pub struct PreparedInterception {
    opening: Option<TlsInterceptor>,
    pub(crate) secrets: SecretStore,
    credentials: Option<SecretValue>,
}

/// State for the interception of encrypted traffic.
pub(crate) struct TlsInterceptor {
    /// Authority that programs in the sandbox trust.
    pub(crate) authority: CertificateAuthority,
    /// TLS configuration with the roots that the egress proxy trusts for outgoing connections.
    pub(crate) outside: Arc<ClientConfig>,
    bundle: String,
}

impl fmt::Debug for PreparedInterception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Edge").field("opens", &self.opening.is_some()).field("secrets", &self.secrets).finish()
    }
}

impl PreparedInterception {
    /// Reads and makes everything that these rules need; does nothing if they need nothing.
    ///
    /// # Errors
    /// See [`InterceptionError`].
    pub fn prepare_rules(rules: &EgressRules, trust: &TrustRoots) -> Result<Self, InterceptionError> {
        let secrets = SecretStore::load_secrets(&rules.secrets)?;
        let opening = if needs_interception(rules) { Some(TlsInterceptor::from_trust(trust)?) } else { None };
        let credentials = rules.upstream.as_ref().and_then(|upstream| upstream.credentials.as_ref());
        let credentials =
            credentials.map(|from| SecretValue::read_secret("credentials of the proxy", from, 1)).transpose()?;
        Ok(Self { opening, secrets, credentials })
    }

    /// Returns certificates in PEM for programs in the sandbox: those that the host trusts, and the
    /// authority of this run. Most programs trust them if the variables of [`TRUST_VARIABLES`]
    /// contain the path. `None` if nothing is intercepted.
    pub fn bundle_pem(&self) -> Option<&str> {
        self.opening.as_ref().map(|opening| opening.bundle.as_str())
    }

    /// Returns only the certificate of this run's authority, in PEM, to add to a trust store.
    pub fn authority_pem(&self) -> Option<&str> {
        self.opening.as_ref().map(|opening| opening.authority.pem())
    }

    /// Returns the placeholder of each secret, and its source.
    pub fn secret_placeholders(&self) -> impl Iterator<Item = (&SecretSource, &str)> {
        self.secrets.secret_placeholders()
    }

    /// Returns `USER:PASSWORD` for the upstream proxy.
    pub(crate) fn upstream_credentials(&self) -> Option<&[u8]> {
        self.credentials.as_ref().map(SecretValue::as_bytes)
    }

    pub(crate) fn tls_interceptor(&self) -> Option<&TlsInterceptor> {
        self.opening.as_ref()
    }

    /// Returns whether it was prepared for rules like these.
    pub(crate) fn is_prepared_for(&self, rules: &EgressRules) -> bool {
        let wants_credentials = rules.upstream.as_ref().is_some_and(|upstream| upstream.credentials.is_some());
        (self.opening.is_some() || !needs_interception(rules))
            && (self.credentials.is_some() || !wants_credentials)
            && rules.secrets.iter().all(|secret| self.secrets.has_secret(&secret.name))
    }
}

/// Returns whether these rules need interception.
fn needs_interception(rules: &EgressRules) -> bool {
    !rules.inspect.is_empty() || !rules.secrets.is_empty()
}

impl TlsInterceptor {
    fn from_trust(trust: &TrustRoots) -> Result<Self, InterceptionError> {
        let roots = trust.load_certificates()?;
        let authority = CertificateAuthority::generate_root()?;
        let bundle = trust::encode_bundle(&roots, authority.pem());
        Ok(Self { outside: trust::client_config(roots)?, authority, bundle })
    }
}
