//! Exports entries for other programs: as a JSON array or CSV.
//!
//! Strings keep the log's escapes, so that the result is as harmless on a terminal as the log.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

use crate::line::value_json;
use crate::query::{EntryContent, LogEntry, LogQuery, QueryError};

/// Format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// One array; each entry is an object with `line`, `seq`, `event`, `error`.
    Json,
    /// A header, then a record for each entry (RFC 4180): `line`, `seq`, `time_ms`, `request`,
    /// `session`, `type`, `error`, `event` as JSON.
    Csv,
}

/// Error if an export is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The log could not be read.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The result could not be written.
    #[error("cannot write the export: {0}")]
    Write(#[from] io::Error),
}

/// Fields of one entry for both formats.
#[derive(Serialize)]
struct ExportRow {
    line: u64,
    seq: Option<u64>,
    event: Value,
    error: Option<String>,
}

impl ExportRow {
    fn from_entry(entry: LogEntry) -> serde_json::Result<Self> {
        let line = entry.line;
        let (seq, event, error) = match entry.content {
            EntryContent::Event { seq, event } => (Some(seq.0), serde_json::to_value(event)?, None),
            EntryContent::Unknown { seq, event } => (Some(seq.0), event, None),
            EntryContent::Broken { why, .. } => (None, Value::Null, Some(why.to_string())),
        };
        Ok(Self { line, seq, event, error })
    }
}

/// Writes the entries of `query` to `out`; returns their number.
///
/// # Errors
/// [`ExportError`] if the log cannot be read to its end, or `out` cannot be written.
pub fn export_entries(query: LogQuery, format: ExportFormat, out: &mut dyn Write) -> Result<u64, ExportError> {
    let mut count = 0;
    out.write_all(match format {
        ExportFormat::Json => b"[",
        ExportFormat::Csv => b"line,seq,time_ms,request,session,type,error,event\r\n",
    })?;
    for entry in query {
        let row = ExportRow::from_entry(entry?).map_err(io::Error::from)?;
        match format {
            ExportFormat::Json => {
                out.write_all(if count == 0 { b"\n" } else { b",\n" })?;
                out.write_all(&value_json(&row).map_err(io::Error::from)?)?;
            }
            ExportFormat::Csv => out.write_all(csv_line(&row)?.as_bytes())?,
        }
        count += 1;
    }
    if format == ExportFormat::Json {
        out.write_all(b"\n]\n")?;
    }
    out.flush()?;
    Ok(count)
}

fn csv_line(row: &ExportRow) -> io::Result<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: Option<u64>| value.map(|n| n.to_string()).unwrap_or_default();
    let json = if row.event.is_null() { Vec::new() } else { value_json(&row.event).map_err(io::Error::from)? };
    let fields = [
        row.line.to_string(),
        number(row.seq),
        number(row.event["time_ms"].as_u64()),
        text(&row.event["request"]),
        text(&row.event["session"]),
        text(&row.event["kind"]["type"]),
        row.error.clone().unwrap_or_default(),
        String::from_utf8_lossy(&json).into_owned(),
    ];
    let quoted: Vec<String> = fields.iter().map(|field| format!("\"{}\"", field.replace('"', "\"\""))).collect();
    Ok(quoted.join(",") + "\r\n")
}
