//! Decides whether one request may be sent to a known target, and injects its secrets.
//!
//! This module must not depend on the transport of the request.

use std::time::Duration;

use stockade_model::{Operation, RawText, RequestRuling, SecretUse, Target};
use tokio::io::AsyncRead;
use tokio::time::timeout;

use super::exchange::Refusal;
use super::head::{Framing, Request, has_word, values};
use super::stream::{Reader, Trouble};
use crate::door::Shared;
use crate::edge::Stray;
use crate::seam::{Judgement, Wanted, Who};

/// Longest body that is read before its request is signed again.
const SIGNED_BODY_MAX: u64 = 8 << 20;
/// Longest part of a path in the audit log.
const SHOWN_PATH: usize = 512;

/// Fields that some servers read instead of the method or the path.
const OVERRIDES: &[&str] =
    &["X-HTTP-Method", "X-HTTP-Method-Override", "X-Method-Override", "X-Original-URL", "X-Rewrite-URL"];

/// Flag that a question about the request may have delayed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    No,
    Yes,
}

impl Waited {
    fn of(lent: &[SecretUse]) -> Self {
        if lent.is_empty() { Self::No } else { Self::Yes }
    }
}

/// Target of a request, and its sender.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) target: &'a Target,
    pub(crate) who: &'a Who,
    pub(crate) is_encrypted: bool,
}

impl Asked<'_> {
    /// Counts a request against the limit.
    pub(crate) fn count(&self) -> Result<(), Refusal> {
        self.shared.meter.request().map_err(|reached| {
            crate::session::limit(self.shared, self.target, self.who, reached);
            Refusal::new(429, reached.to_string())
        })
    }

    /// Refuses an upgrade to another protocol if requests are checked. After the upgrade, the rules
    /// about requests could not be enforced.
    pub(crate) fn check_upgrade(&self, request: &Request) -> Result<(), Refusal> {
        let rules = &self.shared.rules;
        let asks = values(&request.fields, "upgrade").next().is_some()
            || values(&request.fields, "http2-settings").next().is_some()
            || has_word(&request.fields, "connection", "upgrade");
        // Rules also apply to plain HTTP to a host of `inspect.except`.
        let is_read = rules.inspects(self.target) || rules.inspect.has_rules(self.target);
        if !asks || !is_read || rules.inspect.upgrades(self.target) {
            return Ok(());
        }
        let rule = "it asks for another protocol (`Upgrade`) where requests are looked into; \
                    `inspect.upgrade` allows it for a host";
        self.shared.events.denied(Operation::Connect, self.shown(request), self.who, rule, None);
        Err(Refusal::new(403, rule))
    }

    /// Applies the rules to a request and injects its secrets. If a secret would be sent to a host
    /// that it is not bound to, the request waits for an approval.
    pub(crate) async fn admit<R: AsyncRead + Unpin>(
        &self,
        request: &mut Request,
        body: &mut Reader<R>,
    ) -> Result<Waited, Refusal> {
        if let Err(rule) = self.ruled(request) {
            self.shared.events.denied(Operation::Connect, self.shown(request), self.who, &rule, None);
            return Err(Refusal::new(403, rule));
        }
        let asked = self.consent(request).await?;
        let secrets = &self.shared.edge.secrets;
        let mut lent: Vec<SecretUse> = Vec::new();
        loop {
            let is_wanted = secrets.wants_body(request, self.target, self.is_encrypted);
            let body = if is_wanted { whole_body(request, body).await? } else { &[] };
            match secrets.put_in(request, self.target, self.is_encrypted, body) {
                Ok(()) => {
                    // Compressed data could hide a secret.
                    if secrets.may_come_back(self.target, self.is_encrypted) {
                        request.set("Accept-Encoding", "identity");
                    }
                    return Ok(if asked { Waited::Yes } else { Waited::of(&lent) });
                }
                Err(stray) => lent.push(self.lend(stray, &lent).await?),
            }
        }
    }

    /// Asks for approval of the request's effect outside, if it is known to do more than reach a
    /// host. Returns whether the request may have waited for that.
    async fn consent(&self, request: &Request) -> Result<bool, Refusal> {
        let Some((effect, message)) = super::effects::of(self.target, &request.method, &request.target) else {
            return Ok(false);
        };
        let wanted = Wanted::Effect { effect, request: self.shown(request), message };
        match self.shared.judged(wanted, self.who).await {
            Judgement::Refused { rule, .. } => Err(Refusal::new(403, rule)),
            Judgement::Allowed(_) => Ok(true),
        }
    }

    /// Permits a secret for this target from now on, if that is approved. A use that was approved
    /// for this request already, without effect, is not requested again.
    async fn lend(&self, stray: Stray, lent: &[SecretUse]) -> Result<SecretUse, Refusal> {
        let Some(secret) = stray.secret.filter(|secret| !lent.contains(secret)) else {
            self.shared.events.denied(Operation::Secret, self.target.to_string(), self.who, &stray.rule, None);
            return Err(Refusal::new(403, stray.rule));
        };
        let wanted = Wanted::Secret { secret: secret.clone(), rule: stray.rule };
        match self.shared.judged(wanted, self.who).await {
            Judgement::Refused { rule, grant } => Err(Refusal::lacking(&rule, grant.as_ref())),
            Judgement::Allowed(_) => {
                self.shared.edge.secrets.lend(&secret);
                Ok(secret)
            }
        }
    }

    /// Refuses a request if its approval came too late and the server has closed the connection.
    /// The next request needs no question.
    pub(crate) async fn still_there<R: AsyncRead + Unpin>(
        &self,
        admitted: Result<Waited, Refusal>,
        server: &mut Reader<R>,
    ) -> Result<(), Refusal> {
        let is_gone = match admitted? {
            Waited::No => false,
            Waited::Yes => matches!(timeout(Duration::ZERO, server.fill()).await, Ok(Ok(0) | Err(_))),
        };
        let target = self.target;
        let late = || format!("{target} closed the connection before the question was answered; ask again");
        if is_gone { Err(Refusal::new(503, late())) } else { Ok(()) }
    }

    /// Returns the request in the words of a rule, without the query after `?`, because queries
    /// often contain secrets.
    fn shown(&self, request: &Request) -> String {
        let path = request.target.split('?').next().unwrap_or_default();
        let path: String = RawText::from(path.as_bytes()).escaped().chars().take(SHOWN_PATH).collect();
        let scheme = if self.is_encrypted { "https" } else { "http" };
        format!("{} {scheme}://{}{path}", request.method, self.target)
    }

    fn ruled(&self, request: &Request) -> Result<(), String> {
        let (inspect, target) = (&self.shared.rules.inspect, self.target);
        let overrides = |name: &&&str| values(&request.fields, name).next().is_some();
        if let Some(name) = OVERRIDES.iter().find(overrides).filter(|_| inspect.has_rules(target)) {
            return Err(format!("some servers take the method or the path from its field {name}"));
        }
        let rule = |is_encrypted| inspect.rule(is_encrypted, target, &request.method, &request.target);
        match rule(self.is_encrypted) {
            RequestRuling::Allowed(_) => Ok(()),
            // Otherwise the other scheme would bypass the rules.
            RequestRuling::Unruled if rule(!self.is_encrypted) == RequestRuling::Unruled => Ok(()),
            RequestRuling::Unruled => {
                Err("the rules about requests to this port are for the other of http, https".into())
            }
            RequestRuling::Denied(rule) => Err(format!("the rule `{rule}` refuses it")),
            RequestRuling::NotAllowed => Err("no rule about requests to this host allows it".into()),
            RequestRuling::Unclear => Err("its path can be read in more than one way".into()),
        }
    }
}

async fn whole_body<'a, R: AsyncRead + Unpin>(request: &Request, body: &'a mut Reader<R>) -> Result<&'a [u8], Refusal> {
    let length = match request.framing {
        Framing::None => 0,
        Framing::Length(length @ ..=SIGNED_BODY_MAX) => length,
        Framing::Length(_) | Framing::Chunked | Framing::UntilClose => {
            return Err(Refusal::new(
                413,
                "a body this long can only be signed anew where x-amz-content-sha256 tells what it is signed as",
            ));
        }
    };
    body.body(length as usize).await.map_err(|trouble| match trouble {
        Trouble::Slow => Refusal::new(408, "the body took too long"),
        Trouble::Broken(_) | Trouble::Malformed(_) => Refusal::new(400, "the body is not complete"),
    })
}
