//! Resolves names like the host: with its hosts file and its name servers.
//!
//! The C library is not used, because the program is static. `getaddrinfo` would load every
//! configured module of the machine into the process with all permissions. Names that only such a
//! module knows (mDNS, directories) are therefore not found, unless a local name server answers for
//! it, as systemd-resolved does.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolveHosts};
use hickory_resolver::net::NetError;
use stockade_model::HostName;
use tokio::runtime::Handle;

use crate::ports::{NameLookupError, NameResolver};

/// Time-out for one name server, if `/etc/resolv.conf` permits more.
const SERVER_TIMEOUT: Duration = Duration::from_secs(4);

/// The host's `/etc/hosts` and the name servers of its `/etc/resolv.conf`, read at the first
/// lookup.
#[derive(Debug, Default)]
pub struct SystemResolver(OnceLock<Result<TokioResolver, String>>);

impl NameResolver for SystemResolver {
    fn resolve_name(&self, name: &HostName) -> Result<Vec<IpAddr>, NameLookupError> {
        let runtime = Handle::try_current().map_err(lookup_error)?;
        let resolver = self.0.get_or_init(|| build_resolver().map_err(|error| error.to_string()));
        let resolver = resolver.as_ref().map_err(|why| NameLookupError::Failed(format!("/etc/resolv.conf: {why}")))?;
        match runtime.block_on(resolver.lookup_ip(name.as_str())) {
            Ok(found) => Ok(found.iter().collect()),
            Err(error) if error.is_nx_domain() || error.is_no_records_found() => Err(NameLookupError::NoSuchName),
            Err(error) => Err(lookup_error(error)),
        }
    }
}

fn lookup_error(error: impl ToString) -> NameLookupError {
    NameLookupError::Failed(error.to_string())
}

fn build_resolver() -> Result<TokioResolver, NetError> {
    let mut builder = TokioResolver::builder_tokio()?;
    let options = builder.options_mut();
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.use_hosts_file = ResolveHosts::Always;
    options.timeout = options.timeout.min(SERVER_TIMEOUT);
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_hosts_counts() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let found = runtime.block_on(async {
            let name = match "localhost".parse().unwrap() {
                stockade_model::Host::Name(name) => name,
                stockade_model::Host::Address(_) => unreachable!("it is no address"),
            };
            tokio::task::spawn_blocking(move || SystemResolver::default().resolve_name(&name)).await.unwrap()
        });
        assert!(found.unwrap().iter().all(IpAddr::is_loopback));
    }
}
