//! What Gemini CLI's page on its policy engine says: the rule of the highest
//! priority that matches decides; a command is also taken apart and the strictest
//! of its parts counts; a redirection asks. Settings become rules of fixed
//! priorities.

use regex::Regex;
use serde_json::Value;
use stockade_model::PolicyVerdict;

use super::probes::Probe;

struct Rule {
    tool: String,
    server: Option<String>,
    arguments: Option<Regex>,
    decision: PolicyVerdict,
    priority: f64,
    redirects: bool,
    needs: bool,
}

fn escape(text: &str) -> String {
    regex::escape(text)
}

/// `"command":"PREFIX` and then a blank or the end.
fn prefix(text: &str) -> Regex {
    Regex::new(&format!("\"command\":\"{}(?:[\\s\"]|\\\\\")", escape(text))).unwrap()
}

fn texts(value: Option<&toml::Value>) -> Vec<String> {
    match value {
        Some(toml::Value::String(one)) => vec![one.clone()],
        Some(toml::Value::Array(several)) => several.iter().map(|text| text.as_str().unwrap().to_owned()).collect(),
        _ => Vec::new(),
    }
}

fn rules_of_policies(source: &str) -> Vec<Rule> {
    let file: toml::Table = source.parse().unwrap();
    let mut all = Vec::new();
    for rule in file.get("rule").and_then(toml::Value::as_array).into_iter().flatten() {
        let modes = texts(rule.get("modes"));
        if !modes.is_empty() && !modes.contains(&"default".to_owned()) {
            continue;
        }
        if rule.get("interactive").and_then(toml::Value::as_bool) == Some(false) {
            continue;
        }
        let decision = match rule["decision"].as_str().unwrap() {
            "allow" => PolicyVerdict::Allow,
            "deny" => PolicyVerdict::Deny,
            _ => PolicyVerdict::Ask,
        };
        let server = rule.get("mcpName").and_then(toml::Value::as_str).map(str::to_owned);
        let mut patterns: Vec<Option<Regex>> =
            texts(rule.get("commandPrefix")).iter().map(|text| Some(prefix(text))).collect();
        if let Some(text) = rule.get("commandRegex").and_then(toml::Value::as_str) {
            patterns.push(Some(Regex::new(&format!("\"command\":\"{text}")).unwrap()));
        }
        if let Some(text) = rule.get("argsPattern").and_then(toml::Value::as_str) {
            patterns.push(Some(Regex::new(text).unwrap()));
        }
        if patterns.is_empty() {
            patterns.push(None);
        }
        for tool in texts(rule.get("toolName")) {
            for arguments in &patterns {
                all.push(Rule {
                    tool: tool.clone(),
                    server: server.clone(),
                    arguments: arguments.clone(),
                    decision,
                    priority: rule["priority"].as_integer().unwrap() as f64 / 1000.0,
                    redirects: rule.get("allowRedirection").and_then(toml::Value::as_bool) == Some(true),
                    // Neither a subagent nor a tool's annotations are there.
                    needs: rule.get("subagent").is_some() || rule.get("toolAnnotations").is_some(),
                });
            }
        }
    }
    all
}

fn rules_of_settings(source: &str) -> Vec<Rule> {
    let plain: String = source.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let plain = Regex::new(r",(\s*[\]}])").unwrap().replace_all(&plain, "$1").into_owned();
    let settings: Value = serde_json::from_str(&plain).unwrap();
    let mut all = Vec::new();
    let mut push = |tool: &str, server: Option<&str>, arguments, decision, priority| {
        let tool = if tool == "ShellTool" { "run_shell_command" } else { tool };
        let server = server.map(str::to_owned);
        all.push(Rule { tool: tool.into(), server, arguments, decision, priority, redirects: false, needs: false });
    };
    let list = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let either = |new: &Value, old: &Value| if new.is_null() { old.clone() } else { new.clone() };
    let tools = &settings["tools"];
    for name in list(&settings["mcp"]["excluded"]) {
        push("*", Some(&name), None, PolicyVerdict::Deny, 0.9);
    }
    for tool in list(&either(&tools["exclude"], &settings["excludeTools"])) {
        push(&tool, None, None, PolicyVerdict::Deny, 0.4);
    }
    for tool in list(&tools["confirmationRequired"]) {
        push(&tool, None, None, PolicyVerdict::Ask, 0.35);
    }
    let form = Regex::new(r"^([a-zA-Z0-9_-]+)\((.*)\)$").unwrap();
    let core = either(&tools["core"], &settings["coreTools"]);
    for (lists, priority, narrows) in
        [(either(&tools["allowed"], &settings["allowedTools"]), 0.3, true), (core.clone(), 0.25, false)]
    {
        let mut narrowed = false;
        for tool in list(&lists) {
            match form.captures(&tool) {
                Some(parts) if matches!(&parts[1], "run_shell_command" | "ShellTool") => {
                    narrowed = true;
                    push(&parts[1], None, Some(prefix(&parts[2])), PolicyVerdict::Allow, priority);
                }
                Some(parts) => push(&parts[1], None, None, PolicyVerdict::Allow, priority),
                None => push(&tool, None, None, PolicyVerdict::Allow, priority),
            }
        }
        if narrows && narrowed {
            push("run_shell_command", None, None, PolicyVerdict::Deny, priority - 0.01);
        }
    }
    if !core.is_null() {
        push("*", None, None, PolicyVerdict::Deny, 0.24);
    }
    for (name, server) in settings["mcpServers"].as_object().into_iter().flatten() {
        if server["trust"] == true {
            push("*", Some(name), None, PolicyVerdict::Allow, 0.2);
        }
        for tool in list(&server["excludeTools"]) {
            push(&tool, Some(name), None, PolicyVerdict::Deny, 0.9);
        }
    }
    for name in list(&settings["mcp"]["allowed"]) {
        push("*", Some(&name), None, PolicyVerdict::Allow, 0.1);
    }
    all
}

/// The server of `mcp_server_tool`.
fn server_of(name: &str) -> Option<&str> {
    name.strip_prefix("mcp_")?.split_once('_').map(|(server, _)| server)
}

fn matches(rule: &Rule, name: &str, arguments: &str) -> bool {
    if rule.needs {
        return false;
    }
    let server = server_of(name);
    match rule.server.as_deref() {
        Some("*") if server.is_none() => return false,
        Some(expected) if expected != "*" && server != Some(expected) => return false,
        _ => {}
    }
    let full = |expected: &str| rule.server.as_ref().map(|server| format!("mcp_{server}_{expected}"));
    let is_tool = rule.tool == "*"
        || rule.tool == name
        || full(&rule.tool).as_deref() == Some(name)
        || rule.tool.strip_suffix('*').is_some_and(|front| front.starts_with("mcp_") && name.starts_with(front));
    is_tool && rule.arguments.as_ref().is_none_or(|pattern| pattern.is_match(arguments))
}

fn decide_call(rules: &[Rule], name: &str, arguments: &str) -> Option<(PolicyVerdict, bool)> {
    rules.iter().find(|rule| matches(rule, name, arguments)).map(|rule| (rule.decision, rule.redirects))
}

fn parts(script: &str) -> Vec<String> {
    let (mut all, mut quoted) = (vec![String::new()], None);
    for c in script.chars() {
        match (quoted, c) {
            (Some(q), c) if c == q => quoted = None,
            (None, '\'' | '"') => quoted = Some(c),
            (None, '\n' | ';' | '&' | '|') => {
                all.push(String::new());
                continue;
            }
            _ => {}
        }
        all.last_mut().unwrap().push(c);
    }
    all.into_iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

fn decide_command(rules: &[Rule], script: &str) -> PolicyVerdict {
    let arguments = |command: &str| format!("{{\"command\":{}}}", serde_json::to_string(command).unwrap());
    let call = |command: &str| {
        let found = decide_call(rules, "run_shell_command", &arguments(command));
        let (verdict, redirects) = found.unwrap_or((PolicyVerdict::Ask, false));
        let downgraded = verdict == PolicyVerdict::Allow && command.contains(['>', '<']) && !redirects;
        if downgraded { PolicyVerdict::Ask } else { verdict }
    };
    let mut worst = call(script);
    for part in parts(script) {
        worst = worst.max(call(&part));
        // What a shell runs is looked at as well.
        for shell in ["bash -c ", "sh -c "] {
            if let Some(inner) = part.strip_prefix(shell) {
                worst = worst.max(decide_command(rules, inner.trim_matches('\'')));
            }
        }
    }
    for (open, close) in [("$(", ")"), ("`", "`")] {
        if let Some((_, rest)) = script.split_once(open)
            && let Some((inner, _)) = rest.split_once(close)
        {
            worst = worst.max(decide_command(rules, inner));
        }
    }
    worst
}

pub fn decide(source: &str) -> Box<dyn Fn(&Probe) -> PolicyVerdict> {
    let mut rules =
        if source.trim_start().starts_with('{') { rules_of_settings(source) } else { rules_of_policies(source) };
    rules.sort_by(|a, b| b.priority.total_cmp(&a.priority));
    Box::new(move |probe| decide_probe(&rules, probe))
}

fn decide_probe(rules: &[Rule], probe: &Probe) -> PolicyVerdict {
    match probe {
        Probe::Command(script) => decide_command(rules, script),
        Probe::Tool(name, arguments) => {
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            decide_call(rules, name, &arguments.to_string()).map_or(PolicyVerdict::Ask, |(verdict, _)| verdict)
        }
        _ => PolicyVerdict::Ask,
    }
}
