//! Rules about commands: a program and its first arguments, word for word.
//!
//! Must not know modes or profiles. A rule decides how much to ask; containment
//! never rests on it.

use stockade_model::{Command, RawText, Verdict};

use crate::file::RuleSection;
use crate::spec::Origin;
use crate::words::{self, Words, base_name};

/// A rule that was checked against its own examples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Program and first arguments.
    pub prefix: Vec<String>,
    /// What becomes of a command that it matches.
    pub effect: Verdict,
    /// Why.
    pub justification: String,
    /// Where it stands.
    pub origin: Origin,
}

/// How sure it is that a rule speaks of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Match {
    No,
    /// The words are there, but in text that is not plain.
    Possible,
    Certain,
}

impl Rule {
    /// Checks a rule's form and its examples. The error names the key.
    pub(crate) fn new(section: &RuleSection, origin: Origin) -> Result<Self, (String, String)> {
        let fail = |key: &str, why: String| Err((key.to_owned(), why));
        if section.prefix.is_empty() || section.prefix.len() > 32 {
            return fail("prefix", "a rule's `prefix` has 1 to 32 words, the program first".to_owned());
        }
        if let Some(i) = section.prefix.iter().position(|word| word.is_empty() || word.chars().any(char::is_control)) {
            return fail(&format!("prefix[{i}]"), "a word of a rule is not empty and holds no control".to_owned());
        }
        if section.justification.trim().is_empty() {
            return fail("justification", "a rule says why it is there".to_owned());
        }
        let rule = Self {
            prefix: section.prefix.clone(),
            effect: section.effect,
            justification: section.justification.clone(),
            origin,
        };
        for (i, example) in section.matches.iter().enumerate() {
            if rule.matches(&words::of_script(example.as_bytes())) != Match::Certain {
                return fail(&format!("match[{i}]"), format!("the rule does not match its example `{example}`"));
            }
        }
        for (i, example) in section.not_match.iter().enumerate() {
            if rule.matches(&words::of_script(example.as_bytes())) != Match::No {
                return fail(&format!("not_match[{i}]"), format!("the rule matches its counter-example `{example}`"));
            }
        }
        Ok(rule)
    }

    /// Whether the rule speaks of any command of `words`.
    pub(crate) fn matches(&self, words: &Words) -> Match {
        if words.commands.iter().any(|command| self.matches_command(command)) {
            return Match::Certain;
        }
        if self.effect == Verdict::Allow {
            return Match::No;
        }
        let window = |at: &[String]| base_name(&at[0]) == self.program() && at[1..] == self.prefix[1..];
        match words.loose.windows(self.prefix.len()).any(window) {
            true => Match::Possible,
            false => Match::No,
        }
    }

    /// An allow rule means exactly its program: `./git` is not `git`. The others
    /// mean every program of that name.
    fn matches_command(&self, command: &[String]) -> bool {
        let Some(program) = command.first() else { return false };
        let same_program =
            *program == self.prefix[0] || (self.effect != Verdict::Allow && base_name(program) == self.program());
        same_program && command[1..].starts_with(&self.prefix[1..])
    }

    fn program(&self) -> &str {
        base_name(&self.prefix[0])
    }
}

/// What the rules say of one command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleFindings<'a> {
    /// `ask` and `deny` rules that speak of it.
    pub raised: Vec<(&'a Rule, Match)>,
    /// The allow rules, where they cover every command of it.
    pub allowed: Vec<&'a Rule>,
}

/// Holds every rule against a command line. The order of `rules` decides only
/// the order of what is found.
pub(crate) fn find<'a>(rules: &'a [Rule], command: &Command) -> RuleFindings<'a> {
    if rules.is_empty() {
        return RuleFindings::default();
    }
    let words = match command {
        Command::Argv(argv) => words::of_argv(&argv.iter().map(RawText::to_str).collect::<Vec<_>>()),
        Command::Script(script) => words::of_script(script.as_bytes()),
    };
    let raised = rules
        .iter()
        .filter(|rule| rule.effect != Verdict::Allow)
        .map(|rule| (rule, rule.matches(&words)))
        .filter(|(_, found)| *found != Match::No)
        .collect();
    let covering =
        |command: &Vec<String>| rules.iter().find(|r| r.effect == Verdict::Allow && r.matches_command(command));
    let allowed: Option<Vec<&Rule>> = words.commands.iter().map(covering).collect();
    let allowed = allowed.filter(|_| words.plain).unwrap_or_default();
    RuleFindings { raised, allowed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(prefix: &[&str], effect: Verdict) -> Rule {
        let prefix = prefix.iter().map(|w| (*w).to_owned()).collect();
        Rule { prefix, effect, justification: "j".into(), origin: Origin::Default }
    }

    #[track_caller]
    fn check(prefix: &[&str], effect: Verdict, script: &str, expected: Match) {
        let found = rule(prefix, effect).matches(&words::of_script(script.as_bytes()));
        assert_eq!(found, expected, "{prefix:?} {effect:?} {script:?}");
    }

    #[test]
    fn deny_sees_every_command_and_spelling() {
        for script in ["git push", "git push -f", "ls; git push", "/usr/bin/git push", "g'i't \"push\"", "a|git push"] {
            check(&["git", "push"], Verdict::Deny, script, Match::Certain);
        }
        for script in ["sudo git push", "$(git push)", "bash -c 'git push'", "git pu\\sh", "if git push; then :; fi"] {
            check(&["git", "push"], Verdict::Deny, script, Match::Possible);
        }
        for script in ["git pull", "git", "echo 'git push'", "git pushy", "git -C x push", "widget push"] {
            check(&["git", "push"], Verdict::Deny, script, Match::No);
        }
    }

    #[test]
    fn allow_is_exact_and_covers_everything_or_nothing() {
        let rules = [rule(&["make"], Verdict::Allow), rule(&["npm", "test"], Verdict::Allow)];
        let allowed = |script: &str| !find(&rules, &Command::Script(script.into())).allowed.is_empty();
        assert!(allowed("make"));
        assert!(allowed("make -j2 && npm test"));
        for script in ["./make", "/usr/bin/make", "make; ls", "make > x", "PATH=. make", "make $X", "npm install", ""] {
            assert!(!allowed(script), "{script}");
        }
        let argv = |words: &[&str]| Command::Argv(words.iter().map(|w| RawText::from(*w)).collect());
        assert!(!find(&rules, &argv(&["make", "$x", ";"])).allowed.is_empty());
        assert!(find(&rules, &argv(&["sh", "-c", "make"])).allowed.is_empty());
        assert!(find(&rules, &argv(&[])).allowed.is_empty());
    }
}
