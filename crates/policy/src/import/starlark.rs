//! Parser for the declarative part of Starlark in rule files: calls with literals, names bound to literals,
//! `+`. Each value has its position.
//!
//! Must not know the meaning of the calls, and runs nothing. A file that needs more (`def`, `for`, `if`,
//! `load`, comprehensions) is refused with the line number.

use std::collections::BTreeMap;

use super::json::Fault;
use crate::error::{Lines, Place};

/// Deepest nesting of lists and parentheses.
const MAX_DEPTH: usize = 32;
/// Longest value that names and `+` may make, in entries or bytes.
const MAX_VALUE: usize = 1 << 20;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Value {
    pub at: Place,
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Text(String),
    List(Vec<Value>),
    None,
    /// `True`, `False`, a number: no call here accepts one.
    Other(&'static str),
}

/// One call at the top of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    pub at: Place,
    pub name: String,
    pub positional: Vec<Value>,
    pub named: Vec<(Place, String, Value)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    Text(String),
    Number,
    Symbol(char),
    /// The end of a line outside of brackets.
    Newline,
    End,
}

/// Parses a whole file.
pub(crate) fn read(source: &str) -> Result<Vec<Call>, Fault> {
    let tokens = Lexer { source, at: 0, lines: Lines::of(source), brackets: 0, line_start: true }.all()?;
    let mut parser = Parser { tokens, at: 0, names: BTreeMap::new() };
    let mut calls = Vec::new();
    while parser.statement(&mut calls)? {}
    Ok(calls)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    lines: Lines<'a>,
    brackets: usize,
    line_start: bool,
}

impl Lexer<'_> {
    fn fail<T>(&self, at: usize, why: impl Into<String>) -> Result<T, Fault> {
        Err(Fault { at: self.lines.place(at), why: why.into() })
    }

    fn all(mut self) -> Result<Vec<(Place, Token)>, Fault> {
        let mut tokens = Vec::new();
        loop {
            let rest = &self.source[self.at..];
            let Some(c) = rest.chars().next() else {
                tokens.push((self.lines.place(self.at), Token::Newline));
                tokens.push((self.lines.place(self.at), Token::End));
                return Ok(tokens);
            };
            let place = self.lines.place(self.at);
            let start = self.at;
            match c {
                '\n' => {
                    self.at += 1;
                    if self.brackets == 0 {
                        tokens.push((place, Token::Newline));
                    }
                    self.line_start = true;
                    continue;
                }
                ' ' | '\t' | '\r' => {
                    if self.line_start && self.brackets == 0 && self.is_indented() {
                        return self.fail(start, "an indented block: only calls and names are understood here");
                    }
                    self.at += 1;
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
                '"' | '\'' => tokens.push((place, Token::Text(self.string(false)?))),
                'r' if rest[1..].starts_with(['"', '\'']) => {
                    self.at += 1;
                    tokens.push((place, Token::Text(self.string(true)?)));
                }
                c if c.is_ascii_alphabetic() || c == '_' => tokens.push((place, Token::Name(self.name()?))),
                c if c.is_ascii_digit() => {
                    self.at += rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(rest.len());
                    tokens.push((place, Token::Number));
                }
                '(' | '[' | ')' | ']' | ',' | '=' | '+' | ';' => {
                    self.at += 1;
                    match c {
                        '(' | '[' => self.brackets += 1,
                        ')' | ']' => self.brackets = self.brackets.saturating_sub(1),
                        _ => {}
                    }
                    tokens.push((place, Token::Symbol(c)));
                }
                _ => return self.fail(start, format!("`{c}` is not understood here")),
            }
            self.line_start = false;
        }
    }

    fn name(&mut self) -> Result<String, Fault> {
        let start = self.at;
        let rest = &self.source[start..];
        let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = &rest[..length];
        self.at += length;
        if rest[length..].starts_with(['"', '\'']) {
            return self.fail(start, "a string with a prefix is not understood here");
        }
        if RESERVED.contains(&name) {
            let why = format!("`{name}` is not understood here: only calls and names bound to values are");
            return self.fail(start, why);
        }
        Ok(name.to_owned())
    }

    /// Returns whether text other than a comment follows the blanks.
    fn is_indented(&self) -> bool {
        let line = self.source[self.at..].lines().next().unwrap_or_default().trim();
        !line.is_empty() && !line.starts_with('#')
    }

    fn string(&mut self, raw: bool) -> Result<String, Fault> {
        let start = self.at;
        let rest = &self.source[self.at..];
        let quote = if rest.starts_with("\"\"\"") || rest.starts_with("'''") { &rest[..3] } else { &rest[..1] };
        self.at += quote.len();
        let mut text = String::new();
        loop {
            let rest = &self.source[self.at..];
            let Some(c) = rest.chars().next() else { return self.fail(start, "the string does not end") };
            if rest.starts_with(quote) {
                self.at += quote.len();
                return Ok(text);
            }
            match c {
                '\n' if quote.len() == 1 => return self.fail(start, "the string does not end on its line"),
                '\\' if raw => {
                    // A quote after the backslash does not end the string; both characters stay.
                    let next = rest[1..].chars().next();
                    text.push('\\');
                    text.extend(next);
                    self.at += 1 + next.map_or(0, char::len_utf8);
                }
                '\\' => self.escape(&mut text)?,
                c => {
                    text.push(c);
                    self.at += c.len_utf8();
                }
            }
        }
    }

    fn escape(&mut self, text: &mut String) -> Result<(), Fault> {
        let bytes = self.source.as_bytes();
        let known = match bytes.get(self.at + 1) {
            Some(b'n') => '\n',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'\\') => '\\',
            Some(b'\'') => '\'',
            Some(b'"') => '"',
            Some(b'\n') => {
                self.at += 2;
                return Ok(());
            }
            Some(b'x' | b'u' | b'U') => {
                let digits = match bytes[self.at + 1] {
                    b'x' => 2,
                    b'u' => 4,
                    _ => 8,
                };
                let code =
                    self.source.get(self.at + 2..self.at + 2 + digits).and_then(|d| u32::from_str_radix(d, 16).ok());
                let Some(c) = code.and_then(char::from_u32) else {
                    return self.fail(self.at, "this escape is not known");
                };
                text.push(c);
                self.at += 2 + digits;
                return Ok(());
            }
            _ => return self.fail(self.at, "this escape is not known"),
        };
        text.push(known);
        self.at += 2;
        Ok(())
    }
}

struct Parser {
    tokens: Vec<(Place, Token)>,
    at: usize,
    names: BTreeMap<String, Value>,
}

const RESERVED: &[&str] = &[
    "and", "break", "class", "continue", "def", "del", "elif", "else", "for", "global", "if", "import", "in", "lambda",
    "load", "not", "or", "pass", "return", "while", "with", "yield",
];

impl Parser {
    fn here(&self) -> (Place, &Token) {
        let (place, token) = &self.tokens[self.at.min(self.tokens.len() - 1)];
        (*place, token)
    }

    fn fail<T>(&self, why: impl Into<String>) -> Result<T, Fault> {
        Err(Fault { at: self.here().0, why: why.into() })
    }

    fn next_is(&mut self, symbol: char) -> bool {
        let found = *self.here().1 == Token::Symbol(symbol);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, symbol: char) -> Result<(), Fault> {
        if self.next_is(symbol) { Ok(()) } else { self.fail(format!("expected `{symbol}`")) }
    }

    /// Parses a call or `NAME = VALUE`; returns false at the end.
    fn statement(&mut self, calls: &mut Vec<Call>) -> Result<bool, Fault> {
        while matches!(self.here().1, Token::Newline | Token::Symbol(';')) {
            self.at += 1;
        }
        let (at, token) = self.here();
        let name = match token {
            Token::End => return Ok(false),
            Token::Name(name) => name.clone(),
            // A literal alone, such as a documentation string, has no effect.
            Token::Text(_) => {
                self.value(0)?;
                return self.end_of_statement();
            }
            _ => return self.fail("expected a call"),
        };
        self.at += 1;
        if self.next_is('=') {
            let value = self.value(0)?;
            self.names.insert(name, value);
        } else if self.next_is('(') {
            calls.push(self.call(at, name)?);
        } else {
            return self.fail(format!("expected `(` or `=` behind `{name}`"));
        }
        self.end_of_statement()
    }

    fn end_of_statement(&mut self) -> Result<bool, Fault> {
        match self.here().1 {
            Token::Newline | Token::Symbol(';') | Token::End => Ok(true),
            _ => self.fail("expected the end of the line"),
        }
    }

    fn call(&mut self, at: Place, name: String) -> Result<Call, Fault> {
        let mut call = Call { at, name, positional: Vec::new(), named: Vec::new() };
        while !self.next_is(')') {
            let place = self.here().0;
            let keyword = match (self.here().1, self.tokens.get(self.at + 1)) {
                (Token::Name(name), Some((_, Token::Symbol('=')))) => Some(name.clone()),
                _ => None,
            };
            if let Some(keyword) = keyword {
                self.at += 2;
                if call.named.iter().any(|(_, known, _)| *known == keyword) {
                    return Err(Fault { at: place, why: format!("`{keyword}` stands here twice") });
                }
                let value = self.value(0)?;
                call.named.push((place, keyword, value));
            } else if call.named.is_empty() {
                let value = self.value(0)?;
                call.positional.push(value);
            } else {
                return self.fail("expected `NAME = VALUE`");
            }
            if !self.next_is(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(call)
    }

    fn value(&mut self, depth: usize) -> Result<Value, Fault> {
        let mut value = self.operand(depth)?;
        while self.next_is('+') {
            let right = self.operand(depth)?;
            let size = |kind: &Kind| match kind {
                Kind::Text(text) => text.len(),
                Kind::List(items) => items.len(),
                _ => 0,
            };
            if size(&value.kind) + size(&right.kind) > MAX_VALUE {
                return self.fail("the value is too long");
            }
            value.kind = match (value.kind, right.kind) {
                (Kind::Text(left), Kind::Text(right)) => Kind::Text(left + &right),
                (Kind::List(mut left), Kind::List(mut right)) => {
                    left.append(&mut right);
                    Kind::List(left)
                }
                _ => return Err(Fault { at: right.at, why: "`+` joins two strings or two lists".to_owned() }),
            };
        }
        Ok(value)
    }

    fn operand(&mut self, depth: usize) -> Result<Value, Fault> {
        if depth > MAX_DEPTH {
            return self.fail(format!("nested deeper than {MAX_DEPTH}"));
        }
        let (at, token) = self.here();
        let token = token.clone();
        self.at += 1;
        let kind = match token {
            Token::Text(mut text) => {
                // Adjacent strings are concatenated.
                while let Token::Text(more) = self.here().1 {
                    text.push_str(more);
                    self.at += 1;
                }
                Kind::Text(text)
            }
            Token::Name(name) if name == "None" => Kind::None,
            Token::Name(name) if name == "True" || name == "False" => Kind::Other("true or false"),
            Token::Name(name) => match self.names.get(&name) {
                Some(value) => return Ok(Value { at, kind: value.kind.clone() }),
                None => {
                    self.at -= 1;
                    return self.fail(format!("`{name}` is not bound to a value above"));
                }
            },
            Token::Number => Kind::Other("a number"),
            Token::Symbol('[') => Kind::List(self.items(']', depth)?),
            Token::Symbol('(') => {
                let mut items = self.items(')', depth)?;
                match (items.pop(), items.is_empty()) {
                    (Some(one), true) => one.kind,
                    (last, _) => {
                        items.extend(last);
                        Kind::List(items)
                    }
                }
            }
            _ => {
                self.at -= 1;
                return self.fail("expected a string or a list");
            }
        };
        Ok(Value { at, kind })
    }

    fn items(&mut self, end: char, depth: usize) -> Result<Vec<Value>, Fault> {
        let mut items = Vec::new();
        while !self.next_is(end) {
            items.push(self.value(depth + 1)?);
            if !self.next_is(',') {
                self.expect(end)?;
                break;
            }
        }
        Ok(items)
    }
}

impl Value {
    pub(crate) fn text(&self) -> Option<&str> {
        if let Kind::Text(text) = &self.kind { Some(text) } else { None }
    }

    pub(crate) fn list(&self) -> Option<&[Value]> {
        if let Kind::List(items) = &self.kind { Some(items) } else { None }
    }

    pub(crate) fn kind_name(&self) -> &'static str {
        match self.kind {
            Kind::Text(_) => "a string",
            Kind::List(_) => "a list",
            Kind::None => "None",
            Kind::Other(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read() {
        let calls = read(
            "\"\"\"doc\"\"\"\nGIT = [\"git\"]\n# c\nprefix_rule(\n    pattern = GIT + [\"push\", ('a', \"b\" 'c')],\n    decision=\"al\" + \"low\",\n)\nf(r\"\\d\", None); g()\n",
        )
        .unwrap();
        assert_eq!(calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>(), ["prefix_rule", "f", "g"]);
        let pattern = calls[0].named[0].2.list().unwrap();
        assert_eq!(pattern[0].text(), Some("git"));
        assert_eq!(pattern[2].list().unwrap()[1].text(), Some("bc"));
        assert_eq!(calls[0].named[1].2.text(), Some("allow"));
        assert_eq!(calls[1].positional[0].text(), Some("\\d"));
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
            let fault = read(source).unwrap_err();
            assert_eq!((fault.at.line, fault.at.column), (line, column), "{source:?}: {}", fault.why);
        }
    }
}
