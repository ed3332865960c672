//! Rules about hosts against secrets: what refuses a host or asks about it says
//! the same of each secret on its way there; what allows a host gives a secret
//! only where its `grants` name that.
//!
//! Must not know connections, nor values of secrets.

use stockade_model::{Decision, Grant, HostPattern, SecretUse, Verdict};

use crate::act::{Stage, conclude, raised, said, scene};
use crate::decide::rule_name;
use crate::mode::ModeAnswers;
use crate::rules::{Act, Circumstances, Match, Rule};
use crate::settings::Settings;

impl Settings {
    /// What the rules say of a secret on its way to one host and port; nothing
    /// where none speaks of it.
    pub fn decide_secret_by_rule(
        &self,
        wanted: &SecretUse,
        stage: &Stage<'_>,
        around: &Circumstances,
    ) -> Option<Decision> {
        let HostPattern::Exactly(host) = wanted.targets().host() else { return None };
        let port = wanted.targets().target().map(|target| target.port);
        let scene = scene(self, Act::Network { host, port }, stage, around);
        let answers = ModeAnswers::of(stage.approval_mode).strictest(&ModeAnswers::of(self.approval_mode.value));
        let mut voices = raised(&self.rules.find(&scene), &answers);
        let gives = |rule: &&Rule| {
            let resolved = rule.grants.iter().filter_map(|grant| grant.resolve(&self.home, stage.workspace));
            let mut secrets =
                resolved.filter_map(|grant| if let Grant::Secret(own) = grant { Some(own) } else { None });
            !rule.raises() && secrets.any(|own| own.covers(wanted)) && rule.speaks(&scene) == Match::Certain
        };
        if let Some(rule) = self.rules().find(gives) {
            voices.push(said(Verdict::Allow, rule_name(rule), rule.justification.clone()));
        }
        (!voices.is_empty()).then(|| conclude(voices, None).decision)
    }
}
