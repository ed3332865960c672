//! Commands that change files of the workspace with known tools, and have no other effect as far as their
//! text shows. Must not know modes: the consequences are decided elsewhere.

use std::path::Path;

use stockade_model::{Assessment, Capability, Grant, Profile, Tier};

use crate::resolve::{has_power, is_protected};

/// Findings for a change of files by a known tool, or for a checked repository that starts no program of
/// its own.
const KNOWN_CHANGE_CODES: &[&str] = &["changes-files", "changes-repository", "writes-file", "writing-option"];

/// Finding for a removal: a known change if the removed files can be restored.
const REMOVAL_CODE: &str = "deletes-files";

/// Returns whether every finding is about such a change. Every file that is known to be written must be in
/// the workspace, writable, and not protected.
pub(crate) fn only_changes_workspace(
    assessment: &Assessment,
    profile: &Profile,
    workspace: &Path,
    is_kept: bool,
) -> bool {
    let is_change = |code: &str| KNOWN_CHANGE_CODES.contains(&code) || (is_kept && code == REMOVAL_CODE);
    let mut asking = assessment.findings.iter().filter(|finding| finding.tier > Tier::Allow).peekable();
    assessment.tier == Tier::Ask
        && !assessment.impact.needs_consent()
        && asking.peek().is_some()
        && asking.all(|finding| is_change(&finding.code))
        && assessment.capabilities.iter().all(|need| stays_in_workspace(need, profile, workspace, is_kept))
}

fn stays_in_workspace(need: &Capability, profile: &Profile, workspace: &Path, is_kept: bool) -> bool {
    match need {
        Capability::Read(_) | Capability::Execute(_) => true,
        Capability::Delete(_) if !is_kept => false,
        Capability::Write(path) | Capability::Delete(path) => {
            let path = path.as_path();
            path.starts_with(workspace)
                && has_power(profile, &Grant::Write(path.to_owned()))
                && !is_protected(&profile.filesystem, path)
        }
        Capability::Network(_) | Capability::Secret(_) | Capability::Privilege(_) => false,
    }
}
