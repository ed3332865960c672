//! Initial content of a workspace.

use std::fmt;
use std::path::Component;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SpecError;
use crate::network::parse_port;
use crate::text_form::{display_as_text, text_form};
use crate::{Host, NetworkTarget, RawText};

/// Longest URL of a repository, in bytes.
const MAX_URL_BYTES: usize = 2_048;
/// Longest name of a revision, in bytes.
const MAX_REVISION_BYTES: usize = 255;
/// Longest path, in bytes (`MAX_PATH_BYTES` without the terminating null byte).
const MAX_PATH_BYTES: usize = 4_095;

/// Initial content of a workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum WorkspaceSource {
    /// An empty directory.
    #[default]
    Empty,
    /// A copy of a directory; writes stay in the sandbox.
    Copy {
        /// The directory to copy.
        directory: HostDirectory,
    },
    /// A directory itself; writes change it directly.
    Bind {
        /// The directory.
        directory: HostDirectory,
    },
    /// A clone of a repository, made inside and through the egress proxy.
    Clone {
        /// URL of the repository.
        url: RepositoryUrl,
        /// Revision to check out; absent means the repository's default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revision: Option<GitRevision>,
    },
}

/// A directory of the host: an absolute path without `.` and `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "RawText", into = "RawText")]
pub struct HostDirectory(RawText);

impl HostDirectory {
    /// Returns the path.
    pub fn as_raw(&self) -> &RawText {
        &self.0
    }
}

impl TryFrom<RawText> for HostDirectory {
    type Error = SpecError;
    fn try_from(text: RawText) -> Result<Self, SpecError> {
        let path = text.as_path();
        let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        if text.as_bytes().len() > MAX_PATH_BYTES || text.as_bytes().contains(&0) {
            return Err(SpecError::new("directory", "a path has at most 4,095 bytes and no NUL byte"));
        }
        if !path.is_absolute() || !path.components().all(plain) {
            return Err(SpecError::new("directory", "a directory is an absolute path without `..`"));
        }
        Ok(Self(text))
    }
}

impl From<HostDirectory> for RawText {
    fn from(directory: HostDirectory) -> Self {
        directory.0
    }
}

/// URL of a repository: `https://HOST[:PORT]/PATH`, or `http://`. Other transports of git are not allowed,
/// because each starts programs or reads files. A name or password is not allowed either: these are
/// secrets, which the egress proxy injects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct RepositoryUrl {
    text: String,
    target: NetworkTarget,
}

impl RepositoryUrl {
    /// Returns the text form.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the target that the egress proxy must allow for a clone.
    pub fn target(&self) -> &NetworkTarget {
        &self.target
    }
}

text_form!(RepositoryUrl);

impl FromStr for RepositoryUrl {
    type Err = SpecError;
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let refuse = |why| Err(SpecError::new("url", why));
        if text.len() > MAX_URL_BYTES {
            return refuse("a URL has at most 2,048 bytes");
        }
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return refuse("a URL is printable ASCII without spaces");
        }
        let (own_port, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (443, rest),
            (None, Some(rest)) => (80, rest),
            (None, None) => return refuse("a repository URL must start with `https://` or `http://`"),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return refuse("it must not contain a user name or password; use a secret of the profile");
        }
        if path.is_empty() || path.contains(['#', '?', '\\']) {
            return refuse("a path must follow the host, without `?`, `#` and `\\`");
        }
        let target = parse_authority(authority, own_port)?;
        Ok(Self { text: text.to_owned(), target })
    }
}

/// Returns host and port of an authority.
fn parse_authority(authority: &str, own_port: u16) -> Result<NetworkTarget, SpecError> {
    let after_address = authority.rfind(']').map_or(0, |at| at + 1);
    let (host, port) = match authority[after_address..].find(':') {
        Some(at) => {
            let port = parse_port(&authority[after_address + at + 1..]);
            let port = port.ok_or(SpecError::new("url", "its port is a number from 1 to 65535"))?;
            (&authority[..after_address + at], port)
        }
        None => (authority, own_port),
    };
    let host: Host = host.parse().map_err(|_| SpecError::new("url", "its host is neither a name nor an address"))?;
    Ok(NetworkTarget { host, port })
}

impl fmt::Display for RepositoryUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A branch, a tag or a commit. The text is a valid git reference name (git-check-ref-format(1)), and never
/// an option or a range.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct GitRevision(String);

display_as_text!(GitRevision);
text_form!(GitRevision);

impl FromStr for GitRevision {
    type Err = SpecError;
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/' | b'+');
        let part = |part: &str| {
            !part.is_empty() && !part.starts_with(['.', '-']) && !part.ends_with('.') && !part.ends_with(".lock")
        };
        if text.len() > MAX_REVISION_BYTES
            || !text.bytes().all(fits)
            || text.contains("..")
            || !text.split('/').all(part)
        {
            return Err(SpecError::new("revision", "the name of a branch or tag, or a commit's digits"));
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_reached_over_http_alone() {
        for (good, target) in [
            ("https://git.example.com/a/b.git", "git.example.com:443"),
            ("http://127.0.0.1:3000/r", "127.0.0.1:3000"),
            ("https://[::1]:8443/r", "[::1]:8443"),
            ("https://[::1]/r", "[::1]:443"),
        ] {
            let url: RepositoryUrl = good.parse().unwrap();
            assert_eq!((url.as_str(), url.target().to_string().as_str()), (good, target));
        }
        let long = format!("https://a.example/{}", "x".repeat(MAX_URL_BYTES));
        for bad in [
            "",
            "-upload-pack=x",
            "ext::sh -c id",
            "file:///etc",
            "/srv/repository",
            "ssh://git@a.example/x",
            "git@a.example:x",
            "git://a.example/x",
            "HTTPS://a.example/x",
            "https://user:secret@a.example/x",
            "https://a.example",
            "https://a.example/",
            "https://a.example/x?y",
            "https://a.example/x#y",
            "https://a.example/x y",
            "https://a.example/x\n",
            "https://a.example:0/x",
            "https://a.example:65536/x",
            "https://a.example:+1/x",
            "https://a.example:/x",
            "https:///x",
            "https://0x7f.1/x",
            "https://[::1/x",
            &long,
        ] {
            assert!(bad.parse::<RepositoryUrl>().is_err(), "{bad}");
        }
    }

    #[test]
    fn revisions_are_names_and_never_options() {
        for good in ["main", "v1.2.3", "feature/x-1", "0123456789abcdef0123456789abcdef01234567", "a+b"] {
            assert_eq!(good.parse::<GitRevision>().unwrap().as_str(), good);
        }
        let long = "r".repeat(MAX_REVISION_BYTES + 1);
        for bad in ["", "-x", "--upload-pack=x", "a..b", "a/../b", "/a", "a/", "a b", "a~1", "a^", "a:b", "a@{1}", "*"]
        {
            assert!(bad.parse::<GitRevision>().is_err(), "{bad}");
        }
        for bad in ["a.lock", "a.lock/b", ".a", "a/.b", "a.", "a/-b", "a\n", &long] {
            assert!(bad.parse::<GitRevision>().is_err(), "{bad}");
        }
    }

    #[test]
    fn directories_are_absolute_and_plain() {
        let of = |path: &str| HostDirectory::try_from(RawText::from(path));
        assert_eq!(of("/srv/w").unwrap().as_raw(), &RawText::from("/srv/w"));
        let long = format!("/{}", "d".repeat(MAX_PATH_BYTES));
        for bad in ["", "w", "./w", "/srv/../etc", "/srv/w\0", &long] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
