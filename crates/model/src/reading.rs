//! What a traced run read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RawText;
use crate::outcome::is_zero;

/// What a traced run opened for reading or executed, each object once. Evidence
/// of what was asked for: another thread may have changed the path meanwhile,
/// and nothing is ever allowed because it stands here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadAccess {
    /// Resolved absolute path.
    pub object: RawText,
    /// It is a directory. With `files` 0 its names were listed; otherwise it
    /// stands for files beneath it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub directory: bool,
    /// How many files beneath it were put together here because there were too
    /// many; 0 for an object that was itself opened.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub files: u64,
    /// Process id of the first, as the host sees it, where known.
    pub pid: Option<u32>,
    /// The resolved executable of that process, where known.
    pub program: Option<RawText>,
    /// How often.
    pub count: u64,
}
