//! Rules about hosts, applied to secrets and signatures. A rule that refuses or asks about a host also
//! applies to each secret sent to it, and to each key that authenticates there. A rule that allows a host
//! gives these only if its `grants` name them.
//!
//! Must not know connections, keys, nor values of secrets.

use stockade_model::{Decision, Grant, Host, HostPattern, PolicyVerdict, SecretUse, SignUse};

use crate::act::{ActContext, build_act_input, collect_rule_statements, conclude_act, new_statement};
use crate::decide::rule_name;
use crate::rules::{Act, PolicyRule, RequestContext, RuleMatch};
use crate::settings::PolicySettings;

impl PolicySettings {
    /// Returns the decision of the rules about a secret that is sent to one host and port; `None` if no
    /// rule matches.
    pub fn decide_secret_by_rule(
        &self,
        grant_use: &SecretUse,
        stage: &ActContext<'_>,
        around: &RequestContext,
    ) -> Option<Decision> {
        let HostPattern::Exactly(host) = grant_use.targets().host() else { return None };
        let port = grant_use.targets().target().map(|target| target.port);
        let gives = |grant: &Grant| grant.secret().is_some_and(|own| own.covers(grant_use));
        self.decide_at_host((host, port), &gives, stage, around)
    }

    /// Returns the decision of the rules about a key that authenticates to a host; `None` if no rule
    /// matches. No rule about hosts applies to signatures of git.
    pub fn decide_signing_by_rule(
        &self,
        grant_use: &SignUse,
        stage: &ActContext<'_>,
        around: &RequestContext,
    ) -> Option<Decision> {
        let target = grant_use.target()?;
        let gives = |grant: &Grant| grant.sign_use() == Some(grant_use);
        self.decide_at_host((&target.host, Some(target.port)), &gives, stage, around)
    }

    fn decide_at_host(
        &self,
        (host, port): (&Host, Option<u16>),
        gives: &dyn Fn(&Grant) -> bool,
        stage: &ActContext<'_>,
        around: &RequestContext,
    ) -> Option<Decision> {
        let scene = build_act_input(self, Act::Network { host, port }, stage, around);
        let answers = stage.mode_answers(self);
        let mut voices = collect_rule_statements(&self.rules.match_rules(&scene), &answers);
        let names_it = |rule: &&PolicyRule| {
            let mut resolved = rule.grants.iter().filter_map(|grant| grant.resolve_grant(&self.home, stage.workspace));
            !rule.raises_caution()
                && resolved.any(|grant| gives(&grant))
                && rule.match_input(&scene) == RuleMatch::Certain
        };
        if let Some(rule) = self.rules().find(names_it) {
            voices.push(new_statement(PolicyVerdict::Allow, rule_name(rule), rule.justification.clone()));
        }
        (!voices.is_empty()).then(|| conclude_act(voices, None).decision)
    }
}
