//! Identifiers: random tokens with a prefix for the kind of object. They are never part of a path and carry
//! no meaning.

use std::str::FromStr;

use data_encoding::HEXLOWER;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text_form::{display_as_text, text_form};

/// Reason why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid {kind} id; expected `{prefix}` and {form}")]
pub struct IdError {
    kind: &'static str,
    prefix: &'static str,
    form: &'static str,
    text: String,
}

/// Most characters of a wrong text that an error shows.
const MAX_SHOWN_CHARS: usize = 80;

const TOKEN_FORM: &str = "1 to 64 letters, digits, `-` or `_`";

fn is_token(rest: &str) -> bool {
    (1..=64).contains(&rest.len()) && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

const DIGITS_FORM: &str = "32 digits from 0 to 9 and a to f";

fn is_random_digits(rest: &str) -> bool {
    rest.len() == 32 && rest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

macro_rules! id {
    ($name:ident, $prefix:literal, $kind:literal, $form:ident, $is_form:ident, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Returns an identifier from 16 random bytes.
            pub fn from_random(bytes: [u8; 16]) -> Self {
                Self(format!(concat!($prefix, "{}"), HEXLOWER.encode(&bytes)))
            }
        }

        display_as_text!($name);
        text_form!($name);

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                match text.strip_prefix($prefix) {
                    Some(rest) if $is_form(rest) => Ok(Self(text.to_owned())),
                    _ => Err(IdError {
                        kind: $kind,
                        prefix: $prefix,
                        form: $form,
                        text: text.escape_default().take(MAX_SHOWN_CHARS).collect(),
                    }),
                }
            }
        }
    };
}

id!(RequestId, "req_", "request", TOKEN_FORM, is_token, "Identifies one request and all of its results.");
id!(SessionId, "ses_", "session", TOKEN_FORM, is_token, "Identifies one conversation of an agent.");
id!(ApprovalId, "apr_", "approval", TOKEN_FORM, is_token, "Identifies one stored answer.");
id!(StageId, "stg_", "stage", TOKEN_FORM, is_token, "Identifies the staged writes of one run.");
id!(
    SandboxId,
    "sbx_",
    "sandbox",
    DIGITS_FORM,
    is_random_digits,
    "Identifier of one persistent sandbox. A client that knows the identifier may use the sandbox, so it is\n\
     always 16 random bytes and never a chosen text."
);

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
