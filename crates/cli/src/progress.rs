//! How far something long is: a line on the terminal, which goes when it is over.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often it is told.
const EVERY: Duration = Duration::from_millis(100);

/// The line. There is none where nobody watches.
pub struct Progress {
    is_shown: bool,
    told: Option<Instant>,
}

impl Progress {
    /// For whoever sits at the standard errors.
    pub fn new() -> Self {
        Self { is_shown: io::stderr().is_terminal(), told: None }
    }

    /// Shows this in place of what was shown, unless that was a moment ago. It is our
    /// own text alone, and shorter than a line.
    pub fn say(&mut self, text: impl FnOnce() -> String) {
        if self.is_shown && self.told.is_none_or(|told| told.elapsed() >= EVERY) {
            self.told = Some(Instant::now());
            put(&format!("\r\u{1b}[K{}", text()));
        }
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if self.told.take().is_some() {
            put("\r\u{1b}[K");
        }
    }
}

/// Nothing depends on it.
fn put(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
