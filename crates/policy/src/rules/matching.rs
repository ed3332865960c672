//! Matches a rule with its subject: each condition separately, then all of them together.
//!
//! Pure; the time is the length of the rule times that of the subject.

use std::borrow::Cow;
use std::path::Path;

use super::facts::{self, host_fits};
use super::options::present;
use super::{Act, Match, Matcher, Rule, Scene, Subject};
use crate::file::{FileOperation, OptionsSection};
use crate::glob::text_matches;
use crate::pattern::{PathPattern, Word};
use crate::words::{Words, base_name};

/// Explanation for a rule of another kind.
const ELSEWHERE: &str = "it speaks of something else";

impl Rule {
    /// Returns whether the rule matches the whole scene: any command of it, or words in text that is not
    /// plain.
    pub(crate) fn speaks(&self, scene: &Scene<'_>) -> Match {
        let Subject::Command { words, .. } = scene.subject else { return self.speaks_of(scene, &[]) };
        if !self.is_per_command() {
            return Match::certain_if(self.is_about(scene)).min(self.around(scene));
        }
        if self.raises() && self.is_every_command() {
            return self.around(scene);
        }
        let inner = words.inner.iter().filter(|_| self.raises());
        let certain =
            words.commands.iter().chain(inner).map(|command| self.of_command(command)).max().unwrap_or(Match::No);
        let own = if certain == Match::No { self.loosely(words) } else { certain };
        own.min(self.around(scene))
    }

    /// Returns whether the rule matches one command of the scene, or the act if the subject is one.
    pub(crate) fn speaks_of(&self, scene: &Scene<'_>, command: &[String]) -> Match {
        let own = match scene.subject {
            Subject::Command { .. } if self.is_per_command() => self.of_command(command),
            Subject::Command { .. } => Match::certain_if(self.is_about(scene)),
            Subject::Act(act) => self.of_act(act, scene),
        };
        own.min(self.around(scene))
    }

    /// Returns whether the rule matches any command, understood or not.
    pub(super) fn is_every_command(&self) -> bool {
        matches!(&self.matcher, Matcher::Command { prefix, glob, options, .. }
            if prefix.is_empty() && options.present.is_empty() && options.absent.is_empty()
                && glob.iter().any(|glob| glob == "*"))
    }

    /// Returns whether the rule matches single commands.
    pub(crate) fn is_per_command(&self) -> bool {
        match &self.matcher {
            Matcher::Command { prefix, glob, options, .. } => {
                !(prefix.is_empty() && glob.is_empty() && options.present.is_empty() && options.absent.is_empty())
            }
            _ => false,
        }
    }

    /// Matches one command. An allow rule means exactly its program: `./git` is not `git`. The other rules
    /// mean every program of that name.
    fn of_command(&self, command: &[String]) -> Match {
        let Matcher::Command { prefix, glob, options, .. } = &self.matcher else { return Match::No };
        let Some((program, arguments)) = command.split_first() else { return Match::No };
        let program: Cow<'_, str> = program.into();
        let is_program = |wanted: &Word| {
            wanted.is(&program)
                || (self.raises() && wanted.alternatives().iter().any(|own| base_name(own) == base_name(&program)))
        };
        let starts = match prefix.split_first() {
            None => true,
            Some((first, rest)) => {
                is_program(first)
                    && arguments.len() >= rest.len()
                    && rest.iter().zip(arguments).all(|(wanted, argument)| wanted.is(argument))
            }
        };
        if !starts || !self.globs_match(glob, command) {
            return Match::No;
        }
        self.options_fit(options, arguments)
    }

    fn globs_match(&self, globs: &[String], command: &[String]) -> bool {
        if globs.is_empty() {
            return true;
        }
        let whole = joined(command);
        let short = self.raises().then(|| {
            let mut named = command.to_vec();
            named[0] = base_name(&command[0]).to_owned();
            joined(&named)
        });
        globs.iter().any(|glob| text_matches(glob, &whole) || short.as_ref().is_some_and(|s| text_matches(glob, s)))
    }

    fn options_fit(&self, options: &OptionsSection, arguments: &[String]) -> Match {
        let there = options.present.iter().map(|option| present(option, arguments, self.raises()));
        // The absence of an option must be equally certain for both kinds of rules.
        let missing = options.absent.iter().map(|option| present(option, arguments, false).negated());
        there.chain(missing).min().unwrap_or(Match::Certain)
    }

    /// Matches the words of commands behind a wrapper, certainly or possibly.
    pub(super) fn behind(&self, words: &Words) -> Match {
        let inner = words.inner.iter().filter(|_| self.raises()).map(|command| self.of_command(command));
        inner.max().unwrap_or(Match::No).max(self.loosely(words))
    }

    /// Searches the rule's words among all words of a text that is not plain, or behind a program that runs
    /// others. Such a match never allows.
    pub(super) fn loosely(&self, words: &Words) -> Match {
        let Matcher::Command { prefix, glob, options, .. } = &self.matcher else { return Match::No };
        if !self.raises() || words.loose.is_empty() {
            return Match::No;
        }
        let named = |at: &[String]| {
            let program = prefix[0].alternatives().iter().any(|own| base_name(own) == base_name(&at[0]));
            program && prefix[1..].iter().zip(&at[1..]).all(|(wanted, word)| wanted.is(word))
        };
        let starts = prefix.is_empty() || words.loose.windows(prefix.len()).any(named);
        let text = format!(" {} ", words.loose.join(" "));
        let globbed = glob.is_empty() || glob.iter().any(|glob| text_matches(format!("* {glob} *"), &text));
        let optioned = options.present.iter().all(|option| present(option, &words.loose, true) > Match::No);
        if starts && globbed && optioned { Match::Possible } else { Match::No }
    }

    fn of_act(&self, act: Act<'_>, scene: &Scene<'_>) -> Match {
        match (&self.matcher, act) {
            (Matcher::Anything, _) => Match::Certain,
            (Matcher::Tool { arguments }, Act::Tool { arguments: given, .. }) => Match::certain_if(
                arguments.iter().all(|(name, texts)| argument_fits(given, name, texts, self.raises())),
            ),
            (Matcher::Files { files, operations }, Act::File { path, operation }) => {
                Match::certain_if(self.operation_fits(operations, operation)).min(self.path_fits(files, path, scene))
            }
            (Matcher::Hosts { hosts }, Act::Network { host, port }) => host_fits(hosts, host, port, self.raises()),
            _ => Match::No,
        }
    }

    fn operation_fits(&self, operations: &[FileOperation], operation: FileOperation) -> bool {
        if operations.is_empty() { operation != FileOperation::Read } else { operations.contains(&operation) }
    }

    fn path_fits(&self, files: &[PathPattern], path: &Path, scene: &Scene<'_>) -> Match {
        if !path.is_absolute() || path.components().any(|c| c == std::path::Component::ParentDir) {
            return Match::Possible;
        }
        Match::certain_if(files.iter().any(|pattern| pattern.covers(path, scene.home, scene.workspace)))
    }

    /// Matches facts, directory, user, session, tool and time.
    pub(crate) fn around(&self, scene: &Scene<'_>) -> Match {
        let context = &self.context;
        let tool = named(&context.tool, Some(scene.tool()));
        // An example is a command only, without circumstances.
        if scene.example {
            return match scene.subject {
                Subject::Act(Act::Tool { .. }) => tool,
                _ => Match::Certain,
            };
        }
        let mut all = tool;
        if let (Matcher::Command { facts, .. }, Subject::Command { assessment, .. }) = (&self.matcher, scene.subject) {
            all = all.min(facts::fit(facts, assessment, scene, self.raises()));
        }
        if !context.cwd.is_empty() {
            let inside = context.cwd.iter().any(|dir| dir.covers(scene.cwd, scene.home, scene.workspace));
            all = all.min(Match::certain_if(inside));
        }
        if !context.time.is_empty() {
            let now = scene.around.time_ms;
            all = all.min(match now {
                Some(now) => Match::certain_if(context.time.iter().any(|window| window.holds(now))),
                None => Match::Possible,
            });
        }
        // Without a session, no rule for a session name matches.
        let session = scene.session.map_or("", |session| session.as_str());
        all.min(named(&context.user, scene.around.user.as_deref())).min(named(&context.session, Some(session)))
    }

    fn is_about(&self, scene: &Scene<'_>) -> bool {
        matches!(
            (&self.matcher, scene.subject),
            (Matcher::Anything, _)
                | (Matcher::Command { .. }, Subject::Command { .. })
                | (Matcher::Tool { .. }, Subject::Act(Act::Tool { .. }))
                | (Matcher::Files { .. }, Subject::Act(Act::File { .. }))
                | (Matcher::Hosts { .. }, Subject::Act(Act::Network { .. }))
        )
    }

    /// Returns the first condition that does not hold, for an explanation.
    pub(crate) fn failing(&self, scene: &Scene<'_>) -> &'static str {
        let context = &self.context;
        let without = Scene { example: true, ..*scene };
        if self.speaks(&without) == Match::No {
            return if self.is_about(scene) { "what it names is another" } else { ELSEWHERE };
        }
        if named(&context.tool, Some(scene.tool())) == Match::No {
            "the tool is another"
        } else if !context.cwd.is_empty()
            && !context.cwd.iter().any(|dir| dir.covers(scene.cwd, scene.home, scene.workspace))
        {
            "the directory is another"
        } else if named(&context.user, scene.around.user.as_deref()) == Match::No {
            "the user is another"
        } else if named(&context.session, Some(scene.session.map_or("", |s| s.as_str()))) == Match::No {
            "the session is another"
        } else if scene.around.time_ms.is_some_and(|now| !context.time.iter().any(|window| window.holds(now)))
            && !context.time.is_empty()
        {
            "the time is another"
        } else {
            "the facts are others"
        }
    }
}

/// Returns whether a name is one of the given; an unknown name is a possible match.
fn named(wanted: &[String], name: Option<&str>) -> Match {
    match name {
        _ if wanted.is_empty() => Match::Certain,
        Some("") => Match::No,
        Some(name) => Match::certain_if(wanted.iter().any(|pattern| text_matches(pattern, name))),
        None => Match::Possible,
    }
}

/// Joins words by blanks. A word that is empty or contains a blank or a quote is quoted, so that it cannot
/// be mistaken for several.
pub(crate) fn joined(command: &[String]) -> String {
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
fn argument_fits(given: &serde_json::Value, name: &str, texts: &[String], raising: bool) -> bool {
    let mut value = given;
    // A name that contains a dot has precedence over a path.
    if let Some(direct) = given.get(name) {
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
