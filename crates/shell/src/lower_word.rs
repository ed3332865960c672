//! Converts nodes of the syntax tree to words: quote removal, escapes, continuations. Every byte
//! between quotes and expansions is read from the source, because the tree omits some. A byte at an
//! impossible position makes the word opaque. This module must not depend on any program.

use tree_sitter::Node;

use crate::parse::{Lowering, children};
use crate::script::{Atom, Dynamic, Nested, NestedKind, Simple, Statement, Word};

/// Represents a value that is certainly a number.
const ANY_NUMBER: &[u8] = b"?";

/// Quoting of a part of the source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quoting {
    None,
    Double,
    HereDocument,
}

/// Returns a word of unknown value, with the statements that were found inside.
pub(crate) fn opaque(inside: Vec<Statement>, span: (usize, usize)) -> Word {
    let nested = vec![Nested { body: inside, kind: NestedKind::Effect }];
    Word { atoms: vec![Atom::Dynamic(Dynamic::Opaque)], nested, span, ..Word::default() }
}

/// Appends the second word to the first.
pub(crate) fn append(first: &mut Word, second: &mut Word) {
    let offset = first.nested.len();
    for atom in &mut second.atoms {
        if let Atom::Dynamic(Dynamic::Nested { index, .. } | Dynamic::Output { index }) = atom {
            *index += offset;
        }
    }
    first.atoms.append(&mut second.atoms);
    first.nested.append(&mut second.nested);
    first.span.1 = second.span.1;
    first.quoted |= second.quoted;
    distrust_dollars(first);
}

/// Handles `{rm,-rf,/}` at the position of a command, which the grammar does not know. Returns its
/// plain words, so that they are classified although the whole stays not understood.
pub(crate) fn braced_command(lowering: Lowering, node: Node) -> Option<Statement> {
    let rest = lowering.source.get(node.start_byte()..)?;
    if node.kind() != "ERROR" || rest.first() != Some(&b'{') || rest.get(1)?.is_ascii_whitespace() {
        return None;
    }
    let end = rest.iter().position(|b| b"\n;|&<>()".contains(b)).unwrap_or(rest.len());
    let mut simple = Simple { span: (node.start_byte(), node.start_byte() + end), ..Simple::default() };
    for piece in rest[..end].split(|b| matches!(b, b' ' | b'\t')).filter(|p| !p.is_empty()) {
        let mut word = Word { span: simple.span, ..Word::default() };
        bytes(piece, &mut word, Quoting::None);
        simple.words.push(word);
    }
    Some(Statement::Simple(simple))
}

/// Returns the word at a node.
pub(crate) fn word(lowering: Lowering, node: Node) -> Word {
    let mut out = Word { span: (node.start_byte(), node.end_byte()), ..Word::default() };
    // Tokens of the grammar (`[`, `==`) are literal, never patterns.
    if !node.is_named() && node.kind() != "$" {
        push_bytes(&mut out, lowering.text(node), true);
        return out;
    }
    add(lowering, node, &mut out, Quoting::None);
    if matches!(out.atoms.first(), Some(Atom::Byte { byte: b'#', quoted: false })) {
        out.atoms.push(Atom::Dynamic(Dynamic::Opaque));
    }
    distrust_dollars(&mut out);
    out
}

/// Makes a word with a bare `$` opaque, unless the `$` is at its end. Before a quote it belongs to
/// the quote, whatever nodes the tree has.
fn distrust_dollars(out: &mut Word) {
    let is_dollar = |a: &Atom| matches!(a, Atom::Byte { byte: b'$', quoted: false });
    let first = out.atoms.iter().position(is_dollar);
    if first.is_some_and(|at| out.quoted || at + 1 < out.atoms.len()) {
        out.atoms.push(Atom::Dynamic(Dynamic::Opaque));
    }
}

fn add(lowering: Lowering, node: Node, out: &mut Word, quoting: Quoting) {
    let text = lowering.text(node);
    match node.kind() {
        "raw_string" => {
            let inner = text.strip_prefix(b"'").and_then(|t| t.strip_suffix(b"'"));
            match inner {
                Some(inner) => push_bytes(out, inner, true),
                None => out.atoms.push(Atom::Dynamic(Dynamic::Opaque)),
            }
        }
        "ansi_c_string" => {
            let inner = text.strip_prefix(b"$'").and_then(|t| t.strip_suffix(b"'"));
            match inner.and_then(ansi_c) {
                Some(inner) => push_bytes(out, &inner, true),
                None => out.atoms.push(Atom::Dynamic(Dynamic::Opaque)),
            }
        }
        "string" => {
            if text.len() < 2 || !text.starts_with(b"\"") || !text.ends_with(b"\"") {
                out.atoms.push(Atom::Dynamic(Dynamic::Opaque));
                return;
            }
            mark_quoted(out);
            range(lowering, node, (node.start_byte() + 1, node.end_byte() - 1), out, Quoting::Double);
        }
        "simple_expansion" => variable(lowering, node, out, quoting),
        "expansion" => expansion(lowering, node, out, quoting),
        "command_substitution" => substitution(lowering, node, out, quoting),
        "process_substitution" => {
            let kind = if text.starts_with(b"<(") { NestedKind::ReadFrom } else { NestedKind::WriteTo };
            nest(out, lowering.deeper().block(node), kind, false);
        }
        "arithmetic_expansion" if is_sum_of_numbers(text) => {
            out.atoms.push(Atom::Dynamic(Dynamic::Variable { name: ANY_NUMBER.to_vec(), quoted: true }));
        }
        "arithmetic_expansion" | "translated_string" => effects(lowering, node, out),
        "extglob_pattern" if text.contains(&b'(') => effects(lowering, node, out),
        _ => range(lowering, node, (node.start_byte(), node.end_byte()), out, Quoting::None),
    }
}

/// Returns whether the text is `$((...))` with digits and signs only, which cannot name a variable.
fn is_sum_of_numbers(text: &[u8]) -> bool {
    let inner = text.strip_prefix(b"$((").and_then(|t| t.strip_suffix(b"))"));
    inner.is_some_and(|t| t.iter().all(|byte| byte.is_ascii_digit() || b" +-*/%()".contains(byte)))
}

/// Marks the word as quoted, because an empty quoted string is a word too.
fn mark_quoted(out: &mut Word) {
    out.span.1 = out.span.1.max(out.span.0 + 1);
    out.quoted = true;
    out.starts_quoted |= out.atoms.is_empty();
}

fn nest(out: &mut Word, body: Vec<Statement>, kind: NestedKind, quoted: bool) {
    let index = out.nested.len();
    let file = kind == NestedKind::ReadFrom;
    out.atoms.push(Atom::Dynamic(if file { Dynamic::Output { index } } else { Dynamic::Nested { index, quoted } }));
    out.nested.push(Nested { body, kind });
}

/// Adds a value that is not modelled; the commands in it are.
fn effects(lowering: Lowering, node: Node, out: &mut Word) {
    let body = match lowering.deeper().statement(node) {
        Statement::Unknown(inside, _) => inside,
        other => vec![other],
    };
    out.nested.push(Nested { body, kind: NestedKind::Effect });
    out.atoms.push(Atom::Dynamic(Dynamic::Opaque));
}

fn variable(lowering: Lowering, node: Node, out: &mut Word, quoting: Quoting) {
    let text = lowering.text(node);
    // In a string, the grammar includes spaces before `$` in the expansion.
    let blanks = text.iter().take_while(|b| b.is_ascii_whitespace()).count();
    push_bytes(out, &text[..blanks], quoting != Quoting::None);
    let Some(name) = text[blanks..].strip_prefix(b"$") else {
        out.atoms.push(Atom::Dynamic(Dynamic::Opaque));
        return;
    };
    out.atoms.push(Atom::Dynamic(Dynamic::Variable { name: name.to_vec(), quoted: quoting != Quoting::None }));
}

fn expansion(lowering: Lowering, node: Node, out: &mut Word, quoting: Quoting) {
    let text = lowering.text(node);
    let name = text.strip_prefix(b"${").and_then(|t| t.strip_suffix(b"}"));
    match name {
        Some(name) if is_name(name) => {
            let quoted = quoting != Quoting::None;
            out.atoms.push(Atom::Dynamic(Dynamic::Variable { name: name.to_vec(), quoted }));
        }
        _ => effects(lowering, node, out),
    }
}

fn substitution(lowering: Lowering, node: Node, out: &mut Word, quoting: Quoting) {
    let mut body = lowering.deeper().block(node);
    let text = lowering.text(node);
    // In backquotes, the shell removes backslashes before it parses the command.
    if text.starts_with(b"`") && text.contains(&b'\\') {
        body = vec![Statement::Unknown(body, (node.start_byte(), node.end_byte()))];
    }
    nest(out, body, NestedKind::Output, quoting != Quoting::None);
}

/// Reads a part of the source: nodes if they are relevant, otherwise bytes.
fn range(lowering: Lowering, node: Node, (start, end): (usize, usize), out: &mut Word, quoting: Quoting) {
    let mut at = start;
    for child in children(node) {
        if child.start_byte() < at || child.end_byte() > end || !is_part(child.kind(), quoting) {
            continue;
        }
        bytes(lowering.source.get(at..child.start_byte()).unwrap_or_default(), out, quoting);
        add(lowering, child, out, quoting);
        at = child.end_byte();
    }
    bytes(lowering.source.get(at..end).unwrap_or_default(), out, quoting);
}

/// Returns whether a node kind is more than its bytes.
fn is_part(kind: &str, quoting: Quoting) -> bool {
    match kind {
        "simple_expansion" | "expansion" | "command_substitution" | "arithmetic_expansion" => true,
        "process_substitution"
        | "raw_string"
        | "ansi_c_string"
        | "string"
        | "translated_string"
        | "concatenation"
        | "extglob_pattern"
        | "word"
        | "brace_expression" => quoting == Quoting::None,
        _ => false,
    }
}

/// Adds plain source bytes with the escapes of the quoting.
fn bytes(text: &[u8], out: &mut Word, quoting: Quoting) {
    let quoted = quoting != Quoting::None;
    let mut at = 0;
    while at < text.len() {
        let byte = text[at];
        at += 1;
        match byte {
            b'\\' => {
                let Some(&next) = text.get(at) else {
                    out.atoms.push(Atom::Byte { byte, quoted });
                    if !quoted {
                        out.atoms.push(Atom::Dynamic(Dynamic::Opaque));
                    }
                    continue;
                };
                at += 1;
                let special = match quoting {
                    Quoting::None => true,
                    Quoting::Double => b"$`\"\\\n".contains(&next),
                    Quoting::HereDocument => b"$`\\\n".contains(&next),
                };
                if special && next == b'\n' {
                    continue;
                }
                if !special {
                    out.atoms.push(Atom::Byte { byte: b'\\', quoted: true });
                }
                out.atoms.push(Atom::Byte { byte: next, quoted: true });
            }
            b'`' => out.atoms.push(Atom::Dynamic(Dynamic::Opaque)),
            b'$' if text.get(at).is_some_and(|b| is_expansion_start(*b, quoted)) => {
                out.atoms.push(Atom::Dynamic(Dynamic::Opaque));
            }
            // Bytes that end or quote a word cannot be inside it unquoted.
            b' ' | b'\t' | b'\n' | b'\'' | b'"' | b'(' | b')' if !quoted => {
                out.atoms.push(Atom::Byte { byte, quoted });
                out.atoms.push(Atom::Dynamic(Dynamic::Opaque));
            }
            b';' | b'|' | b'&' if !quoted && text.len() > 2 => {
                out.atoms.push(Atom::Dynamic(Dynamic::Opaque));
            }
            b'"' if quoting == Quoting::Double => out.atoms.push(Atom::Dynamic(Dynamic::Opaque)),
            _ => out.atoms.push(Atom::Byte { byte, quoted }),
        }
    }
}

fn is_expansion_start(byte: u8, quoted: bool) -> bool {
    byte.is_ascii_alphanumeric() || b"_({[@*#?$!-".contains(&byte) || (!quoted && (byte == b'\'' || byte == b'"'))
}

fn is_name(name: &[u8]) -> bool {
    name.first().is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
        && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

fn push_bytes(out: &mut Word, text: &[u8], quoted: bool) {
    mark_quoted(out);
    out.atoms.extend(text.iter().map(|&byte| Atom::Byte { byte, quoted }));
}

/// Returns the body of a here-document, and whether its end agrees with bash.
pub(crate) fn here_document(
    lowering: Lowering,
    body: Option<Node>,
    delimiter: &[u8],
    quoted: bool,
    strip_tabs: bool,
) -> (Word, bool) {
    let Some(body) = body else { return (Word::default(), false) };
    let source = lowering.source;
    let mut start = body.start_byte();
    while start > 0 && source.get(start - 1).is_some_and(|b| *b != b'\n') {
        start -= 1;
    }
    let only_tabs = source.get(start..body.start_byte()).is_some_and(|g| g.iter().all(|b| *b == b'\t'));
    let mut out = Word { span: (start, body.end_byte()), ..Word::default() };
    let Some((end, after)) = end_of_document(source, start, delimiter, strip_tabs) else {
        return (out, false);
    };
    // The tree must agree: its body may end with the delimiter's own tabs.
    let agrees = only_tabs && body.end_byte() >= end && body.end_byte() <= after;
    if quoted {
        push_bytes(&mut out, source.get(start..end).unwrap_or_default(), true);
    } else {
        range(lowering, body, (start, end), &mut out, Quoting::HereDocument);
    }
    if strip_tabs {
        strip_leading_tabs(&mut out.atoms);
    }
    (out, agrees)
}

/// Returns the offsets of the delimiter's line, and of the delimiter on it.
fn end_of_document(source: &[u8], start: usize, delimiter: &[u8], strip_tabs: bool) -> Option<(usize, usize)> {
    let mut at = start;
    for line in source.get(start..)?.split(|b| *b == b'\n') {
        let tabs = if strip_tabs { line.iter().take_while(|b| **b == b'\t').count() } else { 0 };
        if &line[tabs..] == delimiter {
            return Some((at, at + tabs));
        }
        at += line.len() + 1;
    }
    None
}

fn strip_leading_tabs(atoms: &mut Vec<Atom>) {
    let mut line_start = true;
    atoms.retain(|atom| match atom {
        Atom::Byte { byte: b'\t', .. } if line_start => false,
        Atom::Byte { byte, .. } => {
            line_start = *byte == b'\n';
            true
        }
        Atom::Dynamic(_) => {
            line_start = false;
            true
        }
    });
}

/// Decodes the content of `$'...'` as in bash(1), QUOTING. Drops the text after a NUL like bash.
/// `None` if an escape is unknown.
pub(crate) fn ansi_c(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let byte = text[at];
        at += 1;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let kind = *text.get(at)?;
        at += 1;
        let simple = match kind {
            b'n' => Some(b'\n'),
            b't' => Some(b'\t'),
            b'r' => Some(b'\r'),
            b'a' => Some(7),
            b'b' => Some(8),
            b'e' | b'E' => Some(27),
            b'f' => Some(12),
            b'v' => Some(11),
            b'\\' | b'\'' | b'"' | b'?' => Some(kind),
            _ => None,
        };
        if let Some(simple) = simple {
            out.push(simple);
            continue;
        }
        let (base, most, from) = match kind {
            b'x' => (16, 2, at),
            b'u' => (16, 4, at),
            b'U' => (16, 8, at),
            b'0'..=b'7' => (8, 3, at - 1),
            _ => return None,
        };
        let digits = text[from..].iter().take(most).take_while(|b| (**b as char).is_digit(base)).count();
        let value = std::str::from_utf8(&text[from..from + digits]).ok()?;
        let value = u32::from_str_radix(value, base).ok()?;
        at = from + digits;
        if value == 0 {
            return Some(out);
        }
        if kind == b'u' || kind == b'U' {
            out.extend_from_slice(char::from_u32(value)?.encode_utf8(&mut [0; 4]).as_bytes());
        } else {
            out.push((value & 0xff) as u8);
        }
    }
    Some(out)
}
