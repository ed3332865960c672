//! An effect that no sandbox contains or no undo reverts, and its cause: a started program, or the host of
//! a request.

use std::fmt;
use std::str::FromStr;

use crate::Grant;

/// Longest code and longest name, in bytes: the longest host name.
const MAX_PART_BYTES: usize = 253;

/// An effect of a program outside the sandbox, or of a request to a host: `publishes by npm`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EffectUse {
    code: String,
    source: EffectSource,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum EffectSource {
    /// A program, by its name without directories.
    Program(String),
    /// A request, by its host.
    Host(String),
}

impl EffectUse {
    /// Returns the effect of this code by the program of this name, without directories. `None` if either
    /// is not a single word.
    pub fn new(code: &str, program: &[u8]) -> Option<Self> {
        let source = EffectSource::Program(parse_word(program)?);
        is_code(code).then(|| Self { code: code.to_owned(), source })
    }

    /// Returns the effect of this code by a request to this host. `None` as for a program.
    pub fn at_host(code: &str, host: &str) -> Option<Self> {
        let source = EffectSource::Host(parse_word(host.as_bytes())?);
        is_code(code).then(|| Self { code: code.to_owned(), source })
    }

    /// Returns whether consent to this effect includes `requested`. Consent for a program includes its
    /// requests; consent for a request to a host includes no other host.
    pub fn covers(&self, requested: &Self) -> bool {
        match (&self.source, &requested.source) {
            (EffectSource::Program(_), EffectSource::Host(_)) => self.code == requested.code,
            _ => self == requested,
        }
    }

    /// Returns the grant that permits the effect.
    pub fn into_grant(self) -> Grant {
        Grant::Effect(Box::new(self))
    }
}

fn is_code(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_PART_BYTES && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
}

fn parse_word(text: &[u8]) -> Option<String> {
    let is_part = |b: &u8| b.is_ascii_alphanumeric() || b"-_.+:[]".contains(b);
    let text = std::str::from_utf8(text).ok().filter(|text| !text.is_empty() && text.len() <= MAX_PART_BYTES)?;
    text.as_bytes().iter().all(is_part).then(|| text.to_owned())
}

impl fmt::Display for EffectUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            EffectSource::Program(name) => write!(f, "{} by {name}", self.code),
            EffectSource::Host(name) => write!(f, "{} at {name}", self.code),
        }
    }
}

impl FromStr for EffectUse {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let parsed = match words.as_slice() {
            [code, "by", program] => Self::new(code, program.as_bytes()),
            [code, "at", host] => Self::at_host(code, host),
            _ => None,
        };
        parsed.ok_or("an effect is the code of a finding and a program or a host: `publishes by npm`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms() {
        for text in ["publishes by npm", "changes-cluster by python3.11", "publishes at [::1]"] {
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

    #[test]
    fn a_yes_to_a_program_is_one_to_its_requests_and_not_the_other_way() {
        let effect = |text: &str| text.parse::<EffectUse>().unwrap();
        for (consent, requested, covers) in [
            ("publishes by npm", "publishes by npm", true),
            ("publishes by npm", "publishes at a.test", true),
            ("publishes by npm", "changes-cluster at a.test", false),
            ("publishes by npm", "publishes by docker", false),
            ("publishes at a.test", "publishes at a.test", true),
            ("publishes at a.test", "publishes at b.test", false),
            ("publishes at docker", "publishes by docker", false),
        ] {
            assert_eq!(effect(consent).covers(&effect(requested)), covers, "{consent}, {requested}");
        }
    }
}
