//! Summary after a run: the refusals and the grants that would have sufficed, the grants given, and
//! the end of the run if the command did not report it itself. Empty if there is nothing to report.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use stockade_model::{
    Approval, Denial, Grant, Layer, LayerState, Level, Operation, Outcome, RawText, Resolution, Scope, Status,
    shell_quoted,
};
use stockade_policy::{is_history, is_registry_settings, names_package_registry};
use stockade_store::{Consent, Remembered};

use super::compact::brief;
use super::question::{grant_hint, grant_option, verb};
use super::remedy::{Remedy, Surroundings, grouped};
use super::{Color, Style, counted, time, wrap};
use crate::failure::Failure;

/// Approver name of a remembered answer.
const CACHE: &str = "cache";
/// Most columns of a path or a reason; the middle of a longer one is omitted.
const TEXT_LIMIT: usize = 400;
/// Groups of refusals that are shown, each with one hint; the rest is counted.
const GROUPS_SHOWN: usize = 5;
/// Reasons of a refusal that are shown.
const REASONS_SHOWN: usize = 20;
/// Withheld variables that are named.
const VARIABLES_SHOWN: usize = 5;
/// Files that run code later and that are named.
const PROJECT_FILES_SHOWN: usize = 3;
/// Refusals of a group that are shown.
const MEMBERS_SHOWN: usize = 3;

/// Inputs of a summary besides the outcome.
#[derive(Clone, Copy, Debug)]
pub struct SummaryContext<'a> {
    /// Remembered answers, if some were used.
    pub remembered: &'a [Remembered],
    /// Grants of every command there, which are not listed.
    pub standing: &'a [Grant],
    /// Home directory of the user, which determines the paths of credentials.
    pub home: &'a Path,
    /// The workspace, if the paths of refusals are those of the host.
    pub workspace: Option<&'a Path>,
    /// Directories of Stockade's own files.
    pub own_directories: &'a [PathBuf],
}

/// Formats the lines for standard error.
pub fn summary(outcome: &Outcome, context: SummaryContext<'_>, style: Style) -> String {
    let mut out = String::new();
    refusals(&mut out, outcome, context, style);
    grants(&mut out, outcome, context, style);
    if let Some(last) = outcome.attempts.last() {
        super::network::hosts_used(&mut out, last, style);
    }
    ending(&mut out, outcome, style);
    not_passed(&mut out, outcome, style);
    staged(&mut out, outcome, style);
    project_files(&mut out, outcome, context, style);
    kept_for_undo(&mut out, outcome, style);
    traced(&mut out, outcome, style);
    out
}

/// Writes the withheld variables. Without the address of a registry, a tool silently uses the
/// public one. Other variables are named if the command failed, because their absence may be the
/// cause.
fn not_passed(out: &mut String, outcome: &Outcome, style: Style) {
    let names = outcome.attempts.last().map_or(&[][..], |last| last.not_passed.as_slice());
    let (registries, others): (Vec<&String>, Vec<&String>) =
        names.iter().partition(|name| names_package_registry(name));
    let has_failed = outcome.status == Status::Exited && outcome.exit_code != Some(0);
    let others = if has_failed { others } else { Vec::new() };
    let of_registry = "an address that may hold a password stays outside; tools ask the public registry instead";
    let changing = "a variable that changes what programs do stays outside";
    for (names, why) in [(registries, of_registry), (others, changing)] {
        if names.is_empty() {
            continue;
        }
        let shown: Vec<&str> = names.iter().take(VARIABLES_SHOWN).map(|name| name.as_str()).collect();
        wrap(out, style, "• ", &format!("not passed: {}   ({why})", shown.join(", ")));
        let grant = |name: &&str| grant_hint(&Grant::Env((*name).to_owned()), style.is_terminal());
        hint(out, &shown.iter().map(grant).collect::<Vec<String>>().join(" "), style);
    }
}

fn refusals(out: &mut String, outcome: &Outcome, context: SummaryContext<'_>, style: Style) {
    let home = context.home;
    // A refusal of an earlier attempt was granted to the last one, or was repeated there.
    let Some(last) = outcome.attempts.last() else { return };
    let refused = last.denials.iter().filter(|denial| denial.resolution != Resolution::Granted);
    let (registries, refused): (Vec<_>, Vec<_>) = refused.partition(|denial| is_of_registry(denial, home));
    for denial in registries.iter().take(GROUPS_SHOWN) {
        let object = brief(&denial.object, TEXT_LIMIT);
        wrap(out, style, "• ", &format!("not read: {object}   (tokens of package registries are hidden from runs)"));
    }
    let (histories, refused): (Vec<_>, Vec<_>) = refused.into_iter().partition(|denial| is_about_history(denial, home));
    if let Some(first) = histories.first() {
        let others = if histories.len() > 1 { format!(" and {} more", histories.len() - 1) } else { String::new() };
        let object = brief(&first.object, TEXT_LIMIT);
        wrap(
            out,
            style,
            "• ",
            &format!("not kept: {object}{others}   (a history of what was typed is hidden from runs)"),
        );
    }
    let (gone, refused): (Vec<_>, Vec<_>) = refused.into_iter().partition(|denial| is_gone(denial));
    for denial in gone.iter().take(GROUPS_SHOWN) {
        wrap(out, style, "• ", &format!("gone: {}   ({})", brief(&denial.object, TEXT_LIMIT), denial.rule));
    }
    let answered = |denial: &&Denial| remembered_no(outcome, denial, context.remembered);
    let (before, refused): (Vec<_>, Vec<_>) = refused.into_iter().partition(|denial| answered(denial).is_some());
    for denial in before.iter().take(GROUPS_SHOWN) {
        if let Some(answer) = answered(denial) {
            refused_before(out, denial, answer, style);
        }
    }
    let groups = grouped(
        &refused,
        Surroundings { home, workspace: context.workspace, own_directories: context.own_directories },
    );
    for (remedy, members) in groups.iter().take(GROUPS_SHOWN) {
        group(out, remedy, members, style);
    }
    let shown: usize = groups.iter().take(GROUPS_SHOWN).map(|(_, members)| members.len()).sum();
    let more = refused.len() - shown + before.len().saturating_sub(GROUPS_SHOWN);
    if more > 0 {
        let _ = writeln!(out, "• and {} more; --json shows all", counted(more, "refusal"));
    }
}

/// Returns whether the entry was created in a directory of the run's own, which is removed.
fn is_gone(denial: &Denial) -> bool {
    denial.layer == Layer::Mounts && denial.operation == Operation::Create
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
fn remembered_no<'a>(outcome: &Outcome, denial: &Denial, remembered: &'a [Remembered]) -> Option<&'a Remembered> {
    let grant = denial.grant.as_ref()?;
    let was_refused = |given: &Approval| given.by == CACHE && given.answer == "denied" && given.grants.contains(grant);
    let is_no = |answer: &&Remembered| answer.consent == Consent::Denied && answer.grants.contains(grant);
    outcome.approvals.iter().any(was_refused).then(|| remembered.iter().find(is_no)).flatten()
}

fn refused_before(out: &mut String, denial: &Denial, answer: &Remembered, style: Style) {
    let object = brief(&denial.object, TEXT_LIMIT);
    let word =
        if answer.scope == Scope::Always { "never".to_owned() } else { format!("no ({})", scope_name(answer.scope)) };
    let text = format!(
        "refused: {} {object}   (you answered {word} on {})",
        verb(denial.operation),
        super::audit::utc(answer.created_ms)
    );
    wrap(out, style, "• ", &text);
    let _ = writeln!(out, "  {} stockade approvals revoke {}", style.paint(Color::Cyan, "hint:"), answer.id);
}

/// Writes refusals that have the same remedy.
fn group(out: &mut String, remedy: &Remedy, members: &[&Denial], style: Style) {
    for denial in members.iter().take(MEMBERS_SHOWN) {
        let times = if denial.count > 1 { format!(", {} times", denial.count) } else { String::new() };
        let rule = brief(&RawText::from(denial.rule.as_str()), TEXT_LIMIT);
        let object = brief(&denial.object, TEXT_LIMIT);
        let text = format!("refused: {} {object}   ({rule}{times})", verb(denial.operation));
        wrap(out, style, "• ", &text);
    }
    if members.len() > MEMBERS_SHOWN {
        let _ = writeln!(out, "  and {} more of the kind", members.len() - MEMBERS_SHOWN);
    }
    let options: Vec<String> = match remedy {
        Remedy::Nothing => return,
        Remedy::Advice(advice) => return hint(out, advice, style),
        // On one line, so that it can be copied.
        Remedy::Grants(grants) if grants.iter().any(|grant| grant.to_string().chars().count() > TEXT_LIMIT) => {
            return hint(out, "the name is too long to be shown here; `--json` has the grant in full", style);
        }
        Remedy::Grants(grants) => grants.iter().map(|grant| grant_hint(grant, style.is_terminal())).collect(),
        Remedy::Group(group) => vec![format!("{} @{}", grant_option(style.is_terminal()), group.name)],
        Remedy::Workspace(top) => {
            vec![format!("--workspace {}", shell_quoted(&RawText::from(top.as_path()).escaped()))]
        }
    };
    let _ = writeln!(out, "  {} {}", style.paint(Color::Cyan, "hint:"), options.join(" "));
}

fn hint(out: &mut String, text: &str, style: Style) {
    let mut lines = String::new();
    wrap(&mut lines, style, "  hint: ", text);
    *out += &lines.replacen("hint:", &style.paint(Color::Cyan, "hint:"), 1);
}

fn grants(out: &mut String, outcome: &Outcome, context: SummaryContext<'_>, style: Style) {
    let standing = context.standing;
    let Some(last) = outcome.attempts.last() else { return };
    let granted: Vec<&Grant> = last.grants.iter().filter(|grant| !standing.contains(grant)).collect();
    if granted.is_empty() {
        return;
    }
    // Grants with the same scope are grouped: `a, b (session), c`.
    let mut groups: Vec<(Option<String>, Vec<String>)> = Vec::new();
    for grant in &granted {
        let scope = agreed(outcome, grant, context.remembered);
        match groups.iter_mut().find(|(known, _)| *known == scope) {
            Some((_, grants)) => grants.push(grant.to_string()),
            None => groups.push((scope, vec![grant.to_string()])),
        }
    }
    let text: Vec<_> = groups
        .into_iter()
        .map(|(scope, grants)| grants.join(", ") + &scope.map(|scope| format!(" ({scope})")).unwrap_or_default())
        .collect();
    wrap(out, style, "• ", &format!("granted: {}", text.join(", ")));
}

/// Returns the scope of the yes to this grant; `None` if the grant came with the request.
fn agreed(outcome: &Outcome, grant: &Grant, remembered: &[Remembered]) -> Option<String> {
    let yes = |approval: &&Approval| approval.answer == "approved" && approval.grants.contains(grant);
    let approval = outcome.approvals.iter().rev().find(yes)?;
    if approval.by != CACHE {
        return approval.scope.map(scope_name);
    }
    let is_yes = |answer: &&Remembered| answer.consent == Consent::Approved && answer.grants.contains(grant);
    let answer = remembered.iter().find(is_yes);
    Some(answer.map_or_else(|| "remembered".to_owned(), |answer| format!("remembered: {}", scope_name(answer.scope))))
}

/// Names the scope of an answer in a word or two.
pub fn scope_name(scope: Scope) -> String {
    match scope {
        Scope::Once => "once".to_owned(),
        Scope::Session => "session".to_owned(),
        Scope::Times(count) => counted(usize::try_from(count).unwrap_or(usize::MAX), "time"),
        Scope::Until(time_ms) => format!("until {}", super::audit::utc(time_ms)),
        Scope::Always => "always".to_owned(),
    }
}

/// Writes the staged changes, and the commands for them.
fn staged(out: &mut String, outcome: &Outcome, style: Style) {
    let Some(staged) = outcome.attempts.last().and_then(|last| last.staged.as_ref()) else { return };
    wrap(out, style, "• ", &super::stage::waiting(staged));
    let id = &staged.stage;
    let _ = writeln!(out, "  {} stockade stage diff {id} (then: commit, discard)", style.paint(Color::Cyan, "hint:"));
}

/// Writes the names of files that run code later.
fn project_files(out: &mut String, outcome: &Outcome, context: SummaryContext<'_>, style: Style) {
    let Some(files) = outcome.attempts.last().map(|last| &last.project_files).filter(|files| !files.is_empty()) else {
        return;
    };
    let name = |path: &RawText| {
        let path = path.as_path();
        let beneath = context.workspace.and_then(|workspace| path.strip_prefix(workspace).ok());
        brief(&RawText::from(beneath.unwrap_or(path)), TEXT_LIMIT)
    };
    let named: Vec<String> = files.iter().take(PROJECT_FILES_SHOWN).map(name).collect();
    let more = match files.len().saturating_sub(PROJECT_FILES_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more; --json names them"),
    };
    let (count, was) = (counted(files.len(), "file"), if files.len() == 1 { "runs" } else { "run" });
    wrap(out, style, "• ", &format!("{count} written that {was} code later: {}{more}", named.join(", ")));
}

/// Writes the number of changes that can be undone, and the command.
fn kept_for_undo(out: &mut String, outcome: &Outcome, style: Style) {
    let kept = outcome.attempts.iter().map(|attempt| attempt.kept_for_undo).max().unwrap_or_default();
    if kept == 0 {
        return;
    }
    // Not the count of `undo`: this one includes paths that were created and removed again.
    let count = counted(usize::try_from(kept).unwrap_or(usize::MAX), "path");
    wrap(out, style, "• ", &format!("what it changed in the workspace can be put back ({count} noted meanwhile)"));
    let hint = style.paint(Color::Cyan, "hint:");
    let _ = writeln!(out, "  {hint} stockade changes {} (then: undo)", outcome.id);
}

/// Writes the number of files that a traced run has read, and the use of the trace.
fn traced(out: &mut String, outcome: &Outcome, style: Style) {
    let Some(last) = outcome.attempts.last().filter(|last| !last.reads.is_empty()) else { return };
    let files: u64 = last.reads.iter().map(|read| if read.directory { read.files } else { 1 }).sum();
    wrap(out, style, "• ", &format!("traced: {} read", counted(usize::try_from(files).unwrap_or(usize::MAX), "file")));
    let hint = style.paint(Color::Cyan, "hint:");
    let _ = writeln!(out, "  {hint} stockade policy suggest --request {}   (a profile that reads no more)", outcome.id);
}

fn ending(out: &mut String, outcome: &Outcome, style: Style) {
    let failure = outcome.error.as_deref().map(Failure::from_text);
    let why = failure.as_ref().map(|failure| RawText::from(failure.what.as_str()).escaped());
    let wall_ms = outcome.attempts.last().map_or(0, |last| last.usage.wall_ms);
    match outcome.status {
        Status::Exited | Status::Signaled => {}
        Status::TimedOut => {
            wrap(out, style, "• ", &format!("its time ran out after {}; all it had started was ended", time(wall_ms)));
        }
        Status::Limit => wrap(out, style, "• ", &format!("a limit ended it: {}", why.as_deref().unwrap_or("unknown"))),
        Status::Refused => refused(out, outcome, why.as_deref(), style),
        Status::Aborted => {
            wrap(out, style, "• ", &format!("aborted{}", why.map(|why| format!(": {why}")).unwrap_or_default()));
        }
        Status::Error => wrap_error(out, why.as_deref().unwrap_or("the run failed"), style),
    }
    if let Some(hint) = failure.and_then(|failure| failure.hint) {
        let _ = writeln!(out, "{} {}", style.paint(Color::Cyan, "hint:"), RawText::from(hint.as_str()).escaped());
    }
    if outcome.attempts.last().and_then(|last| last.enforced.as_ref()).is_some_and(|e| e.level == Level::None) {
        wrap(out, style, "• ", "it ran without a sandbox");
    }
    without_caches(out, outcome, style);
}

/// Writes the reason why a tool may have found its cache read-only. Not relevant if the command
/// succeeded.
fn without_caches(out: &mut String, outcome: &Outcome, style: Style) {
    let enforced = outcome.attempts.last().and_then(|last| last.enforced.as_ref());
    let Some(caches) = enforced.and_then(|enforced| enforced.layers.get("caches")) else { return };
    if caches.state != LayerState::Enforced && outcome.exit_code != Some(0) {
        let why = caches.detail.trim_start_matches("none, ");
        wrap(out, style, "• ", &format!("tools could not write to all of their caches: {why}"));
    }
}

fn wrap_error(out: &mut String, why: &str, style: Style) {
    let mut text = String::new();
    wrap(&mut text, style, "error: ", why);
    *out += &text.replacen("error:", &style.paint(Color::Red, "error:"), 1);
}

fn refused(out: &mut String, outcome: &Outcome, why: Option<&str>, style: Style) {
    let rule = RawText::from(outcome.decision.rule.as_str()).escaped();
    // A rule is one line in the audit log; a user gets its hint on a line of its own.
    let (why, hint) = match why.unwrap_or(&rule).split_once("; hint: ") {
        Some((why, hint)) => (why, Some(hint)),
        None => (why.unwrap_or(&rule), None),
    };
    wrap(out, style, "• ", &format!("refused, nothing ran: {why}"));
    let reasons = outcome.decision.reasons.iter().map(|reason| RawText::from(reason.as_str()).escaped());
    for reason in reasons.filter(|r| !r.split("; hint: ").any(|part| why.ends_with(part))).take(REASONS_SHOWN) {
        wrap(out, style, "  because ", &reason);
    }
    if let Some(hint) = hint {
        wrap(out, style, "hint: ", hint);
    }
}

#[cfg(test)]
mod tests {
    use stockade_model::{
        Assessment, AttemptRecord, ConnectionEnd, ConnectionRecord, Decision, EnforcementReport, HostUse, LayerReport,
        Operation, Staged, Tier, Usage, Verdict,
    };

    use super::*;
    use crate::render::question::tests::denial;

    fn context() -> SummaryContext<'static> {
        SummaryContext {
            remembered: &[],
            standing: &[],
            home: Path::new("/home/u"),
            workspace: None,
            own_directories: &[],
        }
    }

    fn outcome(status: Status) -> Outcome {
        Outcome {
            id: "req_1".parse().unwrap(),
            session: None,
            digest: None,
            status,
            exit_code: None,
            signal: None,
            error: None,
            assessment: Assessment::bare(Tier::Ask),
            decision: Decision {
                verdict: Verdict::Allow,
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
                usage: Usage { wall_ms: 30_000, ..Usage::default() },
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
    fn nothing_to_say_is_not_said() {
        assert_eq!(summary(&outcome(Status::Exited), context(), Style::PLAIN), "");
    }

    #[test]
    fn refusals_come_with_what_would_have_sufficed() {
        let mut value = outcome(Status::Exited);
        let mut other = denial();
        other.object = "/home/u/it's\u{1b}[2J".into();
        other.grant = Some(Grant::Write("/home/u/it's\u{1b}[2J".into()));
        other.count = 3;
        let given = Denial { resolution: Resolution::Granted, ..denial() };
        value.attempts[0].denials = vec![denial(), other, given];
        insta::assert_snapshot!(summary(&value, context(), Style::PLAIN), @r"
        • refused: create /home/u/outside   (outside every writable root)
          hint: --grant 'write /home/u/outside'
        • refused: create /home/u/it's\u{1b}[2J   (outside every writable root, 3 times)
          hint: --grant 'write /home/u/it'\''s\u{1b}[2J'
        ");
    }

    /// A user at a terminal may add the grant; a program that reads a pipe requests it.
    #[test]
    fn a_program_is_told_to_ask() {
        let mut value = outcome(Status::Exited);
        value.attempts[0].denials = vec![denial()];
        insta::assert_snapshot!(summary(&value, context(), Style::PIPE), @r"
        • refused: create /home/u/outside   (outside every writable root)
          hint: --request 'write /home/u/outside'
        ");
    }

    #[test]
    fn no_hint_names_a_credential_or_a_part_of_the_system() {
        let mut value = outcome(Status::Exited);
        let about = |operation, grant: &str| {
            let grant: Grant = grant.parse().unwrap();
            let object = grant.path().map_or_else(|| "ghe.example.com:443".into(), RawText::from);
            Denial { operation, object, grant: Some(grant), ..denial() }
        };
        value.attempts[0].denials = vec![
            about(Operation::Read, "read /etc/shadow"),
            about(Operation::Write, "write /var/lib/dpkg/lock-frontend"),
            about(Operation::Read, "read /home/u/.aws/credentials"),
            about(Operation::Connect, "socket /run/docker.sock"),
            about(Operation::Secret, "secret github to ghe.example.com:443"),
        ];
        insta::assert_snapshot!(summary(&value, context(), Style::PLAIN), @r"
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
        let piped = summary(&value, context(), Style::PIPE);
        assert!(!piped.contains("--grant") && !piped.contains("--request"), "{piped}");
        assert_eq!(piped.matches("hint: ").count(), 5, "{piped}");
    }

    #[test]
    fn grants_are_named() {
        let mut value = outcome(Status::Exited);
        value.attempts[0].grants = vec!["connect pypi.org:443".parse().unwrap(), "write /srv".parse().unwrap()];
        value.approvals = vec![Approval {
            question: String::new(),
            answer: "approved".into(),
            scope: Some(Scope::Session),
            by: "terminal".into(),
            waited_ms: 1,
            grants: value.attempts[0].grants.clone(),
            review: None,
        }];
        insta::assert_snapshot!(summary(&value, context(), Style::PLAIN), @r"
        • granted: connect pypi.org:443, write /srv (session)
        ");
        // Each with its own answer; none if it came with the request.
        let file = value.approvals[0].grants.split_off(1);
        let no = Approval { answer: "denied".into(), grants: file.clone(), ..value.approvals[0].clone() };
        let once = Approval { scope: Some(Scope::Once), grants: file, ..value.approvals[0].clone() };
        value.approvals.extend([once, no]);
        value.attempts[0].grants.insert(0, "env A".parse().unwrap());
        insta::assert_snapshot!(summary(&value, context(), Style::PLAIN), @r"
        • granted: env A, connect pypi.org:443 (session), write /srv (once)
        ");
    }

    #[test]
    fn hosts_that_were_reached_are_named() {
        let mut value = outcome(Status::Exited);
        let record = crate::render::network::tests::record();
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
            HostUse::count(&mut value.attempts[0].connections, &mut 0, 9, record);
        }
        insta::assert_snapshot!(summary(&value, context(), Style::PLAIN), @r"
        • 2 hosts used: pypi.org:443 (2 times, 2.5 KiB up, 6.0 MiB down), [2606::1]:443
          (0 B up, 12 B down)
        ");
        let known = value.attempts[0].connections.remove(0);
        let many = (0..14).map(|n| HostUse { target: format!("h{n}.example:443").parse().unwrap(), ..known.clone() });
        value.attempts[0].connections = many.collect();
        let shown = summary(&value, context(), Style::PLAIN);
        assert!(shown.starts_with("• 14 hosts used: h0.example:443") && shown.ends_with("and 2 more\n"), "{shown}");
    }

    #[test]
    fn endings() {
        let mut shown = String::new();
        for status in [Status::TimedOut, Status::Limit, Status::Refused, Status::Aborted, Status::Error] {
            let mut value = outcome(status);
            value.error = (status != Status::Refused).then(|| "because of \u{7} this\nhint: do \u{7} that".into());
            value.decision.reasons = vec!["rule `no rm` of /etc/stockade/config.toml".into()];
            shown += &summary(&value, context(), Style::PLAIN);
        }
        insta::assert_snapshot!(shown, @r"
        • its time ran out after 30 s; all it had started was ended
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
    fn a_refusal_says_each_thing_once_and_its_remedy_last() {
        let mut value = outcome(Status::Refused);
        value.decision.rule = "refused by the rules: there is no profile `x`; hint: it is `y`".into();
        value.decision.reasons = vec!["there is no profile `x`; hint: it is `y`".into(), "and more".into()];
        insta::assert_snapshot!(summary(&value, context(), Style::PLAIN), @r"
        • refused, nothing ran: refused by the rules: there is no profile `x`
          because and more
        hint: it is `y`
        ");
    }

    #[test]
    fn settings_of_a_registry_take_one_line() {
        let mut value = outcome(Status::Exited);
        let hidden = Denial {
            grant: Some(Grant::Read("/home/u/.npmrc".into())),
            object: RawText::from("/home/u/.npmrc"),
            ..denial()
        };
        value.attempts[0].denials = vec![hidden];
        let text = summary(&value, context(), Style::PLAIN);
        assert_eq!(text, "• not read: /home/u/.npmrc   (tokens of package registries are hidden from runs)\n");
    }

    #[test]
    fn what_is_staged_comes_last_with_what_can_be_done() {
        let mut value = outcome(Status::TimedOut);
        value.attempts[0].staged = Some(Staged { stage: "stg_1".parse().unwrap(), changes: 3 });
        insta::assert_snapshot!(summary(&value, context(), Style::PLAIN), @r"
        • its time ran out after 30 s; all it had started was ended
        • 3 paths staged in stg_1
          hint: stockade stage diff stg_1 (then: commit, discard)
        ");
    }

    #[test]
    fn no_sandbox_is_said() {
        let mut value = outcome(Status::Exited);
        value.attempts[0].enforced = Some(EnforcementReport { level: Level::None, layers: Default::default() });
        assert_eq!(summary(&value, context(), Style::PLAIN), "• it ran without a sandbox\n");
    }

    #[test]
    fn caches_that_could_not_be_had_are_told_where_it_matters() {
        let mut value = outcome(Status::Exited);
        let detail = "none, the directory of the workspace's caches: Device or resource busy".to_owned();
        let report = LayerReport { state: LayerState::Absent, detail };
        let layers = [("caches".to_owned(), report)].into();
        value.attempts[0].enforced = Some(EnforcementReport { level: Level::Full, layers });
        value.exit_code = Some(0);
        assert_eq!(summary(&value, context(), Style::PLAIN), "");
        value.exit_code = Some(1);
        insta::assert_snapshot!(summary(&value, context(), Style::PLAIN), @r"
        • tools could not write to all of their caches: the directory of the workspace's
          caches: Device or resource busy
        ");
    }

    #[test]
    fn a_flood_of_refusals_is_counted() {
        let mut value = outcome(Status::Exited);
        let one = |number: u32| Denial {
            object: format!("/o/{}/{number}", number % 20).as_str().into(),
            grant: format!("write /o/{}", number % 20).parse().ok(),
            ..denial()
        };
        value.attempts[0].denials = (0..1_000).map(one).collect();
        let shown = summary(&value, context(), Style::PLAIN);
        assert!(shown.ends_with("• and 750 refusals more; --json shows all\n"), "{shown}");
        assert_eq!(shown.matches("  and 47 more of the kind\n").count(), 5, "{shown}");
        assert_eq!(shown.matches("hint: ").count(), 5, "{shown}");
    }
}
