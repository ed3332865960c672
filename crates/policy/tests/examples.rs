//! Files of examples: what holds, what does not, and which rules they reach.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::path::Path;

use stockade_model::{Assessment, Capability, PolicyVerdict, RequestCommand, RunRequest, Tier};
use stockade_policy::examples::{ExampleReport, run_examples};
use stockade_policy::{ConfigError, ConfigLayer, LayerText, OwnDirectories, PolicySettings};

const RULES: &str = r#"
approval_mode = "untrusted"
[[rules]]
name = "no-push"
prefix = ["git", "push"]
effect = "deny"
justification = "x"
[[rules]]
name = "build"
prefix = ["cargo", "build"]
effect = "allow"
justification = "x"
[[rules]]
name = "outside"
facts.writes = ["outside-workspace"]
effect = "ask"
justification = "x"
[[rules]]
name = "night"
hosts = ["db.example:5432"]
time = ["22:00-06:00"]
effect = "deny"
justification = "x"
[[rules]]
name = "never-reached"
tool = ["x"]
effect = "deny"
justification = "x"
"#;

/// Writes what stands behind `>`.
fn assess(request: &RunRequest) -> Assessment {
    let RequestCommand::Script(script) = &request.command else { unreachable!() };
    let write = script.to_str().and_then(|text| text.split_once("> ")).map(|(_, path)| Capability::Write(path.into()));
    Assessment { capabilities: write.into_iter().collect(), ..Assessment::without_findings(Tier::Ask) }
}

fn run(source: &str) -> Result<ExampleReport, ConfigError> {
    let layer = LayerText { layer: ConfigLayer::User, path: "/u".into(), source: RULES.to_owned() };
    let settings = PolicySettings::from_layers(Path::new("/home/u"), OwnDirectories::default(), &[layer]).unwrap();
    run_examples(&settings, Path::new("cases.toml"), source, Path::new("/w"), &assess)
}

#[test]
fn examples_and_coverage() {
    let report = run(r#"
[[case]]
run = "git push -f"
expect = "deny"
rule = "no-push"
[[case]]
run = "cargo build"
expect = "allow"
rule = "build"
[[case]]
run = "make > /etc/x"
expect = "ask"
rule = "outside"
why = "that lies outside"
[[case]]
host = "db.example:5432"
time_ms = 1704319200000
expect = "deny"
rule = "night"
[[case]]
host = "db.example:5432"
time_ms = 1704276000000
expect = "ask"
[[case]]
file = "write ./a"
expect = "allow"
[[case]]
call = 'other {"a": 1}'
expect = "ask"
[[case]]
run = "ls"
expect = "allow"
[[case]]
run = "cargo build"
expect = "allow"
rule = "no-push"
"#)
    .unwrap();
    let failed: Vec<&str> = report.failed_results().map(|result| result.subject.as_str()).collect();
    assert_eq!(failed, ["ls", "cargo build"]);
    let last = report.results.last().unwrap();
    assert_eq!(last.fault.as_deref(), Some("the deciding rule is not `no-push`"));
    assert_eq!((last.expected, last.decision.verdict), (PolicyVerdict::Allow, PolicyVerdict::Allow));
    assert_eq!(report.spoken, [1, 2, 1, 1, 0]);
    let mut twice = report.clone();
    twice.merge_results(report);
    assert_eq!(twice.spoken, [2, 4, 2, 2, 0]);
}

#[test]
fn wrong_examples_name_their_position() {
    for (source, expected) in [
        ("[[case]]\nexpect = \"deny\"", "cases.toml:1:1: an example has exactly one of"),
        ("[[case]]\nrun = \"a\"\nhost = \"b\"\nexpect = \"deny\"", "cases.toml:1:1: an example has exactly one of"),
        ("[[case]]\nrun = \"a\"", "cases.toml:1:1: missing key `expect`"),
        ("[[case]]\nrun = \"a\"\nexpect = \"no\"", "cases.toml:3:10: unknown value `no`"),
        ("[[case]]\nfile = \"burn x\"\nexpect = \"deny\"", "cases.toml:2:1: `burn x`: a file change is"),
        ("[[case]]\ncall = \"x {\"\nexpect = \"deny\"", "cases.toml:2:1: `x {`: a tool call is"),
        ("[[case]]\nhost = \"a:b\"\nexpect = \"deny\"", "cases.toml:2:1: `a:b`: a target is"),
        ("[[cas]]\n", "cases.toml:1:3: unknown key `cas`"),
    ] {
        let error = run(source).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{source}: {error}");
    }
}
