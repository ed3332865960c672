//! Small checked parts of a sandbox: lifetimes, labels, names of images and runtimes.

use std::collections::BTreeMap;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SpecError;
use crate::text_form::{display_as_text, text_form};

/// Shortest lifetime, in milliseconds.
const MIN_LIFETIME_MS: u64 = 1_000;
/// Longest lifetime, in milliseconds: 365 days, as for every duration.
const MAX_LIFETIME_MS: u64 = 365 * 24 * 60 * 60 * 1000;
/// Most labels of one sandbox.
const MAX_LABELS: usize = 64;
/// Longest key of a label, in bytes.
const MAX_LABEL_KEY_BYTES: usize = 63;
/// Longest value of a label, in bytes.
const MAX_LABEL_VALUE_BYTES: usize = 256;
/// Longest name of an image, in bytes (distribution's reference grammar).
const MAX_IMAGE_NAME_BYTES: usize = 255;

/// Lifetime of a sandbox, in milliseconds: from one second to 365 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u64", into = "u64")]
pub struct SandboxLifetime(u64);

impl SandboxLifetime {
    /// Returns the lifetime in milliseconds.
    pub fn as_millis(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for SandboxLifetime {
    type Error = SpecError;
    fn try_from(ms: u64) -> Result<Self, SpecError> {
        if (MIN_LIFETIME_MS..=MAX_LIFETIME_MS).contains(&ms) {
            Ok(Self(ms))
        } else {
            Err(SpecError::new("lifetime", "the lifetime of a sandbox is `1s` to `365d`"))
        }
    }
}

impl From<SandboxLifetime> for u64 {
    fn from(lifetime: SandboxLifetime) -> u64 {
        lifetime.0
    }
}

/// Labels that the creator gives a sandbox: at most 64 pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct SandboxLabels(BTreeMap<String, String>);

impl SandboxLabels {
    /// Returns whether there are no labels.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Returns all labels, ordered by key.
    pub fn iter_labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Returns whether each label of `other` is present.
    pub fn contains_all(&self, other: &Self) -> bool {
        other.iter_labels().all(|(key, value)| self.get(key) == Some(value))
    }
}

impl TryFrom<BTreeMap<String, String>> for SandboxLabels {
    type Error = SpecError;
    fn try_from(pairs: BTreeMap<String, String>) -> Result<Self, SpecError> {
        if pairs.len() > MAX_LABELS {
            return Err(SpecError::new("labels", "there are at most 64"));
        }
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/');
        let key = |key: &str| (1..=MAX_LABEL_KEY_BYTES).contains(&key.len()) && key.bytes().all(fits);
        if !pairs.keys().all(|text| key(text)) {
            return Err(SpecError::new("labels", "a key is 1 to 63 letters, digits, `-`, `_`, `.` and `/`"));
        }
        let value = |value: &str| value.len() <= MAX_LABEL_VALUE_BYTES && !value.chars().any(char::is_control);
        if !pairs.values().all(|text| value(text)) {
            return Err(SpecError::new("labels", "a value is at most 256 bytes of text on one line"));
        }
        Ok(Self(pairs))
    }
}

impl From<SandboxLabels> for BTreeMap<String, String> {
    fn from(labels: SandboxLabels) -> Self {
        labels.0
    }
}

/// An image by its content: `NAME@sha256:DIGITS`, or `sha256:DIGITS` of a local image. A tag is not
/// allowed, because it may refer to another image later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct ImageDigest(String);

impl ImageDigest {
    /// Returns the name before the digest, if there is one.
    pub fn name(&self) -> Option<&str> {
        self.0.split_once('@').map(|(name, _)| name)
    }

    /// Returns the 64 digits.
    pub fn digits(&self) -> &str {
        self.0.rsplit(':').next().unwrap_or_default()
    }
}

display_as_text!(ImageDigest, RuntimeName);
text_form!(ImageDigest);
text_form!(RuntimeName);

impl FromStr for ImageDigest {
    type Err = SpecError;
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (name, digest) = text.split_once('@').map_or((None, text), |(name, rest)| (Some(name), rest));
        let digits = digest.strip_prefix("sha256:").unwrap_or_default();
        if digits.len() != 64 || !digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(SpecError::new("image", "an image needs a digest, e.g. `NAME@sha256:...`"));
        }
        let fits =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.' | b'/' | b':');
        let is_name = |name: &str| {
            (1..=MAX_IMAGE_NAME_BYTES).contains(&name.len())
                && name.bytes().all(fits)
                && name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
        };
        if !name.is_none_or(is_name) {
            return Err(SpecError::new("image", "its name has lower-case letters, digits, `-`, `_`, `.`, `/` and `:`"));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Name of a runtime in its container engine: `runc`, `crun`, `runsc`, `kata`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct RuntimeName(String);

impl FromStr for RuntimeName {
    type Err = SpecError;
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.' | b'_');
        let starts = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
        if starts && text.len() <= 32 && text.bytes().all(fits) {
            Ok(Self(text.to_owned()))
        } else {
            Err(SpecError::new(
                "runtime",
                "a name is 1 to 32 lower-case letters, digits, `-`, `.` and `_`, e.g. `runsc`",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_are_bounded() {
        for good in [MIN_LIFETIME_MS, MAX_LIFETIME_MS] {
            assert_eq!(SandboxLifetime::try_from(good).map(SandboxLifetime::as_millis), Ok(good));
        }
        for bad in [0, MIN_LIFETIME_MS - 1, MAX_LIFETIME_MS + 1, u64::MAX] {
            assert!(SandboxLifetime::try_from(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn labels_are_few_and_short() {
        let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let labels = SandboxLabels::try_from(pairs(&[("task", "fix the parser"), ("team/x", "")])).unwrap();
        assert_eq!(labels.get("task"), Some("fix the parser"));
        assert!(labels.contains_all(&SandboxLabels::try_from(pairs(&[("team/x", "")])).unwrap()));
        assert!(!labels.contains_all(&SandboxLabels::try_from(pairs(&[("task", "")])).unwrap()));
        assert!(!labels.contains_all(&SandboxLabels::try_from(pairs(&[("other", "")])).unwrap()));
        let (key, value) = ("k".repeat(MAX_LABEL_KEY_BYTES + 1), "v".repeat(MAX_LABEL_VALUE_BYTES + 1));
        for bad in [("", "x"), ("a b", "x"), ("a", "x\n"), ("a", "\u{1b}[2J"), (&key, "x"), ("a", &value)] {
            assert!(SandboxLabels::try_from(pairs(&[bad])).is_err(), "{bad:?}");
        }
        let many = (0..=MAX_LABELS).map(|n| (n.to_string(), String::new())).collect::<BTreeMap<_, _>>();
        assert!(SandboxLabels::try_from(many).is_err());
    }

    #[test]
    fn images_are_named_by_content_and_runtimes_by_name() {
        let digits = "0123456789abcdef".repeat(4);
        let image: ImageDigest = format!("localhost:5000/base@sha256:{digits}").parse().unwrap();
        assert_eq!((image.name(), image.digits()), (Some("localhost:5000/base"), digits.as_str()));
        let image: ImageDigest = format!("sha256:{digits}").parse().unwrap();
        assert_eq!((image.name(), image.digits()), (None, digits.as_str()));
        let upper = digits.to_uppercase();
        for bad in [
            "".to_owned(),
            "debian".to_owned(),
            "debian:12".to_owned(),
            digits.clone(),
            format!("sha256:{}", &digits[1..]),
            format!("sha256:{upper}"),
            format!("sha512:{digits}"),
            format!("@sha256:{digits}"),
            format!("-v@sha256:{digits}"),
            format!("a b@sha256:{digits}"),
            format!("a@b@sha256:{digits}"),
            format!("sha256:{digits}\n"),
        ] {
            assert!(bad.parse::<ImageDigest>().is_err(), "{bad}");
        }
        assert_eq!("runsc".parse::<RuntimeName>().unwrap().as_str(), "runsc");
        for bad in ["", "-v", "/usr/bin/runc", "Runc", "a b", &"r".repeat(33)] {
            assert!(bad.parse::<RuntimeName>().is_err(), "{bad}");
        }
    }
}
