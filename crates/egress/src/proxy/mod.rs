//! Proxies for programs that insist on one: a courtesy. Each request is decided
//! on its own target.

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

/// Who asks for `localhost` means that address, and so does who lets it pass: a name that leads
/// there by itself may be another's.
fn without_localhost(target: &Target) -> Target {
    match target.host.name().is_some_and(|name| name.as_str() == "localhost") {
        true => Target { host: Host::Address(Ipv4Addr::LOCALHOST.into()), port: target.port },
        false => target.clone(),
    }
}

/// Why a target was not reached.
enum Unreached {
    /// Somebody or a rule said no; what would do, if anything.
    Judged { rule: String, grant: Option<Grant> },
    /// See [`DialFailure`]; it was told.
    Dialling(DialFailure),
}

/// Judges and dials a target.
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
