//! Effects that no sandbox contains or that cannot be undone: forced pushes, publications,
//! clusters, accounts, databases. The table is data in `knowledge/impacts.toml`; this module
//! matches it. It must not depend on the approver.

use stockade_model::Impact;

use crate::classify::Classifier;
use crate::invocation::Invocation;
use crate::knowledge::impacts::{self, Options, ProgramUse};
use crate::script::{DynamicValue, WordAtom};
use crate::words::{DataFlow, ExpandedArgument};

use super::hazards::matches_word;

/// Least length of an abbreviated long option, dashes included.
const MIN_ABBREVIATION: usize = 4;
/// Most words of statements that are read.
const MAX_STATEMENT_WORDS: usize = 4096;

/// Returns the impact of a denied use.
pub(crate) fn of_denial(code: &str) -> Impact {
    match code {
        "exfiltration"
        | "reverse-shell"
        | "persistence"
        | "privilege-escalation"
        | "weakens-protection"
        | "changes-kernel"
        | "stops-machine" => Impact::Outward,
        "destroys-disk" | "destroys-system" | "destroys-home" | "wipes-log" => Impact::Irreversible,
        _ => Impact::Workspace,
    }
}

/// Effects that need no consent when a program starts: git's settings are classified by their
/// values when they are written.
const CLASSIFIED_ELSEWHERE: &[&str] = &["configures-program"];

/// Returns whether a program of this name may have an effect that needs consent.
pub(crate) fn is_known(program: &[u8]) -> bool {
    impacts::program_uses(program).next().is_some()
}

/// Returns the effects of a program with these arguments: codes and their messages.
pub(crate) fn of_program(program: &[u8], arguments: &[Vec<u8>]) -> Vec<(&'static str, &'static str)> {
    let arguments = arguments.iter().map(|text| ExpandedArgument::from_bytes(text, (0, 0))).collect();
    let invocation = Invocation::new(program.to_owned(), false, arguments, DataFlow::default(), (0, 0));
    let line = InvocationLine::from_invocation(&invocation);
    let is_had = |known: &&ProgramUse| !line.is_dry_run(known) && matches!(line.match_use(known), UseMatch::Yes);
    let mut codes: Vec<_> = impacts::program_uses(program).filter(is_had).map(|known| known.code).collect();
    codes.retain(|code| !CLASSIFIED_ELSEWHERE.contains(code));
    codes.sort_unstable();
    codes.dedup();
    codes.into_iter().map(|code| (code, impacts::code_impact(code).1)).collect()
}

/// Records the effect with this code.
pub(crate) fn record_impact(classifier: &mut Classifier, code: &str, at: (usize, usize)) {
    let (impact, message) = impacts::code_impact(code);
    classifier.record_effect(impact, code, message, at);
}

/// Classifies a command by the table.
pub(super) fn classify_impacts(classifier: &mut Classifier, invocation: &Invocation) {
    if matches!(invocation.name.as_slice(), b"export" | b"declare" | b"typeset") {
        for argument in &invocation.arguments {
            let text = argument.display_bytes();
            if let Some(split) = text.iter().position(|b| *b == b'=') {
                classify_variable(classifier, &text[..split], &argument.skip_atoms(split + 1), invocation.span);
            }
        }
    }
    let mut uses = impacts::program_uses(&invocation.name).peekable();
    if uses.peek().is_none() {
        return;
    }
    let line = InvocationLine::from_invocation(invocation);
    let mut unknown = false;
    for known in uses {
        if line.is_dry_run(known) {
            continue;
        }
        match line.match_use(known) {
            UseMatch::Yes => {
                record_impact(classifier, known.code, invocation.span);
                classifier.effects.insert((known.code, invocation.name.clone()));
            }
            UseMatch::Unknown => unknown = true,
            UseMatch::No => {}
        }
    }
    if unknown && line.options.acts {
        record_impact(classifier, "unknown-action", invocation.span);
    }
}

/// Classifies a variable that may name a package index.
pub(crate) fn classify_variable(
    classifier: &mut Classifier,
    name: &[u8],
    value: &ExpandedArgument,
    at: (usize, usize),
) {
    let Some(variables) = impacts::variable_group(name) else { return };
    if value.display_bytes().split(|b| b" ,|".contains(b)).any(|part| is_foreign(part, variables.hosts)) {
        record_impact(classifier, variables.code, at);
    }
}

/// Returns whether a value names, or may name, a host that is not in the list.
fn is_foreign(value: &[u8], hosts: &[&str]) -> bool {
    if value.starts_with(b"file:") {
        return false;
    }
    if !value.windows(3).any(|w| w == b"://") {
        return value.first() == Some(&crate::words::UNKNOWN_BYTE);
    }
    let host = crate::readers::host_name(value);
    host.is_none_or(|host| !hosts.iter().any(|known| known.as_bytes() == host))
}

/// Returns whether the value is an address of this machine.
fn is_loopback(value: &[u8]) -> bool {
    let host = crate::readers::host_name(value);
    host.is_some_and(|host| host == b"localhost" || host == b"127.0.0.1")
}

enum UseMatch {
    No,
    Yes,
    /// The subcommand is not in the text.
    Unknown,
}

/// Role of a word on the command line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WordRole {
    Option,
    /// Value of the option before it.
    Value,
    Operand,
    /// An operand, or the value of the unknown option before it.
    Either,
}

struct InvocationWord<'a> {
    role: WordRole,
    text: &'a [u8],
    argument: &'a ExpandedArgument,
}

/// A command line with the role of each word.
struct InvocationLine<'a> {
    options: &'static Options,
    words: Vec<InvocationWord<'a>>,
    invocation: &'a Invocation,
}

impl<'a> InvocationLine<'a> {
    fn from_invocation(invocation: &'a Invocation) -> Self {
        let options = impacts::program_options(&invocation.name);
        let mut words: Vec<InvocationWord<'a>> = Vec::with_capacity(invocation.arguments.len());
        let (mut ended, mut wants_value, mut may_want) = (false, false, false);
        for (argument, text) in invocation.arguments.iter().zip(invocation.known_texts()) {
            let is_option = !ended && text.len() > 1 && text[0] == b'-';
            let role = match (wants_value, is_option, may_want) {
                (true, ..) => WordRole::Value,
                (false, true, _) => WordRole::Option,
                (false, false, true) => WordRole::Either,
                (false, false, false) => WordRole::Operand,
            };
            ended |= role == WordRole::Option && text == b"--";
            let takes_none = ended || text.contains(&b'=') || has_text(options.flags, text);
            wants_value = role == WordRole::Option && has_text(options.valued, text);
            may_want = role == WordRole::Option && !wants_value && !takes_none;
            if text != b"--" || role != WordRole::Option {
                words.push(InvocationWord { role, text, argument });
            }
        }
        Self { options, words, invocation }
    }

    /// Returns whether an option makes this use a dry run. An option counts only if it cannot be
    /// the value of the one before it.
    fn is_dry_run(&self, known: &ProgramUse) -> bool {
        let mut may_want = false;
        let mut found = false;
        // `-h` asks for help, unless a word follows that it could be an option for.
        let last = self.words.last().filter(|word| word.role == WordRole::Option);
        if last.is_some_and(|word| matches!(word.text, b"-h" | b"-help") && !self.has_known_option(word.text)) {
            return true;
        }
        for word in &self.words {
            if word.role == WordRole::Option {
                let is_listed =
                    word.text == b"--help" || known.unless.iter().any(|own| self.is_dry_run_option(own, word.text));
                let name = name_of(word.text);
                let spoils = known.spoils.iter().any(|option| is_option(option, word.text, self.options));
                // `--dry-run=none`
                let is_other = !is_listed && known.unless.iter().any(|u| name_of(u.as_bytes()) == name);
                if spoils || is_other {
                    return false;
                }
                found |= is_listed && !may_want;
                let is_flag = has_text(self.options.flags, word.text)
                    || is_listed
                    || known.needs.iter().flat_map(|group| group.iter()).any(|need| need.as_bytes() == word.text);
                may_want = !is_flag && !word.text.contains(&b'=');
            } else {
                may_want = false;
                // `--dry-run false`
                if found && matches!(word.text, b"false" | b"none" | b"0" | b"no") {
                    return false;
                }
            }
        }
        found
    }

    /// Returns whether the program has an option of this name.
    fn has_known_option(&self, option: &[u8]) -> bool {
        has_text(self.options.flags, option) || has_text(self.options.valued, option)
    }

    /// Returns whether a word is the option for a dry run: complete, with a positive value, or a
    /// letter of a cluster; never abbreviated.
    fn is_dry_run_option(&self, option: &str, text: &[u8]) -> bool {
        let is_yes =
            || text.strip_prefix(option.as_bytes()).is_some_and(|rest| matches!(rest, b"=true" | b"=1" | b"=yes"));
        let is_short = option.len() == 2 && text.get(1).is_some_and(|b| *b != b'-');
        option.as_bytes() == text || is_yes() || is_short && is_option(option, text, self.options)
    }

    /// Returns whether every condition of a use holds.
    fn match_use(&self, known: &ProgramUse) -> UseMatch {
        let mut behind = 0;
        if !known.uses.is_empty() {
            match self.find_sequence(known.uses) {
                SequenceMatch::At(index) => behind = index,
                SequenceMatch::Unknown => return UseMatch::Unknown,
                SequenceMatch::No => return UseMatch::No,
            }
        }
        let holds = !matches!(self.find_sequence(known.except), SequenceMatch::At(_))
            && known.needs.iter().all(|group| self.has_word(group, known))
            && (known.says.is_empty() || self.has_statement(known.says))
            && (known.last.is_empty() || self.ends_with(known.last, behind))
            && self.words[behind..].iter().filter(|w| is_operand(w)).count() >= known.operands
            && !(known.loopback && self.stays_here(known))
            && !self.is_harmless(known, behind);
        if holds { UseMatch::Yes } else { UseMatch::No }
    }

    /// Returns the end of the first of these sequences of subcommands.
    fn find_sequence(&self, all: &[&[&[&str]]]) -> SequenceMatch {
        let mut unknown = false;
        for sequence in all {
            match self.one_sequence(sequence) {
                SequenceMatch::No => {}
                SequenceMatch::Unknown => unknown = true,
                found @ SequenceMatch::At(_) => return found,
            }
        }
        if unknown { SequenceMatch::Unknown } else { SequenceMatch::No }
    }

    fn one_sequence(&self, sequence: &[&[&str]]) -> SequenceMatch {
        let mut steps = sequence.iter();
        let Some(mut next) = steps.next() else { return SequenceMatch::No };
        for (index, word) in self.words.iter().enumerate().filter(|(_, word)| is_operand(word)) {
            if next.iter().any(|pattern| matches_word(pattern, word.text)) && !word.argument.starts_unknown() {
                match steps.next() {
                    Some(another) => next = another,
                    None => return SequenceMatch::At(index + 1),
                }
            } else if word.argument.starts_unknown() {
                let is_last = !self.words[index + 1..].iter().any(is_operand);
                if is_last || is_one_word(word.argument) {
                    return SequenceMatch::Unknown;
                }
            // `cargo +nightly publish`
            } else if word.role == WordRole::Operand && !(index == 0 && word.text.starts_with(b"+")) {
                return SequenceMatch::No;
            }
        }
        SequenceMatch::No
    }

    /// Returns whether only a name and a harmless value follow the subcommand.
    fn is_harmless(&self, known: &ProgramUse, behind: usize) -> bool {
        let mut operands: Vec<&InvocationWord<'_>> =
            self.words[behind..].iter().filter(|word| is_operand(word)).collect();
        // `git config set NAME VALUE`
        if operands.len() == 3 && operands[0].text == b"set" {
            operands.remove(0);
        }
        let is_sure =
            |word: &&InvocationWord<'_>| word.role == WordRole::Operand && word.argument.literal_value().is_some();
        let is_one = |all: &[&str], word: &InvocationWord<'_>| {
            let text = word.text.to_ascii_lowercase();
            all.iter().any(|pattern| matches_word(pattern, &text))
        };
        let [name, value] = operands.as_slice() else { return false };
        operands.iter().all(is_sure)
            && known
                .harmless
                .iter()
                .any(|pair| matches!(pair, [names, values] if is_one(names, name) && is_one(values, value)))
    }

    /// Returns whether one of these words is present, with a value that counts.
    fn has_word(&self, group: &[&str], known: &ProgramUse) -> bool {
        let checks_value = !(known.hosts.is_empty() && known.value_is.is_empty() && known.value_not.is_empty());
        group.iter().any(|pattern| {
            self.words.iter().enumerate().any(|(index, word)| match (pattern.starts_with('-'), word.role) {
                (true, WordRole::Option) => {
                    is_option(pattern, word.text, self.options)
                        && (!checks_value || self.value_counts(pattern, index, known))
                }
                (false, WordRole::Operand | WordRole::Either) => matches_word(pattern, &word.text.to_ascii_lowercase()),
                _ => false,
            })
        })
    }

    /// Returns whether the value of the option at this index meets the condition of the use.
    fn value_counts(&self, pattern: &str, index: usize, known: &ProgramUse) -> bool {
        let text = self.words[index].text;
        let attached = match text.iter().position(|b| *b == b'=') {
            Some(at) if text.starts_with(b"--") => Some(&text[at + 1..]),
            _ if text.starts_with(b"--") => None,
            // `-iURL`; after a cluster it is the next word.
            _ => text.strip_prefix(pattern.as_bytes()).filter(|rest| !rest.is_empty()),
        };
        let next = self.words.get(index + 1).map(|word| word.text);
        let Some(value) = attached.or(next) else { return false };
        let value = value.to_ascii_lowercase();
        let is_one = |all: &[&str]| all.iter().any(|pattern| matches_word(pattern, &value));
        (known.hosts.is_empty() || is_foreign(&value, known.hosts))
            && (known.value_is.is_empty() || is_one(known.value_is))
            && !is_one(known.value_not)
    }

    /// Returns whether an argument, or text of the script on standard input, contains a statement.
    fn has_statement(&self, statements: &[&[&str]]) -> bool {
        let input = self.invocation.stdin.literal.as_deref();
        self.words.iter().map(|word| word.text).chain(input).any(|text| {
            let words: Vec<Vec<u8>> = text
                .split(|b| !b.is_ascii_alphanumeric() && *b != b'_')
                .filter(|word| !word.is_empty())
                .take(MAX_STATEMENT_WORDS)
                .map(<[u8]>::to_ascii_lowercase)
                .collect();
            statements.iter().any(|statement| {
                words.windows(statement.len()).any(|w| w.iter().zip(*statement).all(|(a, b)| a == b.as_bytes()))
            })
        })
    }

    /// Returns whether the last operand is one of these.
    fn ends_with(&self, kind: &str, behind: usize) -> bool {
        let operands: Vec<&InvocationWord<'_>> = self.words[behind..].iter().filter(|word| is_operand(word)).collect();
        let is_kind = |word: &&InvocationWord<'_>| match kind {
            "remote" => is_remote(word.text),
            pattern => matches_word(pattern, word.text),
        };
        // The value of an unknown option may follow it.
        let sure = operands.iter().rposition(|word| word.role == WordRole::Operand).unwrap_or(0).max(1);
        operands.get(sure..).is_some_and(|last| last.iter().any(is_kind))
    }

    /// Returns whether only this machine is reached.
    fn stays_here(&self, known: &ProgramUse) -> bool {
        let spoils = |word: &InvocationWord<'_>| {
            word.role == WordRole::Option
                && known.spoils.iter().any(|option| is_option(option, word.text, self.options))
        };
        let mut targets = self.words.iter().filter(|word| is_operand(word)).peekable();
        targets.peek().is_some() && targets.all(|word| is_loopback(word.text)) && !self.words.iter().any(spoils)
    }
}

enum SequenceMatch {
    No,
    Unknown,
    /// Index after its last word.
    At(usize),
}

fn is_operand(word: &InvocationWord<'_>) -> bool {
    matches!(word.role, WordRole::Operand | WordRole::Either)
}

/// Returns whether a value is one word whatever its content: `"$1"`, but not `$OPTIONS`.
fn is_one_word(argument: &ExpandedArgument) -> bool {
    argument.atoms.iter().all(|atom| match atom {
        WordAtom::Byte { .. } => true,
        WordAtom::Dynamic(DynamicValue::Variable { quoted, .. } | DynamicValue::Nested { quoted, .. }) => *quoted,
        WordAtom::Dynamic(_) => false,
    })
}

/// Returns whether the text has the form `host:path` or `scheme://`.
fn is_remote(text: &[u8]) -> bool {
    let colon = text.iter().position(|b| *b == b':');
    let slash = text.iter().position(|b| *b == b'/').unwrap_or(text.len());
    colon.is_some_and(|at| at > 0 && at < slash)
}

fn has_text(all: &[&str], text: &[u8]) -> bool {
    all.iter().any(|one| one.as_bytes() == text)
}

/// Returns an option without its value.
fn name_of(text: &[u8]) -> &[u8] {
    text.split(|b| *b == b'=').next().unwrap_or_default()
}

/// Returns whether a word is this option: complete, abbreviated, or a letter of a cluster.
fn is_option(pattern: &str, text: &[u8], options: &Options) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name_of(text));
    if name == pattern {
        return true;
    }
    match pattern {
        [b'-', b'-', ..] => {
            let abbreviated = name.len() >= MIN_ABBREVIATION && pattern.starts_with(name);
            // Go's flags have one dash or two.
            abbreviated || name.strip_prefix(b"-").is_some_and(|rest| rest.len() > 2 && pattern[1..] == *name)
        }
        [b'-', letter] if text[1] != b'-' => {
            let valued = |b: &u8| options.valued.iter().any(|v| matches!(v.as_bytes(), [b'-', own] if own == b));
            let end = text[1..].iter().position(valued).map_or(text.len(), |at| at + 2);
            text[1..end].contains(letter)
        }
        _ => false,
    }
}
