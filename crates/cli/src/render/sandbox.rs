//! Sandboxes that last as text: a line a sandbox, or all that is known of one.

use std::fmt::Write as _;

use stockade_model::{RawText, SandboxId, SandboxRecord, WorkspaceSource};

use super::audit::utc;

/// One sandbox on one line.
pub fn listed(record: &SandboxRecord) -> String {
    let SandboxRecord { id, spec, state, created_ms, .. } = record;
    let labels: Vec<String> = spec.labels.each().map(|(key, value)| label(key, value)).collect();
    let line = format!("{id}  {}  {state}  {}  {}", utc(*created_ms), spec.profile, source(&spec.workspace));
    let line = format!("{line}  {}", labels.join(" "));
    format!("{}\n", line.trim_end())
}

/// All that is known of one.
pub fn shown(record: &SandboxRecord) -> String {
    let spec = &record.spec;
    let mut out = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name:<10} {value}");
    };
    line("id", record.id.as_str());
    let why = record.why.as_ref().map(|why| format!(": {}", RawText::from(why.as_str()).escaped()));
    line("state", &format!("{}{}", record.state, why.unwrap_or_default()));
    line("made by", record.backend.as_deref().unwrap_or("-"));
    line("profile", &spec.profile);
    line("workspace", &source(&spec.workspace));
    for (limit, amount) in spec.limits.each() {
        line("limit", &format!("{limit} {}", limit.text(amount)));
    }
    for (key, value) in spec.labels.each() {
        line("label", &label(key, value));
    }
    line("made", &utc(record.created_ms));
    line("last used", &utc(record.used_ms));
    if let Some(ends_ms) = record.ends_ms().filter(|_| !record.state.is_ending()) {
        line("ends", &utc(ends_ms));
    }
    out
}

/// That nothing goes on of what its commands had left running.
pub fn anew(id: &SandboxId) -> String {
    format!("• the processes of {id} were gone; its walls are new, around what it keeps\n")
}

fn label(key: &str, value: &str) -> String {
    format!("{key}={}", RawText::from(value).escaped())
}

fn source(workspace: &WorkspaceSource) -> String {
    match workspace {
        WorkspaceSource::Empty => "empty".to_owned(),
        WorkspaceSource::Copy { directory } => format!("copy of {}", directory.as_raw().escaped()),
        WorkspaceSource::Bind { directory } => directory.as_raw().escaped(),
        WorkspaceSource::Clone { url, revision: None } => format!("clone of {url}"),
        WorkspaceSource::Clone { url, revision: Some(revision) } => format!("clone of {url} at {}", revision.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use stockade_model::{Limit, SandboxSpec, SandboxState};

    use super::*;

    fn record() -> SandboxRecord {
        let mut spec = SandboxSpec::of_profile("workspace");
        let directory = RawText::from("/srv/w\u{1b}[2J").try_into().unwrap();
        spec.workspace = WorkspaceSource::Bind { directory };
        spec.labels =
            std::collections::BTreeMap::from([("task".to_owned(), "fix \u{202e}it".to_owned())]).try_into().unwrap();
        spec.limits.set(Limit::Memory, 2 << 30);
        spec.ttl_ms = Some(60_000.try_into().unwrap());
        SandboxRecord::begun(SandboxId::from_random([0xab; 16]), spec, 0)
    }

    #[test]
    fn a_sandbox_is_one_harmless_line() {
        let id = format!("sbx_{}", "ab".repeat(16));
        let line = "1970-01-01 00:00:00.000Z  creating  workspace  /srv/w\\u{1b}[2J  task=fix \\u{202e}it";
        assert_eq!(listed(&record()), format!("{id}  {line}\n"));
    }

    #[test]
    fn all_that_is_known_is_shown_and_nothing_acts() {
        let mut record = record();
        record.state = SandboxState::Failed;
        record.why = Some("no \u{1b}[2J space".to_owned());
        let shown = shown(&record);
        assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown}");
        for part in
            ["state      failed: no \\u{1b}[2J space", "limit      memory 2GiB", "made by    -", "ends       1970"]
        {
            assert!(shown.contains(part), "{shown}");
        }
    }
}
