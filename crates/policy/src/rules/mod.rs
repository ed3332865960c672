//! Rules: their subjects and effects, and the check of each rule against its own examples.
//!
//! Must not know modes or profiles. A rule decides how much to ask; containment never depends on it.

mod examples;
mod facts;
mod matching;
mod options;
mod sets;
mod subject;

use std::fmt;

use stockade_model::{Limits, PolicyVerdict};

use crate::file::{ApproverName, FactsSection, ProvenanceSection, RuleSection};
use crate::hosts::check_breadth;
use crate::pattern::{GrantEntry, GrantText, WordPattern};
use crate::spec::ValueOrigin;

pub use examples::{file_change, parse_target, tool_call};
pub(crate) use matching::join_words;
pub(crate) use sets::MatchedRules;
pub use sets::{RuleBook, RuleExplanation, RuleSet};
pub use subject::{Act, RequestContext};
pub(crate) use subject::{RuleInput, RuleSubject};

/// Most words of a prefix.
const MAX_PREFIX_WORDS: usize = 32;
/// Most patterns of one list of a rule.
const MAX_PATTERNS: usize = 256;
/// Longest pattern over text, in bytes: the time of a match is its length times that of the command.
const MAX_GLOB_BYTES: usize = 1024;

/// How certain it is that a rule matches its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleMatch {
    /// The rule does not match.
    No,
    /// The rule may match: the words exist, but in text that is not plain, or a condition depends on an
    /// unknown fact.
    Possible,
    /// The rule matches.
    Certain,
}

impl RuleMatch {
    pub(crate) fn certain_if(holds: bool) -> Self {
        if holds { Self::Certain } else { Self::No }
    }

    /// Returns the match of the negated condition.
    pub(crate) fn negate_match(self) -> Self {
        match self {
            Self::No => Self::Certain,
            Self::Possible => Self::Possible,
            Self::Certain => Self::No,
        }
    }
}

/// Kind of object that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleKind {
    Anything,
    Command,
    Tool,
    File,
    Host,
}

/// A rule that was checked against its own examples.
#[derive(Clone, Debug)]
pub struct PolicyRule {
    pub(crate) kind: RuleKind,
    /// The conditions, in their written form.
    pub(crate) section: RuleSection,
    /// Name of the rule, if it has one.
    pub name: Option<String>,
    /// Effect on the matched subjects.
    pub effect: PolicyVerdict,
    /// Reason for the rule.
    pub justification: String,
    /// The profile to run with.
    pub profile: Option<String>,
    /// Powers that are added if the subject is allowed or approved.
    pub grants: Vec<GrantText>,
    /// Approvers that may agree.
    pub approver: ApproverName,
    pub(crate) limits: Limits,
    /// Source of the rule, if it was not written by hand.
    pub provenance: Option<ProvenanceSection>,
    /// Position of the rule.
    pub origin: ValueOrigin,
    /// Every key with its value, for digests and explanations.
    canonical_form: String,
}

/// Two rules are equal if their keys and values are equal, whatever their positions.
impl PartialEq for PolicyRule {
    fn eq(&self, other: &Self) -> bool {
        self.canonical_form == other.canonical_form
    }
}

impl Eq for PolicyRule {}

impl PolicyRule {
    /// Checks a rule's form and its examples. The error names the key.
    pub(crate) fn new(section: &RuleSection, origin: ValueOrigin) -> Result<Self, (String, String)> {
        check_form(section)?;
        let rule = Self {
            kind: kind_of(section)?,
            section: section.clone(),
            name: section.name.as_ref().map(|name| name.0.clone()),
            effect: section.effect,
            justification: section.justification.clone(),
            profile: section.profile.as_ref().map(|name| name.0.clone()),
            grants: grants_of(section).cloned().collect(),
            approver: section.approver.unwrap_or_default(),
            limits: section.limits.to_limits(),
            provenance: section.provenance.clone(),
            origin,
            canonical_form: format_section(section),
        };
        examples::check_examples(&rule, section)?;
        Ok(rule)
    }

    /// Returns the name of the rule, or its subject, in one line.
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.describe_subject())
    }

    /// Returns every key with its value, except for examples and provenance.
    pub fn canonical_text(&self) -> &str {
        &self.canonical_form
    }

    /// Returns whether the rule limits the run.
    pub fn has_limits(&self) -> bool {
        !self.limits.is_empty()
    }

    /// Returns whether the rule has a condition on the user.
    pub fn asks_user(&self) -> bool {
        !self.section.user.is_empty()
    }

    /// Returns whether the rule has a condition on the time.
    pub fn asks_time(&self) -> bool {
        !self.section.time.is_empty()
    }

    pub(crate) fn raises_caution(&self) -> bool {
        self.effect != PolicyVerdict::Allow
    }

    /// Returns how specific the rule is. If two rules give the same decision, the more specific one is
    /// reported.
    pub(crate) fn compute_specificity(&self) -> usize {
        let RuleSection { prefix, glob, options, arguments, tool, cwd, user, session, time, .. } = &self.section;
        let own = match self.kind {
            RuleKind::Anything => 0,
            RuleKind::Command => {
                4 * prefix.len() + 2 * glob.len().min(1) + options.present.len() + options.absent.len() + 1
            }
            RuleKind::Tool => 1 + arguments.len(),
            RuleKind::File | RuleKind::Host => 1,
        };
        let entries = [tool.len(), cwd.len(), user.len(), session.len(), time.len()];
        own + entries.iter().filter(|length| **length > 0).count()
    }

    fn describe_subject(&self) -> String {
        fn list<T: fmt::Display>(items: &[T], between: &str) -> String {
            items.iter().map(T::to_string).collect::<Vec<_>>().join(between)
        }
        let RuleSection { prefix, glob, options, files, hosts, .. } = &self.section;
        match self.kind {
            RuleKind::Anything => "anything".to_owned(),
            RuleKind::Command => {
                let mut parts = vec![list(prefix, " "), list(glob, " | ")];
                parts.extend(options.present.iter().map(|option| format!("with {option}")));
                parts.extend(options.absent.iter().map(|option| format!("without {option}")));
                parts.retain(|part| !part.is_empty());
                if parts.is_empty() { "commands by their facts".to_owned() } else { parts.join(" ") }
            }
            RuleKind::Tool => "tool calls".to_owned(),
            RuleKind::File => format!("files {}", list(files, ", ")),
            RuleKind::Host => format!("hosts {}", list(hosts, ", ")),
        }
    }
}

type RuleFormError = (String, String);

fn fail_at_key<T>(key: &str, why: impl Into<String>) -> Result<T, RuleFormError> {
    Err((key.to_owned(), why.into()))
}

fn check_form(section: &RuleSection) -> Result<(), RuleFormError> {
    if section.prefix.len() > MAX_PREFIX_WORDS {
        return fail_at_key("prefix", "a rule's `prefix` has 1 to 32 words, the program first");
    }
    let bad_word = |word: &String| word.is_empty() || word.chars().any(char::is_control);
    if let Some(i) = section.prefix.iter().position(|word| word.alternatives().iter().any(bad_word)) {
        return fail_at_key(
            &format!("prefix[{i}]"),
            "a word of a rule must not be empty or contain control characters",
        );
    }
    for (key, options) in [("options.present", &section.options.present), ("options.absent", &section.options.absent)] {
        let bad =
            |option: &WordPattern| !option.alternatives().iter().all(|text| text.len() > 1 && text.starts_with('-'));
        if let Some(i) = options.iter().position(bad) {
            return fail_at_key(&format!("{key}[{i}]"), "an option starts with `-`");
        }
    }
    let lists =
        [("glob", &section.glob), ("tool", &section.tool), ("user", &section.user), ("session", &section.session)];
    for (key, list) in lists {
        let bad = |text: &String| text.is_empty() || text.len() > MAX_GLOB_BYTES || text.chars().any(char::is_control);
        if let Some(i) = list.iter().position(bad) {
            let why =
                format!("a pattern is not empty, has no control characters, and has at most {MAX_GLOB_BYTES} bytes");
            return fail_at_key(&format!("{key}[{i}]"), why);
        }
    }
    check_lengths(section)?;
    for (i, host) in section.hosts.iter().enumerate().filter(|_| section.effect == PolicyVerdict::Allow) {
        if let Some(why) = host.patterns().iter().find_map(|pattern| check_breadth(pattern).err()) {
            return fail_at_key(&format!("hosts[{i}]"), why.to_string());
        }
    }
    // A rule about hosts does not decide on a run, so it cannot add powers to one.
    let is_idle = |entry: &GrantEntry| !section.hosts.is_empty() && !entry.grants().iter().all(GrantText::is_at_host);
    if let Some(i) = section.grants.iter().position(is_idle) {
        return fail_at_key(
            &format!("grants[{i}]"),
            "a rule with `hosts` grants secrets and keys only, e.g. `secret NAME to HOST`",
        );
    }
    if section.justification.trim().is_empty() {
        return fail_at_key("justification", "a rule needs a justification");
    }
    Ok(())
}

/// Returns the powers of a rule one by one: the hosts of a group, never its name.
fn grants_of(section: &RuleSection) -> impl Iterator<Item = &GrantText> {
    section.grants.iter().flat_map(GrantEntry::grants)
}

fn check_lengths(section: &RuleSection) -> Result<(), RuleFormError> {
    let facts = &section.facts;
    let lengths = [
        ("glob", section.glob.len()),
        ("tool", section.tool.len()),
        ("arguments", section.arguments.values().map(Vec::len).sum()),
        ("files", section.files.len()),
        ("hosts", section.hosts.len()),
        ("cwd", section.cwd.len()),
        ("user", section.user.len()),
        ("session", section.session.len()),
        ("time", section.time.len()),
        ("grants", section.grants.len()),
        ("options", section.options.present.len() + section.options.absent.len()),
        ("facts", facts.reads.len() + facts.writes.len() + facts.deletes.len() + facts.network.len()),
        ("facts", facts.executes.len() + facts.findings.len()),
        ("match", section.matches.len()),
        ("not_match", section.not_match.len()),
    ];
    match lengths.iter().find(|(_, length)| *length > MAX_PATTERNS) {
        Some((key, _)) => fail_at_key(key, format!("at most {MAX_PATTERNS} entries")),
        None => Ok(()),
    }
}

/// Returns the kind of object that a rule is about: one kind, or anything.
fn kind_of(section: &RuleSection) -> Result<RuleKind, RuleFormError> {
    let command = section.names_commands() || !format_facts(&section.facts).is_empty();
    let (files, hosts) = (!section.files.is_empty(), !section.hosts.is_empty());
    let arguments = !section.arguments.is_empty();
    let kinds = [("hosts", hosts), ("files", files), ("arguments", arguments), ("prefix", command)];
    let mut entries = kinds.iter().filter(|(_, is_set)| *is_set);
    if let (Some((key, _)), Some(_)) = (entries.next(), entries.next()) {
        return fail_at_key(key, "a rule is about one kind of object: commands, tool calls, files or hosts");
    }
    if arguments && section.tool.is_empty() {
        return fail_at_key("arguments", "`arguments` needs a `tool`: add it");
    }
    if !section.operations.is_empty() && !files {
        return fail_at_key("operations", "`operations` needs `files`: add them");
    }
    if section.effect == PolicyVerdict::Allow && !(command || files || hosts || !section.tool.is_empty()) {
        return fail_at_key(
            "effect",
            "an `allow` rule names what it allows: give a `prefix`, `tool`, `files` or `hosts`",
        );
    }
    match (command, files, hosts, arguments) {
        (true, ..) => Ok(RuleKind::Command),
        (_, true, ..) => Ok(RuleKind::File),
        (_, _, true, _) => Ok(RuleKind::Host),
        (_, _, _, true) => Ok(RuleKind::Tool),
        _ if format_context(section).is_empty() => fail_at_key(
            "prefix",
            "a rule needs a subject: `prefix` (1 to 32 words, the program first), `glob`, `tool`, `files`, `hosts` ...",
        ),
        _ => Ok(RuleKind::Anything),
    }
}

/// Returns every given key as `key=value`, in the order of the schema.
pub(crate) fn format_section(section: &RuleSection) -> String {
    let mut parts = vec![section.effect.to_string()];
    parts.extend(section.name.iter().map(|name| format!("name={}", name.0)));
    parts.extend(format_list("prefix", &section.prefix));
    parts.extend(format_list("glob", &section.glob));
    parts.extend(format_list("options.present", &section.options.present));
    parts.extend(format_list("options.absent", &section.options.absent));
    parts.extend(format_facts(&section.facts));
    for (name, texts) in &section.arguments {
        parts.extend(format_list(&format!("arguments.{name}"), texts));
    }
    parts.extend(format_list("files", &section.files));
    let operations: Vec<String> = section.operations.iter().map(|o| format!("{o:?}").to_lowercase()).collect();
    parts.extend(format_list("operations", &operations));
    parts.extend(format_list("hosts", &section.hosts));
    parts.extend(format_context(section));
    parts.extend(section.profile.iter().map(|name| format!("profile={}", name.0)));
    parts.extend(format_list("grants", &grants_of(section).collect::<Vec<_>>()));
    parts.extend(section.approver.iter().map(|name| format!("approver={}", format!("{name:?}").to_lowercase())));
    parts.extend(section.limits.to_limits().iter_limits().map(|(limit, amount)| format!("{}={amount}", limit.key())));
    format!("{}: {}", parts.join(" "), section.justification)
}

fn format_context(section: &RuleSection) -> Vec<String> {
    let lists = [
        format_list("tool", &section.tool),
        format_list("cwd", &section.cwd),
        format_list("user", &section.user),
        format_list("session", &section.session),
        format_list("time", &section.time),
    ];
    lists.into_iter().flatten().collect()
}

fn format_facts(facts: &FactsSection) -> Vec<String> {
    let lists = [
        format_list("facts.reads", &facts.reads),
        format_list("facts.writes", &facts.writes),
        format_list("facts.deletes", &facts.deletes),
        format_list("facts.executes", &facts.executes),
        format_list("facts.network", &facts.network),
        format_list("facts.findings", &facts.findings),
        facts.secrets.map(|flag| format!("facts.secrets={flag}")),
        facts.privilege.map(|flag| format!("facts.privilege={flag}")),
    ];
    lists.into_iter().flatten().collect()
}

fn format_list<T: fmt::Display>(key: &str, items: &[T]) -> Option<String> {
    let texts: Vec<String> = items.iter().map(T::to_string).collect();
    (!texts.is_empty()).then(|| format!("{key}={texts:?}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use stockade_model::{Assessment, Tier};

    use super::*;
    use crate::words::{self, CommandWords};

    static ASK: Assessment = Assessment::without_findings(Tier::Ask);

    fn rule(text: &str, effect: &str) -> PolicyRule {
        let text = format!("{text}\neffect = \"{effect}\"\njustification = \"j\"");
        PolicyRule::new(&toml::from_str(&text).unwrap(), ValueOrigin::Default).unwrap()
    }

    fn prefix(words: &[&str], effect: &str) -> PolicyRule {
        rule(&format!("prefix = {words:?}"), effect)
    }

    fn scene<'a>(words: &'a CommandWords, around: &'a RequestContext) -> RuleInput<'a> {
        RuleInput {
            subject: RuleSubject::Command { words, assessment: &ASK },
            cwd: Path::new("/w"),
            workspace: Path::new("/w"),
            home: Path::new("/home/u"),
            session: None,
            around,
            example: false,
        }
    }

    #[track_caller]
    fn check(rule: &PolicyRule, script: &str, expected: RuleMatch) {
        let (words, around) = (words::of_script(script.as_bytes()), RequestContext::default());
        assert_eq!(rule.match_input(&scene(&words, &around)), expected, "{} {script:?}", rule.canonical_text());
    }

    #[test]
    fn deny_sees_every_command_and_spelling() {
        let deny = prefix(&["git", "push"], "deny");
        for script in ["git push", "git push -f", "ls; git push", "/usr/bin/git push", "g'i't \"push\"", "a|git push"] {
            check(&deny, script, RuleMatch::Certain);
        }
        for script in ["sudo -u x git push", "timeout -k 1 30 git push", "env A=b nice -n 5 git push", "xargs git push"]
        {
            check(&deny, script, RuleMatch::Certain);
        }
        for script in
            ["sudo -s git push", "$(git push)", "bash -c 'git push $X'", "git pu\\sh", "if git push; then :; fi"]
        {
            check(&deny, script, RuleMatch::Possible);
        }
        for script in ["git pull", "git", "echo 'git push'", "git pushy", "git -C x push", "widget push"] {
            check(&deny, script, RuleMatch::No);
        }
    }

    #[test]
    fn allow_is_exact_and_covers_everything_or_nothing() {
        let rules = vec![prefix(&["make"], "allow"), prefix(&["npm", "test"], "allow")];
        let mut book = RuleBook::default();
        book.push(RuleSet { combining: Default::default(), rules });
        let around = RequestContext::default();
        let allows = |words: CommandWords| !book.match_rules(&scene(&words, &around)).allowed.is_empty();
        let allowed = |script: &str| allows(words::of_script(script.as_bytes()));
        assert!(allowed("make"));
        assert!(allowed("make -j2 && npm test"));
        for script in [
            "./make",
            "/usr/bin/make",
            "make; ls",
            "make > x",
            "PATH=. make",
            "make $X",
            "npm install",
            "",
            "make & npm test",
            "make &",
        ] {
            assert!(!allowed(script), "{script}");
        }
        let argv = |entries: &[&str]| words::of_argv(&entries.iter().map(|word| Some(*word)).collect::<Vec<_>>());
        assert!(allows(argv(&["make", "$x", ";"])));
        assert!(!allows(argv(&["sh", "-c", "make"])));
        assert!(!allows(argv(&[])));
    }

    #[test]
    fn globs_see_the_whole_command() {
        let deny = rule("glob = [\"git * main\"]", "deny");
        check(&deny, "git push origin main", RuleMatch::Certain);
        check(&deny, "/usr/bin/git push main", RuleMatch::Certain);
        check(&deny, "ls && git merge main", RuleMatch::Certain);
        check(&deny, "git push origin maint", RuleMatch::No);
        check(&deny, "sudo git push main", RuleMatch::Certain);
        check(&rule("glob = [\"*\"]", "deny"), "ls $(x)", RuleMatch::Certain);
        let allow = rule("glob = [\"git status*\"]", "allow");
        check(&allow, "git status -s", RuleMatch::Certain);
        check(&allow, "'git status' -s", RuleMatch::No);
        check(&allow, "./git status", RuleMatch::No);
    }

    #[test]
    fn options_count_in_any_order() {
        let deny = rule(
            "prefix = [\"rm\"]\noptions.present = [[\"-r\", \"-R\", \"--recursive\"], [\"-f\", \"--force\"]]",
            "deny",
        );
        for script in ["rm -rf x", "rm -fr x", "rm x -r -f", "rm --force --recursive x", "rm -vRf x"] {
            check(&deny, script, RuleMatch::Certain);
        }
        check(&deny, "rm --forc -r x", RuleMatch::Possible);
        check(&deny, "rm -r x -- -f", RuleMatch::Possible);
        check(&deny, "sudo rm -rf x", RuleMatch::Certain);
        check(&deny, "rm -r x", RuleMatch::No);
        let allow = rule("prefix = [\"sort\"]\noptions.absent = [[\"-o\", \"--output\"]]", "allow");
        check(&allow, "sort -n x", RuleMatch::Certain);
        check(&allow, "sort -no x", RuleMatch::Possible);
        check(&allow, "sort --outp=x", RuleMatch::Possible);
        check(&allow, "sort -o x", RuleMatch::No);
    }
}
