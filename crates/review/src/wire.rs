//! The two formats of a request.
//!
//! OpenAI: chat completions with a JSON schema as `response_format`
//! (platform.openai.com/docs/api-reference/chat). Anthropic: messages with one tool that must be
//! used (docs.anthropic.com/en/api/messages).

use serde_json::{Value, json};
use stockade_model::Opinion;

use crate::answer::{AnswerError, opinion};
use crate::prompt::{INSTRUCTIONS, schema};

/// Most tokens of an answer: enough for a sentence and some reasoning.
const MAX_ANSWER_TOKENS: u32 = 2_048;
/// Name of the schema and of the tool.
const REPORT: &str = "report_risk";
/// Version of the Anthropic API.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// API of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// OpenAI's chat completions, and compatible APIs.
    OpenAi,
    /// Anthropic's messages, and compatible APIs.
    Anthropic,
}

impl Api {
    /// Returns the body of a request about `action`.
    pub(crate) fn body(self, model: &str, action: &Value) -> String {
        let user = json!([{ "role": "user", "content": action.to_string() }]);
        let body = match self {
            Self::OpenAi => json!({
                "model": model,
                "max_completion_tokens": MAX_ANSWER_TOKENS,
                "messages": [{ "role": "system", "content": INSTRUCTIONS }, user[0]],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": { "name": REPORT, "strict": true, "schema": schema() },
                },
            }),
            Self::Anthropic => json!({
                "model": model,
                "max_tokens": MAX_ANSWER_TOKENS,
                "system": INSTRUCTIONS,
                "messages": user,
                "tools": [{
                    "name": REPORT,
                    "description": "Reports what the action would do and how risky it is.",
                    "input_schema": schema(),
                }],
                "tool_choice": { "type": "tool", "name": REPORT },
            }),
        };
        body.to_string()
    }

    /// Returns the headers besides the usual ones; one of them contains the key.
    pub(crate) fn headers(self, key: Option<&str>) -> Vec<(&'static str, String)> {
        match self {
            Self::OpenAi => key.map(|key| ("Authorization", format!("Bearer {key}"))).into_iter().collect(),
            Self::Anthropic => {
                let version = ("anthropic-version", ANTHROPIC_VERSION.to_owned());
                key.map(|key| ("x-api-key", key.to_owned())).into_iter().chain([version]).collect()
            }
        }
    }

    /// Parses the opinion in a response.
    pub(crate) fn read(self, body: &[u8]) -> Result<Opinion, AnswerError> {
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
                opinion(serde_json::from_str(content).map_err(|_| AnswerError::Malformed)?)
            }
            Self::Anthropic => {
                match body["stop_reason"].as_str() {
                    Some("max_tokens") => return Err(AnswerError::Unfinished),
                    Some("refusal") => return Err(AnswerError::Refused),
                    _ => {}
                }
                let blocks = body["content"].as_array().ok_or(AnswerError::Malformed)?;
                let report = blocks.iter().find(|block| block["type"] == "tool_use" && block["name"] == REPORT);
                opinion(report.ok_or(AnswerError::Malformed)?["input"].clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stockade_model::Risk;

    use super::*;

    const REPORTED: &str = r#"{"summary":"s","risk":"critical","categories":[]}"#;

    #[track_caller]
    fn check(api: Api, body: &str, wanted: Result<Risk, AnswerError>) {
        assert_eq!(api.read(body.as_bytes()).map(|opinion| opinion.risk), wanted, "{body}");
    }

    #[test]
    fn chat_completions() {
        let content = Value::from(REPORTED).to_string();
        let with = |message: &str, reason: &str| {
            format!(r#"{{"choices":[{{"message":{message},"finish_reason":"{reason}"}}]}}"#)
        };
        let good = format!(r#"{{"role":"assistant","content":{content},"refusal":null}}"#);
        check(Api::OpenAi, &with(&good, "stop"), Ok(Risk::Critical));
        check(Api::OpenAi, &with(&good, "length"), Err(AnswerError::Unfinished));
        check(Api::OpenAi, &with(&good, "content_filter"), Err(AnswerError::Refused));
        check(Api::OpenAi, &with(r#"{"content":null,"refusal":"no"}"#, "stop"), Err(AnswerError::Refused));
        check(Api::OpenAi, &with(r#"{"content":"it is fine, allow it"}"#, "stop"), Err(AnswerError::Malformed));
        for bad in ["", "{", "[]", "{}", r#"{"choices":[]}"#, r#"{"choices":{}}"#, &with("{}", "stop")] {
            check(Api::OpenAi, bad, Err(AnswerError::Malformed));
        }
    }

    #[test]
    fn messages() {
        let with = |blocks: &str, reason: &str| format!(r#"{{"content":[{blocks}],"stop_reason":"{reason}"}}"#);
        let text = r#"{"type":"text","text":"allow"}"#;
        let report = format!(r#"{{"type":"tool_use","name":"report_risk","input":{REPORTED}}}"#);
        check(Api::Anthropic, &with(&format!("{text},{report}"), "tool_use"), Ok(Risk::Critical));
        check(Api::Anthropic, &with(&report, "max_tokens"), Err(AnswerError::Unfinished));
        check(Api::Anthropic, &with("", "refusal"), Err(AnswerError::Refused));
        check(Api::Anthropic, &with(text, "end_turn"), Err(AnswerError::Malformed));
        let other = report.replace("report_risk", "approve");
        check(Api::Anthropic, &with(&other, "tool_use"), Err(AnswerError::Malformed));
        for bad in ["", "[]", r#"{"content":"x"}"#, r#"{"content":{}}"#] {
            check(Api::Anthropic, bad, Err(AnswerError::Malformed));
        }
        check(Api::Anthropic, &"[".repeat(60_000), Err(AnswerError::Malformed));
    }

    #[test]
    fn the_key_stands_in_a_header_alone() {
        for api in [Api::OpenAi, Api::Anthropic] {
            assert!(api.headers(Some("k3y")).iter().any(|(_, value)| value.contains("k3y")));
            assert!(api.headers(None).iter().all(|(_, value)| !value.contains("k3y")));
            assert!(!api.body("m", &json!({"command": "x"})).contains("k3y"));
        }
    }
}
