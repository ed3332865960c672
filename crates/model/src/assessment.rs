//! What the text of a request shows. Advisory: it decides how much to ask,
//! never what is contained.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RawText;

/// How much the text alone asks for. Ordered: the stricter is the greater, so
/// that a combination of findings is their maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// Fully understood, reads only, no network, starts only known readers.
    Allow,
    /// Everything else, and everything not understood.
    Ask,
    /// The text itself shows destruction, theft, persistence or hiding.
    Deny,
}

/// How far the effects of a request reach, and whether they can be taken back.
/// Ordered: the further is the greater, so that a combination is their maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Impact {
    /// Changes nothing, as far as the text shows.
    #[default]
    Contained,
    /// May change files of the workspace. Also where the text does not show what
    /// a program does: the sandbox confines it to the workspace.
    Workspace,
    /// Destroys what nothing restores, without a look at what it is.
    Irreversible,
    /// Takes effect outside the sandbox: on another host, in an account, on the
    /// host later. No sandbox contains it and no undo reaches it.
    Outward,
}

impl Impact {
    /// True for the default, which findings do not write.
    fn is_contained(&self) -> bool {
        *self == Self::Contained
    }

    /// True where the sandbox can neither contain the effect nor undo it, so that
    /// it needs consent whatever was granted.
    pub fn needs_consent(self) -> bool {
        self >= Self::Irreversible
    }
}

/// What a command seems to need.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "needs", content = "what", deny_unknown_fields)]
pub enum Capability {
    /// Reads this path.
    Read(RawText),
    /// Creates or changes this path.
    Write(RawText),
    /// Removes this path.
    Delete(RawText),
    /// Starts this program.
    Execute(RawText),
    /// Reaches this host, where the text names it.
    Network(Option<RawText>),
    /// Reads what looks like a secret.
    Secret(RawText),
    /// Wants more privilege than the caller has.
    Privilege(RawText),
}

/// A place in the script or, for argv, in the arguments joined by single
/// spaces: byte offsets, `start` included, `end` not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// One observation about the text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// A stable name for programs, e.g. `fetch-and-run`, `unknown-program`.
    pub code: String,
    /// What this finding alone would make of the request.
    pub tier: Tier,
    /// How far the effect that this finding tells of reaches; not written where
    /// it tells of none.
    #[serde(default, skip_serializing_if = "Impact::is_contained")]
    pub impact: Impact,
    /// One sentence for a person. Holds no text of the command: the span
    /// points at it.
    pub message: String,
    /// Where, if it is at one place.
    pub span: Option<Span>,
}

/// The result of reading a command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Assessment {
    /// The maximum of the findings' tiers; `ask` where nothing was understood.
    pub tier: Tier,
    /// At least the greatest of the findings' impacts. Absent in records of older
    /// versions.
    #[serde(default)]
    pub impact: Impact,
    /// In order of appearance.
    pub findings: Vec<Finding>,
    /// What it seems to need, sorted, without repeats.
    pub capabilities: Vec<Capability>,
}

impl Assessment {
    /// An assessment of this tier that tells nothing more.
    pub const fn bare(tier: Tier) -> Self {
        Self { tier, impact: Impact::Contained, findings: Vec::new(), capabilities: Vec::new() }
    }
}
