//! Certificates that the egress proxy trusts for outgoing connections, and variables that make
//! programs in the sandbox trust its authority.
//!
//! This module must not depend on requests.

use std::sync::Arc;

use data_encoding::BASE64;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use stockade_model::NameList;

use super::InterceptionError;

/// Variables that name a file of trusted certificates in PEM. If
/// they contain the path of [`PreparedInterception::bundle_pem`](super::PreparedInterception::bundle_pem), those programs accept
/// intercepted traffic. Java reads none of them. It needs a store of its own format, made with
/// `keytool -importcert` from [`PreparedInterception::authority_pem`](super::PreparedInterception::authority_pem), in
/// `-Djavax.net.ssl.trustStore`.
pub const TRUST_VARIABLES: NameList = NameList::new(include_str!("../../data/trust_variables.txt"));

/// Roots that the egress proxy trusts when it intercepts encrypted traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TrustRoots {
    /// The host's roots.
    #[default]
    System,
    /// Only these certificates, in PEM.
    Pem(String),
}

impl TrustRoots {
    pub(super) fn load_certificates(&self) -> Result<Vec<CertificateDer<'static>>, InterceptionError> {
        let found = match self {
            Self::System => rustls_native_certs::load_native_certs().certs,
            Self::Pem(text) => CertificateDer::pem_slice_iter(text.as_bytes())
                .collect::<Result<_, _>>()
                .map_err(|error| InterceptionError::Tls(format!("a certificate to trust: {error}")))?,
        };
        if found.is_empty() {
            return Err(InterceptionError::Tls("no trusted certificates were found".into()));
        }
        Ok(found)
    }
}

/// Returns the TLS configuration for outgoing connections. Only HTTP/1.1 is parsed.
pub(super) fn client_config(roots: Vec<CertificateDer<'static>>) -> Result<Arc<ClientConfig>, InterceptionError> {
    let mut store = RootCertStore::empty();
    let (added, _) = store.add_parsable_certificates(roots);
    if added == 0 {
        return Err(InterceptionError::Tls("no trusted certificate can be read".into()));
    }
    let mut config = ClientConfig::builder_with_provider(crypto_provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| InterceptionError::Tls(error.to_string()))?
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

pub(super) fn crypto_provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Returns all roots of the host, and the authority.
pub(super) fn encode_bundle(roots: &[CertificateDer<'_>], authority: &str) -> String {
    let mut text: String = roots.iter().map(|root| encode_pem(root)).collect();
    text.push_str(authority);
    text
}

/// Encodes a certificate as text (RFC 7468).
pub(super) fn encode_pem(certificate: &[u8]) -> String {
    let letters = BASE64.encode(certificate);
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in letters.as_bytes().chunks(64) {
        text.extend(line.iter().map(|byte| char::from(*byte)));
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_contains_its_sources() {
        let authority = encode_pem(&[9; 100]);
        let text = encode_bundle(&[CertificateDer::from(vec![1; 48]), CertificateDer::from(vec![2; 1])], &authority);
        let TrustRoots::Pem(text) = TrustRoots::Pem(text) else { unreachable!("it was just made") };
        let read = TrustRoots::Pem(text).load_certificates().unwrap();
        assert_eq!(read.iter().map(|c| c.len()).collect::<Vec<_>>(), [48, 1, 100]);
    }

    #[test]
    fn no_trusted_authority_is_an_error() {
        for none in ["", "no certificate"] {
            assert!(TrustRoots::Pem(none.into()).load_certificates().is_err());
        }
        assert!(client_config(vec![CertificateDer::from(vec![1, 2, 3])]).is_err());
    }
}
