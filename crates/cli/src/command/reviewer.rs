//! The configured reviewer, as the engine and `doctor` want it. It must not know
//! what an opinion leads to.

use std::sync::Arc;

use stockade_engine::Reviewer;
use stockade_policy::{ReviewApi, ReviewKey, ReviewSettings, Settings};
use stockade_review::{Api, Authorities, KeySource, ModelReviewer, Terms};

use crate::places::State;

/// Who gives an opinion on questions, where the person configured somebody.
pub fn configured(settings: &Settings, state: &State) -> Option<Arc<dyn Reviewer>> {
    let review = settings.review.value.as_ref()?;
    Some(Arc::new(ModelReviewer::new(terms(review), std::env::vars_os().collect(), state.reviews())))
}

/// Why nothing could be sent, as far as that shows without sending anything.
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
