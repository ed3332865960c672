//! The use of a key: which key of the user's ssh agent may sign for which purpose, as in a grant.
//!
//! Must not know keys themselves, agents, nor the format of a signature.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::network::HostError;
use crate::text_form::{display_as_text, text_form};
use crate::{Grant, Host, HostPattern, NetworkTarget, TargetPattern};

/// The port of ssh, which is left out in texts that name a host.
pub const SSH_PORT: u16 = 22;

/// Prefix of the text of a fingerprint.
const FINGERPRINT_PREFIX: &str = "SHA256:";
/// Length of 32 bytes in base64 without padding.
const FINGERPRINT_DIGITS: usize = 43;

/// The fingerprint of an ssh key as `ssh-add -l` prints it: `SHA256:` and 43 characters of base64.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyFingerprint(String);

/// Purpose of a signature.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SignPurpose {
    /// Commits, tags and pushes of git.
    Git,
    /// The authentication to this ssh server.
    Host(NetworkTarget),
}

/// One key and one purpose: `KEY for git`, `KEY to HOST[:PORT]`. No port means port 22.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SignUse {
    key: KeyFingerprint,
    purpose: SignPurpose,
}

display_as_text!(KeyFingerprint);

impl FromStr for KeyFingerprint {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let is_base64 = |b: u8| b.is_ascii_alphanumeric() || b == b'+' || b == b'/';
        // The last character holds 4 bits, so that one key has one text.
        let ends_well = |digits: &str| digits.ends_with(|c| "AEIMQUYcgkosw048".contains(c));
        match text.strip_prefix(FINGERPRINT_PREFIX) {
            Some(digits)
                if digits.len() == FINGERPRINT_DIGITS && digits.bytes().all(is_base64) && ends_well(digits) =>
            {
                Ok(Self(text.to_owned()))
            }
            _ => Err("give a key by its fingerprint, as `ssh-add -l` prints it: `SHA256:` and 43 characters"),
        }
    }
}

text_form!(KeyFingerprint, {
    "description": "The fingerprint of an ssh key, as `ssh-add -l` prints it.",
    "type": "string",
    "pattern": "^SHA256:[A-Za-z0-9+/]{43}$"
});

impl SignUse {
    /// Returns the use of this key for this purpose.
    pub fn new(key: KeyFingerprint, purpose: SignPurpose) -> Self {
        Self { key, purpose }
    }

    /// Returns the key.
    pub fn key(&self) -> &KeyFingerprint {
        &self.key
    }

    /// Returns the purpose.
    pub fn purpose(&self) -> &SignPurpose {
        &self.purpose
    }

    /// Returns the server that the key may authenticate to.
    pub fn target(&self) -> Option<&NetworkTarget> {
        match &self.purpose {
            SignPurpose::Host(target) => Some(target),
            SignPurpose::Git => None,
        }
    }

    /// Returns the grant for this use.
    pub fn into_grant(self) -> Grant {
        Grant::Sign(Box::new(self))
    }
}

impl fmt::Display for SignUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.purpose {
            SignPurpose::Git => write!(f, "{} for git", self.key),
            SignPurpose::Host(target) => write!(f, "{} to {}", self.key, ssh_target_text(target)),
        }
    }
}

impl FromStr for SignUse {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let mut words = text.split_ascii_whitespace();
        let (Some(key), Some(how), Some(what), None) = (words.next(), words.next(), words.next(), words.next()) else {
            return Err(
                "expected a key and what it signs: `sign SHA256:... for git` or `sign SHA256:... to github.com`",
            );
        };
        let purpose = match (how, what) {
            ("for", "git") => SignPurpose::Git,
            ("for", _) => return Err("a key signs `for git`, or authenticates `to` a host"),
            ("to", host) => SignPurpose::Host(ssh_target(host)?),
            _ => return Err("`for git` or `to HOST` must follow the key"),
        };
        Ok(Self { key: key.parse()?, purpose })
    }
}

/// Parses an ssh server: `HOST` or `HOST:PORT`, no pattern.
///
/// # Errors
/// The reason why the text does not name one server.
pub fn ssh_target(text: &str) -> Result<NetworkTarget, &'static str> {
    let pattern: TargetPattern = text.parse().map_err(|error: HostError| error.reason())?;
    match pattern.host() {
        HostPattern::Exactly(host) if pattern.ports().next().is_none() => {
            Ok(NetworkTarget { host: host.clone(), port: SSH_PORT })
        }
        HostPattern::Exactly(_) => pattern.target().ok_or("an ssh server has one port"),
        _ => Err("a key authenticates to one host: name it"),
    }
}

/// Formats an ssh server; the port is left out if it is that of ssh.
pub fn ssh_target_text(target: &NetworkTarget) -> String {
    match &target.host {
        _ if target.port != SSH_PORT => target.to_string(),
        Host::Address(address) if address.is_ipv6() => format!("[{address}]"),
        host => host.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "SHA256:n2Qkj1yQp3Q3nGkkNUnGhUBGTFkFrp1Bw0dmz6qYmNA";

    #[track_caller]
    fn check(text: &str, shown: &str) {
        let grant: Grant = text.parse().unwrap();
        assert_eq!(grant.to_string(), shown);
        assert_eq!(shown.parse::<Grant>().unwrap(), grant);
        let json = serde_json::to_string(&grant).unwrap();
        assert_eq!(serde_json::from_str::<Grant>(&json).unwrap(), grant);
    }

    #[test]
    fn text_forms() {
        check(&format!("sign {KEY} for git"), &format!("sign {KEY} for git"));
        check(&format!("sign  {KEY}  to GitHub.com."), &format!("sign {KEY} to github.com"));
        check(&format!("sign {KEY} to github.com:22"), &format!("sign {KEY} to github.com"));
        check(&format!("sign {KEY} to [::1]:22"), &format!("sign {KEY} to [::1]"));
        check(&format!("sign {KEY} to 127.0.0.1:2222"), &format!("sign {KEY} to 127.0.0.1:2222"));
    }

    #[test]
    fn unclear_input_is_refused() {
        let (short, odd) = (&KEY[..KEY.len() - 1], format!("{}B", &KEY[..KEY.len() - 1]));
        for bad in [
            "sign".to_owned(),
            format!("sign {KEY}"),
            format!("sign {KEY} for file"),
            format!("sign {KEY} for git really"),
            format!("sign {KEY} at github.com"),
            format!("sign {KEY} to *"),
            format!("sign {KEY} to *.example.com"),
            format!("sign {KEY} to 10.0.0.0/8"),
            format!("sign {KEY} to a.example:22,23"),
            format!("sign {short} for git"),
            format!("sign {odd} for git"),
            "sign MD5:00:11 for git".to_owned(),
            "sign * for git".to_owned(),
        ] {
            assert!(bad.parse::<Grant>().is_err(), "{bad}");
        }
    }
}
