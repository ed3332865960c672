//! An effect that no sandbox contains or no undo takes back, and who has it: the program that was
//! started, or the host that a request went to.

use std::fmt;
use std::str::FromStr;

use crate::Grant;

/// Longest code and longest name, in bytes: as long as the name of a host.
const MAX_PART: usize = 253;

/// What a program does outside, or a request at a host: `publishes by npm`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EffectUse {
    code: String,
    program: String,
}

impl EffectUse {
    /// The effect of this code by the program of this name, without directories. `None`
    /// where either cannot be told in one word.
    pub fn new(code: &str, program: &[u8]) -> Option<Self> {
        let program = std::str::from_utf8(program).ok()?;
        let is_code = |b: u8| b.is_ascii_lowercase() || b == b'-';
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b"-_.+".contains(&b);
        let holds = |text: &str, is_part: fn(u8) -> bool| {
            !text.is_empty() && text.len() <= MAX_PART && text.bytes().all(is_part)
        };
        (holds(code, is_code) && holds(program, is_name))
            .then(|| Self { code: code.to_owned(), program: program.to_owned() })
    }

    /// The code of the finding that tells of it.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The answer that lets a run have it.
    pub fn into_grant(self) -> Grant {
        Grant::Effect(Box::new(self))
    }
}

impl fmt::Display for EffectUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.code, self.program)
    }
}

impl FromStr for EffectUse {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let parts = text.split_once(" by ");
        parts
            .and_then(|(code, program)| Self::new(code.trim(), program.trim().as_bytes()))
            .ok_or("an effect is the code of a finding and a program, e.g. `publishes by npm`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms() {
        for text in ["publishes by npm", "changes-cluster by python3.11"] {
            assert_eq!(text.parse::<EffectUse>().unwrap().to_string(), text);
            let grant: Grant = format!("effect {text}").parse().unwrap();
            assert_eq!(grant.to_string(), format!("effect {text}"));
            assert!(grant.is_answer_only());
        }
        for bad in ["publishes", "publishes by", "Publishes by npm", "publishes by a/b", "publishes by a b", " by npm"]
        {
            assert!(bad.parse::<EffectUse>().is_err(), "{bad}");
        }
        assert!(EffectUse::new("publishes", b"np\xff").is_none());
    }
}
