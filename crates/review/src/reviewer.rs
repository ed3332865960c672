//! The reviewer as the engine sees it: makes the request, sends it, reads the
//! answer, keeps to time and budget.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use stockade_engine::{ReviewReply, ReviewRequest, Reviewer};
use stockade_exchange::{Authorities, ExchangeError, exchange};
use stockade_model::{Endpoint, Opinion, Question, RawText, SessionId};
use tracing::debug;

use crate::budget::Budget;
use crate::cut::head;
use crate::key::{Key, KeyError, KeySource};
use crate::prompt::action;
use crate::redact::Redactor;
use crate::wire::Api;

/// The longest time-out, in milliseconds.
const MAX_TIMEOUT_MS: u64 = 5_000;
/// How much of a response is recorded, in bytes.
const MAX_RECORDED_BYTES: usize = 16 * 1024;

/// Whom to ask, and how much.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What the endpoint speaks.
    pub api: Api,
    /// Where it is.
    pub endpoint: Endpoint,
    /// The name of the model.
    pub model: String,
    /// Where the key is.
    pub key: KeySource,
    /// Whom its certificate must come from.
    pub authorities: Authorities,
    /// How long it may take from the first byte to the last, in milliseconds;
    /// more than 5,000 counts as 5,000.
    pub timeout_ms: u64,
    /// Calls of one session.
    pub budget_calls: u64,
    /// Bytes of one session, sent and received.
    pub budget_bytes: u64,
}

/// Asks a model.
pub struct ModelReviewer {
    terms: Terms,
    environment: Vec<(OsString, OsString)>,
    redactor: Redactor,
    budget: Budget,
}

impl fmt::Debug for ModelReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelReviewer").field("terms", &self.terms).finish_non_exhaustive()
    }
}

impl ModelReviewer {
    /// `environment` is the caller's: the key may stand in it, and the secrets
    /// that do are left out of what is sent. What a session has spent is kept in
    /// `budgets`.
    pub fn new(terms: Terms, environment: Vec<(OsString, OsString)>, budgets: PathBuf) -> Self {
        let redactor = Redactor::new(environment.iter().cloned());
        let budget = Budget::new(terms.budget_calls, terms.budget_bytes, Some(budgets));
        Self { terms, environment, redactor, budget }
    }

    fn key(&self) -> Result<Option<Key>, KeyError> {
        let variable = |name: &str| self.environment.iter().find(|(known, _)| known == name).map(|(_, v)| v.clone());
        self.terms.key.read(variable)
    }

    /// Leaves the key out too, whatever the variable it stands in is called.
    fn redactor(&self, key: Option<&Key>) -> Redactor {
        let redactor = self.redactor.clone();
        match key {
            Some(key) => redactor.and(key.expose()),
            None => redactor,
        }
    }

    fn call(&self, body: &[u8], key: Option<&Key>) -> Result<Vec<u8>, ExchangeError> {
        let Terms { api, endpoint, authorities, .. } = &self.terms;
        exchange(
            endpoint,
            authorities,
            api.headers(key.map(Key::expose)),
            body,
            Duration::from_millis(self.timeout_ms()),
        )
    }

    /// What was received, as it is recorded.
    fn recorded(body: &[u8], redactor: &Redactor) -> RawText {
        let text = redactor.redact(&String::from_utf8_lossy(body));
        head(&text, MAX_RECORDED_BYTES).into()
    }

    fn failed(&self, why: &ExchangeError) -> String {
        match why {
            ExchangeError::TimedOut => format!("it did not answer within {} ms", self.timeout_ms()),
            why => why.to_string(),
        }
    }
}

impl Reviewer for ModelReviewer {
    fn name(&self) -> String {
        self.terms.model.clone()
    }

    fn timeout_ms(&self) -> u64 {
        self.terms.timeout_ms.min(MAX_TIMEOUT_MS)
    }

    fn prepare(&self, question: &Question, session: Option<&SessionId>) -> Result<ReviewRequest, String> {
        let key = self.key().map_err(|why| why.to_string())?;
        let body = self.terms.api.body(&self.terms.model, &action(question, &self.redactor(key.as_ref())));
        self.budget.take(session, body.len() as u64).map_err(|why| why.to_string())?;
        let (endpoint, session) = (self.terms.endpoint.to_string(), session.cloned());
        Ok(ReviewRequest { endpoint, body: body.as_str().into(), session })
    }

    fn ask(&self, request: &ReviewRequest) -> ReviewReply {
        let key = match self.key() {
            Ok(key) => key,
            Err(why) => return ReviewReply { opinion: Err(why.to_string()), response: None },
        };
        let answered = self.call(request.body.as_bytes(), key.as_ref());
        let received: &[u8] = match &answered {
            Ok(body) | Err(ExchangeError::Status { body, .. }) => body,
            Err(_) => &[],
        };
        if let Err(why) = self.budget.add(request.session.as_ref(), received.len() as u64) {
            debug!(%why, "what was received is not counted");
        }
        let redactor = self.redactor(key.as_ref());
        let response = (!received.is_empty()).then(|| Self::recorded(received, &redactor));
        let opinion = match &answered {
            Ok(body) => self.terms.api.read(body).map_err(|why| why.to_string()),
            Err(why) => Err(self.failed(why)),
        };
        // A model that repeats a secret does not get it onto a screen.
        let opinion = opinion.map(|opinion| Opinion {
            summary: redactor.redact(opinion.summary.to_str().unwrap_or_default()).as_str().into(),
            ..opinion
        });
        ReviewReply { opinion, response }
    }
}

#[cfg(test)]
#[path = "reviewer_tests.rs"]
mod tests;
