//! A command line to facts: which programs it would start, what it would read,
//! write and reach, and what was not understood. The answer is advice: it
//! decides how much to ask, never what a command is able to do.
//!
//! One parser, one pass; the tier is the maximum of all findings. `allow` means
//! that every byte was understood and only known readers run. Anything dynamic,
//! unknown, too long or too deep is `ask`. `deny` needs literal evidence.
//!
//! This crate does no I/O: it sees text and three paths. It does not resolve
//! links, does not look programs up, and knows no policy.

#![forbid(unsafe_code)]

mod budget;
mod judge;
mod knowledge;
mod lower_word;
mod options;
mod parse;
mod paths;
mod readers;
mod redirects;
mod rules;
mod script;
mod text;
mod words;
mod wrappers;

use std::time::Duration;

use stockade_model::{Assessment, Finding, RawText, Span, Tier};

use crate::budget::Budget;
use crate::judge::Judge;
use crate::words::{Argument, Flow};

/// Processor time one assessment may take. Beyond it the rest is not understood.
const TIME_BOUND: Duration = Duration::from_millis(30);

/// Where a command would run.
#[derive(Clone, Debug)]
pub struct Context {
    /// The working directory: absolute, canonical.
    pub cwd: RawText,
    /// The home directory: absolute, canonical.
    pub home: RawText,
    /// The root of the workspace: absolute, canonical.
    pub workspace: RawText,
    /// True if the runner takes away what a repository configures (git's
    /// fsmonitor, filters, external diff, textconv, hooks, pagers, bare
    /// repositories, and for `git log` also `log.showSignature`,
    /// `format.pretty` and `gpg.program`; toolchain files). Where it does not, commands that would obey such configuration
    /// are `ask`.
    pub neutralised: bool,
}

/// Assesses a script as given to `bash -c`. Never fails: what cannot be read is
/// `ask`.
pub fn assess_script(script: &[u8], context: &Context) -> Assessment {
    let mut judge = Judge::new(context, Budget::of(TIME_BOUND));
    judge.findings = text::findings(script, true);
    if script.len() > text::MAX_PARSED {
        judge.ask("too-long", "Too long to be read.", (0, script.len()));
        if let Some((code, at)) = text::literal_denials(script) {
            judge.deny(code, "Holds a command that is never harmless.", (at, at));
        }
        return finish(judge);
    }
    match parse::parse(script, judge.budget) {
        Ok(statements) => {
            if statements.is_empty() {
                judge.ask("empty", "Nothing to run.", (0, script.len()));
            }
            judge.block(&statements, &Flow::default());
        }
        Err(_) => {
            judge.ask("not-understood", "Could not be read in time.", (0, script.len()));
            if let Some((code, at)) = text::literal_denials(script) {
                judge.deny(code, "Holds a command that is never harmless.", (at, at));
            }
        }
    }
    rules::judge_whole(&mut judge, (0, script.len()));
    finish(judge)
}

/// Assesses a program and its arguments, which no shell expands. Spans point
/// into the arguments joined by single blanks.
pub fn assess_argv(argv: &[RawText], context: &Context) -> Assessment {
    let mut judge = Judge::new(context, Budget::of(TIME_BOUND));
    let mut joined = Vec::new();
    let mut arguments = Vec::with_capacity(argv.len());
    for argument in argv {
        let start = joined.len();
        joined.extend_from_slice(argument.as_bytes());
        arguments.push(Argument::known(argument.as_bytes(), (start, joined.len())));
        joined.push(b' ');
    }
    joined.pop();
    judge.findings = text::findings(&joined, false);
    let whole = (0, joined.len());
    if arguments.first().is_none_or(|first| first.atoms.is_empty()) {
        judge.ask("empty", "Nothing to run.", whole);
    } else if joined.len() > text::MAX_PARSED {
        judge.ask("too-long", "Too long to be read.", whole);
    } else {
        judge.command(arguments, Flow::default(), whole);
    }
    rules::judge_whole(&mut judge, whole);
    finish(judge)
}

fn finish(judge: Judge) -> Assessment {
    let mut findings: Vec<Finding> = judge.findings;
    findings.sort_by_key(|f| f.span.map_or((0, 0), |Span { start, end }| (start, end)));
    let tier = findings.iter().map(|f| f.tier).max().unwrap_or(Tier::Allow);
    Assessment { tier, findings, capabilities: judge.capabilities.into_iter().collect() }
}
