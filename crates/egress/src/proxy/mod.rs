//! Proxies for programs that require one. Each request is decided by its own target.

pub(crate) mod http;
pub(crate) mod socks;

use std::net::Ipv4Addr;
use std::sync::Arc;

use stockade_model::{Grant, Host, NetworkTarget};

use crate::dial::{DialError, OutgoingConnection};
use crate::egress_proxy::ProxyShared;
use crate::ports::{EgressCaller, EgressDecision, EgressPermit, EgressRequest};
use crate::session::EgressSession;

/// Asks whether a target may be reached, and waits for the answer.
async fn request_permit(
    shared: &ProxyShared,
    target: &NetworkTarget,
    caller: &EgressCaller,
) -> Result<EgressPermit, UnreachedTarget> {
    match shared.request_decision(EgressRequest::Target(target.clone()), caller).await {
        EgressDecision::Allowed(permit) => Ok(permit),
        EgressDecision::Refused { rule, grant } => Err(UnreachedTarget::Checked { rule, grant }),
    }
}

/// Replaces `localhost` by its address, which the client and the approver mean. A name that
/// resolves to that address may belong to another host.
fn without_localhost(target: &NetworkTarget) -> NetworkTarget {
    match target.host.name().is_some_and(|name| name.as_str() == "localhost") {
        true => NetworkTarget { host: Host::Address(Ipv4Addr::LOCALHOST.into()), port: target.port },
        false => target.clone(),
    }
}

/// Reason why a target was not reached.
enum UnreachedTarget {
    /// A person or a rule refused it; with the grant that would permit it, if any.
    Checked { rule: String, grant: Option<Grant> },
    /// See [`DialError`]; it was reported.
    Dialling(DialError),
}

/// Requests permission for a target and dials it.
async fn reach_target(
    shared: &Arc<ProxyShared>,
    target: &NetworkTarget,
    caller: &EgressCaller,
) -> Result<(EgressSession, OutgoingConnection), UnreachedTarget> {
    let target = &without_localhost(target);
    let permit = request_permit(shared, target, caller).await?;
    let session = shared.create_session(target, caller, &permit).map_err(UnreachedTarget::Dialling)?;
    match shared.dial_target(target, caller).await {
        Ok(dialled) => Ok((session, dialled)),
        Err(failure) => {
            session.record_dial_error(&failure);
            Err(UnreachedTarget::Dialling(failure))
        }
    }
}
