//! The examples in a rule, checked whenever the rule is read.

use std::path::Path;

use stockade_model::{Assessment, Host, HostError, HostPattern, TargetPattern, Tier};

use super::{Act, PolicyRule, RequestContext, RuleInput, RuleKind, RuleMatch, RuleSubject};
use crate::file::{FileOperation, RuleSection};
use crate::text::{ConfigPath, parse_variant};
use crate::words;

/// Directories for the examples. No path of an example depends on them, because the pattern and the example
/// have the same base.
const EXAMPLE_HOME: &str = "/home/user";
const EXAMPLE_WORKSPACE: &str = "/home/user/workspace";

/// Checks every example. The error names the key.
pub(super) fn check_examples(rule: &PolicyRule, section: &RuleSection) -> Result<(), (String, String)> {
    let kinds = [
        ("match", &section.matches, RuleMatch::Certain, "the rule does not match its example"),
        ("not_match", &section.not_match, RuleMatch::No, "the rule matches its counter-example"),
    ];
    for (key, examples, expected, why) in kinds {
        for (i, example) in examples.iter().enumerate() {
            let at = format!("{key}[{i}]");
            match match_example(rule, example) {
                Ok(found) if found == expected => {}
                Ok(_) => return Err((at, format!("{why} `{example}`"))),
                Err(why) => return Err((at, why)),
            }
        }
    }
    Ok(())
}

fn match_example(rule: &PolicyRule, example: &str) -> Result<RuleMatch, String> {
    let (home, workspace) = (Path::new(EXAMPLE_HOME), Path::new(EXAMPLE_WORKSPACE));
    let around = RequestContext::default();
    let scene =
        |subject| RuleInput { subject, cwd: workspace, workspace, home, session: None, around: &around, example: true };
    let of_act = |act| Ok(rule.match_input(&scene(RuleSubject::Act(act))));
    match rule.kind {
        RuleKind::Command => {
            let words = words::of_script(example.as_bytes());
            let assessment = Assessment::without_findings(Tier::Ask);
            Ok(rule.match_input(&scene(RuleSubject::Command { words: &words, assessment: &assessment })))
        }
        RuleKind::Tool | RuleKind::Anything => {
            let (name, arguments) = tool_call(example)?;
            of_act(Act::Tool { name, arguments: &arguments })
        }
        RuleKind::File => {
            let (operation, path) = file_change(example, home, workspace)?;
            of_act(Act::File { path: &path, operation })
        }
        RuleKind::Host => {
            let (host, port) = parse_target(example)?;
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
    let operation = parse_variant(operation).ok_or_else(wrong)?;
    let path: ConfigPath = path.parse().map_err(|why| format!("`{text}`: {why}"))?;
    Ok((operation, path.resolve_path(home, workspace)))
}

/// Parses a target: `host`, `host:port`.
///
/// # Errors
/// The reason, for the user.
pub fn parse_target(text: &str) -> Result<(Host, Option<u16>), String> {
    let wrong = || format!("`{text}`: a target is a host, and a port may follow, e.g. `pypi.org:443`");
    let pattern: TargetPattern = text.parse().map_err(|error: HostError| format!("{}: {}", wrong(), error.reason()))?;
    let mut ports = pattern.ports();
    match (pattern.host(), ports.next(), ports.next()) {
        (HostPattern::Exactly(host), None, None) => Ok((host.clone(), None)),
        (HostPattern::Exactly(host), Some(range), None) if range.start() == range.end() => {
            Ok((host.clone(), Some(*range.start())))
        }
        _ => Err(wrong()),
    }
}
