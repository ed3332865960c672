//! The shipped groups of hosts, read from `policies/groups.toml` when a configuration first names one.
//!
//! Must not know the use of a group.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use serde::Deserialize;
use stockade_model::{NetworkTarget, TargetPattern};

const GROUPS_TEXT: &str = include_str!("../../../policies/groups.toml");

/// A group of related hosts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostGroup {
    /// Name of the group, without `@`.
    pub name: String,
    /// Description in one line, including hosts of the group that can also receive data.
    pub summary: String,
    /// The groups that this one includes, without `@`.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The hosts, each with its ports: those of the group and of the included groups, each once.
    #[serde(default)]
    pub hosts: Vec<TargetPattern>,
    /// Documentation that lists these hosts.
    pub source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostGroupFile {
    group: Vec<HostGroup>,
}

/// Reads a file of groups. A group may only include groups above it, so that none includes itself.
fn parse_groups(text: &str) -> Result<Vec<HostGroup>, String> {
    let file = toml::from_str::<HostGroupFile>(text).map_err(|error| error.to_string())?;
    let mut all: Vec<HostGroup> = Vec::with_capacity(file.group.len());
    for mut group in file.group {
        let mut hosts = Vec::new();
        for part in &group.groups {
            let Some(known) = all.iter().find(|known| known.name == *part) else {
                return Err(format!("{}: no group `{part}` is defined above it", group.name));
            };
            hosts.extend(known.hosts.iter().cloned());
        }
        hosts.append(&mut group.hosts);
        let mut seen = BTreeSet::new();
        hosts.retain(|host| seen.insert(host.clone()));
        all.push(HostGroup { hosts, ..group });
    }
    Ok(all)
}

/// Returns every group.
pub fn host_groups() -> &'static [HostGroup] {
    static GROUPS: OnceLock<Vec<HostGroup>> = OnceLock::new();
    // The text is part of this repository, and a test reads it. If it were broken, no group would be known,
    // and a configuration that names one would be refused.
    GROUPS.get_or_init(|| parse_groups(GROUPS_TEXT).unwrap_or_default())
}

/// Returns the group of this name, without `@`.
pub(crate) fn find_group(name: &str) -> Option<&'static HostGroup> {
    host_groups().iter().find(|group| group.name == name)
}

/// Returns the groups that list this host on this port, those with the fewest hosts first. A host that a
/// wildcard of the group covers counts; a name beneath it does not.
pub fn groups_with(target: &NetworkTarget) -> Vec<&'static HostGroup> {
    let exactly = TargetPattern::for_target(target);
    let mut all: Vec<&HostGroup> =
        host_groups().iter().filter(|group| group.hosts.iter().any(|host| host.covers(&exactly))).collect();
    all.sort_by_key(|group| group.hosts.len());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::check_breadth;

    #[test]
    fn groups_are_well_formed() {
        let groups = parse_groups(GROUPS_TEXT).unwrap();
        let names: BTreeSet<&str> = groups.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names.len(), groups.len(), "a name stands twice");
        for group in &groups {
            assert!(group.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()), "{}", group.name);
            assert!(group.summary.len() > 10 && group.source.len() > 10, "{}", group.name);
            for host in &group.hosts {
                assert!(host.ports().next().is_some(), "{}: {host} names no port", group.name);
                assert_eq!(check_breadth(host), Ok(()), "{}", group.name);
            }
        }
        let sections = toml::from_str::<HostGroupFile>(GROUPS_TEXT).unwrap().group;
        for section in sections {
            let hosts: BTreeSet<_> = section.hosts.iter().collect();
            assert_eq!(hosts.len(), section.hosts.len(), "{}: a host stands twice", section.name);
        }
    }

    /// Methods are only known if a profile inspects the traffic. A host that a tool fetches from can also
    /// receive data, and the summary must mention this.
    #[test]
    fn groups_of_tools_name_their_hosts() {
        for name in ["git", "cargo", "python", "node", "go", "java"] {
            let group = find_group(name).unwrap();
            assert!(group.summary.contains("can also send: "), "{name}: {}", group.summary);
        }
    }

    #[test]
    fn git_reads_over_https_alone() {
        for host in &find_group("git").unwrap().hosts {
            assert!(host.to_string().ends_with(":443") && !host.to_string().contains("ssh"), "{host}");
        }
    }

    #[track_caller]
    fn check_read(text: &str, expected: Result<&[&str], &str>) {
        let shown = parse_groups(text).map(|groups| {
            let last = groups.last().unwrap();
            last.hosts.iter().map(ToString::to_string).collect::<Vec<_>>()
        });
        let expected = expected.map(|hosts| hosts.iter().map(ToString::to_string).collect()).map_err(str::to_owned);
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_group_includes_the_limits_of_its_ancestors() {
        let one =
            |name: &str, rest: &str| format!("[[group]]\nname = \"{name}\"\nsummary = \"s\"\nsource = \"s\"\n{rest}\n");
        let a = one("a", "hosts = [\"x.example.com:443\", \"y.example.com:443\"]");
        let b = one("b", "groups = [\"a\"]\nhosts = [\"z.example.com:443\", \"x.example.com:443\"]");
        let c = one("c", "groups = [\"b\", \"a\"]");
        check_read(&format!("{a}{b}"), Ok(&["x.example.com:443", "y.example.com:443", "z.example.com:443"]));
        check_read(&format!("{a}{b}{c}"), Ok(&["x.example.com:443", "y.example.com:443", "z.example.com:443"]));
        check_read(&format!("{b}{a}"), Err("b: no group `a` is defined above it"));
        check_read(&one("d", "groups = [\"d\"]"), Err("d: no group `d` is defined above it"));
    }

    #[test]
    fn groups_of_a_host() {
        let names = |target: &str| {
            let target = target.parse::<TargetPattern>().unwrap().target().unwrap();
            groups_with(&target).iter().map(|group| group.name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(names("index.crates.io:443"), ["crates", "cargo"]);
        assert_eq!(names("registry.npmjs.org:443"), ["npm", "node"]);
        assert_eq!(names("de.archive.ubuntu.com:80"), ["ubuntu"]);
        assert_eq!(names("github.com:22"), ["github"]);
        for none in ["registry.npmjs.org:80", "x.registry.npmjs.org:443", "npmjs.org:443", "a.de.archive.ubuntu.com:80"]
        {
            assert_eq!(names(none), [""; 0], "{none}");
        }
    }
}
