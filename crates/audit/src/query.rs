//! Reading: the entries of a log that fit a filter, in order.
//!
//! A line that cannot be read is shown as such and hides nothing behind it; it
//! fits every filter, because what it was is not known. Whether the chain holds
//! is not asked here, see [`verify`](crate::verify).

use std::fs::File;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stockade_model::{Event, RawText, RequestId, SessionId};

use crate::line::{self, Fault};
use crate::log::Seq;
use crate::place::{FileLock, Place, PlaceError, system};
use crate::scan::{LOG_NAME, Lines};

/// What to show. Every field that is set must fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this request.
    pub request: Option<RequestId>,
    /// Of this session.
    pub session: Option<SessionId>,
    /// Of this type, as the log writes it: `denied`, `starting`.
    pub kind: Option<String>,
    /// Not before, in milliseconds since the epoch.
    pub since_ms: Option<u64>,
    /// Before this, in milliseconds since the epoch.
    pub until_ms: Option<u64>,
    /// With this in one of its texts, letter for letter.
    pub text: Option<String>,
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Line number, from 1.
    pub line: u64,
    /// What it holds.
    pub content: Content,
}

/// What a line holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// An event.
    Event {
        /// Its number.
        seq: Seq,
        /// It.
        event: Box<Event>,
    },
    /// A sound line with an event that this version does not know.
    Unknown {
        /// Its number.
        seq: Seq,
        /// Its JSON. Text in it is not escaped for a terminal.
        event: Value,
    },
    /// A line that is not sound.
    Broken {
        /// Why.
        why: Fault,
        /// Its bytes; empty where it is too long.
        bytes: RawText,
    },
}

/// Why a log cannot be read, or not further.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The directory or a file cannot be read.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// It became shorter while it was read.
    #[error("`{}` became shorter while it was read", RawText::from(path.as_path()))]
    Shortened {
        /// The file.
        path: PathBuf,
    },
    /// There is none.
    #[error("there is no audit log in `{}`\nhint: name the directory that holds `{LOG_NAME}`", RawText::from(dir.as_path()))]
    NoLog {
        /// Directory.
        dir: PathBuf,
    },
}

/// Starts reading the log in `dir` as it is now; what is appended meanwhile is
/// left out.
///
/// # Errors
/// When there is no log or it cannot be opened.
pub fn query(dir: &Path, filter: Filter) -> Result<Query, QueryError> {
    let place = Place::open_existing(dir)?;
    let path = dir.join(LOG_NAME);
    let log = place.open_to_read(LOG_NAME)?.ok_or_else(|| QueryError::NoLog { dir: dir.to_owned() })?;
    let lock = FileLock::shared(&log, &path)?;
    let size = log.metadata().map_err(system("examine", &path))?.len();
    drop(lock);
    Ok(Query { lines: Lines::new(log, 0, size), path, filter, line: 0, failed: false })
}

/// The entries, one by one. Ends after the first error.
pub struct Query {
    lines: Lines<File>,
    path: PathBuf,
    filter: Filter,
    line: u64,
    failed: bool,
}

impl Query {
    /// Goes on with what was appended since, behind what was there before.
    ///
    /// # Errors
    /// When the log cannot be examined, or became shorter: then it is another.
    pub fn look_again(&mut self) -> Result<(), QueryError> {
        let lock = FileLock::shared(self.lines.file(), &self.path)?;
        let size = self.lines.file().metadata().map_err(system("examine", &self.path))?.len();
        drop(lock);
        match self.lines.extend(size) {
            true => Ok(()),
            false => Err(QueryError::Shortened { path: self.path.clone() }),
        }
    }
}

impl Iterator for Query {
    type Item = Result<Entry, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.failed {
            let piece = match self.lines.next_piece() {
                Ok(piece) => piece?,
                Err(source) => {
                    self.failed = true;
                    return Some(Err(system("read", &self.path)(source).into()));
                }
            };
            self.line += 1;
            let broken = |why, bytes: &[u8]| Some(Content::Broken { why, bytes: bytes.into() });
            let content = if piece.too_long {
                broken(Fault::TooLong, b"")
            } else if !piece.terminated {
                broken(Fault::Malformed("no newline at its end"), &self.lines.bytes)
            } else {
                match line::parse(&self.lines.bytes) {
                    Ok(line) => self.filter.content(&line),
                    Err(why) => broken(why, &self.lines.bytes),
                }
            };
            if let Some(content) = content {
                return Some(Ok(Entry { line: self.line, content }));
            }
        }
        None
    }
}

impl Filter {
    /// The content of a sound line, if it fits.
    fn content(&self, line: &line::Line<'_>) -> Option<Content> {
        let seq = Seq(line.seq);
        let Ok(value) = serde_json::from_slice::<Value>(line.event) else {
            let why = Fault::Malformed("its event is nested too deeply");
            return Some(Content::Broken { why, bytes: line.event.into() });
        };
        if !self.fits(&value) {
            return None;
        }
        Some(match serde_json::from_slice::<Event>(line.event) {
            Ok(event) => Content::Event { seq, event: Box::new(event) },
            Err(_) => Content::Unknown { seq, event: value },
        })
    }

    fn fits(&self, event: &Value) -> bool {
        let is = |wanted: Option<&str>, found: &Value| wanted.is_none_or(|wanted| found.as_str() == Some(wanted));
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
