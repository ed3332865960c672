//! Known programs: decides whether a use is fully understood and harmless, and finds its
//! capabilities. Every doubt is a finding of tier `ask`. `rules` finds certain dangers.

pub(crate) mod confined;
mod expressions;
mod little_languages;
mod settings;
mod values;

use stockade_model::Capability;

use crate::classify::Classifier;
use crate::invocation::Invocation;
use crate::knowledge::{self, CommandSpec, OptionEffect, ValueKind, lists};
use crate::options::{self, ArgumentProblem, ParsedArguments};
use crate::paths::{self, PathLocation};
use crate::words::{DataFlow, ExpandedArgument};

pub(crate) use self::values::{ask_for_secret, read_file};
use self::values::{classify_text, dynamic_text, report_secret_search, value_of};

/// Classifies a command as a reader. Returns the flow of its output.
pub(crate) fn classify_reader(classifier: &mut Classifier, invocation: &Invocation) -> DataFlow {
    let mut flow = invocation.stdin.clone();
    flow.literal = None;
    invocation.arguments.iter().for_each(|a| flow.merge_taints(&a.flow));
    let name = String::from_utf8_lossy(&invocation.name).into_owned();
    if invocation.qualified {
        classifier.record_ask(
            "path-qualified",
            "A program given by its path may not be the known program of that name.",
            invocation.span,
        );
    }
    let known = match name.as_str() {
        _ if invocation.qualified => {
            // Its capabilities count, although it is not trusted to be the program of that name.
            known_use(classifier, &name, invocation);
            Some(DataFlow::default())
        }
        // Only a look-up reaches this: its names are no command.
        "command" => {
            invocation.arguments.iter().for_each(|name| dynamic_text(classifier, name));
            known_use(classifier, &name, invocation)
        }
        "find" => Some(expressions::classify_find(classifier, invocation)),
        "test" | "[" | "[[" => Some(expressions::classify_test(classifier, invocation)),
        _ => known_use(classifier, &name, invocation),
    };
    match known {
        Some(read) => flow.merge_taints(&read),
        None => classifier.record_ask("unknown-program", "This program is not known.", invocation.span),
    }
    if name == "read" || name == "mapfile" || name == "readarray" {
        classifier.set_unknown(b"REPLY", &invocation.stdin);
        for argument in &invocation.arguments {
            classifier.set_unknown(&argument.display_bytes(), &invocation.stdin);
        }
    }
    if name == "cd" || name == "pushd" {
        let target =
            invocation.arguments.iter().find(|a| a.display_bytes() == b"-" || !a.display_bytes().starts_with(b"-"));
        // Without symbolic links, which are visible only on the disk.
        let is_physical = invocation.has_argument("-P") && target.is_some_and(has_inner_parent);
        classifier.change_directory(target, invocation.span);
        if is_physical {
            classifier.scope.cwd = None;
        }
    }
    flow
}

/// Returns whether a program may run its arguments as a command. The program is unknown, or is
/// known to run code that is not in the text, or to act with privileges.
pub(crate) fn may_run_arguments(invocation: &Invocation) -> bool {
    let Ok(name) = std::str::from_utf8(&invocation.name) else { return true };
    knowledge::find_command(name).is_none_or(|entry| {
        !entry.subcommands
            && entry.does.iter().any(|effect| matches!(effect, OptionEffect::Executes | OptionEffect::Privilege))
    })
}

/// Classifies by the knowledge base; `None` if the program is unknown.
fn known_use(classifier: &mut Classifier, name: &str, invocation: &Invocation) -> Option<DataFlow> {
    // Entries of subcommands have a space in their name; no program has.
    if name.contains(' ') {
        return None;
    }
    let entry = knowledge::find_command(name)?;
    if !entry.subcommands {
        return Some(classify_arguments(classifier, entry, &invocation.arguments, invocation.span));
    }
    let arguments = &invocation.arguments;
    let parsed = options::parse_arguments(entry, arguments);
    if parsed.operands.is_empty() {
        return Some(classify_arguments(classifier, entry, arguments, invocation.span));
    }
    report_problems(classifier, &parsed);
    let scope = classifier.scope.cwd.clone();
    for value in &parsed.values {
        value_of(classifier, value.kind, &value.value);
        if value.kind == ValueKind::Directory {
            classifier.scope.cwd =
                if has_inner_parent(&value.value) { None } else { classifier.absolute_path(&value.value) };
        }
    }
    if name == "git" {
        other_repository(classifier, invocation);
    }
    let rest = &arguments[parsed.rest..];
    let known = options::find_subcommand(name, &parsed.operands[0], rest.first())
        .map(|(entry, words)| classify_arguments(classifier, entry, &rest[words..], invocation.span));
    classifier.scope.cwd = scope;
    if known.is_none() {
        report_effects(classifier, entry, false, invocation.span);
        classifier.record_ask("unknown-use", "An unknown use of this program.", invocation.span);
    }
    Some(known.unwrap_or_default())
}

fn other_repository(classifier: &mut Classifier, invocation: &Invocation) {
    let outside = classifier
        .scope
        .cwd
        .as_ref()
        .is_none_or(|cwd| paths::locate_path(cwd, classifier.context) != PathLocation::Workspace);
    if outside {
        classifier.record_ask("other-repository", "Uses a repository outside the workspace.", invocation.span);
    }
}

/// Returns the code and the message of an effect.
fn effect_finding(effect: OptionEffect) -> (&'static str, &'static str) {
    match effect {
        OptionEffect::Inert => ("", ""),
        OptionEffect::Writes => ("changes-files", "Changes or creates files."),
        OptionEffect::Repository => ("changes-repository", "Changes the repository or its work tree."),
        OptionEffect::Deletes => ("deletes-files", "Removes files or records."),
        OptionEffect::Executes => ("runs-code", "Runs code that is not in the text."),
        OptionEffect::Connects => ("network", "Reaches the network."),
        OptionEffect::Reads => ("reads-private", "Reads more than the text names."),
        OptionEffect::Privilege => ("privilege", "Uses or changes privileges."),
        OptionEffect::Persists => ("persists", "Schedules a program to run later."),
        OptionEffect::System => ("changes-system", "Changes the state of the machine."),
    }
}

fn record_effect(classifier: &mut Classifier, (code, message): (&str, &str), at: (usize, usize)) {
    classifier.record_ask(code, message, at);
    if code == "network" {
        classifier.capabilities.insert(Capability::Network(None));
    }
}

/// Reports the program's effects for all arguments, with code in the text or elsewhere.
fn report_effects(classifier: &mut Classifier, entry: &CommandSpec, has_code: bool, at: (usize, usize)) {
    for effect in entry.does {
        let (code, message) = match effect {
            OptionEffect::Executes if has_code => ("runs-code", "Runs code that is given in the text."),
            effect => effect_finding(*effect),
        };
        record_effect(classifier, (code, message), at);
    }
}

fn report_problems(classifier: &mut Classifier, parsed: &ParsedArguments) {
    for (problem, at) in &parsed.problems {
        let (code, message) = match problem {
            ArgumentProblem::Unknown => ("unknown-option", "An option that is not known to be harmless."),
            ArgumentProblem::Does(OptionEffect::Writes) => {
                ("writing-option", "An option that makes this program write.")
            }
            ArgumentProblem::Does(OptionEffect::Executes) => {
                ("executing-option", "An option that makes this program run or load something.")
            }
            ArgumentProblem::Does(OptionEffect::Reads) => {
                ("indirect-option", "An option that takes further input from a file or directory.")
            }
            ArgumentProblem::Does(effect) => effect_finding(*effect),
            ArgumentProblem::MissingValue => ("unknown-option", "An option without its value."),
            ArgumentProblem::Dynamic => ("dynamic-operand", "An argument is not known before the run."),
            ArgumentProblem::Wildcard => ("leading-wildcard", "A file name may be read as an option."),
        };
        record_effect(classifier, (code, message), *at);
    }
}

/// Classifies arguments by an entry.
fn classify_arguments(
    classifier: &mut Classifier,
    entry: &'static CommandSpec,
    arguments: &[ExpandedArgument],
    at: (usize, usize),
) -> DataFlow {
    let parsed = options::parse_arguments(entry, arguments);
    let absent = if entry.or_absent && !parsed.has_option(entry.requires) {
        branch_path(classifier, &parsed, arguments)
    } else {
        None
    };
    classifier.seen.absent.extend(absent.clone());
    report_problems(classifier, &parsed);
    let acts = !only_tells(entry, &parsed) && !parsed.has_option(entry.reader_with);
    let by_itself = acts && !entry.does.is_empty();
    let changes = if by_itself { only_writes(entry) } else { parsed.has_writing_option() };
    if changes {
        confined::check_confined(classifier, arguments);
    }
    confined::check_paths(classifier, entry, &parsed);
    settings::classify_config_write(classifier, entry, &parsed, at);
    if let Some(source) = source_path(entry, &parsed) {
        takes_commits(classifier, source, at);
    } else if acts {
        report_effects(classifier, entry, parsed.has_option(entry.code), at);
        if entry.special {
            classifier.record_ask("unknown-use", "An unknown use of this program.", at);
        }
    }
    let mut flow = DataFlow::default();
    let scope = classifier.scope.cwd.clone();
    for value in &parsed.values {
        flow.merge_taints(&value_of(classifier, value.kind, &value.value));
        if value.kind == ValueKind::Directory {
            classifier.scope.cwd = classifier.absolute_path(&value.value);
        }
    }
    let lacks = |required: &[&'static str]| !required.is_empty() && !parsed.has_option(required);
    if !only_tells(entry, &parsed) && (lacks(entry.requires) && absent.is_none() || lacks(entry.requires_too)) {
        classifier.record_ask("unknown-use", "This program is known to be harmless only in certain uses.", at);
    }
    require_sanitizing(classifier, entry, &parsed, at);
    flow.merge_taints(&classify_operands(classifier, entry, &parsed, at));
    classifier.scope.cwd = scope;
    flow
}

/// Returns the path of the repository that a command takes commits from, if its words name one.
fn source_path<'a>(entry: &CommandSpec, parsed: &'a ParsedArguments) -> Option<&'a ExpandedArgument> {
    let source = parsed.operands.first().filter(|_| entry.from_path)?;
    let path = source.literal_value()?;
    let is_path = matches!(path.as_slice(), b"." | b"..")
        || [&b"/"[..], b"./", b"../"].iter().any(|beginning| path.starts_with(beginning));
    let is_only_one = parsed.problems.is_empty() && !parsed.has_option(&["--multiple", "--recurse-submodules"]);
    (is_path && is_only_one).then_some(source)
}

fn takes_commits(classifier: &mut Classifier, source: &ExpandedArgument, at: (usize, usize)) {
    classifier.record_ask("takes-commits", "Imports commits of another repository.", at);
    let path = classifier.absolute_path(source);
    if path.is_none_or(|path| paths::locate_path(&path, classifier.context) != PathLocation::Workspace) {
        classifier.record_ask("other-repository", "Uses a repository outside the workspace.", source.span);
    }
}

/// Returns whether a program has by itself no effect other than changing files. Other effects are
/// `ask` anyway.
fn only_writes(entry: &CommandSpec) -> bool {
    entry.does.iter().all(|effect| *effect == OptionEffect::Writes)
}

/// Returns whether the program only prints information about itself.
fn only_tells(entry: &CommandSpec, parsed: &ParsedArguments) -> bool {
    let is_info_option = |used: &String| entry.tells.iter().any(|option| option == used);
    !parsed.used.is_empty()
        && parsed.used.iter().all(is_info_option)
        && parsed.operands.is_empty()
        && parsed.problems.is_empty()
}

/// Returns the path of the file whose changes would be lost if the only operand is no branch.
/// `None` if the operand, or an earlier command, does not permit this conclusion.
fn branch_path(classifier: &Classifier, parsed: &ParsedArguments, arguments: &[ExpandedArgument]) -> Option<Vec<u8>> {
    let [operand] = parsed.operands.as_slice() else { return None };
    let name = operand.literal_value()?;
    let is_step = |step: &[u8]| {
        !step.is_empty()
            && !step.starts_with(b".")
            && step.iter().all(|b| b.is_ascii_alphanumeric() || b"._-+@".contains(b))
    };
    let is_name = name == b"-" || !name.starts_with(b"-") && name.split(|b| *b == b'/').all(is_step);
    let is_plain =
        parsed.problems.is_empty() && parsed.used.iter().all(|option| lists::PLAIN_OPTIONS.contains(&option.as_str()));
    // An earlier command may create a file there.
    let is_changed = classifier.findings.iter().any(|found| {
        CHANGE_FINDINGS.contains(&found.code.as_str())
            || matches!(found.code.as_str(), "changes-repository" | "takes-commits" | "runs-code")
    });
    let is_sure = classifier.context.sanitized && is_name && is_plain && !is_changed;
    if !is_sure || arguments.iter().any(|argument| argument.display_bytes() == b"--") {
        return None;
    }
    classifier.absolute_path(operand)
}

/// Findings of commands that may put another repository into a directory.
const CHANGE_FINDINGS: &[&str] = &["changes-files", "writes-file", "writing-option", "deletes-files"];

/// Returns whether a path has `..` after a name. If that name is a symbolic link, only the disk
/// shows the result.
fn has_inner_parent(path: &ExpandedArgument) -> bool {
    let text = path.display_bytes();
    let mut steps = text.split(|b| *b == b'/').filter(|step| !matches!(*step, b"" | b".")).skip_while(|s| *s == b"..");
    steps.any(|step| step == b"..")
}

/// Records that the repository's configuration must not take effect here.
fn require_sanitizing(
    classifier: &mut Classifier,
    entry: &'static CommandSpec,
    parsed: &ParsedArguments,
    at: (usize, usize),
) {
    let options = entry.sanitize_options.iter().filter_map(|option| option.split_once(':'));
    let with = options.filter(|(option, _)| parsed.has_option(&[option])).map(|(_, set)| set);
    let sets: Vec<&'static str> = entry.sanitize_sets.iter().copied().chain(with).collect();
    if sets.is_empty() {
        return;
    }
    if !classifier.context.sanitized {
        classifier.record_ask(
            "repository-configuration",
            "The configuration of the repository could run a program here.",
            at,
        );
    }
    // An earlier command may put another repository there after the check, unless it is the initial
    // directory.
    let is_own = classifier.scope.cwd.as_deref() == Some(classifier.context.cwd.as_bytes());
    let is_changed = classifier.findings.iter().any(|found| CHANGE_FINDINGS.contains(&found.code.as_str()));
    let directory = classifier.scope.cwd.clone().filter(|_| is_own || !is_changed);
    classifier.sanitized.extend(sets.into_iter().map(|set| (set, directory.clone())));
}

fn classify_operands(
    classifier: &mut Classifier,
    entry: &CommandSpec,
    parsed: &ParsedArguments,
    at: (usize, usize),
) -> DataFlow {
    let mut flow = DataFlow::default();
    let list = if parsed.has_option(entry.operands_with) || parsed.has_option(entry.reader_with) {
        entry.operands_then
    } else {
        entry.operands
    };
    let skip = usize::from(parsed.has_option(entry.operand_options));
    let tells = only_tells(entry, parsed) || parsed.has_option(&["--help", "--version"]);
    let mut expected = list.iter().skip(skip).peekable();
    let mut search = false;
    for operand in &parsed.operands {
        let kind = match expected.peek() {
            Some(expected) if expected.many => expected.kind,
            Some(_) => expected.next().map_or(ValueKind::Never, |o| o.kind),
            None => {
                classifier.record_ask("unknown-operand", "An unknown argument of this program.", operand.span);
                continue;
            }
        };
        search |= kind == ValueKind::Search;
        flow.merge_taints(&value_of(classifier, kind, operand));
    }
    match expected.next() {
        Some(o) if o.kind == ValueKind::Search && o.many && !search => {
            report_secret_search(classifier, &ExpandedArgument::from_bytes(b".", at))
        }
        Some(o) if o.kind != ValueKind::Never && !o.optional && !tells && !parsed.has_option(entry.code) => {
            classifier.record_ask("unknown-use", "An argument is missing, so the effect is not known.", at);
        }
        _ => {}
    }
    flow
}
