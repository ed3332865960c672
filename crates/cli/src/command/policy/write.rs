//! `stockade policy amend` and `fmt`: the only subcommands that change a configuration, and only on
//! the user's request. A new text replaces the old one atomically, after it was validated.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use stockade_model::{
    ApprovalScope, Grant, NetworkTarget, PolicyVerdict, RequestCommand, RunOutcome, SecretUse, TargetPattern,
    shell_quoted,
};
use stockade_policy::amend::{insert_rules, rule_for_hosts, rules_for};
use stockade_policy::load::{ConfigSources, load_with};
use stockade_policy::{ConfigLayer, DraftRule, LayerText, PolicySettings, ProvenanceSection, resolve_profile};

use super::read_text_file;
use crate::args::CheckArgs;
use crate::command::{CommandResult, now_ms, print_output, print_remark, read_variable};
use crate::failure::{CliError, quote_path};
use crate::policy_args::{PolicyAmendArgs, PolicyFmtArgs};
use crate::resolved_args::{self, ResolvedArgs};
use crate::{exit, locations};

/// Formats files.
///
/// # Errors
/// [`CliError`] if a file is not a configuration or cannot be written.
pub fn format_files(typed: &PolicyFmtArgs) -> CommandResult {
    let own_file = locations::locate_sources(None, &read_variable)?.user_file;
    let files = if typed.files.is_empty() { vec![own_file] } else { typed.files.clone() };
    if typed.files.is_empty() && files.iter().all(|file| !file.exists()) {
        print_remark("there is no configuration file: the built-in policy applies\n");
        return Ok(exit::SUCCESS);
    }
    let mut changed = false;
    for path in &files {
        let before = read_text_file(path)?;
        let after = stockade_policy::format_config(path, &before)?;
        if before == after {
            continue;
        }
        changed = true;
        if typed.check {
            print_remark(&format!("{} would change\n", quote_path(path)));
        } else {
            replace_file_text(path, &before, &after)?;
            print_remark(&format!("{} changed\n", quote_path(path)));
        }
    }
    Ok(if changed && typed.check { exit::NEGATIVE_RESULT } else { exit::SUCCESS })
}

/// Returns the command that turns an `always` answer into a rule, if one is allowed, and the scope
/// of that rule. The answer itself is bound to this program, workspace and profile.
pub fn rule_hint(
    command: &RequestCommand,
    workspace: &Path,
    outcome: &RunOutcome,
    settings: &PolicySettings,
) -> Option<(&'static str, String)> {
    let always_approval = outcome
        .approvals
        .iter()
        .find(|candidate| candidate.scope == Some(ApprovalScope::Always) && candidate.by == "terminal")?;
    let effect = match always_approval.answer.as_str() {
        "approved" => PolicyVerdict::Allow,
        "denied" => PolicyVerdict::Deny,
        _ => return None,
    };
    if let Some(hosts) = extract_host_targets(&always_approval.grants) {
        return Some(("every command", format!("{}{}", amend_line(effect), host_options(&hosts))));
    }
    if let Some(secret_grant) = extract_secret_uses(&always_approval.grants) {
        // A denial of a secret is not a denial of its host.
        let targets = secret_grant.iter().map(|secret| secret.targets().target()).collect::<Option<Vec<_>>>();
        let hosts = host_options(&targets.filter(|_| effect == PolicyVerdict::Allow)?);
        let grants = grant_options(&always_approval.grants);
        return Some(("every command", format!("{}{hosts}{grants}", amend_line(effect))));
    }
    let last = outcome.attempts.last();
    let grants = last.filter(|_| effect == PolicyVerdict::Allow).map_or(&[][..], |attempt| &attempt.grants);
    let name = last.map_or(settings.profile.value.as_str(), |attempt| attempt.profile.as_str());
    // As `amend` does, which refuses protected paths in the workspace.
    let profile = resolve_profile(settings, name, workspace, &[])
        .or_else(|_| resolve_profile(settings, "read-only", workspace, &[]));
    let provenance = ProvenanceSection { by: "terminal".to_owned(), at: None, request: None };
    rules_for(command, effect, grants, &profile.ok()?, &provenance).ok()?;
    let mut line = amend_line(effect).to_owned() + &grant_options(grants);
    match command {
        RequestCommand::Script(script) => line += &format!(" -c {}", shell_quoted(script.to_str()?)),
        RequestCommand::Argv(words) => {
            line += " --";
            for word in words {
                let word = word.to_str()?;
                let plain =
                    !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "_-./:=,+@%".contains(c));
                line += &if plain { format!(" {word}") } else { format!(" {}", shell_quoted(word)) };
            }
        }
    }
    Some(("this command wherever its program comes from", line))
}

fn host_options(hosts: &[NetworkTarget]) -> String {
    hosts.iter().map(|target| format!(" --host {target}")).collect()
}

fn grant_options(grants: &[Grant]) -> String {
    grants.iter().map(|grant| format!(" --grant {}", shell_quoted(&grant.to_string()))).collect()
}

fn amend_line(effect: PolicyVerdict) -> &'static str {
    if effect == PolicyVerdict::Deny {
        "stockade policy amend --write --effect deny"
    } else {
        "stockade policy amend --write"
    }
}

/// Returns the hosts and ports of an answer that covers nothing else.
pub fn extract_host_targets(grants: &[Grant]) -> Option<Vec<NetworkTarget>> {
    let target = |grant: &Grant| grant.targets().and_then(TargetPattern::target);
    grants.iter().map(target).collect::<Option<Vec<_>>>().filter(|targets| !targets.is_empty())
}

/// Returns the secrets of an answer that covers nothing else.
pub fn extract_secret_uses(grants: &[Grant]) -> Option<Vec<SecretUse>> {
    let secret = |grant: &Grant| grant.secret().cloned();
    grants.iter().map(secret).collect::<Option<Vec<_>>>().filter(|secrets| !secrets.is_empty())
}

/// Shows the smallest rule for a command or for hosts, and writes it on request.
///
/// # Errors
/// [`CliError`] if no rule is allowed, or if the file cannot be written.
pub fn amend_policy(typed: PolicyAmendArgs) -> CommandResult {
    let by = super::user_name().unwrap_or_else(|| "a person".to_owned());
    let provenance = ProvenanceSection { by, at: Some(crate::render::audit::format_utc(now_ms())), request: None };
    let (write, file) = (typed.write, typed.file.clone());
    let (drafts, workspace) = match typed.hosts.is_empty() {
        true => drafts_for_command(typed, &provenance)?,
        false => (vec![draft_for_hosts(&typed, &provenance)?], locations::current_directory()?),
    };
    let sources = locations::locate_sources(Some(&workspace), &read_variable)?;
    show_or_write_rules(&sources, file, &drafts, write)
}

/// Returns the rule for hosts, and for the secrets that may be sent to them.
fn draft_for_hosts(typed: &PolicyAmendArgs, provenance: &ProvenanceSection) -> Result<DraftRule, CliError> {
    let target = |text: &String| {
        text.parse::<NetworkTarget>()
            .map_err(|e| CliError::new(e).with_hint("name one host and port: --host pypi.org:443"))
    };
    let targets = typed.hosts.iter().map(target).collect::<Result<Vec<_>, _>>()?;
    let mut draft = rule_for_hosts(&targets, typed.effect, provenance);
    for grant in &typed.grants {
        let text = grant.to_string_lossy();
        let secret_grant = text.parse::<Grant>().map_err(CliError::new)?;
        let is_one_of =
            |secret_grant: &SecretUse| secret_grant.targets().target().is_some_and(|target| targets.contains(&target));
        if typed.effect != PolicyVerdict::Allow || !secret_grant.secret().is_some_and(is_one_of) {
            return Err(CliError::new(format!("`{secret_grant}` cannot be part of a rule about these hosts"))
                .with_hint("with --host, and to allow, a grant is `secret NAME to HOST:PORT`, of one of the hosts"));
        }
        draft.grants.push(secret_grant.to_string());
    }
    Ok(draft)
}

/// Returns the rules for a command, and its workspace.
fn drafts_for_command(
    typed: PolicyAmendArgs,
    provenance: &ProvenanceSection,
) -> Result<(Vec<DraftRule>, PathBuf), CliError> {
    let check = CheckArgs { subject: typed.subject, ..CheckArgs::default() };
    let request_args = ResolvedArgs::from_check_args(check, &read_variable)?;
    let grants =
        resolved_args::parse_grants(&typed.grants, &read_variable, &request_args.cwd, &request_args.workspace)?;
    if typed.effect != PolicyVerdict::Allow && !grants.is_empty() {
        return Err(CliError::new("only an `allow` rule can give powers").with_hint("leave --grant out"));
    }
    let settings = stockade_policy::load::load_settings(&locations::locate_sources(
        Some(&request_args.workspace),
        &read_variable,
    )?)?;
    let profile = resolve_profile(&settings, &settings.profile.value, &request_args.workspace, &[])?;
    Ok((rules_for(&request_args.command, typed.effect, &grants, &profile, provenance)?, request_args.workspace))
}

/// Shows rules as they would appear in a file, and writes them with `write`.
fn show_or_write_rules(
    sources: &ConfigSources,
    file: Option<PathBuf>,
    drafts: &[DraftRule],
    write: bool,
) -> CommandResult {
    let layer = if file.is_none() { ConfigLayer::User } else { ConfigLayer::System };
    let path = file.unwrap_or_else(|| sources.user_file.clone());
    // Validated before it is shown, and shown before it is written.
    let Some((before, after)) = with_rules(sources, layer, &path, drafts)? else {
        print_remark(&format!("{} contains it already\n", quote_path(&path)));
        return Ok(exit::SUCCESS);
    };
    let shown: Vec<String> = drafts.iter().map(DraftRule::to_toml).collect();
    print_output(&shown.join("\n"))?;
    if write {
        replace_file_text(&path, &before, &after)?;
        print_remark(&format!("written to {}\n", quote_path(&path)));
    } else {
        print_remark(&format!("not written; --write adds it to {}\n", quote_path(&path)));
    }
    Ok(exit::SUCCESS)
}

/// Adds rules that were shown to the user's own file. Returns the file, if it did not contain them
/// already.
///
/// # Errors
/// [`CliError`] if the file cannot be written, or would be invalid.
pub fn add_to_user_file(sources: &ConfigSources, drafts: &[DraftRule]) -> Result<Option<PathBuf>, CliError> {
    let path = &sources.user_file;
    let Some((before, after)) = with_rules(sources, ConfigLayer::User, path, drafts)? else { return Ok(None) };
    replace_file_text(path, &before, &after)?;
    Ok(Some(path.clone()))
}

/// Returns a file's text and the text with the rules added, validated together with all layers.
/// Returns `None` if the file contains the rules already.
fn with_rules(
    sources: &ConfigSources,
    layer: ConfigLayer,
    path: &Path,
    drafts: &[DraftRule],
) -> Result<Option<(String, String)>, CliError> {
    let before = match fs::metadata(path) {
        Ok(_) => read_text_file(path)?,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(CliError::new(format!("cannot read {}: {error}", quote_path(path)))),
    };
    let after = insert_rules(path, &before, drafts)?;
    if after == before {
        return Ok(None);
    }
    load_with(sources, vec![LayerText { layer, path: path.to_owned(), source: after.clone() }])?;
    Ok(Some((before, after)))
}

/// Replaces a file's text, if it still is the old one. Follows a link, because users link their
/// configuration.
fn replace_file_text(path: &Path, before: &str, after: &str) -> Result<(), CliError> {
    let wrong = |e: std::io::Error| CliError::new(format!("cannot write {}: {e}", quote_path(path)));
    let real = if path.exists() { path.canonicalize().map_err(wrong)? } else { path.to_owned() };
    let directory = real.parent().ok_or_else(|| CliError::new(format!("{} is no file", quote_path(path))))?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(wrong)?;
    let mode = fs::metadata(&real).map_or(0o600, |meta| meta.mode() & 0o777);
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let new = directory.join(format!(".{name}.{}.new", std::process::id()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        file.write_all(after.as_bytes())?;
        file.sync_all()?;
        let now = match fs::read_to_string(&real) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        if now != before {
            return Err(std::io::Error::other("it changed meanwhile"));
        }
        fs::rename(&new, &real)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written.map_err(wrong)
}

#[cfg(test)]
mod tests {
    use stockade_model::{Approval, Assessment, AttemptRecord, Decision, FinalStatus, ResourceUsage, Tier};
    use stockade_policy::OwnDirectories;

    use super::*;

    #[track_caller]
    fn check(
        command: RequestCommand,
        answer: &str,
        scope: ApprovalScope,
        grants: &[&str],
        about: &[&str],
        expected: Option<&str>,
    ) {
        let settings = PolicySettings::from_layers(Path::new("/home/u"), OwnDirectories::default(), &[]).unwrap();
        let attempt = AttemptRecord {
            profile: "workspace".into(),
            grants: grants.iter().map(|grant| grant.parse().unwrap()).collect(),
            backend: "native".into(),
            enforced: None,
            denials: Vec::new(),
            connections: Vec::new(),
            connections_left_out: 0,
            usage: ResourceUsage::default(),
            stdout: None,
            stderr: None,
            truncated: false,
            staged: None,
            kept_for_undo: 0,
            project_files: Vec::new(),
            not_passed: Vec::new(),
            reads: Vec::new(),
        };
        // From the outcome's JSON, because its other fields do not matter.
        let approval: Approval = serde_json::from_value(serde_json::json!({
            "question": "run", "answer": answer, "scope": scope, "by": "terminal", "waited_ms": 1,
            "grants": about,
        }))
        .unwrap();
        let outcome = RunOutcome {
            id: "req_1".parse().unwrap(),
            session: None,
            digest: None,
            status: FinalStatus::Exited,
            exit_code: Some(0),
            signal: None,
            error: None,
            assessment: Assessment::without_findings(Tier::Ask),
            decision: Decision { verdict: PolicyVerdict::Ask, rule: "r".into(), reasons: Vec::new() },
            attempts: vec![attempt],
            approvals: vec![approval],
            requested: Vec::new(),
        };
        assert_eq!(
            rule_hint(&command, Path::new("/w"), &outcome, &settings).map(|(_, line)| line).as_deref(),
            expected
        );
    }

    #[test]
    fn an_answer_that_holds_always_can_be_made_a_rule() {
        let argv = |words: &[&str]| RequestCommand::Argv(words.iter().map(|word| (*word).into()).collect());
        let amend = "stockade policy amend --write";
        let always = |command, answer, grants, expected: Option<String>| {
            check(command, answer, ApprovalScope::Always, grants, &[], expected.as_deref());
        };
        always(argv(&["npm", "test", "a b"]), "approved", &[], Some(format!("{amend} -- npm test 'a b'")));
        let grant = &["connect pypi.org:443"];
        let expected = format!("{amend} --grant 'connect pypi.org:443' -c 'pip install x'");
        always(RequestCommand::Script("pip install x".into()), "approved", grant, Some(expected));
        always(argv(&["python3", "x"]), "denied", grant, Some(format!("{amend} --effect deny -- python3 x")));
        // Not for a command that runs other commands, and not with a protected path.
        always(argv(&["python3", "x"]), "approved", &[], None);
        always(argv(&["npm", "test"]), "approved", &["read /home/u/.ssh"], None);
        always(argv(&["git", "add", "-A"]), "approved", &["write /w/.git"], None);
        check(argv(&["npm", "test"]), "approved", ApprovalScope::Once, &[], &[], None);
        // A rule for a host applies to every command.
        let host = |answer, about: &[&str], expected: Option<&str>| {
            check(argv(&["python3", "x"]), answer, ApprovalScope::Always, &[], about, expected);
        };
        host("approved", grant, Some("stockade policy amend --write --host pypi.org:443"));
        host("denied", grant, Some("stockade policy amend --write --effect deny --host pypi.org:443"));
        let secret = "secret github to ghe.example.com:443";
        let expected = format!("{amend} --host ghe.example.com:443 --grant '{secret}'");
        host("approved", &[secret], Some(&expected));
        host("denied", &[secret], None);
        host("approved", &["connect *.pypi.org:443"], None);
        host("approved", &["connect pypi.org:443", "write /srv"], None);
    }
}
