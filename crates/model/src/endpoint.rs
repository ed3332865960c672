//! The URL of an HTTP service that the user chose, parsed once and strictly.
//!
//! Plain HTTP is allowed to the local machine only; all other traffic is encrypted.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::network::parse_port;
use crate::text_form::text_form;

/// Longest text, in bytes.
const MAX_ENDPOINT_BYTES: usize = 2_048;

/// `https://HOST[:PORT]/PATH[?QUERY]`; `http://` for loopback addresses and `localhost`. No user name, no
/// fragment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HttpEndpoint {
    encrypted: bool,
    host: String,
    port: u16,
    target: String,
}

/// Reason why a text is not an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Neither `https://` nor `http://`.
    #[error("an endpoint starts with `https://`, e.g. `https://api.example.com/v1/messages`")]
    Scheme,
    /// Plain HTTP to another machine.
    #[error("`http://` has no encryption, so its host must be `localhost`, `127.0.0.1` or `[::1]`")]
    Plain,
    /// `user:password@` before the host.
    #[error("an endpoint must not contain a user name or password; set the key in its own setting")]
    UserInfo,
    /// The host is missing or has a forbidden character.
    #[error("the host of an endpoint is a name of letters, digits, `-` and `.`, or an address (IPv6 in brackets)")]
    Host,
    /// The port is not a number from 1 to 65535.
    #[error("the port of an endpoint is a number from 1 to 65535")]
    Port,
    /// A blank, a control character, a fragment, or a character outside ASCII.
    #[error("the path of an endpoint is printable ASCII without spaces and `#`")]
    Path,
    /// The text is too long.
    #[error("an endpoint has at most {MAX_ENDPOINT_BYTES} bytes")]
    Length,
}

impl HttpEndpoint {
    /// Returns whether the endpoint uses TLS.
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    /// Returns the host: a name in lower case, or an address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns path and query, in the form of a request line.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Returns the host in the form of a URL or a `Host` header, with the port unless it is the scheme's
    /// default.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let own = if self.encrypted { 443 } else { 80 };
        if self.port == own { host } else { format!("{host}:{}", self.port) }
    }

    fn is_loopback(&self) -> bool {
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => address.is_loopback(),
            Ok(IpAddr::V6(address)) => address.is_loopback(),
            Err(_) => self.host == "localhost",
        }
    }
}

impl fmt::Display for HttpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.encrypted { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.target)
    }
}

text_form!(HttpEndpoint);

impl FromStr for HttpEndpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text.len() > MAX_ENDPOINT_BYTES {
            return Err(EndpointError::Length);
        }
        let (encrypted, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(EndpointError::Scheme),
        };
        let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(at);
        if authority.contains('@') {
            return Err(EndpointError::UserInfo);
        }
        if !target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
            return Err(EndpointError::Path);
        }
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        let (host, port) = host_and_port(authority)?;
        let port = match port {
            None if encrypted => 443,
            None => 80,
            Some(port) => port,
        };
        let endpoint = Self { encrypted, host, port, target };
        if !encrypted && !endpoint.is_loopback() {
            return Err(EndpointError::Plain);
        }
        Ok(endpoint)
    }
}

fn host_and_port(authority: &str) -> Result<(String, Option<u16>), EndpointError> {
    let number = |text: &str| parse_port(text).filter(|_| text.len() <= 5).ok_or(EndpointError::Port);
    if let Some(rest) = authority.strip_prefix('[') {
        let (address, rest) = rest.split_once(']').ok_or(EndpointError::Host)?;
        let address: Ipv6Addr = address.parse().map_err(|_| EndpointError::Host)?;
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(number(port)?),
            None if rest.is_empty() => None,
            None => return Err(EndpointError::Host),
        };
        return Ok((address.to_string(), port));
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(number(port)?)),
        None => (authority, None),
    };
    if !is_name(host) && host.parse::<Ipv4Addr>().is_err() {
        return Err(EndpointError::Host);
    }
    Ok((host.to_ascii_lowercase(), port))
}

/// Returns whether a text is a name. The last label must not be a number, so that no unusual spelling of an
/// address passes for a name.
fn is_name(host: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = host.rsplit('.').next().unwrap_or_default();
    host.len() <= 253 && host.split('.').all(label) && last.starts_with(|first: char| first.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, EndpointError>) {
        let result = text.parse::<HttpEndpoint>().map(|endpoint| endpoint.to_string());
        assert_eq!(result.as_deref().map_err(|error| *error), expected, "{text}");
    }

    #[test]
    fn endpoints_are_read_strictly() {
        check("https://api.example.com/v1/messages", Ok("https://api.example.com/v1/messages"));
        check("https://API.example.com", Ok("https://api.example.com/"));
        check("https://a.example:8443/x?api-version=1", Ok("https://a.example:8443/x?api-version=1"));
        check("https://a.example?x", Ok("https://a.example/?x"));
        check("http://127.0.0.1:11434/v1/chat/completions", Ok("http://127.0.0.1:11434/v1/chat/completions"));
        check("http://127.9.9.9/", Ok("http://127.9.9.9/"));
        check("http://[::1]:80/", Ok("http://[::1]/"));
        check("http://localhost/", Ok("http://localhost/"));
        check("https://[::1]:9/", Ok("https://[::1]:9/"));
        for plain in ["http://api.example.com/", "http://10.0.0.1/", "http://localhost.example.com/", "http://[::]/"] {
            check(plain, Err(EndpointError::Plain));
        }
        for scheme in ["", "api.example.com", "ftp://x/", "HTTPS://x/", "https:/x"] {
            check(scheme, Err(EndpointError::Scheme));
        }
        for user in ["https://u:p@a.example/", "https://localhost@a.example/", "http://127.0.0.1@a.example/"] {
            check(user, Err(EndpointError::UserInfo));
        }
        for host in ["https:///x", "https://a_b/", "https://-a/", "https://a..b/", "https://0x7f.1/", "https://1/"] {
            check(host, Err(EndpointError::Host));
        }
        for host in ["https://[::1/", "https://[x]/", "https://[::1]x/", "https://é.example/"] {
            check(host, Err(EndpointError::Host));
        }
        for port in ["https://a:0/", "https://a:65536/", "https://a:/", "https://a:+1/", "https://a:1:2/"] {
            check(port, Err(EndpointError::Port));
        }
        for path in ["https://a/x y", "https://a/x#y", "https://a/\r\nX: y", "https://a/é", "https://a#x"] {
            check(path, Err(EndpointError::Path));
        }
        check(&format!("https://a/{}", "x".repeat(3_000)), Err(EndpointError::Length));
    }
}
