//! Converts nodes of the syntax tree to words: quote removal, escapes, continuations. Every byte
//! between quotes and expansions is read from the source, because the tree omits some. A byte at an
//! impossible position makes the word opaque. This module must not depend on any program.

use tree_sitter::Node;

use crate::parse::{ScriptLowering, child_nodes};
use crate::script::{DynamicValue, NestedKind, NestedScript, ScriptStatement, ScriptWord, SimpleCommand, WordAtom};

/// Represents a value that is certainly a number.
const ANY_NUMBER: &[u8] = b"?";

/// Quoting of a part of the source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QuotingStyle {
    None,
    Double,
    HereDocument,
}

/// Returns a word of unknown value, with the statements that were found inside.
pub(crate) fn opaque_word(inside: Vec<ScriptStatement>, span: (usize, usize)) -> ScriptWord {
    let nested = vec![NestedScript { body: inside, kind: NestedKind::Effect }];
    ScriptWord { atoms: vec![WordAtom::Dynamic(DynamicValue::Opaque)], nested, span, ..ScriptWord::default() }
}

/// Appends the second word to the first.
pub(crate) fn append_word(first: &mut ScriptWord, second: &mut ScriptWord) {
    let offset = first.nested.len();
    for atom in &mut second.atoms {
        if let WordAtom::Dynamic(DynamicValue::Nested { index, .. } | DynamicValue::Output { index }) = atom {
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
pub(crate) fn braced_command(lowering: ScriptLowering, node: Node) -> Option<ScriptStatement> {
    let rest = lowering.source.get(node.start_byte()..)?;
    if node.kind() != "ERROR" || rest.first() != Some(&b'{') || rest.get(1)?.is_ascii_whitespace() {
        return None;
    }
    let end = rest.iter().position(|b| b"\n;|&<>()".contains(b)).unwrap_or(rest.len());
    let mut simple = SimpleCommand { span: (node.start_byte(), node.start_byte() + end), ..SimpleCommand::default() };
    for piece in rest[..end].split(|b| matches!(b, b' ' | b'\t')).filter(|p| !p.is_empty()) {
        let mut word = ScriptWord { span: simple.span, ..ScriptWord::default() };
        add_bytes(piece, &mut word, QuotingStyle::None);
        simple.words.push(word);
    }
    Some(ScriptStatement::Simple(simple))
}

/// Returns the word at a node.
pub(crate) fn lower_word(lowering: ScriptLowering, node: Node) -> ScriptWord {
    let mut out = ScriptWord { span: (node.start_byte(), node.end_byte()), ..ScriptWord::default() };
    // Tokens of the grammar (`[`, `==`) are literal, never patterns.
    if !node.is_named() && node.kind() != "$" {
        push_bytes(&mut out, lowering.node_text(node), true);
        return out;
    }
    add_node(lowering, node, &mut out, QuotingStyle::None);
    if matches!(out.atoms.first(), Some(WordAtom::Byte { byte: b'#', quoted: false })) {
        push_opaque(&mut out);
    }
    distrust_dollars(&mut out);
    out
}

/// Makes a word with a bare `$` opaque, unless the `$` is at its end. Before a quote it belongs to
/// the quote, whatever nodes the tree has.
fn distrust_dollars(out: &mut ScriptWord) {
    let is_dollar = |a: &WordAtom| matches!(a, WordAtom::Byte { byte: b'$', quoted: false });
    let first = out.atoms.iter().position(is_dollar);
    if first.is_some_and(|at| out.quoted || at + 1 < out.atoms.len()) {
        push_opaque(out);
    }
}

fn add_node(lowering: ScriptLowering, node: Node, out: &mut ScriptWord, quoting: QuotingStyle) {
    let text = lowering.node_text(node);
    match node.kind() {
        "raw_string" => push_known(out, between(text, b"'", b"'")),
        "ansi_c_string" => push_known(out, between(text, b"$'", b"'").and_then(ansi_c).as_deref()),
        "string" => match between(text, b"\"", b"\"") {
            Some(inner) => {
                mark_quoted(out);
                let start = node.start_byte() + 1;
                add_range(lowering, node, (start, start + inner.len()), out, QuotingStyle::Double);
            }
            None => push_opaque(out),
        },
        "simple_expansion" => add_variable(lowering, node, out, quoting),
        "expansion" => add_expansion(lowering, node, out, quoting),
        "command_substitution" => add_substitution(lowering, node, out, quoting),
        "process_substitution" => {
            let kind = if text.starts_with(b"<(") { NestedKind::ReadFrom } else { NestedKind::WriteTo };
            add_nested(out, lowering.descend_level().lower_block(node), kind, false);
        }
        "arithmetic_expansion" if is_sum_of_numbers(text) => {
            push_variable(out, ANY_NUMBER, QuotingStyle::Double);
        }
        "arithmetic_expansion" | "translated_string" => add_effects(lowering, node, out),
        "extglob_pattern" if text.contains(&b'(') => add_effects(lowering, node, out),
        _ => add_range(lowering, node, (node.start_byte(), node.end_byte()), out, QuotingStyle::None),
    }
}

/// Returns the text between these marks.
fn between<'t>(text: &'t [u8], start: &[u8], end: &[u8]) -> Option<&'t [u8]> {
    text.strip_prefix(start)?.strip_suffix(end)
}

/// Returns whether the text is `$((...))` with digits and signs only, which cannot name a variable.
fn is_sum_of_numbers(text: &[u8]) -> bool {
    between(text, b"$((", b"))")
        .is_some_and(|t| t.iter().all(|byte| byte.is_ascii_digit() || b" +-*/%()".contains(byte)))
}

/// Marks the word as quoted, because an empty quoted string is a word too.
fn mark_quoted(out: &mut ScriptWord) {
    out.span.1 = out.span.1.max(out.span.0 + 1);
    out.quoted = true;
    out.starts_quoted |= out.atoms.is_empty();
}

fn add_nested(out: &mut ScriptWord, body: Vec<ScriptStatement>, kind: NestedKind, quoted: bool) {
    let index = out.nested.len();
    let file = kind == NestedKind::ReadFrom;
    out.atoms.push(WordAtom::Dynamic(if file {
        DynamicValue::Output { index }
    } else {
        DynamicValue::Nested { index, quoted }
    }));
    out.nested.push(NestedScript { body, kind });
}

/// Adds a value that is not modelled; the commands in it are.
fn add_effects(lowering: ScriptLowering, node: Node, out: &mut ScriptWord) {
    let body = match lowering.descend_level().lower_statement(node) {
        ScriptStatement::Unknown(inside, _) => inside,
        other => vec![other],
    };
    out.nested.push(NestedScript { body, kind: NestedKind::Effect });
    push_opaque(out);
}

fn add_variable(lowering: ScriptLowering, node: Node, out: &mut ScriptWord, quoting: QuotingStyle) {
    let text = lowering.node_text(node);
    // In a string, the grammar includes spaces before `$` in the expansion.
    let blanks = text.iter().take_while(|b| b.is_ascii_whitespace()).count();
    push_bytes(out, &text[..blanks], quoting != QuotingStyle::None);
    let Some(name) = text[blanks..].strip_prefix(b"$") else {
        push_opaque(out);
        return;
    };
    push_variable(out, name, quoting);
}

fn add_expansion(lowering: ScriptLowering, node: Node, out: &mut ScriptWord, quoting: QuotingStyle) {
    let text = lowering.node_text(node);
    match between(text, b"${", b"}") {
        Some(name) if is_name(name) => push_variable(out, name, quoting),
        _ => add_effects(lowering, node, out),
    }
}

fn add_substitution(lowering: ScriptLowering, node: Node, out: &mut ScriptWord, quoting: QuotingStyle) {
    let mut body = lowering.descend_level().lower_block(node);
    let text = lowering.node_text(node);
    // In backquotes, the shell removes backslashes before it parses the command.
    if text.starts_with(b"`") && text.contains(&b'\\') {
        body = vec![ScriptStatement::Unknown(body, (node.start_byte(), node.end_byte()))];
    }
    add_nested(out, body, NestedKind::Output, quoting != QuotingStyle::None);
}

/// Reads a part of the source: nodes if they are relevant, otherwise bytes.
fn add_range(
    lowering: ScriptLowering,
    node: Node,
    (start, end): (usize, usize),
    out: &mut ScriptWord,
    quoting: QuotingStyle,
) {
    let mut at = start;
    for child in child_nodes(node) {
        if child.start_byte() < at || child.end_byte() > end || !is_part(child.kind(), quoting) {
            continue;
        }
        add_bytes(lowering.source.get(at..child.start_byte()).unwrap_or_default(), out, quoting);
        add_node(lowering, child, out, quoting);
        at = child.end_byte();
    }
    add_bytes(lowering.source.get(at..end).unwrap_or_default(), out, quoting);
}

/// Returns whether a node kind is more than its bytes.
fn is_part(kind: &str, quoting: QuotingStyle) -> bool {
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
        | "brace_expression" => quoting == QuotingStyle::None,
        _ => false,
    }
}

/// Adds plain source bytes with the escapes of the quoting.
fn add_bytes(text: &[u8], out: &mut ScriptWord, quoting: QuotingStyle) {
    let quoted = quoting != QuotingStyle::None;
    let mut at = 0;
    while at < text.len() {
        let byte = text[at];
        at += 1;
        match byte {
            b'\\' => {
                let Some(&next) = text.get(at) else {
                    out.atoms.push(WordAtom::Byte { byte, quoted });
                    if !quoted {
                        push_opaque(out);
                    }
                    continue;
                };
                at += 1;
                let special = match quoting {
                    QuotingStyle::None => true,
                    QuotingStyle::Double => b"$`\"\\\n".contains(&next),
                    QuotingStyle::HereDocument => b"$`\\\n".contains(&next),
                };
                if special && next == b'\n' {
                    continue;
                }
                if !special {
                    out.atoms.push(WordAtom::Byte { byte: b'\\', quoted: true });
                }
                out.atoms.push(WordAtom::Byte { byte: next, quoted: true });
            }
            b'`' => push_opaque(out),
            b'$' if text.get(at).is_some_and(|b| is_expansion_start(*b, quoted)) => {
                push_opaque(out);
            }
            // Bytes that end or quote a word cannot be inside it unquoted.
            b' ' | b'\t' | b'\n' | b'\'' | b'"' | b'(' | b')' if !quoted => {
                out.atoms.push(WordAtom::Byte { byte, quoted });
                push_opaque(out);
            }
            b';' | b'|' | b'&' if !quoted && text.len() > 2 => {
                push_opaque(out);
            }
            b'"' if quoting == QuotingStyle::Double => push_opaque(out),
            _ => out.atoms.push(WordAtom::Byte { byte, quoted }),
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

fn push_opaque(out: &mut ScriptWord) {
    out.atoms.push(WordAtom::Dynamic(DynamicValue::Opaque));
}

fn push_variable(out: &mut ScriptWord, name: &[u8], quoting: QuotingStyle) {
    let quoted = quoting != QuotingStyle::None;
    out.atoms.push(WordAtom::Dynamic(DynamicValue::Variable { name: name.to_vec(), quoted }));
}

fn push_known(out: &mut ScriptWord, text: Option<&[u8]>) {
    match text {
        Some(text) => push_bytes(out, text, true),
        None => push_opaque(out),
    }
}

fn push_bytes(out: &mut ScriptWord, text: &[u8], quoted: bool) {
    mark_quoted(out);
    out.atoms.extend(text.iter().map(|&byte| WordAtom::Byte { byte, quoted }));
}

/// Returns the body of a here-document, and whether its end agrees with bash.
pub(crate) fn here_document(
    lowering: ScriptLowering,
    body: Option<Node>,
    delimiter: &[u8],
    quoted: bool,
    strip_tabs: bool,
) -> (ScriptWord, bool) {
    let Some(body) = body else { return (ScriptWord::default(), false) };
    let source = lowering.source;
    let mut start = body.start_byte();
    while start > 0 && source.get(start - 1).is_some_and(|b| *b != b'\n') {
        start -= 1;
    }
    let only_tabs = source.get(start..body.start_byte()).is_some_and(|g| g.iter().all(|b| *b == b'\t'));
    let mut out = ScriptWord { span: (start, body.end_byte()), ..ScriptWord::default() };
    let Some((end, after)) = end_of_document(source, start, delimiter, strip_tabs) else {
        return (out, false);
    };
    // The tree must agree: its body may end with the delimiter's own tabs.
    let agrees = only_tabs && body.end_byte() >= end && body.end_byte() <= after;
    if quoted {
        push_bytes(&mut out, source.get(start..end).unwrap_or_default(), true);
    } else {
        add_range(lowering, body, (start, end), &mut out, QuotingStyle::HereDocument);
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

fn strip_leading_tabs(atoms: &mut Vec<WordAtom>) {
    let mut line_start = true;
    atoms.retain(|atom| match atom {
        WordAtom::Byte { byte: b'\t', .. } if line_start => false,
        WordAtom::Byte { byte, .. } => {
            line_start = *byte == b'\n';
            true
        }
        WordAtom::Dynamic(_) => {
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
