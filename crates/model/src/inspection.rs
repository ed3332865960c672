//! Rules about single requests in decrypted traffic.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::data::CharacterRanges;
use crate::network::HostError;
use crate::text_form::text_form;
use crate::{NetworkTarget, TargetPattern, text_matches};

/// Characters that may become other ones, mostly in ASCII (`\u{ff0f}` becomes `/`), or may be dropped. Unicode's
/// compatibility forms, case folding and code pages do this. These are whole ranges, so they refuse more than
/// necessary.
static FOLDED_CHARACTERS: CharacterRanges = CharacterRanges::new(include_str!("../data/folded_characters.txt"));

/// Longest path of a pattern, in bytes.
const MAX_PATH_BYTES: usize = 2048;

/// Rules for the inspection of encrypted traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct InspectionRules {
    /// Targets whose traffic is decrypted and read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<TargetPattern>,
    /// Targets whose traffic is never decrypted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<TargetPattern>,
    /// Allowed requests. A host that an entry names gets no other requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<RequestPattern>,
    /// Requests that are refused, even if `allow` names them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<RequestPattern>,
    /// Targets that may change a connection's protocol (`101`). After the change the traffic is only
    /// searched for secrets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub upgrade: Vec<TargetPattern>,
}

/// Pattern of requests: `METHOD URL`, e.g. `GET https://api.example.com/v1/*`. Several methods are joined
/// by commas, `*` matches any method. In the path `*` matches any text. The part of a request's URL after
/// `?` is ignored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RequestPattern {
    /// An empty list means any method.
    methods: Vec<String>,
    encrypted: bool,
    targets: TargetPattern,
    path: String,
}

/// Result of the rules for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestRuling {
    /// No rule is about this target.
    Unruled,
    /// This entry of `allow` names the request.
    Allowed(RequestPattern),
    /// This entry of `deny` names the request.
    Denied(RequestPattern),
    /// There are entries of `allow` for this target, and none names the request.
    NotAllowed,
    /// The path of the request is ambiguous, and there are rules for the target.
    Unclear,
}

impl InspectionRules {
    /// Returns whether all fields have their defaults.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the rules require that this target's traffic is decrypted.
    pub fn requires_decryption(&self, target: &NetworkTarget) -> bool {
        self.hosts.iter().any(|pattern| pattern.matches_target(target))
            || self.all_patterns().any(|rule| rule.targets.matches_target(target))
    }

    /// Returns whether this target's traffic is never decrypted.
    pub fn is_excepted(&self, target: &NetworkTarget) -> bool {
        self.except.iter().any(|pattern| pattern.matches_target(target))
    }

    /// Returns whether this target may change the protocol of an inspected connection.
    pub fn allows_upgrade(&self, target: &NetworkTarget) -> bool {
        self.upgrade.iter().any(|pattern| pattern.matches_target(target))
    }

    /// Returns whether there are rules about requests to this target.
    pub fn has_rules(&self, target: &NetworkTarget) -> bool {
        self.all_patterns().any(|rule| rule.targets.matches_target(target))
    }

    fn all_patterns(&self) -> impl Iterator<Item = &RequestPattern> {
        self.allow.iter().chain(&self.deny)
    }

    /// Applies the rules to a request. `path` is as in the request, including the part after `?`.
    pub fn apply_rules(&self, encrypted: bool, target: &NetworkTarget, method: &str, path: &str) -> RequestRuling {
        let about = |rule: &&RequestPattern| rule.encrypted == encrypted && rule.targets.matches_target(target);
        if !self.all_patterns().any(|rule| about(&rule)) {
            return RequestRuling::Unruled;
        }
        let Some(path) = clear_path(path.split(['?', '#']).next().unwrap_or(path)) else {
            return RequestRuling::Unclear;
        };
        let denies = |rule: &&RequestPattern| about(rule) && rule.names_in_any_case(method, &path);
        if let Some(rule) = self.deny.iter().find(denies) {
            return RequestRuling::Denied(rule.clone());
        }
        match self.allow.iter().find(|rule| about(rule) && rule.matches_request(method, &path)) {
            Some(rule) => RequestRuling::Allowed(rule.clone()),
            None if self.allow.iter().any(|rule| about(&rule)) => RequestRuling::NotAllowed,
            None => RequestRuling::Unruled,
        }
    }
}

/// Decodes the bytes of a path. Returns `None` if servers parse the path in different ways.
///
/// Reasons are upward or empty segments, separators of other systems (`\`), escaped separators, parameters
/// of a segment (`;`) and double escapes. Other reasons are control bytes, names that some file systems
/// shorten, and text that is not valid UTF-8.
fn clear_path(path: &str) -> Option<Vec<u8>> {
    if path.bytes().any(|byte| byte <= b' ' || byte >= 0x7f || matches!(byte, b'\\' | b';')) {
        return None;
    }
    let steps: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
    let last = steps.len() - 1;
    // Some systems remove blanks and dots from the end of a name; this check covers `.` and `..`.
    let is_odd = |step: &str| step.ends_with('.') || step.ends_with("%20");
    if steps.iter().enumerate().any(|(at, step)| is_odd(step) || (step.is_empty() && at < last)) {
        return None;
    }
    let mut parts = path.split('%');
    let mut decoded = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        let byte = u8::from_str_radix(digits, 16).ok().filter(|byte| may_be_escaped(*byte))?;
        decoded.push(byte);
        decoded.extend(&part.as_bytes()[2..]);
    }
    // Overlong forms and surrogates are not UTF-8.
    let text = std::str::from_utf8(&decoded).ok()?;
    (!text.chars().any(|character| FOLDED_CHARACTERS.contains(character))).then_some(decoded)
}

/// Returns whether an escape of this byte has one meaning. The byte must not be a letter that needs no
/// escape, a control byte, or a delimiter of a URL.
fn may_be_escaped(byte: u8) -> bool {
    !byte.is_ascii_alphanumeric() && !byte.is_ascii_control() && !b"-._~/\\%;?#".contains(&byte)
}

impl RequestPattern {
    /// Returns the targets of the pattern.
    pub fn targets(&self) -> &TargetPattern {
        &self.targets
    }

    fn matches_request(&self, method: &str, path: &[u8]) -> bool {
        (self.methods.is_empty() || self.methods.iter().any(|own| own == method))
            && clear_path(&self.path).is_some_and(|own| text_matches(&own, path))
    }

    /// Like `names`, without regard to case, because some servers ignore the case of methods and paths.
    fn names_in_any_case(&self, method: &str, path: &[u8]) -> bool {
        (self.methods.is_empty() || self.methods.iter().any(|own| own.eq_ignore_ascii_case(method)))
            && clear_path(&self.path)
                .is_some_and(|own| text_matches(own.to_ascii_lowercase(), path.to_ascii_lowercase()))
    }
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
        let (methods, url) =
            text.split_once(' ').ok_or_else(|| fail("expected a method and a URL: `GET https://a/*`"))?;
        let methods: Vec<String> = match methods {
            "*" => Vec::new(),
            list => list.split(',').map(str::to_owned).collect(),
        };
        // RFC 9110, 9.1: methods are case-sensitive, and all known methods are upper case.
        let fits = |method: &String| (1..=32).contains(&method.len()) && method.bytes().all(|b| b.is_ascii_uppercase());
        if methods.len() > 16 || !methods.iter().all(fits) {
            return Err(fail("write methods in upper case, separated by `,`: `GET,HEAD`, or `*`"));
        }
        let (encrypted, rest, port) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest, 443),
            (_, Some(rest)) => (false, rest, 80),
            _ => return Err(fail("a URL begins with `https://` or `http://`")),
        };
        let (authority, path) = rest.split_once('/').ok_or_else(|| fail("a path must follow the host, e.g. `/*`"))?;
        let targets: TargetPattern = authority.parse()?;
        let has_port = targets.ports().next().is_some();
        let targets = if has_port { targets } else { TargetPattern::new(targets.host().clone(), [port]) };
        let path = format!("/{path}");
        let has_odd_star = path.to_ascii_lowercase().contains("%2a");
        if path.len() > MAX_PATH_BYTES || path.contains(['?', '#']) || has_odd_star || clear_path(&path).is_none() {
            return Err(fail("a path must not contain `?`, `#`, `;`, `..`, `//` or needless escapes"));
        }
        Ok(Self { methods, encrypted, targets, path })
    }
}

text_form!(RequestPattern, {
    "description": "Requests: `GET https://api.example.com/v1/*`, `GET,HEAD https://a.example/*`, `* https://b.example/*`.",
    "type": "string",
    "pattern": r"^(\*|[A-Z]+(,[A-Z]+)*) https?://[^/ ]+/"
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_a_range() {
        let rows = crate::table_rows(include_str!("../data/folded_characters.txt")).count();
        assert_eq!((rows, FOLDED_CHARACTERS.count()), (46, 46));
    }

    #[test]
    fn requests() {
        let inspection = InspectionRules {
            allow: vec!["GET,HEAD https://a.example/v1/*".parse().unwrap(), "* https://b.example/*".parse().unwrap()],
            deny: vec!["* https://b.example/admin*".parse().unwrap(), "DELETE https://c.example/*".parse().unwrap()],
            ..InspectionRules::default()
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
            ("PUT", "b.example:443", "/ADMIN/x", "denied"),
            ("delete", "c.example:443", "/x", "denied"),
            ("DELETE", "c.example:443", "/x", "denied"),
            ("GET", "c.example:443", "/x", "unruled"),
            ("GET", "d.example:443", "/../x", "unruled"),
        ] {
            let decision = match inspection.apply_rules(true, &host.parse().unwrap(), method, path) {
                RequestRuling::Unruled => "unruled",
                RequestRuling::Allowed(_) => "allowed",
                RequestRuling::Denied(_) => "denied",
                RequestRuling::NotAllowed => "not",
                RequestRuling::Unclear => "unclear",
            };
            assert_eq!(decision, expected, "{method} {host}{path}");
        }
        assert_eq!(inspection.apply_rules(false, &"a.example:80".parse().unwrap(), "GET", "/"), RequestRuling::Unruled);
    }

    /// For some server, each of these paths gives `/v1/` another meaning, or spells the path of a `deny`
    /// rule differently.
    #[test]
    fn a_path_that_servers_read_in_different_ways_is_unclear() {
        let inspection = InspectionRules {
            allow: vec!["GET https://a.example/v1/*".parse().unwrap()],
            deny: vec![
                "* https://a.example/v1/admin".parse().unwrap(),
                "* https://b.example/v1/admin".parse().unwrap(),
            ],
            ..InspectionRules::default()
        };
        let ruled = |host: &str, path: &str| inspection.apply_rules(true, &host.parse().unwrap(), "GET", path);
        for path in [
            "/v1/%c0%af",
            "/v1/%C0%AF..%C0%AFv2",
            "/v1/%c0%ae%c0%ae/v2",
            "/v1/%e0%80%af",
            "/v1/%e0%80%ae%e0%80%ae/v2",
            "/v1/%f0%80%80%af",
            "/v1/%c1%9c",
            "/v1/%ed%a0%80",
            "/v1/%ff",
            "/v1/%80",
            "/v1/%c3",
            "/v1/\u{c0}\u{af}",
            "/v1/\u{ff0f}x",
            "/v1/%ef%bc%8f..%ef%bc%8fv2",
            "/v1/%ef%bc%8e%ef%bc%8e/v2",
            "/v1/%e2%80%a5/v2",
            "/v1/%e2%88%95x",
            "/v1/%ef%bc%bcx",
            "/v1/%ef%bd%81dmin",
            "/v1/%e2%84%aa",
            "/v1/e%cc%81",
            "/v1/admin%ef%bb%bf",
            "/v1/admin%c2%a0",
            "/v1/%2f..%2fv2",
            "/v1/..%2Fv2",
            "/v1/%5c..%5cv2",
            "/v1/..\\v2",
            "/v1\\admin",
            "/v1/%252e%252e/v2",
            "/v1/%252fv2",
            "/v1/%25",
            "/v1/%u002e%u002e/v2",
            "/v1/%",
            "/v1/%2",
            "/v1/%+2",
            "/v1/%00",
            "/v1/admin%00.html",
            "/v1/%0a",
            "/v1/%0d%0aX:%20y",
            "/v1/%7f",
            "/v1/\u{1}",
            "/v1/a b",
            "/v1/.",
            "/v1/./x",
            "/v1/..",
            "/v1/.../x",
            "/v1/admin.",
            "/v1/admin%20",
            "/v1//admin",
            "//v1/x",
            "/v1/;/admin",
            "/v1/admin;x",
            "/v1/admin;x=1/",
            "/v1/%3bx",
            "/v1/..;/v2",
            "/v1/admin%3f",
            "/v1/admin%23",
            "v1/x",
            "",
            "*",
        ] {
            for host in ["a.example:443", "b.example:443"] {
                assert_eq!(ruled(host, path), RequestRuling::Unclear, "{path:?}");
            }
        }
        for path in
            ["/v1/%c3%a9", "/v1/%C3%A9", "/v1/%40scope", "/v1/a%20b", "/v1/x:y", "/v1/.x", "/v1/%e6%97%a5", "/v1/"]
        {
            assert!(matches!(ruled("a.example:443", path), RequestRuling::Allowed(_)), "{path}");
            assert_eq!(ruled("b.example:443", path), RequestRuling::Unruled, "{path}");
        }
    }

    /// Rules and requests are compared in decoded form.
    #[test]
    fn a_rule_names_every_spelling_of_its_path() {
        let inspection = InspectionRules {
            deny: ["* https://a/x:y*", "* https://a/%c3%a9", "* https://a/@b"].map(|rule| rule.parse().unwrap()).into(),
            ..InspectionRules::default()
        };
        let ruled = |path: &str| inspection.apply_rules(true, &"a:443".parse().unwrap(), "GET", path);
        for path in ["/x:y", "/x%3ay", "/x%3Ay/z", "/X:Y", "/%C3%A9", "/%c3%a9", "/%40b", "/@B"] {
            assert!(matches!(ruled(path), RequestRuling::Denied(_)), "{path}");
        }
        assert_eq!(ruled("/x"), RequestRuling::Unruled);
        assert!("GET https://a/%2a".parse::<RequestPattern>().is_err());
        assert!("GET https://a/x;y".parse::<RequestPattern>().is_err());
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
}
