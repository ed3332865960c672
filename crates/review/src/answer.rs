//! Strict parser for a model's answer. The text is untrusted, because a command may have influenced
//! the model: it is limited here, and escaped wherever it is shown.

use serde::Deserialize;
use stockade_model::{RawText, ReviewOpinion, RiskCategory};

/// Most characters of a summary.
const MAX_SUMMARY_CHARACTERS: usize = 300;

/// Reason why a model's answer contains no opinion. Never contains the answer's own text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("its answer is not in the form it was asked for")]
    Malformed,
    #[error("its answer names an unknown risk")]
    UnknownRisk,
    #[error("it refused to answer")]
    Refused,
    #[error("its answer was cut short")]
    Unfinished,
}

/// Further keys are ignored, because they have no effect.
#[derive(Deserialize)]
struct ModelAnswer {
    summary: String,
    risk: String,
    categories: Vec<String>,
}

/// Parses the structured part of an answer.
pub(crate) fn parse_opinion(answer: serde_json::Value) -> Result<ReviewOpinion, AnswerError> {
    let answer: ModelAnswer = serde_json::from_value(answer).map_err(|_| AnswerError::Malformed)?;
    let risk = serde_json::from_value(answer.risk.into()).map_err(|_| AnswerError::UnknownRisk)?;
    // An unknown category counts as `Other`, because it still names a harm.
    let category = |name: String| serde_json::from_value(name.into()).unwrap_or(RiskCategory::Other);
    let mut categories: Vec<RiskCategory> = answer.categories.into_iter().map(category).collect();
    categories.sort_unstable();
    categories.dedup();
    Ok(ReviewOpinion { risk, summary: sanitize_summary(&answer.summary), categories })
}

fn sanitize_summary(text: &str) -> RawText {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(MAX_SUMMARY_CHARACTERS) {
        line.truncate(end);
        line.push('…');
    }
    line.as_str().into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stockade_model::RiskLevel;

    use super::*;

    #[test]
    fn opinions_are_read_strictly() {
        let good = parse_opinion(json!({"summary": " a\n\tb ", "risk": "high",
            "categories": ["network", "exfiltration", "network", "telepathy"], "answer": "approved"}));
        let expected = ReviewOpinion {
            risk: RiskLevel::High,
            summary: "a b".into(),
            categories: vec![RiskCategory::Exfiltration, RiskCategory::Network, RiskCategory::Other],
        };
        assert_eq!(good, Ok(expected));
        for risk in ["", "LOW", "none", "low ", "approved"] {
            let answer = parse_opinion(json!({"summary": "", "risk": risk, "categories": []}));
            assert_eq!(answer, Err(AnswerError::UnknownRisk), "{risk}");
        }
        for answer in [
            json!(null),
            json!("low"),
            json!({"summary": "x", "risk": "low"}),
            json!({"summary": 1, "risk": "low", "categories": []}),
            json!({"summary": "x", "risk": ["low"], "categories": []}),
            json!({"summary": "x", "risk": "low", "categories": "network"}),
        ] {
            assert_eq!(parse_opinion(answer.clone()), Err(AnswerError::Malformed), "{answer}");
        }
    }

    #[test]
    fn a_summary_is_bounded() {
        let text = sanitize_summary(&"é".repeat(10_000));
        assert_eq!(text.to_str().unwrap().chars().count(), MAX_SUMMARY_CHARACTERS + 1);
    }
}
