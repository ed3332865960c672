//! What a command finds out about its isolation, compared with what it found when it was last
//! looked at.

use std::fs;

use crate::Verdict;
use crate::bench::{Bench, command};

super::cases! { "introspection": the_namespaces_are_the_committed_ones }

/// The program that looks.
const PROBE: &str = include_str!("../introspection/probe.py");

/// What was found, by kind; it is the same for every user.
const COMMITTED: &[(&str, &str)] = &[
    ("native", NATIVE),
    ("kept", NATIVE),
    ("docker", include_str!("../introspection/docker.txt")),
    ("docker-runsc", include_str!("../introspection/docker-runsc.txt")),
    ("podman", include_str!("../introspection/podman.txt")),
];
const NATIVE: &str = include_str!("../introspection/native.txt");

fn the_namespaces_are_the_committed_ones(bench: &Bench) -> Verdict {
    let names = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
    let host =
        names.map(|name| format!("{name}={}", fs::read_link(format!("/proc/self/ns/{name}")).unwrap().display()));
    let seen = bench.test_sandbox().run_plan(&command(&["python3", "-c", PROBE, &host.join(",")])).ok();
    let name = bench.kind;
    let committed = COMMITTED.iter().find(|(kind, _)| *kind == name).map(|(_, text)| *text);
    let committed = committed.unwrap_or_else(|| panic!("nothing was committed of {name}:\n{seen}"));
    let differences: Vec<String> = differing(committed, &seen).chain(differing(&seen, committed)).collect();
    assert!(differences.is_empty(), "{}\nit is now:\n{seen}", differences.join("\n"));
    Ok(())
}

/// The lines that only one of the two has.
fn differing<'a>(one: &'a str, other: &'a str) -> impl Iterator<Item = String> + 'a {
    one.lines().filter(|line| !other.lines().any(|its| its == *line)).map(|line| format!("not in both: {line}"))
}
