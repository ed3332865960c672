//! The audit log as text: one line for each event, and the result of a verification.

use stockade_audit::{EntryContent, LogAnchor, LogEntry, VerifyReport};
use stockade_model::{ApprovalAnswer, Denial, EventKind, Grant, QuestionKind, RawText, StagedChanges};

use time::{OffsetDateTime, PrimitiveDateTime};

use super::question::operation_verb;
use super::summary::scope_name;
use super::{count_noun, escape_text, format_duration, join_texts};

/// Formats one entry on one line, without a line feed.
pub fn format_entry(entry: &LogEntry) -> String {
    match &entry.content {
        EntryContent::Event { seq, event } => {
            let (kind, text) = describe_event(&event.kind);
            format!("{}  #{}  {}  {kind:<9} {text}", format_utc(event.time_ms), seq.0, event.request)
        }
        EntryContent::Unknown { seq, .. } => {
            format!("#{}  an event that this version does not know; see --json", seq.0)
        }
        EntryContent::Broken { why, .. } => format!("line {}  BROKEN: {why}", entry.line),
    }
}

/// Returns the type as the audit log names it, and a description of the event.
fn describe_event(kind: &EventKind) -> (&'static str, String) {
    match kind {
        EventKind::Requested { request, .. } => ("requested", format_command(&request.command)),
        EventKind::Assessed { assessment } => {
            let codes = join_texts(assessment.findings.iter().map(|finding| escape_text(&finding.code)));
            ("assessed", format!("{}: {codes}", assessment.tier))
        }
        EventKind::Decided { decision } => {
            ("decided", format!("{}: {}", decision.verdict, escape_text(&decision.rule)))
        }
        EventKind::Asked { question } => ("asked", format_question(&question.kind)),
        EventKind::ReviewSent { by, endpoint, request, .. } => {
            let size = count_noun(request.as_bytes().len(), "byte");
            ("review-sent", format!("{size} to {} at {}", escape_text(by), escape_text(endpoint)))
        }
        EventKind::Reviewed { review, took_ms, late, .. } => {
            let late = if *late { ", too late" } else { "" };
            let (opinion, took) = (super::question::format_opinion(review), format_duration(*took_ms));
            ("reviewed", format!("{opinion}, after {took}{late}"))
        }
        EventKind::Answered { answer, by, waited_ms, .. } => (
            "answered",
            format!("{} by {} after {}", format_answer(*answer), escape_text(by), format_duration(*waited_ms)),
        ),
        EventKind::Starting { attempt, argv, profile, level, .. } => (
            "starting",
            format!("attempt {attempt} in {} at level {level}: {}", escape_text(profile), join_words(argv)),
        ),
        EventKind::Started { attempt, enforced } => {
            ("started", format!("attempt {attempt}, enforced: {}", enforced.level))
        }
        EventKind::Executed { pid, program } => ("executed", format!("{} (pid {pid})", program.to_escaped())),
        EventKind::Connection { attempt, connection } => {
            ("connection", format!("attempt {attempt}: {}", super::network::format_connection(connection)))
        }
        EventKind::Signed { attempt, grant, object } => ("signed", format!("attempt {attempt}: {object}   ({grant})")),
        EventKind::Denied { denial } => ("denied", format_denial(denial)),
        EventKind::Held { hold, denial } => ("held", format!("call {hold}: {}", format_denial(denial))),
        EventKind::Withdrawn { holds, digest, why } => {
            let what = format_calls(holds).chain(digest.as_ref().map(|_| "the question".to_owned()));
            ("withdrawn", format!("{}: {}", join_texts(what), escape_text(why)))
        }
        EventKind::Granted { grants, holds } => ("granted", format_grants(grants, holds)),
        EventKind::Exited { attempt, status, exit_code, signal, usage, staged, kept_for_undo, project_files } => {
            let how = exit_code.or(*signal).map_or_else(|| status.to_string(), |code| format!("{status} {code}"));
            let left = format_leftovers(staged.as_ref(), *kept_for_undo, *project_files);
            ("exited", format!("attempt {attempt}: {how} after {}{left}", format_duration(usage.wall_ms)))
        }
        EventKind::Traced { attempt, reads } => {
            let shown = join_texts(reads.iter().map(|read| &read.object));
            ("read", format!("attempt {attempt}: {shown}"))
        }
        EventKind::Attached { client, answers } => ("attached", format_attachment(*client, *answers)),
        EventKind::Typed { client, keys } => ("typed", format_typed_input(*client, *keys)),
        EventKind::Left { client, unjudged_bytes } => {
            ("left", format!("process {client}, after {unjudged_bytes} B that were not checked"))
        }
        EventKind::Failed { message } => ("failed", escape_text(message)),
        EventKind::Finished { status, exit_code } => ("finished", format!("{}, exit code {exit_code}", status)),
        EventKind::Revoked { approval } => ("revoked", escape_text(approval)),
        EventKind::Committed { stage, changes, agreed, held } => {
            ("committed", format!("{changes} of {stage}{}", format_commit(agreed, *held)))
        }
        EventKind::Discarded { stage, changes } => ("discarded", format!("{changes} of {stage}")),
        EventKind::Undone { restored, left } => ("undone", format!("{restored} restored, {left} left")),
        EventKind::Forgotten => ("forgotten", "what was kept for undo".to_owned()),
    }
}

fn format_denial(denial: &Denial) -> String {
    let (verb, object) = (operation_verb(denial.operation), denial.object.to_escaped());
    format!("{verb} {object}   ({})", escape_text(&denial.rule))
}

/// Describes the changes that wait in a stage or can be undone.
fn format_leftovers(staged: Option<&StagedChanges>, kept_for_undo: u64, project_files: u64) -> String {
    let staged = staged.map(|staged| format!(", {}", super::stage::describe_waiting(staged))).unwrap_or_default();
    let undo = if kept_for_undo == 0 { "" } else { ", its changes can be undone" };
    let files = match project_files {
        0 => String::new(),
        count => format!(", it wrote {} of code for later", count_noun(count, "file")),
    };
    staged + undo + &files
}

fn format_grants(grants: &[Grant], holds: &[u64]) -> String {
    let to =
        if holds.is_empty() { String::new() } else { format!(", in place for {}", join_texts(format_calls(holds))) };
    join_texts(grants) + &to
}

fn format_attachment(client: u32, answers: bool) -> String {
    format!("process {client}, {}", if answers { "it gets the questions" } else { "for output and input" })
}

fn format_typed_input(client: u32, keys: bool) -> String {
    format!("{}, by process {client}: not checked", if keys { "keys at the terminal" } else { "data" })
}

fn format_calls(holds: &[u64]) -> impl Iterator<Item = String> {
    holds.iter().map(|hold| format!("call {hold}"))
}

/// Describes the accepted protected names, and the number of changes left.
fn format_commit(agreed: &[RawText], left: u64) -> String {
    let yes = if agreed.is_empty() { String::new() } else { format!(", yes to {}", join_texts(agreed)) };
    if left == 0 { yes } else { format!("{yes}, {left} left") }
}

/// Returns the words of a command as they would be typed.
pub fn format_command(command: &stockade_model::RequestCommand) -> String {
    match command {
        stockade_model::RequestCommand::Argv(words) => join_words(words),
        stockade_model::RequestCommand::Script(script) => format!("-c {}", script.to_escaped()),
    }
}

fn join_words(words: &[RawText]) -> String {
    words.iter().map(RawText::to_escaped).collect::<Vec<_>>().join(" ")
}

fn format_question(kind: &QuestionKind) -> String {
    match kind {
        QuestionKind::Run { .. } => "may it run".to_owned(),
        QuestionKind::Grants { grants } => format!("may it have from the start: {}", join_texts(grants)),
        QuestionKind::Escalate { grants, .. } => format!("may it have, and run again: {}", join_texts(grants)),
        QuestionKind::Hold { grants, .. } => format!("may it have now, in place: {}", join_texts(grants)),
        QuestionKind::Unsandboxed => "may it run without a sandbox".to_owned(),
    }
}

fn format_answer(answer: ApprovalAnswer) -> String {
    match answer {
        ApprovalAnswer::Approved(scope) => format!("approved ({})", scope_name(scope)),
        ApprovalAnswer::Group(scope) => format!("approved with its group ({})", scope_name(scope)),
        ApprovalAnswer::Denied(scope) => format!("denied ({})", scope_name(scope)),
        ApprovalAnswer::Abort => "abort".to_owned(),
        ApprovalAnswer::TimedOut => "timed out".to_owned(),
    }
}

/// Formats the result of a successful verification. `earlier` are the anchors of logs that were
/// moved away or removed.
pub fn format_verification(found: &VerifyReport, earlier: &[&LogAnchor]) -> String {
    let mut out = format!("the audit log has {}, head {}\n", count_noun(found.entries, "event"), found.head.1);
    out += &match (found.signed, found.anchored) {
        (None, _) => {
            "• not signed and not anchored, because an earlier version wrote it: the next run does both\n".into()
        }
        (Some(signed), None) => format!("• signed up to event {}, not anchored in the store yet\n", signed.0),
        (Some(signed), Some(anchored)) => {
            format!("• signed up to event {}, anchored in the store up to event {}\n", signed.0, anchored.0)
        }
    };
    if found.lost > 0 {
        let lost = count_noun(found.lost, "event");
        out += &format!("• {lost} lost when the machine stopped, before the disk had them\n");
    }
    for anchor in earlier {
        let events = count_noun(anchor.seq, "event");
        out +=
            &format!("• another log of {events} was here, and was moved away or removed; its head {}\n", anchor.hash);
    }
    if found.torn_bytes > 0 {
        out += &format!("• a last line of {} bytes is incomplete; no event was lost\n", found.torn_bytes);
    }
    if !found.torn_files.is_empty() {
        out +=
            &format!("• {} moved to separate files earlier\n", count_noun(found.torn_files.len(), "incomplete line"));
    }
    out
}

/// Formats milliseconds since the epoch as `2026-11-21 06:10:11.123Z`.
pub fn format_utc(time_ms: u64) -> String {
    let time = OffsetDateTime::from_unix_timestamp_nanos(i128::from(time_ms) * 1_000_000);
    // The last time with a year of four digits.
    let time = time.unwrap_or(PrimitiveDateTime::MAX.assume_utc());
    let (hour, minute, second, ms) = time.to_hms_milli();
    format!("{} {hour:02}:{minute:02}:{second:02}.{ms:03}Z", time.date())
}

#[cfg(test)]
mod tests {
    use stockade_audit::LineNumber;
    use stockade_model::{ApprovalScope, Event, FinalStatus, ResourceUsage};

    use super::*;
    use crate::render::question::tests::sample_denial;

    #[test]
    fn dates() {
        for (time_ms, expected) in [
            (0, "1970-01-01 00:00:00.000Z"),
            (951_782_400_000, "2000-02-29 00:00:00.000Z"),
            (1_709_251_199_999, "2024-02-29 23:59:59.999Z"),
            (1_735_689_600_000, "2025-01-01 00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01 00:00:00.000Z"),
        ] {
            assert_eq!(format_utc(time_ms), expected);
        }
    }

    #[test]
    fn a_line_an_event() {
        let kinds = [
            EventKind::Denied { denial: sample_denial() },
            EventKind::Answered {
                answer: ApprovalAnswer::Approved(ApprovalScope::Session),
                by: "terminal".into(),
                digest: stockade_model::Digest::of_fields("test", []),
                waited_ms: 2_500,
                warnings: Vec::new(),
            },
            EventKind::Exited {
                attempt: 1,
                status: FinalStatus::Exited,
                exit_code: Some(2),
                signal: None,
                usage: ResourceUsage { wall_ms: 12, ..ResourceUsage::default() },
                staged: None,
                kept_for_undo: 0,
                project_files: 0,
            },
            EventKind::Held { hold: 3, denial: sample_denial() },
            EventKind::Withdrawn { holds: vec![3], digest: None, why: "gone\u{7}".into() },
            EventKind::Granted { grants: vec!["write /srv".parse().unwrap()], holds: vec![4, 5] },
            EventKind::Connection { attempt: 1, connection: Box::new(crate::render::network::tests::sample_record()) },
            EventKind::Failed { message: "\u{1b}[2J\n".into() },
            EventKind::Finished { status: FinalStatus::TimedOut, exit_code: 124 },
        ];
        let lines: Vec<_> = kinds
            .into_iter()
            .enumerate()
            .map(|(at, kind)| {
                let event =
                    Event { time_ms: 1_700_000_000_000, request: "req_1".parse().unwrap(), session: None, kind };
                let seq = LineNumber(at as u64 + 1);
                format_entry(&LogEntry { line: seq.0, content: EntryContent::Event { seq, event: Box::new(event) } })
            })
            .collect();
        insta::assert_snapshot!(lines.join("\n"), @r"
        2023-11-14 22:13:20.000Z  #1  req_1  denied    create /home/u/outside   (outside every writable root)
        2023-11-14 22:13:20.000Z  #2  req_1  answered  approved (session) by terminal after 2.5 s
        2023-11-14 22:13:20.000Z  #3  req_1  exited    attempt 1: exited 2 after 12 ms
        2023-11-14 22:13:20.000Z  #4  req_1  held      call 3: create /home/u/outside   (outside every writable root)
        2023-11-14 22:13:20.000Z  #5  req_1  withdrawn call 3: gone\u{7}
        2023-11-14 22:13:20.000Z  #6  req_1  granted   write /srv, in place for call 4, call 5
        2023-11-14 22:13:20.000Z  #7  req_1  connection attempt 1: pip to pypi.org:443 (151.101.0.223), 1.2 KiB up, 3.0 MiB down, 1.2 s, closed   (egress.allow pypi.org:443)
        2023-11-14 22:13:20.000Z  #8  req_1  failed    \u{1b}[2J\n
        2023-11-14 22:13:20.000Z  #9  req_1  finished  timed_out, exit code 124
        ");
    }
}
