//! Text for a terminal. Pure functions: they take values and return strings. Colour is optional:
//! every line reads the same without it. Untrusted text is escaped before the layout.

pub mod approvals;
pub mod audit;
pub mod cache;
pub mod check;
pub mod compact;
pub mod detached;
pub mod doctor;
pub mod failure;
pub mod findings;
pub mod json;
pub mod network;
pub mod policy;
pub mod question;
pub mod remedy;
pub mod sandbox;
pub mod session;
pub mod stage;
pub mod summary;
pub mod undo;

use std::fmt::Write as _;

use serde::Serialize;
use stockade_model::RawText;

use compact::{char_width, measure_width};

/// Narrowest and widest layout, in columns.
const WIDTH_RANGE: std::ops::RangeInclusive<usize> = 20..=120;
/// Least columns for text after a head.
const MIN_TEXT_COLUMNS: usize = 9;

/// Layout of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLayout {
    /// True if colour may be added.
    pub color: bool,
    /// Columns.
    pub width: usize,
}

impl TextLayout {
    /// No colour and no wrapping: for files and pipes, because programs process lines.
    pub const PIPE: Self = Self { color: false, width: usize::MAX };

    /// Layout without colour, 80 columns wide.
    #[cfg(test)]
    pub const PLAIN: Self = Self { color: false, width: 80 };

    /// Returns the layout for a terminal of this many columns.
    pub fn for_terminal(columns: u16, color: bool) -> Self {
        let columns = if columns == 0 { 80 } else { usize::from(columns) };
        Self { color, width: columns.clamp(*WIDTH_RANGE.start(), *WIDTH_RANGE.end()) }
    }

    /// Returns whether a user reads the text, so that lines are wrapped.
    pub fn is_terminal(&self) -> bool {
        self.width != usize::MAX
    }

    /// Paints `text` in `color`, if colour is enabled.
    pub fn paint_text(&self, color: SgrColor, text: &str) -> String {
        if self.color { format!("\x1b[{}m{text}\x1b[0m", color as u8) } else { text.to_owned() }
    }
}

/// SGR parameters (ECMA-48).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SgrColor {
    /// Emphasis.
    Bold = 1,
    /// Errors and refusals.
    Red = 31,
    /// Questions and warnings.
    Yellow = 33,
    /// Hints.
    Cyan = 36,
}

/// Writes `text` after `head`. Further lines are indented to the text, not to the head. Breaks at
/// blanks, and inside a word only if it is wider than a line.
pub fn write_wrapped(out: &mut String, style: TextLayout, head: &str, text: &str) {
    wrap_at(out, style, head, measure_width(head), text);
}

/// As [`write_wrapped`], with further lines at this column.
pub fn wrap_at(out: &mut String, style: TextLayout, head: &str, indent: usize, text: &str) {
    let room = |indent: usize| style.width.saturating_sub(indent).max(MIN_TEXT_COLUMNS);
    let mut prefix = head.to_owned();
    for line in text.split('\n') {
        for piece in split_paragraph(line, room(measure_width(&prefix)), room(indent)) {
            let _ = writeln!(out, "{}", format!("{prefix}{piece}").trim_end());
            prefix = " ".repeat(indent);
        }
    }
}

/// Splits one paragraph into lines: the first has `first` columns, the others `room`. Their
/// concatenation is the paragraph, except for the blanks at the breaks.
fn split_paragraph(line: &str, first: usize, room: usize) -> Vec<String> {
    let mut out = Vec::new();
    let mut current = String::new();
    let (mut used, mut limit) = (0, first);
    // Skips a line that consists of blanks.
    let mut finish = |current: &mut String| {
        let piece = std::mem::take(current);
        if !piece.trim_end_matches(' ').is_empty() {
            out.push(piece);
        }
    };
    for word in line.split_inclusive(' ') {
        let letters = word.trim_end_matches(' ');
        if used > 0 && used + measure_width(letters) > limit {
            finish(&mut current);
            (used, limit) = (0, room);
        }
        for c in word.chars() {
            let columns = char_width(c);
            if used + columns > limit && c != ' ' {
                finish(&mut current);
                (used, limit) = (0, room);
            }
            current.push(c);
            used += columns;
        }
    }
    finish(&mut current);
    if out.is_empty() { vec![String::new()] } else { out }
}

/// Returns the first characters of a text, with `…` behind them if there are more.
pub fn cut_text(text: &str, max_chars: usize) -> String {
    let mut short: String = text.chars().take(max_chars).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// Returns the texts with commas between them.
pub fn join_texts(items: impl IntoIterator<Item = impl ToString>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// Returns the serialised name of a value without fields, in words.
pub fn name_of(value: impl Serialize) -> String {
    let name = serde_json::to_value(value).ok();
    name.as_ref().and_then(|name| name.as_str()).unwrap_or_default().replace(['_', '-'], " ")
}

/// Returns a text of another origin as one line that is safe on a terminal.
pub fn escape_text(text: &str) -> String {
    RawText::from(text).to_escaped()
}

/// Formats a number with a noun: `1 grant`, `2 grants`.
pub fn count_noun(count: impl TryInto<usize>, noun: &str) -> String {
    let count = count.try_into().unwrap_or(usize::MAX);
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Formats a duration for a user: `850 ms`, `1.2 s`, `5 min`, `2 h 30 min`.
pub fn format_duration(ms: u64) -> String {
    let whole = |big: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big} {unit}"),
        small => format!("{big} {unit} {small} {small_unit}"),
    };
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 if ms.is_multiple_of(1_000) => format!("{} s", ms / 1_000),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        60_000..3_600_000 => whole(ms / 60_000, "min", ms % 60_000 / 1_000, "s"),
        _ => whole(ms / 3_600_000, "h", ms % 3_600_000 / 60_000, "min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(width: usize, head: &str, text: &str, expected: &str) {
        let mut out = String::new();
        write_wrapped(&mut out, TextLayout { color: false, width }, head, text);
        assert_eq!(out, expected);
    }

    #[test]
    fn wrapping_keeps_every_character() {
        check(40, "a: ", "short", "a: short\n");
        check(30, "a: ", "one two three four five six seven", "a: one two three four five six\n   seven\n");
        check(24, "a: ", &"x".repeat(50), &format!("a: {0}\n   {0}\n   {1}\n", "x".repeat(21), "x".repeat(8)));
        check(40, "", "one\ntwo", "one\ntwo\n");
        let long = "word ".repeat(300) + &"y".repeat(500);
        let mut out = String::new();
        write_wrapped(&mut out, TextLayout::PLAIN, "", &long);
        let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).count();
        assert_eq!(letters(&out), letters(&long));
        assert!(out.lines().all(|line| measure_width(line) <= 80));
    }

    #[test]
    fn times_and_counts() {
        for (ms, expected) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (1_250, "1.2 s"),
            (300_000, "5 min"),
            (90_000, "1 min 30 s"),
            (9_000_000, "2 h 30 min"),
        ] {
            assert_eq!(format_duration(ms), expected);
        }
        assert_eq!(count_noun(1, "grant"), "1 grant");
        assert_eq!(count_noun(0, "grant"), "0 grants");
    }

    #[test]
    fn colour_is_only_an_addition() {
        let style = TextLayout { color: true, width: 80 };
        assert_eq!(style.paint_text(SgrColor::Red, "error:"), "\x1b[31merror:\x1b[0m");
        assert_eq!(TextLayout::PLAIN.paint_text(SgrColor::Red, "error:"), "error:");
    }
}
