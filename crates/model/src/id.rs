//! Identifiers: random tokens with a prefix for the kind of object. They are never part of a path and carry
//! no meaning.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reason why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {kind} id; expected `{prefix}` and 1 to 64 letters, digits, `-` or `_`")]
pub struct IdError {
    kind: &'static str,
    prefix: &'static str,
    text: String,
}

macro_rules! id {
    ($name:ident, $prefix:literal, $kind:literal, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Returns an identifier from 16 random bytes.
            pub fn from_random(bytes: [u8; 16]) -> Self {
                let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
                Self(format!(concat!($prefix, "{}"), hex))
            }

            /// Returns the text form.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                let well_formed = text.strip_prefix($prefix).is_some_and(|rest| {
                    (1..=64).contains(&rest.len())
                        && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
                });
                if well_formed {
                    Ok(Self(text))
                } else {
                    Err(IdError { kind: $kind, prefix: $prefix, text: text.escape_default().to_string() })
                }
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::try_from(text.to_owned())
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(RequestId, "req_", "request", "Names one request and everything that came of it.");
id!(SessionId, "ses_", "session", "Names one agent's conversation.");
id!(ApprovalId, "apr_", "approval", "Names one remembered answer.");
id!(StageId, "stg_", "stage", "Names the staged writes of one run.");

/// Identifier of one persistent sandbox. A client that knows the identifier may use the sandbox, so it is
/// always 16 random bytes and never a chosen text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

/// Reason why a text is not the id of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no sandbox id; expected `sbx_` and 32 digits from 0 to 9 and a to f")]
pub struct SandboxIdError(String);

impl SandboxId {
    const SANDBOX_ID_PREFIX: &str = "sbx_";
    const SANDBOX_ID_DIGITS: usize = 32;

    /// Returns an identifier from 16 random bytes.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        Self(format!("{}{hex}", Self::SANDBOX_ID_PREFIX))
    }

    /// Returns the text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for SandboxId {
    type Error = SandboxIdError;
    fn try_from(text: String) -> Result<Self, SandboxIdError> {
        let digits = text.strip_prefix(Self::SANDBOX_ID_PREFIX).unwrap_or_default();
        let well_formed =
            digits.len() == Self::SANDBOX_ID_DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if well_formed { Ok(Self(text)) } else { Err(SandboxIdError(text.escape_default().take(80).collect())) }
    }
}

impl FromStr for SandboxId {
    type Err = SandboxIdError;
    fn from_str(text: &str) -> Result<Self, SandboxIdError> {
        Self::try_from(text.to_owned())
    }
}

impl From<SandboxId> for String {
    fn from(id: SandboxId) -> String {
        id.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_well_formed_ids_pass() {
        assert!("ses_work-1".parse::<SessionId>().is_ok());
        for bad in ["", "ses_", "req_1", "ses_../x", "ses_a b", "ses_a\n"] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad:?}");
        }
        assert!(serde_json::from_str::<SessionId>("\"../../x\"").is_err());
    }

    #[test]
    fn a_sandbox_is_named_by_its_token_alone() {
        let id = SandboxId::from_random([0xab; 16]);
        assert_eq!(id.as_str(), format!("sbx_{}", "ab".repeat(16)));
        assert_eq!(id.as_str().parse(), Ok(id.clone()));
        let digits = "ab".repeat(16);
        for bad in [
            String::new(),
            "sbx_".to_owned(),
            "sbx_work".to_owned(),
            digits.clone(),
            format!("ses_{digits}"),
            format!("sbx_{}", &digits[1..]),
            format!("sbx_{digits}a"),
            format!("sbx_{}", digits.to_uppercase()),
            format!("sbx_{}/", &digits[1..]),
            format!("sbx_{digits}\n"),
        ] {
            assert!(bad.parse::<SandboxId>().is_err(), "{bad:?}");
            assert!(serde_json::from_value::<SandboxId>(bad.clone().into()).is_err(), "{bad:?}");
        }
    }
}
