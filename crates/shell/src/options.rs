//! The option grammar: arguments to options and operands as getopt_long(3) and
//! its kin read them. An option that is not in the entry is a problem, never
//! skipped; an abbreviation is resolved to say what it would do, and still is
//! one to ask about.

use crate::knowledge::{Arity, Effect, Entry, OptionSpec};
use crate::words::Argument;

/// Why arguments are not known to be harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    Unknown,
    Writes,
    Executes,
    ReadsMore,
    MissingValue,
    Dynamic,
    /// A wildcard could become an option.
    Wildcard,
}

/// Arguments after reading.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    /// Options as the entry names them.
    pub used: Vec<String>,
    /// Values with their kind.
    pub values: Vec<(String, Argument)>,
    pub operands: Vec<Argument>,
    pub problems: Vec<(Problem, (usize, usize))>,
    /// Index of the first operand, for entries that stop there.
    pub rest: usize,
}

impl Parsed {
    fn effect(&mut self, spec: &OptionSpec, at: (usize, usize)) {
        match spec.effect {
            Effect::Inert => {}
            Effect::Writes => self.problems.push((Problem::Writes, at)),
            Effect::Executes => self.problems.push((Problem::Executes, at)),
            Effect::Reads => self.problems.push((Problem::ReadsMore, at)),
        }
    }

    /// True if one of the options was used.
    pub(crate) fn uses(&self, options: &[String]) -> bool {
        options.iter().any(|o| self.used.contains(o))
    }
}

/// Reads arguments by an entry's grammar.
pub(crate) fn read(entry: &Entry, arguments: &[Argument]) -> Parsed {
    let mut parsed = Parsed { rest: arguments.len(), ..Parsed::default() };
    let mut ended = entry.any;
    let mut at = 0;
    while let Some(argument) = arguments.get(at) {
        at += 1;
        let text = argument.shown();
        if ended {
            parsed.operands.push(argument.clone());
            continue;
        }
        if argument.starts_unknown() {
            let wildcard = argument.is_glob() && !argument.is_dynamic();
            if !(wildcard && entry.globs) {
                parsed.problems.push((if wildcard { Problem::Wildcard } else { Problem::Dynamic }, argument.span));
            }
            parsed.operands.push(argument.clone());
        } else if entry.bundled && at == 1 && !text.starts_with(b"-") {
            at = bundle(entry, &text, arguments, at, &mut parsed);
        } else if text == b"--" {
            ended = true;
        } else if text.len() < 2 || text[0] != b'-' {
            parsed.operands.push(argument.clone());
            if entry.stops {
                parsed.rest = at;
                break;
            }
        } else if argument.is_glob() {
            parsed.problems.push((Problem::Wildcard, argument.span));
        } else if entry.numeric && text[1..].iter().all(u8::is_ascii_digit) {
            parsed.used.push("-NUMBER".to_owned());
        } else if text.starts_with(b"--") || is_single_dash_word(entry, &text) {
            at = long(entry, argument, &text, arguments, at, &mut parsed);
        } else {
            at = cluster(entry, argument, &text, arguments, at, &mut parsed);
        }
    }
    parsed
}

/// `-vv`, `-ps`: a few programs have words behind one dash.
fn is_single_dash_word(entry: &Entry, text: &[u8]) -> bool {
    text.len() > 2 && std::str::from_utf8(text).is_ok_and(|t| entry.options.contains_key(t))
}

fn long(
    entry: &Entry,
    argument: &Argument,
    text: &[u8],
    all: &[Argument],
    mut at: usize,
    parsed: &mut Parsed,
) -> usize {
    let split = text.iter().position(|b| *b == b'=');
    let name = String::from_utf8_lossy(&text[..split.unwrap_or(text.len())]).into_owned();
    // A whole `--option=value` may be listed where only that value is harmless.
    let whole = String::from_utf8_lossy(text);
    if let Some(spec) = entry.options.get(whole.as_ref()).filter(|s| s.arity == Arity::Flag) {
        parsed.effect(spec, argument.span);
        parsed.used.push(whole.into_owned());
        return at;
    }
    let Some(spec) = entry.options.get(&name) else {
        parsed.problems.push((abbreviation(entry, &name), argument.span));
        return at;
    };
    parsed.effect(spec, argument.span);
    parsed.used.push(name);
    match (&spec.arity, split) {
        (Arity::Flag, Some(_)) => parsed.problems.push((Problem::Unknown, argument.span)),
        (Arity::Flag | Arity::Optional(_), None) => {}
        (Arity::Value(kind) | Arity::Optional(kind), Some(split)) => {
            parsed.values.push((kind.clone(), argument.tail(split + 1)));
        }
        (Arity::Value(kind), None) => at = value(kind, argument, all, at, parsed),
        (Arity::Pair(kind), None) => {
            at = value("text", argument, all, at, parsed);
            at = value(kind, argument, all, at, parsed);
        }
        (Arity::Pair(_), Some(_)) => parsed.problems.push((Problem::Unknown, argument.span)),
    }
    at
}

fn value(kind: &str, argument: &Argument, all: &[Argument], at: usize, parsed: &mut Parsed) -> usize {
    match all.get(at) {
        // A wildcard may become several words and shift what follows.
        Some(next) if next.is_glob() => {
            parsed.problems.push((Problem::Wildcard, next.span));
            at + 1
        }
        Some(next) => {
            parsed.values.push((kind.to_owned(), next.clone()));
            at + 1
        }
        None => {
            parsed.problems.push((Problem::MissingValue, argument.span));
            at
        }
    }
}

/// What an option that is not listed by this name would be.
fn abbreviation(entry: &Entry, name: &str) -> Problem {
    let mut worst = Problem::Unknown;
    for (full, spec) in &entry.options {
        if name.len() > 3 && full.starts_with(name) {
            match spec.effect {
                Effect::Executes => return Problem::Executes,
                Effect::Writes => worst = Problem::Writes,
                _ => {}
            }
        }
    }
    worst
}

fn cluster(entry: &Entry, argument: &Argument, text: &[u8], all: &[Argument], at: usize, parsed: &mut Parsed) -> usize {
    let mut letter = 1;
    while letter < text.len() {
        let name = format!("-{}", text[letter] as char);
        letter += 1;
        let Some(spec) = entry.options.get(&name) else {
            parsed.problems.push((Problem::Unknown, argument.span));
            return at;
        };
        parsed.effect(spec, argument.span);
        parsed.used.push(name);
        match &spec.arity {
            Arity::Flag => {}
            Arity::Value(kind) if letter < text.len() => {
                parsed.values.push((kind.clone(), argument.tail(letter)));
                return at;
            }
            Arity::Value(kind) => return value(kind, argument, all, at, parsed),
            Arity::Optional(kind) => {
                if letter < text.len() {
                    parsed.values.push((kind.clone(), argument.tail(letter)));
                }
                return at;
            }
            Arity::Pair(_) => parsed.problems.push((Problem::Unknown, argument.span)),
        }
    }
    at
}

/// tar's old form: letters without a dash, values after them in order.
fn bundle(entry: &Entry, text: &[u8], all: &[Argument], mut at: usize, parsed: &mut Parsed) -> usize {
    let first = all.first().map(|a| a.span).unwrap_or_default();
    let Some(argument) = all.first() else { return at };
    for letter in text {
        let name = format!("-{}", *letter as char);
        let Some(spec) = entry.options.get(&name) else {
            parsed.problems.push((Problem::Unknown, first));
            return at;
        };
        parsed.effect(spec, first);
        parsed.used.push(name);
        if let Arity::Value(kind) = &spec.arity {
            at = value(kind, argument, all, at, parsed);
        }
    }
    at
}
