//! The plan of an attempt, bound by one digest (L5).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Digest, Grant, IsolationLevel, Profile, RawText, RequestId};

/// Everything that one attempt will do. The engine makes it from a request, its profile and the approved
/// grants; a backend adds nothing to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttemptPlan {
    /// The request that the plan serves.
    pub request: RequestId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Program and arguments for execve.
    pub argv: Vec<RawText>,
    /// The whole environment for execve.
    pub environment: BTreeMap<String, RawText>,
    /// Working directory: absolute, canonical.
    pub cwd: RawText,
    /// Workspace: absolute, canonical.
    pub workspace: RawText,
    /// The profile, with `grants` already merged in.
    pub profile: Profile,
    /// The grants merged into the profile.
    pub grants: Vec<Grant>,
    /// Grants that follow from approval of the command: the effects that its text shows, the settings file
    /// of a repository in which it sets a program, and the hooks that it writes. Effects of programs that
    /// the command starts but does not name are asked about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<Grant>,
    /// The level to enforce; a lower level is a refusal (L6).
    pub level: IsolationLevel,
    /// Name of the backend.
    pub backend: String,
}

impl AttemptPlan {
    /// Returns the digest that appears in the question, the log and the outcome.
    ///
    /// # Errors
    /// Never in practice: every map of a plan has string keys.
    pub fn compute_digest(&self) -> Result<Digest, serde_json::Error> {
        Digest::of_json("stockade-plan-1", self)
    }
}

/// Directory trees that a run has privately if it has a file system view of its own (level full). The
/// content of these trees on the host is not visible, except for explicitly named paths.
pub const PRIVATE_TREES: [&str; 4] = ["/tmp", "/var/tmp", "/run", "/dev/shm"];
