//! Option grammar: splits arguments into options and operands like getopt_long(3) and similar
//! parsers. An option that is not in the entry is a problem and never skipped. An abbreviation is
//! resolved to find its effect, but is still `ask`.

use crate::knowledge::{Arity, Effect, Entry, Kind, OptionSpec};
use crate::words::Argument;

/// Reason why arguments are not known to be harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    Unknown,
    /// The option does more than read.
    Does(Effect),
    MissingValue,
    Dynamic,
    /// A wildcard could become an option.
    Wildcard,
}

/// Value of an option.
#[derive(Debug)]
pub(crate) struct OptionValue {
    pub kind: Kind,
    pub value: Argument,
}

/// Parsed arguments.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    /// Options as the entry names them.
    pub used: Vec<String>,
    pub values: Vec<OptionValue>,
    pub operands: Vec<Argument>,
    pub problems: Vec<(Problem, (usize, usize))>,
    /// Index of the first argument that was not parsed: after the operand that ended the options,
    /// or the wrapped command.
    pub rest: usize,
}

impl Parsed {
    fn effect(&mut self, spec: OptionSpec, at: (usize, usize)) {
        if spec.effect != Effect::Inert {
            self.problems.push((Problem::Does(spec.effect), at));
        }
    }

    /// Returns whether one of the options was used.
    pub(crate) fn uses(&self, options: &[&str]) -> bool {
        options.iter().any(|o| self.used.iter().any(|used| used == o))
    }

    /// Returns whether an option makes the program write.
    pub(crate) fn writes(&self) -> bool {
        self.problems.iter().any(|(p, _)| matches!(p, Problem::Does(Effect::Writes)))
    }

    fn keep(&mut self, kind: Kind, value: Argument) {
        self.values.push(OptionValue { kind, value });
    }
}

/// Parses arguments by an entry's grammar.
pub(crate) fn read(entry: &Entry, arguments: &[Argument]) -> Parsed {
    let out = Parsed { rest: arguments.len(), ..Parsed::default() };
    let mut reader = Reader { entry, all: arguments, at: 0, out };
    reader.run();
    reader.out
}

struct Reader<'a> {
    entry: &'a Entry,
    all: &'a [Argument],
    at: usize,
    out: Parsed,
}

impl Reader<'_> {
    fn run(&mut self) {
        let mut ended = self.entry.any;
        while let Some(argument) = self.all.get(self.at) {
            let text = argument.shown();
            if (ended || !is_option(&text)) && self.starts_command(&text) {
                self.out.rest = self.at;
                return;
            }
            self.at += 1;
            if self.entry.at_files && text.first() == Some(&b'@') {
                self.out.problems.push((Problem::Does(Effect::Reads), argument.span));
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
                self.bundle(argument, &text);
            } else if text == b"--" {
                ended = true;
            } else if !is_option(&text) {
                self.out.operands.push(argument.clone());
                if self.entry.stops {
                    self.out.rest = self.at;
                    return;
                }
            } else if argument.is_glob() {
                self.out.problems.push((Problem::Wildcard, argument.span));
            } else if self.entry.numeric && text[1..].iter().all(u8::is_ascii_digit) {
                self.out.used.push("-NUMBER".to_owned());
            } else if text.starts_with(b"--") || self.is_single_dash_word(&text) {
                self.long(argument, &text);
            } else {
                self.cluster(argument, &text);
            }
        }
    }

    /// Returns whether the next operand is a command of its own.
    fn starts_command(&self, text: &[u8]) -> bool {
        let assignment = self.entry.assignments && is_assignment(text);
        let kind = self.entry.operand(self.out.operands.len()).map(|o| o.kind);
        !assignment && matches!(kind, Some(Kind::Command | Kind::Inside | Kind::Code))
    }

    /// Returns whether this is an option such as `--include=*.py` without quotes. The shell
    /// replaces it by the same option with other text, once or several times.
    fn is_inert_pattern(&self, argument: &Argument, text: &[u8]) -> bool {
        let Some(split) = text.iter().position(|b| *b == b'=').filter(|_| text.starts_with(b"--")) else {
            return false;
        };
        let name = Argument { atoms: argument.atoms[..split].to_vec(), ..Argument::default() };
        let known = name.literal().and_then(|name| String::from_utf8(name).ok());
        let spec = known.and_then(|name| self.entry.option(&name));
        argument.is_glob()
            && !argument.is_dynamic()
            && spec.is_some_and(|s| s.effect == Effect::Inert && s.arity == Arity::Value(Kind::Text))
    }

    fn starts_unknown(&mut self, argument: &Argument) {
        let wildcard = argument.is_glob() && !argument.is_dynamic();
        if !(wildcard && self.entry.globs) {
            let problem = if wildcard { Problem::Wildcard } else { Problem::Dynamic };
            self.out.problems.push((problem, argument.span));
        }
        self.out.operands.push(argument.clone());
    }

    /// Handles `-vv`, `-ps`, `-version`: some programs have words after one dash.
    fn is_single_dash_word(&self, text: &[u8]) -> bool {
        let name = text.split(|b| *b == b'=').next().unwrap_or_default();
        name.len() > 2 && std::str::from_utf8(name).is_ok_and(|t| self.entry.option(t).is_some())
    }

    fn long(&mut self, argument: &Argument, text: &[u8]) {
        let split = text.iter().position(|b| *b == b'=');
        let name = String::from_utf8_lossy(&text[..split.unwrap_or(text.len())]).into_owned();
        // A complete `--option=value` may be listed if only that value is harmless.
        let whole = String::from_utf8_lossy(text);
        if let Some(spec) = self.entry.option(&whole).filter(|s| s.arity == Arity::Flag) {
            self.out.effect(*spec, argument.span);
            self.out.used.push(whole.into_owned());
            return;
        }
        let Some(&spec) = self.entry.option(&name) else {
            self.out.problems.push((abbreviation(self.entry, &name), argument.span));
            return;
        };
        self.out.effect(spec, argument.span);
        self.out.used.push(name);
        match (spec.arity, split) {
            (Arity::Flag | Arity::Pair(_), Some(_)) => self.out.problems.push((Problem::Unknown, argument.span)),
            (Arity::Flag | Arity::Optional(_), None) => {}
            (Arity::Value(kind) | Arity::Optional(kind), Some(split)) => {
                self.out.keep(kind, argument.tail(split + 1));
            }
            (Arity::Value(kind), None) => self.value(kind, argument),
            (Arity::Pair(kind), None) => {
                self.value(Kind::Text, argument);
                self.value(kind, argument);
            }
        }
    }

    fn value(&mut self, kind: Kind, argument: &Argument) {
        match self.all.get(self.at) {
            // A wildcard may become several words and shift the later ones.
            Some(next) if next.is_glob() => self.out.problems.push((Problem::Wildcard, next.span)),
            Some(next) => self.out.keep(kind, next.clone()),
            None => self.out.problems.push((Problem::MissingValue, argument.span)),
        }
        self.at += 1;
    }

    fn cluster(&mut self, argument: &Argument, text: &[u8]) {
        let mut letter = 1;
        while letter < text.len() {
            let name = format!("-{}", text[letter] as char);
            letter += 1;
            let Some(&spec) = self.entry.option(&name) else {
                self.out.problems.push((Problem::Unknown, argument.span));
                return;
            };
            self.out.effect(spec, argument.span);
            self.out.used.push(name);
            match spec.arity {
                Arity::Flag => {}
                Arity::Value(kind) | Arity::Optional(kind) if letter < text.len() => {
                    self.out.keep(kind, argument.tail(letter));
                    return;
                }
                Arity::Value(kind) => return self.value(kind, argument),
                Arity::Optional(_) => return,
                Arity::Pair(_) => self.out.problems.push((Problem::Unknown, argument.span)),
            }
        }
    }

    /// Parses tar's old form: letters without a dash, values after them in order.
    fn bundle(&mut self, argument: &Argument, text: &[u8]) {
        for letter in text {
            let name = format!("-{}", *letter as char);
            let Some(&spec) = self.entry.option(&name) else {
                self.out.problems.push((Problem::Unknown, argument.span));
                return;
            };
            self.out.effect(spec, argument.span);
            self.out.used.push(name);
            if let Arity::Value(kind) = spec.arity {
                self.value(kind, argument);
            }
        }
    }
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
fn abbreviation(entry: &Entry, name: &str) -> Problem {
    let mut worst = Problem::Unknown;
    for (full, spec) in &entry.options {
        if name.len() > 3 && full.starts_with(name) {
            match spec.effect {
                Effect::Executes => return Problem::Does(Effect::Executes),
                Effect::Inert | Effect::Reads => {}
                effect => worst = Problem::Does(effect),
            }
        }
    }
    worst
}
