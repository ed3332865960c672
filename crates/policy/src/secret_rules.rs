//! Rules about hosts against secrets and signatures: what refuses a host or asks about it
//! says the same of each secret on its way there, and of each key that authenticates there;
//! what allows a host gives these only where its `grants` name them.
//!
//! Must not know connections, keys, nor values of secrets.

use stockade_model::{Decision, Grant, Host, HostPattern, SecretUse, SignUse, Verdict};

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
        let gives = |grant: &Grant| grant.secret().is_some_and(|own| own.covers(wanted));
        self.decide_at_host((host, port), &gives, stage, around)
    }

    /// What the rules say of a key that authenticates to a host; nothing where none speaks
    /// of it. No rule about hosts speaks of signatures of git.
    pub fn decide_signing_by_rule(
        &self,
        wanted: &SignUse,
        stage: &Stage<'_>,
        around: &Circumstances,
    ) -> Option<Decision> {
        let target = wanted.target()?;
        let gives = |grant: &Grant| grant.sign_use() == Some(wanted);
        self.decide_at_host((&target.host, Some(target.port)), &gives, stage, around)
    }

    fn decide_at_host(
        &self,
        (host, port): (&Host, Option<u16>),
        gives: &dyn Fn(&Grant) -> bool,
        stage: &Stage<'_>,
        around: &Circumstances,
    ) -> Option<Decision> {
        let scene = scene(self, Act::Network { host, port }, stage, around);
        let answers = ModeAnswers::of(stage.approval_mode).strictest(&ModeAnswers::of(self.approval_mode.value));
        let mut voices = raised(&self.rules.find(&scene), &answers);
        let names_it = |rule: &&Rule| {
            let mut resolved = rule.grants.iter().filter_map(|grant| grant.resolve(&self.home, stage.workspace));
            !rule.raises() && resolved.any(|grant| gives(&grant)) && rule.speaks(&scene) == Match::Certain
        };
        if let Some(rule) = self.rules().find(names_it) {
            voices.push(said(Verdict::Allow, rule_name(rule), rule.justification.clone()));
        }
        (!voices.is_empty()).then(|| conclude(voices, None).decision)
    }
}
