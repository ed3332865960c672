//! Rules about single requests, where traffic is opened and read.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::network::HostError;
use crate::{Target, TargetPattern};

/// Longest path of a pattern, in bytes.
const MAX_PATH: usize = 2048;

/// What of the encrypted traffic is looked into.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Inspection {
    /// Whose traffic is opened and read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<TargetPattern>,
    /// Whose traffic is never opened.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<TargetPattern>,
    /// Requests that pass. A host that one of these names gets no others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<RequestPattern>,
    /// Requests that are refused, also where `allow` names them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<RequestPattern>,
}

/// Which requests: `METHOD URL`, e.g. `GET https://api.example.com/v1/*`. Several
/// methods are joined by commas, `*` stands for any; in the path `*` stands for
/// any text. What follows `?` in a request's URL is not looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RequestPattern {
    /// None means any.
    methods: Vec<String>,
    encrypted: bool,
    targets: TargetPattern,
    path: String,
}

/// What the rules say of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestRuling {
    /// No rule is about this target.
    Unruled,
    /// This entry of `allow` names it.
    Allowed(RequestPattern),
    /// This entry of `deny` names it.
    Denied(RequestPattern),
    /// There are entries of `allow` for this target, and none names the request.
    NotAllowed,
    /// Its path can be read in more than one way, and there are rules.
    Unclear,
}

impl Inspection {
    /// True where nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether this target's traffic is to be opened for the rules' sake.
    pub fn opens(&self, target: &Target) -> bool {
        self.hosts.iter().any(|pattern| pattern.names(target)) || self.rules().any(|rule| rule.targets.names(target))
    }

    /// Whether this target's traffic is never opened.
    pub fn excepts(&self, target: &Target) -> bool {
        self.except.iter().any(|pattern| pattern.names(target))
    }

    fn rules(&self) -> impl Iterator<Item = &RequestPattern> {
        self.allow.iter().chain(&self.deny)
    }

    /// What the rules say of a request. `path` is as it stands in the request,
    /// what follows `?` included.
    pub fn rule(&self, encrypted: bool, target: &Target, method: &str, path: &str) -> RequestRuling {
        let about = |rule: &&RequestPattern| rule.encrypted == encrypted && rule.targets.names(target);
        if !self.rules().any(|rule| about(&rule)) {
            return RequestRuling::Unruled;
        }
        let path = path.split(['?', '#']).next().unwrap_or(path);
        if is_unclear(path) {
            return RequestRuling::Unclear;
        }
        let names = |rule: &&RequestPattern| about(rule) && rule.names(method, path);
        if let Some(rule) = self.deny.iter().find(names) {
            return RequestRuling::Denied(rule.clone());
        }
        match self.allow.iter().find(names) {
            Some(rule) => RequestRuling::Allowed(rule.clone()),
            None if self.allow.iter().any(|rule| about(&rule)) => RequestRuling::NotAllowed,
            None => RequestRuling::Unruled,
        }
    }
}

/// Paths that servers read in different ways: steps upwards, empty steps,
/// escaped letters that need none, other separators.
fn is_unclear(path: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/\\%;".contains(&byte);
    let escapes_plain = path.split('%').skip(1).any(|rest| {
        let byte = rest.get(..2).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()).is_none_or(|byte| byte < 0x20 || plain(byte))
    });
    let steps = path.strip_prefix('/').map(|rest| rest.split('/').collect::<Vec<_>>());
    let odd_step = steps.is_none_or(|steps| {
        steps.iter().enumerate().any(|(at, step)| {
            let name = step.split(';').next().unwrap_or(step);
            matches!(name, "." | "..") || (step.is_empty() && at + 1 < steps.len())
        })
    });
    odd_step || escapes_plain || path.bytes().any(|b| b == b'\\' || b <= b' ' || b >= 0x7f)
}

impl RequestPattern {
    /// The targets it is about.
    pub fn targets(&self) -> &TargetPattern {
        &self.targets
    }

    fn names(&self, method: &str, path: &str) -> bool {
        (self.methods.is_empty() || self.methods.iter().any(|own| own == method))
            && matches(self.path.as_bytes(), path.as_bytes())
    }
}

/// Whether `*` in the pattern can stand for something so that they are equal. In
/// time of the product of both lengths at most.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            p += 1;
            t += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            p = at + 1;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

impl fmt::Display for RequestPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let methods = if self.methods.is_empty() { "*".to_owned() } else { self.methods.join(",") };
        let scheme = if self.encrypted { "https" } else { "http" };
        let default = if self.encrypted { ":443" } else { ":80" };
        let targets = self.targets.to_string();
        write!(f, "{methods} {scheme}://{}{}", targets.strip_suffix(default).unwrap_or(&targets), self.path)
    }
}

impl FromStr for RequestPattern {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let fail = |why| HostError::new(text, "request pattern", why);
        let (methods, url) = text.split_once(' ').ok_or_else(|| fail("it is a method and a URL: `GET https://a/*`"))?;
        let methods: Vec<String> = match methods {
            "*" => Vec::new(),
            list => list.split(',').map(str::to_owned).collect(),
        };
        // RFC 9110, 9.1: methods are told apart by case, and all known ones are
        // upper case.
        let fits = |method: &String| (1..=32).contains(&method.len()) && method.bytes().all(|b| b.is_ascii_uppercase());
        if methods.len() > 16 || !methods.iter().all(fits) {
            return Err(fail("methods are in upper case with `,` between: `GET,HEAD`, or `*`"));
        }
        let (encrypted, rest, port) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest, 443),
            (_, Some(rest)) => (false, rest, 80),
            _ => return Err(fail("a URL begins with `https://` or `http://`")),
        };
        let (authority, path) = rest.split_once('/').ok_or_else(|| fail("behind the host stands a path, e.g. `/*`"))?;
        let targets: TargetPattern = authority.parse()?;
        let has_port = targets.ports().next().is_some();
        let targets = if has_port { targets } else { TargetPattern::new(targets.host().clone(), [port]) };
        let path = format!("/{path}");
        if path.len() > MAX_PATH || path.contains(['?', '#']) || is_unclear(&path) {
            return Err(fail("a path is plain: no `?`, no `#`, no `..`, no `//`, nothing escaped that needs none"));
        }
        Ok(Self { methods, encrypted, targets, path })
    }
}

impl From<RequestPattern> for String {
    fn from(pattern: RequestPattern) -> Self {
        pattern.to_string()
    }
}

impl TryFrom<String> for RequestPattern {
    type Error = HostError;
    fn try_from(text: String) -> Result<Self, HostError> {
        text.parse()
    }
}

impl JsonSchema for RequestPattern {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RequestPattern".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Requests: `GET https://api.example.com/v1/*`, `GET,HEAD https://a.example/*`, `* https://b.example/*`.",
            "type": "string",
            "pattern": r"^(\*|[A-Z]+(,[A-Z]+)*) https?://[^/ ]+/"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        let inspection = Inspection {
            allow: vec!["GET,HEAD https://a.example/v1/*".parse().unwrap(), "* https://b.example/*".parse().unwrap()],
            deny: vec!["* https://b.example/admin*".parse().unwrap(), "DELETE https://c.example/*".parse().unwrap()],
            ..Inspection::default()
        };
        for (method, host, path, expected) in [
            ("GET", "a.example:443", "/v1/x/y?z=/v2", "allowed"),
            ("HEAD", "a.example:443", "/v1/", "allowed"),
            ("POST", "a.example:443", "/v1/x", "not"),
            ("get", "a.example:443", "/v1/x", "not"),
            ("GET", "a.example:443", "/v2", "not"),
            ("GET", "a.example:443", "/v1/../v2", "unclear"),
            ("GET", "a.example:443", "/v1/%2e%2e/v2", "unclear"),
            ("GET", "a.example:443", "/v1/%2E./v2", "unclear"),
            ("GET", "a.example:443", "/v1//x", "unclear"),
            ("GET", "a.example:443", "/v1/..;/v2", "unclear"),
            ("GET", "a.example:443", "/v1\\..\\v2", "unclear"),
            ("GET", "a.example:443", "/v1/%2fx", "unclear"),
            ("GET", "a.example:443", "/v1/%zz", "unclear"),
            ("GET", "a.example:443", "/v1/%00", "unclear"),
            ("GET", "a.example:443", "v1/x", "unclear"),
            ("GET", "a.example:443", "/v1/a%20b", "allowed"),
            ("GET", "a.example:8443", "/v2", "unruled"),
            ("PUT", "b.example:443", "/x", "allowed"),
            ("PUT", "b.example:443", "/admin/x", "denied"),
            ("PUT", "b.example:443", "/%61dmin/x", "unclear"),
            ("DELETE", "c.example:443", "/x", "denied"),
            ("GET", "c.example:443", "/x", "unruled"),
            ("GET", "d.example:443", "/../x", "unruled"),
        ] {
            let said = match inspection.rule(true, &host.parse().unwrap(), method, path) {
                RequestRuling::Unruled => "unruled",
                RequestRuling::Allowed(_) => "allowed",
                RequestRuling::Denied(_) => "denied",
                RequestRuling::NotAllowed => "not",
                RequestRuling::Unclear => "unclear",
            };
            assert_eq!(said, expected, "{method} {host}{path}");
        }
        assert_eq!(inspection.rule(false, &"a.example:80".parse().unwrap(), "GET", "/"), RequestRuling::Unruled);
    }

    #[test]
    fn their_text() {
        for (text, shown) in [
            ("GET https://A.example/*", "GET https://a.example/*"),
            ("* https://a:8443/x", "* https://a:8443/x"),
            ("GET,POST http://a/", "GET,POST http://a/"),
            ("GET https://*.a/x", "GET https://*.a/x"),
            ("GET https://a:443/x", "GET https://a/x"),
        ] {
            let pattern: RequestPattern = text.parse().unwrap();
            assert_eq!(pattern.to_string(), shown);
            assert_eq!(shown.parse::<RequestPattern>().unwrap(), pattern);
        }
        for bad in [
            "",
            "GET",
            "get https://a/",
            "GET a/",
            "GET https://a",
            "GET https:///x",
            "GET ftp://a/",
            "GET https://a/..",
            "GET https://a/?x",
            " https://a/",
            "GET,, https://a/",
            "GET https://u@a/",
        ] {
            assert!(bad.parse::<RequestPattern>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn stars() {
        for (pattern, text, expected) in [
            ("/*", "/", true),
            ("/a*b", "/axxb", true),
            ("/a*b", "/axxbc", false),
            ("/*a*b*", "/xxaxb", true),
            ("/", "/x", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
