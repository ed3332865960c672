//! What a model said of a question. An opinion is shown beside the question and
//! can only raise caution: no type here holds an answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RawText;

/// How dangerous a reviewer takes a request to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Risk {
    /// Nothing of note. It changes nothing.
    Low,
    /// Something to look at.
    Medium,
    /// A yes should be considered, and reaches this time only.
    High,
    /// As high, and said louder.
    Critical,
}

/// What kind of harm a reviewer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RiskCategory {
    /// Data is removed or overwritten.
    DataDeletion,
    /// Data leaves the machine.
    Exfiltration,
    /// Something stays that runs later.
    Persistence,
    /// More privilege than the caller has.
    Privilege,
    /// It reaches the network.
    Network,
    /// Something else.
    Other,
}

/// What a reviewer said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Opinion {
    /// How dangerous it takes the request to be.
    pub risk: Risk,
    /// In a sentence. A model wrote it, perhaps talked into it by the command.
    pub summary: RawText,
    /// The kinds of harm; each once.
    pub categories: Vec<RiskCategory>,
}

/// What came of asking a reviewer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Review {
    /// Who: the name of the model.
    pub by: String,
    /// What it said; absent where there is no opinion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opinion: Option<Opinion>,
    /// Why there is none, for a person, in our own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl Review {
    /// There is no opinion, and why.
    pub fn failed(by: impl Into<String>, why: impl Into<String>) -> Self {
        Self { by: by.into(), opinion: None, failure: Some(why.into()) }
    }

    /// Whether it raises caution: a yes reaches this time only.
    pub fn warns(&self) -> bool {
        self.opinion.as_ref().is_some_and(|opinion| opinion.risk >= Risk::High)
    }
}

impl Risk {
    /// Its name, as it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }
}

impl RiskCategory {
    /// Every category.
    pub const ALL: [Self; 6] =
        [Self::DataDeletion, Self::Exfiltration, Self::Persistence, Self::Privilege, Self::Network, Self::Other];

    /// Its name, as it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::DataDeletion => "data-deletion",
            Self::Exfiltration => "exfiltration",
            Self::Persistence => "persistence",
            Self::Privilege => "privilege",
            Self::Network => "network",
            Self::Other => "other",
        }
    }
}
