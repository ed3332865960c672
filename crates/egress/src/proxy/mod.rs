//! Proxies for programs that require one. Each request is decided by its own target.

pub(crate) mod http;
pub(crate) mod socks;

use std::net::Ipv4Addr;
use std::sync::Arc;

use stockade_model::{Grant, Host, Target};

use crate::dial::{DialFailure, Dialled};
use crate::door::Shared;
use crate::seam::{Judgement, Permit, Wanted, Who};
use crate::session::Session;

/// Asks whether a target may be reached, and waits for the answer.
async fn judged(shared: &Shared, target: &Target, who: &Who) -> Result<Permit, Unreached> {
    match shared.judged(Wanted::Target(target.clone()), who).await {
        Judgement::Allowed(permit) => Ok(permit),
        Judgement::Refused { rule, grant } => Err(Unreached::Judged { rule, grant }),
    }
}

/// Replaces `localhost` by its address, which the client and the approver mean. A name that
/// resolves to that address may belong to another host.
fn without_localhost(target: &Target) -> Target {
    match target.host.name().is_some_and(|name| name.as_str() == "localhost") {
        true => Target { host: Host::Address(Ipv4Addr::LOCALHOST.into()), port: target.port },
        false => target.clone(),
    }
}

/// Reason why a target was not reached.
enum Unreached {
    /// A person or a rule refused it; with the grant that would permit it, if any.
    Judged { rule: String, grant: Option<Grant> },
    /// See [`DialFailure`]; it was reported.
    Dialling(DialFailure),
}

/// Requests permission for a target and dials it.
async fn reach(shared: &Arc<Shared>, target: &Target, who: &Who) -> Result<(Session, Dialled), Unreached> {
    let target = &without_localhost(target);
    let permit = judged(shared, target, who).await?;
    let session = shared.session(target, who, &permit).map_err(Unreached::Dialling)?;
    match shared.dial(target, who).await {
        Ok(dialled) => Ok((session, dialled)),
        Err(failure) => {
            session.failed(&failure);
            Err(Unreached::Dialling(failure))
        }
    }
}
