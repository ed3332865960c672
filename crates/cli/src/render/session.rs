//! Warm sessions as text: one line for each session.

use stockade_model::SessionId;
use stockade_store::sessions::SessionDescription;

use super::audit::format_utc;

/// Formats one session on one line.
pub fn format_line(id: &SessionId, about: Option<&SessionDescription>, open: bool) -> String {
    let state = if open { "open" } else { "lost: its supervisor was killed" };
    let Some(about) = about else { return format!("{id}  {state}\n") };
    let profile = about.profile.as_deref().unwrap_or("-");
    format!("{id}  {}  {state}  {}  {profile}\n", format_utc(about.started_ms), about.workspace.to_escaped())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_one_harmless_line() {
        let id: SessionId = "ses_work".parse().unwrap();
        let about = SessionDescription {
            id: id.clone(),
            workspace: "/w\n\x1b[2J".into(),
            profile: Some("workspace".to_owned()),
            started_ms: 0,
            supervisor: 1,
        };
        let shown = format_line(&id, Some(&about), false);
        assert_eq!(shown.lines().count(), 1);
        assert!(!shown.contains('\x1b'), "{shown}");
        assert!(shown.contains("  lost: its supervisor was killed  /w"), "{shown}");
        assert_eq!(format_line(&id, None, true), "ses_work  open\n");
    }
}
