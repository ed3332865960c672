//! Read accesses of a traced run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RawText;
use crate::outcome::is_zero;

/// An object that a traced run opened for reading or executed, each listed once. The record is evidence of
/// the requested path only: another thread may have changed the path meanwhile. Nothing is ever allowed
/// because of this record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadAccess {
    /// Resolved absolute path.
    pub object: RawText,
    /// True for a directory. With `files` 0 its names were listed; otherwise the entry stands for files
    /// beneath it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub directory: bool,
    /// Number of files beneath the directory that were merged into this entry because there were too many;
    /// 0 for an object that was itself opened.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub files: u64,
    /// Process id of the first access, as the host sees it, if known.
    pub pid: Option<u32>,
    /// The resolved executable of that process, if known.
    pub program: Option<RawText>,
    /// Number of accesses.
    pub count: u64,
}
