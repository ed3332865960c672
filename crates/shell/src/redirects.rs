//! Redirections of the syntax tree: files, descriptors, here-strings and here-documents. The
//! grammar attaches words and whole commands to them that belong elsewhere; this module moves them
//! back. It must not depend on any program.

use tree_sitter::Node;

use crate::lower_word::lower_word;
use crate::parse::{ScriptLowering, child_nodes, is_statement, is_word};
use crate::script::{Redirect, RedirectDirection, ScriptStatement, ScriptWord, SimpleCommand, WordAtom};

impl ScriptLowering<'_> {
    /// Converts a statement with redirections after it. Words that the grammar attaches to a
    /// redirection after its target are arguments of the command.
    pub(crate) fn lower_redirected(self, node: Node) -> ScriptStatement {
        let mut inner: Option<ScriptStatement> = None;
        let mut redirects = Vec::new();
        let mut late = Vec::new();
        let mut after = Vec::new();
        let mut odd = false;
        let mut has_document = false;
        let mut end = node.start_byte();
        for child in child_nodes(node) {
            match self.lost_dash(end, child) {
                Some(dash) => late.push(dash),
                None => {
                    odd |= !self.only_inline_blanks(end, child.start_byte()) || self.is_joined(end, child.start_byte());
                }
            }
            end = child.end_byte();
            // Text after a here-document is on another line.
            odd |= has_document;
            has_document |= child.kind() == "heredoc_redirect";
            match child.kind() {
                "file_redirect" => {
                    match &mut inner {
                        Some(ScriptStatement::Simple(simple)) if late.is_empty() => {
                            drop_descriptor(&mut simple.words, child.start_byte());
                        }
                        _ => drop_descriptor(&mut late, child.start_byte()),
                    }
                    odd |= !self.file_redirect(child, &mut redirects, &mut late);
                }
                "herestring_redirect" => odd |= !self.here_string(child, &mut redirects),
                "heredoc_redirect" => odd |= !self.here_document(child, &mut redirects, &mut late, &mut after),
                kind if is_statement(kind) && inner.is_none() => {
                    inner = Some(self.descend_level().lower_statement(child))
                }
                _ => odd = true,
            }
        }
        let span = (node.start_byte(), node.end_byte());
        let mut first = match inner {
            Some(ScriptStatement::Simple(mut simple)) => {
                simple.words.extend(late);
                simple.redirects.extend(redirects);
                ScriptStatement::Simple(simple)
            }
            None => ScriptStatement::Simple(SimpleCommand { words: late, redirects, span, ..SimpleCommand::default() }),
            Some(other) => {
                odd |= !late.is_empty();
                ScriptStatement::Redirected(Box::new(other), redirects)
            }
        };
        // The rest of the line after a here-document's start is attached to it.
        for (joined_by, rest) in after {
            first = match (joined_by, rest) {
                ("|" | "|&", ScriptStatement::Pipeline(mut rest)) => {
                    rest.insert(0, first);
                    ScriptStatement::Pipeline(rest)
                }
                ("|" | "|&", rest) => ScriptStatement::Pipeline(vec![first, rest]),
                (_, rest) => ScriptStatement::Sequence(vec![first, rest]),
            };
        }
        if odd {
            return ScriptStatement::Unknown(vec![first], span);
        }
        first
    }

    /// Returns the word `-` before a here-document, which the grammar skips.
    fn lost_dash(self, end: usize, next: Node) -> Option<ScriptWord> {
        let gap = self.source.get(end..next.start_byte())?;
        let at = gap.iter().position(|byte| *byte == b'-')?;
        let blank = |bytes: &[u8]| bytes.iter().all(|byte| matches!(byte, b' ' | b'\t'));
        let alone = at > 0 && blank(&gap[..at]) && blank(&gap[at + 1..]);
        let dash = WordAtom::Byte { byte: b'-', quoted: false };
        let span = (end + at, end + at + 1);
        (alone && next.kind() == "heredoc_redirect").then(|| ScriptWord {
            atoms: vec![dash],
            span,
            ..ScriptWord::default()
        })
    }

    /// Converts one redirection to a file; returns false if it has an unknown form.
    pub(crate) fn file_redirect(self, node: Node, redirects: &mut Vec<Redirect>, late: &mut Vec<ScriptWord>) -> bool {
        let mut direction = None;
        let mut target: Option<ScriptWord> = None;
        let mut known = !node.has_error();
        let mut end = node.start_byte();
        for child in child_nodes(node) {
            known &= self.only_inline_blanks(end, child.start_byte());
            known &= target.is_none() || !self.is_joined(end, child.start_byte());
            end = child.end_byte();
            match child.kind() {
                "file_descriptor" => known &= self.node_text(child).iter().all(u8::is_ascii_digit),
                "<" => direction = Some(RedirectDirection::Read),
                ">" | ">|" | "&>" => direction = Some(RedirectDirection::Truncate),
                ">>" | "&>>" => direction = Some(RedirectDirection::Append),
                "<&" | ">&" | "<&-" | ">&-" => direction = Some(RedirectDirection::Duplicate),
                "<>" => direction = Some(RedirectDirection::ReadWrite),
                // `5<>file`: the grammar has no such operator and flags the `>`.
                "ERROR" if self.node_text(child) == b">" && direction == Some(RedirectDirection::Read) => {
                    direction = Some(RedirectDirection::ReadWrite);
                }
                kind if is_word(kind) => {
                    if target.is_none() {
                        target = Some(lower_word(self, child));
                    } else {
                        late.push(lower_word(self, child));
                    }
                }
                _ => known = false,
            }
        }
        let Some(mut direction) = direction else { return false };
        let target = target.unwrap_or_default();
        if direction == RedirectDirection::Duplicate && !is_descriptor(&target) {
            direction = RedirectDirection::Truncate;
        }
        redirects.push(Redirect { direction, target });
        known
    }

    pub(crate) fn here_string(self, node: Node, redirects: &mut Vec<Redirect>) -> bool {
        let mut target = None;
        let mut end = node.start_byte();
        for child in child_nodes(node) {
            if !self.only_inline_blanks(end, child.start_byte()) {
                return false;
            }
            end = child.end_byte();
            match child.kind() {
                "<<<" | "file_descriptor" => {}
                kind if is_word(kind) && target.is_none() => target = Some(lower_word(self, child)),
                _ => return false,
            }
        }
        let Some(target) = target else { return false };
        redirects.push(Redirect { direction: RedirectDirection::HereString, target });
        true
    }

    /// Converts a here-document, and the rest of the line after its start.
    fn here_document(
        self,
        node: Node,
        redirects: &mut Vec<Redirect>,
        late: &mut Vec<ScriptWord>,
        after: &mut Vec<(&'static str, ScriptStatement)>,
    ) -> bool {
        let mut start: &[u8] = b"";
        let mut strip_tabs = false;
        let mut body = None;
        let mut joined_by = ";";
        let mut known = !node.has_error();
        let mut line_ends = false;
        let mut end = node.start_byte();
        for child in child_nodes(node) {
            // The body begins on the next line: nothing of this command follows it.
            let in_body = matches!(child.kind(), "heredoc_body" | "heredoc_end");
            known &= in_body || (!line_ends && self.only_inline_blanks(end, child.start_byte()));
            end = child.end_byte();
            line_ends |= child.kind() == "heredoc_body" || self.node_text(child).contains(&b'\n');
            match child.kind() {
                "<<" => {}
                "<<-" => strip_tabs = true,
                "heredoc_start" => {
                    start = self.node_text(child);
                    // In the tree, the delimiter ends with its first quoted part.
                    known &= self.source.get(child.end_byte()).is_none_or(|b| b" \t\n;&|<>)".contains(b));
                }
                "heredoc_body" => body = Some(child),
                "heredoc_end" => {}
                "&&" | "||" => joined_by = ";",
                "|" => joined_by = "|",
                "file_redirect" => known &= self.file_redirect(child, redirects, late),
                "herestring_redirect" => known &= self.here_string(child, redirects),
                "pipeline" if child_nodes(child).first().is_some_and(|c| c.kind().starts_with('|')) => {
                    after.push(("|", self.descend_level().lower_statement(child)));
                }
                kind if is_statement(kind) => after.push((joined_by, self.descend_level().lower_statement(child))),
                kind if is_word(kind) => late.push(lower_word(self, child)),
                _ => known = false,
            }
        }
        let quoted = start.iter().any(|b| matches!(b, b'\'' | b'"' | b'\\'));
        let delimiter: Vec<u8> = start.iter().copied().filter(|b| !matches!(b, b'\'' | b'"' | b'\\')).collect();
        if delimiter.is_empty() || !delimiter.iter().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(b)) {
            return false;
        }
        let (target, ends_there) = crate::lower_word::here_document(self, body, &delimiter, quoted, strip_tabs);
        redirects.push(Redirect { direction: RedirectDirection::HereDocument, target });
        known && ends_there
    }
}

/// Returns whether `>&` takes the target as a descriptor: `1`, `2-`, `-`, or no target.
fn is_descriptor(target: &ScriptWord) -> bool {
    target.atoms.iter().all(|atom| match atom {
        WordAtom::Byte { byte, .. } => byte.is_ascii_digit() || *byte == b'-',
        WordAtom::Dynamic(_) => false,
    })
}

/// Removes digits that touch a redirection, because they are its descriptor and not a word.
pub(crate) fn drop_descriptor(words: &mut Vec<ScriptWord>, redirect: usize) {
    let touches = words.last().is_some_and(|w| {
        !w.quoted
            && w.span.1 == redirect
            && w.atoms.iter().all(|a| matches!(a, WordAtom::Byte { byte: b'0'..=b'9', quoted: false }))
    });
    if touches {
        words.pop();
    }
}
