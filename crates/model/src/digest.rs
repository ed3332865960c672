//! The digest that binds the assessed request to the shown, executed and logged one (L5).

use std::fmt;

use data_encoding::HEXLOWER;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::text_form::display_as_text;

/// SHA-256, as `sha256:` and 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Digest(String);

impl Digest {
    /// Returns the digest of fields. Each field is preceded by its length, so that no two different lists
    /// of fields share a digest.
    pub fn of_fields<'a>(domain: &str, fields: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = Sha256::new();
        let mut put = |field: &[u8]| {
            hasher.update((field.len() as u64).to_le_bytes());
            hasher.update(field);
        };
        put(domain.as_bytes());
        for field in fields {
            put(field);
        }
        Self(format!("sha256:{}", HEXLOWER.encode(&hasher.finalize())))
    }

    /// Returns the digest of the canonical JSON of `value`: struct fields in declaration order, maps
    /// sorted. All maps of this crate are `BTreeMap`s.
    ///
    /// # Errors
    /// An error if `value` cannot be written as JSON, for example a map with keys that are not strings.
    pub fn of_json<T: Serialize>(domain: &str, value: &T) -> Result<Self, serde_json::Error> {
        let bytes = serde_json::to_vec(value)?;
        Ok(Self::of_fields(domain, [bytes.as_slice()]))
    }
}

display_as_text!(Digest);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_borders_count() {
        let a = Digest::of_fields("t", [&b"ab"[..], b"c"]);
        let b = Digest::of_fields("t", [&b"a"[..], b"bc"]);
        assert_ne!(a, b);
        assert_eq!(a.as_str().len(), 7 + 64);
    }
}
