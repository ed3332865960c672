//! The key sequence that detaches a terminal from its run, which continues. Detects it in the
//! input. The notation is that of Docker: `ctrl-p,ctrl-q`.

use std::str::FromStr;

/// Most keys in a sequence.
const MAX_KEYS: usize = 8;

/// Sequence of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetachKeys(Vec<u8>);

impl FromStr for DetachKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let keys = text.split(',').map(parse_key).collect::<Option<Vec<u8>>>();
        keys.filter(|keys| keys.len() <= MAX_KEYS).map(Self).ok_or_else(|| {
            format!("write one to {MAX_KEYS} keys with commas between them, each a character or ctrl- and one of a-z @ [ \\ ] ^ _")
        })
    }
}

/// Returns the byte that a key sends.
fn parse_key(name: &str) -> Option<u8> {
    match (name.strip_prefix("ctrl-").unwrap_or_default().as_bytes(), name.as_bytes()) {
        ([of @ (b'a'..=b'z' | b'@' | b'['..=b'_')], _) => Some(of & 0x1f),
        (_, [plain @ b'!'..=b'~']) => Some(*plain),
        _ => None,
    }
}

impl std::fmt::Display for DetachKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |key: &u8| match key {
            0..0x20 => format!("Ctrl-{}", char::from(key | 0x40)),
            plain => char::from(*plain).to_string(),
        };
        f.write_str(&self.0.iter().map(name).collect::<Vec<_>>().join(" "))
    }
}

/// Detects the sequence in the input.
#[derive(Debug)]
pub struct DetachDetector {
    keys: DetachKeys,
    /// Number of keys of the sequence that were pressed and not passed on.
    held: usize,
}

impl DetachDetector {
    /// Creates a detector of this sequence.
    pub fn new(keys: DetachKeys) -> Self {
        Self { keys, held: 0 }
    }

    /// Returns the bytes that are passed to the run, and whether the terminal detaches. Bytes after
    /// the sequence are dropped. A beginning of the sequence is held back until another key
    /// follows.
    pub fn filter_keys(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut passed = Vec::with_capacity(bytes.len());
        for byte in bytes {
            let mut pressed = self.keys.0[..self.held].to_vec();
            pressed.push(*byte);
            // The longest suffix of the pressed keys that is a beginning of the sequence.
            let begins = |from: &usize| self.keys.0.starts_with(&pressed[*from..]);
            let from = (0..pressed.len()).find(begins).unwrap_or(pressed.len());
            passed.extend_from_slice(&pressed[..from]);
            self.held = pressed.len() - from;
            if self.held == self.keys.0.len() {
                self.held = 0;
                return (passed, true);
            }
        }
        (passed, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_named() {
        for (text, bytes, shown) in [
            ("ctrl-p,ctrl-q", &[16, 17][..], "Ctrl-P Ctrl-Q"),
            ("ctrl-@", &[0], "Ctrl-@"),
            ("ctrl-[,d", &[27, b'd'], "Ctrl-[ d"),
            ("ctrl-],ctrl-_,ctrl-\\,~", &[29, 31, 28, b'~'], "Ctrl-] Ctrl-_ Ctrl-\\ ~"),
        ] {
            let keys: DetachKeys = text.parse().unwrap();
            assert_eq!((keys.0.as_slice(), keys.to_string().as_str()), (bytes, shown));
        }
        for text in
            ["", "ctrl-", "ctrl-P", "ctrl-1", "ab", "a,,b", "a,", "ctrl-p ctrl-q", "\u{e4}", "a,a,a,a,a,a,a,a,a"]
        {
            assert!(text.parse::<DetachKeys>().is_err(), "{text}");
        }
    }

    /// Passes the pieces one by one, and checks the output of all together.
    #[track_caller]
    fn check(keys: &str, pieces: &[&str], passed: &str, leaves: bool) {
        let mut lookout = DetachDetector::new(keys.parse().unwrap());
        let mut all = Vec::new();
        let mut has_detached = false;
        for piece in pieces {
            assert!(!has_detached, "it went on");
            let (some, leave) = lookout.filter_keys(piece.as_bytes());
            all.extend(some);
            has_detached = leave;
        }
        assert_eq!((String::from_utf8(all).unwrap().as_str(), has_detached), (passed, leaves), "{pieces:?}");
    }

    #[test]
    fn the_sequence_leaves_and_all_else_is_passed_on() {
        check("ctrl-p,ctrl-q", &["ab\u{10}\u{11}cd"], "ab", true);
        check("ctrl-p,ctrl-q", &["\u{10}", "\u{11}"], "", true);
        check("ctrl-p,ctrl-q", &["\u{10}", "x", "\u{11}"], "\u{10}x\u{11}", false);
        check("ctrl-p,ctrl-q", &["\u{10}\u{10}", "\u{10}\u{11}"], "\u{10}\u{10}", true);
        check("ctrl-p,ctrl-q", &["a\u{10}"], "a", false);
        check("a,a,b", &["aaab"], "a", true);
        check("a,b,a,c", &["abab", "ac"], "ab", true);
        check("q", &["xq"], "x", true);
    }
}
