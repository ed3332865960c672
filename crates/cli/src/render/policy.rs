//! Policies as text: their content, their decisions, and the reasons.

use std::fmt::Write as _;
use std::path::Path;

use stockade_model::{Decision, RawText};
use stockade_policy::examples::ExampleReport;
use stockade_policy::suggest::PathGeneralisation;
use stockade_policy::{
    HostGroup, PolicySettings, PolicyStatement, RuleExplanation, RuleMatch, SettingExplanation as Setting,
};

use super::check::verdict_color;
use super::{TextLayout, count_noun, escape_text, write_wrapped};
use crate::command::policy::explain::{DecisionExplanation, match_name};

/// Formats the files in force and their content.
pub fn format_files(settings: &PolicySettings) -> String {
    let mut out = String::new();
    for (layer, path) in settings.files() {
        let rules = settings.rules().filter(|rule| rule.origin.layer() == Some(layer)).count();
        let _ = writeln!(out, "{layer:<8}  {}: {}", RawText::from(path).to_escaped(), count_noun(rules, "rule"));
    }
    let profiles: Vec<&str> = settings.profiles().map(|(name, _)| name).collect();
    let _ = writeln!(out, "profiles  {}", profiles.join(", "));
    out
}

/// Formats one valid file.
pub fn format_file(path: &Path, settings: &PolicySettings) -> String {
    format!(
        "{}: valid, {} in force with it\n",
        RawText::from(path).to_escaped(),
        count_noun(settings.rules().count(), "rule")
    )
}

/// Formats every setting and its origin.
pub fn format_settings(lines: &[Setting]) -> String {
    let line = |line: &Setting| {
        let (key, value) = (escape_text(&line.key), escape_text(&line.value));
        format!("{key} = {value}    # {}\n", escape_text(&line.origin.to_string()))
    };
    lines.iter().map(line).collect()
}

/// Formats each group of hosts with its hosts.
pub fn format_groups(groups: &[HostGroup], style: TextLayout) -> String {
    let wide = groups.iter().map(|group| group.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for group in groups {
        let hosts: Vec<String> = group.hosts.iter().map(ToString::to_string).collect();
        let text = format!("{}: {}", group.summary, hosts.join(" "));
        write_wrapped(&mut out, style, &format!("@{:wide$}  ", group.name), &text);
    }
    out
}

/// Formats every rule on one line.
pub fn format_rules(settings: &PolicySettings) -> String {
    let mut out = String::from("rules, combined by deny-overrides over the files:\n");
    for rule in settings.rules() {
        let origin = rule.origin.to_string();
        let _ = writeln!(out, "  {:<5}  {}    # {}", rule.effect, escape_text(&rule.label()), escape_text(&origin));
    }
    out
}

/// Formats one decision: the deciding source first, then all others.
pub fn format_explanation(shown: &DecisionExplanation<'_>, style: TextLayout) -> String {
    let mut out = String::new();
    let decision = shown.decision;
    write_wrapped(&mut out, style, "subject   ", &shown.subject);
    let painted = style.paint_text(verdict_color(decision.verdict), &decision.verdict.to_string());
    let _ = writeln!(out, "decision  {painted}   ({})", escape_text(&decision.rule));
    for reason in &decision.reasons {
        write_wrapped(&mut out, style, "because   ", &escape_text(reason));
    }
    for statement in shown.voices.iter().filter(|statement| !statement.decides || statement.source != decision.rule) {
        write_wrapped(&mut out, style, "also      ", &format_source_result(statement));
    }
    if let Some(grant) = &shown.grant {
        write_wrapped(&mut out, style, "a yes     ", &format!("gives `{}`", escape_text(grant)));
    }
    if let Some(wants) = shown.obligations.filter(|wants| !wants.is_empty()) {
        if let Some(profile) = &wants.profile {
            write_wrapped(&mut out, style, "runs with ", &format!("profile {profile}"));
        }
        for grant in &wants.grants {
            write_wrapped(&mut out, style, "is given  ", &escape_text(&grant.to_string()));
        }
        if let Some(ms) = wants.limits.wall_ms {
            write_wrapped(&mut out, style, "limit     ", &super::format_duration(ms));
        }
    }
    // A rule about files does not concern a command.
    let of_its_kind = |one: &&RuleExplanation<'_>| one.failing != Some("it is about something else");
    for one in shown.considered.iter().filter(of_its_kind) {
        write_wrapped(&mut out, style, "rule      ", &format_considered_rule(one));
    }
    out
}

fn format_source_result(statement: &PolicyStatement) -> String {
    let why = if statement.reasons.is_empty() { String::new() } else { format!(": {}", statement.reasons.join("; ")) };
    escape_text(&format!("{} by {}{why}", statement.verdict, statement.source))
}

fn format_considered_rule(one: &RuleExplanation<'_>) -> String {
    let found = match (one.found, one.failing) {
        (RuleMatch::No, Some(why)) => format!("no, {why}"),
        (found, _) => match_name(found).to_owned(),
    };
    escape_text(&format!("{} {}: {found} ({})", one.rule.effect, one.rule.label(), one.rule.origin))
}

/// Formats the failed examples of a file.
pub fn failed_examples(path: &Path, report: &ExampleReport) -> String {
    let mut out = String::new();
    for result in report.failed_results() {
        let position = result.position.map_or(String::new(), |position| format!(":{position}"));
        let fault = result.fault.as_deref().unwrap_or_default();
        let file = RawText::from(path).to_escaped();
        let _ = writeln!(out, "{file}{position}: `{}`: {}", escape_text(&result.subject), escape_text(fault));
        let (decided, rule) = (result.decision.verdict, escape_text(&result.decision.rule));
        let _ = writeln!(out, "  expected {}, decided {decided} by {rule}", result.expected);
    }
    out
}

/// Formats the number of successful examples, and the rules that no example reached.
pub fn format_coverage(settings: &PolicySettings, report: &ExampleReport, percent: usize) -> String {
    let mut out = String::new();
    for (rule, count) in settings.rules().zip(&report.spoken) {
        if *count == 0 {
            let (label, origin) = (escape_text(&rule.label()), escape_text(&rule.origin.to_string()));
            let _ = writeln!(out, "not reached: {} {label}    # {origin}", rule.effect);
        }
    }
    let failed = report.failed_results().count();
    let reached = report.spoken.iter().filter(|count| **count > 0).count();
    let held = report.results.len() - failed;
    let (held, rules) = (count_noun(held, "example"), count_noun(report.spoken.len(), "rule"));
    let _ = writeln!(out, "{held} passed, {failed} failed; {reached} of {rules} reached ({percent} %)");
    out
}

/// Formats a changed decision.
pub fn format_change(request: &str, command: &str, before: &Decision, after: &Decision) -> String {
    let milder = if after.verdict < before.verdict { "  MILDER" } else { "" };
    format!(
        "{request}  {} -> {}{milder}  {command}\n  before: {}\n  after:  {}\n",
        before.verdict,
        after.verdict,
        escape_text(&before.rule),
        escape_text(&after.rule)
    )
}

/// Formats a directory that replaces files, and the files that it would newly allow.
pub fn format_generalisation(made: &PathGeneralisation, newly: &[String]) -> String {
    let directory = RawText::from(made.directory.as_path()).to_escaped();
    let mut out = format!(
        "{directory} replaces {}; newly allowed{}:\n",
        count_noun(made.from.len(), "path"),
        if made.reads { " to be read" } else { "" }
    );
    let _ = writeln!(out, "  whatever is created there");
    for name in newly {
        let _ = writeln!(out, "  {}", escape_text(name));
    }
    out
}
