//! Matches a rule with its subject: each condition separately, then all of them together.
//!
//! Pure; the time is the length of the rule times that of the subject.

use std::borrow::Cow;
use std::path::Path;

use super::facts::{self, host_fits, match_plain_path};
use super::options::match_option;
use super::{Act, PolicyRule, RuleInput, RuleKind, RuleMatch, RuleSubject};
use crate::file::{FileOperation, OptionsSection, RuleSection};
use crate::glob::text_matches;
use crate::pattern::{PathPattern, WordPattern};
use crate::words::{CommandWords, base_name};

/// Explanation for a rule of another kind.
const OTHER_SUBJECT_REASON: &str = "it is about something else";
/// Explanation for a rule whose facts do not hold.
const OTHER_FACTS_REASON: &str = "the facts do not match";

impl PolicyRule {
    /// Returns whether the rule matches the whole scene: any command of it, or words in text that is not
    /// plain.
    pub(crate) fn match_input(&self, scene: &RuleInput<'_>) -> RuleMatch {
        let RuleSubject::Command { words, .. } = scene.subject else { return self.speaks_of(scene, &[]) };
        if !self.is_per_command() {
            return RuleMatch::certain_if(self.is_about(scene)).min(self.match_conditions(scene));
        }
        if self.raises_caution() && self.is_every_command() {
            return self.match_conditions(scene);
        }
        let inner = words.inner.iter().filter(|_| self.raises_caution());
        let certain =
            words.commands.iter().chain(inner).map(|command| self.of_command(command)).max().unwrap_or(RuleMatch::No);
        let own = if certain == RuleMatch::No { self.match_loosely(words) } else { certain };
        own.min(self.match_conditions(scene))
    }

    /// Returns whether the rule matches one command of the scene, or the act if the subject is one.
    pub(crate) fn speaks_of(&self, scene: &RuleInput<'_>, command: &[String]) -> RuleMatch {
        let own = match scene.subject {
            RuleSubject::Command { .. } if self.is_per_command() => self.of_command(command),
            RuleSubject::Command { .. } => RuleMatch::certain_if(self.is_about(scene)),
            RuleSubject::Act(act) => self.of_act(act, scene),
        };
        own.min(self.match_conditions(scene))
    }

    /// Returns whether the rule matches any command, understood or not.
    pub(super) fn is_every_command(&self) -> bool {
        let RuleSection { prefix, glob, options, .. } = &self.section;
        let is_bare = prefix.is_empty() && options.present.is_empty() && options.absent.is_empty();
        is_bare && glob.iter().any(|glob| glob == "*")
    }

    /// Returns whether the rule matches single commands.
    pub(crate) fn is_per_command(&self) -> bool {
        self.section.names_commands()
    }

    /// Matches one command. An allow rule means exactly its program: `./git` is not `git`. The other rules
    /// mean every program of that name.
    fn of_command(&self, command: &[String]) -> RuleMatch {
        let RuleSection { prefix, glob, options, .. } = &self.section;
        if self.kind != RuleKind::Command {
            return RuleMatch::No;
        }
        let Some((program, arguments)) = command.split_first() else { return RuleMatch::No };
        let program: Cow<'_, str> = program.into();
        let is_program = |expected: &WordPattern| {
            expected.matches_word(&program)
                || (self.raises_caution()
                    && expected.alternatives().iter().any(|own| base_name(own) == base_name(&program)))
        };
        let starts = match prefix.split_first() {
            None => true,
            Some((first, rest)) => {
                is_program(first)
                    && arguments.len() >= rest.len()
                    && rest.iter().zip(arguments).all(|(expected, argument)| expected.matches_word(argument))
            }
        };
        if !starts || !self.globs_match(glob, command) {
            return RuleMatch::No;
        }
        self.options_fit(options, arguments)
    }

    fn globs_match(&self, globs: &[String], command: &[String]) -> bool {
        if globs.is_empty() {
            return true;
        }
        let whole = join_words(command);
        let short = self.raises_caution().then(|| {
            let mut named = command.to_vec();
            named[0] = base_name(&command[0]).to_owned();
            join_words(&named)
        });
        globs.iter().any(|glob| text_matches(glob, &whole) || short.as_ref().is_some_and(|s| text_matches(glob, s)))
    }

    fn options_fit(&self, options: &OptionsSection, arguments: &[String]) -> RuleMatch {
        let there = options.present.iter().map(|option| match_option(option, arguments, self.raises_caution()));
        // The absence of an option must be equally certain for both kinds of rules.
        let missing = options.absent.iter().map(|option| match_option(option, arguments, false).negate_match());
        there.chain(missing).min().unwrap_or(RuleMatch::Certain)
    }

    /// Matches the words of commands behind a wrapper, certainly or possibly.
    pub(super) fn match_behind_wrapper(&self, words: &CommandWords) -> RuleMatch {
        let inner = words.inner.iter().filter(|_| self.raises_caution()).map(|command| self.of_command(command));
        inner.max().unwrap_or(RuleMatch::No).max(self.match_loosely(words))
    }

    /// Searches the rule's words among all words of a text that is not plain, or behind a program that runs
    /// others. Such a match never allows.
    pub(super) fn match_loosely(&self, words: &CommandWords) -> RuleMatch {
        let RuleSection { prefix, glob, options, .. } = &self.section;
        if self.kind != RuleKind::Command || !self.raises_caution() || words.loose.is_empty() {
            return RuleMatch::No;
        }
        let named = |at: &[String]| {
            let program = prefix[0].alternatives().iter().any(|own| base_name(own) == base_name(&at[0]));
            program && prefix[1..].iter().zip(&at[1..]).all(|(expected, word)| expected.matches_word(word))
        };
        let starts = prefix.is_empty() || words.loose.windows(prefix.len()).any(named);
        let text = format!(" {} ", words.loose.join(" "));
        let globbed = glob.is_empty() || glob.iter().any(|glob| text_matches(format!("* {glob} *"), &text));
        let optioned = options.present.iter().all(|option| match_option(option, &words.loose, true) > RuleMatch::No);
        if starts && globbed && optioned { RuleMatch::Possible } else { RuleMatch::No }
    }

    fn of_act(&self, act: Act<'_>, scene: &RuleInput<'_>) -> RuleMatch {
        let RuleSection { arguments, files, operations, hosts, .. } = &self.section;
        let raises = self.raises_caution();
        match (self.kind, act) {
            (RuleKind::Anything, _) => RuleMatch::Certain,
            (RuleKind::Tool, Act::Tool { arguments: call_arguments, .. }) => RuleMatch::certain_if(
                arguments.iter().all(|(name, texts)| argument_fits(call_arguments, name, texts, raises)),
            ),
            (RuleKind::File, Act::File { path, operation }) => {
                let is_default = operations.is_empty() && operation != FileOperation::Read;
                let fits = |path: &Path| files.iter().any(|pattern| pattern.covers(path, scene.home, scene.workspace));
                RuleMatch::certain_if(is_default || operations.contains(&operation)).min(match_plain_path(path, fits))
            }
            (RuleKind::Host, Act::Network { host, port }) => host_fits(hosts, host, port, raises),
            _ => RuleMatch::No,
        }
    }

    /// Matches facts, directory, user, session, tool and time.
    pub(crate) fn match_conditions(&self, scene: &RuleInput<'_>) -> RuleMatch {
        // An example is a command only, without circumstances.
        if scene.example {
            return match scene.subject {
                RuleSubject::Act(Act::Tool { .. }) => match_name(&self.section.tool, Some(scene.tool_name())),
                _ => RuleMatch::Certain,
            };
        }
        self.conditions(scene).into_iter().map(|(_, found)| found).min().unwrap_or(RuleMatch::Certain)
    }

    /// Returns the match of each condition, with the explanation if it does not hold.
    fn conditions(&self, scene: &RuleInput<'_>) -> [(&'static str, RuleMatch); 6] {
        let context = &self.section;
        let is_inside = |dir: &PathPattern| dir.covers(scene.cwd, scene.home, scene.workspace);
        let is_in_cwd = context.cwd.is_empty() || context.cwd.iter().any(is_inside);
        let time = match scene.around.time_ms {
            _ if context.time.is_empty() => RuleMatch::Certain,
            Some(now) => RuleMatch::certain_if(context.time.iter().any(|window| window.includes_time(now))),
            None => RuleMatch::Possible,
        };
        let facts = match (self.kind, scene.subject) {
            (RuleKind::Command, RuleSubject::Command { assessment, .. }) => {
                facts::match_facts(&context.facts, assessment, scene, self.raises_caution())
            }
            _ => RuleMatch::Certain,
        };
        // Without a session, no rule for a session name matches.
        let session = scene.session.map_or("", |session| session.as_str());
        [
            ("the tool does not match", match_name(&context.tool, Some(scene.tool_name()))),
            ("the directory does not match", RuleMatch::certain_if(is_in_cwd)),
            ("the user does not match", match_name(&context.user, scene.around.user.as_deref())),
            ("the session does not match", match_name(&context.session, Some(session))),
            ("the time does not match", time),
            (OTHER_FACTS_REASON, facts),
        ]
    }

    fn is_about(&self, scene: &RuleInput<'_>) -> bool {
        let kind = match scene.subject {
            RuleSubject::Command { .. } => RuleKind::Command,
            RuleSubject::Act(Act::Tool { .. }) => RuleKind::Tool,
            RuleSubject::Act(Act::File { .. }) => RuleKind::File,
            RuleSubject::Act(Act::Network { .. }) => RuleKind::Host,
        };
        self.kind == RuleKind::Anything || self.kind == kind
    }

    /// Returns the first condition that does not hold, for an explanation.
    pub(crate) fn find_failing_condition(&self, scene: &RuleInput<'_>) -> &'static str {
        let without = RuleInput { example: true, ..*scene };
        if self.match_input(&without) == RuleMatch::No {
            return if self.is_about(scene) { "the object does not match" } else { OTHER_SUBJECT_REASON };
        }
        let failing = self.conditions(scene).into_iter().find(|(_, found)| *found == RuleMatch::No);
        failing.map_or(OTHER_FACTS_REASON, |(reason, _)| reason)
    }
}

/// Returns whether a name is one of the given; an unknown name is a possible match.
fn match_name(expected: &[String], name: Option<&str>) -> RuleMatch {
    match name {
        _ if expected.is_empty() => RuleMatch::Certain,
        Some("") => RuleMatch::No,
        Some(name) => RuleMatch::certain_if(expected.iter().any(|pattern| text_matches(pattern, name))),
        None => RuleMatch::Possible,
    }
}

/// Joins words by blanks. A word that is empty or contains a blank or a quote is quoted, so that it cannot
/// be mistaken for several.
pub(crate) fn join_words(command: &[String]) -> String {
    let mut text = String::new();
    for word in command {
        if !text.is_empty() {
            text.push(' ');
        }
        if word.is_empty() || word.contains(|c: char| c.is_whitespace() || c == '\'' || c == '"') {
            text.push('\'');
            text.push_str(&word.replace('\'', "'\\''"));
            text.push('\'');
        } else {
            text.push_str(word);
        }
    }
    text
}

/// Returns whether the argument `a.b` exists with one of the texts. A value other than a string is compared
/// in its JSON form. For a list, a rule that raises caution needs one matching entry, and a rule that
/// allows needs every entry to match.
fn argument_fits(call_arguments: &serde_json::Value, name: &str, texts: &[String], raising: bool) -> bool {
    let mut value = call_arguments;
    // A name that contains a dot has precedence over a path.
    if let Some(direct) = call_arguments.get(name) {
        value = direct;
    } else {
        for part in name.split('.') {
            match value.get(part) {
                Some(inner) => value = inner,
                None => return false,
            }
        }
    }
    let fits = |value: &serde_json::Value| {
        let text = value.as_str().map_or_else(|| Cow::Owned(value.to_string()), Cow::Borrowed);
        texts.iter().any(|pattern| text_matches(pattern, &*text))
    };
    match value {
        serde_json::Value::Array(items) if raising => items.iter().any(fits),
        serde_json::Value::Array(items) => items.iter().all(fits),
        other => fits(other),
    }
}
