//! Importer for Codex `.rules` files: `prefix_rule`, `network_rule`, `host_executable`, as the README of
//! codex-rs/execpolicy (2026) documents them.
//!
//! In both tools every matching rule counts and the strictest decides, and a rule's first word is the
//! program. A program given by its path falls back to the rules for its name; `host_executable` limits the
//! paths that do.

use std::collections::BTreeMap;

use stockade_model::{Host, Verdict};

use super::json::Fault;
use super::mistakes::Mistakes;
use super::starlark::{self, Call, Value};
use super::{Carried, Entry, Imported, Source, Tool, plain_words};
use crate::draft::DraftRule;
use crate::error::{ConfigError, Place};
use crate::file::ProvenanceSection;
use crate::pattern::{Word, split_port};
use crate::rules::joined;

pub(super) fn import(sources: &[Source]) -> Result<Imported, ConfigError> {
    let mut mistakes = Mistakes::new(Tool::Codex);
    let mut files = Vec::new();
    let mut hosts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources {
        match starlark::read(&source.text) {
            Ok(calls) if calls.is_empty() => {
                let why = "it holds no rule of Codex's".to_owned();
                mistakes.add(source, vec![Fault { at: Place { line: 1, column: 1 }, why }]);
            }
            Ok(calls) => files.push((source, calls, Vec::new())),
            Err(wrong) => mistakes.add(source, vec![wrong]),
        }
    }
    for (_, calls, faults) in &mut files {
        for call in calls.iter().filter(|call| call.name == "host_executable") {
            match host_executable(call) {
                Ok((name, paths)) => _ = hosts.insert(name, paths),
                Err(wrong) => faults.push(wrong),
            }
        }
    }
    let mut imported = Imported::default();
    for (source, calls, mut faults) in files {
        for call in &calls {
            let entry = Entry::new(&source.name, call.at, &shown(source, call.at));
            let read = match call.name.as_str() {
                "prefix_rule" => prefix_rule(call, &entry, &hosts, &mut imported),
                "network_rule" => network_rule(call, &entry, &mut imported),
                // Read before, because rules above it also apply to its paths.
                "host_executable" => Ok(()),
                other => Err(Fault { at: call.at, why: format!("there is no function `{other}`") }),
            };
            faults.extend(read.err());
        }
        mistakes.add(source, faults);
    }
    mistakes.finish(sources).map(|()| imported)
}

fn shown(source: &Source, at: Place) -> String {
    source.text.lines().nth(at.line - 1).unwrap_or_default().trim().to_owned()
}

/// Returns the arguments of a call by the names of its parameters.
fn arguments<'a>(call: &'a Call, parameters: &[&str]) -> Result<BTreeMap<String, &'a Value>, Fault> {
    let mut found: BTreeMap<String, &Value> = BTreeMap::new();
    for (i, value) in call.positional.iter().enumerate() {
        let Some(name) = parameters.get(i) else {
            return Err(Fault { at: value.at, why: format!("`{}` takes {} arguments", call.name, parameters.len()) });
        };
        found.insert((*name).to_owned(), value);
    }
    for (at, name, value) in &call.named {
        if !parameters.contains(&name.as_str()) {
            let known = parameters.join("`, `");
            return Err(Fault { at: *at, why: format!("`{}` has no `{name}`; it has `{known}`", call.name) });
        }
        if found.insert(name.clone(), value).is_some() {
            return Err(Fault { at: *at, why: format!("`{name}` stands here twice") });
        }
    }
    found.retain(|_, value| value.kind != starlark::Kind::None);
    Ok(found)
}

fn needed<'a>(call: &Call, found: &BTreeMap<String, &'a Value>, name: &str) -> Result<&'a Value, Fault> {
    found.get(name).copied().ok_or_else(|| Fault { at: call.at, why: format!("`{}` needs `{name}`", call.name) })
}

fn text(value: &Value) -> Result<&str, Fault> {
    value.text().ok_or_else(|| Fault { at: value.at, why: format!("expected a string, found {}", value.kind_name()) })
}

fn list(value: &Value) -> Result<&[Value], Fault> {
    value.list().ok_or_else(|| Fault { at: value.at, why: format!("expected a list, found {}", value.kind_name()) })
}

fn effect_of(value: Option<&&Value>, also_deny: bool) -> Result<Verdict, Fault> {
    let Some(value) = value else { return Ok(Verdict::Allow) };
    match text(value)? {
        "allow" => Ok(Verdict::Allow),
        "prompt" => Ok(Verdict::Ask),
        "forbidden" => Ok(Verdict::Deny),
        "deny" if also_deny => Ok(Verdict::Deny),
        other => Err(Fault { at: value.at, why: format!("`{other}`: a decision is `allow`, `prompt` or `forbidden`") }),
    }
}

fn justification_of(value: Option<&&Value>, entry: &Entry<'_>) -> Result<String, Fault> {
    match value {
        None => Ok(format!("imported from {}", entry.origin())),
        Some(value) if text(value)?.trim().is_empty() => {
            Err(Fault { at: value.at, why: "a justification is not empty".to_owned() })
        }
        Some(value) => Ok(text(value)?.to_owned()),
    }
}

fn draft(effect: Verdict, justification: String, entry: &Entry<'_>) -> DraftRule {
    let mut draft = DraftRule::new(effect, justification);
    draft.provenance =
        Some(ProvenanceSection { by: format!("imported from codex, {}", entry.origin()), at: None, request: None });
    draft
}

fn pattern_of(value: &Value) -> Result<Vec<Word>, Fault> {
    let mut words = Vec::new();
    for element in list(value)? {
        let word = match element.list() {
            None => Word::one(text(element)?),
            Some(alternatives) => {
                let texts: Result<Vec<String>, Fault> =
                    alternatives.iter().map(|one| text(one).map(str::to_owned)).collect();
                Word::any(texts?)
                    .ok_or_else(|| Fault { at: element.at, why: "alternatives are not empty".to_owned() })?
            }
        };
        words.push(word);
    }
    if words.is_empty() { Err(Fault { at: value.at, why: "a pattern is not empty".to_owned() }) } else { Ok(words) }
}

fn prefix_rule(
    call: &Call,
    entry: &Entry<'_>,
    hosts: &BTreeMap<String, Vec<String>>,
    imported: &mut Imported,
) -> Result<(), Fault> {
    let found = arguments(call, &["pattern", "decision", "match", "not_match", "justification"])?;
    let pattern = pattern_of(needed(call, &found, "pattern")?)?;
    let effect = effect_of(found.get("decision"), false)?;
    let mut rule = draft(effect, justification_of(found.get("justification"), entry)?, entry);
    rule.matches = examples(found.get("match"))?;
    rule.not_match = examples(found.get("not_match"))?;
    for (key, wanted, lines) in [("match", true, &rule.matches), ("not_match", false, &rule.not_match)] {
        if let Some(line) = lines.iter().find(|line| fits(&pattern, line).is_some_and(|fits| fits != wanted)) {
            let at = found.get(key).map_or(call.at, |value| value.at);
            return Err(Fault { at, why: format!("`{line}`: this example fails, and the file is refused there") });
        }
    }
    let unusual = |word: &String| word.is_empty() || word.chars().any(char::is_control);
    if pattern.len() > 32 || pattern.iter().any(|word| word.alternatives().iter().any(unusual)) {
        let why = "a rule here has at most 32 words, none of them empty or with controls";
        if effect == Verdict::Allow {
            imported.notes.push(entry.note(Carried::Left, why));
            return Ok(());
        }
        // The plain words before it form a shorter prefix, which matches more.
        let plain = pattern.iter().take(32).take_while(|word| !word.alternatives().iter().any(unusual));
        rule.prefix = plain.cloned().collect();
        if rule.prefix.is_empty() {
            rule.glob = vec!["*".to_owned()];
        }
        rule.effect = Verdict::Ask;
        (rule.matches, rule.not_match) = (Vec::new(), Vec::new());
        imported.notes.push(entry.note(Carried::Stricter, format!("{why}: what starts like it is asked about")));
        imported.push(rule);
        return Ok(());
    }
    if effect != Verdict::Allow && pattern[0].alternatives().iter().any(|program| program.contains('/')) {
        imported.notes.push(entry.note(Carried::Stricter, "every program of that name is meant, wherever it lies"));
    }
    rule.prefix = pattern;
    if effect == Verdict::Allow {
        rule.prefix[0] = with_paths(&rule.prefix[0], hosts);
    }
    imported.push(rule);
    Ok(())
}

/// Returns whether an example matches a pattern in Codex; `None` if its words are not plain, or if a path
/// may stand for a name.
fn fits(pattern: &[Word], example: &str) -> Option<bool> {
    let words = plain_words(example).filter(|words| !words[0].contains('/'))?;
    Some(words.len() >= pattern.len() && pattern.iter().zip(&words).all(|(wanted, word)| wanted.is(word)))
}

/// Adds the paths of a program to an allow rule. The rule matches exactly its program; the paths that
/// `host_executable` lists are the same program.
fn with_paths(program: &Word, hosts: &BTreeMap<String, Vec<String>>) -> Word {
    let mut names: Vec<String> = program.alternatives().to_vec();
    for name in program.alternatives() {
        for path in hosts.get(name).into_iter().flatten() {
            if !names.contains(path) {
                names.push(path.clone());
            }
        }
    }
    Word::any(names).unwrap_or_else(|| program.clone())
}

/// Returns examples: strings unchanged, lists of words joined. An empty list or a string that is not a
/// command is an error in Codex as well.
fn examples(value: Option<&&Value>) -> Result<Vec<String>, Fault> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for example in list(value)? {
        let line = match example.list() {
            None => text(example)?.to_owned(),
            Some(words) => {
                let words: Result<Vec<String>, Fault> =
                    words.iter().map(|word| text(word).map(str::to_owned)).collect();
                joined(&words?)
            }
        };
        if line.trim().is_empty() {
            return Err(Fault { at: example.at, why: "an example is not empty".to_owned() });
        }
        all.push(line);
    }
    Ok(all)
}

fn host_executable(call: &Call) -> Result<(String, Vec<String>), Fault> {
    let found = arguments(call, &["name", "paths"])?;
    let name_value = needed(call, &found, "name")?;
    let name = text(name_value)?;
    if name.is_empty() || name.contains('/') {
        return Err(Fault { at: name_value.at, why: format!("`{name}` is no bare name of a program") });
    }
    let mut paths = Vec::new();
    for value in list(needed(call, &found, "paths")?)? {
        let path = text(value)?;
        if !path.starts_with('/') {
            return Err(Fault { at: value.at, why: format!("`{path}` is not absolute: the file is refused there") });
        }
        if path.rsplit('/').next() != Some(name) {
            return Err(Fault { at: value.at, why: format!("`{path}` does not end in `{name}`") });
        }
        paths.push(path.to_owned());
    }
    Ok((name.to_owned(), paths))
}

fn network_rule(call: &Call, entry: &Entry<'_>, imported: &mut Imported) -> Result<(), Fault> {
    let found = arguments(call, &["host", "protocol", "decision", "justification"])?;
    let host_value = needed(call, &found, "host")?;
    let host = host_of(host_value)?;
    let protocol_value = needed(call, &found, "protocol")?;
    let protocol = text(protocol_value)?;
    let port = match protocol {
        "http" => Some(80),
        "https" | "https_connect" | "http-connect" => Some(443),
        "socks5_tcp" => None,
        "socks5_udp" => None,
        other => {
            let why = format!("`{other}`: a protocol is `http`, `https`, `socks5_tcp` or `socks5_udp`");
            return Err(Fault { at: protocol_value.at, why });
        }
    };
    let decision = needed(call, &found, "decision")?;
    let effect = effect_of(Some(&decision), true)?;
    let mut rule = draft(effect, justification_of(found.get("justification"), entry)?, entry);
    if protocol == "socks5_udp" && effect == Verdict::Allow {
        imported.notes.push(entry.note(Carried::Left, "only TCP is let out"));
        return Ok(());
    }
    rule.hosts = vec![match port {
        Some(port) if effect == Verdict::Allow && host.contains(':') => format!("[{host}]:{port}"),
        Some(port) if effect == Verdict::Allow => format!("{host}:{port}"),
        _ => host,
    }];
    if let (Some(port), Verdict::Allow) = (port, effect) {
        imported.notes.push(entry.note(Carried::Stricter, format!("`{protocol}` is carried as port {port}")));
    } else if effect != Verdict::Allow {
        imported.notes.push(entry.note(Carried::Stricter, "protocols are not told apart: every port is meant"));
    }
    imported.push(rule);
    Ok(())
}

/// Parses a host without scheme and path; a port after it has no meaning in Codex.
fn host_of(value: &Value) -> Result<String, Fault> {
    let raw = text(value)?.trim();
    let wrong = |why: &str| Err(Fault { at: value.at, why: format!("`{raw}`: {why}") });
    if raw.contains("://") || raw.contains(['/', '?', '#']) {
        return wrong("a host has no scheme and no path");
    }
    let (host, _) = split_port(raw);
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    if host.contains('*') {
        return wrong("a host is named in full, without `*`");
    }
    if host.parse::<Host>().is_err() { wrong("this is no host") } else { Ok(host) }
}
