//! What each approval mode answers, as a table: one verdict per situation. A
//! mode is stricter than another when no answer of it is milder.

use stockade_model::{ApprovalMode, Grant, GranularMode, Verdict};

/// The class of a power, as granular modes know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GrantClass {
    /// Paths.
    Filesystem,
    /// Hosts and ports, which secrets are taken there, and which keys sign.
    Network,
    /// Sockets, programs, variables, limits.
    Other,
    /// What no sandbox contains or no undo takes back.
    Effect,
}

impl GrantClass {
    /// The class of a grant.
    pub fn of(grant: &Grant) -> Self {
        match grant {
            Grant::Write(_) | Grant::Read(_) => Self::Filesystem,
            Grant::Connect(_) | Grant::Secret(_) | Grant::Sign(_) | Grant::Listen(_) => Self::Network,
            Grant::Socket(_) | Grant::Exec(_) | Grant::Env(_) | Grant::Limit(..) => Self::Other,
            Grant::Effect(_) => Self::Effect,
        }
    }
}

/// What a mode answers in each situation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeAnswers {
    /// The judge says `ask`: `allow` means that it runs sandboxed.
    pub tier_ask: Verdict,
    /// The judge says `ask`, and the text shows known tools that change files of the
    /// workspace and nothing else.
    pub known_changes: Verdict,
    /// The judge says `deny`.
    pub tier_deny: Verdict,
    /// The effect is one that the sandbox cannot contain or undo.
    pub impact: Verdict,
    /// A rule says `ask`.
    pub rule_ask: Verdict,
    /// Filesystem powers come with the request.
    pub filesystem: Verdict,
    /// Network powers come with the request.
    pub network: Verdict,
    /// Other powers come with the request.
    pub other: Verdict,
    /// It would run without a sandbox.
    pub unsandboxed: Verdict,
    /// A filesystem power was refused during the run: `deny` means that this is
    /// final.
    pub denied_filesystem: Verdict,
    /// A network power was refused during the run.
    pub denied_network: Verdict,
    /// Another power was refused during the run.
    pub denied_other: Verdict,
}

impl ModeAnswers {
    /// The table of a mode.
    pub fn of(mode: ApprovalMode) -> Self {
        use Verdict::{Allow, Ask, Deny};
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
            ApprovalMode::Never => Self::granular(GranularMode::default()),
            ApprovalMode::Granular(classes) => Self::granular(classes),
        }
    }

    fn granular(classes: GranularMode) -> Self {
        use Verdict::{Allow, Ask, Deny};
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
            // Without a sandbox every class of power is given at once.
            unsandboxed: ask_if(classes.run && classes.filesystem && classes.network && classes.other),
            denied_filesystem: ask_if(classes.filesystem),
            denied_network: ask_if(classes.network),
            denied_other: ask_if(classes.other),
        }
    }

    /// The answer for a power that comes with the request.
    pub fn requested(&self, class: GrantClass) -> Verdict {
        match class {
            GrantClass::Filesystem => self.filesystem,
            GrantClass::Network => self.network,
            GrantClass::Other => self.other,
            GrantClass::Effect => self.impact,
        }
    }

    /// The answer for a power that was refused during the run: `ask`, or `deny`
    /// where the refusal is final.
    pub fn denied(&self, class: GrantClass) -> Verdict {
        match class {
            GrantClass::Filesystem => self.denied_filesystem,
            GrantClass::Network => self.denied_network,
            GrantClass::Other => self.denied_other,
            GrantClass::Effect => self.impact,
        }
    }

    /// The stricter answer in every situation.
    pub fn strictest(&self, other: &Self) -> Self {
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

    /// True where no answer is milder than `base`'s.
    pub fn is_as_strict_as(&self, base: &Self) -> bool {
        self.strictest(base) == *self
    }
}

/// The name of a mode, as it is written.
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
        let narrows = |a, b| ModeAnswers::of(a).is_as_strict_as(&ModeAnswers::of(b));
        for mode in [Untrusted, OnFailure, OnRequest, Never] {
            assert!(narrows(mode, mode));
            assert!(narrows(mode, OnFailure), "{mode:?}");
        }
        assert!(narrows(Never, OnRequest));
        // `never` runs what `untrusted` asks about; `untrusted` asks where
        // `never` refuses: neither is stricter.
        assert!(!narrows(Never, Untrusted) && !narrows(Untrusted, Never));
        assert!(!narrows(Untrusted, OnRequest) && !narrows(OnFailure, OnRequest));
    }
}
