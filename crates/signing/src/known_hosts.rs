//! The keys of servers in the user's files (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"): plain names,
//! patterns, `[host]:port`, hashed names, revoked keys. Certificate authorities are ignored: a key
//! counts only if a line contains it.
//!
//! This module must not know grants, nor how a server is reached.

use std::io::Read as _;
use std::path::Path;

use aws_lc_rs::hmac;
use data_encoding::BASE64;
use stockade_model::{NetworkTarget, SSH_PORT, wildcard_matches};

use crate::host_key::{public_key_text, read_public_key};

/// The user's file, beneath the home directory.
const USER_KNOWN_HOSTS: &str = ".ssh/known_hosts";
/// The machine's file.
const SYSTEM_KNOWN_HOSTS: &str = "/etc/ssh/ssh_known_hosts";
/// Largest file that is read.
const MAX_KNOWN_HOSTS_BYTES: u64 = 4 << 20;

/// Lines of known servers.
#[derive(Clone, Debug, Default)]
pub struct KnownHosts {
    lines: Vec<KnownHostLine>,
}

#[derive(Clone, Debug)]
struct KnownHostLine {
    is_revoked: bool,
    names: String,
    key: Vec<u8>,
}

impl KnownHosts {
    /// Reads the files of the user with this home directory, and of the machine. If a file cannot
    /// be read completely, no server is known, because that file could revoke a key.
    pub fn of_person(home: &Path) -> Self {
        let mut all = Self::default();
        for path in [home.join(USER_KNOWN_HOSTS), SYSTEM_KNOWN_HOSTS.into()] {
            match text_of(&path) {
                Some(text) => all.lines.extend(Self::parse_text(&text).lines),
                None => return Self::default(),
            }
        }
        all
    }

    /// Parses the text of a file.
    pub fn parse_text(text: &str) -> Self {
        Self { lines: text.lines().filter_map(parse_line).collect() }
    }

    /// Returns the keys of a server that are not revoked.
    pub fn keys_of(&self, target: &NetworkTarget) -> Vec<Vec<u8>> {
        let name = name_of(target);
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for line in self.lines.iter().filter(|line| !line.is_revoked && list_contains_name(&line.names, &name)) {
            let is_revoked = |other: &KnownHostLine| other.is_revoked && other.key == line.key;
            if !keys.contains(&line.key) && !self.lines.iter().any(is_revoked) {
                keys.push(line.key.clone());
            }
        }
        keys
    }

    /// Returns a server with this key, if a line contains a plain name of one.
    pub fn server_with(&self, key: &[u8]) -> Option<NetworkTarget> {
        let plain = |line: &&KnownHostLine| !line.is_revoked && line.key == key;
        self.lines.iter().filter(plain).flat_map(|line| line.names.split(',')).find_map(|name| {
            let text = match name.strip_prefix('[').and_then(|rest| rest.split_once("]:")) {
                Some((host, port)) if host.contains(':') => format!("[{host}]:{port}"),
                Some((host, port)) => format!("{host}:{port}"),
                None => name.to_owned(),
            };
            stockade_model::ssh_target(&text).ok()
        })
    }

    /// Returns the text of a file that contains only these servers.
    pub fn file_for<'a>(&self, targets: impl IntoIterator<Item = &'a NetworkTarget>) -> String {
        let mut text = String::new();
        for target in targets {
            for key in self.keys_of(target).iter().filter_map(|key| public_key_text(key)) {
                text.push_str(&format!("{} {key}\n", name_of(target)));
            }
        }
        text
    }
}

fn text_of(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    match std::fs::File::open(path).and_then(|file| file.take(MAX_KNOWN_HOSTS_BYTES + 1).read_to_end(&mut bytes)) {
        Ok(_) if bytes.len() as u64 <= MAX_KNOWN_HOSTS_BYTES => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(String::new()),
        _ => None,
    }
}

fn parse_line(text: &str) -> Option<KnownHostLine> {
    let text = text.trim();
    let (is_revoked, rest) = match text.split_once([' ', '\t']) {
        _ if text.starts_with('#') => return None,
        Some(("@revoked", rest)) => (true, rest.trim_start()),
        Some((marker, _)) if marker.starts_with('@') => return None,
        _ => (false, text),
    };
    let (names, key) = rest.split_once([' ', '\t'])?;
    Some(KnownHostLine { is_revoked, names: names.to_owned(), key: read_public_key(key)? })
}

/// Returns a server's name in the format of such files.
fn name_of(target: &NetworkTarget) -> String {
    let host = target.host.to_string();
    if target.port == SSH_PORT { host } else { format!("[{host}]:{}", target.port) }
}

/// Returns whether a list of names or patterns contains this name.
fn list_contains_name(list: &str, name: &str) -> bool {
    if let Some(hashed) = list.strip_prefix("|1|") {
        return is_digest_of(hashed, name).unwrap_or(false);
    }
    let mut found = false;
    for pattern in list.split(',') {
        match pattern.strip_prefix('!') {
            Some(pattern) if matches_pattern(pattern.as_bytes(), name.as_bytes()) => return false,
            Some(_) => {}
            None => found |= matches_pattern(pattern.as_bytes(), name.as_bytes()),
        }
    }
    found
}

fn is_digest_of(hashed: &str, name: &str) -> Option<bool> {
    let (salt, digest) = hashed.split_once('|')?;
    let (salt, digest) = (BASE64.decode(salt.as_bytes()).ok()?, BASE64.decode(digest.as_bytes()).ok()?);
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt);
    Some(hmac::verify(&key, name.as_bytes(), &digest).is_ok())
}

/// Matches `*` and `?` as in such files, ignoring letter case.
fn matches_pattern(pattern: &[u8], name: &[u8]) -> bool {
    wildcard_matches(pattern, name, b'*', |pattern_byte, found| {
        pattern_byte == b'?' || pattern_byte.eq_ignore_ascii_case(&found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_key::tests::TestKey;

    fn key(seed: u8) -> Vec<u8> {
        TestKey::new(seed).public_key_bytes()
    }

    fn text(seed: u8) -> String {
        public_key_text(&key(seed)).unwrap()
    }

    #[track_caller]
    fn check(lines: &str, target: &str, seeds: &[u8]) {
        let target = stockade_model::ssh_target(target).unwrap();
        let expected: Vec<_> = seeds.iter().map(|seed| key(*seed)).collect();
        assert_eq!(KnownHosts::parse_text(lines).keys_of(&target), expected, "{lines}");
    }

    #[test]
    fn a_line_names_the_servers_that_it_names() {
        let (one, two) = (text(1), text(2));
        check(&format!("a.example {one}\n"), "a.example", &[1]);
        check(&format!("A.example,10.0.0.1 {one} comment\n# b\n\nb.example {two}"), "a.example", &[1]);
        check(&format!("a.example,10.0.0.1 {one}"), "10.0.0.1", &[1]);
        check(&format!("a.example {one}"), "a.example:2222", &[]);
        check(&format!("[a.example]:2222 {one}"), "a.example:2222", &[1]);
        check(&format!("[a.example]:2222 {one}"), "a.example", &[]);
        check(&format!("[::1]:2222 {one}"), "[::1]:2222", &[1]);
        check(&format!("*.example,!b.example {one}"), "a.example", &[1]);
        check(&format!("*.example,!b.example {one}"), "b.example", &[]);
        check(&format!("a.example {one}\na.example {two}\na.example {one}"), "a.example", &[1, 2]);
        check(&format!("a.example.evil {one}"), "a.example", &[]);
        check("a.example ssh-ed25519 AAAA", "a.example", &[]);
        check(&format!("@cert-authority *.example {one}"), "a.example", &[]);
    }

    #[test]
    fn a_revoked_key_is_nobodys() {
        let one = text(1);
        check(&format!("a.example {one}\n@revoked * {one}"), "a.example", &[]);
        check(&format!("@revoked a.example {one}\na.example {one}"), "a.example", &[]);
    }

    #[test]
    fn names_as_digests_are_found() {
        // In the format of ssh-keygen -H: HMAC-SHA1 of the name, keyed by the salt.
        let salt = [7_u8; 20];
        let signed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt), b"[a.example]:2222");
        let line = format!("|1|{}|{} {}", BASE64.encode(&salt), BASE64.encode(signed.as_ref()), text(1));
        check(&line, "a.example:2222", &[1]);
        check(&line, "a.example", &[]);
        check(&line.replace("|1|", "|2|"), "a.example:2222", &[]);
    }

    #[test]
    fn a_server_is_named_by_its_key_where_a_line_names_it() {
        let lines = format!("*.a,[b.example]:22 {}\n|1|x|y {}\n[::1]:2222 {}", text(1), text(2), text(3));
        let known = KnownHosts::parse_text(&lines);
        let shown = |seed| known.server_with(&key(seed)).map(|target| stockade_model::ssh_target_text(&target));
        assert_eq!(shown(1).as_deref(), Some("b.example"));
        assert_eq!(shown(2), None);
        assert_eq!(shown(3).as_deref(), Some("[::1]:2222"));
    }

    #[test]
    fn the_file_of_a_run_names_its_servers_alone() {
        let known = KnownHosts::parse_text(&format!("*.example {}\nother.org {}", text(1), text(2)));
        let target = stockade_model::ssh_target("git.example:2222").unwrap();
        assert_eq!(known.file_for([&target]), "");
        let target = stockade_model::ssh_target("git.example").unwrap();
        assert_eq!(known.file_for([&target]), format!("git.example {}\n", text(1)));
    }

    #[test]
    fn patterns_take_time_in_proportion() {
        let pattern = "*a".repeat(2000);
        assert!(!matches_pattern(pattern.as_bytes(), "a".repeat(4000).replace('a', "b").as_bytes()));
    }
}
