//! Known readers: is this use of a program fully understood and harmless? Every
//! doubt is a finding of tier `ask`. What is dangerous for certain is the
//! business of `rules`.

mod expressions;
mod little_languages;

use stockade_model::{Capability, RawText};

use crate::judge::{Invocation, Judge, is_public};
use crate::knowledge::{self, Entry};
use crate::options::{self, Parsed, Problem};
use crate::paths::{self, Place, Sensitivity};
use crate::words::{Argument, Flow};

/// Kinds of operands and option values the files may use.
#[cfg(test)]
const KINDS: &[&str] = &[
    "text",
    "path",
    "read",
    "search",
    "archive",
    "sed",
    "awk",
    "awkfile",
    "jq",
    "rev",
    "date",
    "variable",
    "assignment",
    "directory",
    "never",
    "ps",
    "reflog",
    "configkey",
    "version",
    "format",
];

/// True for a kind of operand that is judged below.
#[cfg(test)]
pub(crate) fn is_kind(kind: &str) -> bool {
    KINDS.contains(&kind)
}

/// Judges a command as a reader. What its output carries.
pub(crate) fn judge(judge: &mut Judge, invocation: &Invocation) -> Flow {
    let mut flow = invocation.stdin.clone();
    flow.literal = None;
    invocation.arguments.iter().for_each(|a| flow.join(&a.flow));
    let name = String::from_utf8_lossy(&invocation.name).into_owned();
    if invocation.qualified {
        judge.ask(
            "path-qualified",
            "A program named by its path is not known to be the one of that name.",
            invocation.span,
        );
        return flow;
    }
    let known = match name.as_str() {
        "find" => Some(expressions::find(judge, invocation)),
        "test" | "[" | "[[" => Some(expressions::test(judge, invocation)),
        "git" => git(judge, invocation),
        "cargo" => subcommand(judge, invocation, "cargo"),
        // Entries of subcommands have a blank in their name; no program has.
        _ if name.contains(' ') => None,
        _ => knowledge::lookup(&name).map(|entry| check(judge, entry, &invocation.arguments, invocation.span)),
    };
    match known {
        Some(read) => flow.join(&read),
        None => judge.ask("unknown-program", "Not one of the programs known to read only.", invocation.span),
    }
    if name == "read" || name == "mapfile" || name == "readarray" {
        judge.set_unknown(b"REPLY", &invocation.stdin);
        for argument in &invocation.arguments {
            judge.set_unknown(&argument.shown(), &invocation.stdin);
        }
    }
    if name == "cd" || name == "pushd" {
        let target = invocation.arguments.iter().find(|a| a.shown() == b"-" || !a.shown().starts_with(b"-"));
        judge.change_directory(target, invocation.span);
    }
    flow
}

/// git with its options before the subcommand.
fn git(judge: &mut Judge, invocation: &Invocation) -> Option<Flow> {
    let entry = knowledge::lookup("git")?;
    let arguments = &invocation.arguments;
    let parsed = options::read(entry, arguments);
    if parsed.operands.is_empty() {
        return Some(check(judge, entry, arguments, invocation.span));
    }
    report(judge, &parsed);
    let scope = judge.scope.cwd.clone();
    for (kind, value) in &parsed.values {
        if kind == "directory" {
            value_of(judge, kind, value);
            judge.scope.cwd = judge.path(value);
        }
    }
    let outside = judge.scope.cwd.as_ref().is_none_or(|cwd| paths::place(cwd, judge.context) != Place::Workspace);
    if outside {
        judge.ask("other-repository", "Uses a repository outside the workspace.", invocation.span);
    }
    let known = named(judge, "git", &arguments[parsed.rest..], &parsed.operands, invocation.span);
    judge.scope.cwd = scope;
    known
}

/// A program whose first operand chooses the entry.
fn subcommand(judge: &mut Judge, invocation: &Invocation, program: &str) -> Option<Flow> {
    let (first, rest) = match invocation.arguments.split_first() {
        Some((first, rest)) if !first.shown().starts_with(b"-") => (first, rest),
        _ => return knowledge::lookup(program).map(|e| check(judge, e, &invocation.arguments, invocation.span)),
    };
    named(judge, program, rest, std::slice::from_ref(first), invocation.span)
}

fn named(
    judge: &mut Judge,
    program: &str,
    rest: &[Argument],
    operands: &[Argument],
    at: (usize, usize),
) -> Option<Flow> {
    let name = String::from_utf8(operands.first()?.literal()?).ok()?;
    let second = rest.first().and_then(Argument::literal).and_then(|t| String::from_utf8(t).ok()).unwrap_or_default();
    if let Some(entry) = knowledge::lookup(&format!("{program} {name} {second}")) {
        return Some(check(judge, entry, &rest[1..], at));
    }
    let entry = knowledge::lookup(&format!("{program} {name}"))?;
    Some(check(judge, entry, rest, at))
}

fn report(judge: &mut Judge, parsed: &Parsed) {
    for (problem, at) in &parsed.problems {
        let (code, message) = match problem {
            Problem::Unknown => ("unknown-option", "An option that is not known to be harmless."),
            Problem::Writes => ("writing-option", "An option that makes this program write."),
            Problem::Executes => ("executing-option", "An option that makes this program run or load something."),
            Problem::ReadsMore => ("indirect-option", "An option that takes further input from a file or directory."),
            Problem::MissingValue => ("unknown-option", "An option without its value."),
            Problem::Dynamic => ("dynamic-operand", "An argument is not in the text."),
            Problem::Wildcard => ("leading-wildcard", "A file name may be read as an option."),
        };
        judge.ask(code, message, *at);
    }
}

/// Judges arguments by an entry.
fn check(judge: &mut Judge, entry: &Entry, arguments: &[Argument], at: (usize, usize)) -> Flow {
    let parsed = options::read(entry, arguments);
    report(judge, &parsed);
    let mut flow = Flow::default();
    for (kind, value) in &parsed.values {
        flow.join(&value_of(judge, kind, value));
    }
    if !entry.requires.is_empty() && !parsed.uses(&entry.requires)
        || !entry.requires_too.is_empty() && !parsed.uses(&entry.requires_too)
    {
        judge.ask("unknown-use", "This program is known to be harmless only in certain uses.", at);
    }
    if (entry.condition.is_some() || parsed.uses(&entry.conditional_options)) && !judge.context.neutralised {
        judge.ask("repository-configuration", "What the repository configures could run something here.", at);
    }
    let kinds = if parsed.uses(&entry.operands_with) { &entry.operands_then } else { &entry.operands };
    let skip = usize::from(parsed.uses(&entry.given_by));
    let mut kinds = kinds.iter().skip(skip).map(String::as_str).peekable();
    let mut search = false;
    for operand in &parsed.operands {
        let kind = match kinds.peek() {
            Some(kind) if kind.ends_with('*') => kind.trim_end_matches('*'),
            Some(_) => kinds.next().unwrap_or_default().trim_end_matches('?'),
            None => {
                judge.ask("unknown-operand", "An argument this program is not known to take.", operand.span);
                continue;
            }
        };
        search |= kind == "search";
        flow.join(&value_of(judge, kind, operand));
    }
    match kinds.next() {
        Some("search*") if !search => hunts(judge, &Argument::known(b".", at)),
        Some(kind) if kind != "never" && !kind.ends_with(['*', '?']) && !parsed.uses(&tells_itself()) => {
            judge.ask("unknown-use", "An argument is missing: what this does then is not known.", at);
        }
        _ => {}
    }
    flow
}

/// Options with which a program only tells about itself.
fn tells_itself() -> [String; 2] {
    ["--help".to_owned(), "--version".to_owned()]
}

/// Judges one value by its kind. What reading it yields.
fn value_of(judge: &mut Judge, kind: &str, value: &Argument) -> Flow {
    match kind {
        "read" | "awkfile" => {
            if kind == "awkfile" && value.shown().contains(&b'=') {
                judge.ask("unknown-operand", "An assignment among the files.", value.span);
            }
            return file(judge, value);
        }
        "search" => {
            hunts(judge, value);
            return file(judge, value);
        }
        "archive" => {
            if value.shown().contains(&b':') {
                judge.ask("remote-archive", "An archive on another host.", value.span);
            }
            return file(judge, value);
        }
        "path" | "directory" => listed(judge, value),
        "rev" | "configkey" => revision(judge, value),
        // `%G...` makes git run the gpg program that the repository names.
        "format" if [&b"%G"[..], b"%+G", b"%-G", b"signature"].iter().any(|p| contains(&value.shown(), p)) => {
            judge.ask("executing-option", "A format that makes git check signatures.", value.span);
        }
        "format" => text(judge, value),
        "sed" => little_languages::sed(judge, value),
        "awk" => little_languages::awk(judge, value),
        "jq" => little_languages::jq(judge, value),
        "variable" => public_variable(judge, value),
        "date" if value.shown().starts_with(b"+") => text(judge, value),
        "version" if value.shown() == b"version" => {}
        "reflog" if matches!(value.shown().as_slice(), b"expire" | b"delete" | b"drop" | b"write") => {
            judge.ask("unknown-use", "Changes the reference log.", value.span);
        }
        "reflog" => revision(judge, value),
        "ps" if value.shown().iter().all(|b| b"auxfwlj".contains(b)) => {}
        "assignment" | "text" => text(judge, value),
        _ => judge.ask("unknown-operand", "An argument this program is not known to take.", value.span),
    }
    Flow::default()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|w| w == part)
}

fn text(judge: &mut Judge, value: &Argument) {
    if value.is_glob() {
        judge.ask("wildcard", "A wildcard where text is expected.", value.span);
    }
    dynamic_text(judge, value);
}

/// Text may hold variables that tell nothing secret, and the output of commands
/// that were judged themselves.
fn dynamic_text(judge: &mut Judge, value: &Argument) {
    if !value.is_dynamic() {
        return;
    }
    let harmless = value.only_variables().is_some_and(|names| names.iter().all(|n| is_public(n)));
    if !harmless {
        judge.ask("dynamic-operand", "An argument is not in the text.", value.span);
    }
}

fn public_variable(judge: &mut Judge, value: &Argument) {
    if !value.literal().is_some_and(|name| is_public(&name)) {
        judge.ask("reads-environment", "Shows a variable that may hold a secret.", value.span);
    }
}

fn revision(judge: &mut Judge, value: &Argument) {
    let Some(shown) = value.pattern() else {
        judge.ask("dynamic-operand", "An argument is not in the text.", value.span);
        return;
    };
    let path = shown.rsplit(|b| *b == b':').next().unwrap_or_default();
    sensitive(judge, &Argument::known(path, value.span));
}

/// A file whose content is read.
fn file(judge: &mut Judge, value: &Argument) -> Flow {
    if value.is_dynamic() {
        judge.ask("dynamic-operand", "A file to read is not in the text.", value.span);
        return value.flow.clone();
    }
    read_file(judge, value)
}

/// Reads a file by name: is it a secret? What its content carries.
pub(crate) fn read_file(judge: &mut Judge, value: &Argument) -> Flow {
    let mut flow = Flow::default();
    if value.shown() == b"-" {
        return flow;
    }
    flow.secret = sensitive(judge, value);
    let Some(path) = judge.path(value) else { return flow };
    judge.capabilities.insert(Capability::Read(RawText::from(path.as_slice())));
    if path.starts_with(b"/dev/") && !matches!(path.as_slice(), b"/dev/null" | b"/dev/stdin") {
        flow.endless = matches!(path.as_slice(), b"/dev/zero" | b"/dev/urandom" | b"/dev/random" | b"/dev/full");
        judge.ask("reads-device", "Reads a device.", value.span);
    }
    if path.starts_with(b"/proc/") && path.iter().filter(|b| **b == b'/').count() > 2 {
        judge.ask("reads-process", "Reads the state of a process or the kernel.", value.span);
    }
    flow
}

/// Asks about secrets; true if it is one.
pub(crate) fn sensitive(judge: &mut Judge, value: &Argument) -> bool {
    let Some(path) = judge.path(value) else { return false };
    match paths::sensitivity(&path, judge.context) {
        Some(Sensitivity::Secret) => {
            judge.capabilities.insert(Capability::Secret(RawText::from(path.as_slice())));
            judge.seen.secret = true;
            judge.ask("reads-secret", "Reads what looks like a secret.", value.span);
            true
        }
        Some(Sensitivity::Private) => {
            judge.ask("reads-private", "Reads personal configuration or records.", value.span);
            false
        }
        None => false,
    }
}

/// A path that is only looked at.
fn listed(judge: &mut Judge, value: &Argument) {
    if value.is_dynamic() {
        judge.ask("dynamic-operand", "A path is not in the text.", value.span);
        return;
    }
    let slashes = value.shown().iter().filter(|b| **b == b'*').count();
    if slashes > 8 {
        judge.ask("expansion-too-large", "A wildcard over too many levels.", value.span);
    }
    sensitive(judge, value);
}

/// A search below a directory that holds secrets looks for them.
fn hunts(judge: &mut Judge, value: &Argument) {
    let hunting = judge.path(value).is_some_and(|path| paths::holds_secrets(&path, judge.context));
    if hunting {
        judge.ask("searches-secrets", "Searches a place that holds secrets.", value.span);
    }
}
