//! Converts text to statements with the tree-sitter grammar of bash. A form that the grammar
//! accepts and bash would not, or would read differently, becomes [`ScriptStatement::Unknown`]. The tree
//! is checked against the bytes and never trusted. This module must not depend on any program.

use std::cell::Cell;
use std::ops::ControlFlow;

use tree_sitter::{Node, ParseOptions, Parser};

use crate::budget::WorkBudget;
use crate::knowledge::lists;
use crate::lower_word::lower_word;
use crate::script::{Assignment, ScriptStatement, ScriptWord, SimpleCommand};

/// Longest text that is parsed, in bytes.
pub(crate) const MAX_PARSED_BYTES: usize = 64 << 10;
/// Bytes that the parser gets at a time.
const CHUNK_BYTES: usize = 64;
/// Highest cost of reading one such chunk.
const UNITS_PER_CHUNK: u64 = 3;
/// Cost of a hundred steps of the parser.
const UNITS_PER_PROGRESS: u64 = 800;

/// Deepest nesting of statements; deeper ones count as not understood.
const MAX_DEPTH: usize = 48;

/// Reason why a text has no statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParseFailure {
    /// The text is too long, or needs too much work.
    TooMuch,
    /// The grammar could not be loaded.
    Unavailable,
}

/// The text, and the depth of the walk.
#[derive(Clone, Copy)]
pub(crate) struct ScriptLowering<'a> {
    pub source: &'a [u8],
    pub depth: usize,
}

thread_local! {
    /// Kept for the next text, because making one costs as much as parsing a command.
    static PARSER: Cell<Option<Parser>> = const { Cell::new(None) };
}

fn new_parser() -> Result<Parser, ParseFailure> {
    let mut parser = Parser::new();
    parser.set_language(&tree_sitter_bash::LANGUAGE.into()).map_err(|_| ParseFailure::Unavailable)?;
    Ok(parser)
}

/// Parses the statements of a script. Stops when the budget is spent.
pub(crate) fn parse_script(source: &[u8], budget: &WorkBudget) -> Result<Vec<ScriptStatement>, ParseFailure> {
    if source.len() > MAX_PARSED_BYTES {
        return Err(ParseFailure::TooMuch);
    }
    let mut parser = PARSER.take().map_or_else(new_parser, Ok)?;
    // Called once in a hundred steps of the parser.
    let mut progress = |_: &tree_sitter::ParseState| {
        if budget.spend_units(UNITS_PER_PROGRESS) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let options = ParseOptions::new().progress_callback(&mut progress);
    // A step may read far ahead repeatedly, so the bytes that it reads count too. Without units
    // there is no more text, and the result is dropped.
    let mut read = |at: usize, _| {
        let chunk = source.get(at..source.len().min(at.saturating_add(CHUNK_BYTES))).unwrap_or_default();
        match chunk.first() {
            _ if budget.spend_units(UNITS_PER_CHUNK) => chunk,
            // If a character is truncated, the parser decodes the next input without checking that
            // there is any.
            Some(byte) if !byte.is_ascii() => b"\n",
            _ => &[],
        }
    };
    // A parser that gave up holds state and is dropped.
    let tree = parser.parse_with_options(&mut read, None, Some(options)).ok_or(ParseFailure::TooMuch)?;
    if budget.is_spent() {
        return Err(ParseFailure::TooMuch);
    }
    PARSER.set(Some(parser));
    let root = tree.root_node();
    let lowering = ScriptLowering { source, depth: 0 };
    let mut statements = lowering.lower_block(root);
    if root.has_error() || has_glued_comment(root, source) {
        statements.push(ScriptStatement::Unknown(Vec::new(), (root.start_byte(), root.end_byte())));
    }
    Ok(statements)
}

impl<'a> ScriptLowering<'a> {
    /// Returns the same one level deeper.
    pub(crate) fn descend_level(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }

    /// Returns the bytes of a node.
    pub(crate) fn node_text(self, node: Node) -> &'a [u8] {
        self.source.get(node.byte_range()).unwrap_or_default()
    }

    /// Returns whether only spaces, line ends and line continuations are between the offsets.
    pub(crate) fn only_blanks(self, from: usize, to: usize) -> bool {
        let gap = self.source.get(from..to).unwrap_or_default();
        let mut at = 0;
        while at < gap.len() {
            match gap[at] {
                b' ' | b'\t' | b'\n' => at += 1,
                b'\\' if gap.get(at + 1) == Some(&b'\n') => at += 2,
                _ => return false,
            }
        }
        true
    }

    /// Does the same as [`only_blanks`](Self::only_blanks), on one line.
    pub(crate) fn only_inline_blanks(self, from: usize, to: usize) -> bool {
        let gap = self.source.get(from..to).unwrap_or_default();
        let continued = |at: usize| at.checked_sub(1).and_then(|i| gap.get(i)) == Some(&b'\\');
        self.only_blanks(from, to) && gap.iter().enumerate().all(|(at, b)| *b != b'\n' || continued(at))
    }

    /// Returns whether line continuations and nothing else are between the offsets.
    pub(crate) fn is_joined(self, from: usize, to: usize) -> bool {
        let gap = self.source.get(from..to).unwrap_or_default();
        !gap.is_empty() && only_continuations(gap)
    }

    fn unknown_statement(self, node: Node) -> ScriptStatement {
        let mut inside = if self.depth > MAX_DEPTH { Vec::new() } else { self.commands_inside(node) };
        inside.extend(crate::lower_word::braced_command(self, node));
        ScriptStatement::Unknown(inside, (node.start_byte(), node.end_byte()))
    }

    /// Returns every command that can be found below a node that is not understood.
    fn commands_inside(self, node: Node) -> Vec<ScriptStatement> {
        let mut found = Vec::new();
        for child in child_nodes(node) {
            match child.kind() {
                "comment" => {}
                "do_group" => found.extend(self.descend_level().lower_block(child)),
                kind if is_statement(kind) => found.push(self.descend_level().lower_statement(child)),
                _ if self.depth < MAX_DEPTH && child.child_count() > 0 => {
                    found.extend(self.descend_level().commands_inside(child));
                }
                _ => {}
            }
        }
        found
    }

    /// Returns the statements of a node that contains a list of them between braces or the like.
    pub(crate) fn lower_block(self, node: Node) -> Vec<ScriptStatement> {
        self.lower_parts(node, &["(", ")", "{", "}", "$(", "<(", ">(", "`", "do", "done", "\n", ";"])
    }

    /// Returns the statements of a node whose own tokens are these.
    fn lower_parts(self, node: Node, tokens: &[&str]) -> Vec<ScriptStatement> {
        let mut out: Vec<ScriptStatement> = Vec::new();
        // The root begins at its first token; text skipped before it counts.
        let mut end = if node.kind() == "program" { 0 } else { node.start_byte() };
        for child in child_nodes(node) {
            if !self.only_blanks(end, child.start_byte()) {
                out.push(ScriptStatement::Unknown(Vec::new(), (end, child.start_byte())));
            }
            end = child.end_byte();
            match child.kind() {
                kind if kind == "comment" || tokens.contains(&kind) => {}
                "file_redirect" | "herestring_redirect" => out.push(self.bare_redirect(child)),
                "&" => {
                    let last = out.pop().map(|s| ScriptStatement::Background(Box::new(s), (child.start_byte(), end)));
                    out.extend(last);
                }
                kind if is_statement(kind) => {
                    out.push(self.descend_level().lower_statement(child));
                }
                _ => out.push(self.unknown_statement(child)),
            }
        }
        // The shell has no empty group.
        if out.is_empty() && matches!(node.kind(), "do_group" | "compound_statement" | "subshell") {
            out.push(ScriptStatement::Unknown(Vec::new(), (node.start_byte(), end)));
        }
        if node.kind() == "program" && !self.only_blanks(end, self.source.len()) {
            out.push(ScriptStatement::Unknown(Vec::new(), (end, self.source.len())));
        }
        out
    }

    /// Handles `$(< file)`: a redirection alone.
    fn bare_redirect(self, node: Node) -> ScriptStatement {
        let mut simple = SimpleCommand { span: (node.start_byte(), node.end_byte()), ..SimpleCommand::default() };
        let is_known = self.command_part(node, false, &mut simple);
        simple_statement(simple, is_known)
    }

    /// Converts one statement.
    pub(crate) fn lower_statement(self, node: Node) -> ScriptStatement {
        if self.depth > MAX_DEPTH || node.is_missing() {
            return self.unknown_statement(node);
        }
        match node.kind() {
            "command" | "declaration_command" | "unset_command" | "test_command" => self.lower_command(node),
            "variable_assignment" | "variable_assignments" => self.lower_command(node),
            "redirected_statement" => self.lower_redirected(node),
            "pipeline" => ScriptStatement::Pipeline(self.lower_parts(node, &["|", "|&"])),
            "list" => ScriptStatement::Sequence(self.lower_parts(node, &["&&", "||"])),
            "negated_command" => ScriptStatement::Sequence(self.lower_parts(node, &["!"])),
            "subshell" => ScriptStatement::Subshell(self.lower_block(node)),
            "compound_statement" if self.node_text(node).starts_with(b"{") => {
                ScriptStatement::Sequence(self.lower_block(node))
            }
            "for_statement" => self.for_loop(node),
            "c_style_for_statement" => self.counting_loop(node),
            "while_statement" => self.while_loop(node),
            "if_statement" => self.lower_branches(node),
            "case_statement" => self.lower_case_statement(node),
            "function_definition" => self.lower_function(node),
            _ => self.unknown_statement(node),
        }
    }

    fn for_loop(self, node: Node) -> ScriptStatement {
        let mut variable = Vec::new();
        let (mut words, mut body) = (Vec::new(), Vec::new());
        for child in child_nodes(node) {
            match child.kind() {
                "for" | "in" | ";" | "comment" | "\n" => {}
                "variable_name" => variable = self.node_text(child).to_vec(),
                "do_group" => body = self.descend_level().lower_block(child),
                kind if is_word(kind) => words.push(lower_word(self, child)),
                _ => return self.unknown_statement(node),
            }
        }
        if variable.is_empty() || !self.node_text(node).starts_with(b"for") {
            return self.unknown_statement(node);
        }
        ScriptStatement::For { variable, words, body }
    }

    /// Handles `for ((...))`, which is not modelled, except for a loop without end.
    fn counting_loop(self, node: Node) -> ScriptStatement {
        let head: Vec<u8> = self.node_text(node).iter().copied().filter(|b| !b.is_ascii_whitespace()).take(9).collect();
        match self.unknown_statement(node) {
            ScriptStatement::Unknown(body, at) if head.starts_with(b"for((;;))") => {
                ScriptStatement::Unknown(vec![ScriptStatement::Loop { condition: Vec::new(), body }], at)
            }
            other => other,
        }
    }

    fn while_loop(self, node: Node) -> ScriptStatement {
        let (mut condition, mut body) = (Vec::new(), Vec::new());
        for child in child_nodes(node) {
            match child.kind() {
                "while" | "until" | ";" | "comment" | "\n" => {}
                "do_group" => body = self.descend_level().lower_block(child),
                kind if is_statement(kind) => condition.push(self.descend_level().lower_statement(child)),
                _ => return self.unknown_statement(node),
            }
        }
        ScriptStatement::Loop { condition, body }
    }

    fn lower_branches(self, node: Node) -> ScriptStatement {
        let mut branches = vec![Vec::new()];
        for child in child_nodes(node) {
            match child.kind() {
                "if" | "elif" | "else" | "then" | "fi" | ";" | "comment" | "\n" => {}
                "elif_clause" | "else_clause" => branches.push(vec![self.descend_level().lower_branches(child)]),
                kind if is_statement(kind) => {
                    if let Some(last) = branches.last_mut() {
                        last.push(self.descend_level().lower_statement(child));
                    }
                }
                _ => branches.push(vec![self.unknown_statement(child)]),
            }
        }
        ScriptStatement::Branches { words: Vec::new(), branches }
    }

    fn lower_case_statement(self, node: Node) -> ScriptStatement {
        let (mut words, mut branches) = (Vec::new(), Vec::new());
        for child in child_nodes(node) {
            match child.kind() {
                "case" | "in" | "esac" | "comment" | ";" | "\n" => {}
                "case_item" => {
                    let mut body = Vec::new();
                    for part in child_nodes(child) {
                        match part.kind() {
                            "|" | "(" | ")" | ";;" | ";" | "comment" | "\n" | "extglob_pattern" => {}
                            kind if is_statement(kind) => body.push(self.descend_level().lower_statement(part)),
                            kind if is_word(kind) => words.push(lower_word(self, part)),
                            _ => body.push(self.unknown_statement(part)),
                        }
                    }
                    branches.push(body);
                }
                kind if is_word(kind) => words.push(lower_word(self, child)),
                _ => return self.unknown_statement(node),
            }
        }
        ScriptStatement::Branches { words, branches }
    }

    fn lower_function(self, node: Node) -> ScriptStatement {
        let mut name = Vec::new();
        let mut body = Vec::new();
        for child in child_nodes(node) {
            match child.kind() {
                "word" if name.is_empty() => name = self.node_text(child).to_vec(),
                kind if is_statement(kind) => body.push(self.descend_level().lower_statement(child)),
                _ => {}
            }
        }
        ScriptStatement::Function { name, body, span: (node.start_byte(), node.end_byte()) }
    }

    /// Converts a simple command, a declaration or a test to one list of words.
    fn lower_command(self, node: Node) -> ScriptStatement {
        let mut simple = SimpleCommand { span: (node.start_byte(), node.end_byte()), ..SimpleCommand::default() };
        let mut odd = node.has_error();
        let mut end = node.start_byte();
        let mut ends_in_word = false;
        for child in child_nodes(node) {
            let gap = (end, child.start_byte());
            let blanks = self.only_inline_blanks(gap.0, gap.1);
            odd |= !blanks;
            // A continuation without spaces around it joins two words.
            let between = self.source.get(gap.0..gap.1);
            let glued = !simple.words.is_empty() && blanks && between.is_some_and(only_continuations);
            // A text joined to a redirection or an assignment belongs to it.
            odd |= self.is_joined(gap.0, gap.1) && !(glued && ends_in_word);
            ends_in_word = is_word(child.kind()) || child.kind() == "command_name";
            end = child.end_byte();
            odd |= !self.command_part(child, glued, &mut simple);
        }
        odd |= node.kind() == "command" && self.is_reserved(node);
        odd |= node.kind() == "test_command" && !self.is_test(node);
        simple_statement(simple, !odd)
    }

    /// Returns whether the brackets of a test are words of their own and nothing in it ends the
    /// command.
    fn is_test(self, node: Node) -> bool {
        let text = self.node_text(node);
        let width = if text.starts_with(b"[[") { 2 } else { 1 };
        let blank = |byte: Option<&u8>| byte.is_some_and(|b| matches!(b, b' ' | b'\t' | b'\n'));
        let has_blanks = blank(text.get(width)) && blank(text.len().checked_sub(width + 1).and_then(|i| text.get(i)));
        let ends = self.source.get(node.end_byte()).is_none_or(|b| b" \t\n;&|)".contains(b));
        has_blanks && ends && !self.has_operator(node, width == 1)
    }

    /// Returns whether a test contains a token that ends it for the shell. `[` is an ordinary
    /// command; `[[` has a few operators of its own.
    fn has_operator(self, node: Node, single: bool) -> bool {
        child_nodes(node).into_iter().any(|child| {
            if child.child_count() > 0 && !matches!(child.kind(), "string" | "command_substitution" | "expansion") {
                return self.has_operator(child, single);
            }
            let text = self.node_text(child);
            let known = !single && matches!(text, b"&&" | b"||" | b"<" | b">" | b"(" | b")");
            !child.is_named() && !known && text.iter().any(|b| b";&|<>()\n".contains(b))
        })
    }

    fn is_reserved(self, node: Node) -> bool {
        let name = node.child_by_field_name("name").map(|n| self.node_text(n)).unwrap_or_default();
        lists::has_word(lists::RESERVED_WORDS, name)
    }

    /// Adds one child of a command; returns false if it has an unknown form.
    fn command_part(self, child: Node, glued: bool, simple: &mut SimpleCommand) -> bool {
        match child.kind() {
            "comment" => true,
            "variable_assignment" if simple.words.is_empty() => {
                let (assignment, known) = self.lower_assignment(child);
                simple.assignments.push(assignment);
                known
            }
            "variable_assignments" => child_nodes(child).into_iter().all(|c| self.command_part(c, false, simple)),
            "file_redirect" => {
                crate::redirects::drop_descriptor(&mut simple.words, child.start_byte());
                let mut late = Vec::new();
                let known = self.file_redirect(child, &mut simple.redirects, &mut late);
                simple.words.extend(late);
                known
            }
            "herestring_redirect" => self.here_string(child, &mut simple.redirects),
            "command_name" => match child_nodes(child).as_slice() {
                [only] if is_word(only.kind()) => self.push_word(*only, glued, simple),
                _ => false,
            },
            "unary_expression" | "binary_expression" | "parenthesized_expression" => {
                child_nodes(child).into_iter().all(|c| self.command_part(c, false, simple))
            }
            "variable_assignment" | "test_operator" | "variable_name" | "subscript" | "regex" | "extglob_pattern" => {
                self.push_word(child, glued, simple)
            }
            kind if is_word(kind) || !child.is_named() => self.push_word(child, glued, simple),
            _ => {
                if let ScriptStatement::Unknown(inside, at) = self.unknown_statement(child) {
                    simple.words.push(crate::lower_word::opaque_word(inside, at));
                }
                false
            }
        }
    }

    fn push_word(self, node: Node, glued: bool, simple: &mut SimpleCommand) -> bool {
        let mut lowered = lower_word(self, node);
        match simple.words.last_mut() {
            Some(last) if glued => crate::lower_word::append_word(last, &mut lowered),
            _ => simple.words.push(lowered),
        }
        true
    }

    fn lower_assignment(self, node: Node) -> (Assignment, bool) {
        let mut name = Vec::new();
        let mut value = ScriptWord::default();
        let mut plain = true;
        let mut known = true;
        for child in child_nodes(node) {
            match child.kind() {
                "variable_name" => name = self.node_text(child).to_vec(),
                "=" => {}
                "+=" => plain = false,
                "subscript" | "array" => {
                    plain = false;
                    let span = (child.start_byte(), child.end_byte());
                    value = crate::lower_word::opaque_word(self.commands_inside(child), span);
                }
                kind if is_word(kind) => value = lower_word(self, child),
                _ => known = false,
            }
        }
        (Assignment { name, value, plain }, known)
    }
}

fn simple_statement(simple: SimpleCommand, is_known: bool) -> ScriptStatement {
    match (simple.span, ScriptStatement::Simple(simple)) {
        (_, statement) if is_known => statement,
        (span, statement) => ScriptStatement::Unknown(vec![statement], span),
    }
}

/// Returns whether the bytes are line continuations only (or empty).
fn only_continuations(gap: &[u8]) -> bool {
    gap.chunks(2).all(|pair| pair == b"\\\n")
}

/// Returns whether the tree has a comment inside a word, where bash has none.
fn has_glued_comment(root: Node, source: &[u8]) -> bool {
    if !source.contains(&b'#') {
        return false;
    }
    let mut cursor = root.walk();
    loop {
        let node = cursor.node();
        let mut before = source.get(..node.start_byte()).unwrap_or_default();
        // A line continuation before it has no meaning.
        while let Some(rest) = before.strip_suffix(b"\\\n") {
            before = rest;
        }
        if node.kind() == "comment" && before.last().is_some_and(|b| !b" \t\n;&|()".contains(b)) {
            return true;
        }
        if cursor.goto_first_child() {
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return false;
            }
        }
    }
}

/// Returns all children, tokens included.
pub(crate) fn child_nodes(node: Node) -> Vec<Node> {
    let mut cursor = node.walk();
    node.children(&mut cursor).collect()
}

/// Returns whether a node kind runs a command.
pub(crate) fn is_statement(kind: &str) -> bool {
    lists::STATEMENT_KINDS.contains(&kind)
}

/// Returns whether a node kind is a word.
pub(crate) fn is_word(kind: &str) -> bool {
    lists::WORD_KINDS.contains(&kind)
}
