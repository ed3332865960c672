//! Deleting, moving or locking paths outside the workspace.

use stockade_effects::matches_word;
use stockade_model::{Capability, RawText};

use crate::classify::Classifier;
use crate::invocation::Invocation;
use crate::paths::{self, PathLocation};
use crate::script::{DynamicValue, WordAtom};
use crate::words::{DataFlow, ExpandedArgument};

/// Classifies the destruction by one command.
pub(super) fn classify_destruction(classifier: &mut Classifier, invocation: &Invocation) {
    match invocation.name.as_slice() {
        b"rm" | b"grm" | b"srm" | b"rmdir" | b"unlink" | b"shred" | b"trash" | b"wipe" | b"gio" | b"del"
        | b"rimraf" => classify_deletion(classifier, invocation),
        b"find" | b"gfind" | b"bfs" => classify_find(classifier, invocation),
        b"fd" | b"fdfind" => classify_fd(classifier, invocation),
        b"tar" | b"bsdtar" | b"zip" | b"7z" => classify_archiver(classifier, invocation),
        b"mv" | b"rename" => classify_move(classifier, invocation),
        b"chmod" | b"chown" | b"chgrp" | b"setfacl" | b"chattr" | b"chcon" => {
            classify_mode_change(classifier, invocation)
        }
        b"rsync" | b"rclone" | b"robocopy" => classify_mirror(classifier, invocation),
        b"git" => classify_git(classifier, invocation),
        _ => {}
    }
}

/// Separates options and operands; `--` ends the options.
pub(super) fn split_options(arguments: &[ExpandedArgument], valued: &[&str]) -> (Vec<Vec<u8>>, Vec<ExpandedArgument>) {
    let (mut options, mut operands) = (Vec::new(), Vec::new());
    let mut words = arguments.iter();
    let mut ended = false;
    while let Some(word) = words.next() {
        let text = word.display_bytes();
        if ended || !text.starts_with(b"-") || text.len() < 2 {
            operands.push(word.clone());
        } else if text == b"--" {
            ended = true;
        } else {
            if valued.iter().any(|v| v.as_bytes() == text) {
                words.next();
            }
            options.push(text);
        }
    }
    (options, operands)
}

/// Returns whether a short letter or a long option (or a prefix of it) was given.
fn has_option(options: &[Vec<u8>], letters: &[u8], long: &str) -> bool {
    options.iter().any(|o| match o.strip_prefix(b"--") {
        Some(name) => !name.is_empty() && long.as_bytes().starts_with(name),
        None => o[1..].iter().any(|b| letters.contains(b)),
    })
}

fn classify_deletion(classifier: &mut Classifier, invocation: &Invocation) {
    let (options, operands) = split_options(&invocation.arguments, &["-n", "-s", "--iterations", "--size"]);
    let tree = has_option(&options, b"rR", "recursive")
        || matches!(invocation.name.as_slice(), b"rimraf" | b"trash" | b"wipe");
    if invocation.name == b"shred" && !has_option(&options, b"u", "remove") {
        for operand in &operands {
            super::write::classify_each(classifier, std::slice::from_ref(operand), true, operand.span);
        }
    }
    for operand in &operands {
        classify_deleted_path(classifier, operand, tree, invocation.span);
    }
}

/// Classifies one path that is deleted.
pub(crate) fn classify_deleted_path(
    classifier: &mut Classifier,
    operand: &ExpandedArgument,
    tree: bool,
    at: (usize, usize),
) {
    if tree && is_all_of_unknown(operand) {
        super::impact::record_impact(classifier, "deletes-unknown", at);
    }
    let Some(path) = classifier.absolute_path(operand) else { return };
    classifier.capabilities.insert(Capability::Delete(RawText::from(path.as_slice())));
    let (_, globbed) = paths::without_trailing_globs(&path);
    let many = tree || globbed;
    let is_log = paths::is_log(&path);
    let holds_keys = || paths::is_secret(&path, classifier.context);
    let (code, message) = match paths::locate_path(&path, classifier.context) {
        PathLocation::Ancestor if many => {
            ("destroys-system", "Deletes a home directory, or a parent directory of the workspace.")
        }
        PathLocation::Home | PathLocation::Elsewhere | PathLocation::System if is_log => {
            ("wipes-log", "Removes logs or histories.")
        }
        PathLocation::System => ("destroys-system", "Deletes a part of the system."),
        PathLocation::Home if many => ("destroys-home", "Deletes files outside the workspace."),
        PathLocation::Home if holds_keys() => ("destroys-home", "Deletes keys or credentials."),
        PathLocation::Elsewhere if many => ("destroys-system", "Deletes files outside the workspace."),
        _ => return,
    };
    classifier.record_denial(code, message, at);
}

/// Returns whether the operand is of the form `"$DIR"/*` or `$DIR/`: everything below the root if
/// the value is empty.
fn is_all_of_unknown(operand: &ExpandedArgument) -> bool {
    let known =
        operand.atoms.iter().position(|atom| matches!(atom, WordAtom::Byte { .. })).unwrap_or(operand.atoms.len());
    let is_value = |atom: &WordAtom| {
        matches!(atom, WordAtom::Dynamic(DynamicValue::Variable { .. } | DynamicValue::Nested { .. }))
    };
    let rest = operand.skip_atoms(known).display_bytes();
    known > 0
        && operand.atoms[..known].iter().all(is_value)
        && rest.first() == Some(&b'/')
        && rest.iter().all(|b| b"/*.?".contains(b))
}

fn classify_find(classifier: &mut Classifier, invocation: &Invocation) {
    let words = &invocation.arguments;
    let expression = words
        .iter()
        .position(|w| {
            let text = w.display_bytes();
            (text.starts_with(b"-") && !matches!(text.as_slice(), b"-L" | b"-H" | b"-P") && !text.starts_with(b"-O"))
                || text == b"("
                || text == b"!"
        })
        .unwrap_or(words.len());
    let mut starts: Vec<ExpandedArgument> =
        words[..expression].iter().filter(|w| !w.display_bytes().starts_with(b"-")).cloned().collect();
    if starts.is_empty() {
        starts.push(ExpandedArgument::from_bytes(b".", invocation.span));
    }
    if invocation.has_argument("-delete") {
        starts.iter().for_each(|start| classify_deleted_path(classifier, start, true, invocation.span));
    }
    let mut at = expression;
    while let Some(word) = words.get(at) {
        at += 1;
        let text = word.display_bytes();
        if matches!(text.as_slice(), b"-fprint" | b"-fprint0" | b"-fls" | b"-fprintf")
            && let Some(path) = words.get(at).and_then(|w| classifier.absolute_path(w))
        {
            super::write::classify_target(classifier, &path, true, word.span);
        }
        if !matches!(text.as_slice(), b"-exec" | b"-execdir" | b"-ok" | b"-okdir") {
            continue;
        }
        let rest = &words[at..];
        let end = rest.iter().position(|w| matches!(w.display_bytes().as_slice(), b";" | b"+")).unwrap_or(rest.len());
        at += end;
        for start in &starts {
            let command = rest[..end].iter().map(|w| with_found(w, start)).collect();
            classifier.classify_command(command, DataFlow::default(), invocation.span);
        }
    }
}

/// Replaces `{}` by any path below the start.
fn with_found(word: &ExpandedArgument, start: &ExpandedArgument) -> ExpandedArgument {
    let text = word.display_bytes();
    let Some(at) = text.windows(2).position(|w| w == b"{}") else { return word.clone() };
    let mut atoms = word.atoms[..at].to_vec();
    atoms.extend(start.atoms.iter().cloned());
    atoms.extend(ExpandedArgument::from_bytes(b"/*", start.span).atoms);
    atoms.extend(word.atoms[at + 2..].iter().cloned());
    ExpandedArgument { atoms, span: word.span, flow: start.flow.clone() }
}

/// Classifies `fd PATTERN PATH... -x COMMAND`: the found paths follow the command.
fn classify_fd(classifier: &mut Classifier, invocation: &Invocation) {
    let words = &invocation.arguments;
    let runs =
        words.iter().position(|w| matches!(w.display_bytes().as_slice(), b"-x" | b"-X" | b"--exec" | b"--exec-batch"));
    let Some(at) = runs else { return };
    let (_, operands) =
        split_options(&words[..at], &["-e", "-t", "-d", "-g", "-E", "--extension", "--type", "--exclude"]);
    let found = operands.get(1).cloned().unwrap_or_else(|| ExpandedArgument::from_bytes(b".", invocation.span));
    let mark = ExpandedArgument::from_bytes(b"{}", invocation.span);
    let command = words[at + 1..].iter().chain(std::iter::once(&mark)).map(|word| with_found(word, &found)).collect();
    classifier.classify_command(command, DataFlow::default(), invocation.span);
}

/// Classifies archivers that remove the packed files.
fn classify_archiver(classifier: &mut Classifier, invocation: &Invocation) {
    if !["--remove-files", "-m", "--move", "-sdel"].iter().any(|option| invocation.has_argument(option)) {
        return;
    }
    let (_, operands) = split_options(&invocation.arguments, &["-f", "-C"]);
    for operand in &operands {
        classify_deleted_path(classifier, operand, true, invocation.span);
    }
}

fn classify_move(classifier: &mut Classifier, invocation: &Invocation) {
    let (options, mut operands) = split_options(&invocation.arguments, &["-t", "--target-directory", "-S", "--suffix"]);
    if !options.iter().any(|o| o.starts_with(b"-t") || o.starts_with(b"--target")) {
        operands.pop();
    }
    for operand in &operands {
        let Some(path) = classifier.absolute_path(operand) else { continue };
        let location = paths::locate_path(&path, classifier.context);
        if matches!(location, PathLocation::Ancestor | PathLocation::System) {
            let message = "Moves a home directory or a part of the system away.";
            classifier.record_denial("destroys-system", message, invocation.span);
        } else if paths::is_log(&path) && location != PathLocation::Workspace {
            classifier.record_denial("wipes-log", "Moves logs or histories away.", invocation.span);
        }
    }
}

fn classify_mode_change(classifier: &mut Classifier, invocation: &Invocation) {
    let (options, operands) = split_options(&invocation.arguments, &["--reference", "--from", "-m", "-x"]);
    let by_reference = options.iter().any(|o| o.starts_with(b"--reference"));
    let takes_away = options.iter().any(|o| matches!(o.as_slice(), [b'-', rest @ ..] if !rest.starts_with(b"-") && rest.iter().all(|b| b"rwxst".contains(b))));
    let acl = invocation.name == b"setfacl";
    let mode =
        if by_reference || takes_away || acl { None } else { operands.first().map(ExpandedArgument::display_bytes) };
    let tree = has_option(&options, b"R", "recursive");
    if invocation.name == b"chmod" && invocation.known_texts().iter().any(|mode| sets_user_id(mode)) {
        let message = "Makes a program run with its owner's privileges.";
        classifier.record_denial("privilege-escalation", message, invocation.span);
    }
    for operand in operands.iter().skip(usize::from(mode.is_some())) {
        let Some(path) = classifier.absolute_path(operand) else { continue };
        let (_, globbed) = paths::without_trailing_globs(&path);
        let system_file = super::write::is_guarded(classifier, &path);
        let (code, message) = match paths::locate_path(&path, classifier.context) {
            PathLocation::Ancestor if tree || globbed => {
                ("destroys-system", "Changes access rights of a home directory or the system.")
            }
            PathLocation::Ancestor if path == b"/" => ("destroys-system", "Changes access rights of the system."),
            PathLocation::System => ("weakens-protection", "Changes access rights of a part of the system."),
            PathLocation::Home if tree => {
                ("destroys-home", "Changes access rights of many files outside the workspace.")
            }
            _ if system_file && allows_every_user(mode.as_deref().unwrap_or_default()) => {
                ("weakens-protection", "Gives other users access to a protected file.")
            }
            _ => continue,
        };
        classifier.record_denial(code, message, invocation.span);
    }
}

/// Returns whether the mode sets the user or group id: `u+s`, `4755`, `+s`
fn sets_user_id(mode: &[u8]) -> bool {
    let digits = mode.iter().all(|b| (b'0'..=b'7').contains(b));
    if digits && (mode.len() == 4 || mode.len() == 5) {
        return mode[mode.len() - 4] >= b'2' && mode[mode.len() - 4] != b'1';
    }
    let symbolic = mode.iter().all(|b| b"ugoa+=rwxXst,-".contains(b));
    symbolic
        && mode.split(|b| *b == b',').any(|part| {
            part.iter()
                .position(|b| matches!(b, b'+' | b'='))
                .is_some_and(|at| part[at..].contains(&b's') && !part[..at].contains(&b'-'))
        })
}

/// Returns whether a mode lets every user read or write.
fn allows_every_user(mode: &[u8]) -> bool {
    let digits = !mode.is_empty() && mode.iter().all(u8::is_ascii_digit);
    if digits {
        mode.last().is_some_and(|b| *b >= b'4')
    } else {
        [&b"a+"[..], b"o+", b"+r", b"+w", b"ugo+"].iter().any(|p| mode.windows(p.len()).any(|w| w == *p))
    }
}

fn classify_mirror(classifier: &mut Classifier, invocation: &Invocation) {
    let texts = invocation.known_texts();
    let deletes = texts.iter().any(|t| {
        matches_word("--del*", t)
            || matches_word("--remove-source*", t)
            || t == b"sync"
            || t == b"/MIR"
            || t == b"purge"
    });
    let (_, operands) =
        split_options(&invocation.arguments, &["-e", "--rsh", "--exclude", "--include", "-f", "--filter"]);
    if let Some(last) = operands.last().filter(|o| deletes && !o.display_bytes().contains(&b':')) {
        classify_deleted_path(classifier, last, true, invocation.span);
    }
}

const WORK_TREE_OPTION: &[u8] = b"--work-tree=";

fn classify_git(classifier: &mut Classifier, invocation: &Invocation) {
    let texts = invocation.known_texts();
    let elsewhere = texts.iter().position(|t| t == b"-C").and_then(|i| invocation.arguments.get(i + 1));
    let named = texts.iter().zip(&invocation.arguments).find(|(text, _)| text.starts_with(WORK_TREE_OPTION));
    let directory = match (named, elsewhere) {
        (Some((_, argument)), _) => classifier.absolute_path(&argument.skip_atoms(WORK_TREE_OPTION.len())),
        (None, Some(argument)) => classifier.absolute_path(argument),
        (None, None) => classifier.scope.cwd.clone(),
    };
    let cleans = texts.iter().any(|t| t == b"clean") && texts.iter().any(|t| t.starts_with(b"-") && t.contains(&b'f'));
    let resets = texts.iter().any(|t| t == b"reset") && texts.iter().any(|t| t == b"--hard");
    let Some(directory) = directory.filter(|_| cleans || resets) else { return };
    if matches!(paths::locate_path(&directory, classifier.context), PathLocation::Ancestor | PathLocation::System) {
        let message = "Cleans a repository above or outside the workspace.";
        classifier.record_denial("destroys-system", message, invocation.span);
    }
}
