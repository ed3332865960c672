//! `policy fmt`: one layout for configuration files. Comments, values and order are kept; blanks, blank
//! lines and the line breaks of lists change.
//!
//! Must not change the meaning: a text that would have another meaning afterwards is an error.

use std::path::Path;

use toml_edit::{Array, Decor, DocumentMut, Item, RawString, Table, Value};

use crate::error::ConfigError;
use crate::file::ConfigFile;
use crate::parse::parse_file;

/// Widest line of a list, in characters.
const MAX_LINE_CHARACTERS: usize = 100;

/// Returns the text in the standard layout.
///
/// # Errors
/// An error if the text is not a configuration file.
pub fn format_config(file: &Path, source: &str) -> Result<String, ConfigError> {
    parse_file::<ConfigFile>(file, source)?;
    let wrong = |error: toml_edit::TomlError| ConfigError::new(file, None, error.message().to_owned());
    let mut document: DocumentMut = source.parse().map_err(wrong)?;
    let mut first = true;
    format_table(document.as_table_mut(), &mut first);
    let trailing = collect_comments(document.trailing());
    document.set_trailing(if trailing.is_empty() { String::new() } else { format!("\n{trailing}") });
    let text = document.to_string();
    let same = |text: &str| text.parse::<toml::Table>().ok();
    if same(&text) != same(source) {
        return Err(ConfigError::new(file, None, "it cannot be formatted without changing its meaning")
            .with_hint("please report it, with the file"));
    }
    Ok(text)
}

/// Returns the comments of a decoration, one per line, with one blank line between groups.
fn collect_comments(raw: &RawString) -> String {
    let mut text = String::new();
    let mut blank = false;
    for line in raw.as_str().unwrap_or_default().lines() {
        let line = line.trim();
        if line.is_empty() {
            blank = !text.is_empty();
            continue;
        }
        if std::mem::take(&mut blank) {
            text.push('\n');
        }
        text.push_str(line);
        text.push('\n');
    }
    text
}

fn leading_comments(decor: &Decor) -> String {
    decor.prefix().map(collect_comments).unwrap_or_default()
}

/// Returns the comment after a value, which stays there.
fn trailing_comment(decor: &Decor) -> String {
    let text = decor.suffix().and_then(RawString::as_str).unwrap_or_default().trim();
    if text.is_empty() { String::new() } else { format!(" {text}") }
}

fn format_table(table: &mut Table, first: &mut bool) {
    for (mut key, item) in table.iter_mut() {
        match item {
            Item::Value(value) => {
                let own = leading_comments(key.leaf_decor());
                key.leaf_decor_mut().set_prefix(own);
                key.leaf_decor_mut().set_suffix(" ");
                key.dotted_decor_mut().clear();
                let suffix = trailing_comment(value.decor());
                value_layout(value, key.get().chars().count() + 3);
                *value.decor_mut() = Decor::new(" ", suffix);
                *first = false;
            }
            Item::Table(inner) if inner.is_dotted() => {
                // A comment above a dotted key belongs to the last part.
                key.dotted_decor_mut().clear();
                format_table(inner, first);
            }
            Item::Table(inner) => format_section(inner, first),
            Item::ArrayOfTables(list) => list.iter_mut().for_each(|inner| format_section(inner, first)),
            Item::None => {}
        }
    }
}

fn format_section(inner: &mut Table, first: &mut bool) {
    if !inner.is_implicit() {
        let own = leading_comments(inner.decor());
        let blank = if std::mem::take(first) { "" } else { "\n" };
        let suffix = trailing_comment(inner.decor());
        *inner.decor_mut() = Decor::new(format!("{blank}{own}"), suffix);
    }
    format_table(inner, first);
}

fn value_layout(value: &mut Value, before: usize) {
    match value {
        Value::Array(list) => format_array(list, before),
        Value::InlineTable(inner) => {
            for (mut key, value) in inner.iter_mut() {
                *key.leaf_decor_mut() = Decor::new(" ", " ");
                value_layout(value, 0);
                *value.decor_mut() = Decor::new(" ", "");
            }
            if let Some((_, last)) = inner.iter_mut().last() {
                last.decor_mut().set_suffix(" ");
            }
        }
        _ => {}
    }
}

/// Writes a list on one line if it fits and contains no comment, otherwise one entry per line.
fn format_array(list: &mut Array, before: usize) {
    let has_comment = |decor: &Decor| {
        [decor.prefix(), decor.suffix()].iter().flatten().any(|raw| raw.as_str().is_some_and(|text| text.contains('#')))
    };
    let commented = list.iter().any(|value| has_comment(value.decor()))
        || list.trailing().as_str().is_some_and(|t| t.contains('#'));
    if commented {
        return;
    }
    for value in list.iter_mut() {
        value_layout(value, 0);
        value.decor_mut().clear();
    }
    let width = before + list.iter().map(|value| value.to_string().chars().count() + 2).sum::<usize>();
    let breaks = width > MAX_LINE_CHARACTERS;
    for (i, value) in list.iter_mut().enumerate() {
        let prefix = if breaks {
            "\n    "
        } else if i > 0 {
            " "
        } else {
            ""
        };
        *value.decor_mut() = Decor::new(prefix, "");
    }
    list.set_trailing(if breaks { "\n" } else { "" });
    list.set_trailing_comma(breaks && !list.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: &str) {
        let text = format_config(Path::new("/u"), source).unwrap();
        assert_eq!(text, expected);
        assert_eq!(format_config(Path::new("/u"), &text).unwrap(), text, "a second time changes nothing");
    }

    #[test]
    fn one_layout() {
        check("", "");
        check(
            "level='full'\n\n\n\n  # why\n  sandbox   =  \"auto\"   # here\n",
            "level = 'full'\n# why\nsandbox = \"auto\" # here\n",
        );
        check(
            "\n\n# top\n\n# second\nlevel=\"full\"\n[profiles.x]\nhide=[ \"/a\" ,\n\"/b\" ]\nlimits . wall='1m'\n[[rules]]\n# rule\nprefix=['a']\neffect=\"deny\"\njustification=\"x\"\n# end\n",
            "# top\n\n# second\nlevel = \"full\"\n\n[profiles.x]\nhide = [\"/a\", \"/b\"]\nlimits.wall = '1m'\n\n[[rules]]\n# rule\nprefix = ['a']\neffect = \"deny\"\njustification = \"x\"\n\n# end\n",
        );
        let paths: Vec<String> = (0..20).map(|i| format!("\"/some/path/{i}\"")).collect();
        let broken = paths.iter().map(|path| format!("    {path},\n")).collect::<String>();
        check(
            &format!("[profiles.x]\nhide = [{}]\n", paths.join(",")),
            &format!("[profiles.x]\nhide = [\n{broken}]\n"),
        );
        let commented = "[profiles.x]\nhide = [\n  \"/a\", # why\n  \"/b\",\n]\n";
        check(commented, commented);
    }

    #[test]
    fn other_files_stay() {
        assert!(format_config(Path::new("/u"), "a = ").is_err());
        assert!(format_config(Path::new("/u"), "unknown = 1").is_err());
    }
}
