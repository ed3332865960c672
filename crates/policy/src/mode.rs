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
    /// Filesystem powers come with the request.
    pub filesystem: PolicyVerdict,
    /// Network powers come with the request.
    pub network: PolicyVerdict,
    /// Other powers come with the request.
    pub other: PolicyVerdict,
    /// The command would run without a sandbox.
    pub unsandboxed: PolicyVerdict,
    /// A filesystem power was refused during the run: `deny` means that the refusal is final.
    pub denied_filesystem: PolicyVerdict,
    /// A network power was refused during the run.
    pub denied_network: PolicyVerdict,
    /// Another power was refused during the run.
    pub denied_other: PolicyVerdict,
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
            filesystem: Ask,
            network: Ask,
            other: Ask,
            unsandboxed: Ask,
            denied_filesystem: Ask,
            denied_network: Ask,
            denied_other: Ask,
        };
        match mode {
            ApprovalMode::Untrusted => Self { tier_ask: Ask, ..sandboxed_first },
            ApprovalMode::OnFailure => sandboxed_first,
            ApprovalMode::OnRequest => {
                Self { denied_filesystem: Deny, denied_network: Deny, denied_other: Deny, ..sandboxed_first }
            }
            ApprovalMode::Never => Self::from_granular(GranularMode::default()),
            ApprovalMode::Granular(classes) => Self::from_granular(classes),
        }
    }

    fn from_granular(classes: GranularMode) -> Self {
        use PolicyVerdict::{Allow, Ask, Deny};
        let ask_if = |may: bool| if may { Ask } else { Deny };
        Self {
            tier_ask: if classes.run { Ask } else { Allow },
            known_changes: if classes.run { Ask } else { Allow },
            tier_deny: ask_if(classes.run),
            impact: ask_if(classes.run),
            rule_ask: ask_if(classes.run),
            filesystem: ask_if(classes.filesystem),
            network: ask_if(classes.network),
            other: ask_if(classes.other),
            // Without a sandbox, powers of every class are given at once.
            unsandboxed: ask_if(classes.run && classes.filesystem && classes.network && classes.other),
            denied_filesystem: ask_if(classes.filesystem),
            denied_network: ask_if(classes.network),
            denied_other: ask_if(classes.other),
        }
    }

    /// Returns the answer for a power that comes with the request.
    pub fn answer_requested(&self, class: GrantClass) -> PolicyVerdict {
        match class {
            GrantClass::Filesystem => self.filesystem,
            GrantClass::Network => self.network,
            GrantClass::Other => self.other,
            GrantClass::Effect => self.impact,
        }
    }

    /// Returns the answer for a power that was refused during the run: `ask`, or `deny` if the refusal is
    /// final.
    pub fn answer_denied(&self, class: GrantClass) -> PolicyVerdict {
        match class {
            GrantClass::Filesystem => self.denied_filesystem,
            GrantClass::Network => self.denied_network,
            GrantClass::Other => self.denied_other,
            GrantClass::Effect => self.impact,
        }
    }

    /// Returns the stricter answer in every situation.
    pub fn combine_strictest(&self, other: &Self) -> Self {
        Self {
            tier_ask: self.tier_ask.max(other.tier_ask),
            known_changes: self.known_changes.max(other.known_changes),
            tier_deny: self.tier_deny.max(other.tier_deny),
            impact: self.impact.max(other.impact),
            rule_ask: self.rule_ask.max(other.rule_ask),
            filesystem: self.filesystem.max(other.filesystem),
            network: self.network.max(other.network),
            other: self.other.max(other.other),
            unsandboxed: self.unsandboxed.max(other.unsandboxed),
            denied_filesystem: self.denied_filesystem.max(other.denied_filesystem),
            denied_network: self.denied_network.max(other.denied_network),
            denied_other: self.denied_other.max(other.denied_other),
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
