//! Programs that run the command in their arguments. The knowledge base lists them, and their
//! arguments before the command (operands that end in `command`, `inside` or `code`). The program
//! env(1) splits words by itself and is parsed here. The wrapper is removed for classification, but
//! never trusted.

use crate::knowledge::{self, Effect, Kind};
use crate::options::{self, Problem, is_assignment};
use crate::words::Argument;

/// Environment in which the command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runs {
    /// On this machine, unchanged.
    Here,
    /// On this machine, by a shell that gets the words joined.
    Shell,
    /// In a container or on another host.
    Elsewhere,
}

/// A command without its wrapper.
pub(crate) struct Peeled {
    pub command: Vec<Argument>,
    /// Arguments before the command.
    pub options: Vec<Argument>,
    /// Initial directory of the command, if the wrapper changes it.
    pub directory: Option<Argument>,
    /// `NAME=value` arguments (env, sudo).
    pub assignments: Vec<Argument>,
    /// True if running a known reader through it is as harmless as the reader.
    pub transparent: bool,
    pub elevates: bool,
    pub runs: Runs,
}

impl Peeled {
    fn new() -> Self {
        Self {
            command: Vec::new(),
            options: Vec::new(),
            directory: None,
            assignments: Vec::new(),
            transparent: true,
            elevates: false,
            runs: Runs::Here,
        }
    }
}

/// Returns the command that a wrapper runs; `None` if this is no wrapper or runs nothing.
pub(crate) fn peel(name: &[u8], arguments: &[Argument]) -> Option<Peeled> {
    let name = std::str::from_utf8(name).ok()?;
    if name == "env" {
        return env(arguments);
    }
    let mut entry = knowledge::lookup(name)?;
    let mut from = 1;
    if entry.subcommands {
        // `docker exec`, `npm exec`: the second word selects the entry.
        from += options::read(entry, arguments.get(1..)?).rest;
        let program = knowledge::canonical(name)?;
        let full = format!("{program} {}", String::from_utf8(arguments.get(from.checked_sub(1)?)?.literal()?).ok()?);
        if let Some(second) = arguments.get(from).and_then(Argument::literal).and_then(|t| String::from_utf8(t).ok())
            && let Some(nested) = knowledge::lookup(&format!("{full} {second}"))
        {
            entry = nested;
            from += 1;
        } else {
            entry = knowledge::lookup(&full)?;
        }
    }
    if !entry.wraps() {
        return None;
    }
    let parsed = options::read(entry, arguments.get(from..)?);
    let command = arguments.get(from + parsed.rest..)?;
    if command.is_empty() {
        return None;
    }
    let mut peeled = Peeled::new();
    for operand in &parsed.operands {
        match entry.assignments && is_assignment(&operand.shown()) {
            true => peeled.assignments.push(operand.clone()),
            // The positional operands must be plain for the wrapper to be transparent.
            false => peeled.transparent &= operand.literal().is_some(),
        }
    }
    peeled.directory = parsed.values.iter().find(|v| v.kind == Kind::Directory).map(|v| v.value.clone());
    peeled.elevates = entry.does.contains(&Effect::Privilege)
        || parsed.problems.iter().any(|(p, _)| *p == Problem::Does(Effect::Privilege));
    peeled.transparent &= entry.does.is_empty() && parsed.problems.is_empty();
    peeled.runs = match entry.operands.last().map(|o| o.kind) {
        Some(Kind::Code) => Runs::Shell,
        Some(Kind::Inside) => Runs::Elsewhere,
        _ => Runs::Here,
    };
    peeled.options = arguments.get(1..from + parsed.rest).unwrap_or_default().to_vec();
    peeled.command = command.to_vec();
    Some(peeled)
}

/// Parses env(1): options, assignments, command; `-S` splits a string.
fn env(arguments: &[Argument]) -> Option<Peeled> {
    let mut peeled = Peeled::new();
    let mut at = 1;
    while let Some(argument) = arguments.get(at) {
        let Some(text) = argument.literal() else {
            // `PATH=$X` before the command is still an assignment.
            if argument.shown().iter().position(|b| *b == b'=').is_some_and(|i| i > 0) {
                peeled.assignments.push(argument.clone());
                at += 1;
                continue;
            }
            break;
        };
        at += 1;
        if text == b"--" {
            peeled.transparent = false;
            continue;
        }
        if is_assignment(&text) {
            peeled.assignments.push(argument.clone());
            continue;
        }
        if !text.starts_with(b"-") || text == b"-" {
            if text != b"-" {
                at -= 1;
                break;
            }
            peeled.transparent = false;
            continue;
        }
        peeled.transparent = false;
        at += env_option(&text, argument, arguments.get(at), &mut peeled);
        if !peeled.command.is_empty() {
            peeled.command.extend(arguments.get(at..).unwrap_or_default().iter().cloned());
            return Some(peeled);
        }
    }
    peeled.command = arguments.get(at..)?.to_vec();
    if peeled.command.is_empty() { None } else { Some(peeled) }
}

/// Parses one option of env; returns how many further arguments it takes.
fn env_option(text: &[u8], argument: &Argument, next: Option<&Argument>, peeled: &mut Peeled) -> usize {
    let (name, attached) = if text.starts_with(b"--") {
        match text.iter().position(|b| *b == b'=') {
            Some(at) => (&text[..at], Some(&text[at + 1..])),
            None => (text, None),
        }
    } else {
        let at = text.iter().position(|b| b"uCSa".contains(b)).unwrap_or(text.len() - 1);
        let letter: &[u8] = match text[at] {
            b'u' | b'a' => b"--unset",
            b'C' => b"--chdir",
            b'S' => b"--split-string",
            _ => b"",
        };
        (letter, text.get(at + 1..).filter(|rest| !rest.is_empty()))
    };
    let value = match attached {
        Some(attached) => Some(Argument::known(attached, argument.span)),
        None => next.cloned(),
    };
    match name {
        b"--chdir" => peeled.directory = value,
        b"--split-string" => {
            let split = value.as_ref().and_then(Argument::literal).unwrap_or_default();
            let words = split.split(|b| b.is_ascii_whitespace()).filter(|w| !w.is_empty());
            peeled.command = words.map(|w| Argument::known(w, argument.span)).collect();
        }
        b"--unset" | b"--argv0" => {}
        _ => return 0,
    }
    usize::from(attached.is_none())
}
