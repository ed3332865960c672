//! Parser for the small part of the shell language that rules need: scripts without expansions. Any other
//! script is not plain, and is only searched as loose words, which may raise caution and never lower it.
//!
//! This is not a second classifier: a script that is plain here is plain to every shell, and the rest is
//! not parsed at all.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use stockade_model::{NameList, RawText, RequestCommand};

/// A command line in the form that rules match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandWords {
    /// The simple commands, each a program and its arguments.
    pub commands: Vec<Vec<String>>,
    /// The commands behind programs that run others, if they are plain: `git push` of `sudo git push`. They
    /// never make a question unnecessary.
    pub inner: Vec<Vec<String>>,
    /// False if a part was not understood: `commands` is then incomplete.
    pub plain: bool,
    /// True if a command continues in the background because of `&`.
    pub background: bool,
    /// Every word, whatever its role, if a command may be hidden among them: in a text that is not plain,
    /// or behind a program that runs others.
    pub loose: Vec<String>,
}

/// Programs, and words of the shell, that run the command among their arguments.
/// A script has a command in every second byte at worst, so the list is built once.
static WRAPPERS: LazyLock<HashSet<&str>> = LazyLock::new(|| WRAPPER_LIST.names().collect());
const WRAPPER_LIST: NameList = NameList::new(include_str!("../knowledge/wrappers.txt"));

/// Words that start a construct, not a command.
const RESERVED_WORDS: &[&str] = &[
    "!", "[[", "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select",
    "then", "until", "while", "{", "}", "alias",
];

/// Returns the last part of a program's path.
pub(crate) fn base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// Parses the command of a request.
pub(crate) fn of_command(command: &RequestCommand) -> CommandWords {
    match command {
        RequestCommand::Argv(argv) => of_argv(&argv.iter().map(RawText::to_str).collect::<Vec<_>>()),
        RequestCommand::Script(script) => of_script(script.as_bytes()),
    }
}

/// Parses a program and its arguments.
pub(crate) fn of_argv(argv: &[Option<&str>]) -> CommandWords {
    let known: Vec<String> = argv.iter().map(|word| word.unwrap_or("\u{fffd}").to_owned()).collect();
    let plain = argv.iter().all(Option::is_some);
    let hides = !plain || known.first().is_some_and(|program| is_wrapper(program));
    let loose = if hides { loose_words(&known.join(" ")) } else { Vec::new() };
    let commands = vec![known];
    CommandWords { inner: all_inner(&commands), commands, plain, background: false, loose }
}

/// Parses a script.
pub(crate) fn of_script(script: &[u8]) -> CommandWords {
    let found = std::str::from_utf8(script).ok().and_then(plain_commands);
    let plain = found.is_some();
    let PlainScript { commands, background } = found.unwrap_or_default();
    let hides = !plain || commands.iter().any(|command| is_wrapper(&command[0]));
    let loose = if hides { loose_words(&String::from_utf8_lossy(script)) } else { Vec::new() };
    CommandWords { inner: all_inner(&commands), commands, plain, background, loose }
}

/// Deepest nesting of wrappers that is parsed.
const MAX_WRAPPERS: usize = 8;

fn all_inner(commands: &[Vec<String>]) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for command in commands {
        push_inner(command, 0, &mut all);
    }
    all
}

fn push_inner(command: &[String], depth: usize, all: &mut Vec<Vec<String>>) {
    if depth == MAX_WRAPPERS {
        return;
    }
    if let Some(script) = shell_script(command) {
        for command in plain_commands(script).unwrap_or_default().commands {
            push_inner(&command, depth + 1, all);
            all.push(command);
        }
    } else if let Some(rest) = unwrap_command(command).filter(|rest| !rest.is_empty()) {
        push_inner(rest, depth + 1, all);
        all.push(rest.to_vec());
    }
}

/// Returns the script of `sh -c SCRIPT`, also with other letters beside the `c`.
fn shell_script(command: &[String]) -> Option<&str> {
    let (program, arguments) = command.split_first()?;
    if !matches!(base_name(program), "sh" | "bash" | "dash" | "zsh" | "ksh" | "ash") {
        return None;
    }
    let takes_script = |word: &String| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c');
    let at = arguments.iter().position(takes_script)?;
    arguments[..at].iter().all(|word| word.starts_with('-')).then(|| arguments.get(at + 1).map(String::as_str))?
}

/// Syntax of the own arguments of wrappers, by name.
static WRAPPER_OPTIONS: LazyLock<HashMap<&str, WrapperSyntax>> = LazyLock::new(|| {
    OPTION_LIST
        .names()
        .filter_map(read_syntax)
        .flat_map(|(names, syntax)| names.split(' ').map(move |name| (name, syntax)))
        .collect()
});

const OPTION_LIST: NameList = NameList::new(include_str!("../knowledge/wrapper_options.txt"));

/// Syntax of a wrapper's own arguments; lists of options are separated by blanks.
#[derive(Clone, Copy)]
struct WrapperSyntax {
    /// Number of operands before the command.
    operands: usize,
    /// Options that take the next word as a value.
    valued: &'static str,
    /// Options after which there is no command, or one that is not plain.
    ends: &'static str,
    assigns: bool,
}

fn read_syntax(row: &'static str) -> Option<(&'static str, WrapperSyntax)> {
    let fields: Vec<&str> = row.split('|').map(str::trim).collect();
    let [names, operands, valued, ends, assigns] = fields[..] else { return None };
    Some((names, WrapperSyntax { operands: operands.parse().ok()?, valued, ends, assigns: assigns == "assigns" }))
}

fn lists_option(list: &str, word: &str) -> bool {
    list.split(' ').any(|listed| listed == word)
}

/// Returns the command that a wrapper runs.
fn unwrap_command(command: &[String]) -> Option<&[String]> {
    let wrapper = WRAPPER_OPTIONS.get(base_name(command.first()?))?;
    let mut at = 1;
    while let Some(word) = command.get(at) {
        if word == "--" {
            at += 1;
            break;
        }
        if word.starts_with('-') && word.len() > 1 {
            if lists_option(wrapper.ends, word) {
                return None;
            }
            at += if lists_option(wrapper.valued, word) { 2 } else { 1 };
        } else if wrapper.assigns && word.contains('=') {
            at += 1;
        } else {
            break;
        }
    }
    command.get(at + wrapper.operands..)
}

/// Returns whether a program runs others: by its name, with or without a version, or as the loader of a C
/// library (`ld-linux-x86-64.so.2 PROGRAM`).
pub(crate) fn is_wrapper(program: &str) -> bool {
    let name = base_name(program);
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    WRAPPERS.contains(name)
        || WRAPPERS.contains(bare)
        || ["ld-linux", "ld-musl", "ld64.so", "qemu-"].iter().any(|loader| name.starts_with(loader))
}

/// The simple commands of a script of plain words, and whether one of them continues in the background.
#[derive(Default)]
struct PlainScript {
    commands: Vec<Vec<String>>,
    background: bool,
}

/// Returns the simple commands of a script of plain words, or `None`.
fn plain_commands(text: &str) -> Option<PlainScript> {
    let mut commands = Vec::new();
    let mut background = false;
    let mut command: Vec<String> = Vec::new();
    let mut characters = text.chars().peekable();
    while let Some(&c) = characters.peek() {
        match c {
            ' ' | '\t' => {
                characters.next();
            }
            ';' | '\n' | '&' | '|' => {
                characters.next();
                if matches!(c, '&' | '|') && characters.peek() == Some(&c) {
                    characters.next();
                } else if c == '&' {
                    background = true;
                }
                finish_command(&mut command, &mut commands)?;
            }
            _ => command.push(plain_word(&mut characters)?),
        }
    }
    finish_command(&mut command, &mut commands)?;
    Some(PlainScript { commands, background })
}

fn finish_command(command: &mut Vec<String>, commands: &mut Vec<Vec<String>>) -> Option<()> {
    let Some(program) = command.first() else { return Some(()) };
    // An assignment changes the meaning of the following words.
    if program.is_empty() || program.contains('=') || RESERVED_WORDS.contains(&program.as_str()) {
        return None;
    }
    commands.push(std::mem::take(command));
    Some(())
}

fn plain_word(characters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<String> {
    let mut word = String::new();
    while let Some(&c) = characters.peek() {
        match c {
            ' ' | '\t' | ';' | '\n' | '&' | '|' => break,
            '\'' | '"' => {
                characters.next();
                loop {
                    match characters.next()? {
                        end if end == c => break,
                        '$' | '`' | '\\' | '!' if c == '"' => return None,
                        inside if inside.is_control() => return None,
                        inside => word.push(inside),
                    }
                }
            }
            _ if c.is_ascii_alphanumeric() || "_-./:=,+@%".contains(c) => {
                characters.next();
                word.push(c);
            }
            _ => return None,
        }
    }
    Some(word)
}

/// Returns every word, without quotes, split at every character that could end one.
fn loose_words(text: &str) -> Vec<String> {
    let without_quotes: String = text.chars().filter(|c| !matches!(c, '\'' | '"' | '\\')).collect();
    without_quotes
        .split(|c: char| c.is_whitespace() || c.is_control() || ";|&()<>{}$`!#".contains(c))
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[track_caller]
    fn check(script: &str, expected: Option<&[&[&str]]>) {
        let words = of_script(script.as_bytes());
        let commands: Vec<Vec<&str>> = words.commands.iter().map(|c| c.iter().map(String::as_str).collect()).collect();
        let found: Option<Vec<&[&str]>> = words.plain.then(|| commands.iter().map(Vec::as_slice).collect());
        assert_eq!(found.as_deref(), expected, "{script:?}");
    }

    #[test]
    fn data_files_are_well_formed() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("knowledge");
        for file in directory.read_dir().unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.starts_with("# ") && text.ends_with('\n'), "{}", path.display());
            let names = NameList::new(text.leak()).names().collect::<Vec<_>>();
            let is_plain = |name: &&str| !name.is_empty() && name.trim() == *name && !name.contains(char::is_control);
            assert!(names.iter().all(is_plain), "{}", path.display());
            assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{}", path.display());
        }
    }

    #[test]
    fn lists_are_sorted() {
        assert!(WRAPPER_LIST.names().is_sorted());
    }

    #[test]
    fn every_row_of_options_is_read() {
        for row in OPTION_LIST.names() {
            for name in row.split('|').next().unwrap().split_whitespace() {
                assert!(WRAPPER_OPTIONS.contains_key(name), "{row}");
            }
        }
        assert_eq!(WRAPPER_OPTIONS["timeout"].operands, 1);
        assert!(WRAPPER_OPTIONS["env"].assigns && !WRAPPER_OPTIONS.contains_key(""));
    }

    #[test]
    fn plain_scripts_are_read() {
        check("git push", Some(&[&["git", "push"]]));
        check(
            "a 'b c' \"d\"e;f&&g||h|i &j\nk",
            Some(&[&["a", "b c", "de"], &["f"], &["g"], &["h"], &["i"], &["j"], &["k"]]),
        );
        check("", Some(&[]));
    }

    #[test]
    fn the_rest_is_not_plain() {
        for script in [
            "git $x",
            "git `x`",
            "git \\push",
            "a > b",
            "a < b",
            "(a)",
            "a=b c",
            "if a",
            "a *",
            "a ?",
            "~/x",
            "a #b",
            "a\rb",
            "é",
            "'' a",
            "a '",
            "echo \"$x\"",
            "{ a",
            "a\0b",
            "! a",
        ] {
            check(script, None);
        }
        assert_eq!(of_script(b"x $(g'i't push)").loose, ["x", "git", "push"]);
        assert_eq!(of_script(b"/bin/sh -c 'git push'").loose, ["/bin/sh", "-c", "git", "push"]);
        assert!(of_script(b"echo 'git push'").loose.is_empty());
        for behind in ["choom -n 5 --", "/lib64/ld-linux-x86-64.so.2", "python3.11 -c", "setarch -R", "uclampset -m 5"]
        {
            let words = of_script(format!("{behind} git push").as_bytes());
            assert!(words.loose.ends_with(&["git".to_owned(), "push".to_owned()]), "{behind}");
        }
    }
}
