//! Matches a command line with the table. It must not depend on the approver.

use stockade_model::wildcard_matches;

use crate::table::{Options, ProgramUse, has_word, program_options, program_uses};

/// Stands for a part of a word that is not known before the program starts.
pub const UNKNOWN_BYTE: u8 = 0;
/// Least length of an abbreviated long option, dashes included.
const MIN_ABBREVIATION: usize = 4;
/// Most words of statements that are read.
const MAX_STATEMENT_WORDS: usize = 4096;

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

/// Word of a command line, as far as it is known before the program starts.
#[derive(Clone, Copy, Debug)]
pub struct ProgramWord<'a> {
    /// Its bytes. [`UNKNOWN_BYTE`] stands for a part that is not known.
    pub text: &'a [u8],
    /// True if the bytes are the whole word.
    pub is_literal: bool,
    /// True if its beginning is not known.
    pub starts_unknown: bool,
    /// True if it is surely one word.
    pub is_one_word: bool,
}

impl<'a> ProgramWord<'a> {
    /// Makes a word of which all is known.
    pub fn from_known(text: &'a [u8]) -> Self {
        Self { text, is_literal: true, starts_unknown: false, is_one_word: true }
    }
}

struct RoleWord<'a> {
    role: WordRole,
    text: &'a [u8],
    source: ProgramWord<'a>,
}

/// A command line with the role of each word.
pub struct ProgramCall<'a> {
    program: &'a [u8],
    options: &'static Options,
    words: Vec<RoleWord<'a>>,
    input: Option<&'a [u8]>,
}

impl<'a> ProgramCall<'a> {
    /// Makes the call of a program, by its name without directories, with these words behind it.
    /// `input` is its standard input, as far as that is known.
    pub fn new(program: &'a [u8], all: impl Iterator<Item = ProgramWord<'a>>, input: Option<&'a [u8]>) -> Self {
        let options = program_options(program);
        let mut words: Vec<RoleWord<'a>> = Vec::new();
        let (mut ended, mut wants_value, mut may_want) = (false, false, false);
        for word in all {
            let text = word.text;
            let is_option = !ended && text.len() > 1 && text[0] == b'-';
            let role = match (wants_value, is_option, may_want) {
                (true, ..) => WordRole::Value,
                (false, true, _) => WordRole::Option,
                (false, false, true) => WordRole::Either,
                (false, false, false) => WordRole::Operand,
            };
            ended |= role == WordRole::Option && text == b"--";
            let takes_none = ended || text.contains(&b'=') || has_word(options.flags, text);
            wants_value = role == WordRole::Option && has_word(options.valued, text);
            may_want = role == WordRole::Option && !wants_value && !takes_none;
            if text != b"--" || role != WordRole::Option {
                words.push(RoleWord { role, text, source: word });
            }
        }
        Self { program, options, words, input }
    }

    /// Returns the codes of the effects, in the order of the table, and whether an unknown
    /// subcommand counts as an effect.
    pub fn find_effects(&self) -> (Vec<&'static str>, bool) {
        let (mut codes, mut unknown) = (Vec::new(), false);
        for known in program_uses(self.program).filter(|known| !self.is_dry_run(known)) {
            match self.match_use(known) {
                UseMatch::At(_) => codes.push(known.code),
                UseMatch::Unknown => unknown = true,
                UseMatch::No => {}
            }
        }
        (codes, unknown && self.options.acts)
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
                let is_flag = has_word(self.options.flags, word.text)
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
        has_word(self.options.flags, option) || has_word(self.options.valued, option)
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
                UseMatch::At(index) => behind = index,
                other => return other,
            }
        }
        let holds = !matches!(self.find_sequence(known.except), UseMatch::At(_))
            && known.needs.iter().all(|group| self.has_needed_word(group, known))
            && (known.says.is_empty() || self.has_statement(known.says))
            && (known.last.is_empty() || self.ends_with(known.last, behind))
            && self.words[behind..].iter().filter(|w| is_operand(w)).count() >= known.operands
            && !(known.loopback && self.stays_here(known))
            && !self.is_harmless(known, behind);
        if holds { UseMatch::At(behind) } else { UseMatch::No }
    }

    /// Returns the end of the first of these sequences of subcommands.
    fn find_sequence(&self, all: &[&[&[&str]]]) -> UseMatch {
        let mut unknown = false;
        for sequence in all {
            match self.one_sequence(sequence) {
                UseMatch::No => {}
                UseMatch::Unknown => unknown = true,
                found @ UseMatch::At(_) => return found,
            }
        }
        if unknown { UseMatch::Unknown } else { UseMatch::No }
    }

    fn one_sequence(&self, sequence: &[&[&str]]) -> UseMatch {
        let mut steps = sequence.iter();
        let Some(mut next) = steps.next() else { return UseMatch::No };
        for (index, word) in self.words.iter().enumerate().filter(|(_, word)| is_operand(word)) {
            if next.iter().any(|pattern| matches_word(pattern, word.text)) && !word.source.starts_unknown {
                match steps.next() {
                    Some(another) => next = another,
                    None => return UseMatch::At(index + 1),
                }
            } else if word.source.starts_unknown {
                let is_last = !self.words[index + 1..].iter().any(is_operand);
                if is_last || word.source.is_one_word {
                    return UseMatch::Unknown;
                }
            // `cargo +nightly publish`
            } else if word.role == WordRole::Operand && !(index == 0 && word.text.starts_with(b"+")) {
                return UseMatch::No;
            }
        }
        UseMatch::No
    }

    /// Returns whether only a name and a harmless value follow the subcommand.
    fn is_harmless(&self, known: &ProgramUse, behind: usize) -> bool {
        let mut operands: Vec<&RoleWord<'_>> = self.words[behind..].iter().filter(|word| is_operand(word)).collect();
        // `git config set NAME VALUE`
        if operands.len() == 3 && operands[0].text == b"set" {
            operands.remove(0);
        }
        let is_sure = |word: &&RoleWord<'_>| word.role == WordRole::Operand && word.source.is_literal;
        let is_one = |all: &[&str], word: &RoleWord<'_>| {
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
    fn has_needed_word(&self, group: &[&str], known: &ProgramUse) -> bool {
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
        self.words.iter().map(|word| word.text).chain(self.input).any(|text| {
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
        let operands: Vec<&RoleWord<'_>> = self.words[behind..].iter().filter(|word| is_operand(word)).collect();
        let is_kind = |word: &&RoleWord<'_>| match kind {
            "remote" => is_remote(word.text),
            pattern => matches_word(pattern, word.text),
        };
        // The value of an unknown option may follow it.
        let sure = operands.iter().rposition(|word| word.role == WordRole::Operand).unwrap_or(0).max(1);
        operands.get(sure..).is_some_and(|last| last.iter().any(is_kind))
    }

    /// Returns whether only this machine is reached.
    fn stays_here(&self, known: &ProgramUse) -> bool {
        let spoils = |word: &RoleWord<'_>| {
            word.role == WordRole::Option
                && known.spoils.iter().any(|option| is_option(option, word.text, self.options))
        };
        let mut targets = self.words.iter().filter(|word| is_operand(word)).peekable();
        targets.peek().is_some() && targets.all(|word| is_loopback(word.text)) && !self.words.iter().any(spoils)
    }
}

enum UseMatch {
    No,
    Unknown,
    /// Index after its last word.
    At(usize),
}

fn is_operand(word: &RoleWord<'_>) -> bool {
    matches!(word.role, WordRole::Operand | WordRole::Either)
}

/// Returns whether the text has the form `host:path` or `scheme://`.
fn is_remote(text: &[u8]) -> bool {
    let colon = text.iter().position(|b| *b == b':');
    let slash = text.iter().position(|b| *b == b'/').unwrap_or(text.len());
    colon.is_some_and(|at| at > 0 && at < slash)
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

/// Returns whether a value names, or may name, a host that is not in the list.
pub(crate) fn is_foreign(value: &[u8], hosts: &[&str]) -> bool {
    if value.starts_with(b"file:") {
        return false;
    }
    if !value.windows(3).any(|w| w == b"://") {
        return value.first() == Some(&UNKNOWN_BYTE);
    }
    let host = host_name(value);
    host.is_none_or(|host| !hosts.iter().any(|known| known.as_bytes() == host))
}

/// Returns whether the value is an address of this machine.
fn is_loopback(value: &[u8]) -> bool {
    let host = host_name(value);
    host.is_some_and(|host| host == b"localhost" || host == b"127.0.0.1")
}

/// Returns the host of `user@host:path`, `scheme://host:port/path` or `host:port`.
pub fn host_name(text: &[u8]) -> Option<Vec<u8>> {
    let rest = match text.windows(3).position(|w| w == b"://") {
        Some(at) => text.get(at + 3..)?,
        None => text,
    };
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    let authority = rest[..end].rsplit(|b| *b == b'@').next()?;
    let name = authority.split(|b| *b == b':').next()?;
    let plain = !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(b));
    plain.then(|| name.to_ascii_lowercase())
}

/// Returns whether a word matches a pattern of the table.
pub fn matches_word(pattern: &str, word: &[u8]) -> bool {
    let pattern = pattern.as_bytes();
    // Most patterns fail here.
    if pattern.first() != word.first() && !matches!(pattern.first(), Some(b'*' | b'?')) {
        return false;
    }
    wildcard_matches(pattern, word, b'*', |pattern_byte, found| pattern_byte == b'?' || pattern_byte == found)
}
