//! Text that writes where something runs later, and the person has granted just that: the
//! grant was the yes. Must not know modes or voices.

use stockade_model::{Assessment, Capability, Grant, Impact, Request, Tier};

/// What the classifier says of such a write.
const PERSISTENCE: &str = "persistence";
/// Programs that do nothing else about it than to write the file that is named.
const WRITERS: &[&str] =
    &["cat", "chmod", "cp", "echo", "install", "ln", "mkdir", "mv", "printf", "rm", "sed", "tee", "touch", "truncate"];

/// The assessment without what the person's own grants say yes to; none where they do not say
/// it of every file that is written, or where something else than a writer is run.
pub(crate) fn without_granted(assessment: &Assessment, request: &Request) -> Option<Assessment> {
    let is_refused = |code: &str| code == PERSISTENCE;
    let mut refused = assessment.findings.iter().filter(|finding| finding.tier == Tier::Deny).peekable();
    if refused.peek().is_none() || !refused.all(|finding| is_refused(&finding.code)) {
        return None;
    }
    // What was only asked for is no yes.
    let own = request.grants.iter().filter(|grant| !request.requested.contains(grant));
    let roots: Vec<_> =
        own.filter_map(|grant| if let Grant::Write(root) = grant { Some(root) } else { None }).collect();
    let is_granted = |need: &Capability| match need {
        Capability::Write(path) | Capability::Delete(path) => roots.iter().any(|root| path.as_path().starts_with(root)),
        Capability::Execute(program) => WRITERS.iter().any(|writer| program.as_bytes() == writer.as_bytes()),
        Capability::Read(_) => true,
        Capability::Network(_) | Capability::Secret(_) | Capability::Privilege(_) => false,
    };
    if !assessment.capabilities.iter().all(is_granted) {
        return None;
    }
    let mut left = assessment.clone();
    left.findings.retain(|finding| finding.tier != Tier::Deny);
    left.tier = left.findings.iter().map(|finding| finding.tier).max().unwrap_or(Tier::Ask);
    left.impact = left.findings.iter().map(|finding| finding.impact).max().unwrap_or(Impact::Workspace);
    Some(left)
}
