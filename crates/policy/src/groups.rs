//! The shipped groups of hosts, read from `policies/groups.toml` when a
//! configuration first names one.
//!
//! Must not know what a group is used for.

use std::sync::OnceLock;

use serde::Deserialize;
use stockade_model::TargetPattern;

const TEXT: &str = include_str!("../../../policies/groups.toml");

/// Hosts that belong together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostGroup {
    /// Its name, without `@`.
    pub name: String,
    /// What it is, in one line.
    pub summary: String,
    /// The hosts, each with its ports.
    pub hosts: Vec<TargetPattern>,
    /// Where it is said that it is these.
    pub source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    group: Vec<HostGroup>,
}

/// Every group there is.
pub fn host_groups() -> &'static [HostGroup] {
    static GROUPS: OnceLock<Vec<HostGroup>> = OnceLock::new();
    // The text is this repository's own and a test reads it; were it broken, no
    // group would be known, and a configuration that names one would be refused.
    GROUPS.get_or_init(|| toml::from_str::<File>(TEXT).map_or_else(|_| Vec::new(), |file| file.group))
}

/// The group of this name, without `@`.
pub(crate) fn group(name: &str) -> Option<&'static HostGroup> {
    host_groups().iter().find(|group| group.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::hosts::check_breadth;

    #[test]
    fn groups_are_well_formed() {
        let groups = toml::from_str::<File>(TEXT).unwrap().group;
        let names: BTreeSet<&str> = groups.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names.len(), groups.len(), "a name stands twice");
        for group in &groups {
            assert!(group.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()), "{}", group.name);
            assert!(group.summary.len() > 10 && group.source.len() > 10, "{}", group.name);
            for host in &group.hosts {
                assert!(host.ports().next().is_some(), "{}: {host} names no port", group.name);
                assert_eq!(check_breadth(host), Ok(()), "{}", group.name);
            }
            let hosts: BTreeSet<_> = group.hosts.iter().collect();
            assert_eq!(hosts.len(), group.hosts.len(), "{}: a host stands twice", group.name);
        }
    }
}
