//! Assessment of the text of a request. An assessment is advisory: it decides how much to ask, never how
//! much is contained.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RawText;
use crate::text_form::display_as_serialised;

/// How critical a request is by its text alone. The order is from lenient to strict, so that the tier of
/// several findings is their maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// Fully understood: reads only, no network, starts only known readers.
    Allow,
    /// Everything else, including all text that is not understood.
    Ask,
    /// The text itself shows destruction, theft, persistence or concealment.
    Deny,
}

/// How far the effects of a request reach, and whether they can be undone. The order is by reach, so that
/// the impact of several findings is their maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Impact {
    /// Changes nothing, as far as the text shows.
    #[default]
    Contained,
    /// May change files of the workspace. Also used if the text does not show the effects of a program,
    /// because the sandbox confines it to the workspace.
    Workspace,
    /// Destroys data that nothing can restore, without a check of the content.
    Irreversible,
    /// Takes effect outside the sandbox: on another host, in an account, or later on the local host. No
    /// sandbox contains the effect and no undo reaches it.
    Outward,
}

display_as_serialised!(Tier, Impact);

impl Impact {
    /// Returns whether this is the default, which findings omit from their serialised form.
    fn is_contained(&self) -> bool {
        *self == Self::Contained
    }

    /// Returns whether the sandbox can neither contain nor undo the effect. Such an effect needs consent
    /// whatever was granted.
    pub fn needs_consent(self) -> bool {
        self >= Self::Irreversible
    }
}

/// A power that a command seems to need.
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
    /// Connects to this host, if the text names one.
    Network(Option<RawText>),
    /// Reads a path or value that looks like a secret.
    Secret(RawText),
    /// Requests more privilege than the caller has.
    Privilege(RawText),
}

/// A range of the script or, for argv, of the arguments joined by single spaces. Byte offsets: `start` is
/// included, `end` is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextSpan {
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
    /// Tier of the request if this were the only finding.
    pub tier: Tier,
    /// How far the effect of this finding reaches; omitted if the finding reports no effect.
    #[serde(default, skip_serializing_if = "Impact::is_contained")]
    pub impact: Impact,
    /// One sentence for the user. Contains no text of the command: the span refers to it.
    pub message: String,
    /// Range of the finding, if it has one.
    pub span: Option<TextSpan>,
}

/// The assessment of a command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Assessment {
    /// The maximum of the findings' tiers; `ask` if the text was not understood.
    pub tier: Tier,
    /// At least the greatest of the findings' impacts. Absent in records of older versions.
    #[serde(default)]
    pub impact: Impact,
    /// Findings, in order of appearance.
    pub findings: Vec<Finding>,
    /// The powers that the command seems to need, sorted, without duplicates.
    pub capabilities: Vec<Capability>,
}

impl Assessment {
    /// Returns an assessment of this tier without findings.
    pub const fn without_findings(tier: Tier) -> Self {
        Self { tier, impact: Impact::Contained, findings: Vec::new(), capabilities: Vec::new() }
    }
}
