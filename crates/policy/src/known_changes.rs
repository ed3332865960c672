//! Commands that change files of the workspace with known tools, and do nothing else
//! as far as their text shows. Must not know modes: what it leads to is decided
//! elsewhere.

use std::path::Path;

use stockade_model::{Assessment, Capability, Grant, Profile, Tier};

use crate::resolve::{has_power, is_protected};

/// Findings that tell of a change of files by a known tool, or of a repository that was
/// looked at and starts nothing of its own.
const CHANGES: &[&str] = &["changes-files", "changes-repository", "writes-file", "writing-option"];

/// One that tells of removing: a known change where what is gone can be brought back.
const REMOVAL: &str = "deletes-files";

/// True where every finding tells of such a change, and every file that is known to
/// be written lies in the workspace, may be written, and is not protected.
pub(crate) fn only_changes_workspace(
    assessment: &Assessment,
    profile: &Profile,
    workspace: &Path,
    is_kept: bool,
) -> bool {
    let is_change = |code: &str| CHANGES.contains(&code) || (is_kept && code == REMOVAL);
    let mut asking = assessment.findings.iter().filter(|finding| finding.tier > Tier::Allow).peekable();
    assessment.tier == Tier::Ask
        && !assessment.impact.needs_consent()
        && asking.peek().is_some()
        && asking.all(|finding| is_change(&finding.code))
        && assessment.capabilities.iter().all(|need| stays(need, profile, workspace, is_kept))
}

fn stays(need: &Capability, profile: &Profile, workspace: &Path, is_kept: bool) -> bool {
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
