//! The examples in a rule, checked whenever the rule is read.

use std::path::Path;

use stockade_model::{Assessment, Host, HostError, HostPattern, TargetPattern, Tier};

use super::{Act, Circumstances, Match, Matcher, Rule, Scene, Subject};
use crate::file::{FileOperation, RuleSection};
use crate::text::ConfigPath;
use crate::words;

/// Directories for the examples. No path of an example depends on them, because the pattern and the example
/// have the same base.
const HOME: &str = "/home/user";
const WORKSPACE: &str = "/home/user/workspace";

/// Checks every example. The error names the key.
pub(super) fn check(rule: &Rule, section: &RuleSection) -> Result<(), (String, String)> {
    for (i, example) in section.matches.iter().enumerate() {
        if found(rule, example).map_err(|why| (format!("match[{i}]"), why))? != Match::Certain {
            return Err((format!("match[{i}]"), format!("the rule does not match its example `{example}`")));
        }
    }
    for (i, example) in section.not_match.iter().enumerate() {
        if found(rule, example).map_err(|why| (format!("not_match[{i}]"), why))? != Match::No {
            return Err((format!("not_match[{i}]"), format!("the rule matches its counter-example `{example}`")));
        }
    }
    Ok(())
}

fn found(rule: &Rule, example: &str) -> Result<Match, String> {
    let (home, workspace) = (Path::new(HOME), Path::new(WORKSPACE));
    let around = Circumstances::default();
    let scene =
        |subject| Scene { subject, cwd: workspace, workspace, home, session: None, around: &around, example: true };
    let of_act = |act| Ok(rule.speaks(&scene(Subject::Act(act))));
    match &rule.matcher {
        Matcher::Command { .. } => {
            let words = words::of_script(example.as_bytes());
            let assessment = Assessment::bare(Tier::Ask);
            Ok(rule.speaks(&scene(Subject::Command { words: &words, assessment: &assessment })))
        }
        Matcher::Tool { .. } | Matcher::Anything => {
            let (name, arguments) = tool_call(example)?;
            of_act(Act::Tool { name, arguments: &arguments })
        }
        Matcher::Files { .. } => {
            let (operation, path) = file_change(example, home, workspace)?;
            of_act(Act::File { path: &path, operation })
        }
        Matcher::Hosts { .. } => {
            let (host, port) = target(example)?;
            of_act(Act::Network { host: &host, port })
        }
    }
}

/// Parses a tool call: `NAME`, or `NAME {"argument": "..."}`.
///
/// # Errors
/// The reason, for the user.
pub fn tool_call(text: &str) -> Result<(&str, serde_json::Value), String> {
    let (name, arguments) = text.split_once(' ').unwrap_or((text, "{}"));
    match serde_json::from_str::<serde_json::Value>(arguments) {
        Ok(value) if value.is_object() && !name.is_empty() => Ok((name, value)),
        _ => {
            Err(format!("`{text}`: a tool call is a name, and its arguments as JSON, e.g. `fetch {{\"url\": \"x\"}}`"))
        }
    }
}

/// Parses a file change: `write ./path`, `create ~/x`, `delete /x`, `read /x`.
///
/// # Errors
/// The reason, for the user.
pub fn file_change(text: &str, home: &Path, workspace: &Path) -> Result<(FileOperation, std::path::PathBuf), String> {
    let wrong = || format!("`{text}`: a file change is `read`, `write`, `create` or `delete` and a path");
    let (operation, path) = text.split_once(' ').ok_or_else(wrong)?;
    let operation = match operation {
        "read" => FileOperation::Read,
        "write" => FileOperation::Write,
        "create" => FileOperation::Create,
        "delete" => FileOperation::Delete,
        _ => return Err(wrong()),
    };
    let path: ConfigPath = path.parse().map_err(|why| format!("`{text}`: {why}"))?;
    Ok((operation, path.resolve(home, workspace)))
}

/// Parses a target: `host`, `host:port`.
///
/// # Errors
/// The reason, for the user.
pub fn target(text: &str) -> Result<(Host, Option<u16>), String> {
    let wrong = || format!("`{text}`: a target is a host, and a port may follow, e.g. `pypi.org:443`");
    let pattern: TargetPattern = text.parse().map_err(|error: HostError| format!("{}: {}", wrong(), error.why()))?;
    let mut ports = pattern.ports();
    match (pattern.host(), ports.next(), ports.next()) {
        (HostPattern::Exactly(host), None, None) => Ok((host.clone(), None)),
        (HostPattern::Exactly(host), Some(range), None) if range.start() == range.end() => {
            Ok((host.clone(), Some(*range.start())))
        }
        _ => Err(wrong()),
    }
}
