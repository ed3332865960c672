//! Sets of rules and the algorithms that combine them.
//!
//! The rules of one file are a set, which the set's algorithm combines to one answer; the sets are always
//! combined by `deny-overrides` (L9). The names are those of XACML 3.0, appendix C, with `ask` between
//! `permit` and `deny`.

use std::cmp::Reverse;

use super::{Match, Rule, Scene, Subject};
use crate::file::Combining;

/// The rules of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSet {
    /// Algorithm that combines the rules to one answer.
    pub combining: Combining,
    /// The rules, from the top.
    pub rules: Vec<Rule>,
}

/// All rule sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleBook {
    sets: Vec<RuleSet>,
}

/// The rules that match one scene.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings<'a> {
    /// `ask` and `deny` rules that match the scene.
    pub raised: Vec<(&'a Rule, Match)>,
    /// The allow rules, if they cover every command of the scene.
    pub allowed: Vec<&'a Rule>,
}

/// A rule that was considered, for an explanation.
#[derive(Clone, Copy, Debug)]
pub struct Considered<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// Whether the rule matches the scene.
    pub found: Match,
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
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.sets.iter().flat_map(|set| &set.rules)
    }

    /// Returns whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.sets.iter().all(|set| set.rules.is_empty())
    }

    /// Matches every rule with a scene.
    pub(crate) fn find(&self, scene: &Scene<'_>) -> Findings<'_> {
        if self.is_empty() {
            return Findings::default();
        }
        let (units, plain): (Vec<&[String]>, bool) = match scene.subject {
            Subject::Command { words, .. } => {
                // A background command continues beside the later ones, so the assessed state may change;
                // no rule may allow this.
                (words.commands.iter().map(Vec::as_slice).collect(), words.plain && !words.background)
            }
            Subject::Act(_) => (vec![&[]], true),
        };
        let mut raised = Vec::new();
        let mut covered: Vec<Option<&Rule>> = vec![None; units.len()];
        for set in &self.sets {
            set.find(scene, &units, &mut raised, &mut covered);
        }
        let allowed: Option<Vec<&Rule>> = covered.into_iter().collect();
        let mut allowed = allowed.filter(|_| plain).unwrap_or_default();
        let mut seen: Vec<*const Rule> = Vec::new();
        allowed.retain(|rule| {
            let known = seen.contains(&std::ptr::from_ref(*rule));
            seen.push(std::ptr::from_ref(*rule));
            !known
        });
        Findings { raised, allowed }
    }

    /// Returns every rule and whether it matches the scene.
    pub(crate) fn consider<'a>(&'a self, scene: &Scene<'_>) -> Vec<Considered<'a>> {
        let considered = |rule: &'a Rule| {
            let found = rule.speaks(scene);
            let failing = (found == Match::No).then(|| rule.failing(scene));
            Considered { rule, found, failing }
        };
        self.rules().map(considered).collect()
    }
}

impl RuleSet {
    fn find<'a>(
        &'a self,
        scene: &Scene<'_>,
        units: &[&[String]],
        raised: &mut Vec<(&'a Rule, Match)>,
        covered: &mut [Option<&'a Rule>],
    ) {
        if self.combining == Combining::FirstApplicable {
            return self.first_applicable(scene, units, raised, covered);
        }
        let mut own: Vec<(&Rule, Match)> = self
            .rules
            .iter()
            .filter(|rule| rule.raises())
            .map(|rule| (rule, rule.speaks(scene)))
            .filter(|(_, found)| *found != Match::No)
            .collect();
        let mut allowing: Vec<&Rule> = self.rules.iter().filter(|rule| !rule.raises()).collect();
        if self.combining == Combining::DenyOverrides {
            // The reported rule must not depend on the order either.
            own.sort_by_key(|(rule, found)| (Reverse(rule.effect), Reverse(*found), order(rule)));
            allowing.sort_by_key(|rule| order(rule));
        }
        raised.append(&mut own);
        for (unit, slot) in units.iter().zip(covered) {
            let covering = || allowing.iter().copied().find(|rule| rule.speaks_of(scene, unit) == Match::Certain);
            *slot = slot.or_else(covering);
        }
    }

    /// For each command, takes the first rule that matches it. A possible match counts, and the search
    /// continues after it.
    fn first_applicable<'a>(
        &'a self,
        scene: &Scene<'_>,
        units: &[&[String]],
        raised: &mut Vec<(&'a Rule, Match)>,
        covered: &mut [Option<&'a Rule>],
    ) {
        let mut raise = |rule: &'a Rule, found: Match| match raised.iter_mut().find(|(own, _)| std::ptr::eq(*own, rule))
        {
            Some((_, before)) => *before = (*before).max(found),
            None => raised.push((rule, found)),
        };
        for (unit, slot) in units.iter().zip(covered) {
            for rule in &self.rules {
                let found = rule.speaks_of(scene, unit);
                if rule.raises() && found != Match::No {
                    raise(rule, found);
                } else if found == Match::Certain && slot.is_none() {
                    *slot = Some(rule);
                }
                if found == Match::Certain {
                    break;
                }
            }
        }
        // Text that is not plain has words that appear in no command of it.
        let Subject::Command { words, .. } = scene.subject else { return };
        for rule in self.rules.iter().filter(|rule| rule.raises()) {
            let found = if !words.plain && rule.is_every_command() {
                // No earlier rule applies for certain to text that is not understood.
                rule.around(scene)
            } else if rule.is_per_command() {
                rule.behind(words).min(rule.around(scene))
            } else if words.plain {
                Match::No
            } else {
                rule.speaks(scene)
            };
            if found != Match::No {
                raise(rule, found);
            }
        }
    }
}

/// Returns a sort key: the most specific rule first, then by content. The order does not depend on the
/// positions of the rules.
fn order(rule: &Rule) -> (Reverse<usize>, &str) {
    (Reverse(rule.specificity()), rule.said())
}
