//! `[notify]`: receivers of notices about persistent sandboxes. Notices leave the machine or run a program
//! on it, so only the user and the administrator may configure them: no project, no session. A section
//! counts as a whole: the last one applies.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stockade_model::HttpEndpoint;

use crate::error::SectionError;
use crate::review::{EndpointText, in_place};
use crate::text::ConfigPath;

/// Most words of a program, and most bytes of each word.
const MAX_WORDS: usize = 64;
const MAX_WORD_BYTES: usize = 4_096;

/// Receivers of notices about persistent sandboxes. Without this section no notice is sent. Not in project
/// configuration. The section of the last file that has one applies as a whole.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NotifySection {
    /// Events that cause a notice. Default: all.
    pub on: Option<Vec<NotifyOn>>,
    /// A program of the host, by its absolute path, with its arguments. The program receives the notice as
    /// one JSON object on standard input. It runs as the user outside of every sandbox, and has a time-out
    /// of 10 seconds.
    pub program: Option<Vec<String>>,
    /// URL to which the notice is posted as JSON, e.g. `https://hooks.example.com/stockade`. Plain HTTP to
    /// this machine only.
    pub webhook: Option<EndpointText>,
    /// File of trusted certificates (PEM), absolute or `~/...`, for the webhook. Default: those that this
    /// machine trusts.
    pub certificates: Option<ConfigPath>,
}

/// Event that causes a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NotifyOn {
    /// The sandbox exceeded a limit.
    Limit,
    /// The processes of the sandbox ended without a request to destroy it.
    Lost,
    /// The sandbox was destroyed.
    Ended,
}

impl NotifyOn {
    /// All events.
    pub const ALL: [Self; 3] = [Self::Limit, Self::Lost, Self::Ended];

    /// Returns the name as in configuration and notices.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Lost => "lost",
            Self::Ended => "ended",
        }
    }
}

/// Receivers of notices, and the events that cause them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotifySettings {
    /// Events that cause a notice.
    pub on: Vec<NotifyOn>,
    /// A program of the host with its arguments; the first word is an absolute path.
    pub program: Option<Vec<String>>,
    /// URL to which notices are posted.
    pub webhook: Option<HttpEndpoint>,
    /// A file of certificates that replace those of the machine.
    pub certificates: Option<PathBuf>,
}

impl NotifySection {
    /// Returns the settings of the section; `None` if no notice is sent.
    pub(crate) fn to_settings(&self, home: &Path) -> Result<Option<NotifySettings>, SectionError> {
        if let Some(words) = &self.program {
            check_program(words)?;
        }
        if self.program.is_none() && self.webhook.is_none() {
            return Ok(None);
        }
        let certificates = self.certificates.as_ref();
        Ok(Some(NotifySettings {
            on: self.on.clone().unwrap_or_else(|| NotifyOn::ALL.to_vec()),
            program: self.program.clone(),
            webhook: self.webhook.clone().map(|EndpointText(endpoint)| endpoint),
            certificates: certificates.map(|path| in_place("notify.certificates", path, home)).transpose()?,
        }))
    }
}

fn check_program(words: &[String]) -> Result<(), SectionError> {
    let wrong = |why: &str, remedy| Err(("notify.program".to_owned(), why.to_owned(), remedy));
    match words.first() {
        None => wrong("a program needs a path", "write `[\"/usr/bin/notify-send\", \"stockade\"]`, or leave it out"),
        Some(path) if !path.starts_with('/') => wrong("a program is named by its absolute path", "write it whole"),
        _ if words.len() > MAX_WORDS || words.iter().any(|word| word.len() > MAX_WORD_BYTES || word.contains('\0')) => {
            wrong("a program has at most 64 words of at most 4,096 bytes, without NUL bytes", "shorten it")
        }
        _ => Ok(()),
    }
}

impl NotifySettings {
    /// Reports every value in configuration syntax. Often the path of a webhook is its secret, so it is
    /// omitted.
    pub(crate) fn report_values(&self, line: &mut dyn FnMut(&str, String)) {
        line("notify.on", self.on.iter().map(|on| on.as_str()).collect::<Vec<_>>().join(", "));
        if let Some(program) = &self.program {
            line("notify.program", program.join(" ").escape_debug().to_string());
        }
        if let Some(webhook) = &self.webhook {
            line("notify.webhook", format!("{}:{}/...", webhook.host(), webhook.port()));
        }
        if let Some(path) = &self.certificates {
            line("notify.certificates", stockade_model::RawText::from(path.as_path()).to_escaped());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_settings(text: &str) -> Result<Option<NotifySettings>, SectionError> {
        toml::from_str::<NotifySection>(text).unwrap().to_settings(Path::new("/home/me"))
    }

    #[test]
    fn no_notification_unless_a_recipient_is_configured() {
        assert_eq!(parse_settings("").unwrap(), None);
        assert_eq!(parse_settings(r#"on = ["limit"]"#).unwrap(), None);
        let all = parse_settings(r#"webhook = "https://hooks.example.com/secret""#).unwrap().unwrap();
        assert_eq!(all.on, NotifyOn::ALL);
        let mut lines = Vec::new();
        all.report_values(&mut |key, value| lines.push(format!("{key} = {value}")));
        assert_eq!(lines, ["notify.on = limit, lost, ended", "notify.webhook = hooks.example.com:443/..."]);
    }

    #[test]
    fn a_program_is_one_of_the_host_by_its_whole_name() {
        for bad in ["program = []", r#"program = ["notify-send"]"#, r#"program = ["/bin/x", "\u0000"]"#] {
            assert_eq!(parse_settings(bad).unwrap_err().0, "notify.program", "{bad}");
        }
        let settings = parse_settings(r#"program = ["/usr/bin/notify-send", "stockade"]"#).unwrap().unwrap();
        assert_eq!(settings.program.unwrap().len(), 2);
        assert_eq!(
            parse_settings("program = [\"/bin/x\"]\ncertificates = \"./x\"").unwrap_err().0,
            "notify.certificates"
        );
        assert!(toml::from_str::<NotifySection>(r#"webhook = "http://hooks.example.com/x""#).is_err());
    }
}
