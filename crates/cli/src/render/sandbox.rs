//! Persistent sandboxes as text: one line for each, or all details of one.

use std::fmt::Write as _;

use stockade_files::OmittedObject;
use stockade_model::SandboxUsage;
use stockade_model::{FinalStatus, RawText, SandboxId, SandboxRecord, SandboxState, WorkspaceSource};
use stockade_store::sandboxes::CommandRecord;

use super::audit::format_utc;
use super::{escape_text, name_of};

/// Most omitted objects that are named.
const MAX_OMITTED_SHOWN: usize = 20;

/// Formats one sandbox on one line.
pub fn format_line(record: &SandboxRecord) -> String {
    let SandboxRecord { id, spec, state, created_ms, .. } = record;
    let labels: Vec<String> = spec.labels.iter_labels().map(|(key, value)| format_label(key, value)).collect();
    let line = format!("{id}  {}  {state}  {}  {}", format_utc(*created_ms), spec.profile, source(&spec.workspace));
    let line = format!("{line}  {}", labels.join(" "));
    format!("{}\n", line.trim_end())
}

/// Formats all details of one sandbox.
pub fn format_details(record: &SandboxRecord) -> String {
    let spec = &record.spec;
    let mut out = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name:<10} {value}");
    };
    line("id", record.id.as_str());
    let why = record.why.as_ref().map(|why| format!(": {}", escape_text(why)));
    line("state", &format!("{}{}", record.state, why.unwrap_or_default()));
    line("made by", record.backend.as_deref().unwrap_or("-"));
    if let Some(runtime) = &spec.runtime {
        line("runtime", runtime.as_str());
    }
    if let Some(image) = &spec.image {
        line("image", &image.to_string());
    }
    if let Some(root) = &spec.root {
        line("root", &root.as_raw().to_escaped());
    }
    line("profile", &spec.profile);
    line("workspace", &source(&spec.workspace));
    for (limit, amount) in spec.limits.iter_limits() {
        line("limit", &format!("{limit} {}", limit.format_amount(amount)));
    }
    for (key, value) in spec.labels.iter_labels() {
        line("label", &format_label(key, value));
    }
    line("made", &format_utc(record.created_ms));
    line("last used", &format_utc(record.used_ms));
    if let Some(ends_ms) = record.ends_ms().filter(|_| !record.state.is_ending()) {
        line("ends", &format_utc(ends_ms));
    }
    out
}

/// Message that the processes of the sandbox are gone, and that it was recreated around its files.
pub fn recreated_message(id: &SandboxId) -> String {
    format!("• the processes of {id} had ended; the sandbox was recreated, with its files\n")
}

/// Message with the chosen backend, and the reasons against the preferred ones.
pub fn backend_message(backend: &str, passed_over: &[String]) -> String {
    format!("• made by {backend}: {}\n", escape_text(&passed_over.join("; ")))
}

/// Formats the omitted objects of a copy with the reasons; one line each, up to a limit.
pub fn left_out(left_out: &[OmittedObject]) -> String {
    let mut out = String::new();
    for OmittedObject { path, why, .. } in left_out.iter().take(MAX_OMITTED_SHOWN) {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "• left out: {path} ({})", escape_text(why));
    }
    if left_out.len() > MAX_OMITTED_SHOWN {
        let _ = writeln!(out, "• left out: {} more", left_out.len() - MAX_OMITTED_SHOWN);
    }
    out
}

/// Message that the processes were not frozen during a snapshot.
pub fn not_still(why: &str) -> String {
    format!("• its processes were not frozen during the copy: {}\n", RawText::from(why).to_escaped())
}

/// Resource usage of one sandbox, as far as it is known.
pub struct SandboxUsageRow {
    /// Id of the sandbox.
    pub id: SandboxId,
    /// State of the sandbox.
    pub state: SandboxState,
    /// Current usage; absent if its processes do not run.
    pub usage: Option<SandboxUsage>,
    /// Most memory since its creation, in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Most processes since then.
    pub processes_peak: Option<u64>,
    /// Number of commands that were run in it.
    pub commands: usize,
    /// Time since its creation.
    pub age_ms: u64,
    /// Remaining lifetime, if it is not used.
    pub left_ms: Option<u64>,
}

impl SandboxUsageRow {
    fn format_cells(&self) -> [String; 8] {
        let usage = self.usage.as_ref();
        let number = |number: Option<u64>| number.map_or_else(empty_cell, |number| number.to_string());
        [
            self.id.to_string(),
            self.state.to_string(),
            number(usage.and_then(|usage| usage.processes)),
            usage.and_then(|usage| usage.memory_bytes).map_or_else(empty_cell, format_size),
            self.memory_peak_bytes.map_or_else(empty_cell, format_size),
            usage.map_or_else(empty_cell, |usage| {
                format!("{}.{:01}s", usage.total.cpu_ms / 1000, usage.total.cpu_ms / 100 % 10)
            }),
            format_duration(self.age_ms),
            self.left_ms.map_or_else(empty_cell, format_duration),
        ]
    }
}

const TABLE_HEADERS: [&str; 8] = ["ID", "STATE", "PROCESSES", "MEMORY", "PEAK", "CPU", "AGE", "LEFT"];

fn empty_cell() -> String {
    "-".to_owned()
}

/// Formats a size in a short form.
fn format_size(bytes: u64) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = units.into_iter().find(|(_, unit)| bytes >= *unit);
    unit.map_or_else(
        || bytes.to_string(),
        |(name, unit)| format!("{}.{}{name}", bytes / unit, bytes % unit * 10 / unit),
    )
}

/// Formats a duration in a short form.
fn format_duration(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        seconds @ 3600..86_400 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        seconds => format!("{}d{}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Formats all rows as a table.
pub fn format_table(rows: &[SandboxUsageRow]) -> String {
    let all: Vec<[String; 8]> = std::iter::once(TABLE_HEADERS.map(str::to_owned))
        .chain(rows.iter().map(SandboxUsageRow::format_cells))
        .collect();
    let width = |column: usize| all.iter().map(|cells| cells[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..TABLE_HEADERS.len()).map(width).collect();
    let mut out = String::new();
    for cells in &all {
        let padded: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", padded.join("  ").trim_end());
    }
    out
}

/// Formats the table to replace the content of a terminal with this many lines.
pub fn format_screen(rows: &[SandboxUsageRow], lines: usize) -> String {
    // Moves to the first position and erases the rest (ECMA-48).
    let shown = format_table(rows.get(..lines.saturating_sub(2)).unwrap_or(rows));
    format!("\u{1b}[H\u{1b}[J{shown}")
}

/// Formats the usage of one sandbox, to follow its other details.
pub fn format_usage(row: &SandboxUsageRow) -> String {
    let usage = row.usage.as_ref();
    let now = |amount: Option<String>, peak: Option<String>| match (amount, peak) {
        (None, None) => empty_cell(),
        (amount, peak) => format!("{}, at most {}", amount.unwrap_or_else(empty_cell), peak.unwrap_or_else(empty_cell)),
    };
    let count = |number: Option<u64>| number.map(|number| number.to_string());
    let processes = now(count(usage.and_then(|usage| usage.processes)), count(row.processes_peak));
    let memory =
        now(usage.and_then(|usage| usage.memory_bytes).map(format_size), row.memory_peak_bytes.map(format_size));
    format!("{:<10} {}\n{:<10} {processes}\n{:<10} {memory}\n", "commands", row.commands, "processes", "memory")
}

/// Formats a command that was run, on one line.
pub fn format_command(command: &CommandRecord) -> String {
    let CommandRecord { request, user, text, started_ms, ended_ms, .. } = command;
    let took = format_duration(ended_ms.saturating_sub(*started_ms));
    let text = escape_text(text);
    format!("{}  {request}  {user}  {}  {took}  {text}\n", format_utc(*started_ms), format_end(command))
}

fn format_end(command: &CommandRecord) -> String {
    match (command.status, command.exit_code) {
        (FinalStatus::Exited, Some(code)) => format!("exited {code}"),
        (status, _) => name_of(status),
    }
}

fn format_label(key: &str, value: &str) -> String {
    format!("{key}={}", RawText::from(value).to_escaped())
}

fn source(workspace: &WorkspaceSource) -> String {
    match workspace {
        WorkspaceSource::Empty => "empty".to_owned(),
        WorkspaceSource::Copy { directory } => format!("copy of {}", directory.as_raw().to_escaped()),
        WorkspaceSource::Bind { directory } => directory.as_raw().to_escaped(),
        WorkspaceSource::Clone { url, revision: None } => format!("clone of {url}"),
        WorkspaceSource::Clone { url, revision: Some(revision) } => format!("clone of {url} at {}", revision.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use stockade_model::{LimitKind, RequestId, ResourceUsage, SandboxSpec};

    use super::*;

    fn record() -> SandboxRecord {
        let mut spec = SandboxSpec::of_profile("workspace");
        let directory = RawText::from("/srv/w\u{1b}[2J").try_into().unwrap();
        spec.workspace = WorkspaceSource::Bind { directory };
        spec.labels =
            std::collections::BTreeMap::from([("task".to_owned(), "fix \u{202e}it".to_owned())]).try_into().unwrap();
        spec.limits.set_limit(LimitKind::Memory, 2 << 30);
        spec.ttl_ms = Some(60_000.try_into().unwrap());
        SandboxRecord::for_creation(SandboxId::from_random([0xab; 16]), spec, 0)
    }

    #[test]
    fn a_sandbox_is_one_harmless_line() {
        let id = format!("sbx_{}", "ab".repeat(16));
        let line = "1970-01-01 00:00:00.000Z  creating  workspace  /srv/w\\u{1b}[2J  task=fix \\u{202e}it";
        assert_eq!(format_line(&record()), format!("{id}  {line}\n"));
    }

    #[test]
    fn all_that_is_known_is_shown_and_nothing_acts() {
        let mut record = record();
        record.state = SandboxState::Failed;
        record.why = Some("no \u{1b}[2J space".to_owned());
        let shown = format_details(&record);
        assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown}");
        for part in
            ["state      failed: no \\u{1b}[2J space", "limit      memory 2GiB", "made by    -", "ends       1970"]
        {
            assert!(shown.contains(part), "{shown}");
        }
    }

    fn row(usage: Option<SandboxUsage>) -> SandboxUsageRow {
        let id = SandboxId::from_random([0xab; 16]);
        let (memory_peak_bytes, processes_peak) = (Some(3 << 29), Some(12));
        let state = SandboxState::Ready;
        SandboxUsageRow {
            id,
            state,
            usage,
            memory_peak_bytes,
            processes_peak,
            commands: 2,
            age_ms: 90_061_000,
            left_ms: None,
        }
    }

    #[test]
    fn usage_is_a_table_with_a_dash_for_unknown_values() {
        let total = ResourceUsage { cpu_ms: 61_250, ..ResourceUsage::default() };
        let usage = SandboxUsage { total, memory_bytes: Some(1_572_864), processes: Some(3) };
        let id = format!("sbx_{}", "ab".repeat(16));
        let head = "ID                                    STATE  PROCESSES  MEMORY  PEAK    CPU    AGE   LEFT\n";
        let known = format!("{id}  ready  3          1.5MiB  1.5GiB  61.2s  1d1h  -\n");
        let unknown = format!("{id}  ready  -          -       1.5GiB  -      1d1h  -\n");
        let rows = [row(Some(usage)), row(None)];
        assert_eq!(format_table(&rows), format!("{head}{known}{unknown}"));
        // No more lines than the terminal shows.
        assert_eq!(format_screen(&rows, 3), format!("\u{1b}[H\u{1b}[J{head}{known}"));
        assert_eq!(
            format_usage(&rows[0]),
            "commands   2\nprocesses  3, at most 12\nmemory     1.5MiB, at most 1.5GiB\n"
        );
    }

    #[test]
    fn a_command_that_was_run_is_one_harmless_line() {
        let ran = CommandRecord {
            request: RequestId::from_random([1; 16]),
            user: "uid 0".to_owned(),
            text: "printf '\u{1b}[2J'\nrm x".to_owned(),
            started_ms: 0,
            ended_ms: 61_000,
            status: FinalStatus::Exited,
            exit_code: Some(7),
            memory_peak_bytes: None,
            processes_peak: None,
        };
        let line = format_command(&ran);
        assert!(!line.contains('\u{1b}') && line.lines().count() == 1, "{line}");
        assert!(line.contains("uid 0  exited 7  1m1s  printf '\\u{1b}[2J'"), "{line}");
    }
}
