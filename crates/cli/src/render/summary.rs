//! Summary after a run: the refusals and the grants that would have sufficed, the grants given, and
//! the end of the run if the command did not report it itself. Empty if there is nothing to report.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use stockade_model::{
    Approval, ApprovalScope, AttemptRecord, Denial, DenialLayer, DenialResolution, DeniedOperation, FinalStatus, Grant,
    IsolationLevel, LayerState, RawText, RunOutcome, shell_quoted,
};
use stockade_policy::{is_history, is_registry_settings, names_package_registry};
use stockade_store::{ApprovalRecord, Consent};

use super::compact::compact_and_shorten;
use super::failure::write_labelled;
use super::question::{grant_hint, grant_option, operation_verb};
use super::remedy::{RefusalRemedy, RemedyContext, group_by_remedy};
use super::{SgrColor, TextLayout, count_noun, escape_text, format_duration, join_texts, write_wrapped};
use crate::failure::CliError;

/// Approver name of a remembered answer.
const CACHE_APPROVER: &str = "cache";
/// Most columns of a path or a reason; the middle of a longer one is omitted.
const MAX_TEXT_COLUMNS: usize = 400;
/// Groups of refusals that are shown, each with one hint; the rest is counted.
const MAX_GROUPS_SHOWN: usize = 5;
/// Reasons of a refusal that are shown.
const MAX_REASONS_SHOWN: usize = 20;
/// Withheld variables that are named.
const MAX_VARIABLES_SHOWN: usize = 5;
/// Files that run code later and that are named.
const MAX_PROJECT_FILES_SHOWN: usize = 3;
/// Refusals of a group that are shown.
const MAX_MEMBERS_SHOWN: usize = 3;

/// Inputs of a summary besides the outcome.
#[derive(Clone, Copy, Debug)]
pub struct SummaryContext<'a> {
    /// Remembered answers, if some were used.
    pub remembered: &'a [ApprovalRecord],
    /// Grants of every command there, which are not listed.
    pub sandbox_grants: &'a [Grant],
    /// Home directory of the user, which determines the paths of credentials.
    pub home: &'a Path,
    /// The workspace, if the paths of refusals are those of the host.
    pub workspace: Option<&'a Path>,
    /// Directories of Stockade's own files.
    pub own_directories: &'a [PathBuf],
}

/// Formats the lines for standard error.
pub fn format_summary(outcome: &RunOutcome, context: SummaryContext<'_>, style: TextLayout) -> String {
    let last = outcome.attempts.last();
    let mut summary = SummaryText { out: String::new(), outcome, last, context, style };
    if let Some(last) = last {
        summary.write_refusals(last);
        summary.write_grants(last);
        super::network::hosts_used(&mut summary.out, last, style);
    }
    summary.write_ending();
    if let Some(last) = last {
        summary.write_withheld_variables(last);
        summary.write_staged_changes(last);
        summary.write_project_files(last);
    }
    summary.write_undo();
    last.into_iter().for_each(|last| summary.write_trace_summary(last));
    summary.out
}

/// The lines so far, and what they are about.
struct SummaryText<'a> {
    out: String,
    outcome: &'a RunOutcome,
    /// The last attempt.
    last: Option<&'a AttemptRecord>,
    context: SummaryContext<'a>,
    style: TextLayout,
}

impl SummaryText<'_> {
    /// Writes the withheld variables. Without the address of a registry, a tool silently uses the
    /// public one. Other variables are named if the command failed, because their absence may be the
    /// cause.
    fn write_withheld_variables(&mut self, last: &AttemptRecord) {
        let (registries, others): (Vec<&String>, Vec<&String>) =
            last.not_passed.iter().partition(|name| names_package_registry(name));
        let has_failed = self.outcome.status == FinalStatus::Exited && self.outcome.exit_code != Some(0);
        let others = if has_failed { others } else { Vec::new() };
        let of_registry = "an address that may hold a password is not passed; tools use the public registry instead";
        let changing = "a variable that changes what programs do is not passed";
        for (names, why) in [(registries, of_registry), (others, changing)] {
            if names.is_empty() {
                continue;
            }
            let shown: Vec<&String> = names.into_iter().take(MAX_VARIABLES_SHOWN).collect();
            self.note(&format!("not passed: {}   ({why})", join_texts(&shown)));
            let to_person = self.style.is_terminal();
            let grant = |name: &String| grant_hint(&Grant::Env(name.clone()), to_person);
            self.hint(&shown.into_iter().map(grant).collect::<Vec<String>>().join(" "));
        }
    }

    /// Writes the refusals of the last attempt. One of an earlier attempt was granted to the last one, or
    /// was repeated there.
    fn write_refusals(&mut self, last: &AttemptRecord) {
        let SummaryContext { home, remembered, workspace, own_directories, .. } = self.context;
        let refused = last.denials.iter().filter(|denial| denial.resolution != DenialResolution::Granted);
        let (registries, refused): (Vec<_>, Vec<_>) = refused.partition(|denial| is_of_registry(denial, home));
        for denial in registries.iter().take(MAX_GROUPS_SHOWN) {
            let object = shorten(&denial.object);
            self.note(&format!("not read: {object}   (tokens of package registries are hidden from runs)"));
        }
        let (histories, refused): (Vec<_>, Vec<_>) =
            refused.into_iter().partition(|denial| is_about_history(denial, home));
        if let Some(first) = histories.first() {
            let others = if histories.len() > 1 { format!(" and {} more", histories.len() - 1) } else { String::new() };
            let object = shorten(&first.object);
            self.note(&format!("not kept: {object}{others}   (a history of what was typed is hidden from runs)"));
        }
        let (gone, refused): (Vec<_>, Vec<_>) = refused.into_iter().partition(|denial| is_gone(denial));
        for denial in gone.iter().take(MAX_GROUPS_SHOWN) {
            self.note(&format!("gone: {}   ({})", shorten(&denial.object), denial.rule));
        }
        let outcome = self.outcome;
        let answered = |denial: &&Denial| remembered_no(outcome, denial, remembered);
        let (before, refused): (Vec<_>, Vec<_>) = refused.into_iter().partition(|denial| answered(denial).is_some());
        for denial in before.iter().take(MAX_GROUPS_SHOWN) {
            answered(denial).into_iter().for_each(|answer| self.write_earlier_no(denial, answer));
        }
        let groups = group_by_remedy(&refused, RemedyContext { home, workspace, own_directories });
        for (remedy, members) in groups.iter().take(MAX_GROUPS_SHOWN) {
            self.write_group(remedy, members);
        }
        let shown: usize = groups.iter().take(MAX_GROUPS_SHOWN).map(|(_, members)| members.len()).sum();
        let more = refused.len() - shown + before.len().saturating_sub(MAX_GROUPS_SHOWN);
        if more > 0 {
            let _ = writeln!(self.out, "• and {} more; --json shows all", count_noun(more, "refusal"));
        }
    }

    fn write_earlier_no(&mut self, denial: &Denial, answer: &ApprovalRecord) {
        let (verb, object) = (operation_verb(denial.operation), shorten(&denial.object));
        let word = match answer.scope {
            ApprovalScope::Always => "never".to_owned(),
            scope => format!("no ({})", scope_name(scope)),
        };
        let when = super::audit::format_utc(answer.created_ms);
        self.note(&format!("refused: {verb} {object}   (you answered {word} on {when})"));
        self.command_hint(&format!("stockade approvals revoke {}", answer.id));
    }

    /// Writes refusals that have the same remedy.
    fn write_group(&mut self, remedy: &RefusalRemedy, members: &[&Denial]) {
        for denial in members.iter().take(MAX_MEMBERS_SHOWN) {
            let times = if denial.count > 1 { format!(", {} times", denial.count) } else { String::new() };
            let (rule, object) = (shorten(&RawText::from(denial.rule.as_str())), shorten(&denial.object));
            self.note(&format!("refused: {} {object}   ({rule}{times})", operation_verb(denial.operation)));
        }
        if members.len() > MAX_MEMBERS_SHOWN {
            let _ = writeln!(self.out, "  and {} more of the kind", members.len() - MAX_MEMBERS_SHOWN);
        }
        let to_person = self.style.is_terminal();
        let options: Vec<String> = match remedy {
            RefusalRemedy::Nothing => return,
            RefusalRemedy::Advice(advice) => return self.hint(advice),
            // On one line, so that it can be copied.
            RefusalRemedy::Grants(grants)
                if grants.iter().any(|grant| grant.to_string().chars().count() > MAX_TEXT_COLUMNS) =>
            {
                return self.hint("the name is too long to be shown here; `--json` has the grant in full");
            }
            RefusalRemedy::Grants(grants) => grants.iter().map(|grant| grant_hint(grant, to_person)).collect(),
            RefusalRemedy::Group(group) => vec![format!("{} @{}", grant_option(to_person), group.name)],
            RefusalRemedy::Workspace(top) => {
                vec![format!("--workspace {}", shell_quoted(&RawText::from(top.as_path()).to_escaped()))]
            }
        };
        self.command_hint(&options.join(" "));
    }

    /// Writes one remark.
    fn note(&mut self, text: &str) {
        write_wrapped(&mut self.out, self.style, "• ", text);
    }

    /// Writes a hint with a command on one line, so that it can be copied.
    fn command_hint(&mut self, command: &str) {
        let _ = writeln!(self.out, "  {} {command}", self.style.paint_text(SgrColor::Cyan, "hint:"));
    }

    fn hint(&mut self, text: &str) {
        write_labelled(&mut self.out, self.style, ("  hint: ", SgrColor::Cyan), text);
    }

    fn write_grants(&mut self, last: &AttemptRecord) {
        // Grants with the same scope are grouped: `a, b (session), c`.
        let mut groups: Vec<(Option<String>, Vec<&Grant>)> = Vec::new();
        for grant in last.grants.iter().filter(|grant| !self.context.sandbox_grants.contains(grant)) {
            let scope = find_approved_scope(self.outcome, grant, self.context.remembered);
            match groups.iter_mut().find(|(known, _)| *known == scope) {
                Some((_, grants)) => grants.push(grant),
                None => groups.push((scope, vec![grant])),
            }
        }
        let text = groups
            .into_iter()
            .map(|(scope, grants)| join_texts(grants) + &scope.map(|scope| format!(" ({scope})")).unwrap_or_default());
        let text = join_texts(text);
        if !text.is_empty() {
            self.note(&format!("granted: {text}"));
        }
    }

    /// Writes the staged changes, and the commands for them.
    fn write_staged_changes(&mut self, last: &AttemptRecord) {
        let Some(staged) = &last.staged else { return };
        self.note(&super::stage::describe_waiting(staged));
        self.command_hint(&format!("stockade stage diff {} (then: commit, discard)", staged.stage));
    }

    /// Writes the names of files that run code later.
    fn write_project_files(&mut self, last: &AttemptRecord) {
        let files = &last.project_files;
        if files.is_empty() {
            return;
        }
        let name = |path: &RawText| {
            let path = path.as_path();
            let beneath = self.context.workspace.and_then(|workspace| path.strip_prefix(workspace).ok());
            shorten(&RawText::from(beneath.unwrap_or(path)))
        };
        let named = join_texts(files.iter().take(MAX_PROJECT_FILES_SHOWN).map(name));
        let more = match files.len().saturating_sub(MAX_PROJECT_FILES_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more; --json names them"),
        };
        let (count, was) = (count_noun(files.len(), "file"), if files.len() == 1 { "runs" } else { "run" });
        self.note(&format!("{count} written that {was} code later: {named}{more}"));
    }

    /// Writes the number of changes that can be undone, and the command.
    fn write_undo(&mut self) {
        let path_count = self.outcome.attempts.iter().map(|attempt| attempt.kept_for_undo).max().unwrap_or_default();
        if path_count == 0 {
            return;
        }
        // Not the count of `undo`: this one includes paths that were created and removed again.
        let count = count_noun(path_count, "path");
        self.note(&format!("its changes to the workspace can be undone ({count} recorded)"));
        self.command_hint(&format!("stockade changes {} (then: undo)", self.outcome.id));
    }

    /// Writes the number of files that a traced run has read, and the use of the trace.
    fn write_trace_summary(&mut self, last: &AttemptRecord) {
        if last.reads.is_empty() {
            return;
        }
        let files: u64 = last.reads.iter().map(|read| if read.directory { read.files } else { 1 }).sum();
        self.note(&format!("traced: {} read", count_noun(files, "file")));
        let id = &self.outcome.id;
        self.command_hint(&format!("stockade policy suggest --request {id}   (a profile that reads no more)"));
    }

    fn write_ending(&mut self) {
        let failure = self.outcome.error.as_deref().map(CliError::from_text);
        let why = failure.as_ref().map(|failure| escape_text(&failure.what));
        match self.outcome.status {
            FinalStatus::Exited | FinalStatus::Signaled => {}
            FinalStatus::TimedOut => {
                let time = format_duration(self.last.map_or(0, |last| last.usage.wall_ms));
                self.note(&format!("its time ran out after {time}; all its processes were ended"));
            }
            FinalStatus::Limit => self.note(&format!("a limit ended it: {}", why.as_deref().unwrap_or("unknown"))),
            FinalStatus::Refused => self.write_refused_run(why.as_deref()),
            FinalStatus::Aborted => {
                self.note(&format!("aborted{}", why.map(|why| format!(": {why}")).unwrap_or_default()))
            }
            FinalStatus::Error => {
                let why = why.as_deref().unwrap_or("the run failed");
                write_labelled(&mut self.out, self.style, ("error: ", SgrColor::Red), why);
            }
        }
        if let Some(hint) = failure.and_then(|failure| failure.hint) {
            let _ = writeln!(self.out, "{} {}", self.style.paint_text(SgrColor::Cyan, "hint:"), escape_text(&hint));
        }
        let Some(enforced) = self.last.and_then(|last| last.enforced.as_ref()) else { return };
        if enforced.level == IsolationLevel::None {
            self.note("it ran without a sandbox");
        }
        // The reason why a tool may have found its cache read-only. Not relevant if the command succeeded.
        if let Some(caches) = enforced.layers.get("caches")
            && caches.state != LayerState::Enforced
            && self.outcome.exit_code != Some(0)
        {
            let why = caches.detail.trim_start_matches("none, ");
            self.note(&format!("tools could not write to all of their caches: {why}"));
        }
    }

    fn write_refused_run(&mut self, why: Option<&str>) {
        let decision = &self.outcome.decision;
        let rule = escape_text(&decision.rule);
        // A rule is one line in the audit log; a user gets its hint on a line of its own.
        let (why, hint) = match why.unwrap_or(&rule).split_once("; hint: ") {
            Some((why, hint)) => (why, Some(hint)),
            None => (why.unwrap_or(&rule), None),
        };
        self.note(&format!("refused, nothing ran: {why}"));
        let reasons = decision.reasons.iter().map(|reason| escape_text(reason));
        for reason in reasons.filter(|r| !r.split("; hint: ").any(|part| why.ends_with(part))).take(MAX_REASONS_SHOWN) {
            write_wrapped(&mut self.out, self.style, "  because ", &reason);
        }
        if let Some(hint) = hint {
            write_wrapped(&mut self.out, self.style, "hint: ", hint);
        }
    }
}

fn shorten(text: &RawText) -> String {
    compact_and_shorten(text, MAX_TEXT_COLUMNS)
}

/// Returns whether the entry was created in a directory of the run's own, which is removed.
fn is_gone(denial: &Denial) -> bool {
    denial.layer == DenialLayer::Mounts && denial.operation == DeniedOperation::Create
}

/// Returns whether a refusal concerns a history file, which no work needs.
fn is_about_history(denial: &Denial, home: &Path) -> bool {
    denial.grant.as_ref().and_then(Grant::path).is_some_and(|path| is_history(path, home))
}

/// Returns whether a refusal concerns reading the settings of a package registry. Tools look for
/// them at each start and work without them.
fn is_of_registry(denial: &Denial, home: &Path) -> bool {
    matches!(&denial.grant, Some(Grant::Read(path)) if is_registry_settings(path, home))
}

/// Returns the remembered no that refused it without a question.
fn remembered_no<'a>(
    outcome: &RunOutcome,
    denial: &Denial,
    remembered: &'a [ApprovalRecord],
) -> Option<&'a ApprovalRecord> {
    let grant = denial.grant.as_ref()?;
    let was_refused =
        |given: &Approval| given.by == CACHE_APPROVER && given.answer == "denied" && given.grants.contains(grant);
    let is_no = |answer: &&ApprovalRecord| answer.consent == Consent::Denied && answer.grants.contains(grant);
    outcome.approvals.iter().any(was_refused).then(|| remembered.iter().find(is_no)).flatten()
}

/// Returns the scope of the yes to this grant; `None` if the grant came with the request.
fn find_approved_scope(outcome: &RunOutcome, grant: &Grant, remembered: &[ApprovalRecord]) -> Option<String> {
    let yes = |approval: &&Approval| approval.answer == "approved" && approval.grants.contains(grant);
    let approval = outcome.approvals.iter().rev().find(yes)?;
    if approval.by != CACHE_APPROVER {
        return approval.scope.map(scope_name);
    }
    let is_yes = |answer: &&ApprovalRecord| answer.consent == Consent::Approved && answer.grants.contains(grant);
    let answer = remembered.iter().find(is_yes);
    Some(answer.map_or_else(|| "remembered".to_owned(), |answer| format!("remembered: {}", scope_name(answer.scope))))
}

/// Names the scope of an answer in a word or two.
pub fn scope_name(scope: ApprovalScope) -> String {
    match scope {
        ApprovalScope::Once => "once".to_owned(),
        ApprovalScope::Session => "session".to_owned(),
        ApprovalScope::Times(count) => count_noun(count, "time"),
        ApprovalScope::Until(time_ms) => format!("until {}", super::audit::format_utc(time_ms)),
        ApprovalScope::Always => "always".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use stockade_model::{
        Assessment, AttemptRecord, ConnectionEnd, ConnectionRecord, Decision, DeniedOperation, EnforcementReport,
        HostUse, LayerReport, PolicyVerdict, ResourceUsage, StagedChanges, Tier,
    };

    use super::*;
    use crate::render::question::tests::sample_denial;

    fn context() -> SummaryContext<'static> {
        SummaryContext {
            remembered: &[],
            sandbox_grants: &[],
            home: Path::new("/home/u"),
            workspace: None,
            own_directories: &[],
        }
    }

    fn outcome(status: FinalStatus) -> RunOutcome {
        RunOutcome {
            id: "req_1".parse().unwrap(),
            session: None,
            digest: None,
            status,
            exit_code: None,
            signal: None,
            error: None,
            assessment: Assessment::without_findings(Tier::Ask),
            decision: Decision {
                verdict: PolicyVerdict::Allow,
                rule: "mode on-failure: tier ask runs sandboxed".into(),
                reasons: Vec::new(),
            },
            attempts: vec![AttemptRecord {
                profile: "workspace".into(),
                grants: Vec::new(),
                backend: "native".into(),
                enforced: None,
                denials: Vec::new(),
                connections: Vec::new(),
                connections_left_out: 0,
                usage: ResourceUsage { wall_ms: 30_000, ..ResourceUsage::default() },
                stdout: None,
                stderr: None,
                truncated: false,
                staged: None,
                kept_for_undo: 0,
                project_files: Vec::new(),
                not_passed: Vec::new(),
                reads: Vec::new(),
            }],
            approvals: Vec::new(),
            requested: Vec::new(),
        }
    }

    #[test]
    fn no_remark_without_content() {
        assert_eq!(format_summary(&outcome(FinalStatus::Exited), context(), TextLayout::PLAIN), "");
    }

    #[test]
    fn refusals_name_the_sufficient_grant() {
        let mut value = outcome(FinalStatus::Exited);
        let mut other = sample_denial();
        other.object = "/home/u/it's\u{1b}[2J".into();
        other.grant = Some(Grant::Write("/home/u/it's\u{1b}[2J".into()));
        other.count = 3;
        let given = Denial { resolution: DenialResolution::Granted, ..sample_denial() };
        value.attempts[0].denials = vec![sample_denial(), other, given];
        insta::assert_snapshot!(format_summary(&value, context(), TextLayout::PLAIN), @r"
        • refused: create /home/u/outside   (outside every writable root)
          hint: --grant 'write /home/u/outside'
        • refused: create /home/u/it's\u{1b}[2J   (outside every writable root, 3 times)
          hint: --grant 'write /home/u/it'\''s\u{1b}[2J'
        ");
    }

    /// A user at a terminal may add the grant; a program that reads a pipe requests it.
    #[test]
    fn a_program_gets_the_hint_to_request() {
        let mut value = outcome(FinalStatus::Exited);
        value.attempts[0].denials = vec![sample_denial()];
        insta::assert_snapshot!(format_summary(&value, context(), TextLayout::PIPE), @r"
        • refused: create /home/u/outside   (outside every writable root)
          hint: --request 'write /home/u/outside'
        ");
    }

    #[test]
    fn no_hint_names_a_credential_or_a_part_of_the_system() {
        let mut value = outcome(FinalStatus::Exited);
        let about = |operation, grant: &str| {
            let grant: Grant = grant.parse().unwrap();
            let object = grant.path().map_or_else(|| "ghe.example.com:443".into(), RawText::from);
            Denial { operation, object, grant: Some(grant), ..sample_denial() }
        };
        value.attempts[0].denials = vec![
            about(DeniedOperation::Read, "read /etc/shadow"),
            about(DeniedOperation::Write, "write /var/lib/dpkg/lock-frontend"),
            about(DeniedOperation::Read, "read /home/u/.aws/credentials"),
            about(DeniedOperation::Connect, "socket /run/docker.sock"),
            about(DeniedOperation::Secret, "secret github to ghe.example.com:443"),
        ];
        insta::assert_snapshot!(format_summary(&value, context(), TextLayout::PLAIN), @r"
        • refused: read /etc/shadow   (outside every writable root)
          hint: this concerns the accounts of this system; a run never becomes another
                user: run what needs root or another account yourself, outside
        • refused: write /var/lib/dpkg/lock-frontend   (outside every writable root)
          hint: this concerns the packages of this system; packages of the system cannot
                be installed in a run: install them yourself, outside, or use a package
                manager that installs into the workspace
        • refused: read /home/u/.aws/credentials   (outside every writable root)
          hint: this concerns data that stays hidden from runs (credentials of cloud and
                hosting accounts); do what needs it yourself, outside
        • refused: connect to /run/docker.sock   (outside every writable root)
          hint: this concerns a container engine, which gives root on this machine; a
                run never reaches a container engine: start the container yourself,
                outside, or use `stockade sandbox create --image`
        • refused: take a secret to ghe.example.com:443   (outside every writable root)
          hint: the secret `github` is not for this host; if it is meant to be, add the
                host to the secret in your configuration
        ");
        let piped = format_summary(&value, context(), TextLayout::PIPE);
        assert!(!piped.contains("--grant") && !piped.contains("--request"), "{piped}");
        assert_eq!(piped.matches("hint: ").count(), 5, "{piped}");
    }

    #[test]
    fn grants_are_named() {
        let mut value = outcome(FinalStatus::Exited);
        value.attempts[0].grants = vec!["connect pypi.org:443".parse().unwrap(), "write /srv".parse().unwrap()];
        value.approvals = vec![Approval {
            question: String::new(),
            answer: "approved".into(),
            scope: Some(ApprovalScope::Session),
            by: "terminal".into(),
            waited_ms: 1,
            grants: value.attempts[0].grants.clone(),
            review: None,
        }];
        insta::assert_snapshot!(format_summary(&value, context(), TextLayout::PLAIN), @r"
        • granted: connect pypi.org:443, write /srv (session)
        ");
        // Each with its own answer; none if it came with the request.
        let file = value.approvals[0].grants.split_off(1);
        let no = Approval { answer: "denied".into(), grants: file.clone(), ..value.approvals[0].clone() };
        let once = Approval { scope: Some(ApprovalScope::Once), grants: file, ..value.approvals[0].clone() };
        value.approvals.extend([once, no]);
        value.attempts[0].grants.insert(0, "env A".parse().unwrap());
        insta::assert_snapshot!(format_summary(&value, context(), TextLayout::PLAIN), @r"
        • granted: env A, connect pypi.org:443 (session), write /srv (once)
        ");
    }

    #[test]
    fn hosts_that_were_reached_are_named() {
        let mut value = outcome(FinalStatus::Exited);
        let record = crate::render::network::tests::sample_record();
        let failed = ConnectionRecord {
            target: "gone.example:80".parse().unwrap(),
            end: ConnectionEnd::Failed,
            ..record.clone()
        };
        let other = ConnectionRecord {
            target: "[2606::1]:443".parse().unwrap(),
            bytes_up: 0,
            bytes_down: 12,
            ..record.clone()
        };
        for record in [&record, &record, &failed, &other] {
            HostUse::count_connection(&mut value.attempts[0].connections, &mut 0, 9, record);
        }
        insta::assert_snapshot!(format_summary(&value, context(), TextLayout::PLAIN), @r"
        • 2 hosts used: pypi.org:443 (2 times, 2.5 KiB up, 6.0 MiB down), [2606::1]:443
          (0 B up, 12 B down)
        ");
        let known = value.attempts[0].connections.remove(0);
        let many = (0..14).map(|n| HostUse { target: format!("h{n}.example:443").parse().unwrap(), ..known.clone() });
        value.attempts[0].connections = many.collect();
        let shown = format_summary(&value, context(), TextLayout::PLAIN);
        assert!(shown.starts_with("• 14 hosts used: h0.example:443") && shown.ends_with("and 2 more\n"), "{shown}");
    }

    #[test]
    fn endings() {
        let mut shown = String::new();
        for status in
            [FinalStatus::TimedOut, FinalStatus::Limit, FinalStatus::Refused, FinalStatus::Aborted, FinalStatus::Error]
        {
            let mut value = outcome(status);
            value.error = (status != FinalStatus::Refused).then(|| "because of \u{7} this\nhint: do \u{7} that".into());
            value.decision.reasons = vec!["rule `no rm` of /etc/stockade/config.toml".into()];
            shown += &format_summary(&value, context(), TextLayout::PLAIN);
        }
        insta::assert_snapshot!(shown, @r"
        • its time ran out after 30 s; all its processes were ended
        hint: do \u{7} that
        • a limit ended it: because of \u{7} this
        hint: do \u{7} that
        • refused, nothing ran: mode on-failure: tier ask runs sandboxed
          because rule `no rm` of /etc/stockade/config.toml
        • aborted: because of \u{7} this
        hint: do \u{7} that
        error: because of \u{7} this
        hint: do \u{7} that
        ");
    }

    #[test]
    fn a_refusal_states_each_fact_once_and_its_remedy_last() {
        let mut value = outcome(FinalStatus::Refused);
        value.decision.rule = "refused by the rules: there is no profile `x`; hint: it is `y`".into();
        value.decision.reasons = vec!["there is no profile `x`; hint: it is `y`".into(), "and more".into()];
        insta::assert_snapshot!(format_summary(&value, context(), TextLayout::PLAIN), @r"
        • refused, nothing ran: refused by the rules: there is no profile `x`
          because and more
        hint: it is `y`
        ");
    }

    #[test]
    fn settings_of_a_registry_take_one_line() {
        let mut value = outcome(FinalStatus::Exited);
        let hidden = Denial {
            grant: Some(Grant::Read("/home/u/.npmrc".into())),
            object: RawText::from("/home/u/.npmrc"),
            ..sample_denial()
        };
        value.attempts[0].denials = vec![hidden];
        let text = format_summary(&value, context(), TextLayout::PLAIN);
        assert_eq!(text, "• not read: /home/u/.npmrc   (tokens of package registries are hidden from runs)\n");
    }

    #[test]
    fn staged_changes_come_last_with_their_commands() {
        let mut value = outcome(FinalStatus::TimedOut);
        value.attempts[0].staged = Some(StagedChanges { stage: "stg_1".parse().unwrap(), changes: 3 });
        insta::assert_snapshot!(format_summary(&value, context(), TextLayout::PLAIN), @r"
        • its time ran out after 30 s; all its processes were ended
        • 3 paths staged in stg_1
          hint: stockade stage diff stg_1 (then: commit, discard)
        ");
    }

    #[test]
    fn a_missing_sandbox_is_reported() {
        let mut value = outcome(FinalStatus::Exited);
        value.attempts[0].enforced =
            Some(EnforcementReport { level: IsolationLevel::None, layers: Default::default() });
        assert_eq!(format_summary(&value, context(), TextLayout::PLAIN), "• it ran without a sandbox\n");
    }

    #[test]
    fn unavailable_caches_are_reported_where_they_matter() {
        let mut value = outcome(FinalStatus::Exited);
        let detail = "none, the directory of the workspace's caches: Device or resource busy".to_owned();
        let report = LayerReport { state: LayerState::Absent, detail };
        let layers = [("caches".to_owned(), report)].into();
        value.attempts[0].enforced = Some(EnforcementReport { level: IsolationLevel::Full, layers });
        value.exit_code = Some(0);
        assert_eq!(format_summary(&value, context(), TextLayout::PLAIN), "");
        value.exit_code = Some(1);
        insta::assert_snapshot!(format_summary(&value, context(), TextLayout::PLAIN), @r"
        • tools could not write to all of their caches: the directory of the workspace's
          caches: Device or resource busy
        ");
    }

    #[test]
    fn a_flood_of_refusals_is_counted() {
        let mut value = outcome(FinalStatus::Exited);
        let one = |number: u32| Denial {
            object: format!("/o/{}/{number}", number % 20).as_str().into(),
            grant: format!("write /o/{}", number % 20).parse().ok(),
            ..sample_denial()
        };
        value.attempts[0].denials = (0..1_000).map(one).collect();
        let shown = format_summary(&value, context(), TextLayout::PLAIN);
        assert!(shown.ends_with("• and 750 refusals more; --json shows all\n"), "{shown}");
        assert_eq!(shown.matches("  and 47 more of the kind\n").count(), 5, "{shown}");
        assert_eq!(shown.matches("hint: ").count(), 5, "{shown}");
    }
}
