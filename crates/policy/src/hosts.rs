//! Host entries of configuration: a pattern, or the name of a shipped group; and the limit on the width of
//! a pattern that allows.
//!
//! Must not know profiles or rules.

use std::fmt;
use std::str::FromStr;

use stockade_model::{HostError, TargetPattern};

use crate::error::advise_name;
use crate::groups::{HostGroup, find_group, host_groups};
use crate::text::{TextError, text_error, text_form};

/// Longest entry, in bytes: 64 port ranges after the longest name.
const MAX_ENTRY_BYTES: usize = 1024;

/// One entry of a list of hosts: `example.com:443`, `*.example.com` (one label more), `**.example.com` (any
/// number), an address, a block, `*`, `@pypi`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostEntry(HostEntryKind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostEntryKind {
    Pattern(TargetPattern),
    Group(&'static HostGroup),
}

impl HostEntry {
    /// Returns the patterns of the entry.
    pub fn patterns(&self) -> &[TargetPattern] {
        match &self.0 {
            HostEntryKind::Pattern(pattern) => std::slice::from_ref(pattern),
            HostEntryKind::Group(group) => &group.hosts,
        }
    }
}

impl fmt::Display for HostEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            HostEntryKind::Pattern(pattern) => pattern.fmt(f),
            HostEntryKind::Group(group) => write!(f, "@{}", group.name),
        }
    }
}

impl FromStr for HostEntry {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        if text.len() > MAX_ENTRY_BYTES {
            return text_error("an entry has at most 1024 bytes");
        }
        if let Some(name) = text.strip_prefix('@') {
            return find_named_group(name).map(|group| Self(HostEntryKind::Group(group)));
        }
        if text.contains("://") {
            return text_error("write a host without scheme and path: `pypi.org:443`");
        }
        match text.parse() {
            Ok(pattern) => Ok(Self(HostEntryKind::Pattern(pattern))),
            Err(error) => text_error(HostError::reason(&error)),
        }
    }
}
text_form!(
    HostEntry,
    r"^(@[a-z0-9]+|[^\s@]+)$",
    "Hosts and ports: `example.com:443`, `*.example.com` (one label more), `**.example.com` (any number), an address, a block `10.0.0.0/8`, `*`, or a group `@pypi`; ports `:80,443,8000-8100` may follow a host, and none means each."
);

fn find_named_group(name: &str) -> Result<&'static HostGroup, TextError> {
    let known = host_groups().iter().map(|group| group.name.as_str());
    let wrong =
        || TextError::new(format!("there is no such group; {}", advise_name(name, known, "@", "the groups are")));
    find_group(name).ok_or_else(wrong)
}

/// Checks whether a pattern may allow. Names beneath a public suffix are refused, because anyone may
/// register one. `*` is explicit and may be used.
///
/// # Errors
/// The reason, if the pattern is too wide.
pub fn check_breadth(pattern: &TargetPattern) -> Result<(), TextError> {
    match pattern.host().parent() {
        Some(parent) if is_public_suffix(parent.as_str()) => {
            text_error(format!("`{pattern}` is too wide: anyone can register a name under `{parent}`, a public suffix"))
        }
        _ => Ok(()),
    }
}

/// Returns whether anyone may register names directly beneath this one (publicsuffix.org). A private name
/// of a company, `corp`, is not on that list.
fn is_public_suffix(name: &str) -> bool {
    psl::suffix(name.as_bytes()).is_some_and(|suffix| suffix.is_known() && suffix == name)
}

/// Returns `*.PARENT` on the port of a target, instead of several of its siblings; `None` if the parent is
/// a public suffix.
pub(crate) fn widen_to_siblings(pattern: &TargetPattern) -> Option<TargetPattern> {
    let target = pattern.target()?;
    let (_, parent) = target.host.name()?.as_str().split_once('.')?;
    let beneath = format!("*.{parent}:{}", target.port).parse::<TargetPattern>().ok()?;
    // A name without a dot belongs to a machine or a local network: this is too wide as well.
    (parent.contains('.') && check_breadth(&beneath).is_ok()).then_some(beneath)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_expand_to_their_hosts() {
        let entry: HostEntry = "@pypi".parse().unwrap();
        let shown: Vec<String> = entry.patterns().iter().map(TargetPattern::to_string).collect();
        assert_eq!(shown, ["pypi.org:443", "files.pythonhosted.org:443"]);
        assert_eq!(entry.to_string(), "@pypi");
        assert_eq!("Example.com".parse::<HostEntry>().unwrap().to_string(), "example.com");
        let wrong = "@pypy".parse::<HostEntry>().unwrap_err().to_string();
        assert_eq!(wrong, "there is no such group; did you mean `@pypi`?");
        let none = "@wibblewobble".parse::<HostEntry>().unwrap_err().to_string();
        assert!(none.contains("`@crates`"), "{none}");
        for bad in ["", "@", "@PyPI", "@pypi:443", "a b", "http://a", "*.*.a", &"a,".repeat(600)] {
            assert!(bad.parse::<HostEntry>().is_err(), "{bad}");
        }
    }

    #[test]
    fn no_allowing_pattern_is_wider_than_an_owned_domain() {
        for (pattern, expected) in [
            ("*.com", false),
            ("**.com", false),
            ("*.co.uk:443", false),
            ("**.github.io", false),
            ("*.githubusercontent.com", false),
            ("*.s3.amazonaws.com", false),
            ("*.example.com", true),
            ("**.example.co.uk", true),
            ("*.user.github.io", true),
            ("**.corp", true),
            ("**.svc.cluster.local", true),
            ("com", true),
            ("*", true),
            ("10.0.0.0/8", true),
        ] {
            assert_eq!(check_breadth(&pattern.parse().unwrap()).is_ok(), expected, "{pattern}");
        }
    }

    #[test]
    fn siblings_share_a_parent_that_a_user_owns() {
        for (target, expected) in [
            ("a.example.com:443", Some("*.example.com:443")),
            ("a.b.example.com:80", Some("*.b.example.com:80")),
            ("example.com:443", None),
            ("user.github.io:443", None),
            ("a.user.github.io:443", Some("*.user.github.io:443")),
            ("db.corp:443", None),
            ("10.0.0.1:443", None),
            ("a.example.com", None),
        ] {
            let found = widen_to_siblings(&target.parse().unwrap()).map(|pattern| pattern.to_string());
            assert_eq!(found.as_deref(), expected, "{target}");
        }
    }
}
