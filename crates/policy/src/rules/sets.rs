//! Sets of rules and the algorithms that combine them.
//!
//! The rules of one file are a set, which the set's algorithm combines to one answer; the sets are always
//! combined by `deny-overrides` (L9). The names are those of XACML 3.0, appendix C, with `ask` between
//! `permit` and `deny`.

use std::cmp::Reverse;
use std::collections::HashSet;

use super::{PolicyRule, RuleInput, RuleMatch, RuleSubject};
use crate::file::CombiningAlgorithm;

/// The rules of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSet {
    /// Algorithm that combines the rules to one answer.
    pub combining: CombiningAlgorithm,
    /// The rules, from the top.
    pub rules: Vec<PolicyRule>,
}

/// All rule sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleBook {
    sets: Vec<RuleSet>,
}

/// The rules that match one scene.
#[derive(Clone, Debug, Default)]
pub(crate) struct MatchedRules<'a> {
    /// `ask` and `deny` rules that match the scene.
    pub raised: Vec<(&'a PolicyRule, RuleMatch)>,
    /// The allow rules, if they cover every command of the scene.
    pub allowed: Vec<&'a PolicyRule>,
}

/// A rule that was considered, for an explanation.
#[derive(Clone, Copy, Debug)]
pub struct RuleExplanation<'a> {
    /// The rule.
    pub rule: &'a PolicyRule,
    /// Whether the rule matches the scene.
    pub found: RuleMatch,
    /// If the rule does not match: the reason, in a few words.
    pub failing: Option<&'static str>,
}

impl RuleBook {
    /// Returns the sets of both books. The operation is associative, and decisions do not depend on the
    /// order.
    pub fn merge(mut self, other: Self) -> Self {
        self.sets.extend(other.sets);
        self
    }

    pub(crate) fn push(&mut self, set: RuleSet) {
        self.sets.push(set);
    }

    /// Returns the sets, in the order in which they were read.
    pub fn sets(&self) -> &[RuleSet] {
        &self.sets
    }

    /// Returns every rule, in the order in which they were read.
    pub fn rules(&self) -> impl Iterator<Item = &PolicyRule> {
        self.sets.iter().flat_map(|set| &set.rules)
    }

    /// Returns whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.sets.iter().all(|set| set.rules.is_empty())
    }

    /// Matches every rule with a scene.
    pub(crate) fn match_rules(&self, scene: &RuleInput<'_>) -> MatchedRules<'_> {
        if self.is_empty() {
            return MatchedRules::default();
        }
        let (units, plain): (Vec<&[String]>, bool) = match scene.subject {
            RuleSubject::Command { words, .. } => {
                // A background command continues beside the later ones, so the assessed state may change;
                // no rule may allow this.
                (words.commands.iter().map(Vec::as_slice).collect(), words.plain && !words.background)
            }
            RuleSubject::Act(_) => (vec![&[]], true),
        };
        let mut raised = Vec::new();
        let mut covered: Vec<Option<&PolicyRule>> = vec![None; units.len()];
        for set in &self.sets {
            set.match_rules(scene, &units, &mut raised, &mut covered);
        }
        let allowed: Option<Vec<&PolicyRule>> = covered.into_iter().collect();
        let mut allowed = allowed.filter(|_| plain).unwrap_or_default();
        let mut seen = HashSet::new();
        allowed.retain(|rule| seen.insert(std::ptr::from_ref(*rule)));
        MatchedRules { raised, allowed }
    }

    /// Returns every rule and whether it matches the scene.
    pub(crate) fn explain_rules<'a>(&'a self, scene: &RuleInput<'_>) -> Vec<RuleExplanation<'a>> {
        let considered = |rule: &'a PolicyRule| {
            let found = rule.match_input(scene);
            let failing = (found == RuleMatch::No).then(|| rule.find_failing_condition(scene));
            RuleExplanation { rule, found, failing }
        };
        self.rules().map(considered).collect()
    }
}

impl RuleSet {
    fn match_rules<'a>(
        &'a self,
        scene: &RuleInput<'_>,
        units: &[&[String]],
        raised: &mut Vec<(&'a PolicyRule, RuleMatch)>,
        covered: &mut [Option<&'a PolicyRule>],
    ) {
        if self.combining == CombiningAlgorithm::FirstApplicable {
            return self.first_applicable(scene, units, raised, covered);
        }
        let mut own: Vec<(&PolicyRule, RuleMatch)> = self
            .rules
            .iter()
            .filter(|rule| rule.raises_caution())
            .map(|rule| (rule, rule.match_input(scene)))
            .filter(|(_, found)| *found != RuleMatch::No)
            .collect();
        let mut allowing: Vec<&PolicyRule> = self.rules.iter().filter(|rule| !rule.raises_caution()).collect();
        if self.combining == CombiningAlgorithm::DenyOverrides {
            // The reported rule must not depend on the order either.
            own.sort_by_key(|(rule, found)| (Reverse(rule.effect), Reverse(*found), rule_sort_key(rule)));
            allowing.sort_by_key(|rule| rule_sort_key(rule));
        }
        raised.append(&mut own);
        for (unit, slot) in units.iter().zip(covered) {
            let covering = || allowing.iter().copied().find(|rule| rule.speaks_of(scene, unit) == RuleMatch::Certain);
            *slot = slot.or_else(covering);
        }
    }

    /// For each command, takes the first rule that matches it. A possible match counts, and the search
    /// continues after it.
    fn first_applicable<'a>(
        &'a self,
        scene: &RuleInput<'_>,
        units: &[&[String]],
        raised: &mut Vec<(&'a PolicyRule, RuleMatch)>,
        covered: &mut [Option<&'a PolicyRule>],
    ) {
        let mut raise = |rule: &'a PolicyRule, found: RuleMatch| match raised
            .iter_mut()
            .find(|(own, _)| std::ptr::eq(*own, rule))
        {
            Some((_, before)) => *before = (*before).max(found),
            None => raised.push((rule, found)),
        };
        for (unit, slot) in units.iter().zip(covered) {
            for rule in &self.rules {
                let found = rule.speaks_of(scene, unit);
                if rule.raises_caution() && found != RuleMatch::No {
                    raise(rule, found);
                } else if found == RuleMatch::Certain && slot.is_none() {
                    *slot = Some(rule);
                }
                if found == RuleMatch::Certain {
                    break;
                }
            }
        }
        // Text that is not plain has words that appear in no command of it.
        let RuleSubject::Command { words, .. } = scene.subject else { return };
        for rule in self.rules.iter().filter(|rule| rule.raises_caution()) {
            let found = if !words.plain && rule.is_every_command() {
                // No earlier rule applies for certain to text that is not understood.
                rule.match_conditions(scene)
            } else if rule.is_per_command() {
                rule.match_behind_wrapper(words).min(rule.match_conditions(scene))
            } else if words.plain {
                RuleMatch::No
            } else {
                rule.match_input(scene)
            };
            if found != RuleMatch::No {
                raise(rule, found);
            }
        }
    }
}

/// Returns a sort key: the most specific rule first, then by content. The order does not depend on the
/// positions of the rules.
fn rule_sort_key(rule: &PolicyRule) -> (Reverse<usize>, &str) {
    (Reverse(rule.compute_specificity()), rule.canonical_text())
}
