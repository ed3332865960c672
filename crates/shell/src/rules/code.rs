//! Commands that run code: shells, `eval`, `source`, `trap`, `xargs`. Code in the text is
//! classified as a script. Code that was fetched or encoded could not have been reviewed.

use stockade_model::Tier;

use crate::crude;
use crate::invocation::Invocation;
use crate::judge::Judge;
use crate::script::{Atom, Dynamic, NestedKind, Simple};
use crate::words::{Argument, Flow, UNKNOWN_BYTE};

/// Most arguments taken from a pipe.
const MAX_PIPED_ARGUMENTS: usize = 256;

const SHELLS: &[&[u8]] = &[
    b"sh", b"bash", b"dash", b"zsh", b"ksh", b"ash", b"fish", b"mksh", b"rbash", b"tcsh", b"csh", b"pwsh", b"hush",
    b"yash", b"elvish", b"nu",
];

pub(super) const INTERPRETERS: &[&str] = &[
    "python",
    "python2",
    "python3",
    "perl",
    "ruby",
    "node",
    "nodejs",
    "php",
    "lua",
    "deno",
    "bun",
    "tclsh",
    "Rscript",
    "osascript",
    "guile",
    "julia",
    "groovy",
    "scala",
    "ghci",
    "runghc",
    "erl",
    "elixir",
    "gjs",
    "luajit",
    "python3.*",
    "pypy*",
    "irb",
    "ts-node",
    "tsx",
    "java",
    "jrunscript",
    "jjs",
    "raku",
];

/// Returns whether the program is a command interpreter of the Bourne family or a similar one.
pub(crate) fn is_shell(name: &[u8]) -> bool {
    SHELLS.contains(&name)
}

pub(super) fn is_interpreter(name: &[u8]) -> bool {
    INTERPRETERS.iter().any(|i| super::hazards::matches(i, name))
}

/// Classifies code whose bytes have these taints.
fn tainted(judge: &mut Judge, flow: &Flow, at: (usize, usize)) {
    if flow.fetched {
        judge.deny("fetch-and-run", "Runs code from the network that nobody has seen.", at);
    }
    if flow.decoded {
        judge.deny("encoded-and-run", "Runs code that is encoded, so that nobody can read it first.", at);
    }
}

/// Classifies code from a pipe or a redirection.
fn piped_code(judge: &mut Judge, flow: &Flow, at: (usize, usize)) -> Flow {
    tainted(judge, flow, at);
    match &flow.literal {
        Some(text) => judge.script(&text.clone(), &Flow::default(), at),
        None => {
            judge.seen.shell_reads = true;
            Flow::default()
        }
    }
}

/// Classifies code in an argument. Parts that are not in the text become one unknown word, so that
/// the other parts are still classified.
fn argument_code(judge: &mut Judge, argument: &Argument, at: (usize, usize)) -> Flow {
    tainted(judge, &argument.flow, at);
    judge.script(&with_unknown_words(&argument.shown()), &Flow::default(), at)
}

fn with_unknown_words(shown: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(shown.len());
    for byte in shown {
        match *byte {
            UNKNOWN_BYTE => text.extend_from_slice(b"$unknown"),
            byte => text.push(byte),
        }
    }
    text
}

/// Classifies data for `>(...)`: a shell there runs it.
pub(crate) fn fed(judge: &mut Judge, simple: &Simple, flow: &Flow) {
    let redirected = simple.redirects.iter().map(|redirect| &redirect.target);
    let mut nested = simple.words.iter().chain(redirected).flat_map(|word| &word.nested);
    if judge.seen.shell_reads && nested.any(|nested| nested.kind == NestedKind::WriteTo) {
        tainted(judge, flow, simple.span);
    }
}

/// Classifies words that a shell gets joined by spaces.
pub(crate) fn joined(judge: &mut Judge, words: &[Argument], stdin: Flow, at: (usize, usize)) -> Flow {
    words.iter().for_each(|word| tainted(judge, &word.flow, at));
    let words: Vec<Vec<u8>> = words.iter().map(Argument::shown).collect();
    judge.script(&with_unknown_words(&words.join(&b' ')), &stdin, at)
}

/// Reports a program whose name is not in the text.
pub(crate) fn dynamic_program(judge: &mut Judge, flow: &Flow, at: (usize, usize)) {
    judge.ask("dynamic-program", "Which program runs is not in the text.", at);
    judge.seen.dynamic_program = true;
    tainted(judge, flow, at);
}

/// Returns whether the command is exactly `bash -c TEXT`. The script is then classified as without
/// it. Another shell would read parts of it differently.
fn is_plain_script(invocation: &Invocation) -> bool {
    let literal = |argument: &Argument| argument.literal();
    match invocation.arguments.as_slice() {
        [option, text] => {
            let is_script = literal(option).is_some_and(|option| option == b"-c");
            !invocation.qualified && invocation.name == b"bash" && is_script && literal(text).is_some()
        }
        _ => false,
    }
}

/// Classifies `sh`, `bash` and their options before the script.
pub(super) fn shell(judge: &mut Judge, invocation: &Invocation) -> Option<Flow> {
    let at = invocation.span;
    if !invocation.qualified && invocation.arguments.len() == 1 && invocation.has("--version") {
        return None;
    }
    if !is_plain_script(invocation) {
        judge.ask("nested-shell", "Starts a shell.", at);
    }
    let (mut command, mut from_stdin) = (false, false);
    let mut words = invocation.arguments.iter();
    let mut operand = None;
    while let Some(word) = words.next() {
        let text = word.shown();
        if text == b"--" || text == b"-" {
            operand = words.next();
            break;
        }
        if text.starts_with(b"--") {
            if matches!(text.as_slice(), b"--rcfile" | b"--init-file") {
                words.next();
            }
            command |= text == b"--command";
        } else if text.len() > 1 && (text[0] == b'-' || text[0] == b'+') && word.literal().is_some() {
            command |= text[1..].contains(&b'c');
            from_stdin |= text[1..].contains(&b's');
            if text[1..].contains(&b'o') || text[1..].contains(&b'O') {
                words.next();
            }
        } else {
            operand = Some(word);
            break;
        }
    }
    // The arguments of the script, `$1` and so on.
    if words.any(|word| super::output::names_secret(judge, word)) {
        judge.seen.secret = true;
    }
    Some(match operand {
        Some(code) if command => argument_code(judge, code, at),
        Some(file) if !from_stdin => {
            if is_standard_input(&file.shown()) {
                piped_code(judge, &invocation.stdin, at)
            } else {
                judge.ask("runs-file", "Runs a file as code.", at);
                tainted(judge, &file.flow, at);
                run_file(judge, file, Language::Shell, at);
                after_fetch(judge, at);
                Flow::default()
            }
        }
        _ => piped_code(judge, &invocation.stdin, at),
    })
}

pub(super) fn is_standard_input(path: &[u8]) -> bool {
    matches!(path, b"-" | b"/dev/stdin" | b"/dev/fd/0" | b"/proc/self/fd/0")
}

/// Classifies a file that is run, if the script itself decoded content into it or wrote it.
pub(crate) fn run_file(judge: &mut Judge, file: &Argument, language: Language, at: (usize, usize)) {
    let Some(path) = judge.path(file) else { return };
    if judge.seen.decoded_files.contains(&path) {
        tainted(judge, &Flow { decoded: true, ..Flow::default() }, at);
    }
    // Removed meanwhile, because a text may run its own file.
    let texts = std::mem::take(&mut judge.seen.written_texts);
    for (_, text) in texts.iter().filter(|(written, _)| *written == path) {
        match language {
            Language::Shell => hidden_command(judge, text, at),
            Language::Other => super::payload::program(judge, text, at),
        }
    }
    judge.seen.written_texts = texts;
}

/// Language of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Shell,
    Other,
}

/// Reports a program that is run by its path after data was fetched.
fn after_fetch(judge: &mut Judge, at: (usize, usize)) {
    if judge.seen.fetched {
        judge.deny("fetch-and-run", "Fetches something and runs it in one command.", at);
    }
}

/// Reports programs named by path, and interpreters with a file, after a fetch.
pub(super) fn runs_fetched(judge: &mut Judge, invocation: &Invocation) {
    let system = judge.context.home.as_bytes().is_empty();
    let own_path = invocation.qualified && !system;
    let operand = invocation.first_operand().is_some() || invocation.has("-m");
    let runs = own_path
        || (is_interpreter(&invocation.name) && operand)
        || matches!(
            invocation.name.as_slice(),
            b"make"
                | b"gmake"
                | b"ninja"
                | b"dpkg"
                | b"rpm"
                | b"installer"
                | b"npm"
                | b"yarn"
                | b"pnpm"
                | b"mvn"
                | b"gradle"
                | b"cargo"
                | b"bundle"
                | b"composer"
                | b"pytest"
                | b"tox"
                | b"rake"
        );
    if runs {
        after_fetch(judge, invocation.span);
    }
    if is_interpreter(&invocation.name) {
        let file = invocation.arguments.iter().find(|a| !a.shown().starts_with(b"-"));
        let reads_stdin =
            file.is_none_or(|f| is_standard_input(&f.shown())) && !invocation.has("-c") && !invocation.has("-e");
        if reads_stdin && !invocation.has("--version") {
            judge.seen.interpreter_reads |= invocation.stdin.literal.is_none();
            tainted(judge, &invocation.stdin, invocation.span);
        }
        if let Some(file) = file {
            tainted(judge, &file.flow, invocation.span);
            run_file(judge, file, Language::Other, invocation.span);
        }
    }
    // Without a command of its own, it runs its input.
    if invocation.name == b"parallel" {
        tainted(judge, &invocation.stdin, invocation.span);
    }
    run_address(judge, invocation);
}

/// Reports a program that fetches code by its address and runs it.
pub(crate) fn run_address(judge: &mut Judge, invocation: &Invocation) {
    if runs_address(invocation) {
        tainted(judge, &Flow { fetched: true, ..Flow::default() }, invocation.span);
    }
}

/// Returns whether a program fetches code by its address and runs it.
fn runs_address(invocation: &Invocation) -> bool {
    let address = |word: &Vec<u8>| {
        word.windows(3).any(|w| w == b"://") || word.starts_with(b"git+") || word.starts_with(b"github:")
    };
    let runs = match invocation.name.as_slice() {
        b"npx" | b"bunx" | b"pnpx" | b"uvx" => true,
        b"deno" | b"bun" | b"pipx" | b"pnpm" | b"yarn" | b"npm" => ["run", "eval", "test", "x", "exec", "dlx"]
            .iter()
            .any(|word| invocation.first_operand() == Some(word.as_bytes())),
        _ => false,
    };
    runs && invocation.texts().iter().any(address)
}

/// Classifies `eval`: the words joined by spaces.
pub(super) fn eval(judge: &mut Judge, invocation: &Invocation) -> Flow {
    judge.ask("evaluates-text", "Runs text as a command.", invocation.span);
    let mut joined = Argument { span: invocation.span, ..Argument::default() };
    for argument in &invocation.arguments {
        joined.atoms.extend(argument.atoms.iter().cloned());
        joined.atoms.push(Atom::Byte { byte: b' ', quoted: true });
        joined.flow.join(&argument.flow);
    }
    argument_code(judge, &joined, invocation.span)
}

/// Classifies `source` and `.`
pub(super) fn source(judge: &mut Judge, invocation: &Invocation) -> Flow {
    judge.ask("runs-file", "Runs a file in this shell.", invocation.span);
    let Some(file) = invocation.arguments.first() else { return Flow::default() };
    tainted(judge, &file.flow, invocation.span);
    if is_standard_input(&file.shown()) {
        return piped_code(judge, &invocation.stdin, invocation.span);
    }
    run_file(judge, file, Language::Shell, invocation.span);
    after_fetch(judge, invocation.span);
    Flow::default()
}

/// Classifies `trap 'commands' SIGNAL`
pub(super) fn trap(judge: &mut Judge, invocation: &Invocation) -> Flow {
    judge.ask("stores-command", "Stores a command for later.", invocation.span);
    match invocation.arguments.iter().find(|a| !a.shown().starts_with(b"-")) {
        Some(code) => argument_code(judge, code, invocation.span),
        None => Flow::default(),
    }
}

/// Classifies `su -c`, `script -c`: the option's value is a script.
pub(super) fn with_command_option(judge: &mut Judge, invocation: &Invocation) -> Flow {
    judge.ask("nested-shell", "Starts a shell.", invocation.span);
    if invocation.name == b"su" || invocation.name == b"runuser" {
        judge.ask("privilege", "Asks for more privilege than the caller has.", invocation.span);
    }
    let position = invocation.arguments.iter().position(|a| {
        let text = a.shown();
        text == b"--command" || (text.starts_with(b"-") && !text.starts_with(b"--") && text.ends_with(b"c"))
    });
    match position.and_then(|at| invocation.arguments.get(at + 1)) {
        Some(code) => argument_code(judge, code, invocation.span),
        None => {
            crude::look_among(judge, &invocation.arguments, invocation.span);
            piped_code(judge, &invocation.stdin, invocation.span)
        }
    }
}

/// Classifies xargs(1): the command, followed by the words of standard input.
pub(super) fn xargs(judge: &mut Judge, invocation: &Invocation) -> Flow {
    judge.ask("wrapper", "A program that runs another program.", invocation.span);
    let mut at = 0;
    let mut separator: Option<u8> = None;
    let mut replaced: Option<Vec<u8>> = None;
    while let Some(argument) = invocation.arguments.get(at) {
        let text = argument.shown();
        if text == b"--" {
            at += 1;
            break;
        }
        if !text.starts_with(b"-") || text.len() < 2 {
            break;
        }
        at += 1;
        if text.starts_with(b"--") {
            if text == b"--null" {
                separator = Some(0);
            }
            at += usize::from(matches!(
                text.as_slice(),
                b"--arg-file" | b"--delimiter" | b"--max-args" | b"--max-procs" | b"--max-lines" | b"--max-chars"
            ));
            continue;
        }
        let Some(position) = text.iter().position(|b| b"adEILnPs".contains(b)) else {
            separator = if text.contains(&b'0') { Some(0) } else { separator };
            replaced = if text.contains(&b'i') { Some(b"{}".to_vec()) } else { replaced };
            continue;
        };
        let value = match text.get(position + 1..).filter(|rest| !rest.is_empty()) {
            Some(rest) => Some(rest.to_vec()),
            None => {
                at += 1;
                invocation.arguments.get(at - 1).map(Argument::shown)
            }
        };
        match text[position] {
            b'I' => replaced = value,
            b'd' => separator = value.and_then(|v| if v == b"\\n" { Some(b'\n') } else { v.first().copied() }),
            _ => {}
        }
    }
    let mut command = invocation.arguments.get(at..).unwrap_or_default().to_vec();
    if command.is_empty() {
        return Flow::default();
    }
    let items = items(invocation, separator);
    match replaced {
        Some(mark) if !mark.is_empty() => command.iter_mut().for_each(|argument| replace(argument, &mark, &items)),
        _ => command.extend(items),
    }
    judge.command(command, Flow::default(), invocation.span)
}

/// Returns the words that xargs reads; one unknown word if they are not in the text.
fn items(invocation: &Invocation, separator: Option<u8>) -> Vec<Argument> {
    let Some(text) = &invocation.stdin.literal else {
        let unknown = Atom::Dynamic(Dynamic::Opaque);
        return vec![Argument { atoms: vec![unknown], span: invocation.span, flow: invocation.stdin.clone() }];
    };
    let is_separator = |b: &u8| match separator {
        Some(separator) => *b == separator,
        None => b.is_ascii_whitespace(),
    };
    let words = text.split(is_separator).filter(|w| !w.is_empty()).take(MAX_PIPED_ARGUMENTS);
    words.map(|w| Argument::known(w, invocation.span)).collect()
}

/// Replaces the mark by the items.
fn replace(argument: &mut Argument, mark: &[u8], items: &[Argument]) {
    let text = argument.shown();
    let Some(at) = text.windows(mark.len()).position(|w| w == mark) else { return };
    let tail = argument.tail(at + mark.len()).atoms;
    argument.atoms.truncate(at);
    if let Some(item) = items.first() {
        argument.atoms.extend(item.atoms.iter().cloned());
        argument.flow.join(&item.flow);
    }
    argument.atoms.extend(tail);
}

/// Classifies text that a program will run by itself, for denials only, because the program is
/// `ask` already.
pub(crate) fn hidden_command(judge: &mut Judge, text: &[u8], at: (usize, usize)) {
    denials_only(judge, |judge| {
        judge.script(text, &Flow::default(), at);
    });
}

/// Keeps only the denials among the findings of `look`, and the effects that need consent.
pub(crate) fn denials_only(judge: &mut Judge, look: impl FnOnce(&mut Judge)) {
    let before = judge.findings.len();
    look(judge);
    let mut index = 0;
    judge.findings.retain(|f| {
        index += 1;
        index <= before || f.tier == Tier::Deny || f.impact.needs_consent()
    });
}
