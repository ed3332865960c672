//! Patterns of the programs that a run is asked about or refused.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::text_form::text_form;

/// Most argument words of one pattern.
const MAX_ARGUMENTS: usize = 63;
/// Longest pattern, in bytes: PATH_MAX of Linux (limits.h).
const MAX_PATTERN_BYTES: usize = 4096;

/// Programs that need approval or are refused. If a pattern of `ask` matches a program, the approver is
/// asked, unless the program was granted. If a pattern of `deny` matches, the program is refused whatever
/// was granted (L9).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExecRules {
    /// Programs that need approval; `exec PATH` grants one.
    pub ask: Vec<ProgramPattern>,
    /// Programs that are refused.
    pub deny: Vec<ProgramPattern>,
}

impl ExecRules {
    /// Returns whether every program may be run.
    pub fn is_empty(&self) -> bool {
        self.ask.is_empty() && self.deny.is_empty()
    }
}

/// Programs and the start of their arguments: `PROGRAM [ARGUMENT...]`, words separated by spaces.
///
/// The program is an absolute path, or a bare name that matches a program in any directory. In the name,
/// but not in the directory, each `*` stands for any text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProgramPattern {
    program: String,
    arguments: Vec<String>,
}

/// Reason why a text is not a pattern of programs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid program: {why}")]
pub struct ProgramPatternError {
    text: String,
    why: &'static str,
}

impl ProgramPattern {
    /// Returns the directory that must contain the program; `None` means any.
    pub fn directory(&self) -> Option<&str> {
        match self.program.rsplit_once('/')? {
            ("", _) => Some("/"),
            (directory, _) => Some(directory),
        }
    }

    /// Returns the program's name, in which each `*` stands for any text.
    pub fn name(&self) -> &str {
        self.program.rsplit('/').next().unwrap_or(&self.program)
    }

    /// Returns the words that the arguments must start with, without the program's own name.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }
}

impl fmt::Display for ProgramPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        self.arguments.iter().try_for_each(|word| write!(f, " {word}"))
    }
}

text_form!(ProgramPattern);

impl FromStr for ProgramPattern {
    type Err = ProgramPatternError;

    fn from_str(text: &str) -> Result<Self, ProgramPatternError> {
        let fail = |why| {
            let shown: String = text.chars().take(80).collect();
            ProgramPatternError { text: shown.escape_default().to_string(), why }
        };
        if text.len() > MAX_PATTERN_BYTES {
            return Err(fail("it is longer than 4096 bytes"));
        }
        if text.chars().any(char::is_control) {
            return Err(fail("it contains a control character"));
        }
        let mut words = text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned);
        let program = words.next().ok_or_else(|| fail("name a program, e.g. `git push` or `/usr/bin/ssh`"))?;
        let arguments: Vec<String> = words.collect();
        if arguments.len() > MAX_ARGUMENTS {
            return Err(fail("it has more than 63 arguments"));
        }
        let (directory, name) = program.rsplit_once('/').unwrap_or(("", &program));
        if program.contains('/') && !program.starts_with('/') {
            return Err(fail("a program is an absolute path or a bare name"));
        }
        if directory.contains('*') {
            return Err(fail("`*` is allowed in the name of a program only, not in its directory"));
        }
        if directory.split('/').skip(1).any(|part| matches!(part, "" | "." | "..")) {
            return Err(fail("its directory contains `.`, `..` or a double slash"));
        }
        if matches!(name, "" | "." | "..") {
            return Err(fail("it names a directory, not a program"));
        }
        Ok(Self { program, arguments })
    }
}

impl JsonSchema for ProgramPattern {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ProgramPattern".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A program and its first arguments: `PROGRAM [ARGUMENT...]`. The program is an absolute path or a bare name; in its name `*` matches any text.",
            "type": "string",
            "minLength": 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms() {
        for (text, shown, directory, name, arguments) in [
            ("git", "git", None, "git", 0),
            ("git  push ", "git push", None, "git", 1),
            ("/usr/bin/python*  -m pip", "/usr/bin/python* -m pip", Some("/usr/bin"), "python*", 2),
            ("/init", "/init", Some("/"), "init", 0),
        ] {
            let pattern: ProgramPattern = text.parse().unwrap();
            assert_eq!(pattern.to_string(), shown);
            assert_eq!((pattern.directory(), pattern.name()), (directory, name));
            assert_eq!(pattern.arguments().len(), arguments);
            assert_eq!(shown.parse::<ProgramPattern>().unwrap(), pattern);
        }
    }

    #[test]
    fn unclear_input_is_refused() {
        let many = "x ".repeat(65);
        let long = "x".repeat(5000);
        for bad in [
            "",
            " ",
            "bin/git",
            "./git",
            "/usr/*/git",
            "/usr/bin/",
            "/",
            "/a/../b",
            "/a//b",
            "..",
            "a\tb",
            &many,
            &long,
        ] {
            assert!(bad.parse::<ProgramPattern>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_profile_without_rules_is_unchanged() {
        assert!(ExecRules::default().is_empty());
        assert_eq!(serde_json::from_str::<ExecRules>("{}").unwrap(), ExecRules::default());
        assert!(serde_json::from_str::<ExecRules>(r#"{"allow": []}"#).is_err());
    }
}
