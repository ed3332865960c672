//! Sets of rules and the algorithms that combine them.
//!
//! The rules of one file are a set and become one answer by the set's
//! algorithm; the sets are always combined by `deny-overrides` (L9). The names
//! are those of XACML 3.0, appendix C, with `ask` between `permit` and `deny`.

use std::cmp::Reverse;

use super::{Match, Rule, Scene, Subject};
use crate::file::Combining;

/// The rules of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSet {
    /// How they become one answer.
    pub combining: Combining,
    /// They, from the top.
    pub rules: Vec<Rule>,
}

/// Every set there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleBook {
    sets: Vec<RuleSet>,
}

/// What the rules say of one scene.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings<'a> {
    /// `ask` and `deny` rules that speak of it.
    pub raised: Vec<(&'a Rule, Match)>,
    /// The allow rules, where they cover every command of it.
    pub allowed: Vec<&'a Rule>,
}

/// A rule that was looked at, for an explanation.
#[derive(Clone, Copy, Debug)]
pub struct Considered<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// Whether it speaks of what was asked.
    pub found: Match,
    /// Where it does not: why, in a few words.
    pub failing: Option<&'static str>,
}

impl RuleBook {
    /// Both books' sets. Associative; what is decided does not depend on the
    /// order either.
    pub fn merge(mut self, other: Self) -> Self {
        self.sets.extend(other.sets);
        self
    }

    pub(crate) fn push(&mut self, set: RuleSet) {
        self.sets.push(set);
    }

    /// The sets, in the order they were read.
    pub fn sets(&self) -> &[RuleSet] {
        &self.sets
    }

    /// Every rule, in the order they were read.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.sets.iter().flat_map(|set| &set.rules)
    }

    /// True where there are none.
    pub fn is_empty(&self) -> bool {
        self.sets.iter().all(|set| set.rules.is_empty())
    }

    /// Holds every rule against a scene.
    pub(crate) fn find(&self, scene: &Scene<'_>) -> Findings<'_> {
        if self.is_empty() {
            return Findings::default();
        }
        let (units, plain): (Vec<&[String]>, bool) = match scene.subject {
            Subject::Command { words, .. } => {
                // What goes on behind the others is not what was looked at.
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

    /// Every rule and whether it speaks of the scene.
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
            // What is named must not depend on the order either.
            own.sort_by_key(|(rule, found)| (Reverse(rule.effect), Reverse(*found), order(rule)));
            allowing.sort_by_key(|rule| order(rule));
        }
        raised.append(&mut own);
        for (unit, slot) in units.iter().zip(covered) {
            let covering = || allowing.iter().copied().find(|rule| rule.speaks_of(scene, unit) == Match::Certain);
            *slot = slot.or_else(covering);
        }
    }

    /// For each command the first rule that speaks of it. One that only may
    /// speak of it is heard, and those behind it as well.
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
        // Text that is not plain has words that no command of it shows.
        let Subject::Command { words, .. } = scene.subject else { return };
        for rule in self.rules.iter().filter(|rule| rule.raises()) {
            let found = if !words.plain && rule.is_every_command() {
                // Nothing before it applies for certain to what is not understood.
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

/// The most specific first, then by what they say: an order that does not
/// depend on where they stand.
fn order(rule: &Rule) -> (Reverse<usize>, &str) {
    (Reverse(rule.specificity()), rule.said())
}
