//! Certificate authority of one run. It makes a certificate for each name whose traffic is
//! intercepted. Its key is generated with it and exists only here.
//!
//! This module must not depend on sockets or requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_lc_rs::rand;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SerialNumber,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use stockade_model::Host;

use super::InterceptionError;
use super::trust::{crypto_provider, encode_pem};

/// Most names with a cached certificate; further ones are made again.
const CACHED_CERTIFICATES_MAX: usize = 1024;
/// Validity of a certificate before its creation, because clocks in the sandbox may differ.
const BACKDATED_VALIDITY: Duration = Duration::from_secs(24 * 3600);
/// Validity after its creation. Longer than any run; clients refuse more than 398 days.
const CERTIFICATE_VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);

pub(crate) struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    /// The key of all names.
    key: KeyPair,
    pem: String,
    made: Mutex<HashMap<Host, Arc<ServerConfig>>>,
}

fn certificate_error(error: impl ToString) -> InterceptionError {
    InterceptionError::Tls(error.to_string())
}

/// Returns parameters with times, a name and a unique serial number: clients refuse a second
/// certificate with the same number.
fn certificate_parameters(names: Vec<String>, called: String) -> Result<CertificateParams, InterceptionError> {
    let mut parameters = CertificateParams::new(names).map_err(certificate_error)?;
    let now = SystemTime::now();
    parameters.not_before = (now - BACKDATED_VALIDITY).into();
    parameters.not_after = (now + CERTIFICATE_VALIDITY).into();
    let mut serial = [0; 16];
    rand::fill(&mut serial).map_err(certificate_error)?;
    serial[0] &= 0x7f;
    parameters.serial_number = Some(SerialNumber::from_slice(&serial));
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, called);
    parameters.use_authority_key_identifier_extension = true;
    Ok(parameters)
}

impl CertificateAuthority {
    pub(super) fn generate_root() -> Result<Self, InterceptionError> {
        let own = KeyPair::generate().map_err(certificate_error)?;
        let mut parameters = certificate_parameters(Vec::new(), "Stockade, authority of one run".into())?;
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = parameters.self_signed(&own).map_err(certificate_error)?;
        let pem = encode_pem(certificate.der());
        let key = KeyPair::generate().map_err(certificate_error)?;
        Ok(Self { issuer: Issuer::new(parameters, own), key, pem, made: Mutex::default() })
    }

    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns the TLS configuration for a host.
    ///
    /// # Errors
    /// [`InterceptionError`] with the library's error.
    pub(crate) fn server_config(&self, host: &Host) -> Result<Arc<ServerConfig>, InterceptionError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = made.get(host) {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(self.make_server(host)?);
        if made.len() >= CACHED_CERTIFICATES_MAX {
            made.clear();
        }
        made.insert(host.clone(), Arc::clone(&config));
        Ok(config)
    }

    fn make_server(&self, host: &Host) -> Result<ServerConfig, InterceptionError> {
        // The common name has at most 64 letters; clients read the other name.
        let mut parameters = certificate_parameters(vec![host.to_string()], "Stockade, opened traffic".into())?;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = parameters.signed_by(&self.key, &self.issuer).map_err(certificate_error)?;
        let key = PrivateKeyDer::try_from(self.key.serialize_der()).map_err(certificate_error)?;
        let mut config = ServerConfig::builder_with_provider(crypto_provider())
            .with_safe_default_protocol_versions()
            .map_err(certificate_error)?
            .with_no_client_auth()
            .with_single_cert(vec![CertificateDer::from(certificate)], key)
            .map_err(certificate_error)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_kept_a_while() {
        let authority = CertificateAuthority::generate_root().unwrap();
        let host: Host = "a.test".parse().unwrap();
        let first = authority.server_config(&host).unwrap();
        assert!(Arc::ptr_eq(&first, &authority.server_config(&host).unwrap()));
        assert!(!Arc::ptr_eq(&first, &authority.server_config(&"[::1]".parse().unwrap()).unwrap()));
        let long = format!("{}.test", "a".repeat(63));
        authority.server_config(&long.parse().unwrap()).unwrap();
        assert_eq!(authority.made.lock().unwrap().len(), 3);
    }
}
