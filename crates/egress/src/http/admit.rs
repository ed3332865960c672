//! Decides whether one request may be sent to a known target, and injects its secrets.
//!
//! This module must not depend on the transport of the request.

use std::time::Duration;

use stockade_model::{DeniedOperation, NetworkTarget, RawText, RequestRuling, SecretUse};
use tokio::io::AsyncRead;
use tokio::time::timeout;

use super::exchange::HttpRefusal;
use super::head::{BodyFraming, RequestHead, field_values, has_word};
use super::stream::{HttpReader, MessageError};
use crate::egress_proxy::ProxyShared;
use crate::interception::SecretLeak;
use crate::ports::{EgressCaller, EgressDecision, EgressRequest};

/// Longest body that is read before its request is signed again.
const MAX_SIGNED_BODY_BYTES: u64 = 8 << 20;
/// Longest part of a path in the audit log.
const MAX_LOGGED_PATH_BYTES: usize = 512;

/// Fields that some servers read instead of the method or the path.
const OVERRIDE_FIELDS: &[&str] =
    &["X-HTTP-Method", "X-HTTP-Method-Override", "X-Method-Override", "X-Original-URL", "X-Rewrite-URL"];

/// Flag that a question about the request may have delayed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApprovalDelay {
    No,
    Yes,
}

impl ApprovalDelay {
    fn from_uses(approved_uses: &[SecretUse]) -> Self {
        if approved_uses.is_empty() { Self::No } else { Self::Yes }
    }
}

/// Target of a request, and its sender.
#[derive(Clone, Copy)]
pub(crate) struct RequestAdmission<'a> {
    pub(crate) shared: &'a ProxyShared,
    pub(crate) target: &'a NetworkTarget,
    pub(crate) caller: &'a EgressCaller,
    pub(crate) is_encrypted: bool,
}

impl RequestAdmission<'_> {
    /// Reports a refusal, and returns its answer.
    fn deny(&self, operation: DeniedOperation, object: String, rule: &str) -> HttpRefusal {
        self.shared.events.report_denial(operation, object, self.caller, rule, None);
        HttpRefusal::new(403, rule)
    }

    /// Counts a request against the limit.
    pub(crate) fn count_request(&self) -> Result<(), HttpRefusal> {
        self.shared.meter.count_request().map_err(|reached| {
            crate::session::report_limit(self.shared, self.target, self.caller, reached);
            HttpRefusal::new(429, reached.to_string())
        })
    }

    /// Refuses an upgrade to another protocol if requests are checked. After the upgrade, the rules
    /// about requests could not be enforced.
    pub(crate) fn check_upgrade(&self, request: &RequestHead) -> Result<(), HttpRefusal> {
        let rules = &self.shared.rules;
        let asks = field_values(&request.fields, "upgrade").next().is_some()
            || field_values(&request.fields, "http2-settings").next().is_some()
            || has_word(&request.fields, "connection", "upgrade");
        // Rules also apply to plain HTTP to a host of `inspect.except`.
        let is_read = rules.requires_inspection(self.target) || rules.inspect.has_rules(self.target);
        if !asks || !is_read || rules.inspect.allows_upgrade(self.target) {
            return Ok(());
        }
        let rule = "it asks for another protocol (`Upgrade`), but its requests are inspected; \
                    `inspect.upgrade` allows it for a host";
        Err(self.deny(DeniedOperation::Connect, self.describe_request(request), rule))
    }

    /// Applies the rules to a request and injects its secrets. If a secret would be sent to a host
    /// that it is not bound to, the request waits for an approval.
    pub(crate) async fn admit_request<R: AsyncRead + Unpin>(
        &self,
        request: &mut RequestHead,
        body: &mut HttpReader<R>,
    ) -> Result<ApprovalDelay, HttpRefusal> {
        if let Err(rule) = self.check_rules(request) {
            return Err(self.deny(DeniedOperation::Connect, self.describe_request(request), &rule));
        }
        let was_asked = self.approve_effect(request).await?;
        let secrets = &self.shared.interception.secrets;
        let mut approved_uses: Vec<SecretUse> = Vec::new();
        loop {
            let needs_body = secrets.wants_body(request, self.target, self.is_encrypted);
            let body = if needs_body { whole_body(request, body).await? } else { &[] };
            match secrets.put_in(request, self.target, self.is_encrypted, body) {
                Ok(()) => {
                    // Compressed data could hide a secret.
                    if secrets.may_come_back(self.target, self.is_encrypted) {
                        request.set_field("Accept-Encoding", "identity");
                    }
                    return Ok(if was_asked { ApprovalDelay::Yes } else { ApprovalDelay::from_uses(&approved_uses) });
                }
                Err(stray) => approved_uses.push(self.permit_secret(stray, &approved_uses).await?),
            }
        }
    }

    /// Asks for approval of the request's effect outside, if it is known to do more than reach a
    /// host. Returns whether the request may have waited for that.
    async fn approve_effect(&self, request: &RequestHead) -> Result<bool, HttpRefusal> {
        let Some((effect, message)) = super::effects::find_effect(self.target, &request.method, &request.target) else {
            return Ok(false);
        };
        let egress_request = EgressRequest::Effect { effect, request: self.describe_request(request), message };
        match self.shared.request_decision(egress_request, self.caller).await {
            EgressDecision::Refused { rule, .. } => Err(HttpRefusal::new(403, rule)),
            EgressDecision::Allowed(_) => Ok(true),
        }
    }

    /// Permits a secret for this target from now on, if that is approved. A use that was approved
    /// for this request already, without effect, is not requested again.
    async fn permit_secret(&self, stray: SecretLeak, approved_uses: &[SecretUse]) -> Result<SecretUse, HttpRefusal> {
        let Some(secret) = stray.secret.filter(|secret| !approved_uses.contains(secret)) else {
            return Err(self.deny(DeniedOperation::Secret, self.target.to_string(), &stray.rule));
        };
        let egress_request = EgressRequest::Secret { secret: secret.clone(), rule: stray.rule };
        match self.shared.request_decision(egress_request, self.caller).await {
            EgressDecision::Refused { rule, grant } => Err(HttpRefusal::for_missing_grant(&rule, grant.as_ref())),
            EgressDecision::Allowed(_) => {
                self.shared.interception.secrets.permit_use(&secret);
                Ok(secret)
            }
        }
    }

    /// Refuses a request if its approval came too late and the server has closed the connection.
    /// The next request needs no question.
    pub(crate) async fn still_there<R: AsyncRead + Unpin>(
        &self,
        admitted: Result<ApprovalDelay, HttpRefusal>,
        server: &mut HttpReader<R>,
    ) -> Result<(), HttpRefusal> {
        let is_closed = match admitted? {
            ApprovalDelay::No => false,
            ApprovalDelay::Yes => matches!(timeout(Duration::ZERO, server.fill_buffer()).await, Ok(Ok(0) | Err(_))),
        };
        let target = self.target;
        let late = || format!("{target} closed the connection before the question was answered; ask again");
        if is_closed { Err(HttpRefusal::new(503, late())) } else { Ok(()) }
    }

    /// Returns the request in the words of a rule, without the query after `?`, because queries
    /// often contain secrets.
    fn describe_request(&self, request: &RequestHead) -> String {
        let path = request.target.split('?').next().unwrap_or_default();
        let path: String = RawText::from(path.as_bytes()).to_escaped().chars().take(MAX_LOGGED_PATH_BYTES).collect();
        let scheme = if self.is_encrypted { "https" } else { "http" };
        format!("{} {scheme}://{}{path}", request.method, self.target)
    }

    fn check_rules(&self, request: &RequestHead) -> Result<(), String> {
        let (inspect, target) = (&self.shared.rules.inspect, self.target);
        let overrides = |name: &&&str| field_values(&request.fields, name).next().is_some();
        if let Some(name) = OVERRIDE_FIELDS.iter().find(overrides).filter(|_| inspect.has_rules(target)) {
            return Err(format!("some servers take the method or the path from its field {name}"));
        }
        let rule = |is_encrypted| inspect.apply_rules(is_encrypted, target, &request.method, &request.target);
        match rule(self.is_encrypted) {
            RequestRuling::Allowed(_) => Ok(()),
            // Otherwise the other scheme would bypass the rules.
            RequestRuling::Unruled if rule(!self.is_encrypted) == RequestRuling::Unruled => Ok(()),
            RequestRuling::Unruled => {
                Err("the rules about requests to this port are for the other scheme (http or https)".into())
            }
            RequestRuling::Denied(rule) => Err(format!("the rule `{rule}` refuses it")),
            RequestRuling::NotAllowed => Err("no rule about requests to this host allows it".into()),
            RequestRuling::Unclear => Err("its path can be read in more than one way".into()),
        }
    }
}

async fn whole_body<'a, R: AsyncRead + Unpin>(
    request: &RequestHead,
    body: &'a mut HttpReader<R>,
) -> Result<&'a [u8], HttpRefusal> {
    let length = match request.framing {
        BodyFraming::None => 0,
        BodyFraming::Length(length @ ..=MAX_SIGNED_BODY_BYTES) => length,
        BodyFraming::Length(_) | BodyFraming::Chunked | BodyFraming::UntilClose => {
            return Err(HttpRefusal::new(
                413,
                "a body of this length can be signed again only if x-amz-content-sha256 gives its hash",
            ));
        }
    };
    body.peek_body(length as usize).await.map_err(|trouble| match trouble {
        MessageError::Slow => HttpRefusal::new(408, "the body took too long"),
        MessageError::Broken(_) | MessageError::Malformed(_) => HttpRefusal::new(400, "the body is not complete"),
    })
}
