//! Review of a question by a model. An opinion is shown beside the question and can only raise caution: no
//! type here holds an answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RawText;
use crate::text_form::display_as_serialised;

/// Danger of a request in the opinion of a reviewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RiskLevel {
    /// Nothing notable. The question is unchanged.
    Low,
    /// The request deserves attention.
    Medium,
    /// A yes needs consideration, and applies this time only.
    High,
    /// Like `High`, with a stronger warning.
    Critical,
}

/// Kind of harm that a reviewer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RiskCategory {
    /// Data is removed or overwritten.
    DataDeletion,
    /// Data leaves the machine.
    Exfiltration,
    /// A change remains that runs code later.
    Persistence,
    /// More privilege than the caller has.
    Privilege,
    /// The command uses the network.
    Network,
    /// Another kind of harm.
    Other,
}

/// Opinion of a reviewer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReviewOpinion {
    /// Danger of the request.
    pub risk: RiskLevel,
    /// Summary in one sentence. A model wrote it, and the command may have influenced the model.
    pub summary: RawText,
    /// The kinds of harm; each once.
    pub categories: Vec<RiskCategory>,
}

/// Result of a review.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReviewResult {
    /// Name of the model.
    pub by: String,
    /// The opinion; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opinion: Option<ReviewOpinion>,
    /// Reason for a missing opinion, for the user, in Stockade's own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl ReviewResult {
    /// Returns a review without an opinion, with the reason.
    pub fn from_failure(by: impl Into<String>, why: impl Into<String>) -> Self {
        Self { by: by.into(), opinion: None, failure: Some(why.into()) }
    }

    /// Returns whether the review raises caution: a yes applies this time only.
    pub fn raises_caution(&self) -> bool {
        self.opinion.as_ref().is_some_and(|opinion| opinion.risk >= RiskLevel::High)
    }
}

impl RiskLevel {
    /// Every level, the lowest first.
    pub const ALL: [Self; 4] = [Self::Low, Self::Medium, Self::High, Self::Critical];
}

impl RiskCategory {
    /// Every category.
    pub const ALL: [Self; 6] =
        [Self::DataDeletion, Self::Exfiltration, Self::Persistence, Self::Privilege, Self::Network, Self::Other];
}

display_as_serialised!(RiskLevel, RiskCategory);
