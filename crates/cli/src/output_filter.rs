//! Filter for output that reaches the user's terminal. It drops sequences that write or read the
//! clipboard, and sequences that pass text through to another terminal unseen (xterm's ctlseqs; the
//! manuals of kitty, iTerm2 and tmux). Otherwise a user could paste text that a command has put
//! into the clipboard. The filter does not depend on other parts of the screen.

use std::borrow::Cow;
use std::mem;

/// Operating system commands that access the clipboard, or may do so.
const CLIPBOARD_COMMANDS: [u32; 3] = [52, 5522, 1337];
/// Start of a device control string that tmux(1) passes through.
const TMUX_PASSTHROUGH: &[u8] = b"tmux;";
/// Longest start of a string that is examined, in bytes.
const MAX_PREFIX_BYTES: usize = 16;
const ESCAPE: u8 = 0x1b;
const BELL: u8 = 0x07;
const CANCEL: u8 = 0x18;
const SUBSTITUTE: u8 = 0x1a;

/// Position of the output within a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FilterPosition {
    #[default]
    Plain,
    /// After an escape, which is held back.
    Escape,
    /// In the number of an operating system command, which is held back.
    Number,
    /// At the start of a device control string, which is held back.
    Device,
    /// In a string that passes.
    Text,
    /// In a string that is dropped.
    Dropped,
    /// In a dropped string, after an escape.
    DroppedEscape,
}

/// Filters output, however it is split.
#[derive(Debug, Default)]
pub struct OutputFilter {
    position: FilterPosition,
    held: Vec<u8>,
}

impl OutputFilter {
    /// Returns the part of the next bytes that passes.
    pub fn filter_bytes<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        if self.position == FilterPosition::Plain && !bytes.contains(&ESCAPE) {
            return Cow::Borrowed(bytes);
        }
        let mut out = Vec::with_capacity(bytes.len());
        for byte in bytes {
            while !self.consume_byte(*byte, &mut out) {}
        }
        Cow::Owned(out)
    }

    /// Returns whether the byte was consumed; otherwise it belongs to the next state.
    fn consume_byte(&mut self, byte: u8, out: &mut Vec<u8>) -> bool {
        match (self.position, byte) {
            (FilterPosition::Plain | FilterPosition::Text, ESCAPE) => self.hold_byte(byte, FilterPosition::Escape),
            (FilterPosition::Plain, _) => out.push(byte),
            (FilterPosition::Text, _) => {
                out.push(byte);
                if matches!(byte, BELL | CANCEL | SUBSTITUTE) {
                    self.position = FilterPosition::Plain;
                }
            }
            (FilterPosition::Escape, b']') => self.hold_byte(byte, FilterPosition::Number),
            (FilterPosition::Escape, b'P') => self.hold_byte(byte, FilterPosition::Device),
            (FilterPosition::Escape, _) => {
                out.append(&mut self.held);
                self.position = FilterPosition::Plain;
                return byte != ESCAPE && self.consume_byte(byte, out);
            }
            (FilterPosition::Number, b'0'..=b'9') if self.held.len() < MAX_PREFIX_BYTES => {
                self.hold_byte(byte, FilterPosition::Number)
            }
            (FilterPosition::Number, _) => {
                let number = str::from_utf8(&self.held[2..]).ok().and_then(|digits| digits.parse().ok());
                return self.decide_prefix(number.is_some_and(|number: u32| CLIPBOARD_COMMANDS.contains(&number)), out);
            }
            (FilterPosition::Device, _) if TMUX_PASSTHROUGH.get(self.held.len() - 2) == Some(&byte) => {
                self.hold_byte(byte, FilterPosition::Device)
            }
            (FilterPosition::Device, _) => return self.decide_prefix(self.held[2..] == *TMUX_PASSTHROUGH, out),
            (FilterPosition::Dropped, BELL | CANCEL | SUBSTITUTE) | (FilterPosition::DroppedEscape, b'\\') => {
                self.position = FilterPosition::Plain
            }
            (FilterPosition::Dropped, ESCAPE) => self.position = FilterPosition::DroppedEscape,
            (FilterPosition::Dropped, _) => {}
            (FilterPosition::DroppedEscape, _) => {
                // Any other byte after the escape ends the string.
                self.hold_byte(ESCAPE, FilterPosition::Escape);
                return false;
            }
        }
        true
    }

    fn hold_byte(&mut self, byte: u8, position: FilterPosition) {
        self.held.push(byte);
        self.position = position;
    }

    /// Drops or passes the examined start of a string.
    fn decide_prefix(&mut self, drops: bool, out: &mut Vec<u8>) -> bool {
        let mut held = mem::take(&mut self.held);
        if drops {
            self.position = FilterPosition::Dropped;
        } else {
            out.append(&mut held);
            self.position = FilterPosition::Text;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(shown: &str, expected: &str) {
        for length in 1..=shown.len() {
            let mut passed = OutputFilter::default();
            let output: Vec<u8> =
                shown.as_bytes().chunks(length).flat_map(|piece| passed.filter_bytes(piece).into_owned()).collect();
            assert_eq!(String::from_utf8_lossy(&output), expected, "{shown:?} by {length}");
        }
    }

    #[test]
    fn the_clipboard_is_nobodys_to_write() {
        check("a\x1b]52;c;eA==\x07b", "ab");
        check("a\x1b]052;c;eA==\x1b\\b", "ab");
        check("a\x1b]5522;type=write\x1b\\b\x1b]1337;CopyToClipboard=\x07c", "abc");
        check("a\x1bPtmux;\x1b\x1b]52;c;eA==\x07\x1b\\b", "a\x1b\x1b\\b");
        check("a\x1bP\x1b]52;c;eA==\x07\x1b\\b", "a\x1bP\x1b\\b");
        check("a\x1b\x1b]52;c;eA==\x07b", "a\x1bb");
        // An unfinished sequence is dropped, and nothing more.
        check("a\x1b]52;c\x1b[31mb\x1b]52;c\x18d", "a\x1b[31mbd");
        check("a\x1b]52", "a");
    }

    #[test]
    fn all_else_passes() {
        for shown in [
            "a\x1b[31mb\r\n\u{e4}\x1b[2J\x1b[1;1H\x1b(B\x1b7",
            "a\x1b]0;title\x07b\x1b]8;;http://x\x1b\\c\x1b]4;1;#000\x07\x1b]P1000000d",
            "\x1bP1$r0m\x1b\\a\x1bPtm\x1b\\b\x1b\x1b[A",
            "\x1b]99999999999999999999;x\x07a",
        ] {
            check(shown, shown);
        }
    }
}
