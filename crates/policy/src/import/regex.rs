//! Converts the part of regular expressions that globs can express: literals, groups of alternatives, `?`,
//! `.*`. Any other part becomes broader and is marked so, so that an `allow` never becomes wider.
//!
//! Must not match anything: it only translates.

/// Most globs that one expression may become.
const MAX_GLOBS: usize = 64;
/// Deepest nesting of groups.
const MAX_DEPTH: usize = 8;

/// Globs that together match at least the texts of the expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RegexGlobs {
    /// Globs in which `*` stands for any text.
    pub globs: Vec<String>,
    /// True if the globs match more than the expression.
    pub broader: bool,
    /// Globs of the later alternatives, which the expression finds at any position.
    pub anywhere: Vec<String>,
}

/// Longest expression that Gemini CLI tries, in bytes.
pub(super) const MAX_EXPRESSION_BYTES: usize = 2048;

/// Returns whether Gemini CLI refuses an expression, and its rule, as potentially slow: the expression is
/// too long, or a quantifier in a group comes before a quantified group.
pub(super) fn is_refused(expression: &str) -> bool {
    let repeats = |c: char| matches!(c, '*' | '+' | '?' | '{');
    let inside = expression.match_indices('(').find_map(|(at, _)| {
        let group = expression[at + 1..].split(')').next().unwrap_or_default();
        group.find(repeats).map(|found| at + 1 + found)
    });
    let outside = |from: usize| {
        expression[from..].match_indices(')').any(|(at, _)| expression[from + at + 1..].starts_with(repeats))
    };
    expression.len() > MAX_EXPRESSION_BYTES - 64 || inside.is_some_and(outside)
}

/// Translates an expression that is searched from the start of a text that ends in a quote, like a command
/// in JSON. Without a final quote, any text may follow.
pub(super) fn globs_of(expression: &str) -> Result<RegexGlobs, &'static str> {
    let mut reader = RegexReader { rest: expression, broader: false, depth: 0, first: 0 };
    let variants = reader.parse_alternatives()?;
    let first = reader.first;
    if !reader.rest.is_empty() {
        return Err("a `)` closes nothing");
    }
    let mut globs = Vec::new();
    let mut anywhere = Vec::new();
    for (i, variant) in variants.into_iter().enumerate() {
        let mut glob = match variant.split_once('"') {
            Some((text, "")) => text.to_owned(),
            Some(_) => return Err("it contains a quote"),
            None => format!("{variant}*"),
        };
        while glob.contains("**") {
            glob = glob.replace("**", "*");
        }
        if glob.is_empty() {
            return Err("it matches the empty text");
        }
        if i >= first {
            anywhere.push(format!("*{}*", glob.trim_matches('*')));
        }
        if !globs.contains(&glob) {
            globs.push(glob);
        }
    }
    Ok(RegexGlobs { globs, broader: reader.broader, anywhere })
}

struct RegexReader<'a> {
    rest: &'a str,
    broader: bool,
    depth: usize,
    /// Number of variants of the first alternative of the whole expression.
    first: usize,
}

/// The variants of one atom, and whether the atom is `.`, which repeats as `*`.
struct RegexAtom {
    variants: Vec<String>,
    any: bool,
}

impl RegexReader<'_> {
    fn parse_alternatives(&mut self) -> Result<Vec<String>, &'static str> {
        if self.depth > MAX_DEPTH {
            return Err("its groups are nested too deeply");
        }
        let mut all = self.parse_sequence()?;
        if self.depth == 0 {
            self.first = all.len();
        }
        while self.next_is("|") {
            all.extend(self.parse_sequence()?);
        }
        check_glob_count(all)
    }

    fn parse_sequence(&mut self) -> Result<Vec<String>, &'static str> {
        let mut all = vec![String::new()];
        while !self.rest.is_empty() && !self.rest.starts_with(['|', ')']) {
            let atom = self.parse_atom()?;
            let variants = self.parse_repetition(atom)?;
            let mut next = Vec::new();
            for front in &all {
                next.extend(variants.iter().map(|back| format!("{front}{back}")));
            }
            all = check_glob_count(next)?;
        }
        Ok(all)
    }

    fn next_is(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn take_char(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn parse_atom(&mut self) -> Result<RegexAtom, &'static str> {
        let one = |text: &str| Ok(RegexAtom { variants: vec![text.to_owned()], any: false });
        match self.take_char() {
            Some('\\') => self.parse_escape(),
            Some('.') => Ok(RegexAtom { variants: vec!["*".to_owned()], any: true }),
            Some('[') => {
                self.skip_class()?;
                self.broader = true;
                one("*")
            }
            Some('(') => {
                if self.rest.starts_with('?') && !self.next_is("?:") {
                    return Err("it looks ahead or behind");
                }
                self.depth += 1;
                let variants = self.parse_alternatives()?;
                self.depth -= 1;
                if !self.next_is(")") {
                    return Err("a `(` is not closed");
                }
                Ok(RegexAtom { variants, any: false })
            }
            Some('^' | '$') => Err("`^` and `$` mean the JSON around the command there, so that it never matches"),
            Some('*' | '+' | '?' | '{' | '}' | ']') => Err("it is not a regular expression"),
            Some(c) if c.is_control() => Err("it contains a control character"),
            Some(c) => one(&c.to_string()),
            None => Err("it ends too early"),
        }
    }

    fn parse_escape(&mut self) -> Result<RegexAtom, &'static str> {
        let one = |text: String| Ok(RegexAtom { variants: vec![text], any: false });
        match self.take_char() {
            Some('s') => one(" ".to_owned()),
            Some('b') => {
                self.broader = true;
                one(String::new())
            }
            Some('S' | 'w' | 'd' | 'W' | 'D') => {
                self.broader = true;
                one("*".to_owned())
            }
            Some('*') => {
                // Globs have no literal `*`.
                self.broader = true;
                one("*".to_owned())
            }
            Some('\\' | '"') => Err("it looks for what JSON escapes"),
            Some(c) if c.is_ascii_punctuation() || c == ' ' => one(c.to_string()),
            _ => Err("an escape of it cannot be expressed here"),
        }
    }

    /// Skips a class up to its end; its content does not matter.
    fn skip_class(&mut self) -> Result<(), &'static str> {
        let mut first = true;
        self.next_is("^");
        while let Some(c) = self.take_char() {
            match c {
                ']' if !first => return Ok(()),
                '\\' => {
                    self.take_char();
                }
                _ => {}
            }
            first = false;
        }
        Err("a `[` is not closed")
    }

    fn parse_repetition(&mut self, atom: RegexAtom) -> Result<Vec<String>, &'static str> {
        let is_blank = atom.variants == [" "];
        let variants = if self.next_is("*") {
            self.broader |= !atom.any && !is_blank;
            if is_blank { vec![String::new(), " ".to_owned()] } else { vec!["*".to_owned()] }
        } else if self.next_is("+") {
            // Words are joined by one blank.
            self.broader |= !is_blank;
            if atom.any || is_blank {
                atom.variants
            } else {
                atom.variants.iter().map(|text| format!("{text}*")).collect()
            }
        } else if self.next_is("?") {
            let mut with = atom.variants;
            self.broader |= atom.any;
            with.push(String::new());
            with
        } else if self.rest.starts_with('{') {
            return Err("it counts");
        } else {
            self.broader |= atom.any;
            return Ok(atom.variants);
        };
        // Forms such as `.*?` differ in their first match only, not in the texts they match.
        self.next_is("?");
        check_glob_count(variants)
    }
}

fn check_glob_count(all: Vec<String>) -> Result<Vec<String>, &'static str> {
    if all.len() > MAX_GLOBS { Err("it has too many alternatives") } else { Ok(all) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(expression: &str, expected: &[&str], broader: bool) {
        let found = globs_of(expression).unwrap();
        assert_eq!(
            (found.globs.iter().map(String::as_str).collect::<Vec<_>>(), found.broader),
            (expected.to_vec(), broader),
            "{expression}"
        );
    }

    #[test]
    fn meanings_of_globs() {
        check("git status", &["git status*"], false);
        check("git (commit|push)", &["git commit*", "git push*"], false);
        check("git status\"", &["git status"], false);
        check("npm (run )?test", &["npm run test*", "npm test*"], false);
        check(".*--force", &["*--force*"], false);
        check("a\\.b", &["a.b*"], false);
        check("git\\s+push", &["git push*"], false);
        check("a.b", &["a*b*"], true);
        check("rm\\b", &["rm*"], true);
        check("[a-z]+ x", &["* x*"], true);
        check("a|b", &["a*", "b*"], false);
        assert_eq!(globs_of("a|b").unwrap().anywhere, ["*b*"]);
        assert!(globs_of("git (a|b)").unwrap().anywhere.is_empty());
        for (expression, refused) in [("(a?b) (c)?", true), ("(a|b)?", false), ("a?(b)", false), ("(a+)", false)] {
            assert_eq!(is_refused(expression), refused, "{expression}");
        }
        for bad in ["^git", "git$", "(a", "a)", "a{3}", "(?!x)", "*a", "a\\", "[a", "a\"b", ""] {
            assert!(globs_of(bad).is_err() || bad.is_empty(), "{bad}");
        }
    }
}
