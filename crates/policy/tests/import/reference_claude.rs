//! What Claude Code's page on permissions says: deny, then ask, then allow, the
//! first that matches; text patterns with `*` over each command of a compound
//! one, after known wrappers were taken off; gitignore anchors for paths.

use serde_json::Value;
use stockade_model::PolicyVerdict;
use stockade_policy::FileOperation;

use super::probes::{HOME, Probe, WORKSPACE};

/// A pattern of `*` over text: its parts, one behind the other.
fn glob(pattern: &str, text: &str) -> bool {
    let parts: Vec<&str> = pattern.split('*').collect();
    let [first, middle @ .., last] = parts.as_slice() else { return pattern == text };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn bash_matches(specifier: Option<&str>, command: &str) -> bool {
    let Some(pattern) = specifier.filter(|text| !matches!(*text, "*" | "")) else { return true };
    let pattern = match pattern.strip_suffix(":*") {
        Some(front) => format!("{front} *"),
        None => pattern.to_owned(),
    };
    match pattern.strip_suffix(" *") {
        // Behind another `*` the last one is a word.
        Some(front) => (!front.contains('*') && glob(front, command)) || glob(&pattern, command),
        None => glob(&pattern, command),
    }
}

/// The commands of a compound one, quotes respected.
fn split(script: &str) -> Vec<String> {
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
    all.into_iter().map(|command| command.trim().to_owned()).filter(|command| !command.is_empty()).collect()
}

fn without_wrappers(command: &str) -> String {
    let mut words: Vec<&str> = command.split(' ').collect();
    loop {
        match words.as_slice() {
            ["timeout", duration, _, ..] if duration.starts_with(|c: char| c.is_ascii_digit()) => words.drain(..2),
            ["time" | "nohup" | "nice", second, ..] if !second.starts_with('-') => words.drain(..1),
            ["stdbuf", option, _, ..] if option.starts_with('-') => words.drain(..2),
            ["xargs", second, ..] if !second.starts_with('-') => words.drain(..1),
            _ => return words.join(" "),
        };
    }
}

fn path_matches(pattern: &str, path: &str) -> bool {
    let anchored = if let Some(rest) = pattern.strip_prefix("//") {
        format!("/{rest}")
    } else if let Some(rest) = pattern.strip_prefix("~/") {
        format!("{HOME}/{rest}")
    } else {
        format!("{WORKSPACE}/{}", pattern.trim_start_matches("./").trim_start_matches('/'))
    };
    let expression =
        regex::escape(&anchored).replace("/\\*\\*/", "/(?:.*/)?").replace("/\\*\\*", "/.+").replace("\\*", "[^/]*");
    // What lies in what is named is meant as well.
    regex::Regex::new(&format!("^{expression}(?:/.*)?$")).unwrap().is_match(path)
}

fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap();
    authority.rsplit('@').next().unwrap().split(':').next().unwrap()
}

fn rule_matches(rule: &str, probe: &Probe, command: &str) -> bool {
    let (tool, specifier) = match rule.split_once('(') {
        Some((tool, rest)) => (tool, Some(rest.trim_end_matches(')'))),
        None => (rule, None),
    };
    match probe {
        Probe::Command(_) => tool == "Bash" && bash_matches(specifier, command),
        Probe::Tool(name, arguments) => {
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            match (name.as_ref(), specifier) {
                ("WebFetch", Some(domain)) if tool == "WebFetch" => {
                    domain.strip_prefix("domain:") == Some(host_of(arguments["url"].as_str().unwrap()))
                }
                ("Agent", Some(agent)) if tool == "Agent" || tool == "Task" => arguments["subagent_type"] == agent,
                (name, None) => tool == name || glob(tool, name) || name.starts_with(&format!("{tool}__")),
                _ => false,
            }
        }
        Probe::File(operation, path) => {
            let reads = *operation == FileOperation::Read;
            let is_tool = if reads { tool == "Read" } else { matches!(tool, "Edit" | "Write") };
            is_tool && specifier.is_none_or(|pattern| path_matches(pattern, path))
        }
        Probe::Host(..) => false,
    }
}

/// Domains bind commands where the sandbox is on: the lists, and the domains of
/// `WebFetch` rules.
fn host_decision(settings: &Value, host: &str) -> PolicyVerdict {
    if settings["sandbox"]["enabled"] != true {
        return PolicyVerdict::Ask;
    }
    let domain = |pattern: &str| match pattern.strip_prefix("*.") {
        Some(rest) => host.strip_suffix(rest).is_some_and(|front| front.ends_with('.')),
        None => pattern == host,
    };
    let lists = |list: &Value| list.as_array().into_iter().flatten().any(|entry| domain(entry.as_str().unwrap()));
    let fetches = |list: &str| {
        let rules = settings["permissions"][list].as_array();
        let domains = rules.into_iter().flatten().filter_map(|rule| rule.as_str()?.strip_prefix("WebFetch(domain:"));
        domains.map(|rest| rest.trim_end_matches(')')).any(domain)
    };
    let network = &settings["sandbox"]["network"];
    if lists(&network["deniedDomains"]) || fetches("deny") {
        PolicyVerdict::Deny
    } else if fetches("ask") {
        PolicyVerdict::Ask
    } else if lists(&network["allowedDomains"]) || fetches("allow") {
        PolicyVerdict::Allow
    } else {
        PolicyVerdict::Ask
    }
}

pub fn decide(source: &str) -> Box<dyn Fn(&Probe) -> PolicyVerdict> {
    let settings: Value = serde_json::from_str(source).unwrap();
    Box::new(move |probe| decide_probe(&settings, probe))
}

fn decide_probe(settings: &Value, probe: &Probe) -> PolicyVerdict {
    if let Probe::Host(host, _) = probe {
        let found = host_decision(settings, host);
        let refuses = found == PolicyVerdict::Ask && settings["permissions"]["defaultMode"] == "dontAsk";
        return if refuses { PolicyVerdict::Deny } else { found };
    }
    let rules = |list: &str| -> Vec<String> {
        let rules = settings["permissions"][list].as_array();
        rules.into_iter().flatten().map(|rule| rule.as_str().unwrap().to_owned()).collect()
    };
    // Reading needs no agreement there.
    let reads = matches!(probe, Probe::File(FileOperation::Read, _));
    let never_asks = settings["permissions"]["defaultMode"] == "dontAsk" && !reads;
    let otherwise = if never_asks { PolicyVerdict::Deny } else { PolicyVerdict::Ask };
    let parts: Vec<String> = match probe {
        Probe::Command(script) => split(script).iter().map(|command| without_wrappers(command)).collect(),
        _ => vec![String::new()],
    };
    // A redirection is a power of its own, which no rule for the command gives.
    let redirects = matches!(probe, Probe::Command(script) if script.contains(['>', '<', '$', '`']));
    let one = |part: &String| {
        let any = |list: &str| rules(list).iter().any(|rule| rule_matches(rule, probe, part));
        if any("deny") {
            PolicyVerdict::Deny
        } else if any("ask") {
            PolicyVerdict::Ask
        } else if any("allow") && !redirects {
            PolicyVerdict::Allow
        } else {
            otherwise
        }
    };
    parts.iter().map(one).max().unwrap_or(otherwise)
}
