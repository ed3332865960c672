//! Effect of refusals on an offer that exceeds the requested power: a directory, a domain, a group
//! of hosts (L9).
//!
//! This module does not know the questions; its callers decide on the offers.

use stockade_model::{Grant, GroupOffer};

/// Returns whether one of these refusals is about something in this directory or domain.
pub fn is_refused_in(refused: &[Grant], directory: &[Grant]) -> bool {
    let is_in = |refused: &Grant, around: &Grant| match (refused.targets(), around.targets()) {
        (Some(hosts), Some(around)) => hosts != around && around.covers(hosts),
        _ => refused.path().zip(around.path()).is_some_and(|(path, root)| path != root && path.starts_with(root)),
    };
    refused.iter().any(|refused| directory.iter().any(|around| is_in(refused, around)))
}

/// Returns the powers of a group that no refusal names.
pub fn unrefused_powers<'a>(offer: &GroupOffer, refused: impl IntoIterator<Item = &'a Grant> + Clone) -> Vec<Grant> {
    let is_refused = |grant: &Grant, refused: &Grant| {
        refused.targets().zip(grant.targets()).is_some_and(|(refused, hosts)| refused.overlaps(hosts))
    };
    let is_left = |grant: &&Grant| !refused.clone().into_iter().any(|refused| is_refused(grant, refused));
    offer.grants.iter().filter(is_left).cloned().collect()
}

/// Returns whether no refusal names a power of the group, so that it may be offered.
pub fn is_whole<'a>(offer: &GroupOffer, refused: impl IntoIterator<Item = &'a Grant> + Clone) -> bool {
    unrefused_powers(offer, refused) == offer.grants
}

/// Returns whether these powers are among the others.
pub fn is_subset(some: &[Grant], all: &[Grant]) -> bool {
    !some.is_empty() && some.iter().all(|grant| all.contains(grant))
}

/// Returns whether these powers are among the others, or are hosts that one of these covers.
pub fn are_covered(powers: &[Grant], available: &[Grant]) -> bool {
    let names = |available: &Grant, power: &Grant| {
        available.targets().zip(power.targets()).is_some_and(|(available, power)| available.admits_all(power))
    };
    let is_covered = |power: &Grant| available.iter().any(|available| available == power || names(available, power));
    !powers.is_empty() && powers.iter().all(is_covered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(hosts: &[&str]) -> Vec<Grant> {
        hosts.iter().map(|host| format!("connect {host}").parse().unwrap()).collect()
    }

    #[test]
    fn refused_hosts_are_left_out_of_a_group() {
        let offer = GroupOffer { name: "x".to_owned(), grants: grants(&["a.example.com:443", "b.example.com:22,443"]) };
        for (refused, expected) in [
            (&["c.example.com:443"][..], &["a.example.com:443", "b.example.com:22,443"][..]),
            (&["b.example.com:443"], &["a.example.com:443"]),
            (&["a.example.com:80"], &["a.example.com:443", "b.example.com:22,443"]),
            (&["*.example.com:443"], &[]),
        ] {
            assert_eq!(unrefused_powers(&offer, &grants(refused)), grants(expected), "{refused:?}");
        }
    }

    #[test]
    fn a_host_is_granted_by_the_option_that_names_it() {
        for (power, available, expected) in [
            ("a.example.com:443", "a.example.com:22,443", true),
            ("a.example.com:443", "*.example.com:443", true),
            ("a.example.com:80", "a.example.com:443", false),
            ("a.example.com:443", "b.example.com:443", false),
        ] {
            assert_eq!(are_covered(&grants(&[power]), &grants(&[available])), expected, "{power} of {available}");
        }
        assert!(!are_covered(&[], &grants(&["a.example.com:443"])));
    }
}
