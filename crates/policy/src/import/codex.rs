//! Importer for Codex `.rules` files: `prefix_rule`, `network_rule`, `host_executable`, as the README of
//! codex-rs/execpolicy (2026) documents them.
//!
//! In both tools every matching rule counts and the strictest decides, and a rule's first word is the
//! program. A program given by its path falls back to the rules for its name; `host_executable` limits the
//! paths that do.

use std::collections::BTreeMap;

use stockade_model::{Host, PolicyVerdict};

use super::ImportDeviation::{Left, Stricter};
use super::mistakes::ImportMistakes;
use super::starlark::{self, StarlarkCall};
use super::value::{ImportValue, PositionedError, SpannedValue};
use super::{ImportEntry, ImportSource, ImportTool, ImportedPolicy, plain_words};
use crate::error::{ConfigError, TextPosition};
use crate::pattern::{WordPattern, split_port};
use crate::rules::join_words;

pub(super) fn import_codex(sources: &[ImportSource]) -> Result<ImportedPolicy, ConfigError> {
    let mut mistakes = ImportMistakes::new(ImportTool::Codex);
    let mut files = Vec::new();
    let mut hosts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources {
        match starlark::parse_calls(&source.text) {
            Ok(calls) if calls.is_empty() => {
                let why = "it contains no rules of Codex".to_owned();
                mistakes.add_errors(source, vec![PositionedError { at: TextPosition::START, why }]);
            }
            Ok(calls) => files.push((source, calls, Vec::new())),
            Err(wrong) => mistakes.add_errors(source, vec![wrong]),
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
    let mut imported = ImportedPolicy::default();
    for (source, calls, mut faults) in files {
        for call in &calls {
            let entry = ImportEntry::new(&source.name, call.at, &source_line(source, call.at));
            let read = match call.name.as_str() {
                "prefix_rule" => prefix_rule(call, &entry, &hosts, &mut imported),
                "network_rule" => network_rule(call, &entry, &mut imported),
                // Read before, because rules above it also apply to its paths.
                "host_executable" => Ok(()),
                other => Err(PositionedError::new(call.at, format!("there is no function `{other}`"))),
            };
            faults.extend(read.err());
        }
        mistakes.add_errors(source, faults);
    }
    mistakes.into_result(sources).map(|()| imported)
}

fn source_line(source: &ImportSource, at: TextPosition) -> String {
    source.text.lines().nth(at.line - 1).unwrap_or_default().trim().to_owned()
}

/// Returns the arguments of a call by the names of its parameters.
fn bind_arguments<'a>(
    call: &'a StarlarkCall,
    parameters: &[&str],
) -> Result<BTreeMap<String, &'a SpannedValue>, PositionedError> {
    let mut found: BTreeMap<String, &SpannedValue> = BTreeMap::new();
    for (i, value) in call.positional.iter().enumerate() {
        let Some(name) = parameters.get(i) else {
            return value.fail(format!("`{}` takes {} arguments", call.name, parameters.len()));
        };
        found.insert((*name).to_owned(), value);
    }
    for (at, name, value) in &call.named {
        if !parameters.contains(&name.as_str()) {
            let known = parameters.join("`, `");
            return Err(PositionedError { at: *at, why: format!("`{}` has no `{name}`; it has `{known}`", call.name) });
        }
        if found.insert(name.clone(), value).is_some() {
            return Err(PositionedError { at: *at, why: format!("`{name}` appears twice here") });
        }
    }
    found.retain(|_, value| value.value != ImportValue::Other("None"));
    Ok(found)
}

fn require_argument<'a>(
    call: &StarlarkCall,
    found: &BTreeMap<String, &'a SpannedValue>,
    name: &str,
) -> Result<&'a SpannedValue, PositionedError> {
    found.get(name).copied().ok_or_else(|| PositionedError::new(call.at, format!("`{}` needs `{name}`", call.name)))
}

fn expect_texts(values: &[SpannedValue]) -> Result<Vec<String>, PositionedError> {
    values.iter().map(|value| value.expect_text().map(str::to_owned)).collect()
}

fn effect_of(value: Option<&&SpannedValue>, also_deny: bool) -> Result<PolicyVerdict, PositionedError> {
    let Some(value) = value else { return Ok(PolicyVerdict::Allow) };
    match value.expect_text()? {
        "allow" => Ok(PolicyVerdict::Allow),
        "prompt" => Ok(PolicyVerdict::Ask),
        "forbidden" => Ok(PolicyVerdict::Deny),
        "deny" if also_deny => Ok(PolicyVerdict::Deny),
        other => value.fail(format!("`{other}`: a decision is `allow`, `prompt` or `forbidden`")),
    }
}

fn justification_of(value: Option<&&SpannedValue>, entry: &ImportEntry<'_>) -> Result<String, PositionedError> {
    match value {
        None => Ok(entry.describe_origin()),
        Some(value) if value.expect_text()?.trim().is_empty() => value.fail("a justification is not empty"),
        Some(value) => Ok(value.expect_text()?.to_owned()),
    }
}

fn pattern_of(value: &SpannedValue) -> Result<Vec<WordPattern>, PositionedError> {
    let mut words = Vec::new();
    for element in value.expect_list()? {
        let word = match element.as_list() {
            None => WordPattern::from_word(element.expect_text()?),
            Some(alternatives) => WordPattern::from_alternatives(expect_texts(alternatives)?)
                .ok_or_else(|| PositionedError::new(element.at, "alternatives are not empty"))?,
        };
        words.push(word);
    }
    if words.is_empty() { value.fail("a pattern is not empty") } else { Ok(words) }
}

fn prefix_rule(
    call: &StarlarkCall,
    entry: &ImportEntry<'_>,
    hosts: &BTreeMap<String, Vec<String>>,
    imported: &mut ImportedPolicy,
) -> Result<(), PositionedError> {
    let found = bind_arguments(call, &["pattern", "decision", "match", "not_match", "justification"])?;
    let pattern = pattern_of(require_argument(call, &found, "pattern")?)?;
    let effect = effect_of(found.get("decision"), false)?;
    let mut rule = entry.draft_rule(ImportTool::Codex, effect, justification_of(found.get("justification"), entry)?);
    rule.matches = parse_examples(found.get("match"))?;
    rule.not_match = parse_examples(found.get("not_match"))?;
    for (key, expected, lines) in [("match", true, &rule.matches), ("not_match", false, &rule.not_match)] {
        if let Some(line) =
            lines.iter().find(|line| matches_example(&pattern, line).is_some_and(|fits| fits != expected))
        {
            let at = found.get(key).map_or(call.at, |value| value.at);
            return Err(PositionedError::new(
                at,
                format!("`{line}`: this example fails, and the file is refused there"),
            ));
        }
    }
    let unusual = |word: &String| word.is_empty() || word.chars().any(char::is_control);
    if pattern.len() > 32 || pattern.iter().any(|word| word.alternatives().iter().any(unusual)) {
        let why = "a rule here has at most 32 words, none of them empty or with controls";
        if effect == PolicyVerdict::Allow {
            imported.note(entry, Left, why);
            return Ok(());
        }
        // The plain words before it form a shorter prefix, which matches more.
        let plain = pattern.iter().take(32).take_while(|word| !word.alternatives().iter().any(unusual));
        rule.prefix = plain.cloned().collect();
        if rule.prefix.is_empty() {
            rule.glob = vec!["*".to_owned()];
        }
        rule.effect = PolicyVerdict::Ask;
        (rule.matches, rule.not_match) = (Vec::new(), Vec::new());
        imported.note(entry, Stricter, format!("{why}: what starts like it is asked about"));
        imported.push(rule);
        return Ok(());
    }
    if effect != PolicyVerdict::Allow && pattern[0].alternatives().iter().any(|program| program.contains('/')) {
        imported.note(entry, Stricter, "every program of that name matches, in any directory");
    }
    rule.prefix = pattern;
    if effect == PolicyVerdict::Allow {
        rule.prefix[0] = with_paths(&rule.prefix[0], hosts);
    }
    imported.push(rule);
    Ok(())
}

/// Returns whether an example matches a pattern in Codex; `None` if its words are not plain, or if a path
/// may stand for a name.
fn matches_example(pattern: &[WordPattern], example: &str) -> Option<bool> {
    let words = plain_words(example).filter(|words| !words[0].contains('/'))?;
    Some(words.len() >= pattern.len() && pattern.iter().zip(&words).all(|(expected, word)| expected.matches_word(word)))
}

/// Adds the paths of a program to an allow rule. The rule matches exactly its program; the paths that
/// `host_executable` lists are the same program.
fn with_paths(program: &WordPattern, hosts: &BTreeMap<String, Vec<String>>) -> WordPattern {
    let mut names: Vec<String> = program.alternatives().to_vec();
    for name in program.alternatives() {
        for path in hosts.get(name).into_iter().flatten() {
            if !names.contains(path) {
                names.push(path.clone());
            }
        }
    }
    WordPattern::from_alternatives(names).unwrap_or_else(|| program.clone())
}

/// Returns examples: strings unchanged, lists of words joined. An empty list or a string that is not a
/// command is an error in Codex as well.
fn parse_examples(value: Option<&&SpannedValue>) -> Result<Vec<String>, PositionedError> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for example in value.expect_list()? {
        let line = match example.as_list() {
            None => example.expect_text()?.to_owned(),
            Some(words) => join_words(&expect_texts(words)?),
        };
        if line.trim().is_empty() {
            return example.fail("an example is not empty");
        }
        all.push(line);
    }
    Ok(all)
}

fn host_executable(call: &StarlarkCall) -> Result<(String, Vec<String>), PositionedError> {
    let found = bind_arguments(call, &["name", "paths"])?;
    let name_value = require_argument(call, &found, "name")?;
    let name = name_value.expect_text()?;
    if name.is_empty() || name.contains('/') {
        return name_value.fail(format!("`{name}` is not the bare name of a program"));
    }
    let mut paths = Vec::new();
    for value in require_argument(call, &found, "paths")?.expect_list()? {
        let path = value.expect_text()?;
        if !path.starts_with('/') {
            return value.fail(format!("`{path}` is not absolute: the file is refused there"));
        }
        if path.rsplit('/').next() != Some(name) {
            return value.fail(format!("`{path}` does not end in `{name}`"));
        }
        paths.push(path.to_owned());
    }
    Ok((name.to_owned(), paths))
}

fn network_rule(
    call: &StarlarkCall,
    entry: &ImportEntry<'_>,
    imported: &mut ImportedPolicy,
) -> Result<(), PositionedError> {
    let found = bind_arguments(call, &["host", "protocol", "decision", "justification"])?;
    let host_value = require_argument(call, &found, "host")?;
    let host = host_of(host_value)?;
    let protocol_value = require_argument(call, &found, "protocol")?;
    let protocol = protocol_value.expect_text()?;
    let port = match protocol {
        "http" => Some(80),
        "https" | "https_connect" | "http-connect" => Some(443),
        "socks5_tcp" => None,
        "socks5_udp" => None,
        other => {
            return protocol_value
                .fail(format!("`{other}`: a protocol is `http`, `https`, `socks5_tcp` or `socks5_udp`"));
        }
    };
    let decision = require_argument(call, &found, "decision")?;
    let effect = effect_of(Some(&decision), true)?;
    let mut rule = entry.draft_rule(ImportTool::Codex, effect, justification_of(found.get("justification"), entry)?);
    if protocol == "socks5_udp" && effect == PolicyVerdict::Allow {
        imported.note(entry, Left, "only TCP is supported");
        return Ok(());
    }
    rule.hosts = vec![match port {
        Some(port) if effect == PolicyVerdict::Allow && host.contains(':') => format!("[{host}]:{port}"),
        Some(port) if effect == PolicyVerdict::Allow => format!("{host}:{port}"),
        _ => host,
    }];
    if let (Some(port), PolicyVerdict::Allow) = (port, effect) {
        imported.note(entry, Stricter, format!("`{protocol}` is carried as port {port}"));
    } else if effect != PolicyVerdict::Allow {
        imported.note(entry, Stricter, "protocols are not distinguished: every port matches");
    }
    imported.push(rule);
    Ok(())
}

/// Parses a host without scheme and path; a port after it has no meaning in Codex.
fn host_of(value: &SpannedValue) -> Result<String, PositionedError> {
    let raw = value.expect_text()?.trim();
    let wrong = |why: &str| value.fail(format!("`{raw}`: {why}"));
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
