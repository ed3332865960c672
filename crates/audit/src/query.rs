//! Reads the entries of a log that match a filter, in order.
//!
//! A line that cannot be read is returned as such and hides no later line. It matches every filter,
//! because its content is unknown. The chain is not checked here, see [`verify`](crate::verify).

use std::fs::File;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stockade_model::{Event, RawText, RequestId, SessionId};

use crate::line::{self, LineFault};
use crate::log::LineNumber;
use crate::log_directory::{FileLock, LogDirectory, LogFileError, system_error};
use crate::scan::{LOG_NAME, LineReader};

/// Selection of entries. Every field that is set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryFilter {
    /// Only this request.
    pub request: Option<RequestId>,
    /// Only this session.
    pub session: Option<SessionId>,
    /// Only this type, as the log writes it: `denied`, `starting`.
    pub kind: Option<String>,
    /// Earliest time, in milliseconds since the epoch.
    pub since_ms: Option<u64>,
    /// Time before which entries match, in milliseconds since the epoch.
    pub until_ms: Option<u64>,
    /// Text that one of its strings must contain literally.
    pub text: Option<String>,
}

/// Line of a log.
#[derive(Clone, Debug, PartialEq)]
pub struct LogEntry {
    /// Line number, from 1.
    pub line: u64,
    /// Content of the line.
    pub content: EntryContent,
}

/// Content of a line.
#[derive(Clone, Debug, PartialEq)]
pub enum EntryContent {
    /// An event.
    Event {
        /// Number of the line.
        seq: LineNumber,
        /// The event.
        event: Box<Event>,
    },
    /// A valid line with an event that this version does not know.
    Unknown {
        /// Number of the line.
        seq: LineNumber,
        /// JSON of the event. Text in it is not escaped for a terminal.
        event: Value,
    },
    /// A line that is not valid.
    Broken {
        /// The fault.
        why: LineFault,
        /// Bytes of the line; empty if it is too long.
        bytes: RawText,
    },
}

/// Error if a log cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The directory or a file cannot be read.
    #[error(transparent)]
    LogFile(#[from] LogFileError),
    /// The log became shorter while it was read.
    #[error("`{}` became shorter while it was read", RawText::from(path.as_path()))]
    Shortened {
        /// The file.
        path: PathBuf,
    },
    /// There is no log.
    #[error("there is no audit log in `{}`\nhint: name the directory that holds `{LOG_NAME}`", RawText::from(dir.as_path()))]
    NoLog {
        /// Directory.
        dir: PathBuf,
    },
}

/// Starts to read the log in `dir` in its current state; later lines are omitted.
///
/// # Errors
/// [`QueryError`] if there is no log or it cannot be opened.
pub fn query_log(dir: &Path, filter: EntryFilter) -> Result<LogQuery, QueryError> {
    let directory = LogDirectory::open_existing(dir)?;
    let path = dir.join(LOG_NAME);
    let log = directory.open_to_read(LOG_NAME)?.ok_or_else(|| QueryError::NoLog { dir: dir.to_owned() })?;
    let lock = FileLock::lock_shared(&log, &path)?;
    let size = log.metadata().map_err(system_error("examine", &path))?.len();
    drop(lock);
    Ok(LogQuery { lines: LineReader::new(log, 0, size), path, filter, line: 0, failed: false })
}

/// Iterator over the entries. Ends after the first error.
pub struct LogQuery {
    lines: LineReader<File>,
    path: PathBuf,
    filter: EntryFilter,
    line: u64,
    failed: bool,
}

impl LogQuery {
    /// Continues with the lines that were appended since, after the previous ones.
    ///
    /// # Errors
    /// [`QueryError`] if the log cannot be examined, or became shorter and is therefore another
    /// log.
    pub fn read_appended_lines(&mut self) -> Result<(), QueryError> {
        let lock = FileLock::lock_shared(self.lines.file(), &self.path)?;
        let size = self.lines.file().metadata().map_err(system_error("examine", &self.path))?.len();
        drop(lock);
        match self.lines.extend(size) {
            true => Ok(()),
            false => Err(QueryError::Shortened { path: self.path.clone() }),
        }
    }
}

impl Iterator for LogQuery {
    type Item = Result<LogEntry, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.failed {
            let piece = match self.lines.next_piece() {
                Ok(piece) => piece?,
                Err(source) => {
                    self.failed = true;
                    return Some(Err(system_error("read", &self.path)(source).into()));
                }
            };
            self.line += 1;
            let broken = |why, bytes: &[u8]| Some(EntryContent::Broken { why, bytes: bytes.into() });
            let content = if piece.too_long {
                broken(LineFault::TooLong, b"")
            } else if !piece.terminated {
                broken(LineFault::Malformed("no newline at its end"), &self.lines.bytes)
            } else {
                match line::parse_line(&self.lines.bytes) {
                    Ok(line) => self.filter.matching_content(&line),
                    Err(why) => broken(why, &self.lines.bytes),
                }
            };
            if let Some(content) = content {
                return Some(Ok(LogEntry { line: self.line, content }));
            }
        }
        None
    }
}

impl EntryFilter {
    /// Returns the content of a valid line, if it matches.
    fn matching_content(&self, line: &line::LogLine<'_>) -> Option<EntryContent> {
        let seq = LineNumber(line.seq);
        let Ok(value) = serde_json::from_slice::<Value>(line.event) else {
            let why = LineFault::Malformed("its event is nested too deeply");
            return Some(EntryContent::Broken { why, bytes: line.event.into() });
        };
        if !self.matches_event(&value) {
            return None;
        }
        Some(match serde_json::from_slice::<Event>(line.event) {
            Ok(event) => EntryContent::Event { seq, event: Box::new(event) },
            Err(_) => EntryContent::Unknown { seq, event: value },
        })
    }

    fn matches_event(&self, event: &Value) -> bool {
        let is =
            |expected: Option<&str>, found: &Value| expected.is_none_or(|expected| found.as_str() == Some(expected));
        let time_ms = event["time_ms"].as_u64().unwrap_or(0);
        is(self.request.as_ref().map(RequestId::as_str), &event["request"])
            && is(self.session.as_ref().map(SessionId::as_str), &event["session"])
            && is(self.kind.as_deref(), &event["kind"]["type"])
            && self.since_ms.is_none_or(|since| time_ms >= since)
            && self.until_ms.is_none_or(|until| time_ms < until)
            && self.text.as_deref().is_none_or(|text| any_text(event, text))
    }
}

fn any_text(value: &Value, text: &str) -> bool {
    match value {
        Value::String(s) => s.contains(text),
        Value::Array(values) => values.iter().any(|value| any_text(value, text)),
        Value::Object(fields) => fields.values().any(|value| any_text(value, text)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}
