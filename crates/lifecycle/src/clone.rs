//! The commands that clone a repository into a workspace. They run inside the sandbox as any other,
//! so they reach their server only through the egress proxy.
//!
//! The author of the repository and its server are not trusted. Git may only fetch and check out.
//! These commands turn off hooks and templates, submodules, transports that start programs,
//! credential helpers and prompts. They also ignore settings of the system and the home directory,
//! which could name filters, hooks and helpers. Settings that a repository cannot make are not
//! listed: a clone takes no configuration from its server.

use std::path::Path;

use stockade_backend_api::INSIDE_WORKSPACE;
use stockade_model::{GitRevision, Grant, RawText, RepositoryUrl, TargetPattern};

/// Variables of each step.
const GIT_VARIABLES: &[(&str, &str)] = &[
    // Settings of the image or of an earlier command.
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    // No user can answer.
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_ASKPASS", "/bin/false"),
    ("SSH_ASKPASS", "/bin/false"),
    // `ext::` and `fd::` start programs; `file://` and `ssh://` reach other sources.
    ("GIT_ALLOW_PROTOCOL", "http:https"),
    ("GIT_PROTOCOL_FROM_USER", "0"),
    ("GIT_SSH_COMMAND", "/bin/false"),
    ("GIT_EXTERNAL_DIFF", "/bin/false"),
    ("GIT_LFS_SKIP_SMUDGE", "1"),
];

/// Settings that override every file.
const GIT_SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "credential.helper=",
    "fetch.recurseSubmodules=false",
    "submodule.recurse=false",
    "transfer.bundleURI=false",
    "advice.detachedHead=false",
];

/// Commands of a clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneCommands {
    /// Commands to run one after the other in the workspace, until one fails.
    pub commands: Vec<Vec<RawText>>,
    /// Grants that they need: to connect to the server, and to create protected names in the
    /// workspace.
    pub grants: Vec<Grant>,
}

/// Returns the commands that turn the workspace, their working directory, into a clone.
pub fn clone_steps(url: &RepositoryUrl, revision: Option<&GitRevision>) -> CloneCommands {
    let mut clone = vec!["clone", "--quiet", "--no-recurse-submodules", "--template=", "--origin=origin"];
    if revision.is_some() {
        clone.push("--no-checkout");
    }
    clone.extend(["--", url.as_str(), "."]);
    // A branch, a tag or a commit, as the clone names it. Never a path.
    let check_out = |revision: &GitRevision| {
        git_command(["checkout", "--quiet", "--no-recurse-submodules", revision.as_str(), "--"].into_iter())
    };
    let commands = std::iter::once(git_command(clone.into_iter())).chain(revision.map(check_out)).collect();
    let mut grants = vec![Grant::Connect(TargetPattern::for_target(url.target()))];
    grants.extend(repository_grants());
    CloneCommands { commands, grants }
}

/// Returns the command that prints the checked-out commit.
pub fn head_command() -> Vec<RawText> {
    git_command(["rev-parse", "--verify", "--end-of-options", "HEAD^{commit}"].into_iter())
}

/// Returns the commands that print how the workspace differs from a commit, including new files.
/// Later commits and changed settings of the repository do not matter. Those settings can still
/// name filters, which run inside the sandbox.
pub fn diff_commands(base: &GitRevision) -> [Vec<RawText>; 2] {
    let new_files = ["add", "--all", "--intent-to-add", "--", "."];
    let compare = ["diff", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", base.as_str(), "--"];
    [git_command(new_files.into_iter()), git_command(["--no-pager"].into_iter().chain(compare))]
}

/// Returns the grants for a repository in a workspace of the sandbox's own. Only programs inside
/// the sandbox trust it.
pub fn repository_grants() -> impl Iterator<Item = Grant> {
    [".git", ".git/config", ".git/hooks", ".gitmodules"]
        .into_iter()
        .map(|name| Grant::Write(Path::new(INSIDE_WORKSPACE).join(name)))
}

fn git_command<'a>(arguments: impl Iterator<Item = &'a str>) -> Vec<RawText> {
    let mut command: Vec<RawText> = vec!["env".into()];
    command.extend(GIT_VARIABLES.iter().map(|(name, value)| RawText::from(format!("{name}={value}").as_str())));
    command.push("git".into());
    for setting in GIT_SETTINGS {
        command.extend(["-c".into(), RawText::from(*setting)]);
    }
    command.extend(arguments.map(RawText::from));
    command
}
