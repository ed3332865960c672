//! Resolves the endpoint's host to addresses, as the machine does: with its hosts file and its name
//! servers.
//!
//! Does not use the C library: the program is static, and `getaddrinfo` would load the machine's
//! modules into it. Answers of a name server are not trusted: the endpoint proves its name with a
//! certificate.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolveHosts};
use hickory_resolver::net::NetError;
use stockade_model::HttpEndpoint;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// Most addresses that are tried.
const MAX_ADDRESSES: usize = 4;

/// Resolver of one endpoint, whatever name it is asked for.
#[derive(Debug)]
pub(crate) struct EndpointResolver(pub(crate) HttpEndpoint);

/// Reason why a name could not be resolved.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct EndpointLookupError(pub(crate) String);

impl Resolver for EndpointResolver {
    fn resolve(&self, _: &Uri, _: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut addresses = match self.0.host().parse() {
            Ok(address) => vec![address],
            Err(_) => look_up(self.0.host(), *timeout.after).unwrap_or(Err(ureq::Error::Timeout(timeout.reason)))?,
        };
        if !self.0.is_encrypted() {
            // `http` was accepted only for this machine itself.
            addresses.retain(IpAddr::is_loopback);
        }
        // Machines without an IPv6 route are more common than those without IPv4.
        addresses.sort_by_key(IpAddr::is_ipv6);
        if addresses.is_empty() {
            return Err(ureq::Error::HostNotFound);
        }
        let mut found = self.empty();
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            found.push(SocketAddr::new(address, self.0.port()));
        }
        Ok(found)
    }
}

/// Resolves a name; `None` if no answer arrived in time.
fn look_up(host: &str, within: Duration) -> Option<Result<Vec<IpAddr>, ureq::Error>> {
    let failed = |error: &dyn std::fmt::Display| ureq::Error::Other(Box::new(EndpointLookupError(error.to_string())));
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Some(Err(failed(&error))),
    };
    let found = runtime.block_on(async { tokio::time::timeout(within, resolve_addresses(host)).await });
    Some(match found.ok()? {
        Ok(addresses) => Ok(addresses),
        Err(error) if error.is_nx_domain() || error.is_no_records_found() => Err(ureq::Error::HostNotFound),
        Err(error) => Err(failed(&error)),
    })
}

async fn resolve_addresses(host: &str) -> Result<Vec<IpAddr>, NetError> {
    let mut builder = TokioResolver::builder_tokio()?;
    let options = builder.options_mut();
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.use_hosts_file = ResolveHosts::Always;
    Ok(builder.build()?.lookup_ip(host).await?.iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_found() {
        let found = look_up("localhost", Duration::from_secs(5)).unwrap().unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
    }
}
