//! Parser for the declarative part of Starlark in rule files: calls with literals, names bound to literals,
//! `+`. Each value has its position.
//!
//! Must not know the meaning of the calls, and runs nothing. A file that needs more (`def`, `for`, `if`,
//! `load`, comprehensions) is refused with the line number.

use std::collections::BTreeMap;

use super::value::{ImportValue, PositionedError, SpannedValue};
use crate::error::{LineIndex, TextPosition};

/// Deepest nesting of lists and parentheses.
const MAX_DEPTH: usize = 32;
/// Longest value that names and `+` may make, in entries or bytes.
const MAX_VALUE_LENGTH: usize = 1 << 20;

/// One call at the top of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StarlarkCall {
    pub at: TextPosition,
    pub name: String,
    pub positional: Vec<SpannedValue>,
    pub named: Vec<(TextPosition, String, SpannedValue)>,
}

#[derive(Clone, Debug, PartialEq)]
enum StarlarkToken {
    Name(String),
    Text(String),
    Number,
    Symbol(char),
    /// The end of a line outside of brackets.
    Newline,
    End,
}

/// Parses a whole file.
pub(crate) fn parse_calls(source: &str) -> Result<Vec<StarlarkCall>, PositionedError> {
    let tokens = StarlarkLexer { source, at: 0, lines: LineIndex::from_source(source), brackets: 0, line_start: true }
        .collect_tokens()?;
    let mut parser = StarlarkParser { tokens, at: 0, names: BTreeMap::new() };
    let mut calls = Vec::new();
    while parser.parse_statement(&mut calls)? {}
    Ok(calls)
}

struct StarlarkLexer<'a> {
    source: &'a str,
    at: usize,
    lines: LineIndex<'a>,
    brackets: usize,
    line_start: bool,
}

impl StarlarkLexer<'_> {
    fn fail_at<T>(&self, at: usize, why: impl Into<String>) -> Result<T, PositionedError> {
        Err(PositionedError { at: self.lines.position_at(at), why: why.into() })
    }

    fn collect_tokens(mut self) -> Result<Vec<(TextPosition, StarlarkToken)>, PositionedError> {
        let mut tokens = Vec::new();
        loop {
            let rest = &self.source[self.at..];
            let position = self.lines.position_at(self.at);
            let Some(c) = rest.chars().next() else {
                tokens.extend([(position, StarlarkToken::Newline), (position, StarlarkToken::End)]);
                return Ok(tokens);
            };
            let token = match c {
                ' ' | '\t' | '\r' if self.line_start && self.brackets == 0 && self.is_indented() => {
                    return self.fail_at(self.at, "an indented block: only calls and names are understood here");
                }
                '\n' | ' ' | '\t' | '\r' => {
                    self.at += 1;
                    self.line_start |= c == '\n';
                    if c == '\n' && self.brackets == 0 {
                        tokens.push((position, StarlarkToken::Newline));
                    }
                    continue;
                }
                '#' => {
                    self.at += rest.find('\n').unwrap_or(rest.len());
                    continue;
                }
                '\\' if rest.starts_with("\\\n") => {
                    self.at += 2;
                    continue;
                }
                '"' | '\'' => StarlarkToken::Text(self.read_string(false)?),
                'r' if rest[1..].starts_with(['"', '\'']) => {
                    self.at += 1;
                    StarlarkToken::Text(self.read_string(true)?)
                }
                c if c.is_ascii_alphabetic() || c == '_' => StarlarkToken::Name(self.read_name()?),
                c if c.is_ascii_digit() => {
                    self.at += rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(rest.len());
                    StarlarkToken::Number
                }
                '(' | '[' | ')' | ']' | ',' | '=' | '+' | ';' => {
                    self.at += 1;
                    match c {
                        '(' | '[' => self.brackets += 1,
                        ')' | ']' => self.brackets = self.brackets.saturating_sub(1),
                        _ => {}
                    }
                    StarlarkToken::Symbol(c)
                }
                _ => return self.fail_at(self.at, format!("`{c}` is not understood here")),
            };
            tokens.push((position, token));
            self.line_start = false;
        }
    }

    fn read_name(&mut self) -> Result<String, PositionedError> {
        let start = self.at;
        let rest = &self.source[start..];
        let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = &rest[..length];
        self.at += length;
        if rest[length..].starts_with(['"', '\'']) {
            return self.fail_at(start, "a string with a prefix is not understood here");
        }
        if RESERVED_WORDS.contains(&name) {
            let why = format!("`{name}` is not understood here: only calls and names bound to values are");
            return self.fail_at(start, why);
        }
        Ok(name.to_owned())
    }

    /// Returns whether text other than a comment follows the blanks.
    fn is_indented(&self) -> bool {
        let line = self.source[self.at..].lines().next().unwrap_or_default().trim();
        !line.is_empty() && !line.starts_with('#')
    }

    fn read_string(&mut self, raw: bool) -> Result<String, PositionedError> {
        let start = self.at;
        let rest = &self.source[self.at..];
        let quote = if rest.starts_with("\"\"\"") || rest.starts_with("'''") { &rest[..3] } else { &rest[..1] };
        self.at += quote.len();
        let mut text = String::new();
        loop {
            let rest = &self.source[self.at..];
            let Some(c) = rest.chars().next() else { return self.fail_at(start, "the string does not end") };
            if rest.starts_with(quote) {
                self.at += quote.len();
                return Ok(text);
            }
            match c {
                '\n' if quote.len() == 1 => return self.fail_at(start, "the string does not end on its line"),
                '\\' if raw => {
                    // A quote after the backslash does not end the string; both characters stay.
                    let next = rest[1..].chars().next();
                    text.push('\\');
                    text.extend(next);
                    self.at += 1 + next.map_or(0, char::len_utf8);
                }
                '\\' => self.read_escape(&mut text)?,
                c => {
                    text.push(c);
                    self.at += c.len_utf8();
                }
            }
        }
    }

    fn read_escape(&mut self, text: &mut String) -> Result<(), PositionedError> {
        const ESCAPES: [(char, char); 6] =
            [('n', '\n'), ('t', '\t'), ('r', '\r'), ('\\', '\\'), ('\'', '\''), ('"', '"')];
        let rest = &self.source[self.at + 1..];
        let letter = rest.chars().next();
        let digits = match letter {
            Some('\n') => {
                self.at += 2;
                return Ok(());
            }
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => 0,
        };
        let found = if digits == 0 {
            ESCAPES.iter().find(|(name, _)| Some(*name) == letter).map(|(_, escape_char)| *escape_char)
        } else {
            rest.get(1..=digits).and_then(|code| u32::from_str_radix(code, 16).ok()).and_then(char::from_u32)
        };
        let Some(found) = found else { return self.fail_at(self.at, "this escape is not known") };
        text.push(found);
        self.at += 2 + digits;
        Ok(())
    }
}

struct StarlarkParser {
    tokens: Vec<(TextPosition, StarlarkToken)>,
    at: usize,
    names: BTreeMap<String, SpannedValue>,
}

const RESERVED_WORDS: &[&str] = &[
    "and", "break", "class", "continue", "def", "del", "elif", "else", "for", "global", "if", "import", "in", "lambda",
    "load", "not", "or", "pass", "return", "while", "with", "yield",
];

impl StarlarkParser {
    fn current_token(&self) -> (TextPosition, &StarlarkToken) {
        let (position, token) = &self.tokens[self.at.min(self.tokens.len() - 1)];
        (*position, token)
    }

    fn fail_here<T>(&self, why: impl Into<String>) -> Result<T, PositionedError> {
        Err(PositionedError { at: self.current_token().0, why: why.into() })
    }

    fn next_is(&mut self, symbol: char) -> bool {
        let found = *self.current_token().1 == StarlarkToken::Symbol(symbol);
        self.at += usize::from(found);
        found
    }

    fn expect_symbol(&mut self, symbol: char) -> Result<(), PositionedError> {
        if self.next_is(symbol) { Ok(()) } else { self.fail_here(format!("expected `{symbol}`")) }
    }

    /// Parses a call or `NAME = VALUE`; returns false at the end.
    fn parse_statement(&mut self, calls: &mut Vec<StarlarkCall>) -> Result<bool, PositionedError> {
        while matches!(self.current_token().1, StarlarkToken::Newline | StarlarkToken::Symbol(';')) {
            self.at += 1;
        }
        let (at, token) = self.current_token();
        let name = match token {
            StarlarkToken::End => return Ok(false),
            StarlarkToken::Name(name) => name.clone(),
            // A literal alone, such as a documentation string, has no effect.
            StarlarkToken::Text(_) => {
                self.parse_value(0)?;
                return self.end_of_statement();
            }
            _ => return self.fail_here("expected a call"),
        };
        self.at += 1;
        if self.next_is('=') {
            let value = self.parse_value(0)?;
            self.names.insert(name, value);
        } else if self.next_is('(') {
            calls.push(self.parse_call(at, name)?);
        } else {
            return self.fail_here(format!("expected `(` or `=` behind `{name}`"));
        }
        self.end_of_statement()
    }

    fn end_of_statement(&mut self) -> Result<bool, PositionedError> {
        match self.current_token().1 {
            StarlarkToken::Newline | StarlarkToken::Symbol(';') | StarlarkToken::End => Ok(true),
            _ => self.fail_here("expected the end of the line"),
        }
    }

    fn parse_call(&mut self, at: TextPosition, name: String) -> Result<StarlarkCall, PositionedError> {
        let mut call = StarlarkCall { at, name, positional: Vec::new(), named: Vec::new() };
        while !self.next_is(')') {
            let position = self.current_token().0;
            let keyword = match (self.current_token().1, self.tokens.get(self.at + 1)) {
                (StarlarkToken::Name(name), Some((_, StarlarkToken::Symbol('=')))) => Some(name.clone()),
                _ => None,
            };
            if let Some(keyword) = keyword {
                self.at += 2;
                if call.named.iter().any(|(_, known, _)| *known == keyword) {
                    return Err(PositionedError::new(position, format!("`{keyword}` appears twice here")));
                }
                call.named.push((position, keyword, self.parse_value(0)?));
            } else if call.named.is_empty() {
                call.positional.push(self.parse_value(0)?);
            } else {
                return self.fail_here("expected `NAME = VALUE`");
            }
            if !self.next_is(',') {
                self.expect_symbol(')')?;
                break;
            }
        }
        Ok(call)
    }

    fn parse_value(&mut self, depth: usize) -> Result<SpannedValue, PositionedError> {
        let mut value = self.parse_operand(depth)?;
        while self.next_is('+') {
            let right = self.parse_operand(depth)?;
            let size = |value: &SpannedValue| {
                value.as_text().map(str::len).or(value.as_list().map(<[_]>::len)).unwrap_or_default()
            };
            if size(&value) + size(&right) > MAX_VALUE_LENGTH {
                return self.fail_here("the value is too long");
            }
            value.value = match (value.value, right.value) {
                (ImportValue::Text(left), ImportValue::Text(right)) => ImportValue::Text(left + &right),
                (ImportValue::List(mut left), ImportValue::List(mut right)) => {
                    left.append(&mut right);
                    ImportValue::List(left)
                }
                _ => return Err(PositionedError::new(right.at, "`+` joins two strings or two lists")),
            };
        }
        Ok(value)
    }

    fn parse_operand(&mut self, depth: usize) -> Result<SpannedValue, PositionedError> {
        if depth > MAX_DEPTH {
            return self.fail_here(format!("nested deeper than {MAX_DEPTH}"));
        }
        let (at, token) = self.current_token();
        let token = token.clone();
        self.at += 1;
        let value = match token {
            StarlarkToken::Text(mut text) => {
                // Adjacent strings are concatenated.
                while let StarlarkToken::Text(more) = self.current_token().1 {
                    text.push_str(more);
                    self.at += 1;
                }
                ImportValue::Text(text)
            }
            StarlarkToken::Name(name) if name == "None" => ImportValue::Other("None"),
            StarlarkToken::Name(name) if name == "True" || name == "False" => ImportValue::Other("true or false"),
            StarlarkToken::Name(name) => match self.names.get(&name) {
                Some(value) => return Ok(SpannedValue { at, value: value.value.clone() }),
                None => {
                    self.at -= 1;
                    return self.fail_here(format!("`{name}` is not bound to a value above"));
                }
            },
            StarlarkToken::Number => ImportValue::Number,
            StarlarkToken::Symbol('[') => ImportValue::List(self.parse_items(']', depth)?),
            StarlarkToken::Symbol('(') => {
                let mut items = self.parse_items(')', depth)?;
                match (items.pop(), items.is_empty()) {
                    (Some(one), true) => one.value,
                    (last, _) => {
                        items.extend(last);
                        ImportValue::List(items)
                    }
                }
            }
            _ => {
                self.at -= 1;
                return self.fail_here("expected a string or a list");
            }
        };
        Ok(SpannedValue { at, value })
    }

    fn parse_items(&mut self, end: char, depth: usize) -> Result<Vec<SpannedValue>, PositionedError> {
        let mut items = Vec::new();
        while !self.next_is(end) {
            items.push(self.parse_value(depth + 1)?);
            if !self.next_is(',') {
                self.expect_symbol(end)?;
                break;
            }
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read() {
        let calls = parse_calls(
            "\"\"\"doc\"\"\"\nGIT = [\"git\"]\n# c\nprefix_rule(\n    pattern = GIT + [\"push\", ('a', \"b\" 'c')],\n    decision=\"al\" + \"low\",\n)\nf(r\"\\d\", None); g()\n",
        )
        .unwrap();
        assert_eq!(calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>(), ["prefix_rule", "f", "g"]);
        let pattern = calls[0].named[0].2.as_list().unwrap();
        assert_eq!(pattern[0].as_text(), Some("git"));
        assert_eq!(pattern[2].as_list().unwrap()[1].as_text(), Some("bc"));
        assert_eq!(calls[0].named[1].2.as_text(), Some("allow"));
        assert_eq!(calls[1].positional[0].as_text(), Some("\\d"));
        assert_eq!((calls[0].at.line, calls[0].named[0].0.column), (4, 5));
    }

    #[test]
    fn the_rest_is_refused_at_its_line() {
        for (source, line, column) in [
            ("f(\n", 2, 1),
            ("\nf(\"a)\n", 2, 3),
            ("def f():\n    pass\n", 1, 1),
            ("f()\nfor x in [1]:\n  f(x)\n", 2, 1),
            ("if True:\n  f()", 1, 1),
            ("f(x)", 1, 3),
            ("f([x for x in y])", 1, 6),
            ("f([\"x\" for x in y])", 1, 8),
            ("f(f\"{x}\")", 1, 3),
            ("f(a=1, a=2)", 1, 8),
            ("f(a=1, 2)", 1, 8),
            ("f(\"a\" + [\"b\"])", 1, 9),
            ("load(\"x\", \"y\")", 1, 1),
            ("f() g()", 1, 5),
            ("f(\"\\q\")", 1, 4),
            ("f({})", 1, 3),
            ("  f()", 1, 1),
        ] {
            let fault = parse_calls(source).unwrap_err();
            assert_eq!((fault.at.line, fault.at.column), (line, column), "{source:?}: {}", fault.why);
        }
    }
}
