//! Findings as lines of text, each only once. A finding that is a reason is not repeated, and one
//! with several spans is one line with its parts.

use std::fmt::Write as _;

use stockade_model::{Finding, Impact, RawText, Tier};

use super::compact::brief;

/// Columns of a quoted part; the middle of a longer one is omitted. The command itself is never
/// shortened.
const QUOTE_LIMIT: usize = 160;
/// Most parts of one line.
const MAX_PARTS: usize = 3;
/// Most columns of a message.
const TEXT_LIMIT: usize = 300;

/// Returns the name of the tier.
pub fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Allow => "allow",
        Tier::Ask => "ask",
        Tier::Deny => "deny",
    }
}

/// Returns the name of the impact.
pub fn impact(impact: Impact) -> &'static str {
    match impact {
        Impact::Contained => "contained",
        Impact::Workspace => "workspace",
        Impact::Irreversible => "irreversible",
        Impact::Outward => "outward",
    }
}

/// Formats reasons with the parts of the text that they refer to: `code: message   «the part»`.
/// `show` escapes a reason.
pub fn reasons(reasons: &[String], findings: &[Finding], text: &RawText, show: impl Fn(&str) -> String) -> Vec<String> {
    let line = |reason: &String| {
        let telling = findings.iter().filter(|found| as_reason(found) == *reason);
        format!("{}{}", show(reason), parts(telling, text))
    };
    reasons.iter().map(line).collect()
}

/// Formats the findings that are not reasons: `deny: message   «the part»`, or `ask, outward:
/// message` if the effect needs consent.
pub fn beside(reasons: &[String], findings: &[Finding], text: &RawText) -> Vec<String> {
    let mut lines: Vec<(String, Vec<&Finding>)> = Vec::new();
    let worth_telling = findings.iter().filter(|found| found.tier > Tier::Allow);
    for found in worth_telling.filter(|found| !reasons.contains(&as_reason(found))) {
        let head = head(found);
        match lines.iter_mut().find(|(known, _)| *known == head) {
            Some((_, places)) => places.push(found),
            None => lines.push((head, vec![found])),
        }
    }
    lines.into_iter().map(|(head, places)| format!("{head}{}", parts(places.into_iter(), text))).collect()
}

/// Formats a finding as the decision does.
fn as_reason(found: &Finding) -> String {
    format!("{}: {}", found.code, found.message)
}

fn head(found: &Finding) -> String {
    let reach = if found.impact.needs_consent() { format!(", {}", impact(found.impact)) } else { String::new() };
    format!("{}{reach}: {}", tier(found.tier), brief(&RawText::from(found.message.as_str()), TEXT_LIMIT))
}

/// Formats the parts of the text that findings refer to, except the whole text, which is shown
/// already.
fn parts<'f>(findings: impl Iterator<Item = &'f Finding>, text: &RawText) -> String {
    let bytes = text.as_bytes();
    let part = |found: &Finding| found.span.and_then(|span| bytes.get(span.start..span.end));
    let mut all: Vec<&[u8]> =
        findings.filter_map(part).filter(|part| !part.is_empty() && part.len() < bytes.len()).collect();
    all.dedup();
    let mut out = String::new();
    for part in all.iter().take(MAX_PARTS) {
        let _ = write!(out, "   «{}»", brief(&RawText::from(*part), QUOTE_LIMIT));
    }
    if all.len() > MAX_PARTS {
        let _ = write!(out, "   and {} more", all.len() - MAX_PARTS);
    }
    out
}

#[cfg(test)]
mod tests {
    use stockade_model::Span;

    use super::*;

    fn found(code: &str, impact: Impact, start: usize, end: usize) -> Finding {
        let message = format!("About {code}.");
        Finding { code: code.into(), tier: Tier::Ask, impact, message, span: Some(Span { start, end }) }
    }

    #[test]
    fn each_is_told_once_with_its_parts() {
        let text = RawText::from("a 1; a 2; a 3; a 4");
        let mut all = vec![found("b", Impact::Contained, 0, 18), found("c", Impact::Outward, 5, 8)];
        all.extend((0..4).map(|i| found("a", Impact::Contained, i * 5, i * 5 + 3)));
        let given = ["c: About c.".to_owned(), "a rule".to_owned()];
        assert_eq!(reasons(&given, &all, &text, str::to_owned), ["c: About c.   «a 2»", "a rule"]);
        let rest = beside(&given, &all, &text);
        assert_eq!(rest, ["ask: About b.", "ask: About a.   «a 1»   «a 2»   «a 3»   and 1 more"]);
        assert_eq!(beside(&[], &all, &text)[1], "ask, outward: About c.   «a 2»");
    }
}
