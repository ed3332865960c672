//! Commands that write files which run code later, if the user has granted exactly this write: the grant is
//! the consent. Must not know modes or statements of other sources.

use std::path::Path;

use stockade_model::{Assessment, Capability, Finding, Grant, Impact, RequestCommand, RunRequest, Tier};

/// Most grants that a hint proposes.
const MAX_PROPOSED_GRANTS: usize = 2;

/// Code of the classifier's finding for such a write.
const PERSISTENCE_CODE: &str = "persistence";
/// Programs that only write the named file.
const WRITER_PROGRAMS: &[&str] =
    &["cat", "chmod", "cp", "echo", "install", "ln", "mkdir", "mv", "printf", "rm", "sed", "tee", "touch", "truncate"];

/// Programs that run a script which was read with the command.
const SHELL_PROGRAMS: &[&str] = &["bash", "dash", "sh"];
/// Other findings of a command that writes a hook, which report no further action.
const HOOK_SIDE_FINDINGS: &[&str] =
    &["beyond-workspace", "changes-files", "nested-shell", "weakens-protection", "writes-file", "writing-option"];

/// Code of the finding for a setting of a repository that names a program.
const CONFIGURES_PROGRAM_CODE: &str = "configures-program";
/// Other findings of such a command, which report no further action.
const CONFIGURES_SIDE_FINDINGS: &[&str] =
    &["changes-repository", "repository-configuration", "unknown-operand", "writing-option"];

/// Returns the assessment without the findings that the user's own grants permit. Returns `None` if a
/// written file is not granted, or if a program other than a writer is run.
pub(crate) fn without_granted(assessment: &Assessment, request: &RunRequest) -> Option<Assessment> {
    // A power that was only requested is no consent.
    let own = request.grants.iter().filter(|grant| !request.requested.contains(grant));
    let roots: Vec<&Path> =
        own.filter_map(|grant| if let Grant::Write(root) = grant { Some(root.as_path()) } else { None }).collect();
    let is_granted = |code: &str| match code {
        PERSISTENCE_CODE => writes_granted_files(assessment, &roots),
        CONFIGURES_PROGRAM_CODE => configures_granted_file(assessment, &roots),
        _ => false,
    };
    let is_refused = |finding: &Finding| finding.tier == Tier::Deny || finding.code == CONFIGURES_PROGRAM_CODE;
    let mut refused = assessment.findings.iter().filter(|finding| is_refused(finding)).peekable();
    if refused.peek().is_none() || !refused.all(|finding| is_granted(&finding.code)) {
        return None;
    }
    let mut remaining = assessment.clone();
    remaining.findings.retain(|finding| !is_refused(finding));
    remaining.tier = remaining.findings.iter().map(|finding| finding.tier).max().unwrap_or(Tier::Ask);
    remaining.impact = remaining.findings.iter().map(|finding| finding.impact).fold(Impact::Workspace, Impact::max);
    Some(remaining)
}

/// Returns the grants that would be consent to a refused command, if grants can be: the files that
/// it writes.
pub fn grants_for_refused(assessment: &Assessment, request: &RunRequest) -> Option<Vec<Grant>> {
    let written = assessment.capabilities.iter().filter_map(|need| match need {
        Capability::Write(path) | Capability::Delete(path) => Some(Grant::Write(path.as_path().to_owned())),
        _ => None,
    });
    let grants: Vec<Grant> = written.take(MAX_PROPOSED_GRANTS + 1).collect();
    let with = RunRequest { grants: grants.clone(), requested: Vec::new(), ..request.clone() };
    let is_enough = without_granted(assessment, &with).is_some_and(|remaining| !remaining.impact.needs_consent());
    (is_enough && grants.len() <= MAX_PROPOSED_GRANTS).then_some(grants)
}

fn writes_granted_files(assessment: &Assessment, roots: &[&Path]) -> bool {
    assessment.capabilities.iter().all(|need| match need {
        Capability::Write(path) | Capability::Delete(path) => roots.iter().any(|root| path.as_path().starts_with(root)),
        Capability::Execute(program) => WRITER_PROGRAMS.iter().any(|writer| program.as_bytes() == writer.as_bytes()),
        Capability::Read(_) => true,
        Capability::Network(_) | Capability::Secret(_) | Capability::Privilege(_) => false,
    })
}

/// Returns the settings file of a repository in the workspace, if a single `git config` writes it and sets
/// a program there. Consent to the command is consent to the write, because the next question would be the
/// same. No other command may run with that power, so that a second command is asked about again.
pub fn configured_files(request: &RunRequest, assessment: &Assessment) -> Vec<Grant> {
    let is_single = match &request.command {
        RequestCommand::Argv(_) => true,
        RequestCommand::Script(text) => !text.as_bytes().iter().any(|b| b";&|\n\r$`(){}<>\\".contains(b)),
    };
    let workspace = request.workspace.as_path();
    let is_settings = |path: &Path| {
        let is_file = path.file_name().is_some_and(|name| name == "config" || name == "config.worktree");
        is_file && path.parent().is_some_and(|git| git.ends_with(".git")) && path.starts_with(workspace)
    };
    let written = assessment
        .capabilities
        .iter()
        .filter_map(|need| if let Capability::Write(path) = need { Some(path.as_path()) } else { None });
    let roots: Vec<&Path> = written.filter(|path| is_settings(path)).collect();
    let configures = assessment.findings.iter().any(|finding| finding.code == CONFIGURES_PROGRAM_CODE);
    if !is_single || !configures || !configures_granted_file(assessment, &roots) {
        return Vec::new();
    }
    roots.into_iter().map(|path| Grant::Write(path.to_owned())).collect()
}

/// Returns the hooks of repositories in the workspace that a command writes, if the command runs only
/// writers and writes nothing else. Consent to the command is consent to the writes, because the next
/// question would be the same. No program that runs with that power does more than the text shows.
pub fn written_hooks(request: &RunRequest, assessment: &Assessment) -> Vec<Grant> {
    let workspace = request.workspace.as_path();
    let is_hook =
        |path: &Path| path.parent().is_some_and(|hooks| hooks.ends_with(".git/hooks")) && path.starts_with(workspace);
    let is_writer =
        |program: &[u8]| WRITER_PROGRAMS.iter().chain(SHELL_PROGRAMS).any(|known| program == known.as_bytes());
    let mut hooks = Vec::new();
    for need in &assessment.capabilities {
        match need {
            Capability::Write(path) if is_hook(path.as_path()) => hooks.push(Grant::Write(path.as_path().to_owned())),
            Capability::Execute(program) if is_writer(program.as_bytes()) => {}
            Capability::Read(_) => {}
            _ => return Vec::new(),
        }
    }
    let mut asking = assessment.findings.iter().filter(|finding| finding.tier > Tier::Allow);
    let is_plain =
        asking.all(|finding| finding.code == PERSISTENCE_CODE || HOOK_SIDE_FINDINGS.contains(&finding.code.as_str()));
    let has_persistence = assessment.findings.iter().any(|finding| finding.code == PERSISTENCE_CODE);
    if is_plain && has_persistence { hooks } else { Vec::new() }
}

/// Returns whether git writes a setting into files that were granted by their own names, and the text shows
/// no other action.
fn configures_granted_file(assessment: &Assessment, roots: &[&Path]) -> bool {
    let is_beside = |code: &str| code == CONFIGURES_PROGRAM_CODE || CONFIGURES_SIDE_FINDINGS.contains(&code);
    let mut writes = false;
    let stays = assessment.capabilities.iter().all(|need| match need {
        Capability::Write(path) => {
            writes = true;
            roots.contains(&path.as_path())
        }
        Capability::Execute(program) => program.as_bytes() == b"git",
        _ => false,
    });
    let mut asking = assessment.findings.iter().filter(|finding| finding.tier > Tier::Allow);
    stays && writes && asking.all(|finding| is_beside(&finding.code))
}
