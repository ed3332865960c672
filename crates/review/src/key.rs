//! The key of an endpoint: read when it is needed, never shown.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use stockade_model::RawText;

/// Longest key, in bytes.
const MAX_KEY_BYTES: u64 = 4_096;

/// Key of an endpoint. Its `Debug` form does not show it, and it has no other text form.
#[derive(Clone, PartialEq, Eq)]
pub struct EndpointKey(String);

/// Source of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// Variable of this name.
    Variable(String),
    /// File that only its owner may read.
    File(PathBuf),
    /// The endpoint needs no key.
    None,
}

/// Reason why there is no key. Nothing is sent then.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The variable is not set, or empty.
    #[error("there is no key: the variable {0} is not set")]
    Unset(String),
    /// The file cannot be read.
    #[error("there is no key: {} cannot be read: {why}", RawText::from(.path.as_path()).to_escaped())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Other users may access the file.
    #[error("the key is not used: others may read {}", RawText::from(.0.as_path()).to_escaped())]
    Open(PathBuf),
    /// The key is not valid in a header.
    #[error("the key is not used: it is not one line of printable ASCII")]
    Malformed,
}

impl fmt::Debug for EndpointKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl EndpointKey {
    /// Creates a key, without the line end of a file.
    ///
    /// # Errors
    /// [`KeyError::Malformed`] if it is not valid in a header.
    pub fn new(text: &str) -> Result<Self, KeyError> {
        let text = text.trim_end_matches(['\r', '\n']);
        let fits = !text.is_empty() && text.len() as u64 <= MAX_KEY_BYTES && text.bytes().all(|b| b.is_ascii_graphic());
        if fits { Ok(Self(text.to_owned())) } else { Err(KeyError::Malformed) }
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl KeySource {
    /// Reads the key; `None` if the endpoint needs none.
    ///
    /// # Errors
    /// [`KeyError`] if there is no key, or if it must not be used.
    pub fn read_key(&self, variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<EndpointKey>, KeyError> {
        match self {
            Self::None => Ok(None),
            Self::Variable(name) => {
                let value = variable(name).filter(|value| !value.is_empty());
                let value = value.ok_or_else(|| KeyError::Unset(name.clone()))?;
                EndpointKey::new(value.to_str().ok_or(KeyError::Malformed)?).map(Some)
            }
            Self::File(path) => {
                let unreadable = |why| KeyError::Unreadable { path: path.clone(), why };
                let (bytes, metadata) =
                    stockade_exchange::read_bounded_file(path, MAX_KEY_BYTES + 2).map_err(unreadable)?;
                if metadata.mode() & 0o077 != 0 {
                    return Err(KeyError::Open(path.clone()));
                }
                let text = std::str::from_utf8(&bytes).map_err(|_| KeyError::Malformed)?;
                EndpointKey::new(text).map(Some)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keys_are_read_and_not_shown() {
        let variables = |name: &str| (name == "K").then(|| OsString::from("s3cret"));
        let key = KeySource::Variable("K".to_owned()).read_key(variables).unwrap().unwrap();
        assert_eq!((key.expose(), format!("{key:?}")), ("s3cret", "Key(..)".to_owned()));
        assert!(matches!(KeySource::Variable("L".to_owned()).read_key(variables), Err(KeyError::Unset(_))));
        assert_eq!(KeySource::None.read_key(variables).unwrap(), None);

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let source = KeySource::File(path.clone());
        assert!(matches!(source.read_key(variables), Err(KeyError::Unreadable { .. })));
        for (mode, text, is_valid) in [(0o600, "abc\n", true), (0o640, "abc\n", false), (0o600, "a b", false)] {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let read = source.read_key(variables);
            assert_eq!(read.is_ok_and(|key| key.unwrap().expose() == "abc"), is_valid, "{mode:o} {text:?}");
        }
        assert!(matches!(KeySource::File(dir.path().to_owned()).read_key(variables), Err(KeyError::Unreadable { .. })));
    }

    #[test]
    fn a_key_cannot_add_a_header() {
        for bad in ["", "a\r\nX: y", "a\nb", "a\0", "é", &"k".repeat(5_000)] {
            assert!(matches!(EndpointKey::new(bad), Err(KeyError::Malformed)), "{bad:?}");
        }
    }
}
