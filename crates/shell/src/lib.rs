//! Classifier of command lines. It finds the programs that a command would start, the files and
//! hosts that it would use, and the parts that were not understood. The result is advice: it
//! decides how much to ask, never the permissions of a command.
//!
//! There is one parser and one pass; the tier is the maximum of all findings. `allow` means that
//! every byte was understood and only known readers run. Anything dynamic, unknown, too long or too
//! deep is `ask`. `deny` needs literal evidence.
//!
//! This crate does no I/O: its input is text and three paths. It does not resolve symbolic links,
//! does not look programs up, and knows no policy.

#![forbid(unsafe_code)]

mod budget;
mod classify;
#[cfg(test)]
mod differential_tests;
mod fallback_scan;
mod glob;
mod invocation;
mod knowledge;
mod lower_word;
mod options;
mod parse;
mod paths;
mod quiet_repository;
mod readers;
mod redirects;
mod rules;
mod sanitize;
mod script;
mod shell_state;
mod text;
mod variables;
mod words;
mod wrappers;

use stockade_model::{Assessment, EffectUse, Finding, Impact, RawText, RequestCommand, TextSpan, Tier};

use crate::classify::Classifier;
use crate::shell_state::ScriptActions;
use crate::words::{DataFlow, ExpandedArgument};

pub use crate::quiet_repository::{is_quiet_configuration, is_quiet_hook, leaves_hooks};
pub use crate::sanitize::{SanitizeSettings, default_toolchain, has_no_submodules, is_plain_configuration};

/// Codes of findings about text that was not parsed.
const NOT_UNDERSTOOD: &str = "not-understood";
const TOO_DEEP: &str = "too-deep";

/// Length of arguments up to which all are classified, in bytes.
const MAX_ARGUMENT_BYTES: usize = 64 << 10;

/// Environment of a command.
#[derive(Clone, Debug)]
pub struct CommandContext {
    /// The working directory: absolute, canonical.
    pub cwd: RawText,
    /// The home directory: absolute, canonical.
    pub home: RawText,
    /// The root of the workspace: absolute, canonical.
    pub workspace: RawText,
    /// True if the run applies [`CommandClassification::neutralisation`]. If false, commands that would obey a
    /// repository's configuration are `ask`.
    pub sanitized: bool,
}

/// Assessment, with the settings that its run must carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandClassification {
    /// The assessment of the text.
    pub assessment: Assessment,
    /// Repository settings to neutralise so that an `allow` holds. For `ask`, it contains only the
    /// conditions to check so that the findings hold: a person may decide there, and hooks may be
    /// intended. Empty for `deny`.
    pub neutralisation: SanitizeSettings,
    /// The effects that need consent, with their programs, as far as the text shows both. An
    /// approval of the command includes them.
    pub effects: Vec<EffectUse>,
}

/// Use of a command's standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StdinUse {
    /// Data, as far as the text shows.
    Data,
    /// A program in a language other than the shell's.
    Program,
    /// Commands of the shell; also if the use is unknown.
    Commands,
}

/// Returns how a command uses its standard input. A program in a file, or one that starts others by
/// itself, is unknown and counts as data.
pub fn stdin_use(command: &RequestCommand, context: &CommandContext) -> StdinUse {
    let (classifier, length) = match command {
        RequestCommand::Script(script) => (walk_text(script.as_bytes(), context), script.as_bytes().len()),
        RequestCommand::Argv(words) => walked_argv(words, context),
    };
    let is_unread = |found: &Finding| matches!(found.code.as_str(), NOT_UNDERSTOOD | TOO_DEEP);
    let unread = length > parse::MAX_PARSED_BYTES || classifier.findings.iter().any(is_unread);
    match classifier.seen {
        _ if unread => StdinUse::Commands,
        ScriptActions { shell_reads: true, .. } | ScriptActions { dynamic_program: true, .. } => StdinUse::Commands,
        ScriptActions { interpreter_reads: true, .. } => StdinUse::Program,
        _ => StdinUse::Data,
    }
}

/// Returns false if a part of the text could not be parsed: the script is incomplete or not
/// understood.
pub fn is_understood(assessment: &Assessment) -> bool {
    !assessment.findings.iter().any(|found| found.code == NOT_UNDERSTOOD)
}

/// Assesses a script as passed to `bash -c`. Never fails: unparsable text is `ask`.
pub fn assess_script(script: &[u8], context: &CommandContext) -> Assessment {
    classify_script(script, context).assessment
}

/// Assesses a program and its arguments, which no shell expands. Spans refer to the arguments
/// joined by single spaces.
pub fn assess_argv(argv: &[RawText], context: &CommandContext) -> Assessment {
    classify_argv(argv, context).assessment
}

/// Does the same as [`assess_script`], and returns the settings that the run must carry.
pub fn classify_script(script: &[u8], context: &CommandContext) -> CommandClassification {
    finish_assessment(walk_text(script, context), script.len())
}

/// Walks over a script.
fn walk_text<'c>(script: &[u8], context: &'c CommandContext) -> Classifier<'c> {
    let mut classifier = Classifier::new(context);
    classifier.findings = text::text_findings(script, true);
    let whole = (0, script.len());
    let parsed = if script.len() > parse::MAX_PARSED_BYTES {
        classifier.record_ask("too-long", "Too long to be read.", whole);
        None
    } else if fallback_scan::is_too_deep(script) {
        classifier.record_ask(TOO_DEEP, "Nested too deeply to be reviewed.", whole);
        None
    } else {
        let parsed = parse::parse_script(script, &classifier.budget).ok();
        if parsed.is_none() {
            classifier.record_ask(NOT_UNDERSTOOD, "Too complex to be analyzed.", whole);
        }
        parsed
    };
    match parsed {
        Some(statements) => {
            if statements.is_empty() {
                classifier.record_ask("empty", "Nothing to run.", whole);
            }
            classifier.walk_block(&statements, &DataFlow::default());
            if classifier.is_cut_short() {
                fallback_scan::scan_text(&mut classifier, script);
            }
        }
        None => fallback_scan::scan_text(&mut classifier, script),
    }
    rules::classify_whole(&mut classifier, (0, script.len()));
    classifier
}

/// Does the same as [`assess_argv`], and returns the settings that the run must carry.
pub fn classify_argv(argv: &[RawText], context: &CommandContext) -> CommandClassification {
    let (classifier, length) = walked_argv(argv, context);
    finish_assessment(classifier, length)
}

/// Walks over arguments; also returns their total length.
fn walked_argv<'c>(argv: &[RawText], context: &'c CommandContext) -> (Classifier<'c>, usize) {
    let mut classifier = Classifier::new(context);
    let mut joined = Vec::new();
    let mut arguments = Vec::with_capacity(argv.len().min(MAX_ARGUMENT_BYTES));
    for argument in argv {
        let start = joined.len();
        joined.extend_from_slice(argument.as_bytes());
        // Later arguments are not classified one by one.
        if start <= MAX_ARGUMENT_BYTES {
            let beginning = &joined[start..joined.len().min(start + MAX_ARGUMENT_BYTES)];
            arguments.push(ExpandedArgument::from_bytes(beginning, (start, joined.len())));
        }
        joined.push(b' ');
    }
    joined.pop();
    classifier.findings = text::text_findings(&joined, false);
    let whole = (0, joined.len());
    if arguments.first().is_none_or(|first| first.atoms.is_empty()) {
        classifier.record_ask("empty", "Nothing to run.", whole);
    } else if joined.len() > MAX_ARGUMENT_BYTES {
        classifier.record_ask("too-long", "Too long to be read.", whole);
        long_arguments(&mut classifier, arguments, &joined);
    } else {
        classifier.classify_command(arguments, DataFlow::default(), whole);
    }
    rules::classify_whole(&mut classifier, whole);
    (classifier, joined.len())
}

/// Looks for literal denials: in the first arguments, and for a shell in its whole script.
fn long_arguments(classifier: &mut Classifier, mut arguments: Vec<ExpandedArgument>, joined: &[u8]) {
    let name = arguments.first().map(ExpandedArgument::display_bytes).unwrap_or_default();
    if rules::code::is_shell(name.rsplit(|b| *b == b'/').next().unwrap_or_default()) {
        fallback_scan::scan_text(classifier, joined);
    }
    let mut atom_budget = MAX_ARGUMENT_BYTES / 4;
    for argument in &mut arguments {
        argument.atoms.truncate(atom_budget);
        atom_budget -= argument.atoms.len();
    }
    arguments.truncate(MAX_ARGUMENT_BYTES / 64);
    rules::code::denials_only(classifier, |classifier| {
        classifier.classify_command(arguments, DataFlow::default(), (0, joined.len()));
    });
}

fn repository_configuration(length: usize) -> Finding {
    Finding {
        code: "repository-configuration".to_owned(),
        tier: Tier::Ask,
        impact: Impact::Contained,
        message: "The configuration of the repository could run a program here.".to_owned(),
        span: Some(TextSpan { start: 0, end: length }),
    }
}

fn finish_assessment(classifier: Classifier, length: usize) -> CommandClassification {
    let mut findings: Vec<Finding> = classifier.findings;
    // With bytes that are not text, the parser counts beyond the end.
    for span in findings.iter_mut().filter_map(|f| f.span.as_mut()) {
        *span = TextSpan { start: span.start.min(length), end: span.end.min(length) };
    }
    // For a run that is not `allow`, repository settings are not neutralised. They are only
    // checked, if that is sufficient.
    let looked_at = SanitizeSettings::looked_at(&classifier.sanitized);
    if !classifier.sanitized.is_empty() && looked_at.is_none() && findings.iter().any(|f| f.tier == Tier::Ask) {
        findings.push(repository_configuration(length));
    }
    findings.sort_by_key(|f| f.span.map_or((0, 0), |TextSpan { start, end }| (start, end)));
    let tier = findings.iter().map(|f| f.tier).max().unwrap_or(Tier::Allow);
    let neutralisation = match tier {
        Tier::Allow => SanitizeSettings::from_sets(&classifier.sanitized),
        Tier::Ask => SanitizeSettings {
            absent: classifier.seen.absent.iter().map(|path| RawText::from(path.as_slice())).collect(),
            ..looked_at.unwrap_or_default()
        },
        Tier::Deny => SanitizeSettings::default(),
    };
    // A command that is not known to read only may change the workspace.
    let least = if tier == Tier::Allow { Impact::Contained } else { Impact::Workspace };
    let impact = findings.iter().map(|f| f.impact).fold(least, Impact::max);
    let capabilities = classifier.capabilities.into_iter().collect();
    let effects = classifier.effects.iter().filter_map(|(code, program)| EffectUse::new(code, program)).collect();
    CommandClassification { assessment: Assessment { tier, impact, findings, capabilities }, neutralisation, effects }
}
