//! State of the user's terminal while it shows a command's output: the earlier output that can be
//! shown again, the changes to undo when the client detaches, and those to redo when the command
//! gets the terminal back. Parses control sequences (ECMA-48, xterm's ctlseqs), and interprets a
//! few of them.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

/// Longest control sequence that is parsed, in bytes.
const MAX_SEQUENCE_BYTES: usize = 64;
/// Most modes that are remembered.
const MAX_MODES: usize = 64;
/// Private modes that are initially set: wrapping, repeating, cursor shown.
const INITIAL_MODES: [u16; 3] = [7, 8, 25];
const ESCAPE: u8 = 0x1b;
const ENQUIRY: u8 = 0x05;
const BELL: u8 = 0x07;
const SHIFT_OUT: u8 = 0x0e;
const SHIFT_IN: u8 = 0x0f;
/// Bytes that begin a designation of another character set, one for each of the four slots.
const CHARSET_DESIGNATORS: &[u8] = b"()*+";
/// Private modes that select the alternate screen (xterm's ctlseqs).
const ALTERNATE_SCREEN_MODES: [u16; 3] = [47, 1047, 1049];
/// Private mode for synchronized output: the terminal shows nothing until it ends.
const SYNCHRONIZED_MODE: u16 = 2026;

/// Bytes of the beginning of a string that are kept.
const MAX_STRING_PREFIX_BYTES: usize = 5;
/// Resets all colours, then those of text, background, cursor and selection; on a Linux console,
/// all (xterm's ctlseqs, console_codes(4)).
const RESET_COLOURS: &[u8] =
    b"\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b]112\x1b\\\x1b]117\x1b\\\x1b]119\x1b\\\x1b]R\x1b\\";

/// Ends an unfinished control sequence (CAN) or string (ST).
pub const END_UNFINISHED_SEQUENCE: &[u8] = b"\x18\x1b\\";

/// Position of the text within a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SequencePosition {
    #[default]
    Plain,
    /// After an escape.
    Escape,
    /// In a control sequence.
    Control,
    /// In a string: a title, a colour, a device control string.
    Text,
    /// In a string, after an escape.
    TextEscape,
}

/// Part of the text.
enum OutputToken {
    Plain(u8),
    /// A whole sequence, with its escape.
    Sequence(Vec<u8>),
    /// End of a string, of which only the beginning is kept.
    Text(Vec<u8>),
}

/// Parser that splits text into parts.
#[derive(Debug, Default)]
struct SequenceParser {
    sequence_position: SequencePosition,
    sequence: Vec<u8>,
    /// The beginning of a string.
    text: Vec<u8>,
}

impl SequenceParser {
    /// Returns the part that ends with this byte, if one does.
    fn next(&mut self, byte: u8) -> Option<OutputToken> {
        let ends = match self.sequence_position {
            SequencePosition::Text if byte == BELL => return self.end_text(SequencePosition::Plain),
            SequencePosition::Text if byte == ESCAPE => return self.end_text(SequencePosition::TextEscape),
            SequencePosition::Text => {
                if self.text.len() < MAX_STRING_PREFIX_BYTES {
                    self.text.push(byte);
                }
                return None;
            }
            SequencePosition::TextEscape if byte == b'\\' => return self.go_on(SequencePosition::Plain),
            // Any byte but the terminator cuts a string off.
            SequencePosition::TextEscape | SequencePosition::Escape if byte == b'[' => {
                return self.append_to_sequence(byte, SequencePosition::Control);
            }
            SequencePosition::TextEscape | SequencePosition::Escape if b"]PX^_".contains(&byte) => {
                self.sequence.clear();
                self.text = vec![byte];
                return self.go_on(SequencePosition::Text);
            }
            _ if byte == ESCAPE => {
                self.sequence = vec![ESCAPE];
                return self.go_on(SequencePosition::Escape);
            }
            SequencePosition::Plain => return Some(OutputToken::Plain(byte)),
            SequencePosition::TextEscape | SequencePosition::Escape => (0x30..=0x7e).contains(&byte),
            SequencePosition::Control => (0x40..=0x7e).contains(&byte),
        };
        if !ends {
            let sequence_position = if self.sequence_position == SequencePosition::TextEscape {
                SequencePosition::Escape
            } else {
                self.sequence_position
            };
            return self.append_to_sequence(byte, sequence_position);
        }
        self.append_to_sequence(byte, SequencePosition::Plain);
        Some(OutputToken::Sequence(mem::take(&mut self.sequence)))
    }

    fn go_on(&mut self, sequence_position: SequencePosition) -> Option<OutputToken> {
        self.sequence_position = sequence_position;
        None
    }

    fn end_text(&mut self, next: SequencePosition) -> Option<OutputToken> {
        self.sequence_position = next;
        Some(OutputToken::Text(mem::take(&mut self.text)))
    }

    fn append_to_sequence(&mut self, byte: u8, sequence_position: SequencePosition) -> Option<OutputToken> {
        if self.sequence.is_empty() {
            self.sequence.push(ESCAPE);
        }
        self.sequence.push(byte);
        // A longer sequence is not a sequence.
        self.go_on(if self.sequence.len() > MAX_SEQUENCE_BYTES { SequencePosition::Plain } else { sequence_position })
    }
}

/// Returns the part of earlier output that can be shown again. Leaves out queries, because the
/// terminal's answer would reach the command as keys that the user did not press, and strings.
/// Starts with a new line.
pub fn filter_replayable(shown: &[u8]) -> Vec<u8> {
    let mut parts = SequenceParser::default();
    let mut remaining = Vec::with_capacity(shown.len());
    for byte in shown {
        match parts.next(*byte) {
            Some(OutputToken::Plain(byte)) if byte != ENQUIRY => remaining.push(byte),
            Some(OutputToken::Sequence(sequence)) if !is_question(&sequence) => remaining.extend(sequence),
            _ => {}
        }
    }
    remaining
}

/// Returns whether a terminal answers the sequence.
fn is_question(sequence: &[u8]) -> bool {
    match sequence {
        [ESCAPE, b'Z'] => true,
        [ESCAPE, b'[', middle @ .., end] => match end {
            b'c' | b'n' | b'x' | b't' => true,
            b'p' => middle.contains(&b'$'),
            b'q' => middle.contains(&b'>'),
            b'u' => middle.contains(&b'?'),
            _ => false,
        },
        _ => false,
    }
}

/// Filter that keeps only text and its colours: for output of a run that does not own this
/// terminal.
#[derive(Debug, Default)]
pub struct TextOutputFilter {
    parts: SequenceParser,
    /// Possible first byte of a control character (U+0080 to U+009F in UTF-8).
    held: Option<u8>,
}

impl TextOutputFilter {
    /// Returns the part of the next bytes that is to be shown.
    pub fn filter_bytes(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut remaining = Vec::with_capacity(bytes.len());
        for byte in bytes {
            match self.parts.next(*byte) {
                Some(OutputToken::Plain(0x80..=0x9f)) if self.held.take().is_some() => {}
                Some(OutputToken::Plain(byte @ (b'\n' | b'\r' | b'\t' | 0x20..=0x7e | 0x80..))) => {
                    remaining.extend(self.held.take());
                    if byte == FIRST_CONTROL_BYTE { self.held = Some(byte) } else { remaining.push(byte) }
                }
                Some(OutputToken::Sequence(sequence)) if is_of_look(&sequence) => remaining.extend(sequence),
                _ => {}
            }
        }
        remaining
    }
}

/// First byte in UTF-8 of the characters U+0080 to U+00BF.
const FIRST_CONTROL_BYTE: u8 = 0xc2;

/// Returns whether a sequence only changes the look of text (SGR).
fn is_of_look(sequence: &[u8]) -> bool {
    let values = sequence.strip_prefix(b"\x1b[").and_then(|rest| rest.strip_suffix(b"m"));
    values.is_some_and(|values| values.iter().all(|byte| byte.is_ascii_digit() || b";:".contains(byte)))
}

/// Changes that a command made to a screen.
#[derive(Debug, Default)]
pub struct ScreenChanges {
    parts: SequenceParser,
    /// Private modes that differ from the initial ones.
    changed: BTreeSet<u16>,
    keypad: bool,
    /// Designations of the character sets that differ from the default.
    sets: BTreeMap<u8, Vec<u8>>,
    /// True if the second set is in use.
    shifted: bool,
    /// True if colours were changed.
    colours: bool,
}

impl ScreenChanges {
    /// Records shown output.
    pub fn record_output(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let [byte, behind @ ..] = rest {
            if self.parts.sequence_position == SequencePosition::Plain {
                // Most text contains no sequence.
                let plain = rest.iter().position(|byte| matches!(*byte, ESCAPE | SHIFT_OUT | SHIFT_IN));
                let Some(plain) = plain else { return };
                if plain > 0 {
                    rest = &rest[plain..];
                    continue;
                }
            }
            match self.parts.next(*byte) {
                Some(OutputToken::Sequence(sequence)) => self.record_sequence(&sequence),
                Some(OutputToken::Plain(SHIFT_OUT)) => self.shifted = true,
                Some(OutputToken::Plain(SHIFT_IN)) => self.shifted = false,
                Some(OutputToken::Text(text)) => self.colours |= is_of_colours(&text),
                Some(OutputToken::Plain(_)) | None => {}
            }
            rest = behind;
        }
    }

    fn record_sequence(&mut self, sequence: &[u8]) {
        match sequence {
            [ESCAPE, b'c'] => {
                let parts = mem::take(&mut self.parts);
                *self = Self { parts, ..Self::default() };
            }
            [ESCAPE, sequence_position, .., set] if CHARSET_DESIGNATORS.contains(sequence_position) => {
                if *set == b'B' {
                    self.sets.remove(sequence_position);
                } else {
                    self.sets.insert(*sequence_position, sequence.to_vec());
                }
            }
            [ESCAPE, b'='] => self.keypad = true,
            [ESCAPE, b'>'] => self.keypad = false,
            [ESCAPE, b'[', b'?', modes @ .., end @ (b'h' | b'l')] => {
                let modes =
                    modes.split(|byte| *byte == b';').filter_map(|mode| str::from_utf8(mode).ok()?.parse().ok());
                modes.for_each(|mode| self.set_mode(mode, *end == b'h'));
            }
            _ => {}
        }
    }

    fn set_mode(&mut self, mode: u16, on: bool) {
        if on == INITIAL_MODES.contains(&mode) {
            self.changed.remove(&mode);
        } else if self.changed.len() < MAX_MODES {
            self.changed.insert(mode);
        }
    }

    /// Returns the sequences that restore the initial state: modes, keypad, colours.
    pub fn restore_sequence(&self) -> Vec<u8> {
        let mut text: String =
            self.changed.iter().map(|mode| private_mode_sequence(*mode, INITIAL_MODES.contains(mode))).collect();
        text += if self.keypad { "\x1b>\x1b[m" } else { "\x1b[m" };
        text.into()
    }

    /// Returns the same after output that may be cut off in the middle; empty if nothing needs to
    /// be undone.
    pub fn clear_sequence(&self) -> Vec<u8> {
        let mut text = if self.parts.sequence_position == SequencePosition::Plain {
            Vec::new()
        } else {
            END_UNFINISHED_SEQUENCE.to_vec()
        };
        if self.colours {
            text.extend(RESET_COLOURS);
        }
        if !self.changed.is_empty() || self.keypad {
            text.extend(self.restore_sequence());
        }
        text
    }

    /// Returns the sequences that restore the command's state, except synchronized output.
    pub fn reinstate_sequence(&self) -> Vec<u8> {
        let remaining = self.changed.iter().filter(|mode| **mode != SYNCHRONIZED_MODE);
        let mut text = remaining
            .map(|mode| private_mode_sequence(*mode, !INITIAL_MODES.contains(mode)))
            .collect::<String>()
            .into_bytes();
        if self.keypad {
            text.extend(b"\x1b=");
        }
        self.sets.values().for_each(|sequence| text.extend(sequence));
        if self.shifted {
            text.push(SHIFT_OUT);
        }
        text
    }

    /// Returns whether the command uses the alternate screen.
    pub fn is_other(&self) -> bool {
        ALTERNATE_SCREEN_MODES.iter().any(|mode| self.changed.contains(mode))
    }
}

/// Returns whether a string, with its introducer, changes colours.
fn is_of_colours(text: &[u8]) -> bool {
    let Some(command) = text.strip_prefix(b"]") else { return false };
    let number = command.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match str::from_utf8(&command[..number]).unwrap_or_default().parse() {
        Ok(number @ 0_u16..) => matches!(number, 4 | 5 | 10..=19 | 21),
        Err(_) => command.first() == Some(&b'P'),
    }
}

fn private_mode_sequence(mode: u16, on: bool) -> String {
    format!("\x1b[?{mode}{}", if on { 'h' } else { 'l' })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(shown: &str, remaining: &str) {
        assert_eq!(String::from_utf8(filter_replayable(shown.as_bytes())).unwrap(), remaining);
    }

    #[test]
    fn terminal_queries_are_not_replayed() {
        check("a\x1b[31mb\r\n\u{e4}\x1b[2J\x1b[1;1H\x1b(B\x1b7", "a\x1b[31mb\r\n\u{e4}\x1b[2J\x1b[1;1H\x1b(B\x1b7");
        check("a\x1b[c\x1b[>c\x1b[6n\x1b[?6n\x1b[18t\x1b[?2026$p\x1b[>q\x1b[?u\x1bZ\x05b", "ab");
        check("\x1b]11;?\x07a\x1b]0;title\x1b\\b\x1bP+q544e\x1b\\c\x1b_x\x1b\\d", "abcd");
        // An unfinished sequence at either end is dropped, and nothing more.
        check("a\x1b", "a");
        check("a\x1b[31", "a");
        check("a\x1b]0;title", "a");
        // A string that another sequence cuts off does not hide a query.
        check("\x1b]0;x\x1b[6nb\x1b]0;\x1b]0;y\x07c", "bc");
        check(&format!("\x1b[{}c", "1;".repeat(100)), &format!("{}c", &"1;".repeat(100)[63..]));
    }

    #[test]
    fn harmful_control_sequences_are_left_out() {
        let mut harmless = TextOutputFilter::default();
        let shown = "a\x1b[1;31mred\x1b[m\x1b]0;title\x07\x1b[2J\x1b[?1049h\x1b[>4mb\u{e4}\x07\x08\x0e\tc\r\n\x1bP1$q\x1b\\d\u{9b}2Je\u{a9}";
        let remaining: Vec<u8> = shown.as_bytes().chunks(3).flat_map(|piece| harmless.filter_bytes(piece)).collect();
        assert_eq!(String::from_utf8(remaining).unwrap(), "a\x1b[1;31mred\x1b[mb\u{e4}\tc\r\nd2Je\u{a9}");
    }

    #[track_caller]
    fn undone(shown: &str, restoration: &str) {
        let mut screen = ScreenChanges::default();
        // However the output is split.
        shown.as_bytes().chunks(3).for_each(|piece| screen.record_output(piece));
        assert_eq!(String::from_utf8(screen.restore_sequence()).unwrap(), restoration);
    }

    #[test]
    fn changes_are_undone() {
        undone("hello\x1b[31m", "\x1b[m");
        undone("\x1b[?1049h\x1b[?1h\x1b=\x1b[?25l", "\x1b[?1l\x1b[?25h\x1b[?1049l\x1b>\x1b[m");
        undone("\x1b[?1049;2004h\x1b[?25l\x1b[?1049;2004l\x1b[?25h", "\x1b[m");
        undone("\x1b[?1000;1006h", "\x1b[?1000l\x1b[?1006l\x1b[m");
        undone("\x1b[?1049h\x1b=\x1bc", "\x1b[m");
        undone("\x1b[?7l\x1b[?h\x1b[?99999h\x1b[4h", "\x1b[?7h\x1b[m");
        let all: String = (100..1000).map(|mode| format!("\x1b[?{mode}h")).collect();
        let mut screen = ScreenChanges::default();
        screen.record_output(all.as_bytes());
        assert!(screen.restore_sequence().len() < 1000);
    }

    #[track_caller]
    fn put_back(shown: &str, cleared: &str, reinstated: &str) {
        let mut screen = ScreenChanges::default();
        shown.as_bytes().chunks(3).for_each(|piece| screen.record_output(piece));
        assert_eq!(String::from_utf8(screen.clear_sequence()).unwrap(), cleared);
        assert_eq!(String::from_utf8(screen.reinstate_sequence()).unwrap(), reinstated);
    }

    #[test]
    fn colours_get_their_look_again() {
        for shown in ["\x1b]4;1;#000\x07", "\x1b]10;#000\x1b\\", "\x1b]11;?\x07", "\x1b]P1000000\x1b\\"] {
            put_back(shown, str::from_utf8(RESET_COLOURS).unwrap(), "");
        }
        put_back("\x1b]0;title\x07\x1b]8;;http://x\x07\x1bP10;1\x1b\\\x1b]133;A\x07", "", "");
    }

    #[test]
    fn cleared_content_is_put_back() {
        put_back("hello, w\u{f6}rld\x1b[31m", "", "");
        put_back("\x1b[?1049h\x1b=\x1b[?25l", "\x1b[?25h\x1b[?1049l\x1b>\x1b[m", "\x1b[?25l\x1b[?1049h\x1b=");
        put_back("\x1b(0\x1b)A\x0eqqq", "", "\x1b(0\x1b)A\x0e");
        put_back("\x1b(0\x1b(B\x0e\x0f", "", "");
        put_back("\x1b[?2026hx", "\x1b[?2026l\x1b[m", "");
        // Cut off in the middle.
        put_back("x\x1b[3", "\x18\x1b\\", "");
        put_back("x\x1b]0;title", "\x18\x1b\\", "");
        put_back("\x1b[?1049h\x1b(0\x0e\x1bcx", "", "");
    }
}
