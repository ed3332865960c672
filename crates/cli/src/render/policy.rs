//! Policies as text: their content, their decisions, and the reasons.

use std::fmt::Write as _;
use std::path::Path;

use stockade_model::{Decision, RawText, Verdict};
use stockade_policy::examples::ExampleReport;
use stockade_policy::suggest::Generalisation;
use stockade_policy::{Considered, Explained as Setting, HostGroup, Match, Said, Settings};

use super::{Color, Style, check::verdict, counted, wrap};
use crate::command::policy::explain::{Explained, match_name};

fn escaped(text: &str) -> String {
    RawText::from(text).escaped()
}

/// Formats the files in force and their content.
pub fn files(settings: &Settings) -> String {
    let mut out = String::new();
    for (layer, path) in settings.files() {
        let rules = settings.rules().filter(|rule| rule.origin.layer() == Some(layer)).count();
        let _ = writeln!(out, "{layer:<8}  {}: {}", RawText::from(path).escaped(), counted(rules, "rule"));
    }
    let profiles: Vec<&str> = settings.profiles().map(|(name, _)| name).collect();
    let _ = writeln!(out, "profiles  {}", profiles.join(", "));
    out
}

/// Formats one valid file.
pub fn file(path: &Path, settings: &Settings) -> String {
    format!(
        "{}: sound, {} in force with it\n",
        RawText::from(path).escaped(),
        counted(settings.rules().count(), "rule")
    )
}

/// Formats every setting and its origin.
pub fn settings(lines: &[Setting]) -> String {
    let mut out = String::new();
    for line in lines {
        let _ = writeln!(
            out,
            "{} = {}    # {}",
            escaped(&line.key),
            escaped(&line.value),
            escaped(&line.origin.to_string())
        );
    }
    out
}

/// Formats each group of hosts with its hosts.
pub fn groups(groups: &[HostGroup], style: Style) -> String {
    let wide = groups.iter().map(|group| group.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for group in groups {
        let hosts: Vec<String> = group.hosts.iter().map(ToString::to_string).collect();
        let text = format!("{}: {}", group.summary, hosts.join(" "));
        wrap(&mut out, style, &format!("@{:wide$}  ", group.name), &text);
    }
    out
}

/// Formats every rule on one line.
pub fn rules(settings: &Settings) -> String {
    let mut out = String::from("rules, combined by deny-overrides over the files:\n");
    for rule in settings.rules() {
        let origin = rule.origin.to_string();
        let _ = writeln!(out, "  {:<5}  {}    # {}", verdict(rule.effect), escaped(&rule.label()), escaped(&origin));
    }
    out
}

fn color_of(decided: Verdict) -> Color {
    match decided {
        Verdict::Allow => Color::Bold,
        Verdict::Ask => Color::Yellow,
        Verdict::Deny => Color::Red,
    }
}

/// Formats one decision: the deciding source first, then all others.
pub fn explanation(shown: &Explained<'_>, style: Style) -> String {
    let mut out = String::new();
    let decision = shown.decision;
    wrap(&mut out, style, "subject   ", &shown.subject);
    let painted = style.paint(color_of(decision.verdict), verdict(decision.verdict));
    let _ = writeln!(out, "decision  {painted}   ({})", escaped(&decision.rule));
    for reason in &decision.reasons {
        wrap(&mut out, style, "because   ", &escaped(reason));
    }
    for said in shown.voices.iter().filter(|said| !said.decides || said.source != decision.rule) {
        wrap(&mut out, style, "also      ", &voice(said));
    }
    if let Some(grant) = &shown.grant {
        wrap(&mut out, style, "a yes     ", &format!("gives `{}`", escaped(grant)));
    }
    if let Some(wants) = shown.obligations.filter(|wants| !wants.is_empty()) {
        if let Some(profile) = &wants.profile {
            wrap(&mut out, style, "runs with ", &format!("profile {profile}"));
        }
        for grant in &wants.grants {
            wrap(&mut out, style, "is given  ", &escaped(&grant.to_string()));
        }
        if let Some(ms) = wants.limits.wall_ms {
            wrap(&mut out, style, "limit     ", &super::time(ms));
        }
    }
    // A rule about files does not concern a command.
    let of_its_kind = |one: &&Considered<'_>| one.failing != Some("it speaks of something else");
    for one in shown.considered.iter().filter(of_its_kind) {
        wrap(&mut out, style, "rule      ", &considered(one));
    }
    out
}

fn voice(said: &Said) -> String {
    let why = if said.reasons.is_empty() { String::new() } else { format!(": {}", said.reasons.join("; ")) };
    escaped(&format!("{} by {}{why}", verdict(said.verdict), said.source))
}

fn considered(one: &Considered<'_>) -> String {
    let found = match (one.found, one.failing) {
        (Match::No, Some(why)) => format!("no, {why}"),
        (found, _) => match_name(found).to_owned(),
    };
    escaped(&format!("{} {}: {found} ({})", verdict(one.rule.effect), one.rule.label(), one.rule.origin))
}

/// Formats the failed examples of a file.
pub fn failed_examples(path: &Path, report: &ExampleReport) -> String {
    let mut out = String::new();
    for result in report.failed() {
        let place = result.place.map_or(String::new(), |place| format!(":{place}"));
        let fault = result.fault.as_deref().unwrap_or_default();
        let file = RawText::from(path).escaped();
        let _ = writeln!(out, "{file}{place}: `{}`: {}", escaped(&result.subject), escaped(fault));
        let decided = verdict(result.decision.verdict);
        let _ = writeln!(
            out,
            "  expected {}, decided {decided} by {}",
            verdict(result.expected),
            escaped(&result.decision.rule)
        );
    }
    out
}

/// Formats the number of successful examples, and the rules that no example reached.
pub fn coverage(settings: &Settings, report: &ExampleReport, percent: usize) -> String {
    let mut out = String::new();
    for (rule, count) in settings.rules().zip(&report.spoken) {
        if *count == 0 {
            let origin = rule.origin.to_string();
            let _ = writeln!(
                out,
                "not reached: {} {}    # {}",
                verdict(rule.effect),
                escaped(&rule.label()),
                escaped(&origin)
            );
        }
    }
    let failed = report.failed().count();
    let reached = report.spoken.iter().filter(|count| **count > 0).count();
    let held = report.results.len() - failed;
    let _ = writeln!(
        out,
        "{} held, {failed} failed; {reached} of {} reached ({percent} %)",
        counted(held, "example"),
        counted(report.spoken.len(), "rule"),
    );
    out
}

/// Formats a changed decision.
pub fn changed(request: &str, command: &str, before: &Decision, after: &Decision) -> String {
    let milder = if after.verdict < before.verdict { "  MILDER" } else { "" };
    format!(
        "{request}  {} -> {}{milder}  {command}\n  before: {}\n  after:  {}\n",
        verdict(before.verdict),
        verdict(after.verdict),
        escaped(&before.rule),
        escaped(&after.rule)
    )
}

/// Formats a directory that replaces files, and the files that it would newly allow.
pub fn generalised(made: &Generalisation, newly: &[String]) -> String {
    let directory = RawText::from(made.directory.as_path()).escaped();
    let mut out = format!(
        "{directory} stands for {}; newly allowed{}:\n",
        counted(made.from.len(), "path"),
        if made.reads { " to be read" } else { "" }
    );
    let _ = writeln!(out, "  whatever is created there");
    for name in newly {
        let _ = writeln!(out, "  {}", escaped(name));
    }
    out
}
