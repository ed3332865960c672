//! Launch options for the egress proxy: variables that name its proxy ports, resolver settings,
//! trusted authorities if TLS is intercepted, and placeholders for secrets. These help programs;
//! they enforce nothing.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use stockade_egress::{HTTP_PROXY_PORT, PROXY_ADDRESS_V4, PreparedInterception, TRUST_VARIABLES};
use stockade_model::{AttemptPlan, Grant, IsolationLevel, LayerReport, LayerState, RawText, SecretSource};

use stockade_launch::{LaunchOptions, NamedFile, NamingVariable};

/// File with the trusted authorities, in the run's own directory.
const TRUST_FILE: &str = "stockade-trust.pem";
/// The host's resolver settings.
const RESOLVER_FILE: &str = "/etc/resolv.conf";
/// Most bytes of the settings that are read.
const MAX_RESOLVER_BYTES: usize = 64 * 1024;
/// Variables by which programs find a proxy; each is set in upper and lower case. None names the
/// SOCKS proxy, because some libraries fail if they do not support it.
const PROXY_VARIABLES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
/// The hosts that are reached without a proxy: servers of the run.
const NO_PROXY_HOSTS: &str = "localhost,127.0.0.1,::1";

/// Returns the launch options of a run of `plan` for the egress proxy.
pub(crate) fn launch_options(plan: &AttemptPlan, interception: &PreparedInterception) -> LaunchOptions {
    let mut options = LaunchOptions::default();
    match plan.level {
        // No variable names the egress proxy: every connection reaches it. A program would time out a
        // proxy's delay, but not a connect that waits for an approver, and some programs would ask the
        // proxy for servers of the run.
        IsolationLevel::Full => options.files.extend(resolver_settings()),
        // DNS requests use TCP, which the broker sees. They contain the unchanged name, because the
        // proxy applies the host's search list.
        IsolationLevel::Restricted | IsolationLevel::None => {
            options.environment = proxy_variables(plan, SocketAddr::from((PROXY_ADDRESS_V4, HTTP_PROXY_PORT)));
            for (name, value) in [("RES_OPTIONS", "use-vc ndots:1"), ("LOCALDOMAIN", "")] {
                options.environment.insert(name.to_owned(), value.into());
            }
        }
    }
    for (mount, placeholder) in interception.secret_placeholders() {
        match mount {
            SecretSource::Env(name) => {
                options.environment.insert(name.clone(), placeholder.into());
            }
            SecretSource::File(path) => options.files.push((path.as_path().to_owned(), placeholder.into())),
        }
    }
    options.named.extend(interception.bundle_pem().map(|bundle| NamedFile {
        name: TRUST_FILE,
        content: bundle.into(),
        variables: TRUST_VARIABLES.names().map(NamingVariable::path_only).collect(),
    }));
    options
}

/// Returns the network's entry in the enforcement report.
pub(crate) fn network_layer(plan: &AttemptPlan) -> LayerReport {
    let (route, restrictions) = match plan.level {
        IsolationLevel::Full => ("through the egress proxy", "UDP reaches only its name server"),
        IsolationLevel::Restricted | IsolationLevel::None => (
            "over TCP, connected by the broker",
            "servers on the host's loopback only for the run; no UDP; DNS only over TCP and the proxy",
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
    let detail = format!("granted hosts are reachable {route}; {restrictions}{}", published.concat());
    LayerReport { state: LayerState::Enforced, detail }
}

/// Returns the variables that name an HTTP proxy which is the only path to the network, unless the plan sets a
/// proxy itself.
pub fn proxy_variables(plan: &AttemptPlan, at: SocketAddr) -> BTreeMap<String, RawText> {
    let both_cases = |name: &str| [name.to_owned(), name.to_ascii_lowercase()];
    let names = PROXY_VARIABLES.iter().flat_map(|name| both_cases(name));
    if names.clone().any(|name| plan.environment.contains_key(&name)) {
        return BTreeMap::new();
    }
    let proxy = RawText::from(format!("http://{at}"));
    let exempt = both_cases("NO_PROXY").map(|name| (name, NO_PROXY_HOSTS.into()));
    let exempt = exempt.into_iter().filter(|(name, _)| !plan.environment.contains_key(name));
    names.map(|name| (name, proxy.clone())).chain(exempt).collect()
}

/// Returns settings that replace the host's, if those contain more than name servers: a search list
/// would change the requested names. Any server address will do, because all requests reach the
/// proxy's name server.
pub(crate) fn resolver_settings() -> Option<(PathBuf, Vec<u8>)> {
    settings_instead_of(Path::new(RESOLVER_FILE))
}

fn settings_instead_of(path: &Path) -> Option<(PathBuf, Vec<u8>)> {
    let settings = std::fs::read(path).ok()?;
    let text = settings.get(..MAX_RESOLVER_BYTES.min(settings.len())).map(String::from_utf8_lossy)?;
    let is_plain = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("nameserver") => words.next().is_some_and(|server| server.parse::<Ipv4Addr>().is_ok()),
            Some(word) => word.starts_with(['#', ';']),
            None => true,
        }
    };
    let replaced = settings.len() > MAX_RESOLVER_BYTES || !text.lines().all(is_plain);
    replaced.then(|| (path.to_owned(), format!("nameserver {PROXY_ADDRESS_V4}\n").into_bytes()))
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
