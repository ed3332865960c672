//! Proxies for programs that insist on one: a courtesy. Each request is decided
//! on its own target.

pub(crate) mod http;
pub(crate) mod socks;

use std::sync::Arc;

use stockade_model::Target;
use tokio::sync::oneshot;

use crate::dial::{DialFailure, Dialled};
use crate::door::Shared;
use crate::seam::{Judgement, Permit, Who};
use crate::session::Session;

/// Asks whether a target may be reached, and waits for the answer.
async fn judged(shared: &Shared, target: &Target, who: &Who) -> Result<Permit, String> {
    let (sender, receiver) = oneshot::channel();
    let answer = Box::new(move |judgement| {
        let _ = sender.send(judgement);
    });
    shared.judge.judge(target, who, answer);
    match receiver.await {
        Ok(Judgement::Allowed(permit)) => Ok(permit),
        Ok(Judgement::Refused { rule }) => Err(rule),
        Err(_) => Err("nobody answered".into()),
    }
}

/// Why a target was not reached.
enum Unreached {
    /// Somebody or a rule said no.
    Judged(String),
    /// See [`DialFailure`]; it was told.
    Dialling(DialFailure),
}

/// Judges and dials a target.
async fn reach(shared: &Arc<Shared>, target: &Target, who: &Who) -> Result<(Session, Dialled), Unreached> {
    let permit = judged(shared, target, who).await.map_err(Unreached::Judged)?;
    let session = shared.session(target, who, &permit).map_err(Unreached::Dialling)?;
    match shared.dial(target).await {
        Ok(dialled) => Ok((session, dialled)),
        Err(failure) => {
            session.failed(&failure);
            Err(Unreached::Dialling(failure))
        }
    }
}
