//! Reader of git's settings that reads a text exactly as git does, or not at all
//! (`git_parse_source` and its callees in git's config.c, 2.47). A text that two readers could read
//! differently is not read. Pure.
//!
//! `settings_text` reads too much rather than too little, to find all paths that a setting could
//! name. This reader serves to check a setting.

use std::ops::Range;

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitSetting {
    /// The part before the first dot of its whole name, in lower case.
    pub section: String,
    /// The part between the first and the last dot.
    pub subsection: Option<Vec<u8>>,
    /// The part after the last dot, in lower case.
    pub key: String,
    /// Absent if there is no `=`, which git takes for true.
    pub value: Option<Vec<u8>>,
    /// Range of the key and its value in the text, without the end of the line.
    pub span: Range<usize>,
}

impl GitSetting {
    /// Returns whether both are the same setting with the same value.
    pub fn says_same(&self, other: &Self) -> bool {
        self.is_named_as(other) && self.value == other.value
    }

    /// Returns whether both have the same name.
    pub fn is_named_as(&self, other: &Self) -> bool {
        (&self.section, &self.subsection, &self.key) == (&other.section, &other.subsection, &other.key)
    }

    /// Returns the whole name, for display.
    pub fn full_name(&self) -> String {
        let subsection =
            self.subsection.as_deref().map(|text| String::from_utf8_lossy(text).escape_debug().to_string());
        match subsection {
            Some(subsection) => format!("{}.{subsection}.{}", self.section, self.key),
            None => format!("{}.{}", self.section, self.key),
        }
    }
}

/// Returns the settings in a text. Returns `None` if git refuses the text, or if another reader
/// could read it differently. Examples are a carriage return, a byte order mark and a NUL.
pub fn parse_settings(text: &[u8]) -> Option<Vec<GitSetting>> {
    if text.iter().any(|byte| matches!(byte, b'\r' | 0)) || text.starts_with(b"\xef\xbb\xbf") {
        return None;
    }
    let mut reader = SettingsReader { text, at: 0 };
    let (mut found, mut base) = (Vec::new(), None::<Vec<u8>>);
    while let Some(byte) = reader.next() {
        match byte {
            b if is_space(b) => {}
            b'#' | b';' => reader.skip_line(),
            b'[' => base = Some(reader.read_header()?),
            b if b.is_ascii_alphabetic() => {
                let start = reader.at - 1;
                let (key, value) = reader.read_entry(b)?;
                let end = reader.at - usize::from(reader.text.get(reader.at - 1) == Some(&b'\n'));
                found.push(build_setting(base.as_deref()?, key, value, start..end)?);
            }
            _ => return None,
        }
    }
    Some(found)
}

fn build_setting(base: &[u8], key: Vec<u8>, value: Option<Vec<u8>>, span: Range<usize>) -> Option<GitSetting> {
    let (section, subsection) = match base.iter().position(|b| *b == b'.') {
        Some(dot) => (&base[..dot], Some(base[dot + 1..].to_vec())),
        None => (base, None),
    };
    let section = String::from_utf8(section.to_vec()).ok().filter(|name| !name.is_empty())?;
    Some(GitSetting { section, subsection, key: String::from_utf8(key).ok()?, value, span })
}

/// Returns whether git's own `isspace` is true for the byte.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n')
}

fn is_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

struct SettingsReader<'t> {
    text: &'t [u8],
    at: usize,
}

impl SettingsReader<'_> {
    fn next(&mut self) -> Option<u8> {
        let byte = self.text.get(self.at).copied();
        self.at += usize::from(byte.is_some());
        byte
    }

    /// The end of the text ends a line.
    fn next_or_end(&mut self) -> u8 {
        self.next().unwrap_or(b'\n')
    }

    fn skip_line(&mut self) {
        while self.next().is_some_and(|byte| byte != b'\n') {}
    }

    /// `get_base_var`: reads a header after its opening bracket.
    fn read_header(&mut self) -> Option<Vec<u8>> {
        let mut name = Vec::new();
        loop {
            match self.next()? {
                b']' => return Some(name).filter(|name| !name.is_empty()),
                byte if is_space(byte) => return self.read_subsection(name, byte),
                byte if is_key(byte) || byte == b'.' => name.push(byte.to_ascii_lowercase()),
                _ => return None,
            }
        }
    }

    /// `get_extended_base_var`.
    fn read_subsection(&mut self, mut name: Vec<u8>, mut byte: u8) -> Option<Vec<u8>> {
        while is_space(byte) {
            if byte == b'\n' {
                return None;
            }
            byte = self.next()?;
        }
        if byte != b'"' || name.is_empty() {
            return None;
        }
        name.push(b'.');
        loop {
            let byte = match self.next()? {
                b'"' => break,
                b'\\' => self.next()?,
                byte => byte,
            };
            if byte == b'\n' {
                return None;
            }
            name.push(byte);
        }
        (self.next()? == b']').then_some(name)
    }

    /// `get_value`: reads a key after its first letter, and its value.
    fn read_entry(&mut self, first: u8) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let mut key = vec![first.to_ascii_lowercase()];
        let mut byte = self.next_or_end();
        while is_key(byte) {
            key.push(byte.to_ascii_lowercase());
            byte = self.next_or_end();
        }
        while matches!(byte, b' ' | b'\t') {
            byte = self.next_or_end();
        }
        match byte {
            b'\n' => Some((key, None)),
            b'=' => Some((key, Some(self.read_value()?))),
            _ => None,
        }
    }

    /// `parse_value`.
    fn read_value(&mut self) -> Option<Vec<u8>> {
        let (mut value, mut quoted) = (Vec::new(), false);
        // Length of the value without trailing blanks.
        let mut content_length = 0;
        loop {
            match self.next_or_end() {
                b'\n' => {
                    value.truncate(content_length);
                    return (!quoted).then_some(value);
                }
                byte if is_space(byte) && !quoted => {
                    if !value.is_empty() {
                        value.push(byte);
                    }
                    continue;
                }
                b'#' | b';' if !quoted => {
                    self.skip_line();
                    value.truncate(content_length);
                    return Some(value);
                }
                b'\\' => match self.next_or_end() {
                    b'\n' => {}
                    b't' => value.push(b'\t'),
                    b'b' => value.push(8),
                    b'n' => value.push(b'\n'),
                    byte @ (b'\\' | b'"') => value.push(byte),
                    _ => return None,
                },
                b'"' => quoted = !quoted,
                byte => value.push(byte),
            }
            content_length = value.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&[&str]>) {
        let found = parse_settings(text.as_bytes()).map(|found| {
            let shown = |setting: &GitSetting| {
                let value =
                    setting.value.as_ref().map_or("(none)".to_owned(), |value| String::from_utf8_lossy(value).into());
                format!("{}={value}", setting.full_name())
            };
            found.iter().map(shown).collect::<Vec<_>>()
        });
        let expected = expected.map(|lines| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>());
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn settings_are_read_as_git_reads_them() {
        check("", Some(&[]));
        check("[core]\n\tbare = false\n", Some(&["core.bare=false"]));
        check("[CORE] HooksPath=x", Some(&["core.hookspath=x"]));
        check("[core] a = 1\nb\n", Some(&["core.a=1", "core.b=(none)"]));
        check("[a \"X.y\\\"z\"]k=v", Some(&["a.X.y\\\"z.k=v"]));
        check("[a.B]k=v", Some(&["a.b.k=v"]));
        check("[a]k = \"x ; y\" z # c\n", Some(&["a.k=x ; y z"]));
        check("[a]k = on\\\n  e  \nj=2", Some(&["a.k=on  e", "a.j=2"]));
        check("[a]k = a\\tb \\\\ \\\" ", Some(&["a.k=a\tb \\ \""]));
        check("[a]; k=1 \\\nj = \"\"", Some(&["a.j="]));
        check("[a][b]k=1", Some(&["b.k=1"]));
    }

    #[test]
    fn ambiguous_input_is_not_accepted() {
        for text in [
            "k=1",
            "[a]k=\"x\n",
            "[a]k=\\x\n",
            "[a\n]k=1",
            "[a \"b\" ]k=1",
            "[a\"b\"]k=1",
            "[a]1k=1",
            "[a]k x=1",
            "[]k=1",
            "[a]\rk=1",
            "[a]k=1\r\n",
            "[a]k=\0",
            "\u{feff}[a]k=1",
            "[a \"b\nc\"]k=1",
            "[a",
            "[ \"b\"]k=1",
            "[a]k_=1",
        ] {
            check(text, None);
        }
    }

    #[test]
    fn a_span_is_all_of_a_setting_and_nothing_else() {
        let text = "[a] k = one\\\n two # c\n\tj=2\n[b]\nl";
        let spans =
            parse_settings(text.as_bytes()).unwrap().into_iter().map(|setting| &text[setting.span]).collect::<Vec<_>>();
        assert_eq!(spans, ["k = one\\\n two # c", "j=2", "l"]);
    }
}
