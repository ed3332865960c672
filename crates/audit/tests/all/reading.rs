//! Filters, broken lines, exports.

use std::fs;

use stockade_audit::{
    AuditLogWriter, EntryContent, EntryFilter, ExportFormat, LineNumber, LogEntry, export_entries, query_log,
};
use stockade_model::{Event, EventKind, Grant};

use crate::{event, log_location};

fn shown(dir: &std::path::Path, filter: EntryFilter) -> Vec<LogEntry> {
    query_log(dir, filter).unwrap().collect::<Result<_, _>>().unwrap()
}

fn three(dir: &std::path::Path) {
    let log = AuditLogWriter::open(dir).unwrap();
    let grant: Grant = "write /home/é/cache".parse().unwrap();
    log.append_batch(&[
        event(100, "first one"),
        Event {
            time_ms: 200,
            request: "req_2".parse().unwrap(),
            session: None,
            kind: EventKind::Granted { grants: vec![grant], holds: Vec::new() },
        },
        event(300, "third, \"quoted\"\u{202e}"),
    ])
    .unwrap();
    log.commit_lines().unwrap();
}

#[test]
fn filters() {
    let (_root, dir) = log_location();
    three(&dir);
    let check = |filter: EntryFilter, lines: &[u64]| {
        let found: Vec<u64> = shown(&dir, filter.clone()).iter().map(|entry| entry.line).collect();
        assert_eq!(found, lines, "{filter:?}");
    };
    check(EntryFilter::default(), &[1, 2, 3]);
    check(EntryFilter { request: Some("req_2".parse().unwrap()), ..EntryFilter::default() }, &[2]);
    check(EntryFilter { session: Some("ses_1".parse().unwrap()), ..EntryFilter::default() }, &[1, 3]);
    check(EntryFilter { session: Some("ses_2".parse().unwrap()), ..EntryFilter::default() }, &[]);
    check(EntryFilter { kind: Some("granted".into()), ..EntryFilter::default() }, &[2]);
    check(EntryFilter { since_ms: Some(200), ..EntryFilter::default() }, &[2, 3]);
    check(EntryFilter { until_ms: Some(200), ..EntryFilter::default() }, &[1]);
    check(EntryFilter { text: Some("é/cache".into()), ..EntryFilter::default() }, &[2]);
    check(EntryFilter { text: Some("\u{202e}".into()), ..EntryFilter::default() }, &[3]);
    check(EntryFilter { text: Some("third".into()), until_ms: Some(300), ..EntryFilter::default() }, &[]);
    let first = shown(&dir, EntryFilter::default()).remove(0);
    assert_eq!(first.content, EntryContent::Event { seq: LineNumber(1), event: Box::new(event(100, "first one")) });
}

/// What is appended is read on being asked for, once, and no sooner.
#[test]
fn reading_continues_where_it_ended() {
    let (_root, dir) = log_location();
    three(&dir);
    let mut reading = query_log(&dir, EntryFilter::default()).unwrap();
    let lines = |reading: &mut stockade_audit::LogQuery| reading.map(|entry| entry.unwrap().line).collect::<Vec<u64>>();
    assert_eq!(lines(&mut reading), [1, 2, 3]);
    three(&dir);
    assert_eq!(lines(&mut reading), [0; 0]);
    reading.read_appended_lines().unwrap();
    assert_eq!(lines(&mut reading), [4, 5, 6]);
    reading.read_appended_lines().unwrap();
    assert_eq!(lines(&mut reading), [0; 0]);
    fs::write(dir.join("audit.jsonl"), "").unwrap();
    assert!(reading.read_appended_lines().unwrap_err().to_string().contains("became shorter"));
}

#[test]
fn a_broken_line_is_shown_and_hides_nothing() {
    let (_root, dir) = log_location();
    three(&dir);
    let path = dir.join("audit.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let long = "x".repeat(3 << 20);
    fs::write(&path, format!("{}\n{{\"seq\":2,\n{long}\n{}\nhalf", lines[0], lines[2])).unwrap();
    let found = shown(&dir, EntryFilter { kind: Some("failed".into()), ..EntryFilter::default() });
    let broken: Vec<bool> = found.iter().map(|entry| matches!(entry.content, EntryContent::Broken { .. })).collect();
    assert_eq!(broken, [false, true, true, false, true]);
    let EntryContent::Broken { bytes, .. } = &found[1].content else { panic!() };
    assert_eq!(bytes.as_bytes(), b"{\"seq\":2,");
}

#[test]
fn a_missing_log_is_reported() {
    let (root, _) = log_location();
    assert!(
        query_log(root.path(), EntryFilter::default()).err().unwrap().to_string().contains("there is no audit log")
    );
    assert!(stockade_audit::verify_audit_log(root.path()).unwrap_err().to_string().contains("there is no audit log"));
}

#[test]
fn exports() {
    let (_root, dir) = log_location();
    three(&dir);
    let exported = |format| {
        let mut out = Vec::new();
        assert_eq!(export_entries(query_log(&dir, EntryFilter::default()).unwrap(), format, &mut out).unwrap(), 3);
        String::from_utf8(out).unwrap()
    };
    let json: serde_json::Value = serde_json::from_str(&exported(ExportFormat::Json)).unwrap();
    assert_eq!(json[1]["event"]["kind"]["grants"][0], "write /home/é/cache");
    let csv = exported(ExportFormat::Csv);
    assert!(!csv.contains('\u{202e}'));
    let rows: Vec<&str> = csv.split_terminator("\r\n").collect();
    assert_eq!(rows.len(), 4);
    assert!(rows[1].starts_with(r#""1","1","100","req_1","ses_1","failed","","{""#), "{}", rows[1]);
    assert!(rows[3].contains(r#"third, \""quoted\""\u202e"#), "{}", rows[3]);
}
