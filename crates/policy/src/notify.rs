//! `[notify]`: who is told what becomes of sandboxes that last. What leaves the machine,
//! and what runs on it, is for the person and whoever manages it to say: no project, no
//! session. One section counts as a whole, the last one's.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stockade_model::Endpoint;

use crate::review::{EndpointText, Wrong, in_place};
use crate::text::ConfigPath;

/// Most words of a program, and bytes of each.
const MAX_WORDS: usize = 64;
const MAX_WORD_BYTES: usize = 4_096;

/// Who is told what becomes of sandboxes that last; nobody unless this section is
/// there. Not in project configuration. The section of the last file that has one
/// counts, whole.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NotifySection {
    /// Of what. Default: all of it.
    pub on: Option<Vec<NotifyOn>>,
    /// A program of the host, by its absolute path, with its arguments. It gets the
    /// notice as one JSON object on standard input, runs as the person outside of every
    /// sandbox, and has 10 seconds.
    pub program: Option<Vec<String>>,
    /// Where the notice is posted as JSON, e.g. `https://hooks.example.com/stockade`.
    /// Plain HTTP to this machine only.
    pub webhook: Option<EndpointText>,
    /// Certificates as PEM, absolute or `~/...`, one of which the webhook's must come
    /// from. Default: those that this machine trusts.
    pub certificates: Option<ConfigPath>,
}

/// What somebody can be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NotifyOn {
    /// A sandbox went beyond a limit.
    Limit,
    /// Its processes are gone, and nobody destroyed it.
    Lost,
    /// It was destroyed.
    Ended,
}

impl NotifyOn {
    /// All there is.
    pub const ALL: [Self; 3] = [Self::Limit, Self::Lost, Self::Ended];

    /// As configuration and notices write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Lost => "lost",
            Self::Ended => "ended",
        }
    }
}

/// Who is told, and of what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotifySettings {
    /// Of what.
    pub on: Vec<NotifyOn>,
    /// A program of the host with its arguments; the first word is an absolute path.
    pub program: Option<Vec<String>>,
    /// Where notices are posted.
    pub webhook: Option<Endpoint>,
    /// A file of certificates that count in the place of the machine's.
    pub certificates: Option<PathBuf>,
}

impl NotifySection {
    /// What it means; `None` where nobody is told.
    pub(crate) fn settings(&self, home: &Path) -> Result<Option<NotifySettings>, Wrong> {
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

fn check_program(words: &[String]) -> Result<(), Wrong> {
    let wrong = |why, remedy| Err(("notify.program", why, remedy));
    match words.first() {
        None => wrong("a program has a path", "write `[\"/usr/bin/notify-send\", \"stockade\"]`, or leave it out"),
        Some(path) if !path.starts_with('/') => wrong("a program is named by its absolute path", "write it whole"),
        _ if words.len() > MAX_WORDS || words.iter().any(|word| word.len() > MAX_WORD_BYTES || word.contains('\0')) => {
            wrong("a program has at most 64 words of at most 4,096 bytes, none of them 0", "shorten it")
        }
        _ => Ok(()),
    }
}

impl NotifySettings {
    /// Every value, as a file would write it. The path of a webhook often is its secret.
    pub(crate) fn each(&self, line: &mut dyn FnMut(&str, String)) {
        line("notify.on", self.on.iter().map(|on| on.as_str()).collect::<Vec<_>>().join(", "));
        if let Some(program) = &self.program {
            line("notify.program", program.join(" ").escape_debug().to_string());
        }
        if let Some(webhook) = &self.webhook {
            line("notify.webhook", format!("{}:{}/...", webhook.host(), webhook.port()));
        }
        if let Some(path) = &self.certificates {
            line("notify.certificates", stockade_model::RawText::from(path.as_path()).escaped());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(text: &str) -> Result<Option<NotifySettings>, Wrong> {
        toml::from_str::<NotifySection>(text).unwrap().settings(Path::new("/home/me"))
    }

    #[test]
    fn nobody_is_told_unless_somebody_is_named() {
        assert_eq!(meaning("").unwrap(), None);
        assert_eq!(meaning(r#"on = ["limit"]"#).unwrap(), None);
        let all = meaning(r#"webhook = "https://hooks.example.com/secret""#).unwrap().unwrap();
        assert_eq!(all.on, NotifyOn::ALL);
        let mut lines = Vec::new();
        all.each(&mut |key, value| lines.push(format!("{key} = {value}")));
        assert_eq!(lines, ["notify.on = limit, lost, ended", "notify.webhook = hooks.example.com:443/..."]);
    }

    #[test]
    fn a_program_is_one_of_the_host_by_its_whole_name() {
        for bad in ["program = []", r#"program = ["notify-send"]"#, r#"program = ["/bin/x", "\u0000"]"#] {
            assert_eq!(meaning(bad).unwrap_err().0, "notify.program", "{bad}");
        }
        let told = meaning(r#"program = ["/usr/bin/notify-send", "stockade"]"#).unwrap().unwrap();
        assert_eq!(told.program.unwrap().len(), 2);
        assert_eq!(meaning("program = [\"/bin/x\"]\ncertificates = \"./x\"").unwrap_err().0, "notify.certificates");
        assert!(toml::from_str::<NotifySection>(r#"webhook = "http://hooks.example.com/x""#).is_err());
    }
}
