//! Turns answers with the scope `always` into rules in the user's own file. The rules are shown
//! completely before the user agrees, and are written at the end of the run. A command that runs
//! other commands gets no rule.
//!
//! This module must not know how a user is asked.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stockade_model::{Grant, PolicyVerdict, QuestionKind, RunRequest};
use stockade_policy::amend::{rule_for_hosts, rule_for_secrets, rules_for};
use stockade_policy::load::ConfigSources;
use stockade_policy::{DraftRule, PolicySettings, ProvenanceSection, resolve_profile};

use super::write::{self, extract_host_targets, extract_secret_uses};
use crate::failure::CliError;

/// Rules that the answers of one run may become.
#[derive(Debug)]
pub struct AnswerRules {
    sources: ConfigSources,
    settings: Arc<PolicySettings>,
    request: RunRequest,
    chosen: Mutex<Vec<DraftRule>>,
}

impl AnswerRules {
    /// Creates the collection for the questions of one request.
    pub fn new(sources: ConfigSources, settings: Arc<PolicySettings>, request: RunRequest) -> Self {
        Self { sources, settings, request, chosen: Mutex::default() }
    }

    /// Returns the file for the rules.
    pub fn rules_file(&self) -> &Path {
        &self.sources.user_file
    }

    /// Returns the smallest rules for a yes to this question; empty if none is allowed.
    pub fn draft_rules(&self, kind: &QuestionKind) -> Vec<DraftRule> {
        let grants: &[Grant] = match kind {
            QuestionKind::Unsandboxed => return Vec::new(),
            QuestionKind::Run { .. } => &[],
            QuestionKind::Grants { grants }
            | QuestionKind::Escalate { grants, .. }
            | QuestionKind::Hold { grants, .. } => grants,
        };
        if let Some(hosts) = extract_host_targets(grants) {
            return vec![rule_for_hosts(&hosts, PolicyVerdict::Allow, &self.build_provenance())];
        }
        if let Some(wanted) = extract_secret_uses(grants) {
            return rule_for_secrets(&wanted, &self.build_provenance()).into_iter().collect();
        }
        let RunRequest { command, profile, workspace, .. } = &self.request;
        let Ok(profile) = resolve_profile(&self.settings, profile, workspace.as_path(), &[]) else { return Vec::new() };
        rules_for(command, PolicyVerdict::Allow, grants, &profile, &self.build_provenance()).unwrap_or_default()
    }

    fn build_provenance(&self) -> ProvenanceSection {
        ProvenanceSection {
            by: super::user_name().unwrap_or_else(|| "a person".to_owned()),
            at: Some(crate::render::audit::format_utc(super::now_ms())),
            request: Some(self.request.id.to_string()),
        }
    }

    /// Records that these rules were shown and accepted.
    pub fn accept_drafts(&self, drafts: Vec<DraftRule>) {
        self.lock_accepted().extend(drafts);
    }

    fn lock_accepted(&self) -> MutexGuard<'_, Vec<DraftRule>> {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the accepted rules, and returns the file if it changed. Only answers in the engine's
    /// outcome count.
    ///
    /// # Errors
    /// [`CliError`] if the file cannot be written, or would be invalid.
    pub fn write_accepted_rules(&self, outcome: &stockade_model::RunOutcome) -> Result<Option<PathBuf>, CliError> {
        let agreed =
            outcome.approvals.iter().any(|approval| approval.answer == "approved" && approval.by == "terminal");
        let drafts = std::mem::take(&mut *self.lock_accepted());
        if drafts.is_empty() || !agreed {
            return Ok(None);
        }
        write::add_to_user_file(&self.sources, &drafts)
    }
}

#[cfg(test)]
mod tests {
    use stockade_model::{ApprovalMode, IsolationLevel, RequestCommand, SandboxPreference};
    use stockade_policy::OwnDirectories;

    use super::*;

    fn build_rules(words: &[&str]) -> AnswerRules {
        let settings = PolicySettings::from_layers(Path::new("/home/u"), OwnDirectories::default(), &[]).unwrap();
        let request = RunRequest {
            id: "req_1".parse().unwrap(),
            session: None,
            command: RequestCommand::Argv(words.iter().map(|word| (*word).into()).collect()),
            cwd: "/w".into(),
            workspace: "/w".into(),
            environment: Default::default(),
            profile: "workspace".to_owned(),
            grants: Vec::new(),
            requested: Vec::new(),
            level: IsolationLevel::Full,
            approval_mode: ApprovalMode::OnFailure,
            sandbox: SandboxPreference::Auto,
            timeout_ms: None,
            limits: Default::default(),
            caller_approval: None,
        };
        AnswerRules::new(
            ConfigSources::at_standard_paths(Path::new("/home/u"), None, None, None),
            Arc::new(settings),
            request,
        )
    }

    #[track_caller]
    fn check(words: &[&str], grants: &[&str], wanted: &[&str]) {
        let grants = grants.iter().map(|grant| grant.parse().unwrap()).collect();
        let drafts = build_rules(words).draft_rules(&QuestionKind::Grants { grants });
        let lines: Vec<String> = drafts
            .iter()
            .flat_map(|draft| draft.to_toml().lines().map(str::to_owned).collect::<Vec<_>>())
            .filter(|line| ["glob", "hosts", "grants"].iter().any(|key| line.starts_with(key)))
            .collect();
        assert_eq!(lines, wanted);
    }

    #[test]
    fn a_yes_becomes_the_smallest_rule() {
        check(&["npm", "test"], &[], &["glob = [\"npm test\"]"]);
        check(&["npm", "test"], &["write /srv/x"], &["glob = [\"npm test\"]", "grants = [\"write /srv/x\"]"]);
        check(&["sh", "-c", "pip install x"], &["connect pypi.org:443"], &["hosts = [\"pypi.org:443\"]"]);
        let secret = "secret github to ghe.example.com:443";
        let rule = ["hosts = [\"ghe.example.com:443\"]", &format!("grants = [\"{secret}\"]")];
        check(&["python3", "x"], &[secret], &rule);
        check(&["python3", "x"], &["secret github to ghe.example.com"], &[]);
        // No rule for a command that runs other commands, nor for a protected path.
        check(&["python3", "x"], &["write /srv/x"], &[]);
        check(&["npm", "test"], &["read /home/u/.ssh"], &[]);
        assert!(build_rules(&["npm", "test"]).draft_rules(&QuestionKind::Unsandboxed).is_empty());
        let draft = &build_rules(&["npm", "test"]).draft_rules(&QuestionKind::Run { reasons: Vec::new() })[0];
        assert!(draft.to_toml().contains("request = \"req_1\""), "{}", draft.to_toml());
    }
}
