//! Conditions of a rule on the facts of an assessment.
//!
//! `ask` and `deny` need one fact that matches. `allow` needs every fact of the kind to be covered, because
//! an uncovered fact has no consent. Must not know how facts are found.

use std::path::{Component, Path};

use stockade_model::{Assessment, Capability, Host, NetworkTarget, RawText, TargetPattern};

use super::{RuleInput, RuleMatch};
use crate::file::FactsSection;
use crate::glob::text_matches;
use crate::hosts::HostEntry;
use crate::pattern::{PathFact, split_port};

/// Returns whether the facts match the conditions of the rule.
pub(crate) fn match_facts(
    expected: &FactsSection,
    assessment: &Assessment,
    scene: &RuleInput<'_>,
    raising: bool,
) -> RuleMatch {
    let path_facts: [(&[PathFact], PathSelector); 3] = [
        (
            &expected.reads,
            |c| if let Capability::Read(path) | Capability::Secret(path) = c { Some(path) } else { None },
        ),
        (&expected.writes, |c| if let Capability::Write(path) = c { Some(path) } else { None }),
        (&expected.deletes, |c| if let Capability::Delete(path) = c { Some(path) } else { None }),
    ];
    let mut all = flags_fit(expected, assessment);
    for (patterns, path_of) in path_facts {
        let paths = assessment.capabilities.iter().filter_map(path_of);
        let covers = |path: &Path| patterns.iter().any(|pattern| pattern.covers(path, scene.home, scene.workspace));
        let found = paths.map(|path| match_plain_path(path.as_path(), covers));
        all = all.min(combine_matches(patterns, raising, found));
    }
    let programs = assessment.capabilities.iter().filter_map(|c| match c {
        Capability::Execute(program) => Some(name_fits(&expected.executes, program)),
        _ => None,
    });
    let hosts = assessment.capabilities.iter().filter_map(|c| match c {
        Capability::Network(host) => Some(named_host_fits(&expected.network, host.as_ref(), raising)),
        _ => None,
    });
    let finding_matches = assessment.findings.iter().map(|finding| {
        RuleMatch::certain_if(expected.findings.iter().any(|pattern| text_matches(pattern, &finding.code)))
    });
    all.min(combine_matches(&expected.executes, raising, programs))
        .min(combine_matches(&expected.network, raising, hosts))
        .min(combine_matches(&expected.findings, raising, finding_matches))
}

type PathSelector = fn(&Capability) -> Option<&RawText>;

/// Requires one match of them if `raising`, otherwise a match of each. Without patterns there is no condition.
fn combine_matches<T>(patterns: &[T], raising: bool, found: impl Iterator<Item = RuleMatch>) -> RuleMatch {
    if patterns.is_empty() {
        RuleMatch::Certain
    } else if raising {
        found.max().unwrap_or(RuleMatch::No)
    } else {
        found.min().unwrap_or(RuleMatch::Certain)
    }
}

fn flags_fit(expected: &FactsSection, assessment: &Assessment) -> RuleMatch {
    let holds = |expected: Option<bool>, is: fn(&Capability) -> bool| {
        expected.is_none_or(|expected| expected == assessment.capabilities.iter().any(is))
    };
    RuleMatch::certain_if(
        holds(expected.secrets, |c| matches!(c, Capability::Secret(_)))
            && holds(expected.privilege, |c| matches!(c, Capability::Privilege(_))),
    )
}

/// Matches a path by `fits`. The target of a path that is relative or contains `..` is unknown here.
pub(crate) fn match_plain_path(path: &Path, fits: impl FnOnce(&Path) -> bool) -> RuleMatch {
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return RuleMatch::Possible;
    }
    RuleMatch::certain_if(fits(path))
}

fn name_fits(patterns: &[String], program: &RawText) -> RuleMatch {
    let Some(program) = program.to_str() else { return RuleMatch::Possible };
    let base = Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or(program);
    RuleMatch::certain_if(patterns.iter().any(|pattern| text_matches(pattern, program) || text_matches(pattern, base)))
}

/// Compares a host as a command names it: bare, with a port, or within a URL.
fn named_host_fits(entries: &[HostEntry], named: Option<&RawText>, raising: bool) -> RuleMatch {
    let is_any = |pattern: &TargetPattern| pattern.is_any_host() && pattern.ports().next().is_none();
    if entries.iter().flat_map(HostEntry::patterns).any(is_any) {
        return RuleMatch::Certain;
    }
    let Some(text) = named.and_then(RawText::to_str) else { return RuleMatch::Possible };
    let (host, port) = host_of(text);
    // The program may parse a text that is not a host as one.
    let Ok(host) = host.parse() else { return RuleMatch::Possible };
    host_fits(entries, &host, port, raising)
}

/// Returns whether an entry matches a host and port; an unknown port is a possible match. An entry that
/// allows must address special addresses explicitly.
pub(crate) fn host_fits(entries: &[HostEntry], host: &Host, port: Option<u16>, raising: bool) -> RuleMatch {
    let fits = |pattern: &TargetPattern| {
        let mut ports = pattern.ports();
        let first = ports.next().map(|range| *range.start());
        let target = NetworkTarget { host: host.clone(), port: port.or(first).unwrap_or(1) };
        let names = if raising { pattern.matches_target(&target) } else { pattern.can_allow(&target) };
        match (names, first, port) {
            (false, ..) => RuleMatch::No,
            (true, Some(_), None) => RuleMatch::Possible,
            (true, ..) => RuleMatch::Certain,
        }
    };
    entries.iter().flat_map(HostEntry::patterns).map(fits).max().unwrap_or(RuleMatch::No)
}

fn host_of(text: &str) -> (&str, Option<u16>) {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = split_port(authority);
    let known = match scheme {
        "http" => Some(80),
        "https" => Some(443),
        "ssh" => Some(22),
        _ => None,
    };
    (host, port.and_then(|port| port.parse().ok()).or(known))
}
