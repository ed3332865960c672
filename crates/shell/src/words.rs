//! Converts words to arguments: brace expansion, tilde, and the few variables with a known value.
//! An argument records whether its value is in the text; nothing is guessed. It must not depend on
//! any program.

use crate::budget::WorkBudget;
use crate::script::{DynamicValue, ScriptWord, WordAtom};

/// Most arguments that one word may become.
const MAX_EXPANSION_ARGUMENTS: usize = 512;
/// Most bytes of all of them together.
const MAX_EXPANDED_BYTES: usize = 16 * 1024;
/// Bytes of words that are copied or searched for one unit of the budget.
const BYTES_PER_UNIT: usize = 8;
/// Represents an unknown part of a value that is only displayed or searched.
pub(crate) use stockade_effects::UNKNOWN_BYTE;

/// Known properties of data.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataFlow {
    /// True if it comes from the network.
    pub fetched: bool,
    /// True if it was decoded, decrypted or rewritten, so that a person cannot read it.
    pub decoded: bool,
    /// True if it contains a secret.
    pub secret: bool,
    /// True if it never ends.
    pub endless: bool,
    /// The bytes, if the text shows them.
    pub literal: Option<Vec<u8>>,
}

impl DataFlow {
    /// Adds the taints of `other`; the literal is lost.
    pub(crate) fn merge_taints(&mut self, other: &DataFlow) {
        self.fetched |= other.fetched;
        self.decoded |= other.decoded;
        self.secret |= other.secret;
        self.endless |= other.endless;
    }
}

/// Argument after expansion.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExpandedArgument {
    pub atoms: Vec<WordAtom>,
    pub span: (usize, usize),
    /// Flow of its dynamic parts.
    pub flow: DataFlow,
}

impl ExpandedArgument {
    /// Creates an argument of known bytes.
    pub(crate) fn from_bytes(text: &[u8], span: (usize, usize)) -> Self {
        Self { atoms: quoted_atoms(text).collect(), span, flow: DataFlow::default() }
    }

    /// Creates an argument of bytes as in a script without quotes.
    pub(crate) fn from_plain_text(text: &[u8], span: (usize, usize)) -> Self {
        let atoms = text
            .iter()
            .map(|&byte| match byte {
                b'$' => WordAtom::Dynamic(DynamicValue::Opaque),
                _ => WordAtom::Byte { byte, quoted: false },
            })
            .collect();
        Self { atoms, span, flow: DataFlow::default() }
    }

    /// Returns whether a part of it is not in the text.
    pub(crate) fn is_dynamic(&self) -> bool {
        self.atoms.iter().any(|a| matches!(a, WordAtom::Dynamic(_)))
    }

    /// Returns whether it is the name of a file with a command's output, `<(...)`.
    pub(crate) fn is_output(&self) -> bool {
        matches!(self.atoms.as_slice(), [WordAtom::Dynamic(DynamicValue::Output { .. })])
    }

    /// Returns whether the shell would match it against file names.
    pub(crate) fn is_glob(&self) -> bool {
        self.atoms.iter().any(is_glob_atom)
    }

    /// Returns whether its beginning is not in the text.
    pub(crate) fn starts_unknown(&self) -> bool {
        self.atoms.first().is_some_and(|a| matches!(a, WordAtom::Dynamic(_)) || is_glob_atom(a))
    }

    /// Returns the value, if it is in the text and not a pattern.
    pub(crate) fn literal_value(&self) -> Option<Vec<u8>> {
        if self.is_glob() { None } else { self.pattern_value() }
    }

    /// Returns the value, if it is in the text; globs are unchanged.
    pub(crate) fn pattern_value(&self) -> Option<Vec<u8>> {
        known_bytes(&self.atoms)
    }

    /// Returns the bytes with [`UNKNOWN_BYTE`] for each part that is not in the text.
    pub(crate) fn display_bytes(&self) -> Vec<u8> {
        display_atoms(&self.atoms)
    }

    /// Returns the rest after the first `count` atoms.
    pub(crate) fn skip_atoms(&self, count: usize) -> Self {
        let atoms = self.atoms.get(count..).unwrap_or_default().to_vec();
        Self { atoms, span: self.span, flow: self.flow.clone() }
    }

    /// Returns whether it stays one word for every value of its dynamic parts: public variables, as
    /// defined by `is_public`, and quoted output of commands.
    pub(crate) fn is_one_text(&self, is_public: impl Fn(&[u8]) -> bool) -> bool {
        self.atoms.iter().all(|a| match a {
            WordAtom::Byte { .. } | WordAtom::Dynamic(DynamicValue::Nested { quoted: true, .. }) => true,
            WordAtom::Dynamic(DynamicValue::Variable { name, .. }) => is_public(name),
            WordAtom::Dynamic(_) => false,
        })
    }

    /// Returns the names of its variables, if it has no other dynamic parts.
    pub(crate) fn only_variables(&self) -> Option<Vec<&[u8]>> {
        self.atoms
            .iter()
            .filter_map(|a| match a {
                WordAtom::Byte { .. } => None,
                WordAtom::Dynamic(DynamicValue::Variable { name, .. }) => Some(Some(name.as_slice())),
                WordAtom::Dynamic(_) => Some(None),
            })
            .collect()
    }
}

fn quoted_atoms(text: &[u8]) -> impl Iterator<Item = WordAtom> {
    text.iter().map(|&byte| WordAtom::Byte { byte, quoted: true })
}

/// Returns the bytes of atoms for display and search.
pub(crate) fn display_atoms(atoms: &[WordAtom]) -> Vec<u8> {
    let byte_of = |atom: &WordAtom| match atom {
        WordAtom::Byte { byte, .. } => *byte,
        WordAtom::Dynamic(_) => UNKNOWN_BYTE,
    };
    atoms.iter().map(byte_of).collect()
}

/// Returns the bytes of atoms; `None` if a part is dynamic.
fn known_bytes(atoms: &[WordAtom]) -> Option<Vec<u8>> {
    let byte_of = |atom: &WordAtom| match atom {
        WordAtom::Byte { byte, .. } => Some(*byte),
        WordAtom::Dynamic(_) => None,
    };
    atoms.iter().map(byte_of).collect()
}

fn is_glob_atom(atom: &WordAtom) -> bool {
    matches!(atom, WordAtom::Byte { byte: b'*' | b'?' | b'[', quoted: false })
}

/// Value of a variable, as far as it is known.
#[derive(Clone, Debug)]
pub(crate) enum VariableValue {
    Known(Vec<u8>),
    Unknown(DataFlow),
}

/// Looks up the value of a variable; `None` if nothing is known of it.
pub(crate) type VariableLookup<'a> = &'a dyn Fn(&[u8]) -> Option<VariableValue>;

/// Returns the arguments of a word; `None` if there would be too many, or the budget is spent.
/// `flows` are those of the nested scripts, in order.
pub(crate) fn expand_word(
    word: &ScriptWord,
    flows: &[DataFlow],
    values: VariableLookup<'_>,
    budget: &WorkBudget,
) -> Option<Vec<ExpandedArgument>> {
    let mut alternatives = vec![word.atoms.clone()];
    if word.atoms.iter().any(|a| matches!(a, WordAtom::Byte { byte: b'{', quoted: false })) {
        alternatives = Vec::new();
        let mut braces = BraceExpansion { quoted: word.quoted, out: &mut alternatives, budget };
        braces.expand_atoms(&word.atoms, 0)?;
    }
    let mut out = Vec::with_capacity(alternatives.len());
    for atoms in alternatives {
        let mut argument = ExpandedArgument { atoms: Vec::new(), span: word.span, flow: DataFlow::default() };
        let atoms = if word.starts_quoted { atoms } else { expand_home_tilde(atoms, values) };
        substitute_values(atoms, flows, values, &mut argument);
        let enough = budget.spend_units((argument.atoms.len() / BYTES_PER_UNIT + flows.len()) as u64);
        if !enough {
            return None;
        }
        out.push(argument);
    }
    Some(out)
}

/// Substitutes the known values.
fn substitute_values(atoms: Vec<WordAtom>, flows: &[DataFlow], values: VariableLookup<'_>, out: &mut ExpandedArgument) {
    for atom in atoms {
        match &atom {
            WordAtom::Byte { .. } => out.atoms.push(atom),
            WordAtom::Dynamic(DynamicValue::Nested { index, .. } | DynamicValue::Output { index }) => {
                if let Some(flow) = flows.get(*index) {
                    out.flow.merge_taints(flow);
                }
                out.atoms.push(atom);
            }
            WordAtom::Dynamic(DynamicValue::Opaque) => {
                flows.iter().for_each(|flow| out.flow.merge_taints(flow));
                out.atoms.push(atom);
            }
            WordAtom::Dynamic(DynamicValue::Variable { name, quoted }) => match values(name) {
                // Without quotes, a value is split and matched, so only plain ones stay known.
                Some(VariableValue::Known(value)) if *quoted || value.iter().all(|b| is_plain(*b)) => {
                    out.atoms.extend(quoted_atoms(&value));
                }
                Some(VariableValue::Unknown(flow)) => {
                    out.flow.merge_taints(&flow);
                    out.atoms.push(atom);
                }
                _ => out.atoms.push(atom),
            },
        }
    }
}

/// Returns whether word splitting and globbing leave a byte unchanged.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-+=:,@%".contains(&byte)
}

fn expand_home_tilde(mut atoms: Vec<WordAtom>, values: VariableLookup<'_>) -> Vec<WordAtom> {
    if !matches!(atoms.first(), Some(WordAtom::Byte { byte: b'~', quoted: false })) {
        return atoms;
    }
    let home = match values(b"HOME") {
        Some(VariableValue::Known(home)) => Some(home),
        _ => None,
    };
    match (atoms.get(1), home) {
        (None | Some(WordAtom::Byte { byte: b'/', .. }), Some(home)) => {
            atoms.splice(0..1, quoted_atoms(&home));
        }
        _ if atoms.len() == 5 && atoms_are(&atoms, b"~root") => {
            atoms = quoted_atoms(b"/root").collect();
        }
        (_, Some(home)) if is_tilde_of(&atoms, &home) => {
            let name = home.rsplit(|byte| *byte == b'/').next().map_or(0, <[u8]>::len);
            atoms.splice(0..=name, quoted_atoms(&home));
        }
        _ => atoms[0] = WordAtom::Dynamic(DynamicValue::Opaque),
    }
    atoms
}

/// Returns whether `~name` has the name of the home directory, which is the name of its owner.
fn is_tilde_of(atoms: &[WordAtom], home: &[u8]) -> bool {
    let name = home.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let Some(rest) = atoms.get(1..).filter(|rest| !name.is_empty() && rest.len() >= name.len()) else { return false };
    atoms_are(rest, name) && matches!(rest.get(name.len()), None | Some(WordAtom::Byte { byte: b'/', .. }))
}

fn atoms_are(atoms: &[WordAtom], text: &[u8]) -> bool {
    atoms.iter().zip(text).all(|(a, t)| matches!(a, WordAtom::Byte { byte, .. } if byte == t))
}

fn is_unquoted(atom: &WordAtom, expected: u8) -> bool {
    matches!(atom, WordAtom::Byte { byte, quoted: false } if *byte == expected)
}

/// Brace expansion as in bash(1).
struct BraceExpansion<'a> {
    /// The word contains a quote.
    quoted: bool,
    out: &'a mut Vec<Vec<WordAtom>>,
    budget: &'a WorkBudget,
}

impl BraceExpansion<'_> {
    /// Expands the atoms; `None` if this is too much work, or unknown.
    fn expand_atoms(&mut self, atoms: &[WordAtom], depth: usize) -> Option<()> {
        if depth > 16 {
            return None;
        }
        let cost = (atoms.len() / BYTES_PER_UNIT + 1) as u64;
        let mut open = 0;
        while let Some(at) = atoms[open..].iter().position(|a| is_unquoted(a, b'{')).map(|i| i + open) {
            if !self.budget.spend_units(cost) {
                return None;
            }
            let Some((close, commas)) = matching_brace(atoms, at) else {
                open = at + 1;
                continue;
            };
            let alternatives = if commas.is_empty() {
                match expand_sequence(&atoms[at + 1..close])? {
                    // With a quote, even an empty one, it is no sequence.
                    Some(_) if self.quoted => return None,
                    Some(values) => values,
                    None => {
                        open = at + 1;
                        continue;
                    }
                }
            } else {
                let mut from = at + 1;
                let mut list = Vec::new();
                for to in commas.into_iter().chain([close]) {
                    list.push(atoms[from..to].to_vec());
                    from = to + 1;
                }
                list
            };
            for alternative in alternatives {
                let whole: Vec<WordAtom> =
                    atoms[..at].iter().cloned().chain(alternative).chain(atoms[close + 1..].iter().cloned()).collect();
                self.expand_atoms(&whole, depth + 1)?;
                let too_many =
                    self.out.len() > MAX_EXPANSION_ARGUMENTS || self.out.len() * atoms.len() > MAX_EXPANDED_BYTES;
                if too_many || !self.budget.spend_units(cost) {
                    return None;
                }
            }
            return Some(());
        }
        self.out.push(atoms.to_vec());
        Some(())
    }
}

/// Returns the closing brace for the one at `open`, and the commas directly inside.
fn matching_brace(atoms: &[WordAtom], open: usize) -> Option<(usize, Vec<usize>)> {
    let mut level = 0;
    let mut commas = Vec::new();
    for (at, atom) in atoms.iter().enumerate().skip(open) {
        if is_unquoted(atom, b'{') {
            level += 1;
        } else if is_unquoted(atom, b'}') {
            level -= 1;
            if level == 0 {
                return Some((at, commas));
            }
        } else if level == 1 && is_unquoted(atom, b',') {
            commas.push(at);
        }
    }
    None
}

/// Expands `1..5`, `a..e`, `1..9..2`; the outer `None` if it is too long, the inner if it is no
/// sequence.
#[allow(clippy::option_option)]
fn expand_sequence(atoms: &[WordAtom]) -> Option<Option<Vec<Vec<WordAtom>>>> {
    let Some(text) = known_bytes(atoms).and_then(|t| String::from_utf8(t).ok()) else { return Some(None) };
    let parts: Vec<&str> = text.split("..").collect();
    if parts.len() != 2 && parts.len() != 3 {
        return Some(None);
    }
    let step = parts.get(2).map_or(Some(1), |s| s.parse::<i64>().ok());
    let ends = match (parts[0].parse::<i64>(), parts[1].parse::<i64>()) {
        (Ok(from), Ok(to)) => Some((from, to, false)),
        _ => match (parts[0].as_bytes(), parts[1].as_bytes()) {
            ([a], [b]) if a.is_ascii_alphabetic() && b.is_ascii_alphabetic() => {
                Some((i64::from(*a), i64::from(*b), true))
            }
            _ => None,
        },
    };
    let (Some((from, to, letters)), Some(step)) = (ends, step) else { return Some(None) };
    let step = step.unsigned_abs().max(1);
    let count = to.abs_diff(from) / step + 1;
    if count > MAX_EXPANSION_ARGUMENTS as u64 {
        return None;
    }
    let values = (0..count as i64).map(|i| {
        let value = if to >= from { from + i * step as i64 } else { from - i * step as i64 };
        let text = if letters { vec![value as u8] } else { value.to_string().into_bytes() };
        quoted_atoms(&text).collect()
    });
    Some(Some(values.collect()))
}
