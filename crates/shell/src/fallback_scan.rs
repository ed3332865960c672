//! Fallback scan of texts that are not parsed: too long, too deep, or not parsed in time. It finds
//! literal denials, and effects that need consent, at positions of commands. It reports nothing
//! else, because such a text is `ask` anyway. Its work is linear in the length of the text.

use crate::budget::WorkBudget;
use crate::classify::Classifier;
use crate::knowledge::{hazards, lists};
use crate::rules;
use crate::words::{DataFlow, ExpandedArgument};

/// Deepest nesting that is parsed; the parser's own cost grows with it.
const MAX_OPEN_NESTING: usize = 56;
/// Longest sequence of `!`.
const MAX_NEGATIONS: usize = 24;
/// Most positions that are classified.
const MAX_POSITIONS: usize = 100;
/// Most arguments of an unknown program that are scanned, and most commands among them that are
/// classified.
const MAX_ARGUMENTS: usize = 64;
const MAX_ARGUMENT_COMMANDS: usize = 4;
/// Longest text that is read as one command, in bytes.
const MAX_COMMAND_BYTES: usize = 512;

/// Returns whether a text is nested too deeply to be parsed. Counts bytes and ignores quotes: a
/// person does not review so many brackets in either case.
pub(crate) fn is_too_deep(text: &[u8]) -> bool {
    let (mut open, mut negations) = (0usize, 0usize);
    for word in text.split(|b| matches!(b, b' ' | b'\t' | b'\n' | b';')) {
        match word {
            b"then" => open += 1,
            b"fi" => open = open.saturating_sub(1),
            b"!" => negations += 1,
            b"" => continue,
            _ => {}
        }
        for byte in word {
            match byte {
                b'(' | b'{' => open += 1,
                b')' | b'}' => open = open.saturating_sub(1),
                _ => {}
            }
        }
        if word != b"!" {
            negations = 0;
        }
        if open > MAX_OPEN_NESTING || negations > MAX_NEGATIONS {
            return true;
        }
    }
    false
}

/// Scans the text for literal commands and forms. All scans of one assessment share a budget of
/// their own.
pub(crate) fn scan_text(classifier: &mut Classifier, text: &[u8]) {
    scan_forms(classifier, text);
    let own = std::mem::replace(&mut classifier.last_look, WorkBudget::from_units(0));
    let outer = std::mem::replace(&mut classifier.budget, own);
    scan_commands(classifier, text);
    classifier.last_look = std::mem::replace(&mut classifier.budget, outer);
}

/// Classifies the commands at possible positions.
fn scan_commands(classifier: &mut Classifier, text: &[u8]) {
    let mut candidates = 0;
    let mut at = 0;
    let mut leads = true;
    while at < text.len() && candidates < MAX_POSITIONS && !classifier.budget.is_spent() {
        let kind = byte_kind(text[at]);
        if kind != ByteKind::Word {
            leads = kind == ByteKind::Prefix || (leads && kind == ByteKind::Blank);
            at += 1;
            continue;
        }
        let length = text[at..].iter().take_while(|b| byte_kind(**b) == ByteKind::Word).count();
        let word = &text[at..at + length];
        let name = word.rsplit(|b| *b == b'/').next().unwrap_or_default();
        if leads && could_be_named(name) && classifier.budget.spend_units(1) && is_worth_a_look(name) {
            candidates += 1;
            let end = scan_command(classifier, &text[at..], at);
            // The command after a wrapper was classified with it.
            if matches!(name, b"env" | b"sudo" | b"doas") {
                at += end.max(1);
                leads = true;
                continue;
            }
        }
        leads = (length <= MAX_PREFIX_BYTES && lists::has_word(lists::COMMAND_PREFIXES, word))
            || (leads && word.contains(&b'='));
        at += length;
    }
}

/// Kind of a byte for the fallback scan.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByteKind {
    Word,
    Blank,
    /// A command may follow it.
    Prefix,
    Other,
}

fn byte_kind(byte: u8) -> ByteKind {
    match byte {
        b';' | b'&' | b'|' | b'\n' | b'(' | b')' | b'{' | b'}' | b'\'' | b'"' | b'`' => ByteKind::Prefix,
        byte if byte.is_ascii_whitespace() => ByteKind::Blank,
        0..=b' ' | b'<' | b'>' => ByteKind::Other,
        _ => ByteKind::Word,
    }
}

/// Length of the longest word of [`lists::COMMAND_PREFIXES`].
const MAX_PREFIX_BYTES: usize = 7;

/// First two letters of every program to check: a row for each first letter, a bit for each second
/// one.
const PROGRAM_INITIALS: [u32; 26] = {
    let mut rows = [0; 26];
    let mut at = 0;
    while at < lists::SCANNED_PROGRAMS.len() {
        rows = with_beginning(rows, lists::SCANNED_PROGRAMS[at].as_bytes());
        at += 1;
    }
    let tables = [hazards::BY_NAME, hazards::BY_BEGINNING, stockade_effects::BY_NAME, stockade_effects::BY_BEGINNING];
    let mut table = 0;
    while table < tables.len() {
        let mut at = 0;
        while at < tables[table].len() {
            rows = with_beginning(rows, tables[table][at].0.as_bytes());
            at += 1;
        }
        table += 1;
    }
    rows
};

const fn with_beginning(mut rows: [u32; 26], name: &[u8]) -> [u32; 26] {
    if name.len() >= 2 && name[0].is_ascii_lowercase() && name[1].is_ascii_lowercase() {
        rows[(name[0] - b'a') as usize] |= 1 << (name[1] - b'a');
    }
    rows
}

/// Returns false if no program to check begins like this, which excludes most words.
fn could_be_named(name: &[u8]) -> bool {
    match name {
        [b'a'..=b'z'] | [] => false,
        [first @ b'a'..=b'z', second @ b'a'..=b'z', ..] => {
            PROGRAM_INITIALS[usize::from(first - b'a')] & (1 << (second - b'a')) != 0
        }
        _ => true,
    }
}

/// Returns whether the arguments of this program can be denied or need consent.
fn is_worth_a_look(name: &[u8]) -> bool {
    lists::has_word(lists::SCANNED_PROGRAMS, name)
        || hazards::program_hazards(name).next().is_some()
        || stockade_effects::may_have_effect(name)
}

/// Looks for a command after wrappers that are too many to be removed.
pub(crate) fn look_behind(classifier: &mut Classifier, arguments: &[ExpandedArgument], at: (usize, usize)) {
    const WRAPPER_PROGRAMS: &[&[u8]] = &[b"env", b"sudo", b"sh", b"bash"];
    let command_index = arguments.iter().position(|argument| {
        let text = argument.display_bytes();
        is_worth_a_look(&text) && !WRAPPER_PROGRAMS.contains(&text.as_slice())
    });
    if let Some(command) = command_index.and_then(|command_index| arguments.get(command_index..)) {
        rules::code::denials_only(classifier, |classifier| {
            classifier.unwrap_command(command.to_vec(), DataFlow::default(), at);
        });
    }
}

/// Scans the arguments of a program whose use of them is unknown. The program may run them as a
/// command, or a text in them as a script. Reports denials and effects that need consent, and
/// nothing else, because such a program is `ask` anyway.
pub(crate) fn look_among(classifier: &mut Classifier, arguments: &[ExpandedArgument], at: (usize, usize)) {
    let needs = classifier.capabilities.clone();
    let mut candidates = 0;
    for (index, argument) in arguments.iter().enumerate().take(MAX_ARGUMENTS) {
        let text = argument.display_bytes();
        if text.iter().any(u8::is_ascii_whitespace) {
            scan_text(classifier, &text);
            continue;
        }
        let name = text.rsplit(|b| *b == b'/').next().unwrap_or_default();
        if !could_be_named(name) || !is_worth_a_look(name) {
            continue;
        }
        candidates += 1;
        if candidates > MAX_ARGUMENT_COMMANDS {
            break;
        }
        let rest = &arguments[index + 1..];
        // `--exec PROGRAM -- ARGUMENTS`
        let behind =
            rest.iter().position(|argument| argument.display_bytes() == b"--").map(|dashes| &rest[dashes + 1..]);
        rules::code::denials_only(classifier, |classifier| {
            for rest in [Some(rest), behind].into_iter().flatten() {
                classifier.classify_command([std::slice::from_ref(argument), rest].concat(), DataFlow::default(), at);
            }
        });
    }
    classifier.capabilities = needs;
}

/// Reads up to the end of a command, without quotes and backslashes. Returns its length.
fn scan_command(classifier: &mut Classifier, text: &[u8], at: usize) -> usize {
    let end = text
        .iter()
        .take(MAX_COMMAND_BYTES)
        .position(|b| b";&|\n`)".contains(b))
        .unwrap_or(text.len().min(MAX_COMMAND_BYTES));
    let plain: Vec<u8> = text[..end].iter().copied().filter(|b| !b"'\"\\".contains(b)).collect();
    let words: Vec<ExpandedArgument> = plain
        .split(|b| b.is_ascii_whitespace())
        .filter(|w| !w.is_empty())
        .map(|w| ExpandedArgument::from_plain_text(w, (at, at + end)))
        .collect();
    rules::code::denials_only(classifier, |classifier| {
        classifier.classify_command(words, DataFlow::default(), (at, at + end));
    });
    end
}

/// Finds forms that are no commands.
fn scan_forms(classifier: &mut Classifier, text: &[u8]) {
    const FORM_PATTERNS: &[(&[u8], &str)] = &[
        (b":(){ :|:& };:", "process-bomb"),
        (b">/dev/sd", "destroys-disk"),
        (b"> /dev/sd", "destroys-disk"),
        (b">/dev/nvme", "destroys-disk"),
        (b"> /dev/nvme", "destroys-disk"),
        (b"/dev/tcp/", "reverse-shell"),
    ];
    // A single pass, because the text may be long and the work is limited.
    let mut found = [false; FORM_PATTERNS.len()];
    for (at, _) in text.iter().enumerate().filter(|(_, byte)| b":>/".contains(byte)) {
        for ((form, code), found) in FORM_PATTERNS.iter().zip(&mut found) {
            if !*found && text[at..].starts_with(form) {
                *found = true;
                classifier.record_denial(code, "Contains a pattern that is always harmful.", (at, at + form.len()));
            }
        }
    }
}
