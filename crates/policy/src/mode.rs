//! The answers of each approval mode, as a table: one verdict per situation. A mode is stricter than
//! another if none of its answers is milder.

use stockade_model::{ApprovalMode, Grant, GranularMode, PolicyVerdict};

/// Class of a power, as in granular modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GrantClass {
    /// Paths.
    Filesystem,
    /// Hosts and ports, secrets that are sent to them, and keys that sign.
    Network,
    /// Sockets, programs, variables, limits.
    Other,
    /// Effects that no sandbox contains or no undo reverts.
    Effect,
}

impl GrantClass {
    /// Returns the class of a grant.
    pub fn from_grant(grant: &Grant) -> Self {
        match grant {
            Grant::Write(_) | Grant::Read(_) => Self::Filesystem,
            Grant::Connect(_) | Grant::Secret(_) | Grant::Sign(_) | Grant::Listen(_) => Self::Network,
            Grant::Socket(_) | Grant::Exec(_) | Grant::Env(_) | Grant::Limit(..) => Self::Other,
            Grant::Effect(_) => Self::Effect,
        }
    }
}

/// Answers of a mode in each situation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeAnswers {
    /// The classifier returns `ask`: `allow` means that the command runs in a sandbox.
    pub tier_ask: PolicyVerdict,
    /// The classifier returns `ask`, and the text shows only known tools that change files of the
    /// workspace.
    pub known_changes: PolicyVerdict,
    /// The classifier returns `deny`.
    pub tier_deny: PolicyVerdict,
    /// The sandbox cannot contain or undo the effect.
    pub impact: PolicyVerdict,
    /// A rule returns `ask`.
    pub rule_ask: PolicyVerdict,
    /// Powers come with the request.
    pub requested: ClassAnswers,
    /// The command would run without a sandbox.
    pub unsandboxed: PolicyVerdict,
    /// A power was refused during the run: `deny` means that the refusal is final.
    pub denied: ClassAnswers,
}

/// Answers for the classes of powers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassAnswers {
    /// Filesystem powers.
    pub filesystem: PolicyVerdict,
    /// Network powers.
    pub network: PolicyVerdict,
    /// Other powers.
    pub other: PolicyVerdict,
}

impl ClassAnswers {
    const fn same(verdict: PolicyVerdict) -> Self {
        Self { filesystem: verdict, network: verdict, other: verdict }
    }

    fn combine_strictest(self, other: Self) -> Self {
        Self {
            filesystem: self.filesystem.max(other.filesystem),
            network: self.network.max(other.network),
            other: self.other.max(other.other),
        }
    }

    /// Returns the answer of a class; `None` for effects, which have an answer of their own.
    fn answer_class(self, class: GrantClass) -> Option<PolicyVerdict> {
        match class {
            GrantClass::Filesystem => Some(self.filesystem),
            GrantClass::Network => Some(self.network),
            GrantClass::Other => Some(self.other),
            GrantClass::Effect => None,
        }
    }
}

impl ModeAnswers {
    /// Returns the table of a mode.
    pub fn from_mode(mode: ApprovalMode) -> Self {
        use PolicyVerdict::{Allow, Ask, Deny};
        let sandboxed_first = Self {
            tier_ask: Allow,
            known_changes: Allow,
            tier_deny: Ask,
            impact: Ask,
            rule_ask: Ask,
            requested: ClassAnswers::same(Ask),
            unsandboxed: Ask,
            denied: ClassAnswers::same(Ask),
        };
        match mode {
            ApprovalMode::Untrusted => Self { tier_ask: Ask, ..sandboxed_first },
            ApprovalMode::OnFailure => sandboxed_first,
            ApprovalMode::OnRequest => Self { denied: ClassAnswers::same(Deny), ..sandboxed_first },
            ApprovalMode::Never => Self::from_granular(GranularMode::default()),
            ApprovalMode::Granular(classes) => Self::from_granular(classes),
        }
    }

    fn from_granular(classes: GranularMode) -> Self {
        use PolicyVerdict::{Allow, Ask, Deny};
        let ask_if = |may: bool| if may { Ask } else { Deny };
        let run_freely = if classes.run { Ask } else { Allow };
        let run = ask_if(classes.run);
        let powers = ClassAnswers {
            filesystem: ask_if(classes.filesystem),
            network: ask_if(classes.network),
            other: ask_if(classes.other),
        };
        Self {
            tier_ask: run_freely,
            known_changes: run_freely,
            tier_deny: run,
            impact: run,
            rule_ask: run,
            requested: powers,
            // Without a sandbox, powers of every class are given at once.
            unsandboxed: ask_if(classes.run && classes.filesystem && classes.network && classes.other),
            denied: powers,
        }
    }

    /// Returns the answer for a power that comes with the request.
    pub fn answer_requested(&self, class: GrantClass) -> PolicyVerdict {
        self.requested.answer_class(class).unwrap_or(self.impact)
    }

    /// Returns the answer for a power that was refused during the run: `ask`, or `deny` if the refusal is
    /// final.
    pub fn answer_denied(&self, class: GrantClass) -> PolicyVerdict {
        self.denied.answer_class(class).unwrap_or(self.impact)
    }

    /// Returns the stricter answer in every situation.
    pub fn combine_strictest(&self, other: &Self) -> Self {
        Self {
            tier_ask: self.tier_ask.max(other.tier_ask),
            known_changes: self.known_changes.max(other.known_changes),
            tier_deny: self.tier_deny.max(other.tier_deny),
            impact: self.impact.max(other.impact),
            rule_ask: self.rule_ask.max(other.rule_ask),
            requested: self.requested.combine_strictest(other.requested),
            unsandboxed: self.unsandboxed.max(other.unsandboxed),
            denied: self.denied.combine_strictest(other.denied),
        }
    }

    /// Returns whether no answer is milder than that of `base`.
    pub fn is_as_strict_as(&self, base: &Self) -> bool {
        self.combine_strictest(base) == *self
    }
}

/// Returns the name of a mode in its written form.
pub fn mode_name(mode: ApprovalMode) -> &'static str {
    match mode {
        ApprovalMode::Untrusted => "untrusted",
        ApprovalMode::OnFailure => "on-failure",
        ApprovalMode::OnRequest => "on-request",
        ApprovalMode::Never => "never",
        ApprovalMode::Granular(_) => "granular",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strictness_is_a_partial_order() {
        use ApprovalMode::{Never, OnFailure, OnRequest, Untrusted};
        let narrows = |a, b| ModeAnswers::from_mode(a).is_as_strict_as(&ModeAnswers::from_mode(b));
        for mode in [Untrusted, OnFailure, OnRequest, Never] {
            assert!(narrows(mode, mode));
            assert!(narrows(mode, OnFailure), "{mode:?}");
        }
        assert!(narrows(Never, OnRequest));
        // `never` runs commands that `untrusted` asks about; `untrusted` asks about powers that `never`
        // refuses. Neither is stricter.
        assert!(!narrows(Never, Untrusted) && !narrows(Untrusted, Never));
        assert!(!narrows(Untrusted, OnRequest) && !narrows(OnFailure, OnRequest));
    }
}
