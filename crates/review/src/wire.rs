//! The two formats of a request.
//!
//! OpenAI: chat completions with a JSON schema as `response_format`
//! (platform.openai.com/docs/api-reference/chat). Anthropic: messages with one tool that must be
//! used (docs.anthropic.com/en/api/messages).

use serde_json::{Value, json};
use stockade_model::ReviewOpinion;

use crate::answer::{AnswerError, parse_opinion};
use crate::prompt::{INSTRUCTIONS, answer_schema};

/// Most tokens of an answer: enough for a sentence and some reasoning.
const MAX_ANSWER_TOKENS: u32 = 2_048;
/// Name of the schema and of the tool.
const REPORT_TOOL: &str = "report_risk";
/// Version of the Anthropic API.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// API of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelApi {
    /// OpenAI's chat completions, and compatible APIs.
    OpenAi,
    /// Anthropic's messages, and compatible APIs.
    Anthropic,
}

impl ModelApi {
    /// Returns the body of a request about `action`.
    pub(crate) fn request_body(self, model: &str, action: &Value) -> String {
        let user = json!([{ "role": "user", "content": action.to_string() }]);
        let body = match self {
            Self::OpenAi => json!({
                "model": model,
                "max_completion_tokens": MAX_ANSWER_TOKENS,
                "messages": [{ "role": "system", "content": INSTRUCTIONS }, user[0]],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": { "name": REPORT_TOOL, "strict": true, "schema": answer_schema() },
                },
            }),
            Self::Anthropic => json!({
                "model": model,
                "max_tokens": MAX_ANSWER_TOKENS,
                "system": INSTRUCTIONS,
                "messages": user,
                "tools": [{
                    "name": REPORT_TOOL,
                    "description": "Reports what the action would do and how risky it is.",
                    "input_schema": answer_schema(),
                }],
                "tool_choice": { "type": "tool", "name": REPORT_TOOL },
            }),
        };
        body.to_string()
    }

    /// Returns the headers besides the usual ones; one of them contains the key.
    pub(crate) fn request_headers(self, key: Option<&str>) -> Vec<(&'static str, String)> {
        match self {
            Self::OpenAi => key.map(|key| ("Authorization", format!("Bearer {key}"))).into_iter().collect(),
            Self::Anthropic => {
                let version = ("anthropic-version", ANTHROPIC_VERSION.to_owned());
                key.map(|key| ("x-api-key", key.to_owned())).into_iter().chain([version]).collect()
            }
        }
    }

    /// Parses the opinion in a response.
    pub(crate) fn parse_response(self, body: &[u8]) -> Result<ReviewOpinion, AnswerError> {
        let body: Value = serde_json::from_slice(body).map_err(|_| AnswerError::Malformed)?;
        match self {
            Self::OpenAi => {
                let choice = &body["choices"][0];
                if choice["finish_reason"] == "length" {
                    return Err(AnswerError::Unfinished);
                }
                if choice["finish_reason"] == "content_filter" || choice["message"]["refusal"].is_string() {
                    return Err(AnswerError::Refused);
                }
                let content = choice["message"]["content"].as_str().ok_or(AnswerError::Malformed)?;
                parse_opinion(serde_json::from_str(content).map_err(|_| AnswerError::Malformed)?)
            }
            Self::Anthropic => {
                match body["stop_reason"].as_str() {
                    Some("max_tokens") => return Err(AnswerError::Unfinished),
                    Some("refusal") => return Err(AnswerError::Refused),
                    _ => {}
                }
                let blocks = body["content"].as_array().ok_or(AnswerError::Malformed)?;
                let report = blocks.iter().find(|block| block["type"] == "tool_use" && block["name"] == REPORT_TOOL);
                parse_opinion(report.ok_or(AnswerError::Malformed)?["input"].clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stockade_model::RiskLevel;

    use super::*;

    const REPORTED: &str = r#"{"summary":"s","risk":"critical","categories":[]}"#;

    #[track_caller]
    fn check(api: ModelApi, body: &str, expected: Result<RiskLevel, AnswerError>) {
        assert_eq!(api.parse_response(body.as_bytes()).map(|opinion| opinion.risk), expected, "{body}");
    }

    #[test]
    fn chat_completions() {
        let content = Value::from(REPORTED).to_string();
        let with = |message: &str, reason: &str| {
            format!(r#"{{"choices":[{{"message":{message},"finish_reason":"{reason}"}}]}}"#)
        };
        let good = format!(r#"{{"role":"assistant","content":{content},"refusal":null}}"#);
        check(ModelApi::OpenAi, &with(&good, "stop"), Ok(RiskLevel::Critical));
        check(ModelApi::OpenAi, &with(&good, "length"), Err(AnswerError::Unfinished));
        check(ModelApi::OpenAi, &with(&good, "content_filter"), Err(AnswerError::Refused));
        check(ModelApi::OpenAi, &with(r#"{"content":null,"refusal":"no"}"#, "stop"), Err(AnswerError::Refused));
        check(ModelApi::OpenAi, &with(r#"{"content":"it is fine, allow it"}"#, "stop"), Err(AnswerError::Malformed));
        for bad in ["", "{", "[]", "{}", r#"{"choices":[]}"#, r#"{"choices":{}}"#, &with("{}", "stop")] {
            check(ModelApi::OpenAi, bad, Err(AnswerError::Malformed));
        }
    }

    #[test]
    fn messages() {
        let with = |blocks: &str, reason: &str| format!(r#"{{"content":[{blocks}],"stop_reason":"{reason}"}}"#);
        let text = r#"{"type":"text","text":"allow"}"#;
        let report = format!(r#"{{"type":"tool_use","name":"report_risk","input":{REPORTED}}}"#);
        check(ModelApi::Anthropic, &with(&format!("{text},{report}"), "tool_use"), Ok(RiskLevel::Critical));
        check(ModelApi::Anthropic, &with(&report, "max_tokens"), Err(AnswerError::Unfinished));
        check(ModelApi::Anthropic, &with("", "refusal"), Err(AnswerError::Refused));
        check(ModelApi::Anthropic, &with(text, "end_turn"), Err(AnswerError::Malformed));
        let other = report.replace("report_risk", "approve");
        check(ModelApi::Anthropic, &with(&other, "tool_use"), Err(AnswerError::Malformed));
        for bad in ["", "[]", r#"{"content":"x"}"#, r#"{"content":{}}"#] {
            check(ModelApi::Anthropic, bad, Err(AnswerError::Malformed));
        }
        check(ModelApi::Anthropic, &"[".repeat(60_000), Err(AnswerError::Malformed));
    }

    #[test]
    fn the_key_is_in_a_header_alone() {
        for api in [ModelApi::OpenAi, ModelApi::Anthropic] {
            assert!(api.request_headers(Some("k3y")).iter().any(|(_, value)| value.contains("k3y")));
            assert!(api.request_headers(None).iter().all(|(_, value)| !value.contains("k3y")));
            assert!(!api.request_body("m", &json!({"command": "x"})).contains("k3y"));
        }
    }
}
