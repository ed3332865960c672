//! Dials a target: resolves the name once, checks every address, and connects to the checked ones.
//!
//! This module must not depend on the sandbox.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use stockade_model::{EgressRules, Host, HostName, NetworkTarget};
use stockade_sys::net::is_own_address;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::ports::{NameLookupError, NameResolver};
use crate::upstream;

/// Time-out for resolving a name.
pub(crate) const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time-out for dialling, all addresses together.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// Head start of an address before the next one is tried in parallel (RFC 8305, 8).
const NEXT_ADDRESS_DELAY: Duration = Duration::from_millis(250);
/// Most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 16;

/// Error of a dial.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// A rule or limit of the egress proxy refused it.
    #[error("{rule}")]
    Refused {
        /// The rule in the words of a policy.
        rule: String,
    },
    /// The network failed.
    #[error("{why}")]
    Failed {
        /// The error number that the program's own connect would return.
        errno: Errno,
        /// Description of the failure.
        why: String,
    },
}

impl DialError {
    /// Returns the error number for `connect`.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Refused { .. } => Errno::ACCESS,
            Self::Failed { errno, .. } => *errno,
        }
    }

    fn from_errno(errno: Errno, why: impl Into<String>) -> Self {
        Self::Failed { errno, why: why.into() }
    }
}

impl From<NameLookupError> for DialError {
    fn from(error: NameLookupError) -> Self {
        Self::from_errno(Errno::HOSTUNREACH, error.to_string())
    }
}

/// Outgoing connection.
#[derive(Debug)]
pub(crate) struct OutgoingConnection {
    pub(crate) stream: TcpStream,
    pub(crate) address: IpAddr,
    /// Remark about the choice of address, for the audit log.
    pub(crate) note: Option<String>,
}

/// Resolves a name on a thread of its own.
pub(crate) async fn look_up(resolver: &Arc<dyn NameResolver>, name: &HostName) -> Result<Vec<IpAddr>, NameLookupError> {
    let (resolver, name) = (Arc::clone(resolver), name.clone());
    let looked = timeout(LOOKUP_TIMEOUT, tokio::task::spawn_blocking(move || resolver.resolve_name(&name))).await;
    match looked {
        Ok(Ok(found)) => found,
        Ok(Err(_)) => Err(NameLookupError::Failed("the name lookup failed".into())),
        Err(_) => Err(NameLookupError::Failed("no answer in ten seconds".into())),
    }
}

/// Dials an approved target, through the upstream proxy if the rules name one for it. `credentials`
/// are for that proxy.
pub(crate) async fn dial_target(
    resolver: &Arc<dyn NameResolver>,
    rules: &EgressRules,
    credentials: Option<&[u8]>,
    target: &NetworkTarget,
) -> Result<OutgoingConnection, DialError> {
    if let Some(proxy) = upstream::upstream_for_target(rules, target) {
        return in_time(upstream::dial_through_proxy(resolver, proxy, credentials, target)).await;
    }
    let (addresses, note) = match &target.host {
        Host::Name(name) => select_allowed_addresses(look_up(resolver, name).await?, rules, target)?,
        // An address was approved as such, so no check is needed.
        Host::Address(address) => (vec![*address], None),
    };
    let race = async {
        connect_first_reachable(&addresses, target.port).await.map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::HOSTUNREACH, Errno::from_raw_os_error);
            DialError::from_errno(errno, error.to_string())
        })
    };
    let (stream, address) = in_time(race).await?;
    Ok(OutgoingConnection { stream, address, note })
}

async fn in_time<T>(dialling: impl Future<Output = Result<T, DialError>>) -> Result<T, DialError> {
    let late = |_| DialError::from_errno(Errno::TIMEDOUT, "no answer in thirty seconds");
    timeout(DIAL_TIMEOUT, dialling).await.map_err(late)?
}

/// Returns the addresses that may be dialled, and a remark on the others.
fn select_allowed_addresses(
    found: Vec<IpAddr>,
    rules: &EgressRules,
    target: &NetworkTarget,
) -> Result<(Vec<IpAddr>, Option<String>), DialError> {
    let mut good = Vec::new();
    let mut refused: Option<(IpAddr, &str)> = None;
    for address in found.into_iter().map(|a| a.to_canonical()) {
        match special_here(address, target, rules) {
            Some(what) => refused = refused.or(Some((address, what))),
            None if !good.contains(&address) => good.push(address),
            None => {}
        }
    }
    good.truncate(ADDRESSES_MAX);
    match (good.is_empty(), refused) {
        (false, refused) => {
            let note = refused.map(|(address, what)| format!("its special address {address} ({what}) was left out"));
            Ok((good, note))
        }
        (true, Some((address, what))) => Err(DialError::Refused {
            rule: format!(
                "{} resolves to the special address {address} ({what}), which `egress.special` does not list",
                target.host
            ),
        }),
        (true, None) => Err(NameLookupError::NoSuchName.into()),
    }
}

/// Returns why an address may not be dialled for this target. An address of this machine counts as
/// special too.
fn special_here(address: IpAddr, target: &NetworkTarget, rules: &EgressRules) -> Option<&'static str> {
    let own = || (is_own_address(address) && !rules.lists_special(address, target.port)).then_some("this machine");
    rules.may_dial(target, address).err().or_else(own)
}

/// Connects to the first address that answers, each with a head start over the next. The error is
/// the first one.
pub(crate) async fn connect_first_reachable(addresses: &[IpAddr], port: u16) -> io::Result<(TcpStream, IpAddr)> {
    let mut tries = JoinSet::new();
    let mut rest = addresses.iter().copied();
    let mut first_error = None;
    loop {
        if let Some(address) = rest.next() {
            tries.spawn(async move { (TcpStream::connect(SocketAddr::new(address, port)).await, address) });
        } else if tries.is_empty() {
            return Err(first_error.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()));
        }
        let has_next = rest.len() > 0;
        tokio::select! {
            Some(tried) = tries.join_next() => match tried {
                Ok((Ok(stream), address)) => return Ok((stream, address)),
                Ok((Err(error), _)) => { first_error.get_or_insert(error); }
                Err(_) => {}
            },
            () = sleep(NEXT_ADDRESS_DELAY), if has_next => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    struct Fixed(&'static [&'static str]);
    impl NameResolver for Fixed {
        fn resolve_name(&self, _: &HostName) -> Result<Vec<IpAddr>, NameLookupError> {
            Ok(self.0.iter().map(|a| a.parse().unwrap()).collect())
        }
    }

    fn rules(special: &[&str]) -> EgressRules {
        EgressRules { special: special.iter().map(|s| s.parse().unwrap()).collect(), ..EgressRules::default() }
    }

    #[track_caller]
    fn refused(result: Result<OutgoingConnection, DialError>, part: &str) {
        match result {
            Err(DialError::Refused { rule }) => assert!(rule.contains(part), "{rule}"),
            other => panic!("{other:?}"),
        }
    }

    async fn go(
        found: &'static [&'static str],
        special: &[&str],
        target: &str,
    ) -> Result<OutgoingConnection, DialError> {
        let resolver: Arc<dyn NameResolver> = Arc::new(Fixed(found));
        dial_target(&resolver, &rules(special), None, &target.parse().unwrap()).await
    }

    #[tokio::test]
    async fn special_addresses_are_refused_unless_listed() {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let named = format!("allowed.test:{port}");
        refused(go(&["127.0.0.1"], &[], &named).await, "loopback");
        refused(go(&["::ffff:127.0.0.1"], &[], &named).await, "loopback");
        refused(go(&["127.0.0.1"], &["127.0.0.0/8:1"], &named).await, "loopback");
        refused(go(&["169.254.169.254", "10.0.0.1"], &[], &named).await, "metadata");
        assert!(go(&["127.0.0.1"], &["127.0.0.0/8"], &named).await.is_ok());
        assert!(go(&[], &[], &format!("127.0.0.1:{port}")).await.is_ok());
    }

    #[tokio::test]
    async fn of_mixed_answers_only_allowed_ones_are_dialled_and_recorded() {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let target = format!("allowed.test:{}", listener.local_addr().unwrap().port());
        let dialled = go(&["10.0.0.1", "127.0.0.1", "127.0.0.1"], &["127.0.0.1"], &target).await.unwrap();
        assert_eq!(dialled.address, IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(dialled.note.as_deref(), Some("its special address 10.0.0.1 (a private network) was left out"));
    }

    #[tokio::test]
    async fn the_next_address_is_tried_and_the_first_error_is_reported() {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::new(127, 0, 0, 3), 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let special: &[&str] = &["127.0.0.0/8"];
        let found: &[&str] = &["127.0.0.2", "127.0.0.3"];
        let dialled = go(found, special, &format!("a.test:{port}")).await.unwrap();
        assert_eq!(dialled.address, IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3)));
        drop(listener);
        let error = go(found, special, &format!("a.test:{port}")).await.unwrap_err();
        assert_eq!(error.errno(), Errno::CONNREFUSED);
    }

    #[tokio::test]
    async fn no_name_no_route() {
        let error = go(&[], &[], "nothing.test:80").await.unwrap_err();
        assert_eq!(error.errno(), Errno::HOSTUNREACH);
    }
}
