//! The configured reviewer, for the engine and `doctor`. This module must not know how an opinion
//! is used.

use std::sync::Arc;

use stockade_backend_api::Reviewer;
use stockade_policy::{PolicySettings, ReviewApi, ReviewKey, ReviewSettings};
use stockade_review::{CertificateAuthorities, KeySource, ModelApi, ModelReviewer, ReviewOptions};

use crate::locations::StateDirectory;

/// Returns the reviewer of questions, if the user configured one.
pub fn create_reviewer(settings: &PolicySettings, state: &StateDirectory) -> Option<Arc<dyn Reviewer>> {
    let review = settings.review.value.as_ref()?;
    Some(Arc::new(ModelReviewer::new(
        build_reviewer_options(review),
        std::env::vars_os().collect(),
        state.reviews_directory(),
    )))
}

/// Returns the reason why no request can be sent, as far as it shows without sending one.
pub fn find_reviewer_problem(review: &ReviewSettings) -> Option<String> {
    select_key_source(review).read_key(super::read_variable).err().map(|why| why.to_string())
}

fn build_reviewer_options(review: &ReviewSettings) -> ReviewOptions {
    ReviewOptions {
        api: match review.api {
            ReviewApi::Openai => ModelApi::OpenAi,
            ReviewApi::Anthropic => ModelApi::Anthropic,
        },
        endpoint: review.endpoint.clone(),
        model: review.model.clone(),
        key: select_key_source(review),
        authorities: review.certificates.clone().map_or(CertificateAuthorities::Machine, CertificateAuthorities::File),
        timeout_ms: review.timeout_ms,
        budget_calls: review.budget_calls,
        budget_bytes: review.budget_bytes,
    }
}

fn select_key_source(review: &ReviewSettings) -> KeySource {
    match &review.key {
        ReviewKey::None => KeySource::None,
        ReviewKey::Variable(name) => KeySource::Variable(name.clone()),
        ReviewKey::File(path) => KeySource::File(path.clone()),
    }
}
