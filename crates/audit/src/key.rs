//! Signing key of a log: an Ed25519 key that signs the head. So a change of the log and its head
//! together needs more than write permission.
//!
//! The key is beside the log's directory and not in it, so that a copy of the directory for an
//! auditor does not contain it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use rustix::fs::OFlags;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::line::{hex_digits, parse_hex};
use crate::log_directory::{LogDirectory, LogFileError, system_error};

/// Length of a signature, in bytes.
pub(crate) const SIGNATURE_BYTES: usize = 64;

/// First word of the key file: the type of the file, and the version of its format.
const FILE_MARK: &str = "stockade-audit-key-1";

/// Longest key file, which is one short line; a longer file is another file.
const MAX_FILE_BYTES: u64 = 256;

/// Key that signs and checks heads.
pub(crate) struct SigningKey {
    pair: Ed25519KeyPair,
}

impl std::fmt::Debug for SigningKey {
    /// Shows only the public part.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SigningKey({})", hex_digits(self.public_key()))
    }
}

impl SigningKey {
    fn from_seed(seed: &[u8; 32]) -> Option<Self> {
        Some(Self { pair: Ed25519KeyPair::from_seed_unchecked(seed).ok()? })
    }

    /// Returns the public key, in bytes.
    pub fn public_key(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    /// Signs a text.
    pub fn sign(&self, text: &[u8]) -> [u8; SIGNATURE_BYTES] {
        let mut out = [0; SIGNATURE_BYTES];
        let signature = self.pair.sign(text);
        // An Ed25519 signature always has 64 bytes; another length would never verify.
        if signature.as_ref().len() == SIGNATURE_BYTES {
            out.copy_from_slice(signature.as_ref());
        }
        out
    }

    /// Returns whether this is a signature of this text by this key.
    pub fn is_signature(&self, text: &[u8], signature: &[u8; SIGNATURE_BYTES]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.public_key()).verify(text, signature).is_ok()
    }
}

/// Key files of one log.
pub(crate) struct KeyFiles {
    directory: LogDirectory,
    name: OsString,
}

/// Stored key, with the state of its file name.
pub(crate) struct StoredKey {
    pub key: SigningKey,
    /// True if the signed head may not be written yet: the process that made the key ended before
    /// that.
    pub is_pending: bool,
}

impl KeyFiles {
    /// Returns the key files of the log in `dir`; `None` if `dir` has no name of its own.
    pub fn of_log(dir: &Path) -> Result<Option<Self>, LogFileError> {
        let Some(name) = dir.file_name() else { return Ok(None) };
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut name = name.to_owned();
        name.push(".key");
        Ok(Some(Self { directory: LogDirectory::open_parent(parent)?, name }))
    }

    /// Returns the path of the key file.
    pub fn path(&self) -> PathBuf {
        self.directory.path.join(&self.name)
    }

    fn pending_name(&self) -> OsString {
        let mut name = self.name.clone();
        name.push(".new");
        name
    }

    /// Reads the key, if there is one.
    ///
    /// # Errors
    /// [`LogFileError`] if others than the caller can access the file, or it contains no key.
    pub fn load_key(&self) -> Result<Option<StoredKey>, LogFileError> {
        for (name, is_pending) in [(self.name.clone(), false), (self.pending_name(), true)] {
            if let Some(file) = self.directory.open_private(&name, OFlags::RDONLY)? {
                match read_key(file).map_err(system_error("read", &self.directory.path.join(&name)))? {
                    Some(key) => return Ok(Some(StoredKey { key, is_pending })),
                    // The write was interrupted; the key signed nothing.
                    None if is_pending => {}
                    None => {
                        let why = io::Error::new(io::ErrorKind::InvalidData, "it holds no signing key");
                        return Err(system_error("use", &self.directory.path.join(&name))(why));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Creates a key under its pending name. The caller holds the log's exclusive lock.
    ///
    /// # Errors
    /// [`LogFileError`] if it cannot be written.
    pub fn create_pending(&self) -> Result<SigningKey, LogFileError> {
        let name = self.pending_name();
        let path = self.directory.path.join(&name);
        let mut seed = [0; 32];
        let length = getrandom(&mut seed, GetRandomFlags::empty()).map_err(system_error("make a key for", &path))?;
        let key = (length == seed.len()).then(|| SigningKey::from_seed(&seed)).flatten();
        let key = key.ok_or_else(|| system_error("make a key for", &path)(io::ErrorKind::Other))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let missing = || system_error("create", &path)(io::ErrorKind::NotFound);
        let mut file = self.directory.open_private(&name, flags)?.ok_or_else(missing)?;
        let text = format!("{FILE_MARK} {}\n", hex_digits(&seed));
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(system_error("write", &path))?;
        Ok(key)
    }

    /// Renames a pending key to its final name, because its head is written.
    ///
    /// # Errors
    /// [`LogFileError`] if it cannot be renamed.
    pub fn publish_key(&self) -> Result<(), LogFileError> {
        let renamed = rustix::fs::renameat(&self.directory.fd, self.pending_name(), &self.directory.fd, &self.name);
        renamed.map_err(system_error("create", &self.path()))?;
        self.directory.sync_names()
    }
}

fn read_key(file: File) -> io::Result<Option<SigningKey>> {
    let mut text = String::new();
    match file.take(MAX_FILE_BYTES).read_to_string(&mut text) {
        Err(e) if e.kind() == io::ErrorKind::InvalidData => return Ok(None),
        other => other.map(drop)?,
    }
    let seed = text.strip_suffix('\n').and_then(|text| text.strip_prefix(FILE_MARK)?.strip_prefix(' '));
    Ok(seed.and_then(|seed| parse_hex::<32>(seed.as_bytes())).and_then(|seed| SigningKey::from_seed(&seed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_fits_its_text_and_key_alone() {
        let [key, other] = [[7; 32], [8; 32]].map(|seed| SigningKey::from_seed(&seed).unwrap());
        let signature = key.sign(b"text");
        assert!(key.is_signature(b"text", &signature));
        assert!(!key.is_signature(b"texT", &signature));
        assert!(!other.is_signature(b"text", &signature));
        assert!(!key.is_signature(b"text", &[0; SIGNATURE_BYTES]));
    }

    #[test]
    fn a_key_is_private_and_made_once() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let files = KeyFiles::of_log(&root.path().join("audit")).unwrap().unwrap();
        assert!(files.load_key().unwrap().is_none());
        let made = files.create_pending().unwrap();
        assert!(files.load_key().unwrap().unwrap().is_pending);
        files.publish_key().unwrap();
        let loaded = files.load_key().unwrap().unwrap();
        assert_eq!((loaded.key.public_key(), loaded.is_pending), (made.public_key(), false));
        let mode = |mode| std::fs::set_permissions(files.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(std::fs::metadata(files.path()).unwrap().permissions().mode() & 0o777, 0o600);
        mode(0o644);
        assert!(files.load_key().is_err(), "others may read it");
        mode(0o600);
        std::fs::write(files.path(), "nonsense").unwrap();
        assert!(files.load_key().is_err());
    }
}
