//! Commands that run code: shells, `eval`, `source`, `trap`, `xargs`. Code in the text is
//! classified as a script. Code that was fetched or encoded could not have been reviewed.

use stockade_model::Tier;

use crate::classify::Classifier;
use crate::fallback_scan;
use crate::invocation::Invocation;
use crate::knowledge::lists;
use crate::script::{DynamicValue, NestedKind, SimpleCommand, WordAtom};
use crate::words::{DataFlow, ExpandedArgument, UNKNOWN_BYTE};

/// Most arguments taken from a pipe.
const MAX_PIPED_ARGUMENTS: usize = 256;

/// Returns whether the program is a command interpreter of the Bourne family or a similar one.
pub(crate) fn is_shell(name: &[u8]) -> bool {
    lists::has_word(lists::SHELLS, name)
}

pub(super) fn is_interpreter(name: &[u8]) -> bool {
    super::hazards::matches_any(lists::INTERPRETERS, name)
}

/// Classifies code whose bytes have these taints.
fn classify_tainted(classifier: &mut Classifier, flow: &DataFlow, at: (usize, usize)) {
    if flow.fetched {
        classifier.record_denial("fetch-and-run", "Runs code from the network that was not reviewed.", at);
    }
    if flow.decoded {
        classifier.record_denial("encoded-and-run", "Runs encoded code, which cannot be reviewed first.", at);
    }
}

/// Classifies code from a pipe or a redirection.
fn piped_code(classifier: &mut Classifier, flow: &DataFlow, at: (usize, usize)) -> DataFlow {
    classify_tainted(classifier, flow, at);
    match &flow.literal {
        Some(text) => classifier.walk_script(&text.clone(), &DataFlow::default(), at),
        None => {
            classifier.seen.shell_reads = true;
            DataFlow::default()
        }
    }
}

/// Classifies code in an argument. Parts that are not in the text become one unknown word, so that
/// the other parts are still classified.
fn argument_code(classifier: &mut Classifier, argument: &ExpandedArgument, at: (usize, usize)) -> DataFlow {
    classify_tainted(classifier, &argument.flow, at);
    classifier.walk_script(&with_unknown_words(&argument.display_bytes()), &DataFlow::default(), at)
}

fn with_unknown_words(shown: &[u8]) -> Vec<u8> {
    shown.split(|byte| *byte == UNKNOWN_BYTE).collect::<Vec<_>>().join(&b"$unknown"[..])
}

/// Classifies data for `>(...)`: a shell there runs it.
pub(crate) fn classify_shell_input(classifier: &mut Classifier, simple: &SimpleCommand, flow: &DataFlow) {
    let redirected = simple.redirects.iter().map(|redirect| &redirect.target);
    let mut nested = simple.words.iter().chain(redirected).flat_map(|word| &word.nested);
    if classifier.seen.shell_reads && nested.any(|nested| nested.kind == NestedKind::WriteTo) {
        classify_tainted(classifier, flow, simple.span);
    }
}

/// Classifies words that a shell gets joined by spaces.
pub(crate) fn classify_joined_words(
    classifier: &mut Classifier,
    words: &[ExpandedArgument],
    stdin: DataFlow,
    at: (usize, usize),
) -> DataFlow {
    words.iter().for_each(|word| classify_tainted(classifier, &word.flow, at));
    let words: Vec<Vec<u8>> = words.iter().map(ExpandedArgument::display_bytes).collect();
    classifier.walk_script(&with_unknown_words(&words.join(&b' ')), &stdin, at)
}

/// Reports a program whose name is not in the text.
pub(crate) fn dynamic_program(classifier: &mut Classifier, flow: &DataFlow, at: (usize, usize)) {
    classifier.record_ask("dynamic-program", "The program is not known before the run.", at);
    classifier.seen.dynamic_program = true;
    classify_tainted(classifier, flow, at);
}

/// Returns whether the command is exactly `bash -c TEXT`. The script is then classified as without
/// it. Another shell would read parts of it differently.
fn is_plain_script(invocation: &Invocation) -> bool {
    let literal = |argument: &ExpandedArgument| argument.literal_value();
    match invocation.arguments.as_slice() {
        [option, text] => {
            let is_script = literal(option).is_some_and(|option| option == b"-c");
            !invocation.qualified && invocation.name == b"bash" && is_script && literal(text).is_some()
        }
        _ => false,
    }
}

/// Classifies `sh`, `bash` and their options before the script.
pub(super) fn classify_shell(classifier: &mut Classifier, invocation: &Invocation) -> Option<DataFlow> {
    let at = invocation.span;
    if !invocation.qualified && invocation.arguments.len() == 1 && invocation.has_argument("--version") {
        return None;
    }
    if !is_plain_script(invocation) {
        classifier.record_ask("nested-shell", "Starts a shell.", at);
    }
    let (mut command, mut from_stdin) = (false, false);
    let mut words = invocation.arguments.iter();
    let mut operand = None;
    while let Some(word) = words.next() {
        let text = word.display_bytes();
        if text == b"--" || text == b"-" {
            operand = words.next();
            break;
        }
        if text.starts_with(b"--") {
            if matches!(text.as_slice(), b"--rcfile" | b"--init-file") {
                words.next();
            }
            command |= text == b"--command";
        } else if text.len() > 1 && (text[0] == b'-' || text[0] == b'+') && word.literal_value().is_some() {
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
    if words.any(|word| super::output::names_secret(classifier, word)) {
        classifier.seen.secret = true;
    }
    Some(match operand {
        Some(code) if command => argument_code(classifier, code, at),
        Some(file) if !from_stdin => {
            if is_standard_input(&file.display_bytes()) {
                piped_code(classifier, &invocation.stdin, at)
            } else {
                classifier.record_ask("runs-file", "Runs a file as code.", at);
                classify_tainted(classifier, &file.flow, at);
                run_file(classifier, file, CodeLanguage::Shell, at);
                after_fetch(classifier, at);
                DataFlow::default()
            }
        }
        _ => piped_code(classifier, &invocation.stdin, at),
    })
}

pub(super) fn is_standard_input(path: &[u8]) -> bool {
    matches!(path, b"-" | b"/dev/stdin" | b"/dev/fd/0" | b"/proc/self/fd/0")
}

/// Classifies a file that is run, if the script itself decoded content into it or wrote it.
pub(crate) fn run_file(
    classifier: &mut Classifier,
    file: &ExpandedArgument,
    language: CodeLanguage,
    at: (usize, usize),
) {
    let Some(path) = classifier.absolute_path(file) else { return };
    if classifier.seen.decoded_files.contains(&path) {
        classify_tainted(classifier, &DataFlow { decoded: true, ..DataFlow::default() }, at);
    }
    // Removed meanwhile, because a text may run its own file.
    let texts = std::mem::take(&mut classifier.seen.written_texts);
    for (_, text) in texts.iter().filter(|(written, _)| *written == path) {
        match language {
            CodeLanguage::Shell => hidden_command(classifier, text, at),
            CodeLanguage::Other => super::payload::classify_program(classifier, text, at),
        }
    }
    classifier.seen.written_texts = texts;
}

/// Language of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeLanguage {
    Shell,
    Other,
}

/// Reports a program that is run by its path after data was fetched.
fn after_fetch(classifier: &mut Classifier, at: (usize, usize)) {
    if classifier.seen.fetched {
        classifier.record_denial("fetch-and-run", "Fetches something and runs it in one command.", at);
    }
}

/// Reports programs named by path, and interpreters with a file, after a fetch.
pub(super) fn runs_fetched(classifier: &mut Classifier, invocation: &Invocation) {
    let system = classifier.context.home.as_bytes().is_empty();
    let own_path = invocation.qualified && !system;
    let operand = invocation.first_operand().is_some() || invocation.has_argument("-m");
    let runs = own_path
        || (is_interpreter(&invocation.name) && operand)
        || lists::has_word(lists::FETCHED_RUNNERS, &invocation.name);
    if runs {
        after_fetch(classifier, invocation.span);
    }
    if is_interpreter(&invocation.name) {
        let file = invocation.arguments.iter().find(|a| !a.display_bytes().starts_with(b"-"));
        let reads_stdin = file.is_none_or(|f| is_standard_input(&f.display_bytes()))
            && !invocation.has_argument("-c")
            && !invocation.has_argument("-e");
        if reads_stdin && !invocation.has_argument("--version") {
            classifier.seen.interpreter_reads |= invocation.stdin.literal.is_none();
            classify_tainted(classifier, &invocation.stdin, invocation.span);
        }
        if let Some(file) = file {
            classify_tainted(classifier, &file.flow, invocation.span);
            run_file(classifier, file, CodeLanguage::Other, invocation.span);
        }
    }
    // Without a command of its own, it runs its input.
    if invocation.name == b"parallel" {
        classify_tainted(classifier, &invocation.stdin, invocation.span);
    }
    run_address(classifier, invocation);
}

/// Reports a program that fetches code by its address and runs it.
pub(crate) fn run_address(classifier: &mut Classifier, invocation: &Invocation) {
    if runs_address(invocation) {
        classify_tainted(classifier, &DataFlow { fetched: true, ..DataFlow::default() }, invocation.span);
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
    runs && invocation.known_texts().iter().any(address)
}

/// Classifies `eval`: the words joined by spaces.
pub(super) fn classify_eval(classifier: &mut Classifier, invocation: &Invocation) -> DataFlow {
    classifier.record_ask("evaluates-text", "Runs text as a command.", invocation.span);
    let mut joined = ExpandedArgument { span: invocation.span, ..ExpandedArgument::default() };
    for argument in &invocation.arguments {
        joined.atoms.extend(argument.atoms.iter().cloned());
        joined.atoms.push(WordAtom::Byte { byte: b' ', quoted: true });
        joined.flow.merge_taints(&argument.flow);
    }
    argument_code(classifier, &joined, invocation.span)
}

/// Classifies `source` and `.`
pub(super) fn source(classifier: &mut Classifier, invocation: &Invocation) -> DataFlow {
    classifier.record_ask("runs-file", "Runs a file in this shell.", invocation.span);
    let Some(file) = invocation.arguments.first() else { return DataFlow::default() };
    classify_tainted(classifier, &file.flow, invocation.span);
    if is_standard_input(&file.display_bytes()) {
        return piped_code(classifier, &invocation.stdin, invocation.span);
    }
    run_file(classifier, file, CodeLanguage::Shell, invocation.span);
    after_fetch(classifier, invocation.span);
    DataFlow::default()
}

/// Classifies `trap 'commands' SIGNAL`
pub(super) fn classify_trap(classifier: &mut Classifier, invocation: &Invocation) -> DataFlow {
    classifier.record_ask("stores-command", "Stores a command for later.", invocation.span);
    match invocation.arguments.iter().find(|a| !a.display_bytes().starts_with(b"-")) {
        Some(code) => argument_code(classifier, code, invocation.span),
        None => DataFlow::default(),
    }
}

/// Classifies `su -c`, `script -c`: the option's value is a script.
pub(super) fn with_command_option(classifier: &mut Classifier, invocation: &Invocation) -> DataFlow {
    classifier.record_ask("nested-shell", "Starts a shell.", invocation.span);
    if invocation.name == b"su" || invocation.name == b"runuser" {
        classifier.record_ask("privilege", "Asks for more privilege than the caller has.", invocation.span);
    }
    let position = invocation.arguments.iter().position(|a| {
        let text = a.display_bytes();
        text == b"--command" || (text.starts_with(b"-") && !text.starts_with(b"--") && text.ends_with(b"c"))
    });
    match position.and_then(|at| invocation.arguments.get(at + 1)) {
        Some(code) => argument_code(classifier, code, invocation.span),
        None => {
            fallback_scan::look_among(classifier, &invocation.arguments, invocation.span);
            piped_code(classifier, &invocation.stdin, invocation.span)
        }
    }
}

/// Classifies xargs(1): the command, followed by the words of standard input.
pub(super) fn classify_xargs(classifier: &mut Classifier, invocation: &Invocation) -> DataFlow {
    classifier.record_ask("wrapper", "A program that runs another program.", invocation.span);
    let mut at = 0;
    let mut separator: Option<u8> = None;
    let mut replaced: Option<Vec<u8>> = None;
    while let Some(argument) = invocation.arguments.get(at) {
        let text = argument.display_bytes();
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
                invocation.arguments.get(at - 1).map(ExpandedArgument::display_bytes)
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
        return DataFlow::default();
    }
    let items = xargs_items(invocation, separator);
    match replaced {
        Some(mark) if !mark.is_empty() => command.iter_mut().for_each(|argument| replace_mark(argument, &mark, &items)),
        _ => command.extend(items),
    }
    classifier.classify_command(command, DataFlow::default(), invocation.span)
}

/// Returns the words that xargs reads; one unknown word if they are not in the text.
fn xargs_items(invocation: &Invocation, separator: Option<u8>) -> Vec<ExpandedArgument> {
    let Some(text) = &invocation.stdin.literal else {
        let unknown = WordAtom::Dynamic(DynamicValue::Opaque);
        return vec![ExpandedArgument { atoms: vec![unknown], span: invocation.span, flow: invocation.stdin.clone() }];
    };
    let is_separator = |b: &u8| match separator {
        Some(separator) => *b == separator,
        None => b.is_ascii_whitespace(),
    };
    let words = text.split(is_separator).filter(|w| !w.is_empty()).take(MAX_PIPED_ARGUMENTS);
    words.map(|w| ExpandedArgument::from_bytes(w, invocation.span)).collect()
}

/// Replaces the mark by the items.
fn replace_mark(argument: &mut ExpandedArgument, mark: &[u8], items: &[ExpandedArgument]) {
    let text = argument.display_bytes();
    let Some(at) = text.windows(mark.len()).position(|w| w == mark) else { return };
    let tail = argument.skip_atoms(at + mark.len()).atoms;
    argument.atoms.truncate(at);
    if let Some(item) = items.first() {
        argument.atoms.extend(item.atoms.iter().cloned());
        argument.flow.merge_taints(&item.flow);
    }
    argument.atoms.extend(tail);
}

/// Classifies text that a program will run by itself, for denials only, because the program is
/// `ask` already.
pub(crate) fn hidden_command(classifier: &mut Classifier, text: &[u8], at: (usize, usize)) {
    denials_only(classifier, |classifier| {
        classifier.walk_script(text, &DataFlow::default(), at);
    });
}

/// Keeps only the denials among the findings of `look`, and the effects that need consent.
pub(crate) fn denials_only(classifier: &mut Classifier, look: impl FnOnce(&mut Classifier)) {
    let before = classifier.findings.len();
    look(classifier);
    classifier.keep_findings(before, |f| f.tier == Tier::Deny || f.impact.needs_consent());
}
