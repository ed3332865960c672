//! `[review]`: the model that is asked about questions. Questions leave the machine, so only the user and
//! the administrator may configure a reviewer: no project, no session.
//!
//! A section counts as a whole: the last one applies. So no key is ever sent to an endpoint from another
//! file.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use stockade_model::{EndpointError, HttpEndpoint, RawText};

use crate::error::SectionError;
use crate::text::{ConfigBytes, ConfigDuration, ConfigPath, VariableName, parsed_form, text_form};

/// Longest time that a question waits for an opinion, in milliseconds.
const MAX_TIMEOUT_MS: u64 = 5_000;
/// Default number of calls for one session.
const DEFAULT_BUDGET_CALLS: u64 = 200;
/// Default number of bytes for one session, in both directions.
const DEFAULT_BUDGET_BYTES: u64 = 8 << 20;
/// Longest name of a model, in bytes.
const MAX_MODEL_BYTES: usize = 128;

/// A model that gives an opinion on questions before they are asked. Off without this section; not in
/// project configuration. The section of the last file that has one applies as a whole.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReviewSection {
    /// `false` turns off a reviewer of an earlier file. Default: `true`.
    pub enabled: Option<bool>,
    /// Protocol of the endpoint.
    pub api: Option<ReviewApi>,
    /// The whole URL for requests, e.g. `https://api.openai.com/v1/chat/completions`,
    /// `https://api.anthropic.com/v1/messages` or `http://127.0.0.1:11434/v1/chat/completions`. Plain HTTP
    /// to this machine only.
    pub endpoint: Option<EndpointText>,
    /// Name of the model at the endpoint.
    pub model: Option<ModelName>,
    /// The variable of the caller that contains the key. Without it and `key_file` no key is sent.
    pub key_env: Option<VariableName>,
    /// The file that contains the key: absolute or `~/...`, readable only by its owner. No run can read it.
    pub key_file: Option<ConfigPath>,
    /// File of trusted certificates (PEM), absolute or `~/...`, for the endpoint. Default: those that this
    /// machine trusts.
    pub certificates: Option<ConfigPath>,
    /// How long a question waits for an opinion, at most `5s`, which is the default.
    pub timeout: Option<ConfigDuration>,
    /// Budget of a session; without a session, of a run.
    pub budget: BudgetSection,
}

/// Budget of a session for opinions.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetSection {
    /// Number of questions that are sent. Default: 200.
    pub calls: Option<u64>,
    /// Bytes sent and received. Default: `8MiB`.
    pub bytes: Option<ConfigBytes>,
}

/// Protocol of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReviewApi {
    /// OpenAI's chat completions, and compatible protocols.
    Openai,
    /// Anthropic's messages, and compatible protocols.
    Anthropic,
}

/// URL of an HTTP service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointText(pub(crate) HttpEndpoint);

parsed_form!(EndpointText, |text: &str| text.parse().map_err(|why: EndpointError| why.to_string()));
text_form!(EndpointText, "^https?://", "A URL: `https://...`, or `http://...` to this machine.");

/// Name of a model: printable ASCII.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName(String);

fn parse_model(text: &str) -> Result<String, &'static str> {
    if text.is_empty() || text.len() > MAX_MODEL_BYTES || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("a model's name is printable ASCII without spaces, at most 128 characters");
    }
    Ok(text.to_owned())
}
parsed_form!(ModelName, parse_model);
text_form!(ModelName, "^[!-~]{1,128}$", "The name of a model.");

/// Settings of the reviewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewSettings {
    /// Protocol of the endpoint.
    pub api: ReviewApi,
    /// URL of the endpoint.
    pub endpoint: HttpEndpoint,
    /// Name of the model.
    pub model: String,
    /// Source of the key.
    pub key: ReviewKey,
    /// A file of certificates that replace those of the machine.
    pub certificates: Option<PathBuf>,
    /// How long a question waits, in milliseconds.
    pub timeout_ms: u64,
    /// Calls of one session.
    pub budget_calls: u64,
    /// Bytes of one session, in both directions.
    pub budget_bytes: u64,
}

/// Source of the key of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReviewKey {
    /// The endpoint requires no key.
    None,
    /// A variable of the caller.
    Variable(String),
    /// A file.
    File(PathBuf),
}

impl ReviewSection {
    /// Returns the settings of the section; `None` if it turns reviews off.
    pub(crate) fn to_settings(&self, home: &Path) -> Result<Option<ReviewSettings>, SectionError> {
        if self.enabled == Some(false) {
            return Ok(None);
        }
        let fail = |key: &str, why: &str, remedy| Err((key.to_owned(), why.to_owned(), remedy));
        let (Some(api), Some(EndpointText(endpoint)), Some(ModelName(model))) =
            (self.api, self.endpoint.clone(), self.model.clone())
        else {
            return fail("review", "a reviewer needs `api`, `endpoint` and `model`", "add what is missing");
        };
        let timeout_ms = self.timeout.map_or(MAX_TIMEOUT_MS, |timeout| timeout.0);
        if timeout_ms > MAX_TIMEOUT_MS {
            return fail("review.timeout", "a question waits at most `5s` for the reviewer", "shorten it");
        }
        let key = match (&self.key_env, &self.key_file) {
            (None, None) => ReviewKey::None,
            (Some(VariableName(name)), None) => ReviewKey::Variable(name.clone()),
            (None, Some(path)) => ReviewKey::File(in_place("review.key_file", path, home)?),
            (Some(_), Some(_)) => {
                return fail("review.key_file", "the key is in `key_env` or in `key_file`, not in both", "keep one");
            }
        };
        let certificates = self.certificates.as_ref();
        Ok(Some(ReviewSettings {
            api,
            endpoint,
            model,
            key,
            certificates: certificates.map(|path| in_place("review.certificates", path, home)).transpose()?,
            timeout_ms,
            budget_calls: self.budget.calls.unwrap_or(DEFAULT_BUDGET_CALLS),
            budget_bytes: self.budget.bytes.map_or(DEFAULT_BUDGET_BYTES, |bytes| bytes.0),
        }))
    }
}

/// Resolves a path, and refuses one in the workspace, because the workspace is not trusted.
pub(crate) fn in_place(key: &str, path: &ConfigPath, home: &Path) -> Result<PathBuf, SectionError> {
    match path {
        ConfigPath::Workspace(_) => {
            let why = "files of a workspace are not trusted for this".to_owned();
            Err((key.to_owned(), why, "write an absolute path, or `~/...`"))
        }
        path => Ok(path.resolve_path(home, home)),
    }
}

impl ReviewSettings {
    /// Returns the file that no run may read.
    pub(crate) fn secret_file(&self) -> Option<&Path> {
        match &self.key {
            ReviewKey::File(path) => Some(path),
            ReviewKey::None | ReviewKey::Variable(_) => None,
        }
    }

    /// Reports every value in configuration syntax.
    pub(crate) fn report_values(&self, line: &mut dyn FnMut(&str, String)) {
        let shown = |path: &Path| RawText::from(path).to_escaped();
        let api = match self.api {
            ReviewApi::Openai => "openai",
            ReviewApi::Anthropic => "anthropic",
        };
        line("review.api", api.to_owned());
        line("review.endpoint", self.endpoint.to_string());
        line("review.model", self.model.clone());
        match &self.key {
            ReviewKey::None => {}
            ReviewKey::Variable(name) => line("review.key_env", name.clone()),
            ReviewKey::File(path) => line("review.key_file", shown(path)),
        }
        if let Some(path) = &self.certificates {
            line("review.certificates", shown(path));
        }
        line("review.timeout", format!("{}ms", self.timeout_ms));
        line("review.budget.calls", self.budget_calls.to_string());
        line("review.budget.bytes", self.budget_bytes.to_string());
    }
}
