//! The use of a secret: which secret may be sent to which host, as in a grant.
//!
//! Must not know values, nor where they are read.

use std::fmt;
use std::str::FromStr;

use crate::network::HostError;
use crate::{Grant, HostPattern, NetworkTarget, TargetPattern};

/// Longest name of a secret, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// One secret and the one host that may receive it: `NAME to HOST[:PORTS]`. No ports means every port, but
/// only with encryption.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretUse {
    name: String,
    targets: TargetPattern,
}

impl SecretUse {
    /// Returns the use of this secret at exactly this target; `None` if the text is not the name of a secret.
    pub fn new(name: &str, target: &NetworkTarget) -> Option<Self> {
        is_secret_name(name).then(|| Self { name: name.to_owned(), targets: TargetPattern::for_target(target) })
    }

    /// Returns the secret's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the targets that may receive the secret: one host.
    pub fn targets(&self) -> &TargetPattern {
        &self.targets
    }

    /// Returns the grant for this use.
    pub fn into_grant(self) -> Grant {
        Grant::Secret(Box::new(self))
    }

    /// Returns whether this use includes `other`.
    pub fn covers(&self, other: &Self) -> bool {
        self.name == other.name && self.targets.covers(&other.targets)
    }
}

/// Returns whether a text is a name of a secret: letters, digits, `-` and `_`, at most 64.
pub fn is_secret_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(fits)
}

impl fmt::Display for SecretUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.name, self.targets)
    }
}

impl FromStr for SecretUse {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let mut words = text.split_ascii_whitespace();
        let (Some(name), Some("to"), Some(targets), None) = (words.next(), words.next(), words.next(), words.next())
        else {
            return Err("expected the name of a secret and a host, e.g. `secret github to ghe.example.com:443`");
        };
        if !is_secret_name(name) {
            return Err("the name of a secret is letters, digits, `-` and `_`, at most 64");
        }
        let targets: TargetPattern = targets.parse().map_err(|error: HostError| error.reason())?;
        if !matches!(targets.host(), HostPattern::Exactly(_)) {
            return Err("a secret is sent to one host only: name it");
        }
        Ok(Self { name: name.to_owned(), targets })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_grant_for_a_secret_survives_its_text_and_its_json(
            name in "[A-Za-z0-9_-]{1,64}",
            host in prop_oneof!["[a-z][a-z0-9-]{0,8}[a-z](\\.[a-z]{1,8}){0,3}", Just("10.1.2.3".to_owned()), Just("[2001:db8::1]".to_owned())],
            ports in prop_oneof![Just(String::new()), ":[1-9][0-9]{0,3}", ":[1-9][0-9]{0,3},6[0-4][0-9]{3}"],
        ) {
            let text = format!("secret {name} to {host}{ports}");
            let grant: Grant = text.parse().map_err(|error| TestCaseError::fail(format!("{error}")))?;
            prop_assert_eq!(grant.to_string().parse::<Grant>().ok(), Some(grant.clone()));
            let json = serde_json::to_string(&grant).map_err(|error| TestCaseError::fail(format!("{error}")))?;
            prop_assert_eq!(serde_json::from_str::<Grant>(&json).ok(), Some(grant));
        }

        #[test]
        fn no_text_is_read_that_is_not_written_so_again(text in "secret [ -~]{0,40}") {
            if let Ok(grant) = text.parse::<Grant>() {
                prop_assert_eq!(grant.to_string().parse::<Grant>().ok(), Some(grant));
            }
        }
    }

    #[test]
    fn one_covers_another_of_the_same_secret_and_host() {
        let read = |text: &str| text.parse::<SecretUse>().unwrap();
        let wide = read("a to h.example");
        assert!(wide.covers(&read("a to h.example:443")));
        assert!(!read("a to h.example:443").covers(&wide));
        for other in ["b to h.example:443", "a to i.example:443"] {
            assert!(!wide.covers(&read(other)), "{other}");
        }
        let target = "h.example:443".parse().unwrap();
        assert_eq!(SecretUse::new("a", &target), Some(read("a to h.example:443")));
        assert_eq!(SecretUse::new("a b", &target), None);
    }
}
