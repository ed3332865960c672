//! Proxies for programs that insist on one: a courtesy. Each request is decided
//! on its own target.

pub(crate) mod http;
pub(crate) mod socks;

use std::sync::Arc;

use stockade_model::{Grant, Target};
use tokio::sync::oneshot;

use crate::dial::{DialFailure, Dialled};
use crate::door::Shared;
use crate::seam::{Judgement, Permit, Who};
use crate::session::Session;

/// Asks whether a target may be reached, and waits for the answer.
async fn judged(shared: &Shared, target: &Target, who: &Who) -> Result<Permit, Unreached> {
    let (sender, receiver) = oneshot::channel();
    let answer = Box::new(move |judgement| {
        let _ = sender.send(judgement);
    });
    shared.judge.judge(target, who, answer);
    match receiver.await {
        Ok(Judgement::Allowed(permit)) => Ok(permit),
        Ok(Judgement::Refused { rule, grant }) => Err(Unreached::Judged { rule, grant }),
        Err(_) => Err(Unreached::Judged { rule: "nobody answered".into(), grant: None }),
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
    let permit = judged(shared, target, who).await?;
    let session = shared.session(target, who, &permit).map_err(Unreached::Dialling)?;
    match shared.dial(target).await {
        Ok(dialled) => Ok((session, dialled)),
        Err(failure) => {
            session.failed(&failure);
            Err(Unreached::Dialling(failure))
        }
    }
}
