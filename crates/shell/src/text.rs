//! Findings that need no parsing: bytes that a person cannot see as they are, and sizes that a
//! person cannot review.

use stockade_model::{Finding, Impact, TextSpan, Tier};

/// Longest text that a person reviews, in bytes.
const MAX_REVIEWED_BYTES: usize = 4096;
/// Longest sequence of spaces or empty lines that a person expects.
const MAX_BLANKS: usize = 40;

/// Returns the findings about the bytes alone.
pub(crate) fn text_findings(text: &[u8], shell: bool) -> Vec<Finding> {
    let mut out = Vec::new();
    let mut find = |code: &str, message: &str, start: usize, end: usize| {
        out.push(Finding {
            code: code.into(),
            tier: Tier::Ask,
            impact: Impact::default(),
            message: message.into(),
            span: Some(TextSpan { start, end }),
        });
    };
    if text.len() > MAX_REVIEWED_BYTES {
        find("too-long", "Too long to be reviewed.", 0, text.len());
    }
    if let Err(error) = std::str::from_utf8(text) {
        find("not-utf8", "Contains bytes that are not text.", error.valid_up_to(), text.len());
    }
    if let Some(at) = text.iter().position(|b| b.is_ascii_control() && !matches!(b, b'\n' | b'\t')) {
        find("control-character", "Contains a control character.", at, at + 1);
    }
    if let Some((at, c)) = find_deceptive(text) {
        find(
            "deceptive-character",
            "Contains a character that is invisible or looks like another.",
            at,
            at + c.len_utf8(),
        );
    }
    if shell {
        if let Some((start, end)) = find_blanks(text) {
            find("padding", "A long run of spaces could hide text.", start, end);
        }
        if ends_in_continuation(text) {
            find("not-understood", "Ends in a backslash: the next line is missing.", text.len() - 1, text.len());
        }
    }
    out
}

fn find_deceptive(text: &[u8]) -> Option<(usize, char)> {
    let mut at = 0;
    for chunk in text.utf8_chunks() {
        if let Some((i, c)) = chunk.valid().char_indices().find(|(_, c)| is_deceptive(*c)) {
            return Some((at + i, c));
        }
        at += chunk.valid().len() + chunk.invalid().len();
    }
    None
}

/// Returns whether a character is deceptive: bidirectional marks, invisible characters, spaces
/// other than the ASCII space, and look-alikes of ASCII (Unicode 15, DerivedCoreProperties and
/// confusables).
fn is_deceptive(c: char) -> bool {
    matches!(c,
        '\u{80}'..='\u{a0}' | '\u{ad}' | '\u{300}'..='\u{36f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{1680}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{2000}'..='\u{2015}' | '\u{2028}'..='\u{202f}' | '\u{205f}'..='\u{206f}'
        | '\u{2212}' | '\u{2800}' | '\u{3000}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{fe58}' | '\u{fe63}' | '\u{feff}'
        | '\u{ff01}'..='\u{ff5e}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

fn find_blanks(text: &[u8]) -> Option<(usize, usize)> {
    let mut start = None;
    for (at, byte) in text.iter().enumerate() {
        match (byte.is_ascii_whitespace(), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) if at - from > MAX_BLANKS => return Some((from, at)),
            (false, _) => start = None,
            _ => {}
        }
    }
    start.filter(|from| text.len() - from > MAX_BLANKS).map(|from| (from, text.len()))
}

fn ends_in_continuation(text: &[u8]) -> bool {
    text.iter().rev().take_while(|b| **b == b'\\').count() % 2 == 1
}
