//! The reviewer of the engine: builds the request, sends it, parses the answer, and keeps the
//! time-out and the budget.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use stockade_backend_api::{ReviewReply, ReviewRequest, Reviewer};
use stockade_exchange::{CertificateAuthorities, ExchangeError, send_json};
use stockade_model::{ApprovalQuestion, HttpEndpoint, RawText, ReviewOpinion, SessionId};
use tracing::debug;

use crate::budget::ReviewBudget;
use crate::cut::take_head;
use crate::key::{EndpointKey, KeyError, KeySource};
use crate::prompt::build_action;
use crate::redact::SecretRedactor;
use crate::wire::ModelApi;

/// Longest time-out, in milliseconds.
const MAX_TIMEOUT_MS: u64 = 5_000;
/// Most bytes of a response that are recorded.
const MAX_RECORDED_BYTES: usize = 16 * 1024;

/// Options of the reviewer.
#[derive(Clone, Debug)]
pub struct ReviewOptions {
    /// API of the endpoint.
    pub api: ModelApi,
    /// The endpoint.
    pub endpoint: HttpEndpoint,
    /// Name of the model.
    pub model: String,
    /// Source of the key.
    pub key: KeySource,
    /// Certificate authorities for the endpoint.
    pub authorities: CertificateAuthorities,
    /// Time-out from the first byte to the last, in milliseconds; more than 5,000 counts as 5,000.
    pub timeout_ms: u64,
    /// Most calls of one session.
    pub budget_calls: u64,
    /// Most bytes of one session, sent and received.
    pub budget_bytes: u64,
}

/// Reviewer that asks a model.
pub struct ModelReviewer {
    options: ReviewOptions,
    environment: Vec<(OsString, OsString)>,
    redactor: SecretRedactor,
    budget: ReviewBudget,
}

impl fmt::Debug for ModelReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelReviewer").field("options", &self.options).finish_non_exhaustive()
    }
}

impl ModelReviewer {
    /// Creates a reviewer. `environment` is the caller's: it may contain the key, and its secrets
    /// are removed from requests. The spent budgets of sessions are stored in `budgets`.
    pub fn new(options: ReviewOptions, environment: Vec<(OsString, OsString)>, budgets: PathBuf) -> Self {
        let redactor = SecretRedactor::new(environment.iter().cloned());
        let budget = ReviewBudget::new(options.budget_calls, options.budget_bytes, Some(budgets));
        Self { options, environment, redactor, budget }
    }

    fn read_key(&self) -> Result<Option<EndpointKey>, KeyError> {
        let variable = |name: &str| self.environment.iter().find(|(known, _)| known == name).map(|(_, v)| v.clone());
        self.options.key.read_key(variable)
    }

    /// Returns a redactor that also removes the key, whatever the name of its variable is.
    fn build_redactor(&self, key: Option<&EndpointKey>) -> SecretRedactor {
        let redactor = self.redactor.clone();
        match key {
            Some(key) => redactor.with_value(key.expose()),
            None => redactor,
        }
    }

    fn call_endpoint(&self, body: &[u8], key: Option<&EndpointKey>) -> Result<Vec<u8>, ExchangeError> {
        let ReviewOptions { api, endpoint, authorities, .. } = &self.options;
        send_json(
            endpoint,
            authorities,
            api.request_headers(key.map(EndpointKey::expose)),
            body,
            Duration::from_millis(self.timeout_ms()),
        )
    }

    /// Returns the part of a response that is recorded.
    fn recorded_text(body: &[u8], redactor: &SecretRedactor) -> RawText {
        let text = redactor.redact_text(&String::from_utf8_lossy(body));
        take_head(&text, MAX_RECORDED_BYTES).into()
    }

    fn failure_text(&self, why: &ExchangeError) -> String {
        match why {
            ExchangeError::TimedOut => format!("it did not answer within {} ms", self.timeout_ms()),
            why => why.to_string(),
        }
    }
}

impl Reviewer for ModelReviewer {
    fn name(&self) -> String {
        self.options.model.clone()
    }

    fn timeout_ms(&self) -> u64 {
        self.options.timeout_ms.min(MAX_TIMEOUT_MS)
    }

    fn prepare_request(
        &self,
        question: &ApprovalQuestion,
        session: Option<&SessionId>,
    ) -> Result<ReviewRequest, String> {
        let key = self.read_key().map_err(|why| why.to_string())?;
        let body = self
            .options
            .api
            .request_body(&self.options.model, &build_action(question, &self.build_redactor(key.as_ref())));
        self.budget.take_call(session, body.len() as u64).map_err(|why| why.to_string())?;
        let (endpoint, session) = (self.options.endpoint.to_string(), session.cloned());
        Ok(ReviewRequest { endpoint, body: body.as_str().into(), session })
    }

    fn send_request(&self, request: &ReviewRequest) -> ReviewReply {
        let key = match self.read_key() {
            Ok(key) => key,
            Err(why) => return ReviewReply { opinion: Err(why.to_string()), response: None },
        };
        let answered = self.call_endpoint(request.body.as_bytes(), key.as_ref());
        let received: &[u8] = match &answered {
            Ok(body) | Err(ExchangeError::Status { body, .. }) => body,
            Err(_) => &[],
        };
        if let Err(why) = self.budget.add_received(request.session.as_ref(), received.len() as u64) {
            debug!(%why, "the received bytes are not counted");
        }
        let redactor = self.build_redactor(key.as_ref());
        let response = (!received.is_empty()).then(|| Self::recorded_text(received, &redactor));
        let opinion = match &answered {
            Ok(body) => self.options.api.parse_response(body).map_err(|why| why.to_string()),
            Err(why) => Err(self.failure_text(why)),
        };
        // A secret that the model repeats must not be shown.
        let opinion = opinion.map(|opinion| ReviewOpinion {
            summary: redactor.redact_text(opinion.summary.to_str().unwrap_or_default()).as_str().into(),
            ..opinion
        });
        ReviewReply { opinion, response }
    }
}

#[cfg(test)]
#[path = "reviewer_tests.rs"]
mod tests;
