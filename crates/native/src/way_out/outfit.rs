//! What of the way out stands inside: variables that name the door's proxies, a
//! resolver's settings, whom to trust where traffic is opened, and placeholders in
//! the place of secrets. A courtesy to programs, no wall.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use stockade_egress::{DOOR_V4, Edge, HTTP_PROXY_PORT, TRUST_VARIABLES};
use stockade_model::{Grant, LayerReport, LayerState, Level, Plan, RawText, SecretSource};

use crate::launch::{NamedFile, NamingVariable, Outfit};

/// The file of authorities to trust in a run's own directory.
const TRUST_FILE: &str = "stockade-trust.pem";
/// The host's settings of its resolver.
const RESOLVER: &str = "/etc/resolv.conf";
/// More of them is not read.
const RESOLVER_MAX_BYTES: usize = 64 * 1024;
/// Variables by which programs find a proxy; each is known in both cases. None
/// names the SOCKS proxy: some libraries fail where they cannot speak it.
const PROXY_VARIABLES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
/// What is reached without a proxy, by level. In a network of the run's own every
/// host: a connect that waits for a person is not timed by its program, and what a
/// proxy lets wait is. There the proxy is for programs that know no other way.
fn without_proxy(level: Level) -> &'static str {
    match level {
        Level::Full => "*",
        Level::Restricted | Level::None => "localhost,127.0.0.1,::1",
    }
}

/// What a run of `plan` is given for its way out.
pub(crate) fn outfit(plan: &Plan, edge: &Edge) -> Outfit {
    let mut outfit = Outfit { environment: proxies(plan), ..Outfit::default() };
    match plan.level {
        Level::Full => outfit.files.extend(resolver_settings()),
        // Names are asked for over connections, which the broker sees, and as they
        // stand: the host's search list is the door's to apply.
        Level::Restricted | Level::None => {
            for (name, value) in [("RES_OPTIONS", "use-vc ndots:1"), ("LOCALDOMAIN", "")] {
                outfit.environment.insert(name.to_owned(), value.into());
            }
        }
    }
    for (place, placeholder) in edge.placeholders() {
        match place {
            SecretSource::Env(name) => {
                outfit.environment.insert(name.clone(), placeholder.into());
            }
            SecretSource::File(path) => outfit.files.push((path.as_path().to_owned(), placeholder.into())),
        }
    }
    outfit.named.extend(edge.bundle_pem().map(|bundle| NamedFile {
        name: TRUST_FILE,
        content: bundle.into(),
        variables: TRUST_VARIABLES.iter().map(|(name, _)| NamingVariable::plain(name)).collect(),
    }));
    outfit
}

/// What is enforced of the way out.
pub(crate) fn layer(plan: &Plan) -> LayerReport {
    let (way, apart) = match plan.level {
        Level::Full => ("through the door", "datagrams reach its name server alone"),
        Level::Restricted | Level::None => (
            "over TCP, connected by the broker",
            "servers on the host's loopback for the run alone; no datagrams; names over TCP and the proxy alone",
        ),
    };
    let published: Vec<String> = plan
        .grants
        .iter()
        .filter_map(|grant| match grant {
            Grant::Listen(port) => Some(format!("; port {port} published on 127.0.0.1")),
            _ => None,
        })
        .collect();
    let detail = format!("what is granted is reached {way}; {apart}{}", published.concat());
    LayerReport { state: LayerState::Enforced, detail }
}

/// The door's proxies, unless the plan says something of proxies itself.
fn proxies(plan: &Plan) -> BTreeMap<String, RawText> {
    naming(plan, SocketAddr::from((DOOR_V4, HTTP_PROXY_PORT)))
}

/// The variables that name an HTTP proxy which is the only way out of a place, unless the
/// plan says something of proxies itself.
pub fn proxy_variables(plan: &Plan, at: SocketAddr) -> BTreeMap<String, RawText> {
    naming(&Plan { level: Level::None, ..plan.clone() }, at)
}

fn naming(plan: &Plan, at: SocketAddr) -> BTreeMap<String, RawText> {
    let both_cases = |name: &str| [name.to_owned(), name.to_ascii_lowercase()];
    let names = PROXY_VARIABLES.iter().flat_map(|name| both_cases(name));
    if names.clone().any(|name| plan.environment.contains_key(&name)) {
        return BTreeMap::new();
    }
    let proxy = RawText::from(format!("http://{at}"));
    let exempt = both_cases("NO_PROXY").map(|name| (name, without_proxy(plan.level).into()));
    let exempt = exempt.into_iter().filter(|(name, _)| !plan.environment.contains_key(name));
    names.map(|name| (name, proxy.clone())).chain(exempt).collect()
}

/// Settings to put in the place of the host's where those hold more than
/// servers: a search list would make other names of those that are asked for.
/// Which server is asked is all the same.
pub(crate) fn resolver_settings() -> Option<(PathBuf, Vec<u8>)> {
    settings_instead_of(Path::new(RESOLVER))
}

fn settings_instead_of(path: &Path) -> Option<(PathBuf, Vec<u8>)> {
    let settings = std::fs::read(path).ok()?;
    let text = settings.get(..RESOLVER_MAX_BYTES.min(settings.len())).map(String::from_utf8_lossy)?;
    let is_plain = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("nameserver") => words.next().is_some_and(|server| server.parse::<Ipv4Addr>().is_ok()),
            Some(word) => word.starts_with(['#', ';']),
            None => true,
        }
    };
    let replaced = settings.len() > RESOLVER_MAX_BYTES || !text.lines().all(is_plain);
    replaced.then(|| (path.to_owned(), format!("nameserver {DOOR_V4}\n").into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_name_servers_alone_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("resolv.conf");
        for (text, replaced) in [
            ("nameserver 10.0.0.1\n# a\n; b\n\nnameserver 127.0.0.53\n", false),
            ("", false),
            ("nameserver 10.0.0.1\nsearch corp.example\n", true),
            ("options ndots:5\n", true),
            ("nameserver fe80::1%eth0\n", true),
            ("nameserver 2001:db8::1\n", true),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(settings_instead_of(&path).is_some(), replaced, "{text}");
        }
        assert_eq!(settings_instead_of(&directory.path().join("none")), None);
    }
}
