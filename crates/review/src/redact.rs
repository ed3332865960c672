//! Removes secrets from a text before it is sent to another machine.
//!
//! Recognises values of variables with the name of a secret, and values beside such a name. Also
//! recognises well-known formats of tokens, user information in URLs, PEM blocks, and long
//! random-looking words. Other secrets are not recognised. The time is linear in the text for each
//! rule.

use std::ffi::OsString;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use stockade_model::{NameList, table_rows};

/// Replacement of a secret.
pub(crate) const REDACTION_MARK: &str = "[secret]";

/// Parts of names, in lower case, whose value is a secret.
const SECRET_NAME_PARTS: NameList = NameList::new(include_str!("secret_name_parts.txt"));
/// Words that a secret always follows.
const PASSWORD_WORDS: &[&str] = &["password", "passwd", "passphrase"];
/// Programs, and commands of programs, whose `-p` takes a password.
const PASSWORD_PROGRAMS: &[&str] =
    &["mysql", "mysqldump", "mysqladmin", "mariadb", "mariadb-dump", "mariadb-admin", "sshpass", "7z", "7za", "login"];
/// Shortest value of a variable that is searched for: shorter ones occur in most texts.
const MIN_VALUE_BYTES: usize = 6;
/// Most values of variables that are searched for.
const MAX_VALUES: usize = 256;
/// Fewest characters of a word of mixed letters and digits that looks random.
const MIN_RANDOM_CHARS: usize = 32;

/// The lines of `token_prefixes.txt`: a prefix, and the least number of letters after it.
static TOKEN_PREFIXES: LazyLock<Vec<(&str, usize)>> = LazyLock::new(|| {
    let lines = table_rows(include_str!("token_prefixes.txt"));
    // A line without a readable number counts with any length; a test requires that there is none.
    lines
        .map(|line| line.split_once(' ').unwrap_or((line, "")))
        .map(|(prefix, more)| (prefix, more.parse().unwrap_or(0)))
        .collect()
});

/// The patterns of secrets.
struct SecretPatterns {
    /// From `-----BEGIN` to the end of the `-----END` marker, or to the end of the text.
    pem_block: Regex,
    /// `user:password@` in a URL.
    url_user: Regex,
    /// A word that may be a token. Paths and assignments consist of several words.
    word: Regex,
    /// The separator of a name and its value. A closing quote of the name may be before it, as in JSON.
    separator: Regex,
    /// Blanks before a value in the next word.
    blanks: Regex,
    /// A value, with its opening quote.
    value: Regex,
    /// The value of a header: a scheme and its parameters.
    header: Regex,
    /// `user:password`: the part up to the colon, and the password.
    user: Regex,
}

static PATTERNS: LazyLock<SecretPatterns> = LazyLock::new(|| SecretPatterns {
    pem_block: compile_pattern(r"(?s)-----BEGIN .*?(?:-----END .*?-----|\z)"),
    url_user: compile_pattern(r#"://[^\s/?#'"`<>\\]*@"#),
    word: compile_pattern("[A-Za-z0-9_.+~-]+"),
    separator: compile_pattern(r#"^["']?[ \t]*[=:][ \t]*"#),
    blanks: compile_pattern(r"^[ \t]+"),
    value: compile_pattern(r#"^(?:"[^"]*|'[^']*|[^\s'"`;&|<>(),}]*)"#),
    header: compile_pattern(r#"^[^\n\r"']*"#),
    user: compile_pattern(r#"^([ \t='"]+[^\s'":]*:)[^\s'"]*"#),
});

#[expect(clippy::expect_used, reason = "the patterns are constants, and every test compiles them")]
fn compile_pattern(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid pattern")
}

/// Removes the secrets of one environment.
#[derive(Clone, Default)]
pub struct SecretRedactor {
    /// Longest first, so that a value that contains another one is removed completely.
    values: Vec<String>,
}

impl std::fmt::Debug for SecretRedactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redactor").field("values", &self.values.len()).finish()
    }
}

impl SecretRedactor {
    /// Creates a redactor with the values of variables that have the name of a secret.
    pub fn new(environment: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut values: Vec<String> = environment
            .into_iter()
            .filter(|(name, _)| name.to_str().is_some_and(|name| names_a_secret(&name.to_lowercase())))
            .filter_map(|(_, value)| value.into_string().ok())
            .map(|value| value.trim().to_owned())
            .filter(|value| value.len() >= MIN_VALUE_BYTES)
            .take(MAX_VALUES)
            .collect();
        values.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        values.dedup();
        Self { values }
    }

    /// Adds a value.
    #[must_use]
    pub fn with_value(mut self, value: &str) -> Self {
        self.values.insert(0, value.to_owned());
        self
    }

    /// Returns the text without recognised secrets.
    pub fn redact_text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in self.values.iter().filter(|value| !value.is_empty()) {
            if text.contains(value.as_str()) {
                text = text.replace(value.as_str(), REDACTION_MARK);
            }
        }
        let patterns = &*PATTERNS;
        let text = patterns.pem_block.replace_all(&text, REDACTION_MARK);
        let text = patterns.url_user.replace_all(&text, format!("://{REDACTION_MARK}@"));
        let text = named_values(&text, patterns);
        patterns.word.replace_all(&text, |word: &Captures<'_>| redact_word(&word[0])).into_owned()
    }
}

fn names_a_secret(lower: &str) -> bool {
    let ends =
        |part: &str| lower == part || lower.ends_with(&format!("-{part}")) || lower.ends_with(&format!("_{part}"));
    SECRET_NAME_PARTS.names().any(|part| lower.contains(part))
        || lower == "auth"
        || lower.ends_with("key")
        || ends("pass")
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || "_-.".contains(c)
}

/// Removes values from `NAME=value`, `name: value`, `--name value`, `"name": "value"` and `-u
/// user:value`, if the name is that of a secret.
fn named_values(text: &str, patterns: &SecretPatterns) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut takes_password = false;
    while let Some(start) = rest.find(is_name) {
        let (before, from) = rest.split_at(start);
        out.push_str(before);
        takes_password &= !before.contains([';', '|', '&', '\n']);
        let end = from.find(|c| !is_name(c)).unwrap_or(from.len());
        let (name, after) = from.split_at(end);
        out.push_str(name);
        rest = after;
        let lower = name.to_lowercase();
        takes_password |= PASSWORD_PROGRAMS.contains(&lower.as_str());
        let is_option = name.starts_with('-');
        if takes_password && name.starts_with("-p") {
            out.truncate(out.len() - name.len());
            // The password is in the same word or the next one.
            out.push_str("-p");
            let value = &from["-p".len()..];
            let start = value.len() - value.trim_start_matches([' ', '\t', '=']).len();
            rest = redact_value(value, start, patterns, &mut out);
        } else if names_a_secret(lower.trim_matches('-')) {
            let has_next = is_option || lower.contains(['_', '-']) || PASSWORD_WORDS.contains(&lower.as_str());
            let blanks = || patterns.blanks.find(after).filter(|_| has_next);
            if let Some(before) = patterns.separator.find(after).or_else(blanks) {
                if lower.contains("authorization") || lower.contains("cookie") {
                    let header = patterns.header.find(&after[before.end()..]).map_or(0, |value| value.end());
                    out.push_str(before.as_str());
                    out.push_str(REDACTION_MARK);
                    rest = &after[before.end() + header..];
                } else {
                    rest = redact_value(after, before.end(), patterns, &mut out);
                }
            }
        } else if matches!(lower.as_str(), "-u" | "--user" | "--proxy-user") {
            if let Some(user) = patterns.user.captures(after) {
                out.push_str(&user[1]);
                out.push_str(REDACTION_MARK);
                rest = &after[user[0].len()..];
            }
        } else if matches!(lower.as_str(), "bearer" | "basic") && after.starts_with(' ') {
            rest = redact_value(after, 1, patterns, &mut out);
        }
    }
    out.push_str(rest);
    out
}

/// Removes the value that begins after `start` bytes, and returns the rest. A reference to a variable
/// or a substitution is not a secret.
fn redact_value<'a>(text: &'a str, start: usize, patterns: &SecretPatterns, out: &mut String) -> &'a str {
    let (before, rest) = text.split_at(start);
    out.push_str(before);
    let value = patterns.value.find(rest).map_or("", |found| found.as_str());
    let (quote, inner) = value.split_at(usize::from(value.starts_with(['"', '\''])));
    if inner.is_empty() || inner.starts_with('$') || inner.starts_with(REDACTION_MARK) {
        return rest;
    }
    out.push_str(quote);
    out.push_str(REDACTION_MARK);
    &rest[value.len()..]
}

/// Removes a word of a well-known format, or a long one that looks random.
fn redact_word(word: &str) -> String {
    match secret_in(word) {
        Some(start) => format!("{}{REDACTION_MARK}", &word[..start]),
        None => word.to_owned(),
    }
}

/// Returns the position in a word at which a secret starts.
fn secret_in(word: &str) -> Option<usize> {
    let shaped = TOKEN_PREFIXES.iter().filter_map(|(prefix, more)| {
        let begins = |at: &usize| *at == 0 || !word.as_bytes()[at - 1].is_ascii_alphanumeric();
        let at = word.match_indices(prefix).map(|(at, _)| at).find(begins)?;
        (word.len() >= at + prefix.len() + more).then_some(at)
    });
    shaped.min().or_else(|| looks_random(word).then_some(0))
}

fn looks_random(word: &str) -> bool {
    let run = |part: &str| {
        let has = |class: fn(&u8) -> bool| part.bytes().any(|byte| class(&byte));
        part.len() >= MIN_RANDOM_CHARS
            && has(u8::is_ascii_digit)
            && ((has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase))
                || part.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    word.split(['.', '-', '_', '+', '~']).any(run)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn redactor() -> SecretRedactor {
        let environment = [
            ("GH_TOKEN", "tok-1234"),
            ("MY_PASSWORD", "hunter22"),
            ("AWS_SECRET_ACCESS_KEY", "wJalrXU"),
            ("SHORT_KEY", "abc"),
            ("HOME", "/home/u"),
            ("EDITOR", "vim-editor"),
        ];
        SecretRedactor::new(environment.map(|(name, value)| (name.into(), value.into())))
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(redactor().redact_text(text), expected, "{text}");
    }

    #[test]
    fn every_prefix_has_a_length() {
        assert!(TOKEN_PREFIXES.len() > 30, "{}", TOKEN_PREFIXES.len());
        assert!(TOKEN_PREFIXES.iter().all(|(prefix, more)| prefix.len() > 2 && *more >= 10));
    }

    #[test]
    fn secrets_are_left_out() {
        // Values of variables.
        check("echo tok-1234 hunter22 > x", "echo [secret] [secret] > x");
        check("s3 wJalrXU", "s3 [secret]");
        check("vim-editor /home/u abc", "vim-editor /home/u abc");
        // Names of secrets.
        check("DB_PASSWORD=abc make", "DB_PASSWORD=[secret] make");
        check("X_TOKEN='a b c' run", "X_TOKEN='[secret]' run");
        check("run --password hello --port 5", "run --password [secret] --port 5");
        check("run --api-key=hello;ls", "run --api-key=[secret];ls");
        check("{\"client_secret\": \"abc\", \"x\": 1}", "{\"client_secret\": \"[secret]\", \"x\": 1}");
        check("password: abc", "password: [secret]");
        check("TOKEN=$OTHER ./x", "TOKEN=$OTHER ./x");
        check("TOKEN=\"$(cat f)\" ./x", "TOKEN=\"$(cat f)\" ./x");
        check("aws configure set aws_secret_access_key abc", "aws configure set aws_secret_access_key [secret]");
        check("mysqladmin password abc", "mysqladmin password [secret]");
        check("run --pass abc; DB_PASS=x run", "run --pass [secret]; DB_PASS=[secret] run");
        check("mysql -u root -pabc db", "mysql -u root -p[secret] db");
        check("sshpass -p 'a b' ssh -p 22 h", "sshpass -p '[secret]' ssh -p [secret] h");
        check("docker login -u me -p abc | tee x", "docker login -u me -p [secret] | tee x");
        check("docker login x; mkdir -p /a/b && ssh -p 22 h", "docker login x; mkdir -p /a/b && ssh -p 22 h");
        check("compass bypass abc", "compass bypass abc");
        check("the token is here", "the token is here");
        check("make secret", "make secret");
        // Headers.
        check("curl -H 'Authorization: Bearer abc' u", "curl -H 'Authorization: [secret]' u");
        check("curl -H \"X-Api-Key: abc\" u", "curl -H \"X-Api-Key: [secret]\" u");
        check("curl -H 'Cookie: a=b; c=d' u", "curl -H 'Cookie: [secret]' u");
        check("echo Basic dXNlcjpwYXNz", "echo Basic [secret]");
        check("curl -u me:pass https://x.example/", "curl -u me:[secret] https://x.example/");
        check("curl --user 'me:pass' x", "curl --user 'me:[secret]' x");
        // URLs.
        check("git clone https://me:pw@git.example/r.git", "git clone https://[secret]@git.example/r.git");
        check("psql postgres://u:p%40@db:5432/x", "psql postgres://[secret]@db:5432/x");
        check("curl https://x.example/a@b", "curl https://x.example/a@b");
        // PEM.
        check("a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nb", "a\n[secret]\nb");
        check("a -----BEGIN PRIVATE KEY-----\nMIIE", "a [secret]");
    }

    #[test]
    fn well_known_shapes() {
        let tail = "abcdefghijklmnopqrstuvwxyz0123456789";
        for (prefix, more) in TOKEN_PREFIXES.iter() {
            let token = format!("{prefix}{}", &tail[..*more]);
            check(&format!("echo {token};"), "echo [secret];");
            check(&format!("x='{token}'"), "x='[secret]'");
        }
        check("echo eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def_1", "echo [secret]");
        check("git reset 0123456789abcdef0123456789abcdef01234567", "git reset [secret]");
        check("ask-me-anything skip-this task-list", "ask-me-anything skip-this task-list");
        check(
            "rm -rf /home/u/projects/a-rather-long-directory-name/target",
            "rm -rf /home/u/projects/a-rather-long-directory-name/target",
        );
    }

    proptest! {
        #[test]
        fn a_known_value_never_passes(before in ".{0,40}", after in ".{0,40}") {
            let value = "Sup3r/Secret=Value";
            let redacted = SecretRedactor::default().with_value(value).redact_text(&format!("{before}{value}{after}"));
            prop_assert!(!redacted.contains(value));
        }

        #[test]
        fn every_text_is_taken(text in "(?s).{0,200}") {
            redactor().redact_text(&text);
        }
    }
}
