//! The last look at texts that are not parsed: too long, too deep, or not read
//! in time. Finds literal denials, and effects that need consent, where a command
//! could stand, and says nothing else: such a text is one to ask about anyway. Work grows with the length of
//! the text alone.

use crate::budget::Budget;
use crate::judge::Judge;
use crate::knowledge::{hazards, impacts};
use crate::rules;
use crate::words::{Argument, Flow};

/// Deepest nesting that is parsed; the parser's own cost grows with it.
const MAX_OPEN: usize = 56;
/// Longest row of `!`.
const MAX_NEGATIONS: usize = 24;
/// Most places that are judged.
const MAX_PLACES: usize = 100;
/// Most arguments of an unknown program that are looked at, and most commands that are
/// judged among them.
const MAX_ARGUMENTS: usize = 64;
const MAX_COMMANDS_AMONG: usize = 4;
/// Longest stretch that is read as one command, in bytes.
const MAX_COMMAND: usize = 512;

/// Programs that can be denied by what their words say, beside those of the
/// table of hazards.
const WORTH_A_LOOK: &[&[u8]] = &[
    b"rm",
    b"mv",
    b"cp",
    b"ln",
    b"dd",
    b"tee",
    b"find",
    b"chmod",
    b"chown",
    b"chgrp",
    b"shred",
    b"truncate",
    b"unlink",
    b"rmdir",
    b"install",
    b"rsync",
    b"curl",
    b"wget",
    b"nc",
    b"ncat",
    b"scp",
    b"sudo",
    b"env",
    b"sh",
    b"bash",
    b"eval",
];

/// Words after which a command stands.
const LEADS: &[&[u8]] = &[
    b"then", b"do", b"else", b"elif", b"if", b"while", b"until", b"!", b"time", b"sudo", b"doas", b"exec", b"command",
    b"nohup", b"env", b"eval", b"xargs", b"coproc", // What debuggers and expect(1) call it.
    b"shell", b"spawn", b"system",
];

/// True if a text is nested more deeply than is worth parsing. Counted by bytes,
/// quotes ignored: a text with that many brackets is not reviewed either way.
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
        if open > MAX_OPEN || negations > MAX_NEGATIONS {
            return true;
        }
    }
    false
}

/// Judges what stands in the text literally. The looks of one assessment share
/// one budget of their own.
pub(crate) fn look(judge: &mut Judge, text: &[u8]) {
    forms(judge, text);
    let own = std::mem::replace(&mut judge.last_look, Budget::of(0));
    let outer = std::mem::replace(&mut judge.budget, own);
    commands(judge, text);
    judge.last_look = std::mem::replace(&mut judge.budget, outer);
}

/// Judges what stands where a command could.
fn commands(judge: &mut Judge, text: &[u8]) {
    let mut places = 0;
    let mut at = 0;
    let mut leads = true;
    while at < text.len() && places < MAX_PLACES && !judge.budget.is_spent() {
        let kind = KINDS[usize::from(text[at])];
        if kind != Kind::Word {
            leads = kind == Kind::Lead || (leads && kind == Kind::Blank);
            at += 1;
            continue;
        }
        let length = text[at..].iter().take_while(|b| KINDS[usize::from(**b)] == Kind::Word).count();
        let word = &text[at..at + length];
        let name = word.rsplit(|b| *b == b'/').next().unwrap_or_default();
        if leads && could_be_named(name) && judge.budget.spend(1) && is_worth_a_look(name) {
            places += 1;
            let end = command(judge, &text[at..], at);
            // A wrapper was seen through: what it runs was judged with it.
            if matches!(name, b"env" | b"sudo" | b"doas") {
                at += end.max(1);
                leads = true;
                continue;
            }
        }
        leads = (length <= LONGEST_LEAD && LEADS.contains(&word)) || (leads && word.contains(&b'='));
        at += length;
    }
}

/// What a byte is for the last look.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    Blank,
    /// A command may stand behind it.
    Lead,
    Other,
}

const KINDS: [Kind; 256] = {
    let mut kinds = [Kind::Word; 256];
    let mut byte = 0;
    while byte <= b' ' {
        kinds[byte as usize] = if byte.is_ascii_whitespace() { Kind::Blank } else { Kind::Other };
        byte += 1;
    }
    let leads = b";&|\n(){}'\"`";
    let mut at = 0;
    while at < leads.len() {
        kinds[leads[at] as usize] = Kind::Lead;
        at += 1;
    }
    kinds[b'<' as usize] = Kind::Other;
    kinds[b'>' as usize] = Kind::Other;
    kinds
};

/// Longest word of [`LEADS`].
const LONGEST_LEAD: usize = 7;

/// The first two letters of every program that is worth a look: a row for each
/// first letter, a bit for each second one.
const BEGINNINGS: [u32; 26] = {
    let mut rows = [0; 26];
    let mut at = 0;
    while at < WORTH_A_LOOK.len() {
        rows = with_beginning(rows, WORTH_A_LOOK[at]);
        at += 1;
    }
    let tables = [
        hazards::BY_NAME.as_slice(),
        hazards::BY_BEGINNING.as_slice(),
        impacts::BY_NAME.as_slice(),
        impacts::BY_BEGINNING.as_slice(),
    ];
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

/// False if no program that is worth a look begins like this: most words end
/// here.
fn could_be_named(name: &[u8]) -> bool {
    match name {
        [b'a'..=b'z'] | [] => false,
        [first @ b'a'..=b'z', second @ b'a'..=b'z', ..] => {
            BEGINNINGS[usize::from(first - b'a')] & (1 << (second - b'a')) != 0
        }
        _ => true,
    }
}

/// True if words behind this program can be denied or need consent.
fn is_worth_a_look(name: &[u8]) -> bool {
    WORTH_A_LOOK.contains(&name) || hazards::of(name).next().is_some() || impacts::of(name).next().is_some()
}

/// Looks for a command behind wrappers that are too many to be peeled.
pub(crate) fn look_behind(judge: &mut Judge, arguments: &[Argument], at: (usize, usize)) {
    const LEADING: &[&[u8]] = &[b"env", b"sudo", b"sh", b"bash"];
    let place = arguments.iter().position(|argument| {
        let text = argument.shown();
        is_worth_a_look(&text) && !LEADING.contains(&text.as_slice())
    });
    if let Some(command) = place.and_then(|place| arguments.get(place..)) {
        rules::code::denials_only(judge, |judge| {
            judge.unwrapped(command.to_vec(), Flow::default(), at);
        });
    }
}

/// Looks among the arguments of a program of which it is not known what it does with
/// them: it may run them as a command, or a text in them as a script. Says what is
/// denied there or needs consent, and nothing else; such a program is one to ask about anyway.
pub(crate) fn look_among(judge: &mut Judge, arguments: &[Argument], at: (usize, usize)) {
    let needs = judge.capabilities.clone();
    let mut places = 0;
    for (index, argument) in arguments.iter().enumerate().take(MAX_ARGUMENTS) {
        let text = argument.shown();
        if text.iter().any(u8::is_ascii_whitespace) {
            look(judge, &text);
            continue;
        }
        let name = text.rsplit(|b| *b == b'/').next().unwrap_or_default();
        if !could_be_named(name) || !is_worth_a_look(name) {
            continue;
        }
        places += 1;
        if places > MAX_COMMANDS_AMONG {
            break;
        }
        let rest = &arguments[index + 1..];
        // `--exec PROGRAM -- ARGUMENTS`
        let behind = rest.iter().position(|argument| argument.shown() == b"--").map(|dashes| &rest[dashes + 1..]);
        rules::code::denials_only(judge, |judge| {
            for rest in [Some(rest), behind].into_iter().flatten() {
                judge.command([std::slice::from_ref(argument), rest].concat(), Flow::default(), at);
            }
        });
    }
    judge.capabilities = needs;
}

/// Reads up to the end of a command, quotes and backslashes taken out. How long
/// it is.
fn command(judge: &mut Judge, text: &[u8], at: usize) -> usize {
    let end = text.iter().take(MAX_COMMAND).position(|b| b";&|\n`)".contains(b)).unwrap_or(text.len().min(MAX_COMMAND));
    let plain: Vec<u8> = text[..end].iter().copied().filter(|b| !b"'\"\\".contains(b)).collect();
    let words: Vec<Argument> = plain
        .split(|b| b.is_ascii_whitespace())
        .filter(|w| !w.is_empty())
        .map(|w| Argument::plain(w, (at, at + end)))
        .collect();
    rules::code::denials_only(judge, |judge| {
        judge.command(words, Flow::default(), (at, at + end));
    });
    end
}

/// Forms that are no commands.
fn forms(judge: &mut Judge, text: &[u8]) {
    const FORMS: &[(&[u8], &str)] = &[
        (b":(){ :|:& };:", "process-bomb"),
        (b">/dev/sd", "destroys-disk"),
        (b"> /dev/sd", "destroys-disk"),
        (b">/dev/nvme", "destroys-disk"),
        (b"> /dev/nvme", "destroys-disk"),
        (b"/dev/tcp/", "reverse-shell"),
    ];
    // One pass: the text may be long, and time is counted.
    let mut found = [false; FORMS.len()];
    for (at, _) in text.iter().enumerate().filter(|(_, byte)| b":>/".contains(byte)) {
        for ((form, code), found) in FORMS.iter().zip(&mut found) {
            if !*found && text[at..].starts_with(form) {
                *found = true;
                judge.deny(code, "Holds a form that is never harmless.", (at, at + form.len()));
            }
        }
    }
}
