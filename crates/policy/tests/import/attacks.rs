//! Attacks on imports, as data in `attacks.toml`: rules of another tool, and what
//! that tool answers about acts near them.

use stockade_model::PolicyVerdict;
use stockade_policy::{FileOperation, ImportSource, ImportTool, SourceScope};

use super::probes::Probe;

/// Rules of a tool and acts.
pub struct Case {
    pub tool: ImportTool,
    pub why: String,
    pub sources: Vec<ImportSource>,
    pub acts: Vec<Act>,
}

/// One act, as it is written and as it is tried.
pub struct Act {
    pub text: String,
    pub probe: Probe,
    /// What the tool itself answers.
    pub theirs: PolicyVerdict,
}

/// Every case of the table.
pub fn cases() -> Vec<Case> {
    let table: toml::Table = include_str!("attacks.toml").parse().unwrap();
    table["case"].as_array().unwrap().iter().map(case).collect()
}

fn case(value: &toml::Value) -> Case {
    let text = |key: &str| value[key].as_str().unwrap().to_owned();
    let (tool, usual) = match value["tool"].as_str().unwrap() {
        "codex" => (ImportTool::Codex, "a.rules"),
        "claude" => (ImportTool::Claude, "settings.json"),
        _ => (ImportTool::Gemini, "a.toml"),
    };
    let file = |(i, file): (usize, &toml::Value)| {
        let of = |key: &str, other: &str| file.get(key).and_then(toml::Value::as_str).unwrap_or(other).to_owned();
        let usual_scope = if tool == ImportTool::Claude { "project" } else { "user" };
        let scope = SourceScope::from_name(&of("scope", usual_scope)).unwrap();
        ImportSource { name: format!("{i}-{}", of("name", usual)), text: of("text", ""), scope }
    };
    let sources = value["files"].as_array().unwrap().iter().enumerate().map(file).collect();
    let acts = value["acts"].as_array().unwrap().iter().map(|line| act(line.as_str().unwrap())).collect();
    Case { tool, why: text("why"), sources, acts }
}

/// `VERDICT $ COMMAND`, `VERDICT call NAME ARGUMENTS`, `VERDICT host NAME PORT` or
/// `VERDICT OPERATION PATH`.
fn act(line: &str) -> Act {
    let (verdict, text) = line.split_once(' ').unwrap();
    let theirs = match verdict {
        "allow" => PolicyVerdict::Allow,
        "ask" => PolicyVerdict::Ask,
        "deny" => PolicyVerdict::Deny,
        other => panic!("{other}: {line}"),
    };
    let (kind, rest) = text.split_once(' ').unwrap();
    let file = |operation| Probe::File(operation, rest.to_owned().into());
    let probe = match kind {
        "$" => Probe::Command(rest.to_owned().into()),
        "call" => {
            let (name, arguments) = rest.split_once(' ').unwrap_or((rest, "{}"));
            Probe::Tool(name.to_owned().into(), arguments.to_owned().into())
        }
        "host" => {
            let (host, port) = rest.split_once(' ').unwrap();
            Probe::Host(host.to_owned().into(), port.parse().unwrap())
        }
        "read" => file(FileOperation::Read),
        "write" => file(FileOperation::Write),
        "create" => file(FileOperation::Create),
        "delete" => file(FileOperation::Delete),
        other => panic!("{other}: {line}"),
    };
    Act { text: text.to_owned(), probe, theirs }
}
