//! Code of other languages in text: `python -c`, `node -e`, awk programs, recipes. It is not
//! parsed. Its string literals and a few names are enough to find obvious effects. Finds denials
//! only, because running code is `ask` anyway.

use crate::classify::Classifier;
use crate::invocation::Invocation;
use crate::knowledge::lists::{self, contains, contains_any};
use crate::words::ExpandedArgument;

use super::code::{hidden_command, is_interpreter, is_standard_input};
use super::destroy::classify_deleted_path;

/// Longest program that is scanned, in bytes; running it is `ask` anyway.
const MAX_PROGRAM_BYTES: usize = 32 * 1024;
/// Most programs in one command.
const MAX_PROGRAMS: usize = 32;

/// Classifies one command's embedded code.
pub(super) fn classify_payload(classifier: &mut Classifier, invocation: &Invocation) {
    let at = invocation.span;
    let name = invocation.name.as_slice();
    if is_interpreter(name) || lists::has_word(lists::CODE_ARGUMENTS, name) {
        for code in embedded_texts(invocation).iter().take(MAX_PROGRAMS) {
            classify_program(classifier, &code[..code.len().min(MAX_PROGRAM_BYTES)], at);
        }
    }
    if matches!(name, b"make" | b"gmake") {
        classify_makefile(classifier, invocation);
    }
    for command in option_commands(invocation) {
        hidden_command(classifier, &command, at);
    }
}

/// Returns the texts that may be code: arguments, and standard input if it is code.
fn embedded_texts(invocation: &Invocation) -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> =
        invocation.arguments.iter().map(ExpandedArgument::display_bytes).filter(|t| t.len() > 3).collect();
    let reads_stdin = invocation
        .arguments
        .iter()
        .map(ExpandedArgument::display_bytes)
        .all(|t| t.starts_with(b"-") || is_standard_input(&t));
    if reads_stdin || !is_interpreter(&invocation.name) {
        out.extend(invocation.stdin.literal.clone());
    }
    out
}

/// Classifies a program's text.
pub(super) fn classify_program(classifier: &mut Classifier, text: &[u8], at: (usize, usize)) {
    let reaches = contains_any(text, lists::NETWORK_MARKS);
    if reaches && contains_any(text, lists::SHELL_ENDS) && contains_any(text, lists::SOCKET_MARKS) {
        classifier.record_denial("reverse-shell", "A program connects a shell to another host.", at);
    }
    if reaches
        && contains_any(text, lists::EXECUTION_MARKS)
        && contains_any(text, lists::FETCHED_MARKS)
        && !contains(text, "json.load(")
    {
        classifier.record_denial("fetch-and-run", "A program fetches code and runs it.", at);
    }
    encoded_or_endless(classifier, text, at);
    if reaches && contains_any(text, &["os.environ", "process.env", "%ENV"]) {
        classifier.record_denial("exfiltration", "A program sends the environment to another host.", at);
    }
    classify_literals(classifier, text, reaches, at);
}

/// Reports code that is decoded and run, or that starts itself without end.
fn encoded_or_endless(classifier: &mut Classifier, text: &[u8], at: (usize, usize)) {
    if contains_any(text, lists::DECODING_MARKS)
        && contains_any(text, lists::DECODED_RUN_MARKS)
        && contains_any(text, lists::DECODED_MARKS)
    {
        classifier.record_denial("encoded-and-run", "A program runs code that is encoded.", at);
    }
    if contains(text, "fork") && contains_any(text, lists::ENDLESS_MARKS) && contains_any(text, lists::FORK_MARKS) {
        classifier.record_denial("process-bomb", "A program starts itself endlessly.", at);
    }
}

/// Classifies the string literals of a program.
fn classify_literals(classifier: &mut Classifier, text: &[u8], reaches: bool, at: (usize, usize)) {
    let (removes, writes, runs) = (
        contains_any(text, lists::REMOVAL_MARKS),
        contains_any(text, lists::WRITE_MARKS),
        contains_any(text, lists::EXECUTION_MARKS)
            || contains(text, "`")
            || contains_any(text, &["system", "getline", "shell-command", "print |", "qx"]),
    );
    for literal in string_literals(text) {
        let path = ExpandedArgument::from_bytes(&expand_tilde(classifier, &literal), at);
        let looks_like_path = literal.starts_with(b"/") || literal.starts_with(b"~") || literal.starts_with(b"..");
        if looks_like_path && !literal.contains(&b' ') {
            if removes {
                classify_deleted_path(classifier, &path, true, at);
            }
            if writes && let Some(absolute) = classifier.absolute_path(&path) {
                super::write::classify_target(classifier, &absolute, false, at);
            }
        }
        if reaches && super::output::names_secret(classifier, &path) {
            classifier.record_denial("exfiltration", "A program sends a secret to another host.", at);
        }
        if runs && literal.len() > 3 {
            hidden_command(classifier, &literal, at);
        }
    }
    if contains(text, "!") && !contains(text, "\n") {
        // `:!command` of editors and debuggers.
        let command = text.trim_ascii_start();
        let command = command.strip_prefix(b":").unwrap_or(command);
        if let Some(command) = command
            .strip_prefix(b"!")
            .or_else(|| command.strip_prefix(b"shell "))
            .or_else(|| command.strip_prefix(b".shell "))
        {
            hidden_command(classifier, command, at);
        }
    }
    if let Some(command) = text.strip_prefix(b".shell ").or_else(|| text.strip_prefix(b".system ")) {
        hidden_command(classifier, command, at);
    }
}

fn expand_tilde(classifier: &Classifier, literal: &[u8]) -> Vec<u8> {
    match literal.strip_prefix(b"~") {
        Some(rest) if rest.is_empty() || rest.starts_with(b"/") => [classifier.context.home.as_bytes(), rest].concat(),
        _ => literal.to_vec(),
    }
}

/// Returns the texts between equal quotes, and lists of them joined by spaces, which is how
/// programs take their arguments. Quotes inside quotes of the other kind are part of the text.
fn string_literals(text: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    let mut list: Vec<Vec<u8>> = Vec::new();
    let mut list_end = 0;
    let mut at = 0;
    while at < text.len() && out.len() < 64 {
        let quote = text[at];
        at += 1;
        if !matches!(quote, b'"' | b'\'' | b'`') {
            continue;
        }
        let start = at;
        while at < text.len() && text[at] != quote {
            at += if text[at] == b'\\' { 2 } else { 1 };
        }
        let end = at.min(text.len());
        let escaped = text[start..end].split(|b| *b == b'\\').collect::<Vec<_>>().concat();
        let between = text.get(list_end..start.saturating_sub(1)).unwrap_or_default();
        let continues = !list.is_empty() && between.contains(&b',') && between.iter().all(|b| b", [(\n\t".contains(b));
        if !continues {
            out.extend((list.len() > 1).then(|| list.join(&b' ')));
            list.clear();
        }
        list.push(escaped.clone());
        list_end = (end + 1).min(text.len());
        if end > start {
            out.push(escaped);
        }
        at += 1;
    }
    out.extend((list.len() > 1).then(|| list.join(&b' ')));
    out
}

/// Classifies recipes in a makefile given as text.
fn classify_makefile(classifier: &mut Classifier, invocation: &Invocation) {
    let texts = invocation.known_texts();
    let directory =
        texts.iter().position(|t| t == b"-C" || t == b"--directory").and_then(|i| invocation.arguments.get(i + 1));
    let scope = classifier.scope.cwd.clone();
    if let Some(directory) = directory {
        classifier.scope.cwd = classifier.absolute_path(directory);
    }
    let reads_stdin = texts.iter().any(|t| is_standard_input(t) || t == b"-f-" || t == b"--file=-");
    let mut recipes: Vec<Vec<u8>> = Vec::new();
    if let Some(makefile) = invocation.stdin.literal.as_ref().filter(|_| reads_stdin) {
        for line in makefile.split(|b| *b == b'\n') {
            let recipe = match line.strip_prefix(b"\t") {
                Some(recipe) => recipe,
                None => line.iter().position(|b| *b == b';').map(|i| &line[i + 1..]).unwrap_or_default(),
            };
            recipes.push(recipe.iter().copied().skip_while(|b| b"@-+ ".contains(b)).collect());
        }
    }
    // `--eval` adds to the makefile.
    recipes.extend(texts.iter().filter_map(|t| t.strip_prefix(b"--eval=").map(<[u8]>::to_vec)));
    for recipe in recipes.iter().filter(|r| !r.is_empty()) {
        hidden_command(classifier, recipe, invocation.span);
    }
    classifier.scope.cwd = scope;
}

/// Quotes words as words of a script.
fn quote_words<'w>(words: impl Iterator<Item = &'w Vec<u8>>) -> Vec<u8> {
    let quote = |word: &Vec<u8>| {
        let escaped = word.split(|b| *b == b'\'').collect::<Vec<_>>().join(&b"'\\''"[..]);
        [&b"'"[..], &escaped, b"'"].concat()
    };
    words.map(quote).collect::<Vec<_>>().join(&b' ')
}

/// Returns the shell command of sed's `e command` or `s/x/command/e`.
fn sed_command(script: &[u8]) -> Option<Vec<u8>> {
    let address = script.iter().take_while(|b| b.is_ascii_digit() || b"$,~! ".contains(b)).count();
    let command = &script[address..];
    if let Some(text) = command.strip_prefix(b"e ") {
        return Some(text.to_vec());
    }
    let (delimiter, rest) = command.strip_prefix(b"s")?.split_first()?;
    let mut parts = vec![Vec::new()];
    let mut bytes = rest.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => parts.last_mut()?.extend(bytes.next()),
            byte if byte == delimiter => parts.push(Vec::new()),
            byte => parts.last_mut()?.push(*byte),
        }
    }
    match parts.as_slice() {
        [_, replacement, flags] if flags.contains(&b'e') => Some(replacement.clone()),
        _ => None,
    }
}

/// Returns the values of options that programs run as commands.
fn option_commands(invocation: &Invocation) -> Vec<Vec<u8>> {
    let texts = invocation.known_texts();
    let mut out = Vec::new();
    match invocation.name.as_slice() {
        b"tmux" | b"byobu" | b"zellij" => out.extend(texts.iter().filter(|t| t.contains(&b' ')).cloned()),
        b"screen" | b"dtach" | b"abduco" => {
            out.push(quote_words(texts.iter().skip_while(|t| t.starts_with(b"-"))));
        }
        b"alias" => {
            out.extend(texts.iter().filter_map(|t| t.iter().position(|b| *b == b'=').map(|at| t[at + 1..].to_vec())))
        }
        b"sqlite3" | b"psql" | b"mysql" | b"mariadb" => {
            const SHELL_ESCAPES: &[&[u8]] = &[b".shell ", b".system ", b"\\! ", b"system "];
            let escaped = texts.iter().filter_map(|t| SHELL_ESCAPES.iter().find_map(|e| t.strip_prefix(*e)));
            out.extend(escaped.map(<[u8]>::to_vec));
        }
        b"sed" | b"gsed" => out.extend(texts.iter().filter_map(|text| sed_command(text))),
        // The command to test each step, with its arguments.
        b"git" if texts.first().is_some_and(|t| t == b"bisect") => {
            out.push(quote_words(texts.iter().skip_while(|t| *t != b"run").skip(1)));
        }
        _ => {}
    }
    for (i, text) in texts.iter().enumerate() {
        out.extend(lists::ATTACHED_OPTIONS.iter().filter_map(|p| text.strip_prefix(p.as_bytes()).map(<[u8]>::to_vec)));
        let separate = lists::SEPARATE_OPTIONS.iter().any(|(program, options)| {
            program.as_bytes() == invocation.name && options.iter().any(|o| o.as_bytes() == text)
        });
        if separate {
            out.extend(texts.get(i + 1).cloned());
        }
        // git: `-c alias.x='!command'`
        if invocation.name == b"git" {
            out.extend(text.windows(2).position(|w| w == b"=!").map(|at| text[at + 2..].to_vec()));
            out.extend(text.strip_prefix(b"ext::").map(<[u8]>::to_vec));
        }
    }
    out.retain(|command| !command.is_empty() && command.len() < 4096);
    out
}
