//! Compact form of untrusted text: runs of blanks are written once, and long names lose their
//! middle. A crafted name could otherwise push a question off the screen, or imitate a line of it.

use stockade_model::{CharacterRanges, RawText};

use super::count_noun;

/// Fewest repetitions of a blank, or of another escaped character, that are written once with their
/// number.
const MIN_RUN_LENGTH: usize = 3;
/// Combining marks on one letter; further ones are escaped. No script needs more, and more of them
/// cover the lines around.
const MAX_COMBINING_MARKS: usize = 2;
static COMBINING_MARKS: CharacterRanges = CharacterRanges::new(include_str!("../../data/combining_marks.txt"));
static WIDE_CHARACTERS: CharacterRanges = CharacterRanges::new(include_str!("../../data/wide_characters.txt"));

/// Escapes text, with runs of the same blank or escape as one: `a\u{20}×200b`.
pub fn compact_text(text: &RawText) -> String {
    compact_escaped(&text.to_escaped())
}

/// Compacts text that is escaped already.
pub fn compact_escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut marks = 0;
    while let Some((token, tail)) = next_token(rest) {
        rest = tail;
        if token.starts_with(is_mark) {
            marks += 1;
            if marks > MAX_COMBINING_MARKS {
                out.extend(token.chars().flat_map(char::escape_unicode));
                continue;
            }
        } else {
            marks = 0;
        }
        let mut count = 1;
        if token == " " || token.len() > 1 && token.starts_with('\\') {
            while let Some(tail) = rest.strip_prefix(token) {
                (count, rest) = (count + 1, tail);
            }
        }
        if count < MIN_RUN_LENGTH {
            (0..count).for_each(|_| out.push_str(token));
        } else {
            out.push_str(if token == " " { "\\u{20}" } else { token });
            out.push('×');
            out.push_str(&count.to_string());
        }
    }
    out
}

/// Returns an escape as `escaped` writes it, or one character; and the rest.
fn next_token(text: &str) -> Option<(&str, &str)> {
    let first = text.chars().next()?;
    let escape = text.strip_prefix('\\').and_then(|escape| {
        let kind = escape.chars().next()?;
        match kind {
            'u' => escape.starts_with("u{").then(|| escape.find('}').map(|end| end + 2)).flatten(),
            'x' => escape.is_char_boundary(3).then_some(4),
            't' | 'n' | 'r' | '0' | '\\' => Some(2),
            _ => None,
        }
    });
    // A distant brace belongs to other text.
    let length = escape.filter(|&length| length <= 12).unwrap_or(first.len_utf8());
    text.split_at_checked(length)
}

/// Shortens `text` to about `limit` columns: omits its middle, with the number of omitted
/// characters.
pub fn shorten_text(text: &str, limit: usize) -> String {
    if measure_width(text) <= limit {
        return text.to_owned();
    }
    let all: Vec<char> = text.chars().collect();
    let fitting = |characters: &mut dyn Iterator<Item = &char>| {
        let mut used = 0;
        characters
            .take_while(|&&c| {
                used += char_width(c);
                used <= limit / 2
            })
            .count()
    };
    let (head, tail) = (fitting(&mut all.iter()), fitting(&mut all.iter().rev()));
    let left_out = count_noun(all.len() - head - tail, "character");
    let text = |part: &[char]| part.iter().collect::<String>();
    format!("{} … {left_out} … {}", text(&all[..head]), text(&all[all.len() - tail..]))
}

/// Compacts and shortens text.
pub fn compact_and_shorten(text: &RawText, limit: usize) -> String {
    shorten_text(&compact_text(text), limit)
}

/// Returns the columns of text on a terminal.
pub fn measure_width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

/// Returns the columns of one character (UAX 11, in ranges): none for combining marks, two for East
/// Asian wide characters and emoji.
pub fn char_width(c: char) -> usize {
    match c {
        c if is_mark(c) => 0,
        c if !c.is_ascii() && WIDE_CHARACTERS.contains(c) => 2,
        _ => 1,
    }
}

/// Returns whether a character is a mark that combines with the letter before it.
fn is_mark(c: char) -> bool {
    // No mark is in ASCII, which most text is.
    !c.is_ascii() && COMBINING_MARKS.contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(compact_text(&text.into()), expected, "{text:?}");
    }

    #[test]
    fn every_range_is_read() {
        assert_eq!((COMBINING_MARKS.count(), WIDE_CHARACTERS.count()), (13, 17));
    }

    #[test]
    fn runs_are_written_once() {
        check("a b  c", "a b  c");
        check("a   b", "a\\u{20}×3b");
        check(&format!("/x{}y", " ".repeat(200)), "/x\\u{20}×200y");
        check(&"\t".repeat(50), "\\t×50");
        check("a\n\n\n\nb", "a\\n×4b");
        check(&"\u{a0}".repeat(9), "\\u{a0}×9");
        check(&"\u{2028}".repeat(7), "\\u{2028}×7");
        check(&"\u{202e}\u{200b}".repeat(2), "\\u{202e}\\u{200b}\\u{202e}\\u{200b}");
        check("aaaa----", "aaaa----");
        check("C:\\ups\\xy\\", "C:\\ups\\xy\\");
        check("\\u{ no end", "\\u{ no end");
        let bytes = RawText::from(vec![b'a', 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(compact_text(&bytes), "a\\xff×4");
    }

    #[test]
    fn marks_do_not_pile_up() {
        check("e\u{301}", "e\u{301}");
        check(&format!("e{}", "\u{301}".repeat(4)), "e\u{301}\u{301}\\u{301}\\u{301}");
    }

    #[test]
    fn long_text_keeps_its_ends() {
        let long = format!("begin{}end", "x".repeat(10_000));
        let short = shorten_text(&long, 100);
        assert!(
            short.starts_with("beginx") && short.ends_with("xend") && short.contains(" … 9908 characters … "),
            "{short}"
        );
        assert!(measure_width(&short) < 130);
        assert_eq!(shorten_text("short", 100), "short");
        assert!(measure_width(&shorten_text(&"汉".repeat(5_000), 100)) < 130);
    }
}
