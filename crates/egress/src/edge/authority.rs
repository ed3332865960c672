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

use super::EdgeError;
use super::trust::{pem, provider};

/// Most names with a cached certificate; further ones are made again.
const KEPT_MAX: usize = 1024;
/// Validity of a certificate before its creation, because clocks in the sandbox may differ.
const BEFORE: Duration = Duration::from_secs(24 * 3600);
/// Validity after its creation. Longer than any run; clients refuse more than 398 days.
const AFTER: Duration = Duration::from_secs(365 * 24 * 3600);

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The key of all names.
    key: KeyPair,
    pem: String,
    made: Mutex<HashMap<Host, Arc<ServerConfig>>>,
}

fn failed(error: impl ToString) -> EdgeError {
    EdgeError::Tls(error.to_string())
}

/// Returns parameters with times, a name and a unique serial number: clients refuse a second
/// certificate with the same number.
fn parameters(names: Vec<String>, called: String) -> Result<CertificateParams, EdgeError> {
    let mut parameters = CertificateParams::new(names).map_err(failed)?;
    let now = SystemTime::now();
    parameters.not_before = (now - BEFORE).into();
    parameters.not_after = (now + AFTER).into();
    let mut serial = [0; 16];
    rand::fill(&mut serial).map_err(failed)?;
    serial[0] &= 0x7f;
    parameters.serial_number = Some(SerialNumber::from_slice(&serial));
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, called);
    parameters.use_authority_key_identifier_extension = true;
    Ok(parameters)
}

impl Authority {
    pub(super) fn make() -> Result<Self, EdgeError> {
        let own = KeyPair::generate().map_err(failed)?;
        let mut parameters = parameters(Vec::new(), "Stockade, authority of one run".into())?;
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = parameters.self_signed(&own).map_err(failed)?;
        let pem = pem(certificate.der());
        let key = KeyPair::generate().map_err(failed)?;
        Ok(Self { issuer: Issuer::new(parameters, own), key, pem, made: Mutex::default() })
    }

    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns the TLS configuration for a host.
    ///
    /// # Errors
    /// [`EdgeError`] with the library's error.
    pub(crate) fn server(&self, host: &Host) -> Result<Arc<ServerConfig>, EdgeError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = made.get(host) {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(self.make_server(host)?);
        if made.len() >= KEPT_MAX {
            made.clear();
        }
        made.insert(host.clone(), Arc::clone(&config));
        Ok(config)
    }

    fn make_server(&self, host: &Host) -> Result<ServerConfig, EdgeError> {
        // The common name has at most 64 letters; clients read the other name.
        let mut parameters = parameters(vec![host.to_string()], "Stockade, opened traffic".into())?;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = parameters.signed_by(&self.key, &self.issuer).map_err(failed)?;
        let key = PrivateKeyDer::try_from(self.key.serialize_der()).map_err(failed)?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_no_client_auth()
            .with_single_cert(vec![CertificateDer::from(certificate)], key)
            .map_err(failed)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_kept_a_while() {
        let authority = Authority::make().unwrap();
        let host: Host = "a.test".parse().unwrap();
        let first = authority.server(&host).unwrap();
        assert!(Arc::ptr_eq(&first, &authority.server(&host).unwrap()));
        assert!(!Arc::ptr_eq(&first, &authority.server(&"[::1]".parse().unwrap()).unwrap()));
        let long = format!("{}.test", "a".repeat(63));
        authority.server(&long.parse().unwrap()).unwrap();
        assert_eq!(authority.made.lock().unwrap().len(), 3);
    }
}
