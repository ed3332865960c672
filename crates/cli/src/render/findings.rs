//! Findings as lines of text, each only once. A finding that is a reason is not repeated, and one
//! with several spans is one line with its parts.

use std::fmt::Write as _;

use stockade_model::{Finding, RawText, Tier};

use super::compact::compact_and_shorten;

/// Columns of a quoted part; the middle of a longer one is omitted. The command itself is never
/// shortened.
const MAX_QUOTE_COLUMNS: usize = 160;
/// Most parts of one line.
const MAX_QUOTED_PARTS: usize = 3;
/// Most columns of a message.
const MAX_MESSAGE_COLUMNS: usize = 300;

/// Formats reasons with the parts of the text that they refer to: `code: message   «the part»`.
/// `show` escapes a reason.
pub fn format_reasons(
    reasons: &[String],
    findings: &[Finding],
    text: &RawText,
    show: impl Fn(&str) -> String,
) -> Vec<String> {
    let line = |reason: &String| {
        let telling = findings.iter().filter(|found| as_reason(found) == *reason);
        format!("{}{}", show(reason), format_parts(telling, text))
    };
    reasons.iter().map(line).collect()
}

/// Formats the findings that are not reasons: `deny: message   «the part»`, or `ask, outward:
/// message` if the effect needs consent.
pub fn format_other_findings(reasons: &[String], findings: &[Finding], text: &RawText) -> Vec<String> {
    let mut lines: Vec<(String, Vec<&Finding>)> = Vec::new();
    let worth_telling = findings.iter().filter(|found| found.tier > Tier::Allow);
    for found in worth_telling.filter(|found| !reasons.contains(&as_reason(found))) {
        let head = format_head(found);
        match lines.iter_mut().find(|(known, _)| *known == head) {
            Some((_, positions)) => positions.push(found),
            None => lines.push((head, vec![found])),
        }
    }
    lines.into_iter().map(|(head, positions)| format!("{head}{}", format_parts(positions.into_iter(), text))).collect()
}

/// Formats a finding as the decision does.
fn as_reason(found: &Finding) -> String {
    format!("{}: {}", found.code, found.message)
}

fn format_head(found: &Finding) -> String {
    let reach = if found.impact.needs_consent() { format!(", {}", found.impact) } else { String::new() };
    format!(
        "{}{reach}: {}",
        found.tier,
        compact_and_shorten(&RawText::from(found.message.as_str()), MAX_MESSAGE_COLUMNS)
    )
}

/// Formats the parts of the text that findings refer to, except the whole text, which is shown
/// already.
fn format_parts<'f>(findings: impl Iterator<Item = &'f Finding>, text: &RawText) -> String {
    let bytes = text.as_bytes();
    let part = |found: &Finding| found.span.and_then(|span| bytes.get(span.start..span.end));
    let mut all: Vec<&[u8]> =
        findings.filter_map(part).filter(|part| !part.is_empty() && part.len() < bytes.len()).collect();
    all.dedup();
    let mut out = String::new();
    for part in all.iter().take(MAX_QUOTED_PARTS) {
        let _ = write!(out, "   «{}»", compact_and_shorten(&RawText::from(*part), MAX_QUOTE_COLUMNS));
    }
    if all.len() > MAX_QUOTED_PARTS {
        let _ = write!(out, "   and {} more", all.len() - MAX_QUOTED_PARTS);
    }
    out
}

#[cfg(test)]
mod tests {
    use stockade_model::{Impact, TextSpan};

    use super::*;

    fn found(code: &str, impact: Impact, start: usize, end: usize) -> Finding {
        let message = format!("About {code}.");
        Finding { code: code.into(), tier: Tier::Ask, impact, message, span: Some(TextSpan { start, end }) }
    }

    #[test]
    fn each_finding_is_printed_once_with_its_parts() {
        let text = RawText::from("a 1; a 2; a 3; a 4");
        let mut all = vec![found("b", Impact::Contained, 0, 18), found("c", Impact::Outward, 5, 8)];
        all.extend((0..4).map(|i| found("a", Impact::Contained, i * 5, i * 5 + 3)));
        let shown_reasons = ["c: About c.".to_owned(), "a rule".to_owned()];
        assert_eq!(format_reasons(&shown_reasons, &all, &text, str::to_owned), ["c: About c.   «a 2»", "a rule"]);
        let rest = format_other_findings(&shown_reasons, &all, &text);
        assert_eq!(rest, ["ask: About b.", "ask: About a.   «a 1»   «a 2»   «a 3»   and 1 more"]);
        assert_eq!(format_other_findings(&[], &all, &text)[1], "ask, outward: About c.   «a 2»");
    }
}
