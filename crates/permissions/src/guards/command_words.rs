//! The files that a command line in a setting may name. A shell could compute any other name (see
//! SECURITY.md). Names that are written out are found, whatever the variables before them. Pure: it
//! knows no filesystem.

use stockade_model::NameList;

use super::view::join_name;

/// Programs that run, read or enter the word after them.
const OPENING_PROGRAMS: NameList = NameList::new(include_str!("../../knowledge/opening_programs.txt"));
/// Words before a directory in which the rest of the command runs.
const ENTERING_WORDS: &[&[u8]] = &[b"cd", b"pushd", b"-C"];

/// Token for every separator that ends a command.
const COMMAND_END: &[u8] = b";";

/// A word of a command that may name a file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CommandWord {
    /// A file or directory.
    Path(Vec<u8>),
    /// A file, but no directory: a word without a slash is seldom a name at all.
    Name(Vec<u8>),
}

impl CommandWord {
    fn into_path(self) -> Vec<u8> {
        let (Self::Path(path) | Self::Name(path)) = self;
        path
    }
}

/// Returns every word of a command that may be the program's script or settings.
pub(super) fn extract_words(command: &[u8]) -> Vec<CommandWord> {
    let expands = command.iter().any(|b| matches!(b, b'$' | b'`'));
    let (mut found, mut entered) = (Vec::new(), Vec::new());
    let mut last = COMMAND_END;
    for token in split_tokens(command) {
        let before = last;
        last = opening_context(before, token);
        if ENTERING_WORDS.contains(&before) {
            entered.extend(expand_word(token, expands).into_iter().map(CommandWord::into_path));
        }
        let first = found.len();
        if has_slash(token) {
            found.extend(expand_word(token, expands));
            // `-Fx/y` is an option with its value.
            found.extend(
                token.strip_prefix(b"-").and_then(|rest| rest.get(1..)).map(|rest| CommandWord::Path(rest.to_vec())),
            );
        } else if is_name(token, before) {
            found.push(CommandWord::Name(token.to_vec()));
        }
        let within: Vec<CommandWord> = found[first..].iter().flat_map(|word| join_beneath(&entered, word)).collect();
        found.extend(within);
    }
    found.sort();
    found.dedup();
    found
}

/// Returns the words, with `;` for every separator that ends a command.
fn split_tokens(command: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = command.split_inclusive(|b| is_end(*b)).flat_map(|part| {
        let (text, end) = match part.split_last() {
            Some((last, rest)) if is_end(*last) => (rest, Some(COMMAND_END)),
            _ => (part, None),
        };
        text.split(|b| is_separator(*b)).chain(end)
    });
    ends.filter(|token| !token.is_empty())
}

/// Returns the token as the context of the next word. A dot that is an argument opens nothing.
fn opening_context<'t>(before: &[u8], token: &'t [u8]) -> &'t [u8] {
    if token == b"." && before != COMMAND_END { b"" } else { token }
}

fn is_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b';' | b'&' | b'|' | b'(' | b')' | b'`')
}

fn is_separator(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, b'!' | b'"' | b'\'' | b'=' | b'<' | b'>' | b',')
}

fn has_slash(token: &[u8]) -> bool {
    token.contains(&b'/') && token.iter().any(|b| *b != b'/')
}

/// Returns a word with a slash. If the command expands a variable, also returns every tail of the
/// word. If the variable holds the top of the work tree, one of the tails is the file.
fn expand_word(token: &[u8], expands: bool) -> Vec<CommandWord> {
    let mut found = vec![CommandWord::Path(token.to_vec())];
    if expands {
        found.extend(path_tails(token).into_iter().map(|tail| match has_slash(&tail) {
            true => CommandWord::Path(tail),
            false => CommandWord::Name(tail),
        }));
    }
    found
}

/// Returns the last components of a path: `b/c` and `c` of `a/b/c`, and all of `/b/c`.
pub(super) fn path_tails(path: &[u8]) -> Vec<Vec<u8>> {
    let starts = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at + 1);
    let tails = starts.map(|start| path[start..].to_vec());
    tails.filter(|tail| tail.first().is_some_and(|byte| *byte != b'/')).collect()
}

/// Returns whether a word without a slash may be a file: it has an extension, or the word before it
/// takes a file.
fn is_name(token: &[u8], before: &[u8]) -> bool {
    let is_text = token.iter().any(|b| b.is_ascii_alphabetic()) && !matches!(token[0], b'-' | b'$' | b'%' | b'@');
    let has_extension = token.iter().skip(1).any(|b| *b == b'.') || token[0] == b'.' && token.len() > 1;
    is_text && (has_extension || OPENING_PROGRAMS.contains(before) || before.starts_with(b"-"))
}

/// Returns a relative word beneath each directory that the command enters.
fn join_beneath(entered: &[Vec<u8>], word: &CommandWord) -> Vec<CommandWord> {
    match word {
        CommandWord::Path(path) if path.starts_with(b"/") => Vec::new(),
        CommandWord::Path(path) => entered.iter().map(|at| CommandWord::Path(join_name(at, path))).collect(),
        CommandWord::Name(name) => entered.iter().map(|at| CommandWord::Name(join_name(at, name))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(command: &str, expected: &[&str]) {
        let shown = |word: &CommandWord| match word {
            CommandWord::Path(path) => format!("{}/", String::from_utf8_lossy(path)),
            CommandWord::Name(name) => String::from_utf8_lossy(name).into_owned(),
        };
        let mut found: Vec<String> = extract_words(command.as_bytes()).iter().map(shown).collect();
        found.sort();
        assert_eq!(found, expected, "{command}");
    }

    #[test]
    fn scripts_settings_and_tails() {
        check("!\"./a b\" c", &["./a/"]);
        check("!sh deploy.sh now", &["deploy.sh"]);
        check("!sh deploy", &["deploy"]);
        check("ssh -F sshcfg", &["sshcfg"]);
        check("ssh -Fx/y", &["-Fx/y/", "x/y/"]);
        check("!$HOME/ws/z", &["$HOME/ws/z/", "ws/z/", "z"]);
        check("!$(git rev-parse --show-toplevel)/t/z x", &["/t/z/", "t/z/", "z"]);
        check("!cd tools && ./z y.sh", &["./z/", "tools/./z/", "tools/y.sh", "y.sh"]);
    }

    #[test]
    fn words_that_are_no_files() {
        for command in ["!git status", "less", "less -FRX", "!git add . && git commit", "!git push origin $1", ""] {
            check(command, &[]);
        }
    }
}
