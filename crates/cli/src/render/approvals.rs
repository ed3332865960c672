//! Remembered answers as text.

use std::fmt::Write as _;

use stockade_model::ApprovalScope;
use stockade_store::{ApprovalRecord, Consent};

use super::audit::format_utc;
use super::summary::scope_name;
use super::{TextLayout, cut_text, escape_text, write_wrapped};

/// Characters of the question in a list; `show` prints all of it.
const MAX_QUESTION_CHARS: usize = 60;

/// Formats one answer on one line.
pub fn format_line(answer: &ApprovalRecord, now_ms: u64) -> String {
    let question = answer.question.to_escaped();
    let short = cut_text(&question, MAX_QUESTION_CHARS);
    format!(
        "{}  {}  {}{}  {short}\n",
        answer.id,
        format_consent(answer),
        answer.namespace,
        format_state(answer, now_ms)
    )
}

/// Formats all details of one answer.
pub fn format_details(answer: &ApprovalRecord, now_ms: u64, style: TextLayout) -> String {
    let mut out = String::new();
    let mut row = |label: &str, text: &str| write_wrapped(&mut out, style, &format!("{label:<10}"), text);
    row("id", answer.id.as_str());
    row("answer", &format!("{}{}", format_consent(answer), format_state(answer, now_ms)));
    row("asked", &answer.question.to_escaped());
    for grant in &answer.grants {
        row("grant", &grant.to_string());
    }
    row("kind", answer.namespace.as_str());
    row("for", if answer.grants.is_empty() { "this same command" } else { "any command in the workspace" });
    if let Some(session) = &answer.session {
        row("session", session.as_str());
    }
    row("by", &escape_text(&answer.by));
    row("when", &format_utc(answer.created_ms));
    row("request", answer.request.as_str());
    row("digest", answer.digest.as_str());
    out
}

fn format_consent(answer: &ApprovalRecord) -> String {
    let word = match answer.consent {
        Consent::Approved => "approved",
        Consent::Denied => "denied",
    };
    let mut reach = scope_name(answer.scope);
    if let (ApprovalScope::Session, Some(session)) = (answer.scope, &answer.session) {
        let _ = write!(reach, " {session}");
    }
    format!("{word} ({reach})")
}

/// Returns the reason why the answer is no longer in force; empty if it is in force.
fn format_state(answer: &ApprovalRecord, now_ms: u64) -> String {
    match (answer.revoked_ms, answer.ended_ms) {
        (Some(when_ms), _) => format!("  revoked {}", format_utc(when_ms)),
        (None, Some(when_ms)) => format!("  session ended {}", format_utc(when_ms)),
        (None, None) if answer.in_force(now_ms) => String::new(),
        (None, None) => "  used up".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use stockade_model::Digest;
    use stockade_store::ApprovalNamespace;

    use super::*;

    #[test]
    fn answers() {
        let mut answer = ApprovalRecord {
            id: "apr_1".parse().unwrap(),
            namespace: ApprovalNamespace::Escalate,
            digest: Digest::of_fields("test", []),
            question: "sh -c 'echo x >> ~/outside' \u{1b}[2J, which is a question too long for one line of a list"
                .into(),
            grants: vec!["write /home/u/outside".parse().unwrap()],
            consent: Consent::Approved,
            scope: ApprovalScope::Session,
            session: Some("ses_work".parse().unwrap()),
            by: "terminal".into(),
            created_ms: 1_700_000_000_000,
            request: "req_1".parse().unwrap(),
            revoked_ms: None,
            ended_ms: None,
        };
        let mut shown = format_line(&answer, 0);
        answer.revoked_ms = Some(1_700_000_060_000);
        shown += &format_line(&answer, 0);
        shown += &format_details(&answer, 0, TextLayout::PLAIN);
        insta::assert_snapshot!(shown, @r"
        apr_1  approved (session ses_work)  escalate  sh -c 'echo x >> ~/outside' \u{1b}[2J, which is a question t…
        apr_1  approved (session ses_work)  escalate  revoked 2023-11-14 22:14:20.000Z  sh -c 'echo x >> ~/outside' \u{1b}[2J, which is a question t…
        id        apr_1
        answer    approved (session ses_work)  revoked 2023-11-14 22:14:20.000Z
        asked     sh -c 'echo x >> ~/outside' \u{1b}[2J, which is a question too long
                  for one line of a list
        grant     write /home/u/outside
        kind      escalate
        for       any command in the workspace
        session   ses_work
        by        terminal
        when      2023-11-14 22:13:20.000Z
        request   req_1
        digest    sha256:4e5b70c6c4231e5ec370f3d9a90fd93cc6d936d49da369acf5a9b51010674a9
                  5
        ");
    }
}
