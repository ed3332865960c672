//! The commands that clone a repository into a workspace: run inside the sandbox,
//! as any other, so that they reach their server through the door alone.
//!
//! Whoever made the repository, or answers for its server, is not trusted. What git
//! would do beside fetching and checking out is turned off for these commands:
//! hooks and templates, submodules, transports that start programs, credential
//! helpers and prompts, settings of the system and the home directory (which could
//! name filters, hooks and helpers). What a repository itself cannot set is not
//! listed: a clone takes no configuration from its server.

use std::path::Path;

use stockade_engine::INSIDE_WORKSPACE;
use stockade_model::{Grant, RawText, RepositoryUrl, Revision, TargetPattern};

/// Variables that hold for each step.
const VARIABLES: &[(&str, &str)] = &[
    // Whatever the image or an earlier command left.
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    // Nobody is there to answer.
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_ASKPASS", "/bin/false"),
    ("SSH_ASKPASS", "/bin/false"),
    // `ext::` and `fd::` start programs, `file://` and `ssh://` reach elsewhere.
    ("GIT_ALLOW_PROTOCOL", "http:https"),
    ("GIT_PROTOCOL_FROM_USER", "0"),
    ("GIT_SSH_COMMAND", "/bin/false"),
    ("GIT_EXTERNAL_DIFF", "/bin/false"),
    ("GIT_LFS_SKIP_SMUDGE", "1"),
];

/// Settings that outweigh every file.
const SETTINGS: &[&str] = &[
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

/// A clone, as commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clone {
    /// What is run, one after the other, in the workspace; the first that fails ends it.
    pub commands: Vec<Vec<RawText>>,
    /// What they need: to reach the server, and to make what is protected by its name
    /// in the workspace.
    pub grants: Vec<Grant>,
}

/// The commands that make the workspace, their current directory, a clone.
pub fn steps(url: &RepositoryUrl, revision: Option<&Revision>) -> Clone {
    let mut clone = vec!["clone", "--quiet", "--no-recurse-submodules", "--template=", "--origin=origin"];
    if revision.is_some() {
        clone.push("--no-checkout");
    }
    clone.extend(["--", url.as_str(), "."]);
    // A branch, a tag or a commit: each as the clone knows it. Never a path.
    let check_out = |revision: &Revision| {
        git(["checkout", "--quiet", "--no-recurse-submodules", revision.as_str(), "--"].into_iter())
    };
    let commands = std::iter::once(git(clone.into_iter())).chain(revision.map(check_out)).collect();
    let mut grants = vec![Grant::Connect(TargetPattern::exactly(url.target()))];
    grants.extend(repository_grants());
    Clone { commands, grants }
}

/// The command that names what is checked out, on its standard output.
pub fn head() -> Vec<RawText> {
    git(["rev-parse", "--verify", "--end-of-options", "HEAD^{commit}"].into_iter())
}

/// The commands that tell on standard output how the workspace differs from a commit,
/// new files among it: whatever was committed since, and whatever the repository's own
/// settings became. Those can still name filters, which run inside as all else does.
pub fn diff(base: &Revision) -> [Vec<RawText>; 2] {
    let new_files = ["add", "--all", "--intent-to-add", "--", "."];
    let compare = ["diff", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", base.as_str(), "--"];
    [git(new_files.into_iter()), git(["--no-pager"].into_iter().chain(compare))]
}

/// The powers over a repository in a workspace of the sandbox's own: whatever trusts
/// it is inside as well.
pub fn repository_grants() -> impl Iterator<Item = Grant> {
    [".git", ".git/config", ".git/hooks", ".gitmodules"]
        .into_iter()
        .map(|name| Grant::Write(Path::new(INSIDE_WORKSPACE).join(name)))
}

fn git<'a>(arguments: impl Iterator<Item = &'a str>) -> Vec<RawText> {
    let mut command: Vec<RawText> = vec!["env".into()];
    command.extend(VARIABLES.iter().map(|(name, value)| RawText::from(format!("{name}={value}").as_str())));
    command.push("git".into());
    for setting in SETTINGS {
        command.extend(["-c".into(), RawText::from(*setting)]);
    }
    command.extend(arguments.map(RawText::from));
    command
}
