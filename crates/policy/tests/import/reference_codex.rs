//! What Codex's execpolicy README says: every prefix rule that matches speaks,
//! the strictest decides; an absolute program falls back to rules for its name
//! unless `host_executable` lists others. A script is taken apart where it is
//! plain commands; `bash -c` of a plain script is that script.
//!
//! Reads the files by its own means: as JSON, after small replacements.

use serde_json::Value;
use stockade_model::PolicyVerdict;

use super::probes::Probe;

fn json_of(source: &str) -> Vec<(String, Value)> {
    // Comments, and strings that document.
    let mut text: String =
        source.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n");
    while let (Some(from), Some(to)) = (text.find("\"\"\""), text.rfind("\"\"\"")) {
        text.replace_range(from..to + 3, "");
    }
    // Strings in single quotes, where a file writes them so.
    if text.contains("['") {
        text = text.replace('\'', "\"");
    }
    // Names bound to lists, and what `+` joins.
    let binding = regex::Regex::new(r"(?m)^([A-Z]+) = (.*)$").unwrap();
    let bound: Vec<(String, String)> =
        binding.captures_iter(&text).map(|c| (c[1].to_owned(), c[2].to_owned())).collect();
    let mut text = binding.replace_all(&text, "").into_owned();
    for (name, value) in bound {
        text = text.replace(&name, &value);
    }
    let text = text.replace("] + [", ", ").replace("\" + \"", "");
    let call = regex::Regex::new(r"(?ms)^(\w+)\((.*?)\)$").unwrap();
    let keyword = regex::Regex::new(
        r"\b(pattern|decision|justification|match|not_match|host|protocol|name|paths)\s*=\s*([\[\x22])",
    )
    .unwrap();
    let comma = regex::Regex::new(r",(\s*[\]}])").unwrap();
    call.captures_iter(&text)
        .map(|found| {
            let mut arguments = found[2].trim().trim_end_matches(',').to_owned();
            if arguments.starts_with('[') {
                // Positional: the pattern, then the decision.
                let end = arguments.rfind("], \"").unwrap() + 1;
                arguments = format!("pattern = {}, decision = {}", &arguments[..end], &arguments[end + 2..]);
            }
            let object = format!("{{{}}}", keyword.replace_all(&arguments, "\"$1\": $2"));
            let object = comma.replace_all(&object, "$1").into_owned();
            (found[1].to_owned(), serde_json::from_str(&object).unwrap_or_else(|e| panic!("{e}: {object}")))
        })
        .collect()
}

fn effect(rule: &Value) -> PolicyVerdict {
    match rule["decision"].as_str() {
        None | Some("allow") => PolicyVerdict::Allow,
        Some("prompt") => PolicyVerdict::Ask,
        _ => PolicyVerdict::Deny,
    }
}

fn is(pattern: &Value, word: &str) -> bool {
    match pattern {
        Value::String(one) => one == word,
        Value::Array(several) => several.iter().any(|one| one == word),
        _ => false,
    }
}

fn prefix_matches(rule: &Value, command: &[String]) -> bool {
    let pattern = rule["pattern"].as_array().unwrap();
    command.len() >= pattern.len() && pattern.iter().zip(command).all(|(expected, word)| is(expected, word))
}

fn command_decision(rules: &[(String, Value)], command: &[String]) -> PolicyVerdict {
    let matching = |command: &[String]| {
        let found = rules.iter().filter(|(name, rule)| name == "prefix_rule" && prefix_matches(rule, command));
        found.map(|(_, rule)| effect(rule)).max()
    };
    if let Some(verdict) = matching(command) {
        return verdict;
    }
    // Basename fallback, as resolution of host executables has it.
    let program = &command[0];
    if program.starts_with('/') {
        let name = program.rsplit('/').next().unwrap().to_owned();
        let listed = rules.iter().find(|(call, rule)| call == "host_executable" && rule["name"] == name.as_str());
        let home = |path: &str| path.replace("~/", "/home/u/");
        let may = listed.is_none_or(|(_, rule)| {
            rule["paths"].as_array().unwrap().iter().any(|path| home(path.as_str().unwrap()) == *program)
        });
        if may {
            let mut named = command.to_vec();
            named[0] = name;
            return matching(&named).unwrap_or(PolicyVerdict::Ask);
        }
    }
    PolicyVerdict::Ask
}

/// Words of a script of plain commands; anything else is one `bash -lc SCRIPT`.
fn commands(script: &str) -> Vec<Vec<String>> {
    let whole = vec![vec!["bash".to_owned(), "-lc".to_owned(), script.to_owned()]];
    if script.contains(['$', '`', '>', '<', '*', '(', '{', '\\', '#', '=']) && !script.contains("if=") {
        return whole;
    }
    let mut all = vec![Vec::new()];
    let (mut word, mut quoted, mut any) = (String::new(), None, false);
    for c in script.chars().chain([' ']) {
        match (quoted, c) {
            (Some(q), c) if c == q => quoted = None,
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => (quoted, any) = (Some(c), true),
            (None, ' ' | '\n' | ';' | '&' | '|') => {
                if any || !word.is_empty() {
                    all.last_mut().unwrap().push(std::mem::take(&mut word));
                    any = false;
                }
                if c != ' ' && !all.last().unwrap().is_empty() {
                    all.push(Vec::new());
                }
            }
            (None, c) => word.push(c),
        }
    }
    all.retain(|command: &Vec<String>| !command.is_empty());
    all
}

pub fn decide(source: &str) -> Box<dyn Fn(&Probe) -> PolicyVerdict> {
    let rules = json_of(source);
    Box::new(move |probe| decide_probe(&rules, probe))
}

fn decide_probe(rules: &[(String, Value)], probe: &Probe) -> PolicyVerdict {
    match probe {
        Probe::Command(script) => {
            let verdicts = commands(script).into_iter().map(|command| command_decision(rules, &command));
            verdicts.max().unwrap_or(PolicyVerdict::Ask)
        }
        Probe::Host(host, port) => {
            let protocol = |rule: &Value| match rule["protocol"].as_str() {
                Some("http") => *port == 80,
                Some("https") => *port == 443,
                Some("socks5_udp") => false,
                _ => true,
            };
            let found = rules
                .iter()
                .filter(|(name, rule)| name == "network_rule" && rule["host"] == host.as_ref() && protocol(rule));
            found.map(|(_, rule)| effect(rule)).max().unwrap_or(PolicyVerdict::Ask)
        }
        _ => PolicyVerdict::Ask,
    }
}
