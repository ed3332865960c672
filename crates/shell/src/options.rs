//! Option grammar: splits arguments into options and operands like getopt_long(3) and similar
//! parsers. An option that is not in the entry is a problem and never skipped. An abbreviation is
//! resolved to find its effect, but is still `ask`.

use crate::knowledge::{self, CommandSpec, OptionArity, OptionEffect, OptionSpec, ValueKind};
use crate::words::ExpandedArgument;

/// Reason why arguments are not known to be harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentProblem {
    Unknown,
    /// The option does more than read.
    Does(OptionEffect),
    MissingValue,
    Dynamic,
    /// A wildcard could become an option.
    Wildcard,
}

/// Value of an option.
#[derive(Debug)]
pub(crate) struct OptionValue {
    pub kind: ValueKind,
    pub value: ExpandedArgument,
}

/// Parsed arguments.
#[derive(Debug, Default)]
pub(crate) struct ParsedArguments {
    /// Options as the entry names them.
    pub used: Vec<String>,
    pub values: Vec<OptionValue>,
    pub operands: Vec<ExpandedArgument>,
    pub problems: Vec<(ArgumentProblem, (usize, usize))>,
    /// Index of the first argument that was not parsed: after the operand that ended the options,
    /// or the wrapped command.
    pub rest: usize,
}

impl ParsedArguments {
    /// Returns whether one of the options was used.
    pub(crate) fn has_option(&self, options: &[&str]) -> bool {
        options.iter().any(|o| self.used.iter().any(|used| used == o))
    }

    /// Returns whether an option makes the program write.
    pub(crate) fn has_writing_option(&self) -> bool {
        self.problems.iter().any(|(p, _)| matches!(p, ArgumentProblem::Does(OptionEffect::Writes)))
    }
}

/// Parses arguments by an entry's grammar.
pub(crate) fn parse_arguments(entry: &CommandSpec, arguments: &[ExpandedArgument]) -> ParsedArguments {
    let out = ParsedArguments { rest: arguments.len(), ..ParsedArguments::default() };
    let mut reader = OptionParser { entry, all: arguments, at: 0, out };
    reader.parse_all();
    reader.out
}

struct OptionParser<'a> {
    entry: &'a CommandSpec,
    all: &'a [ExpandedArgument],
    at: usize,
    out: ParsedArguments,
}

impl OptionParser<'_> {
    fn parse_all(&mut self) {
        let mut ended = self.entry.any;
        while let Some(argument) = self.all.get(self.at) {
            let text = argument.display_bytes();
            if (ended || !is_option(&text)) && self.starts_command(&text) {
                self.out.rest = self.at;
                return;
            }
            self.at += 1;
            if self.entry.at_files && text.first() == Some(&b'@') {
                self.out.problems.push((ArgumentProblem::Does(OptionEffect::Reads), argument.span));
            }
            if ended {
                self.out.operands.push(argument.clone());
            } else if argument.starts_unknown() && !argument.is_output() {
                self.starts_unknown(argument);
            } else if self.is_inert_pattern(argument, &text) {
                self.out
                    .used
                    .push(String::from_utf8_lossy(text.split(|b| *b == b'=').next().unwrap_or_default()).into_owned());
            } else if self.entry.bundled && self.at == 1 && !text.starts_with(b"-") {
                self.parse_letters(argument, &text, false);
            } else if text == b"--" {
                ended = true;
            } else if !is_option(&text) {
                self.out.operands.push(argument.clone());
                if self.entry.stops {
                    self.out.rest = self.at;
                    return;
                }
            } else if argument.is_glob() {
                self.out.problems.push((ArgumentProblem::Wildcard, argument.span));
            } else if self.entry.numeric && text[1..].iter().all(u8::is_ascii_digit) {
                self.out.used.push("-NUMBER".to_owned());
            } else if text.starts_with(b"--") || self.is_single_dash_word(&text) {
                self.parse_long(argument, &text);
            } else {
                self.parse_letters(argument, &text, true);
            }
        }
    }

    /// Returns whether the next operand is a command of its own.
    fn starts_command(&self, text: &[u8]) -> bool {
        let assignment = self.entry.assignments && is_assignment(text);
        let kind = self.entry.operand_at(self.out.operands.len()).map(|o| o.kind);
        !assignment && matches!(kind, Some(ValueKind::Command | ValueKind::Inside | ValueKind::Code))
    }

    /// Returns whether this is an option such as `--include=*.py` without quotes. The shell
    /// replaces it by the same option with other text, once or several times.
    fn is_inert_pattern(&self, argument: &ExpandedArgument, text: &[u8]) -> bool {
        let Some(split) = text.iter().position(|b| *b == b'=').filter(|_| text.starts_with(b"--")) else {
            return false;
        };
        let name = ExpandedArgument { atoms: argument.atoms[..split].to_vec(), ..ExpandedArgument::default() };
        let known = name.literal_value().and_then(|name| String::from_utf8(name).ok());
        let spec = known.and_then(|name| self.entry.find_option(&name));
        argument.is_glob()
            && !argument.is_dynamic()
            && spec.is_some_and(|s| s.effect == OptionEffect::Inert && s.arity == OptionArity::Value(ValueKind::Text))
    }

    fn starts_unknown(&mut self, argument: &ExpandedArgument) {
        let wildcard = argument.is_glob() && !argument.is_dynamic();
        if !(wildcard && self.entry.globs) {
            let problem = if wildcard { ArgumentProblem::Wildcard } else { ArgumentProblem::Dynamic };
            self.out.problems.push((problem, argument.span));
        }
        self.out.operands.push(argument.clone());
    }

    /// Handles `-vv`, `-ps`, `-version`: some programs have words after one dash.
    fn is_single_dash_word(&self, text: &[u8]) -> bool {
        let name = text.split(|b| *b == b'=').next().unwrap_or_default();
        name.len() > 2 && std::str::from_utf8(name).is_ok_and(|t| self.entry.find_option(t).is_some())
    }

    fn parse_long(&mut self, argument: &ExpandedArgument, text: &[u8]) {
        let split = text.iter().position(|b| *b == b'=');
        let name = String::from_utf8_lossy(&text[..split.unwrap_or(text.len())]).into_owned();
        // A complete `--option=value` may be listed if only that value is harmless.
        let whole = String::from_utf8_lossy(text);
        if self.entry.find_option(&whole).is_some_and(|spec| spec.arity == OptionArity::Flag) {
            self.use_option(whole.into_owned(), argument);
            return;
        }
        let Some(arity) = self.use_option(name, argument) else { return };
        match (arity, split) {
            (OptionArity::Flag | OptionArity::Pair(_), Some(_)) => {
                self.out.problems.push((ArgumentProblem::Unknown, argument.span))
            }
            (OptionArity::Flag | OptionArity::Optional(_), None) => {}
            (OptionArity::Value(kind) | OptionArity::Optional(kind), Some(split)) => {
                self.out.values.push(OptionValue { kind, value: argument.skip_atoms(split + 1) });
            }
            (OptionArity::Value(kind), None) => self.take_value(kind, argument),
            (OptionArity::Pair(kind), None) => {
                self.take_value(ValueKind::Text, argument);
                self.take_value(kind, argument);
            }
        }
    }

    fn take_value(&mut self, kind: ValueKind, argument: &ExpandedArgument) {
        match self.all.get(self.at) {
            // A wildcard may become several words and shift the later ones.
            Some(next) if next.is_glob() => self.out.problems.push((ArgumentProblem::Wildcard, next.span)),
            Some(next) => self.out.values.push(OptionValue { kind, value: next.clone() }),
            None => self.out.problems.push((ArgumentProblem::MissingValue, argument.span)),
        }
        self.at += 1;
    }

    /// Notes an option and its effect, and returns what values it takes. `None` if it is unknown.
    fn use_option(&mut self, name: String, argument: &ExpandedArgument) -> Option<OptionArity> {
        let Some(&OptionSpec { effect, arity }) = self.entry.find_option(&name) else {
            self.out.problems.push((resolve_abbreviation(self.entry, &name), argument.span));
            return None;
        };
        if effect != OptionEffect::Inert {
            self.out.problems.push((ArgumentProblem::Does(effect), argument.span));
        }
        self.out.used.push(name);
        Some(arity)
    }

    /// Parses a cluster of letters behind a dash, or without one (tar): then every value is an
    /// argument of its own.
    fn parse_letters(&mut self, argument: &ExpandedArgument, text: &[u8], has_dash: bool) {
        for letter in usize::from(has_dash)..text.len() {
            let Some(arity) = self.use_option(format!("-{}", text[letter] as char), argument) else { return };
            let is_last = letter + 1 == text.len();
            match arity {
                OptionArity::Flag => {}
                OptionArity::Value(kind) if !has_dash => self.take_value(kind, argument),
                _ if !has_dash => {}
                OptionArity::Value(kind) | OptionArity::Optional(kind) if !is_last => {
                    self.out.values.push(OptionValue { kind, value: argument.skip_atoms(letter + 1) });
                    return;
                }
                OptionArity::Value(kind) => self.take_value(kind, argument),
                OptionArity::Optional(_) => {}
                OptionArity::Pair(_) => self.out.problems.push((ArgumentProblem::Unknown, argument.span)),
            }
        }
    }
}

/// Returns the entry of a subcommand, and how many words behind its first one belong to its name.
pub(crate) fn find_subcommand(
    program: &str,
    first: &ExpandedArgument,
    second: Option<&ExpandedArgument>,
) -> Option<(&'static CommandSpec, usize)> {
    let word = |argument: &ExpandedArgument| String::from_utf8(argument.literal_value()?).ok();
    let name = format!("{} {}", knowledge::canonical_name(program)?, word(first)?);
    let nested = second.and_then(word).and_then(|second| knowledge::find_command(&format!("{name} {second}")));
    nested.map(|entry| (entry, 1)).or_else(|| Some((knowledge::find_command(&name)?, 0)))
}

fn is_option(text: &[u8]) -> bool {
    text.len() > 1 && text[0] == b'-'
}

/// Returns whether the text is `NAME=value`.
pub(crate) fn is_assignment(text: &[u8]) -> bool {
    text.iter().position(|b| *b == b'=').is_some_and(|at| {
        at > 0 && text[..at].iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_') && !text[0].is_ascii_digit()
    })
}

/// Returns the meaning of an option that is not listed by this name.
fn resolve_abbreviation(entry: &CommandSpec, name: &str) -> ArgumentProblem {
    let mut worst = ArgumentProblem::Unknown;
    for (full, spec) in entry.options {
        if name.len() > 3 && full.starts_with(name) {
            match spec.effect {
                OptionEffect::Executes => return ArgumentProblem::Does(OptionEffect::Executes),
                OptionEffect::Inert | OptionEffect::Reads => {}
                effect => worst = ArgumentProblem::Does(effect),
            }
        }
    }
    worst
}
