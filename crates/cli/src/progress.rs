//! Progress of a long task: a line on the terminal, which is erased at the end.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Shortest interval between two updates.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);

/// The progress line. Not shown if standard error is not a terminal.
pub struct ProgressLine {
    is_shown: bool,
    shown_at: Option<Instant>,
}

impl ProgressLine {
    /// Creates a progress line for the terminal at standard error.
    pub fn new() -> Self {
        Self { is_shown: io::stderr().is_terminal(), shown_at: None }
    }

    /// Replaces the shown text, unless it was replaced a moment ago. The text is Stockade's own,
    /// and shorter than a line.
    pub fn show_text(&mut self, text: impl FnOnce() -> String) {
        if self.is_shown && self.shown_at.is_none_or(|shown_at| shown_at.elapsed() >= UPDATE_INTERVAL) {
            self.shown_at = Some(Instant::now());
            write_stderr(&format!("\r\u{1b}[K{}", text()));
        }
    }

    /// Erases the line.
    pub fn clear(&mut self) {
        if self.shown_at.take().is_some() {
            write_stderr("\r\u{1b}[K");
        }
    }
}

/// Writes to standard error and ignores failures, because no result depends on the line.
fn write_stderr(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
