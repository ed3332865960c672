//! Known programs: decides whether a use is fully understood and harmless, and finds its
//! capabilities. Every doubt is a finding of tier `ask`. `rules` finds certain dangers.

pub(crate) mod confined;
mod expressions;
mod little_languages;
mod settings;
mod values;

use stockade_model::Capability;

use crate::invocation::Invocation;
use crate::judge::Judge;
use crate::knowledge::{self, Effect, Entry, Kind};
use crate::options::{self, Parsed, Problem};
use crate::paths::{self, Place};
use crate::words::{Argument, Flow};

use self::values::{dynamic_text, hunts, text, value_of};
pub(crate) use self::values::{host_name, read_file, sensitive};

/// Classifies a command as a reader. Returns the flow of its output.
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
    }
    let known = match name.as_str() {
        _ if invocation.qualified => {
            facts_only(judge, &name, invocation);
            Some(Flow::default())
        }
        // Only a look-up reaches this: its names are no command.
        "command" => {
            invocation.arguments.iter().for_each(|name| dynamic_text(judge, name));
            known_use(judge, &name, invocation)
        }
        "find" => Some(expressions::find(judge, invocation)),
        "test" | "[" | "[[" => Some(expressions::test(judge, invocation)),
        _ => known_use(judge, &name, invocation),
    };
    match known {
        Some(read) => flow.join(&read),
        None => judge.ask("unknown-program", "Not one of the programs that are known.", invocation.span),
    }
    if name == "read" || name == "mapfile" || name == "readarray" {
        judge.set_unknown(b"REPLY", &invocation.stdin);
        for argument in &invocation.arguments {
            judge.set_unknown(&argument.shown(), &invocation.stdin);
        }
    }
    if name == "cd" || name == "pushd" {
        let target = invocation.arguments.iter().find(|a| a.shown() == b"-" || !a.shown().starts_with(b"-"));
        // Without symbolic links, which are visible only on the disk.
        let is_physical = invocation.has("-P") && target.is_some_and(climbs);
        judge.change_directory(target, invocation.span);
        if is_physical {
            judge.scope.cwd = None;
        }
    }
    flow
}

/// Returns whether a program may run its arguments as a command. The program is unknown, or is
/// known to run code that is not in the text, or to act with privileges.
pub(crate) fn may_run_arguments(invocation: &Invocation) -> bool {
    let Ok(name) = std::str::from_utf8(&invocation.name) else { return true };
    knowledge::lookup(name).is_none_or(|entry| {
        !entry.subcommands && entry.does.iter().any(|effect| matches!(effect, Effect::Executes | Effect::Privilege))
    })
}

/// Reports the capabilities of the known program, although a program named by its path is not
/// trusted to be that one.
fn facts_only(judge: &mut Judge, name: &str, invocation: &Invocation) {
    known_use(judge, name, invocation);
}

/// Classifies by the knowledge base; `None` if the program is unknown.
fn known_use(judge: &mut Judge, name: &str, invocation: &Invocation) -> Option<Flow> {
    // Entries of subcommands have a space in their name; no program has.
    if name.contains(' ') {
        return None;
    }
    let entry = knowledge::lookup(name)?;
    if !entry.subcommands {
        return Some(check(judge, entry, &invocation.arguments, invocation.span));
    }
    let arguments = &invocation.arguments;
    let parsed = options::read(entry, arguments);
    if parsed.operands.is_empty() {
        return Some(check(judge, entry, arguments, invocation.span));
    }
    report(judge, &parsed);
    let scope = judge.scope.cwd.clone();
    for value in &parsed.values {
        value_of(judge, value.kind, &value.value);
        if value.kind == Kind::Directory {
            judge.scope.cwd = if climbs(&value.value) { None } else { judge.path(&value.value) };
        }
    }
    if name == "git" {
        other_repository(judge, invocation);
    }
    let known = subcommand(judge, name, &arguments[parsed.rest..], &parsed.operands, invocation.span);
    judge.scope.cwd = scope;
    if known.is_none() {
        does(judge, entry, false, invocation.span);
        judge.ask("unknown-use", "A use of this program that is not known.", invocation.span);
    }
    Some(known.unwrap_or_default())
}

fn other_repository(judge: &mut Judge, invocation: &Invocation) {
    let outside = judge.scope.cwd.as_ref().is_none_or(|cwd| paths::place(cwd, judge.context) != Place::Workspace);
    if outside {
        judge.ask("other-repository", "Uses a repository outside the workspace.", invocation.span);
    }
}

fn subcommand(
    judge: &mut Judge,
    program: &str,
    rest: &[Argument],
    operands: &[Argument],
    at: (usize, usize),
) -> Option<Flow> {
    let word = |argument: Option<&Argument>| String::from_utf8(argument?.literal()?).ok();
    let program = knowledge::canonical(program)?;
    let name = word(operands.first())?;
    if let Some(second) = word(rest.first())
        && let Some(entry) = knowledge::lookup(&format!("{program} {name} {second}"))
    {
        return Some(check(judge, entry, &rest[1..], at));
    }
    let entry = knowledge::lookup(&format!("{program} {name}"))?;
    Some(check(judge, entry, rest, at))
}

/// Returns the code and the message of an effect.
fn effect_finding(effect: Effect) -> (&'static str, &'static str) {
    match effect {
        Effect::Inert => ("", ""),
        Effect::Writes => ("changes-files", "Changes or creates files."),
        Effect::Repository => ("changes-repository", "Changes the repository or its work tree."),
        Effect::Deletes => ("deletes-files", "Removes files or records."),
        Effect::Executes => ("runs-code", "Runs code that is not in the text."),
        Effect::Connects => ("network", "Reaches the network."),
        Effect::Reads => ("reads-private", "Reads more than the text names."),
        Effect::Privilege => ("privilege", "Uses or changes privileges."),
        Effect::Persists => ("persists", "Arranges for something to run later."),
        Effect::System => ("changes-system", "Changes the state of the machine."),
    }
}

/// Reports the program's effects for all arguments, with code in the text or elsewhere.
fn does(judge: &mut Judge, entry: &Entry, has_code: bool, at: (usize, usize)) {
    for effect in &entry.does {
        let (code, message) = match effect {
            Effect::Executes if has_code => ("runs-code", "Runs code that is given in the text."),
            effect => effect_finding(*effect),
        };
        judge.ask(code, message, at);
        if *effect == Effect::Connects {
            judge.capabilities.insert(Capability::Network(None));
        }
    }
}

fn report(judge: &mut Judge, parsed: &Parsed) {
    for (problem, at) in &parsed.problems {
        let (code, message) = match problem {
            Problem::Unknown => ("unknown-option", "An option that is not known to be harmless."),
            Problem::Does(Effect::Writes) => ("writing-option", "An option that makes this program write."),
            Problem::Does(Effect::Executes) => {
                ("executing-option", "An option that makes this program run or load something.")
            }
            Problem::Does(Effect::Reads) => {
                ("indirect-option", "An option that takes further input from a file or directory.")
            }
            Problem::Does(effect) => effect_finding(*effect),
            Problem::MissingValue => ("unknown-option", "An option without its value."),
            Problem::Dynamic => ("dynamic-operand", "An argument is not in the text."),
            Problem::Wildcard => ("leading-wildcard", "A file name may be read as an option."),
        };
        judge.ask(code, message, *at);
        if *problem == Problem::Does(Effect::Connects) {
            judge.capabilities.insert(Capability::Network(None));
        }
    }
}

/// Classifies arguments by an entry.
fn check(judge: &mut Judge, entry: &'static Entry, arguments: &[Argument], at: (usize, usize)) -> Flow {
    let parsed = options::read(entry, arguments);
    let absent =
        if entry.or_absent && !parsed.uses(&entry.requires) { branch_path(judge, &parsed, arguments) } else { None };
    judge.seen.absent.extend(absent.clone());
    report(judge, &parsed);
    let acts = !only_tells(entry, &parsed) && !parsed.uses(&entry.reader_with);
    let by_itself = acts && !entry.does.is_empty();
    let changes = if by_itself { only_writes(entry) } else { parsed.writes() };
    if changes {
        confined::check(judge, arguments);
    }
    confined::check_places(judge, entry, &parsed);
    settings::judge(judge, entry, &parsed, at);
    if let Some(source) = source_path(entry, &parsed) {
        takes_commits(judge, source, at);
    } else if acts {
        does(judge, entry, parsed.uses(&entry.code), at);
        if entry.special {
            judge.ask("unknown-use", "A use of this program that is not known.", at);
        }
    }
    let mut flow = Flow::default();
    let scope = judge.scope.cwd.clone();
    for value in &parsed.values {
        flow.join(&value_of(judge, value.kind, &value.value));
        if value.kind == Kind::Directory {
            judge.scope.cwd = judge.path(&value.value);
        }
    }
    let lacks = |required: &[&'static str]| !required.is_empty() && !parsed.uses(required);
    if !only_tells(entry, &parsed) && (lacks(&entry.requires) && absent.is_none() || lacks(&entry.requires_too)) {
        judge.ask("unknown-use", "This program is known to be harmless only in certain uses.", at);
    }
    neutralise(judge, entry, &parsed, at);
    flow.join(&operands(judge, entry, &parsed, at));
    judge.scope.cwd = scope;
    flow
}

/// Returns the path of the repository that a command takes commits from, if its words name one.
fn source_path<'a>(entry: &Entry, parsed: &'a Parsed) -> Option<&'a Argument> {
    let source = parsed.operands.first().filter(|_| entry.from_path)?;
    let path = source.literal()?;
    let is_path = matches!(path.as_slice(), b"." | b"..")
        || [&b"/"[..], b"./", b"../"].iter().any(|beginning| path.starts_with(beginning));
    let is_only_one = parsed.problems.is_empty() && !parsed.uses(&["--multiple", "--recurse-submodules"]);
    (is_path && is_only_one).then_some(source)
}

fn takes_commits(judge: &mut Judge, source: &Argument, at: (usize, usize)) {
    judge.ask("takes-commits", "Takes commits of another repository into this one.", at);
    let path = judge.path(source);
    if path.is_none_or(|path| paths::place(&path, judge.context) != Place::Workspace) {
        judge.ask("other-repository", "Uses a repository outside the workspace.", source.span);
    }
}

/// Returns whether a program has by itself no effect other than changing files. Other effects are
/// `ask` anyway.
fn only_writes(entry: &Entry) -> bool {
    entry.does.iter().all(|effect| *effect == Effect::Writes)
}

/// Returns whether the program only prints information about itself.
fn only_tells(entry: &Entry, parsed: &Parsed) -> bool {
    let told = |used: &String| entry.tells.iter().any(|option| option == used);
    !parsed.used.is_empty() && parsed.used.iter().all(told) && parsed.operands.is_empty() && parsed.problems.is_empty()
}

/// Returns the path of the file whose changes would be lost if the only operand is no branch.
/// `None` if the operand, or an earlier command, does not permit this conclusion.
fn branch_path(judge: &Judge, parsed: &Parsed, arguments: &[Argument]) -> Option<Vec<u8>> {
    // None of these is about files.
    const PLAIN: &[&str] = &["-q", "--quiet", "--guess", "--no-guess", "--progress", "--no-progress", "-d", "--detach"];
    let [operand] = parsed.operands.as_slice() else { return None };
    let name = operand.literal()?;
    let is_step = |step: &[u8]| {
        !step.is_empty()
            && !step.starts_with(b".")
            && step.iter().all(|b| b.is_ascii_alphanumeric() || b"._-+@".contains(b))
    };
    let is_name = name == b"-" || !name.starts_with(b"-") && name.split(|b| *b == b'/').all(is_step);
    let is_plain = parsed.problems.is_empty() && parsed.used.iter().all(|option| PLAIN.contains(&option.as_str()));
    // An earlier command may create a file there.
    let is_changed = judge.findings.iter().any(|found| {
        CHANGES.contains(&found.code.as_str())
            || matches!(found.code.as_str(), "changes-repository" | "takes-commits" | "runs-code")
    });
    let is_sure = judge.context.neutralised && is_name && is_plain && !is_changed;
    if !is_sure || arguments.iter().any(|argument| argument.shown() == b"--") {
        return None;
    }
    judge.path(operand)
}

/// Findings of commands that may put another repository into a directory.
const CHANGES: &[&str] = &["changes-files", "writes-file", "writing-option", "deletes-files"];

/// Returns whether a path has `..` after a name. If that name is a symbolic link, only the disk
/// shows the result.
fn climbs(path: &Argument) -> bool {
    let text = path.shown();
    let mut steps = text.split(|b| *b == b'/').filter(|step| !matches!(*step, b"" | b".")).skip_while(|s| *s == b"..");
    steps.any(|step| step == b"..")
}

/// Records that the repository's configuration must not take effect here.
fn neutralise(judge: &mut Judge, entry: &'static Entry, parsed: &Parsed, at: (usize, usize)) {
    let with = entry.neutralise_with.iter().filter(|(option, _)| parsed.uses(&[option])).map(|(_, set)| *set);
    let sets: Vec<&'static str> = entry.neutralise.iter().copied().chain(with).collect();
    if sets.is_empty() {
        return;
    }
    if !judge.context.neutralised {
        judge.ask("repository-configuration", "What the repository configures could run something here.", at);
    }
    // An earlier command may put another repository there after the check, unless it is the initial
    // directory.
    let is_own = judge.scope.cwd.as_deref() == Some(judge.context.cwd.as_bytes());
    let is_changed = judge.findings.iter().any(|found| CHANGES.contains(&found.code.as_str()));
    let directory = judge.scope.cwd.clone().filter(|_| is_own || !is_changed);
    judge.neutralised.extend(sets.into_iter().map(|set| (set, directory.clone())));
}

fn operands(judge: &mut Judge, entry: &Entry, parsed: &Parsed, at: (usize, usize)) -> Flow {
    let mut flow = Flow::default();
    let list = if parsed.uses(&entry.operands_with) || parsed.uses(&entry.reader_with) {
        &entry.operands_then
    } else {
        &entry.operands
    };
    let skip = usize::from(parsed.uses(&entry.given_by));
    let tells = only_tells(entry, parsed) || parsed.uses(&["--help", "--version"]);
    let mut wanted = list.iter().skip(skip).peekable();
    let mut search = false;
    for operand in &parsed.operands {
        let kind = match wanted.peek() {
            Some(wanted) if wanted.many => wanted.kind,
            Some(_) => wanted.next().map_or(Kind::Never, |o| o.kind),
            None => {
                judge.ask("unknown-operand", "An argument this program is not known to take.", operand.span);
                continue;
            }
        };
        search |= kind == Kind::Search;
        flow.join(&value_of(judge, kind, operand));
    }
    match wanted.next() {
        Some(o) if o.kind == Kind::Search && o.many && !search => hunts(judge, &Argument::known(b".", at)),
        Some(o) if o.kind != Kind::Never && !o.optional && !tells && !parsed.uses(&entry.code) => {
            judge.ask("unknown-use", "An argument is missing: what this does then is not known.", at);
        }
        _ => {}
    }
    flow
}
