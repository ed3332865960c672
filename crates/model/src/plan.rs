//! Everything an attempt needs, bound by one digest (L5).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Digest, Grant, Level, Profile, RawText, RequestId};

/// What one attempt will do. Made by the engine from a request, its profile and
/// the grants agreed to; a backend adds nothing to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The request it serves.
    pub request: RequestId,
    /// Counts from 1.
    pub attempt: u32,
    /// Program and arguments, as execve will get them.
    pub argv: Vec<RawText>,
    /// The whole environment, as execve will get it.
    pub environment: BTreeMap<String, RawText>,
    /// Absolute, canonical.
    pub cwd: RawText,
    /// Absolute, canonical.
    pub workspace: RawText,
    /// The powers, with `grants` already merged in.
    pub profile: Profile,
    /// The grants merged into the profile.
    pub grants: Vec<Grant>,
    /// Effects that the text of the command shows, which was agreed to, the settings file of a
    /// repository that it sets a program in, and the hooks that it writes. Those of programs that
    /// it starts and does not name are asked about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<Grant>,
    /// The level to enforce; less is a refusal (L6).
    pub level: Level,
    /// Name of the backend.
    pub backend: String,
}

impl Plan {
    /// The digest that stands in the question, the log and the outcome.
    ///
    /// # Errors
    /// Never in practice: every map of a plan has string keys.
    pub fn digest(&self) -> Result<Digest, serde_json::Error> {
        Digest::of_json("stockade-plan-1", self)
    }
}

/// Trees of which a run has its own where it has a view of its own (level full): what the host
/// has there is not seen, but for what is named.
pub const OWN_TREES: [&str; 4] = ["/tmp", "/var/tmp", "/run", "/dev/shm"];
