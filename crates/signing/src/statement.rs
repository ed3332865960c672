//! Data to sign. Only two forms are ever signed, each parsed to its last byte: a signature of git
//! (OpenSSH, PROTOCOL.sshsig) and an authentication to a server (RFC 4252, section 7; OpenSSH,
//! PROTOCOL, section 1.8). No bytes have both forms: the first begins with its name, which the
//! second would read as the length of a string of more than a gigabyte.
//!
//! This module must not know grants, nor the client.

use crate::wire::SshWireReader;

const GIT_MAGIC: &[u8] = b"SSHSIG";
const GIT_NAMESPACE: &[u8] = b"git";
/// `SSH_MSG_USERAUTH_REQUEST`.
const USERAUTH_REQUEST: u8 = 50;
const SSH_CONNECTION_SERVICE: &[u8] = b"ssh-connection";
const PUBLICKEY_METHOD: &[u8] = b"publickey";
const HOSTBOUND_METHOD: &[u8] = b"publickey-hostbound-v00@openssh.com";

/// Data that a key may be asked to sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SigningPayload<'a> {
    /// A text of git: a commit, a tag, a push certificate.
    Git {
        /// Name of the digest: `sha256` or `sha512`.
        algorithm: &'a str,
        /// Digest of the text.
        digest: &'a [u8],
    },
    /// An authentication to a server.
    Authentication(ServerAuthentication<'a>),
}

/// See [`SigningPayload::Authentication`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerAuthentication<'a> {
    /// The session with the server.
    pub session: &'a [u8],
    /// The user there.
    pub user: &'a [u8],
    /// The key that authenticates.
    pub key: &'a [u8],
    /// The server's key, if the method includes it.
    pub host_key: Option<&'a [u8]>,
}

impl<'a> SigningPayload<'a> {
    /// Parses data to sign; `None` if it has neither form.
    pub(crate) fn parse_payload(data: &'a [u8]) -> Option<Self> {
        parse_git_payload(data).or_else(|| parse_authentication(data).map(Self::Authentication))
    }
}

fn parse_git_payload(data: &[u8]) -> Option<SigningPayload<'_>> {
    let mut reader = SshWireReader::new(data);
    reader.expect_bytes(GIT_MAGIC)?;
    let (namespace, reserved) = (reader.read_string()?, reader.read_string()?);
    let (algorithm, digest) = (reader.read_string()?, reader.read_string()?);
    reader.expect_end()?;
    let algorithm = match (algorithm, digest.len()) {
        (b"sha256", 32) => "sha256",
        (b"sha512", 64) => "sha512",
        _ => return None,
    };
    (namespace == GIT_NAMESPACE && reserved.is_empty()).then_some(SigningPayload::Git { algorithm, digest })
}

fn parse_authentication(data: &[u8]) -> Option<ServerAuthentication<'_>> {
    let mut reader = SshWireReader::new(data);
    let session = reader.read_string()?;
    if reader.read_byte()? != USERAUTH_REQUEST {
        return None;
    }
    let (user, service, method) = (reader.read_string()?, reader.read_string()?, reader.read_string()?);
    // The byte 1 means that a signature follows.
    if service != SSH_CONNECTION_SERVICE || reader.read_byte()? != 1 {
        return None;
    }
    // The signature algorithm: the user's agent checks that it fits the key.
    reader.read_string()?;
    let key = reader.read_string()?;
    let host_key = match method {
        PUBLICKEY_METHOD => None,
        HOSTBOUND_METHOD => Some(reader.read_string()?),
        _ => return None,
    };
    reader.expect_end()?;
    Some(ServerAuthentication { session, user, key, host_key })
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::put_string;

    pub(crate) fn git_text(namespace: &[u8], reserved: &[u8], algorithm: &[u8], digest: &[u8]) -> Vec<u8> {
        let mut out = GIT_MAGIC.to_vec();
        for part in [namespace, reserved, algorithm, digest] {
            put_string(&mut out, part);
        }
        out
    }

    pub(crate) fn authentication_text(session: &[u8], key: &[u8], host_key: Option<&[u8]>) -> Vec<u8> {
        let mut out = Vec::new();
        put_string(&mut out, session);
        out.push(USERAUTH_REQUEST);
        put_string(&mut out, b"user");
        put_string(&mut out, SSH_CONNECTION_SERVICE);
        put_string(&mut out, if host_key.is_some() { HOSTBOUND_METHOD } else { PUBLICKEY_METHOD });
        out.push(1);
        put_string(&mut out, b"ssh-ed25519");
        put_string(&mut out, key);
        host_key.iter().for_each(|key| put_string(&mut out, key));
        out
    }

    #[test]
    fn only_a_whole_signature_of_git_is_one() {
        let good = git_text(b"git", b"", b"sha512", &[7; 64]);
        assert_eq!(
            SigningPayload::parse_payload(&good),
            Some(SigningPayload::Git { algorithm: "sha512", digest: &[7; 64] })
        );
        for bad in [
            git_text(b"file", b"", b"sha512", &[7; 64]),
            git_text(b"git ", b"", b"sha512", &[7; 64]),
            git_text(b"GIT", b"", b"sha512", &[7; 64]),
            git_text(b"", b"", b"sha512", &[7; 64]),
            git_text(b"git", b"x", b"sha512", &[7; 64]),
            git_text(b"git", b"", b"sha1", &[7; 20]),
            git_text(b"git", b"", b"sha512", &[7; 32]),
            git_text(b"git", b"", b"sha256", &[7; 64]),
            [&good[..], b"x"].concat(),
            good[1..].to_vec(),
        ] {
            assert_eq!(SigningPayload::parse_payload(&bad), None, "{bad:?}");
        }
        for length in 0..good.len() {
            assert_eq!(SigningPayload::parse_payload(&good[..length]), None, "{length}");
        }
    }

    #[test]
    fn only_a_whole_authentication_is_one() {
        for host_key in [None, Some(&b"host key"[..])] {
            let good = authentication_text(b"session", b"key", host_key);
            let expected = ServerAuthentication { session: b"session", user: b"user", key: b"key", host_key };
            assert_eq!(SigningPayload::parse_payload(&good), Some(SigningPayload::Authentication(expected)));
            assert_eq!(SigningPayload::parse_payload(&[&good[..], &[0]].concat()), None);
            for length in 0..good.len() {
                assert_eq!(SigningPayload::parse_payload(&good[..length]), None, "{length}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_statement_by_chance(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(SigningPayload::parse_payload(&data), None);
        }
    }
}
