//! Programs that run the command in their arguments. The knowledge base lists them, and their
//! arguments before the command (operands that end in `command`, `inside` or `code`). The program
//! env(1) splits words by itself and is parsed here. The wrapper is removed for classification, but
//! never trusted.

use crate::knowledge::{self, OptionEffect, ValueKind};
use crate::options::{self, ArgumentProblem, is_assignment};
use crate::words::ExpandedArgument;

/// Environment in which the command runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RunLocation {
    /// On this machine, unchanged.
    #[default]
    Here,
    /// On this machine, by a shell that gets the words joined.
    Shell,
    /// In a container or on another host.
    Elsewhere,
}

/// A command without its wrapper.
#[derive(Default)]
pub(crate) struct UnwrappedCommand {
    pub command: Vec<ExpandedArgument>,
    /// Arguments before the command.
    pub options: Vec<ExpandedArgument>,
    /// Initial directory of the command, if the wrapper changes it.
    pub directory: Option<ExpandedArgument>,
    /// `NAME=value` arguments (env, sudo).
    pub assignments: Vec<ExpandedArgument>,
    /// True if running a known reader through it is as harmless as the reader.
    pub transparent: bool,
    pub elevates: bool,
    pub runs: RunLocation,
}

/// Returns the command that a wrapper runs; `None` if this is no wrapper or runs nothing.
pub(crate) fn peel_wrapper(name: &[u8], arguments: &[ExpandedArgument]) -> Option<UnwrappedCommand> {
    let name = std::str::from_utf8(name).ok()?;
    if name == "env" {
        return peel_env(arguments);
    }
    let mut entry = knowledge::find_command(name)?;
    let mut from = 1;
    if entry.subcommands {
        // `docker exec`, `npm exec`: the second word selects the entry.
        from += options::parse_arguments(entry, arguments.get(1..)?).rest;
        let (nested, words) =
            options::find_subcommand(name, arguments.get(from.checked_sub(1)?)?, arguments.get(from))?;
        entry = nested;
        from += words;
    }
    if !entry.is_wrapper() {
        return None;
    }
    let parsed = options::parse_arguments(entry, arguments.get(from..)?);
    let command = arguments.get(from + parsed.rest..)?;
    if command.is_empty() {
        return None;
    }
    let mut peeled = UnwrappedCommand { transparent: true, ..UnwrappedCommand::default() };
    for operand in &parsed.operands {
        match entry.assignments && is_assignment(&operand.display_bytes()) {
            true => peeled.assignments.push(operand.clone()),
            // The positional operands must be plain for the wrapper to be transparent.
            false => peeled.transparent &= operand.literal_value().is_some(),
        }
    }
    peeled.directory = parsed.values.iter().find(|v| v.kind == ValueKind::Directory).map(|v| v.value.clone());
    peeled.elevates = entry.does.contains(&OptionEffect::Privilege)
        || parsed.problems.iter().any(|(p, _)| *p == ArgumentProblem::Does(OptionEffect::Privilege));
    peeled.transparent &= entry.does.is_empty() && parsed.problems.is_empty();
    peeled.runs = match entry.operands.last().map(|o| o.kind) {
        Some(ValueKind::Code) => RunLocation::Shell,
        Some(ValueKind::Inside) => RunLocation::Elsewhere,
        _ => RunLocation::Here,
    };
    peeled.options = arguments.get(1..from + parsed.rest).unwrap_or_default().to_vec();
    peeled.command = command.to_vec();
    Some(peeled)
}

/// Parses env(1): options, assignments, command; `-S` splits a string.
fn peel_env(arguments: &[ExpandedArgument]) -> Option<UnwrappedCommand> {
    let mut peeled = UnwrappedCommand { transparent: true, ..UnwrappedCommand::default() };
    let mut at = 1;
    while let Some(argument) = arguments.get(at) {
        let text = argument.literal_value();
        let is_assigned = match &text {
            Some(text) => is_assignment(text),
            // `PATH=$X` before the command is still an assignment.
            None => argument.display_bytes().iter().position(|b| *b == b'=').is_some_and(|i| i > 0),
        };
        if is_assigned {
            peeled.assignments.push(argument.clone());
            at += 1;
            continue;
        }
        let Some(text) = text.filter(|text| text.starts_with(b"-")) else { break };
        at += 1;
        peeled.transparent = false;
        if text == b"-" || text == b"--" {
            continue;
        }
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
fn env_option(
    text: &[u8],
    argument: &ExpandedArgument,
    next: Option<&ExpandedArgument>,
    peeled: &mut UnwrappedCommand,
) -> usize {
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
        Some(attached) => Some(ExpandedArgument::from_bytes(attached, argument.span)),
        None => next.cloned(),
    };
    match name {
        b"--chdir" => peeled.directory = value,
        b"--split-string" => {
            let split = value.as_ref().and_then(ExpandedArgument::literal_value).unwrap_or_default();
            let words = split.split(|b| b.is_ascii_whitespace()).filter(|w| !w.is_empty());
            peeled.command = words.map(|w| ExpandedArgument::from_bytes(w, argument.span)).collect();
        }
        b"--unset" | b"--argv0" => {}
        _ => return 0,
    }
    usize::from(attached.is_none())
}
