//! A grant: one added power in its text form.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::network::{HostError, parse_port};
use crate::text_form::text_form;
use crate::{EffectUse, LimitKind, NetworkTarget, RawText, SecretUse, SignUse, TargetPattern};

/// One added power. The text form is `write PATH`, `read PATH`, `connect HOST[:PORTS]`,
/// `secret NAME to HOST[:PORTS]`, `sign KEY for git`, `sign KEY to HOST[:PORT]`, `listen PORT`,
/// `socket PATH`, `exec PROGRAM`, `env NAME`, `effect CODE by PROGRAM`, `effect CODE at HOST`. For a limit
/// it is the name and amount: `memory 8GiB`, `processes 4096`, `wall 2h`.
///
/// Paths are absolute and normal: no `.`, no `..`, no double slash. The parser of user input resolves `~`
/// and relative paths first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Grant {
    /// Create, change and remove this path and everything beneath it, up to the next protected name.
    Write(PathBuf),
    /// Read this path and everything beneath it although it is hidden.
    Read(PathBuf),
    /// Connect to these targets over TCP; no port means every port.
    Connect(TargetPattern),
    /// Have the egress proxy insert this secret into requests to this host. The grant neither allows
    /// connections to the host nor shows the secret to the run.
    Secret(Box<SecretUse>),
    /// Have a key of the user's ssh agent sign for this purpose alone. The grant neither allows connections
    /// to a host nor shows the key to the run.
    Sign(Box<SignUse>),
    /// Publish this TCP port on the host's loopback.
    Listen(u16),
    /// Connect to this unix socket of the host.
    Socket(PathBuf),
    /// Execute this program.
    Exec(PathBuf),
    /// Pass this variable of the caller's environment.
    Env(String),
    /// Raise this limit to this amount, in its own unit.
    Limit(LimitKind, u64),
    /// Have this effect, which no sandbox contains or no undo reverts. Only an answer gives this grant:
    /// consent in advance is not possible.
    Effect(Box<EffectUse>),
}

/// Reason why a text is not a grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a grant: {why}")]
pub struct GrantError {
    text: String,
    why: &'static str,
}

impl Grant {
    /// Returns whether only an answer to a question can give this grant.
    pub fn is_answer_only(&self) -> bool {
        matches!(self, Self::Effect(_))
    }

    /// Returns the grant to connect to exactly this target.
    pub fn connect_to(target: &NetworkTarget) -> Self {
        Self::Connect(TargetPattern::for_target(target))
    }

    /// Returns the targets that this grant allows connections to.
    pub fn targets(&self) -> Option<&TargetPattern> {
        match self {
            Self::Connect(targets) => Some(targets),
            _ => None,
        }
    }

    /// Returns the secret, and the host that may receive it, of this grant.
    pub fn secret(&self) -> Option<&SecretUse> {
        match self {
            Self::Secret(grant_use) => Some(grant_use),
            _ => None,
        }
    }

    /// Returns the key and the purpose that this grant allows signatures for.
    pub fn sign_use(&self) -> Option<&SignUse> {
        match self {
            Self::Sign(grant_use) => Some(grant_use),
            _ => None,
        }
    }

    /// Returns the effect that this grant allows.
    pub fn effect(&self) -> Option<&EffectUse> {
        match self {
            Self::Effect(grant_use) => Some(grant_use),
            _ => None,
        }
    }

    /// Returns the path of a filesystem grant.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Write(p) | Self::Read(p) | Self::Socket(p) | Self::Exec(p) => Some(p),
            Self::Connect(_) | Self::Secret(_) | Self::Sign(_) => None,
            Self::Listen(_) | Self::Env(_) | Self::Limit(..) | Self::Effect(_) => None,
        }
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |p: &Path| RawText::from(p).escaped_reversibly();
        match self {
            Self::Write(p) => write!(f, "write {}", shown(p)),
            Self::Read(p) => write!(f, "read {}", shown(p)),
            Self::Connect(targets) => write!(f, "connect {targets}"),
            Self::Secret(grant_use) => write!(f, "secret {grant_use}"),
            Self::Sign(grant_use) => write!(f, "sign {grant_use}"),
            Self::Listen(port) => write!(f, "listen {port}"),
            Self::Socket(p) => write!(f, "socket {}", shown(p)),
            Self::Exec(p) => write!(f, "exec {}", shown(p)),
            Self::Env(name) => write!(f, "env {name}"),
            Self::Limit(limit, amount) => write!(f, "{limit} {}", limit.format_amount(*amount)),
            Self::Effect(grant_use) => write!(f, "effect {grant_use}"),
        }
    }
}

impl FromStr for Grant {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let fail = |why| GrantError { text: text.escape_default().to_string(), why };
        let (word, rest) = text
            .trim()
            .split_once(char::is_whitespace)
            .ok_or_else(|| fail("expected a power and its object, e.g. `write /srv/data` or `connect pypi.org:443`"))?;
        let rest = rest.trim();
        match word {
            "write" => parse_path(rest).map(Self::Write).map_err(fail),
            "read" => parse_path(rest).map(Self::Read).map_err(fail),
            "socket" => parse_path(rest).map(Self::Socket).map_err(fail),
            "exec" => parse_path(rest).map(Self::Exec).map_err(fail),
            "connect" => rest.parse().map(Self::Connect).map_err(|error: HostError| fail(error.reason())),
            "secret" => rest.parse().map(|grant_use| Self::Secret(Box::new(grant_use))).map_err(fail),
            "sign" => rest.parse().map(|grant_use| Self::Sign(Box::new(grant_use))).map_err(fail),
            "listen" => parse_port(rest).map(Self::Listen).ok_or_else(|| fail("a port is a number from 1 to 65535")),
            "env" => env_name(rest).map(Self::Env).map_err(fail),
            "effect" => rest.parse().map(|grant_use| Self::Effect(Box::new(grant_use))).map_err(fail),
            word => match LimitKind::from_name(word) {
                Some(limit) => limit.parse_amount(rest).map(|amount| Self::Limit(limit, amount)).map_err(fail),
                None => Err(fail(
                    "the powers are write, read, connect, secret, sign, listen, socket, exec, env and the limits (memory 8GiB)",
                )),
            },
        }
    }
}

fn parse_path(text: &str) -> Result<PathBuf, &'static str> {
    let raw = RawText::from_escaped(text).ok_or("`\\` starts an escape: write `\\\\`, `\\n`, `\\x1b` or `\\u{1b}`")?;
    if raw.as_bytes().contains(&0) {
        return Err("a path must not contain a NUL byte");
    }
    let path = raw.as_path();
    if !path.is_absolute() {
        return Err("the path must be absolute");
    }
    if path.components().any(|c| matches!(c, Component::ParentDir)) {
        return Err("the path must not contain `..`");
    }
    Ok(path.components().collect())
}

fn env_name(text: &str) -> Result<String, &'static str> {
    let starts_well = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if starts_well && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        Ok(text.to_owned())
    } else {
        Err("a variable is letters, digits and `_`, not starting with a digit")
    }
}

text_form!(Grant, {
    "description": "One added power: `write PATH`, `read PATH`, `connect HOST[:PORTS]`, `secret NAME to HOST[:PORTS]`, `sign KEY for git`, `sign KEY to HOST[:PORT]`, `listen PORT`, `socket PATH`, `exec PROGRAM`, `env NAME`, a limit and its amount (`memory 8GiB`), or, as an answer alone, `effect CODE by PROGRAM` or `effect CODE at HOST`.",
    "type": "string",
    "pattern": format!("^(write|read|connect|secret|sign|listen|socket|exec|env|effect|{}) .+$", LimitKind::ALL.map(LimitKind::name).join("|"))
});

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    #[track_caller]
    fn check(text: &str, shown: &str) {
        let grant: Grant = text.parse().unwrap();
        assert_eq!(grant.to_string(), shown);
        assert_eq!(shown.parse::<Grant>().unwrap(), grant);
    }

    #[test]
    fn text_forms() {
        check("write /a//b/./c/", "write /a/b/c");
        check("connect PyPI.org.:443", "connect pypi.org:443");
        check("connect [::1]:80", "connect [::1]:80");
        check("connect ::1", "connect [::1]");
        check("connect *.Example.com:80,443,8000-8100", "connect *.example.com:80,443,8000-8100");
        check("connect 10.0.0.0/8", "connect 10.0.0.0/8");
        check("connect a_b", "connect a_b");
        check("secret  github  to  Ghe.Example.com.:443", "secret github to ghe.example.com:443");
        check("secret a-b_1 to ::1", "secret a-b_1 to [::1]");
        check("memory 8GiB", "memory 8GiB");
        check("memory 8192MiB", "memory 8GiB");
        check("processes 4096", "processes 4096");
        check("cpus 1.50", "cpus 1.5");
        check("wall 120m", "wall 2h");
        check("env  HOME", "env HOME");
        check("write /a b/c", "write /a b/c");
    }

    proptest! {
        #[test]
        fn every_path_survives_its_text_form_and_its_json(
            names in vec(prop_oneof![vec(select(&b" \\\t\nx'\"\xff"[..]), 1..5), vec(1..=u8::MAX, 1..8)], 0..4),
        ) {
            let names = names.into_iter().map(|name| name.into_iter().filter(|byte| *byte != b'/').collect());
            let names: Vec<Vec<u8>> =
                names.filter(|name: &Vec<u8>| !matches!(name.as_slice(), b"" | b"." | b"..")).collect();
            let path = RawText::from([b"/", names.join(&b'/').as_slice()].concat()).as_path().to_owned();
            for power in [Grant::Write, Grant::Read, Grant::Socket, Grant::Exec] {
                let grant = power(path.clone());
                let text = grant.to_string();
                prop_assert_eq!(text.trim(), &text);
                prop_assert_eq!(text.parse::<Grant>().ok(), Some(grant.clone()));
                let json = serde_json::to_string(&grant).map_err(|error| TestCaseError::fail(format!("{error}")))?;
                prop_assert_eq!(serde_json::from_str::<Grant>(&json).ok(), Some(grant));
            }
        }
    }

    #[test]
    fn special_paths_survive_their_text_form() {
        for bytes in [&b"/a\nb"[..], b"/\xff\xfe", b"/back\\slash", "/\u{202e}x".as_bytes(), b"/q'\"\\n"] {
            let grant = Grant::Write(RawText::from(bytes).as_path().to_owned());
            assert_eq!(grant.to_string().parse::<Grant>().unwrap(), grant);
        }
        for (path, shown) in
            [("/usr ", r"/usr\x20"), ("/  ", r"/\x20\x20"), ("/ /a", "/ /a"), ("/a\u{3000}", r"/a\u{3000}")]
        {
            let grant = Grant::Write(path.into());
            assert_eq!(grant.to_string(), format!("write {shown}"));
            assert_eq!(grant.to_string().parse::<Grant>().unwrap(), grant);
        }
    }

    #[test]
    fn unclear_input_is_refused() {
        for bad in [
            "",
            "write",
            "write a",
            "write /a/../b",
            "write /a\0b",
            "connect",
            "connect a:0",
            "connect a:99999",
            "connect a\0.b:1",
            "connect a/b",
            "connect @pypi",
            "connect 127.1:80",
            "connect [::1",
            "secret",
            "secret github",
            "secret github to",
            "secret to a.b:443",
            "secret github a.b:443",
            "secret git/hub to a.b:443",
            "secret github to *",
            "secret github to *.b:443",
            "secret github to 10.0.0.0/8",
            "secret github to a.b:443 c.d:443",
            "listen 0x1",
            "env 1A",
            "memory 8GB",
            "fly /x",
            "memory 99999999999TiB",
            "memory 0",
            "open_files 3",
        ] {
            assert!(bad.parse::<Grant>().is_err(), "{bad:?}");
        }
    }
}
