//! Public keys in the format of ssh: their fingerprints, and the verification of a server's
//! signature.
//!
//! This module must not know grants, nor the owner of a key.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA512, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use data_encoding::{BASE64, BASE64_NOPAD};
use sha2::{Digest, Sha256};
use stockade_model::KeyFingerprint;

use crate::wire::SshWireReader;

/// Returns the fingerprint of a public key.
pub fn compute_fingerprint(key: &[u8]) -> Option<KeyFingerprint> {
    let digest = Sha256::digest(key);
    format!("SHA256:{}", BASE64_NOPAD.encode(digest.as_slice())).parse().ok()
}

/// Formats a public key as in files: kind and base64. `None` if it has no kind.
pub fn public_key_text(key: &[u8]) -> Option<String> {
    Some(format!("{} {}", read_key_kind(key)?, BASE64.encode(key)))
}

/// Parses a public key as in files; the rest of the line is a comment.
pub(crate) fn read_public_key(text: &str) -> Option<Vec<u8>> {
    let mut words = text.split_ascii_whitespace();
    let (named, encoded) = (words.next()?, words.next()?);
    let key = BASE64.decode(encoded.as_bytes()).ok()?;
    (read_key_kind(&key)? == named).then_some(key)
}

/// Returns the kind of a public key, if its characters are allowed in a file.
pub(crate) fn read_key_kind(key: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(SshWireReader::new(key).read_string()?).ok()?;
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-@.".contains(&b);
    ((1..=64).contains(&name.len()) && name.bytes().all(fits)).then_some(name)
}

/// Returns whether `signature` is a signature of `data` by the server with `key`.
pub(crate) fn is_signed(key: &[u8], data: &[u8], signature: &[u8]) -> bool {
    verify_signature(key, data, signature).is_some()
}

fn verify_signature(key: &[u8], data: &[u8], signature: &[u8]) -> Option<()> {
    let mut signature = SshWireReader::new(signature);
    let (algorithm, bytes) = (signature.read_string()?, signature.read_string()?);
    signature.expect_end()?;
    let mut parts = SshWireReader::new(key);
    match (parts.read_string()?, algorithm) {
        (b"ssh-ed25519", b"ssh-ed25519") => {
            let point = parts.read_string()?;
            parts.expect_end()?;
            UnparsedPublicKey::new(&ED25519, point).verify(data, bytes).ok()
        }
        (b"ssh-rsa", b"rsa-sha2-256" | b"rsa-sha2-512") => {
            let (e, n) = (parts.read_unsigned()?, parts.read_unsigned()?);
            parts.expect_end()?;
            let parameters =
                if algorithm == b"rsa-sha2-256" { &RSA_PKCS1_2048_8192_SHA256 } else { &RSA_PKCS1_2048_8192_SHA512 };
            RsaPublicKeyComponents { n, e }.verify(parameters, data, bytes).ok()
        }
        (kind, algorithm) if kind == algorithm => {
            let (curve, point) = (parts.read_string()?, parts.read_string()?);
            parts.expect_end()?;
            let (verification, length): (&'static dyn VerificationAlgorithm, usize) = match (kind, curve) {
                (b"ecdsa-sha2-nistp256", b"nistp256") => (&ECDSA_P256_SHA256_FIXED, 32),
                (b"ecdsa-sha2-nistp384", b"nistp384") => (&ECDSA_P384_SHA384_FIXED, 48),
                (b"ecdsa-sha2-nistp521", b"nistp521") => (&ECDSA_P521_SHA512_FIXED, 66),
                _ => return None,
            };
            UnparsedPublicKey::new(verification, point).verify(data, &parse_fixed_signature(bytes, length)?).ok()
        }
        _ => None,
    }
}

/// Returns the two numbers of a signature, each padded to this number of bytes.
fn parse_fixed_signature(bytes: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut numbers = SshWireReader::new(bytes);
    let (r, s) = (numbers.read_unsigned()?, numbers.read_unsigned()?);
    numbers.expect_end()?;
    let mut out = Vec::with_capacity(2 * length);
    for number in [r, s] {
        out.resize(out.len() + length.checked_sub(number.len())?, 0);
        out.extend_from_slice(number);
    }
    Some(out)
}

#[cfg(test)]
pub(crate) mod tests {
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};

    use super::*;
    use crate::wire::put_string;

    /// Key pair for tests.
    pub(crate) struct TestKey(Ed25519KeyPair);

    impl TestKey {
        pub(crate) fn new(seed: u8) -> Self {
            Self(Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap())
        }

        pub(crate) fn public_key_bytes(&self) -> Vec<u8> {
            let mut out = Vec::new();
            put_string(&mut out, b"ssh-ed25519");
            put_string(&mut out, self.0.public_key().as_ref());
            out
        }

        pub(crate) fn sign_data(&self, data: &[u8]) -> Vec<u8> {
            let mut out = Vec::new();
            put_string(&mut out, b"ssh-ed25519");
            put_string(&mut out, self.0.sign(data).as_ref());
            out
        }
    }

    #[test]
    fn a_servers_signature_is_its_keys_and_over_this_data() {
        let (key, other) = (TestKey::new(1), TestKey::new(2));
        let signature = key.sign_data(b"session");
        assert!(is_signed(&key.public_key_bytes(), b"session", &signature));
        assert!(!is_signed(&other.public_key_bytes(), b"session", &signature));
        assert!(!is_signed(&key.public_key_bytes(), b"another", &signature));
        assert!(!is_signed(&key.public_key_bytes(), b"session", &[&signature[..], b"x"].concat()));
        assert!(!is_signed(&[&key.public_key_bytes()[..], b"x"].concat(), b"session", &signature));
        for length in 0..signature.len() {
            assert!(!is_signed(&key.public_key_bytes(), b"session", &signature[..length]));
        }
    }

    #[test]
    fn a_public_key_survives_its_text() {
        let key = TestKey::new(3).public_key_bytes();
        let text = public_key_text(&key).unwrap();
        assert_eq!(read_public_key(&format!("{text} somebody@here")), Some(key.clone()));
        assert_eq!(read_public_key(&text.replace("ssh-ed25519", "ssh-rsa")), None);
        assert!(compute_fingerprint(&key).unwrap().as_str().starts_with("SHA256:"));
    }
}
