//! A person's screen, on which a run's terminal is shown: what of the past can be
//! shown again, and what has to be undone when it is left. Knows the form of
//! control sequences (ECMA-48, xterm's ctlseqs), and of a few of them the meaning.

use std::collections::BTreeSet;
use std::mem;

/// The longest control sequence that is understood, in bytes.
const SEQUENCE_BYTES: usize = 64;
/// Modes that are remembered at most.
const MODES_MAX: usize = 64;
/// Private modes that a terminal begins with: wrapping, repeating, cursor shown.
const BEGUN_WITH: [u16; 3] = [7, 8, 25];
const ESCAPE: u8 = 0x1b;
const ENQUIRY: u8 = 0x05;
const BELL: u8 = 0x07;

/// Where in a sequence the text is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Plain,
    /// Behind an escape.
    Escape,
    /// In a control sequence.
    Control,
    /// In a string: a title, a colour, a device's own.
    Text,
    /// In a string, behind an escape.
    TextEscape,
}

/// A part of the text.
enum Part {
    Plain(u8),
    /// A whole sequence, with its escape.
    Sequence(Vec<u8>),
    /// The end of a string, which is not kept.
    Text,
}

/// Takes text apart.
#[derive(Debug, Default)]
struct Parts {
    place: Place,
    sequence: Vec<u8>,
}

impl Parts {
    /// What ends with this byte, if anything does.
    fn next(&mut self, byte: u8) -> Option<Part> {
        let ends = match self.place {
            Place::Text if byte == BELL => return self.end_text(),
            Place::Text => return self.go_on(if byte == ESCAPE { Place::TextEscape } else { Place::Text }),
            Place::TextEscape if byte == b'\\' => return self.end_text(),
            // Anything but its end cuts a string off.
            Place::TextEscape | Place::Escape if byte == b'[' => return self.keep(byte, Place::Control),
            Place::TextEscape | Place::Escape if b"]PX^_".contains(&byte) => return self.go_on(Place::Text),
            _ if byte == ESCAPE => {
                self.sequence = vec![ESCAPE];
                return self.go_on(Place::Escape);
            }
            Place::Plain => return Some(Part::Plain(byte)),
            Place::TextEscape | Place::Escape => (0x30..=0x7e).contains(&byte),
            Place::Control => (0x40..=0x7e).contains(&byte),
        };
        if !ends {
            let place = if self.place == Place::TextEscape { Place::Escape } else { self.place };
            return self.keep(byte, place);
        }
        self.keep(byte, Place::Plain);
        Some(Part::Sequence(mem::take(&mut self.sequence)))
    }

    fn go_on(&mut self, place: Place) -> Option<Part> {
        self.place = place;
        None
    }

    fn end_text(&mut self) -> Option<Part> {
        self.place = Place::Plain;
        Some(Part::Text)
    }

    fn keep(&mut self, byte: u8, place: Place) -> Option<Part> {
        if self.sequence.is_empty() {
            self.sequence.push(ESCAPE);
        }
        self.sequence.push(byte);
        // One that is longer is none.
        self.go_on(if self.sequence.len() > SEQUENCE_BYTES { Place::Plain } else { place })
    }
}

/// As much of what was shown before as can be shown again: not what asks the
/// terminal something, whose answer would reach the command as keys that nobody
/// pressed, and no strings. Begins with a line.
pub fn again(shown: &[u8]) -> Vec<u8> {
    let mut parts = Parts::default();
    let mut kept = Vec::with_capacity(shown.len());
    for byte in shown {
        match parts.next(*byte) {
            Some(Part::Plain(byte)) if byte != ENQUIRY => kept.push(byte),
            Some(Part::Sequence(sequence)) if !is_question(&sequence) => kept.extend(sequence),
            _ => {}
        }
    }
    kept
}

/// Whether a terminal answers to it.
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

/// What was made of a screen.
#[derive(Debug, Default)]
pub struct Screen {
    parts: Parts,
    /// Private modes that are not as in the beginning.
    changed: BTreeSet<u16>,
    keypad: bool,
}

impl Screen {
    /// This was shown on it.
    pub fn shown(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if let Some(Part::Sequence(sequence)) = self.parts.next(*byte) {
                self.note(&sequence);
            }
        }
    }

    fn note(&mut self, sequence: &[u8]) {
        match sequence {
            [ESCAPE, b'c'] => (self.changed, self.keypad) = (BTreeSet::new(), false),
            [ESCAPE, b'='] => self.keypad = true,
            [ESCAPE, b'>'] => self.keypad = false,
            [ESCAPE, b'[', b'?', modes @ .., end @ (b'h' | b'l')] => {
                let modes =
                    modes.split(|byte| *byte == b';').filter_map(|mode| str::from_utf8(mode).ok()?.parse().ok());
                modes.for_each(|mode| self.set(mode, *end == b'h'));
            }
            _ => {}
        }
    }

    fn set(&mut self, mode: u16, on: bool) {
        if on == BEGUN_WITH.contains(&mode) {
            self.changed.remove(&mode);
        } else if self.changed.len() < MODES_MAX {
            self.changed.insert(mode);
        }
    }

    /// Makes it again what it was: modes, keypad, colours.
    pub fn restoration(&self) -> Vec<u8> {
        let mut text = String::new();
        for mode in &self.changed {
            text += &format!("\x1b[?{mode}{}", if BEGUN_WITH.contains(mode) { 'h' } else { 'l' });
        }
        text += if self.keypad { "\x1b>\x1b[m" } else { "\x1b[m" };
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(shown: &str, kept: &str) {
        assert_eq!(String::from_utf8(again(shown.as_bytes())).unwrap(), kept);
    }

    #[test]
    fn what_asks_is_not_shown_again() {
        check("a\x1b[31mb\r\n\u{e4}\x1b[2J\x1b[1;1H\x1b(B\x1b7", "a\x1b[31mb\r\n\u{e4}\x1b[2J\x1b[1;1H\x1b(B\x1b7");
        check("a\x1b[c\x1b[>c\x1b[6n\x1b[?6n\x1b[18t\x1b[?2026$p\x1b[>q\x1b[?u\x1bZ\x05b", "ab");
        check("\x1b]11;?\x07a\x1b]0;title\x1b\\b\x1bP+q544e\x1b\\c\x1b_x\x1b\\d", "abcd");
        // What is cut off, at either end, is no more than that.
        check("a\x1b", "a");
        check("a\x1b[31", "a");
        check("a\x1b]0;title", "a");
        // A string that another sequence cuts off hides no question.
        check("\x1b]0;x\x1b[6nb\x1b]0;\x1b]0;y\x07c", "bc");
        check(&format!("\x1b[{}c", "1;".repeat(100)), &format!("{}c", &"1;".repeat(100)[63..]));
    }

    #[track_caller]
    fn undone(shown: &str, restoration: &str) {
        let mut screen = Screen::default();
        // However it is cut.
        shown.as_bytes().chunks(3).for_each(|piece| screen.shown(piece));
        assert_eq!(String::from_utf8(screen.restoration()).unwrap(), restoration);
    }

    #[test]
    fn what_was_changed_is_undone() {
        undone("hello\x1b[31m", "\x1b[m");
        undone("\x1b[?1049h\x1b[?1h\x1b=\x1b[?25l", "\x1b[?1l\x1b[?25h\x1b[?1049l\x1b>\x1b[m");
        undone("\x1b[?1049;2004h\x1b[?25l\x1b[?1049;2004l\x1b[?25h", "\x1b[m");
        undone("\x1b[?1000;1006h", "\x1b[?1000l\x1b[?1006l\x1b[m");
        undone("\x1b[?1049h\x1b=\x1bc", "\x1b[m");
        undone("\x1b[?7l\x1b[?h\x1b[?99999h\x1b[4h", "\x1b[?7h\x1b[m");
        let all: String = (100..1000).map(|mode| format!("\x1b[?{mode}h")).collect();
        let mut screen = Screen::default();
        screen.shown(all.as_bytes());
        assert!(screen.restoration().len() < 1000);
    }
}
