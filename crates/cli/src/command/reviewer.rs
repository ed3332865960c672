//! The configured reviewer, for the engine and `doctor`. This module must not know how an opinion
//! is used.

use std::sync::Arc;

use stockade_engine::Reviewer;
use stockade_policy::{ReviewApi, ReviewKey, ReviewSettings, Settings};
use stockade_review::{Api, Authorities, KeySource, ModelReviewer, Terms};

use crate::places::State;

/// Returns the reviewer of questions, if the user configured one.
pub fn configured(settings: &Settings, state: &State) -> Option<Arc<dyn Reviewer>> {
    let review = settings.review.value.as_ref()?;
    Some(Arc::new(ModelReviewer::new(terms(review), std::env::vars_os().collect(), state.reviews())))
}

/// Returns the reason why no request can be sent, as far as it shows without sending one.
pub fn problem(review: &ReviewSettings) -> Option<String> {
    key(review).read(super::variable).err().map(|why| why.to_string())
}

fn terms(review: &ReviewSettings) -> Terms {
    Terms {
        api: match review.api {
            ReviewApi::Openai => Api::OpenAi,
            ReviewApi::Anthropic => Api::Anthropic,
        },
        endpoint: review.endpoint.clone(),
        model: review.model.clone(),
        key: key(review),
        authorities: review.certificates.clone().map_or(Authorities::Machine, Authorities::File),
        timeout_ms: review.timeout_ms,
        budget_calls: review.budget_calls,
        budget_bytes: review.budget_bytes,
    }
}

fn key(review: &ReviewSettings) -> KeySource {
    match &review.key {
        ReviewKey::None => KeySource::None,
        ReviewKey::Variable(name) => KeySource::Variable(name.clone()),
        ReviewKey::File(path) => KeySource::File(path.clone()),
    }
}
