//! JSON values with the line and column of each, so that a note can refer to an entry that cannot be
//! imported. RFC 8259; on request, comments and a trailing comma are skipped, as in editors' settings.
//!
//! Must not know the meaning of the text. Limited in depth; never panics.

use jsonc_parser::ast::{ObjectProp, Value};
use jsonc_parser::common::{Range, Ranged};
use jsonc_parser::errors::ParseErrorKind;
use jsonc_parser::tokens::TokenAndRange;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use super::value::{ImportValue, PositionedError, SpannedKey, SpannedValue};
use crate::error::LineIndex;

/// Deepest nesting.
const MAX_DEPTH: usize = 64;

/// Parses a whole text.
pub(crate) fn parse_json(source: &str, comments: bool) -> Result<SpannedValue, PositionedError> {
    let text = source.strip_prefix('\u{feff}').unwrap_or(source);
    let converter = JsonConverter { source, start: source.len() - text.len(), lines: LineIndex::from_source(source) };
    let options = ParseOptions {
        allow_comments: comments,
        allow_trailing_commas: comments,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let ends_early = || converter.error_at(text.len(), "the text ends too early");
    let collected = CollectOptions { tokens: true, ..CollectOptions::default() };
    let parsed = parse_to_ast(text, &collected, &options).map_err(|error| match error.kind() {
        ParseErrorKind::UnterminatedArray
        | ParseErrorKind::UnterminatedObject
        | ParseErrorKind::ExpectedObjectValue => ends_early(),
        kind => converter.error_at(error.range().start, lower_first(&kind.to_string())),
    })?;
    if let Some(at) = find_other_blank(text, &parsed.tokens.unwrap_or_default()) {
        return Err(converter.error_at(at, "expected a value"));
    }
    let value = parsed.value.ok_or_else(ends_early)?;
    converter.convert_value(&value, 0)
}

/// Returns the first blank that JSON does not have (RFC 8259, section 2): the parser skips those of Unicode too.
/// Text with a comment is not examined.
fn find_other_blank(text: &str, tokens: &[TokenAndRange<'_>]) -> Option<usize> {
    let ends = std::iter::once(0).chain(tokens.iter().map(|token| token.range.end));
    let starts = tokens.iter().map(|token| token.range.start).chain([text.len()]);
    ends.zip(starts).find_map(|(end, start)| {
        let between = text.get(end..start).filter(|between| !between.contains('/'))?;
        between.find(|c| !matches!(c, ' ' | '\t' | '\n' | '\r')).map(|at| end + at)
    })
}

fn lower_first(message: &str) -> String {
    let mut letters = message.chars();
    letters.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(letters).collect()
}

/// Converts the values of the parser, and checks what it does not.
struct JsonConverter<'a> {
    source: &'a str,
    /// Offset of the parsed text in the source.
    start: usize,
    lines: LineIndex<'a>,
}

impl JsonConverter<'_> {
    fn error_at(&self, offset: usize, why: impl Into<String>) -> PositionedError {
        PositionedError::new(self.lines.position_at(self.start + offset), why)
    }

    fn convert_value(&self, value: &Value<'_>, depth: usize) -> Result<SpannedValue, PositionedError> {
        let offset = value.range().start;
        if depth > MAX_DEPTH {
            return Err(self.error_at(offset, format!("nested deeper than {MAX_DEPTH}")));
        }
        let converted = match value {
            Value::NullKeyword(_) => ImportValue::Null,
            Value::BooleanLit(literal) => ImportValue::Bool(literal.value),
            Value::NumberLit(_) => ImportValue::Number,
            Value::StringLit(literal) => ImportValue::Text(self.convert_string(&literal.value, literal.range)?),
            Value::Array(list) => {
                let items = list.elements.iter().map(|item| self.convert_value(item, depth + 1));
                ImportValue::List(items.collect::<Result<_, _>>()?)
            }
            Value::Object(object) => self.convert_entries(&object.properties, depth)?,
        };
        Ok(SpannedValue { at: self.lines.position_at(self.start + offset), value: converted })
    }

    fn convert_entries(&self, properties: &[ObjectProp<'_>], depth: usize) -> Result<ImportValue, PositionedError> {
        let mut entries: Vec<(SpannedKey, SpannedValue)> = Vec::new();
        for property in properties {
            let range = property.name.range();
            let name = self.convert_string(property.name.as_str(), range)?;
            if entries.iter().any(|(key, _)| key.name == name) {
                return Err(self.error_at(range.start, format!("`{name}` appears twice here")));
            }
            let at = self.lines.position_at(self.start + range.start);
            entries.push((SpannedKey { at, name }, self.convert_value(&property.value, depth + 1)?));
        }
        Ok(ImportValue::Object(entries))
    }

    /// Refuses control characters in a string (RFC 8259, section 7).
    fn convert_string(&self, value: &str, range: Range) -> Result<String, PositionedError> {
        let written = &self.source[self.start + range.start..self.start + range.end];
        match written.find(|c| c < ' ') {
            Some(at) => Err(self.error_at(range.start + at, "a string contains a control character")),
            None => Ok(value.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn wrong(source: &str, comments: bool, line: usize, column: usize) {
        let fault = parse_json(source, comments).unwrap_err();
        assert_eq!((fault.at.line, fault.at.column), (line, column), "{source:?}: {}", fault.why);
    }

    #[test]
    fn values_have_their_source() {
        let value = parse_json("{\n  \"a\": [1, \"x\\u00e9\\n\", true],\n  \"b\": null\n}", false).unwrap();
        let a = value.get("a").unwrap();
        assert_eq!((a.at.line, a.at.column), (2, 8));
        assert_eq!(a.as_list().unwrap()[1].as_text(), Some("xé\n"));
        assert_eq!(value.get("b").unwrap().value, ImportValue::Null);
        assert_eq!(parse_json("\"\\ud83d\\ude00\"", false).unwrap().as_text(), Some("😀"));
        let commented = "// a\n{ /* b */ \"a\": [1,], // c\n}";
        assert!(parse_json(commented, true).is_ok() && parse_json(commented, false).is_err());
    }

    #[test]
    fn errors_carry_their_position() {
        wrong("", false, 1, 1);
        wrong("{\n \"a\" 1}", false, 2, 6);
        wrong("[1,\n]", false, 1, 3);
        wrong("{\"a\": 1, \"a\": 2}", false, 1, 10);
        wrong("[1] x", false, 1, 5);
        wrong("\"a\nb\"", false, 1, 3);
        wrong("\"\\ud800\"", false, 1, 2);
        wrong("[-]", false, 1, 3);
        wrong("/* x", true, 1, 1);
        wrong("[1,\u{a0}2]", true, 1, 4);
        wrong("\u{b}[1]\u{2028}", false, 1, 1);
        wrong(&("[".repeat(100) + &"]".repeat(100)), false, 1, 66);
        assert!(parse_json(&"[".repeat(100_000), false).is_err());
    }
}
